//! The native environments against Gymnasium: same seeds, same actions, same everything.
//!
//! Needs Python with `gymnasium`, in `WINDROW_PYTHON`: `cargo xtask test` sets it and asks for the test, which others leave
//! out.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, helper functions included"
)]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tensordict::DType;
use windrow_env::{Env, EnvSpec, Outcome, Spec, make};
use windrow_slab::{Key, RowBlock};

const SEEDS: usize = 22;

/// Environments and the steps of each seed: several episodes even of those that reach their time limit.
///
/// All are compared bit for bit, without any tolerance. That holds where both sides use the same `libm` and where
/// NumPy has FMA, which decides how it computes the `float32` sines and cosines of Acrobot's first observation.
const ENVS: [(&str, usize); 5] = [
    ("CartPole-v1", 2500),
    ("Pendulum-v1", 2500),
    ("MountainCar-v0", 2500),
    ("MountainCarContinuous-v0", 3500),
    ("Acrobot-v1", 2500),
];

#[test]
#[ignore = "needs Python with gymnasium in WINDROW_PYTHON: `cargo xtask test` has it"]
fn native_environments_are_gymnasiums_bit_for_bit() {
    let python = std::env::var_os("WINDROW_PYTHON").unwrap_or_else(|| {
        panic!(
            "expected the path of a Python with gymnasium in WINDROW_PYTHON, which is not set: \
             `cargo xtask python` makes one and prints it"
        )
    });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/gym_compare.py");
    let run = |id: &str, steps: usize| {
        Command::new(&python)
            .arg(&script)
            .args([id, &SEEDS.to_string(), &steps.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", python.display()))
    };
    let children = ENVS.map(|(id, steps)| (id, steps, run(id, steps)));
    let mut total = 0;
    for (id, steps, child) in children {
        total += compare(id, steps, child);
    }
    println!("gymnasium comparison: {total} steps compared");
}

/// Replays what `child` prints, and gives the number of steps.
fn compare(id: &str, steps: usize, mut child: Child) -> usize {
    let mut theirs = Theirs(BufReader::new(child.stdout.take().unwrap()));
    let env = make(id).unwrap();
    let version = compare_spec(env.spec(), &mut theirs);
    let mut ours = Ours::new(env);
    let mut ends = Ends::default();
    for _ in 0..SEEDS {
        let seed = u64::from_le_bytes(theirs.bytes());
        ours.reset(Some(seed));
        theirs.compare_observation(&ours, || format!("{id}, seed {seed}, first observation"));
        for step in 0..steps {
            let place = || format!("{id}, seed {seed}, step {step}");
            let outcome = ours.step(theirs.f64());
            theirs.compare_observation(&ours, place);
            theirs.compare_outcome(outcome, place);
            ends.count(outcome);
            if outcome.terminated || outcome.truncated {
                ours.reset(None);
                theirs.compare_observation(&ours, || format!("{}, reset after it", place()));
            }
        }
    }
    assert!(
        theirs.0.fill_buf().unwrap().is_empty(),
        "{id}: more came than was asked for"
    );
    assert!(child.wait().unwrap().success());
    let frames = SEEDS * steps;
    println!(
        "compared {frames} steps of {id} with Gymnasium {version}: bit-equal ({} episodes terminated, {} truncated)",
        ends.terminated, ends.truncated
    );
    assert!(ends.truncated > 0, "{id} was never truncated");
    assert!(
        ends.terminated > 0 || id == "Pendulum-v1",
        "{id} was never terminated"
    );
    frames
}

#[derive(Default)]
struct Ends {
    terminated: usize,
    truncated: usize,
}

impl Ends {
    fn count(&mut self, outcome: Outcome) {
        self.terminated += usize::from(outcome.terminated);
        self.truncated += usize::from(outcome.truncated);
    }
}

/// Compares what the environments say of themselves, and gives Gymnasium's version.
fn compare_spec(spec: &EnvSpec, theirs: &mut Theirs) -> String {
    let version = theirs.line();
    let limit = spec.max_episode_steps.unwrap();
    assert_eq!(theirs.line(), format!("max_episode_steps {limit}"));
    assert_eq!(theirs.line(), described("observation", &spec.observation));
    assert_eq!(theirs.line(), described("action", &spec.action));
    assert_eq!(theirs.line(), "end");
    version.trim_start_matches("version ").to_owned()
}

/// A space in the words of the script.
fn described(name: &str, spec: &Spec) -> String {
    match spec {
        Spec::Discrete { n } => format!("{name} discrete int64 0 {n}"),
        Spec::Bounded {
            dtype,
            shape,
            low,
            high,
        } => {
            let sizes: Vec<_> = shape.iter().map(usize::to_string).collect();
            let bounds = low.iter().zip(high).flat_map(|(low, high)| [low, high]);
            let bounds: Vec<_> = bounds.map(|bound| format!("{bound:?}")).collect();
            format!(
                "{name} box {dtype} {} {}",
                sizes.join("x"),
                bounds.join(" ")
            )
        }
        other => panic!("{name} is unlike Gymnasium's: {other:?}"),
    }
}

/// Our side: one environment and its rows.
struct Ours {
    env: Box<dyn Env>,
    obs: RowBlock,
    action: RowBlock,
    discrete: bool,
}

impl Ours {
    fn new(env: Box<dyn Env>) -> Self {
        let leaves = env.spec().action_leaves();
        Self {
            obs: RowBlock::new(&env.spec().observation_leaves(), 1).unwrap(),
            action: RowBlock::new(&leaves, 1).unwrap(),
            discrete: leaves[0].dtype == DType::I64,
            env,
        }
    }

    fn reset(&mut self, seed: Option<u64>) {
        let mut obs = self.obs.rows_mut();
        self.env.reset(seed, obs.env_mut(0).unwrap()).unwrap();
    }

    fn step(&mut self, action: f64) -> Outcome {
        let mut rows = self.action.rows_mut();
        if self.discrete {
            rows.get_mut(Key::<i64>::new(0)).unwrap()[0] = action as i64;
        } else {
            rows.get_mut(Key::<f32>::new(0)).unwrap()[0] = action as f32;
        }
        let action = self.action.rows().env(0).unwrap();
        let mut obs = self.obs.rows_mut();
        self.env.step(action, obs.env_mut(0).unwrap()).unwrap()
    }

    fn observation(&self) -> &[f32] {
        self.obs.rows().get(Key::new(0)).unwrap()
    }
}

/// Gymnasium's side: what the script prints.
struct Theirs(BufReader<std::process::ChildStdout>);

impl Theirs {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn f64(&mut self) -> f64 {
        f64::from_le_bytes(self.bytes())
    }

    fn compare_observation(&mut self, ours: &Ours, place: impl Fn() -> String) {
        for (i, ours) in ours.observation().iter().enumerate() {
            let theirs = f32::from_le_bytes(self.bytes());
            assert_eq!(
                ours.to_bits(),
                theirs.to_bits(),
                "{}: element {i} is {ours:?}, Gymnasium's {theirs:?}",
                place()
            );
        }
    }

    fn compare_outcome(&mut self, ours: Outcome, place: impl Fn() -> String) {
        let reward = self.f64() as f32;
        let [terminated, truncated] = self.bytes().map(|flag| flag == 1);
        let theirs = Outcome {
            reward,
            terminated,
            truncated,
        };
        assert_eq!(ours, theirs, "{}: ours, then Gymnasium's", place());
        assert_eq!(
            ours.reward.to_bits(),
            reward.to_bits(),
            "{}: the reward",
            place()
        );
    }
}
