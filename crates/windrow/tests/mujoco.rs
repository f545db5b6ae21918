//! A run in simulations of MuJoCo that was cut between two batches goes on bit for bit, in other
//! processes too.
//!
//! Needs MuJoCo and Gymnasium in the Python of `WINDROW_PYTHON`: `cargo xtask test` sets it and
//! asks for these tests, which others leave out. `WINDROW_RESUME_FRAMES=1000000 cargo test
//! --release -p windrow --features mujoco --test mujoco -- --ignored` compares as many frames of
//! HalfCheetah, and a tenth of Ant.
#![allow(clippy::unwrap_used, reason = "a test, helper functions included")]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use windrow::envs::{
    DoubleToFloat, EnvRecipe, NumpyRng, RewardSum, Setting, Settings, StepCounter,
};
use windrow::policy::Scale;
use windrow::tensordict::TensorDict;
use windrow::{Collector, Head, NetworkPolicy, Policy, nn::Sequential};

/// Environments, with the lengths of their observations and actions, and how many of the frames
/// each has.
const ENVS: [(&str, usize, usize, usize); 2] =
    [("HalfCheetah-v4", 17, 6, 1), ("Ant-v5", 105, 8, 10)];
const NUM_ENVS: usize = 4;
const FRAMES_PER_BATCH: usize = 200;

/// Names of what the processes of the test are given.
const STATE: &str = "WINDROW_RESUME_STATE";
const RUN: &str = "WINDROW_RESUME_RUN";

/// The folder of a package in the Python of `WINDROW_PYTHON`.
fn package(name: &str) -> PathBuf {
    let python = env::var_os("WINDROW_PYTHON").map(PathBuf::from);
    let python = python.expect(
        "the path of a Python with mujoco in WINDROW_PYTHON: `cargo xtask python` makes one",
    );
    let versions = fs::read_dir(python.parent().unwrap().join("../lib")).unwrap();
    let packages = versions.map(|version| version.unwrap().path().join("site-packages"));
    let mut folders = packages.map(|packages| packages.join(name));
    folders
        .find(|folder| folder.is_dir())
        .expect("the packages mujoco and gymnasium")
}

/// A network that acts in simulations, with transforms around them.
fn collector(name: &str) -> Collector {
    let (_, inputs, outputs, _) = *ENVS.iter().find(|(id, ..)| *id == name).unwrap();
    let text = |folder: PathBuf| Setting::Text(folder.display().to_string());
    let folders = Settings::from([
        ("library".to_owned(), text(package("mujoco"))),
        (
            "models".to_owned(),
            text(package("gymnasium/envs/mujoco/assets")),
        ),
    ]);
    let env = EnvRecipe::of(name).with_arguments(&folders).unwrap();
    let env = env
        .with_transform(DoubleToFloat::new())
        .with_transform(StepCounter::new().with_max_steps(211))
        .with_transform(RewardSum::new());
    let net = Sequential::new().linear(inputs, 16).tanh();
    let net = net.linear(16, 2 * outputs).seed(3);
    let policy = NetworkPolicy::new(net, Head::Normal(Scale::softplus()));
    let policy = policy.return_log_prob(true).recipe().unwrap();
    let builder = Collector::builder(env).policy_recipe(policy);
    let builder = builder.num_envs(NUM_ENVS).seed(11);
    builder.frames_per_batch(FRAMES_PER_BATCH).build().unwrap()
}

/// A number for all that is in a batch, of each of `batches`.
fn digests(collector: &mut Collector, batches: usize) -> Vec<u64> {
    let batches = collector.by_ref().take(batches);
    let digests = batches.map(|batch| {
        let mut hasher = DefaultHasher::new();
        batch.unwrap().to_bytes().unwrap().hash(&mut hasher);
        hasher.finish()
    });
    digests.collect()
}

/// Not a test by itself: goes on from the state in a file for some batches, and writes digests and
/// state there.
#[test]
fn one_leg_of_a_run() {
    let (Ok(folder), Ok(run)) = (env::var(STATE), env::var(RUN)) else {
        return;
    };
    let (name, batches) = run.split_once(' ').unwrap();
    let mut collector = collector(name);
    let path = Path::new(&folder).join("state");
    if path.exists() {
        let state = TensorDict::load(&path).unwrap();
        collector.load_state_dict(&state).unwrap();
    }
    let digests = digests(&mut collector, batches.parse().unwrap());
    let digests: Vec<String> = digests.iter().map(u64::to_string).collect();
    fs::write(Path::new(&folder).join("digests"), digests.join("\n")).unwrap();
    collector.state_dict().unwrap().save(&path).unwrap();
}

#[test]
#[ignore = "needs MuJoCo in WINDROW_PYTHON: `cargo xtask test` has it"]
fn a_run_that_goes_on_in_new_processes_delivers_the_frames_of_one_that_was_not_cut() {
    let frames = env::var("WINDROW_RESUME_FRAMES");
    let frames: usize = frames.map_or(10_000, |frames| frames.parse().unwrap());
    let mut rng = NumpyRng::new(17);
    for (name, _, _, part) in ENVS {
        let batches = frames / part / FRAMES_PER_BATCH;
        let whole = digests(&mut collector(name), batches);
        let folder = env::temp_dir().join(format!("windrow-legs-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut done: Vec<u64> = Vec::new();
        // Cut at random, three times on average.
        while done.len() < batches {
            let leg = (rng.random() * batches as f64 / 2.0) as usize;
            let leg = leg.clamp(1, batches - done.len());
            let leg = Command::new(env::current_exe().unwrap())
                .args(["--exact", "one_leg_of_a_run"])
                .env(STATE, &folder)
                .env(RUN, format!("{name} {leg}"))
                .output()
                .unwrap();
            assert!(leg.status.success(), "{leg:?}");
            let digests = fs::read_to_string(folder.join("digests")).unwrap();
            done.extend(digests.lines().map(|digest| digest.parse::<u64>().unwrap()));
        }
        assert_eq!(done, whole, "{name}");
        fs::remove_dir_all(&folder).unwrap();
        println!("compared {} frames of {name}", batches * FRAMES_PER_BATCH);
    }
}
