//! A run that was cut between two batches goes on bit for bit, in another process too.
//!
//! `WINDROW_RESUME_FRAMES=1000000 cargo test -p windrow-collect --test exact` compares as many
//! frames in all.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "conformance/program.rs"]
mod program;

use std::collections::BTreeMap;
use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;

use tensordict::{DType, Tensor, TensorDict};
use windrow_collect::{
    Collector, CollectorBuilder, CollectorConfig, Delivery, Inference, Parallel, Placement,
    TrajFormat,
};
use windrow_env::testing::LedgerEnv;
use windrow_env::{
    AnyTransform, CatFrames, Env, EnvError, EnvRecipe, EnvSpec, InitTracker, Keys, NumpyRng,
    Outcome, RewardSum, StateVisitor, Statistics, StepCounter, TimeMaxPool, VecNorm, VecNormV2,
};
use windrow_policy::{
    Binding, Head, NetworkPolicy, Policy, PolicyError, PolicyIn, PolicyRecipe, PolicySpec,
    Registry, Scale, Weights, nn::Sequential,
};
use windrow_slab::{Key, LeafSpec, Row, RowMut, RowsMut};

use program::{placed, placements};

fn names(registry: &mut Registry) -> Result<(), Box<dyn Error + Send + Sync>> {
    registry.env("Ledger", || LedgerEnv::from_seed().with_max_length(9))?;
    registry.env("Silent", || Silent(LedgerEnv::from_seed()))?;
    registry.policy_with("drifts", |below: u64, _| {
        let drift = Vec::new();
        Ok::<_, PolicyError>(Drifts { below, drift })
    })?;
    Ok(())
}

/// A ledger that says nothing of its state.
struct Silent(LedgerEnv);

impl Env for Silent {
    fn spec(&self) -> &EnvSpec {
        self.0.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.0.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.0.step(action, obs)
    }
}

/// Chooses by what it remembers of each environment's episode, and by chance.
struct Drifts {
    below: u64,
    drift: Vec<u64>,
}

impl Policy for Drifts {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        self.drift = vec![0; binding.num_envs];
        let mut columns = binding.spec.action_leaves();
        columns.push(LeafSpec::new("drift", DType::I64, []));
        Ok(PolicySpec::new(columns))
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        for (row, &first) in input.envs.is_first().iter().enumerate() {
            let mut noise = input.envs.noise(row);
            self.drift[row] = match first {
                true => noise.below(self.below),
                false => self.drift[row] * 3 % 1009 + noise.below(2),
            };
            out.get_mut::<i64>(Key::new(0))?[row] = (self.drift[row] % 2) as i64;
            out.get_mut::<i64>(Key::new(1))?[row] = self.drift[row] as i64;
        }
        Ok(())
    }

    fn load(&mut self, _: &Weights) -> Result<(), PolicyError> {
        Ok(())
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.values(&mut self.drift)
    }
}

/// Environments, transforms around them, and a policy that samples.
fn world(name: &str) -> (EnvRecipe, PolicyRecipe) {
    let seen = || Keys::of(["observation"]);
    let counted = |id: &str, others: Vec<AnyTransform>| {
        let counted = EnvRecipe::of(id)
            .with_transform(StepCounter::new().with_max_steps(61))
            .with_transform(RewardSum::new());
        others.into_iter().fold(counted, EnvRecipe::with_transform)
    };
    let net = |inputs, outputs| {
        Sequential::new()
            .linear(inputs, 8)
            .tanh()
            .linear(8, outputs)
            .seed(3)
    };
    let choice = |inputs, n| {
        let policy = NetworkPolicy::new(net(inputs, n), Head::Categorical);
        policy.return_log_prob(true).recipe().unwrap()
    };
    let normal = |inputs| {
        let policy = NetworkPolicy::new(net(inputs, 2), Head::Normal(Scale::softplus()));
        policy.return_log_prob(true).recipe().unwrap()
    };
    match name {
        "CartPole-v1" => (
            counted(
                name,
                vec![
                    VecNorm::new(["observation"]).into(),
                    InitTracker::new().into(),
                ],
            ),
            choice(4, 2),
        ),
        "Acrobot-v1" => (
            counted(name, vec![CatFrames::new(3, -1, seen()).into()]),
            choice(18, 3),
        ),
        "MountainCar-v0" => (
            counted(name, vec![TimeMaxPool::new(4, seen()).into()]),
            choice(2, 3),
        ),
        "Pendulum-v1" => (
            counted(name, vec![VecNormV2::new(["observation", "reward"]).into()]),
            normal(3),
        ),
        "MountainCarContinuous-v0" => (
            counted(
                name,
                vec![VecNormV2::new(["observation"]).with_decay(0.99).into()],
            ),
            normal(2),
        ),
        "Ledger" => (EnvRecipe::of(name), PolicyRecipe::random()),
        "drifts" => (
            EnvRecipe::of("CartPole-v1").with_transform(StepCounter::new()),
            PolicyRecipe::named_with("drifts", &5).unwrap(),
        ),
        other => panic!("no world {other}"),
    }
}

const NATIVE: [&str; 5] = [
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "Pendulum-v1",
    "MountainCarContinuous-v0",
];

/// Environments of each worker.
const ENVS: usize = 3;

fn builder(name: &str, placement: Placement) -> CollectorBuilder {
    program::know_names();
    let (env, policy) = world(name);
    let builder = placed!(Collector::builder(env), placement);
    builder
        .policy_recipe(policy)
        .num_envs(ENVS)
        .frames_per_batch(60)
        .seed(11)
}

/// A number for all that is in `batch`.
fn digest(batch: &TensorDict) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (key, tensor) in batch.detach().leaves() {
        format!("{key:?}").hash(&mut hasher);
        tensor.contiguous().as_bytes().unwrap().hash(&mut hasher);
        tensor.shape().hash(&mut hasher);
    }
    hasher.finish()
}

fn digests(collector: &mut Collector, batches: usize) -> Vec<u64> {
    let batches = collector.by_ref().take(batches);
    batches.map(|batch| digest(&batch.unwrap())).collect()
}

/// `state` as it is written and read again.
fn written(state: &TensorDict) -> TensorDict {
    TensorDict::from_bytes(&state.to_bytes().unwrap()).unwrap()
}

/// Checks that collectors that `build` makes go on from each other's states as if they had not been
/// cut.
fn assert_goes_on(place: &str, build: impl Fn() -> Collector) {
    let whole = digests(&mut build(), 12);
    let mut done = Vec::new();
    let mut state = None;
    for batches in [0, 1, 2, 5, 4] {
        let mut collector = build();
        if let Some(state) = &state {
            // What another run has left behind does not matter.
            digests(&mut collector, batches % 2);
            collector.load_state_dict(state).unwrap();
        }
        done.extend(digests(&mut collector, batches));
        let saved = collector.state_dict().unwrap();
        assert_eq!(collector.not_held(), None, "{place}");
        assert!(saved.contains_key("simulators"), "{place}");
        state = Some(written(&saved));
    }
    assert_eq!(done, whole, "{place}");
}

#[test]
fn synchronous_collectors_go_on_bit_for_bit_wherever_workers_run() {
    for placement in placements() {
        for name in NATIVE.iter().chain(&["Ledger", "drifts"]) {
            assert_goes_on(name, || builder(name, placement).build().unwrap());
        }
        for workers in [1, 2] {
            let several = || {
                let builder = builder("CartPole-v1", placement).num_workers(workers);
                builder.merge_statistics(true).build().unwrap()
            };
            assert_goes_on("several workers", several);
        }
        let random = || {
            let builder = builder("CartPole-v1", placement);
            builder
                .init_random_frames(200)
                .total_frames(720)
                .build()
                .unwrap()
        };
        assert_goes_on("random frames and an end", random);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn members_of_a_parallel_go_on_with_the_statistics_that_they_share() {
    for placement in [Placement::Inline, Placement::Threads] {
        assert_goes_on("parallel", || {
            program::know_names();
            let (env, policy) = world("CartPole-v1");
            let parallel = Parallel::new(2, env).unwrap();
            let parallel = parallel.worker_program(program::program());
            let builder = Collector::builder(parallel).placement(placement);
            let builder = builder.policy_recipe(policy).frames_per_batch(20);
            builder.seed(3).build().unwrap()
        });
    }
}

#[test]
fn a_collector_goes_on_with_what_was_saved_from_itself() {
    for placement in placements() {
        let mut collector = builder("CartPole-v1", placement).build().unwrap();
        digests(&mut collector, 2);
        let state = collector.state_dict().unwrap();
        let next = digests(&mut collector, 3);
        collector.load_state_dict(&state).unwrap();
        assert_eq!(digests(&mut collector, 3), next, "{placement:?}");
        assert_eq!(collector.stats().frames, 5 * 60);
    }
}

#[test]
fn whole_trajectories_go_on_with_those_that_were_begun() {
    for (placement, format) in placements().zip([TrajFormat::Padded, TrajFormat::Cat].repeat(2)) {
        for name in ["CartPole-v1", "Ledger"] {
            assert_goes_on("trajectories", || {
                let builder = builder(name, placement).frames_per_batch(30);
                let builder = builder.trajs_per_batch(2).traj_format(format);
                builder.build().unwrap()
            });
        }
    }
}

/// The digests of the frames of each environment, one step after the other.
fn streams(batches: &[TensorDict]) -> BTreeMap<i64, Vec<u64>> {
    let mut streams: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    for batch in batches {
        let steps = *batch.batch_size().last().unwrap();
        for env in 0..ENVS {
            for step in 0..steps {
                let frame = batch.narrow(0, env, 1).unwrap().narrow(1, step, 1).unwrap();
                let id: i64 = frame
                    .get(("collector", "traj_ids"))
                    .unwrap()
                    .to_vec()
                    .unwrap()[0];
                streams
                    .entry(id.rem_euclid(2 * ENVS as i64))
                    .or_default()
                    .push(digest(&frame));
            }
        }
    }
    streams
}

#[test]
fn each_environment_of_workers_that_run_ahead_goes_on_exactly() {
    let homes = [
        (Placement::Threads, Inference::Local),
        (Placement::Threads, Inference::Served),
        (Placement::Processes, Inference::Local),
    ];
    for (placement, inference) in homes {
        let take = |collector: &mut Collector, batches: usize| -> Vec<TensorDict> {
            let batches = collector.by_ref().take(batches);
            batches.map(|batch| batch.unwrap().detach()).collect()
        };
        // Without statistics, which gather what comes first.
        let build = || {
            let (_, policy) = world("Pendulum-v1");
            let env = EnvRecipe::of("Pendulum-v1").with_transform(StepCounter::new());
            let builder = placed!(Collector::builder(env), placement).policy_recipe(policy);
            builder
                .num_workers(2)
                .num_envs(ENVS)
                .frames_per_batch(60)
                .seed(11)
                .delivery(Delivery::FirstCome {
                    workers_per_batch: 1,
                })
                .inference(inference)
                .build()
                .unwrap()
        };
        let whole = streams(&take(&mut build(), 40));
        let mut batches = Vec::new();
        let mut collector = build();
        for _ in 0..4 {
            batches.extend(take(&mut collector, 5));
            let state = written(&collector.state_dict().unwrap());
            assert_eq!(collector.not_held(), None);
            collector = build();
            collector.load_state_dict(&state).unwrap();
        }
        assert_eq!(collector.stats().frames, 20 * 60);
        let mut compared = 0;
        for (env, cut) in streams(&batches) {
            // On a busy machine one worker may have made all batches.
            let Some(whole) = whole.get(&env) else {
                continue;
            };
            let both = cut.len().min(whole.len());
            compared += both;
            assert_eq!(
                cut[..both],
                whole[..both],
                "{placement:?}, environment {env}"
            );
        }
        assert!(compared > 0, "{placement:?}");
    }
}

#[test]
fn what_cannot_be_saved_begins_new_episodes_and_says_why() {
    for placement in placements() {
        let build = || {
            program::know_names();
            let builder = placed!(Collector::builder("Silent"), placement);
            builder
                .num_envs(2)
                .frames_per_batch(20)
                .seed(1)
                .build()
                .unwrap()
        };
        let mut collector = build();
        digests(&mut collector, 2);
        let state = collector.state_dict().unwrap();
        let reason = collector.not_held().unwrap();
        assert!(
            reason.contains("Ledger") && reason.contains("visit_state"),
            "{reason}"
        );
        assert!(!state.contains_key("simulators"));
        let mut other = build();
        other.load_state_dict(&state).unwrap();
        let batch = other.next().unwrap().unwrap();
        let steps: Vec<i64> = batch.get("observation").unwrap().to_vec().unwrap();
        assert_eq!(steps[2], 0, "{placement:?}");
    }
}

type Build = fn(Placement) -> CollectorBuilder;

#[test]
fn a_state_that_does_not_fit_is_an_error_and_changes_nothing() {
    for placement in placements() {
        let mut saving = builder("CartPole-v1", placement).build().unwrap();
        digests(&mut saving, 1);
        let state = saving.state_dict().unwrap();
        let others: [(&str, Build); 3] = [
            ("got the state of 3 x CartPole-v1", |placement| {
                builder("CartPole-v1", placement).num_envs(2)
            }),
            (
                "expected the state of 2 workers, got that of 1",
                |placement| builder("CartPole-v1", placement).num_workers(2),
            ),
            ("got the state of RewardSum", |placement| {
                let (_, policy) = world("CartPole-v1");
                let env = EnvRecipe::of("CartPole-v1")
                    .with_transform(StepCounter::new())
                    .with_transform(InitTracker::new());
                let builder = placed!(Collector::builder(env), placement);
                let builder = builder.policy_recipe(policy).num_envs(ENVS);
                builder.frames_per_batch(60).seed(2)
            }),
        ];
        for (expected, builder) in others {
            let mut collector = builder(placement).build().unwrap();
            digests(&mut collector, 2);
            let before = collector.state_dict().unwrap();
            let error = collector.load_state_dict(&state).unwrap_err();
            let text = windrow_sync::error_chain(&error);
            assert!(text.contains(expected), "{text}");
            assert_eq!(collector.state_dict().unwrap(), before);
            let next = digests(&mut collector, 2);
            let mut same = builder(placement).build().unwrap();
            assert_eq!(
                digests(&mut same, 4)[2..],
                next,
                "{placement:?}, {expected}"
            );
        }
        let mut later = state.clone();
        let mut bytes: Vec<u8> = state.get("simulators").unwrap().to_vec().unwrap();
        bytes[0] = 9;
        let len = bytes.len();
        later
            .set("simulators", Tensor::from_vec(bytes, [len]).unwrap())
            .unwrap();
        let error = saving.load_state_dict(&later).unwrap_err();
        let text = windrow_sync::error_chain(&error);
        assert!(
            text.contains("expected simulators of version 1, got version 9"),
            "{text}"
        );
        let mut cut = state.clone();
        let bytes: Vec<u8> = state.get("simulators").unwrap().to_vec().unwrap();
        let half = bytes[..bytes.len() / 2].to_vec();
        let len = half.len();
        cut.set("simulators", Tensor::from_vec(half, [len]).unwrap())
            .unwrap();
        saving.load_state_dict(&cut).unwrap_err();
        saving.load_state_dict(&state).unwrap();
    }
}

/// Names of what the processes of the next test are given.
const STATE: &str = "WINDROW_RESUME_STATE";
const RUN: &str = "WINDROW_RESUME_RUN";

/// Not a test by itself: goes on from the state in a file for some batches, and writes digests and
/// state there.
#[test]
fn one_leg_of_a_run() {
    let (Ok(folder), Ok(run)) = (std::env::var(STATE), std::env::var(RUN)) else {
        return;
    };
    let (name, batches) = run.split_once(' ').unwrap();
    let mut collector = builder(name, Placement::Inline).build().unwrap();
    let path = Path::new(&folder).join("state");
    if path.exists() {
        let state = TensorDict::load(&path).unwrap();
        collector.load_state_dict(&state).unwrap();
    }
    let digests = digests(&mut collector, batches.parse().unwrap());
    let digests: Vec<String> = digests.iter().map(u64::to_string).collect();
    std::fs::write(Path::new(&folder).join("digests"), digests.join("\n")).unwrap();
    collector.state_dict().unwrap().save(&path).unwrap();
}

#[test]
fn a_run_that_goes_on_in_new_processes_delivers_the_frames_of_one_that_was_not_cut() {
    let frames: usize =
        std::env::var("WINDROW_RESUME_FRAMES").map_or(100_000, |frames| frames.parse().unwrap());
    let mut rng = NumpyRng::new(17);
    for name in NATIVE {
        let batches = frames / NATIVE.len() / 60;
        let whole = digests(
            &mut builder(name, Placement::Inline).build().unwrap(),
            batches,
        );
        let folder = tempfile::tempdir().unwrap();
        let mut done: Vec<u64> = Vec::new();
        // Cut at random, three times on average.
        while done.len() < batches {
            let leg = (rng.random() * batches as f64 / 2.0) as usize;
            let leg = leg.clamp(1, batches - done.len());
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "one_leg_of_a_run"])
                .env(STATE, folder.path())
                .env(RUN, format!("{name} {leg}"))
                .output()
                .unwrap();
            assert!(status.status.success(), "{status:?}");
            let digests = std::fs::read_to_string(folder.path().join("digests")).unwrap();
            done.extend(digests.lines().map(|digest| digest.parse::<u64>().unwrap()));
        }
        assert_eq!(done, whole, "{name}");
    }
}

/// Statistics that the program shares go back to what they were.
#[test]
fn statistics_of_the_program_go_on_from_what_was_saved() {
    for placement in [Placement::Inline, Placement::Threads] {
        let run = |shared: &Statistics| {
            let norm = VecNorm::new(["observation"]).sharing(shared);
            let env = EnvRecipe::of("Pendulum-v1").with_transform(norm);
            let config = CollectorConfig::default();
            let builder = Collector::builder(env).config(config).placement(placement);
            builder
                .num_envs(2)
                .frames_per_batch(20)
                .seed(4)
                .build()
                .unwrap()
        };
        let shared = Statistics::new();
        let mut collector = run(&shared);
        digests(&mut collector, 2);
        let state = collector.state_dict().unwrap();
        let next = digests(&mut collector, 3);
        let after = shared.read();
        drop(collector);
        let fresh = Statistics::new();
        let mut other = run(&fresh);
        other.load_state_dict(&state).unwrap();
        assert_eq!(digests(&mut other, 3), next, "{placement:?}");
        assert_eq!(fresh.read(), after, "{placement:?}");
    }
}
