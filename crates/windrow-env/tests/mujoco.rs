//! Tasks of one's own over models of MuJoCo.
//!
//! Needs MuJoCo in the Python of `WINDROW_PYTHON`: `cargo xtask test` sets it and asks for these
//! tests, which others leave out. `python/tests/envs/test_mujoco.py` compares Gymnasium's
//! environments.
#![allow(clippy::unwrap_used, reason = "a test, helper functions included")]

use std::path::{Path, PathBuf};
use std::{env, fs};

use tensordict::DType;
use windrow_env::{
    EXACT_REWARD, Env, EnvError, EnvFactory, EnvRecipe, Field, MujocoEnvs, MujocoModel, MujocoTask,
    NumpyRng, Outcomes, Reset, Setting, Settings, Simulation, StateVisitor, VecEnv,
};
use windrow_slab::{Key, RowBlock};

const MODEL: &str = r#"
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body name="cart">
      <joint name="slide" type="slide" axis="1 0 0"/>
      <geom type="box" size="0.2 0.1 0.1"/>
      <body name="pole">
        <joint name="hinge" type="hinge" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 0.6" size="0.04"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="slide" gear="20" ctrllimited="true" ctrlrange="-1 2"/></actuator>
</mujoco>"#;

/// The library of the package in the Python of `WINDROW_PYTHON`.
fn library() -> PathBuf {
    package("mujoco")
}

/// The folder of a package in that Python.
fn package(name: &str) -> PathBuf {
    let python = env::var_os("WINDROW_PYTHON").map(PathBuf::from);
    let python = python.expect(
        "the path of a Python with mujoco in WINDROW_PYTHON: `cargo xtask python` makes one",
    );
    let versions = fs::read_dir(python.parent().unwrap().join("../lib")).unwrap();
    let mut folders =
        versions.map(|version| version.unwrap().path().join("site-packages").join(name));
    folders
        .find(|folder| folder.is_dir())
        .expect("the packages mujoco and gymnasium")
}

fn model(name: &str) -> MujocoModel {
    let path = env::temp_dir().join(format!("windrow-{}-{name}.xml", std::process::id()));
    fs::write(&path, MODEL).unwrap();
    let model = MujocoModel::from_xml_with(&path, Some(&library()));
    fs::remove_file(path).unwrap();
    model.unwrap()
}

/// Keeps the pole up, and remembers where the cart was.
struct Balance {
    qpos: Field,
    forces: Field,
}

impl MujocoTask for Balance {
    fn observation_len(&self) -> usize {
        self.qpos.len() + self.forces.len()
    }

    fn start(&self, qpos: &mut [f64], _: &mut [f64], rng: &mut NumpyRng) {
        qpos[1] += rng.uniform(-0.1, 0.1);
    }

    fn observe(&self, sim: &Simulation<'_>, observation: &mut [f64]) {
        let (places, forces) = observation.split_at_mut(self.qpos.len());
        places.copy_from_slice(&sim[self.qpos]);
        forces.copy_from_slice(&sim[self.forces]);
    }

    fn reward(&self, sim: &Simulation<'_>) -> f64 {
        (sim[self.qpos][0] - sim.kept()[0]) / sim.dt()
    }

    fn is_done(&self, sim: &Simulation<'_>) -> bool {
        sim[self.qpos][1].abs() > 1.0
    }

    fn kept_len(&self) -> usize {
        1
    }

    fn keep(&self, sim: &Simulation<'_>, kept: &mut [f64]) {
        kept[0] = sim[self.qpos][0];
    }
}

fn envs(name: &str, num_envs: usize) -> MujocoEnvs<Balance> {
    let mut model = model(name);
    let qpos = model.field("qpos").unwrap();
    let forces = model.field("cfrc_int").unwrap();
    MujocoEnvs::new("Balance", model, Balance { qpos, forces }, 2, num_envs).unwrap()
}

/// Environments and their rows.
struct Driver {
    envs: MujocoEnvs<Balance>,
    obs: RowBlock,
    actions: RowBlock,
}

impl Driver {
    fn new(envs: MujocoEnvs<Balance>) -> Self {
        let rows = |leaves: &[_]| RowBlock::new(leaves, envs.num_envs()).unwrap();
        Self {
            obs: rows(&envs.spec().observation_leaves()),
            actions: rows(&envs.spec().action_leaves()),
            envs,
        }
    }

    fn reset(&mut self, seeds: &[u64]) {
        let resets = seeds.iter().enumerate();
        let resets: Vec<_> = resets
            .map(|(env, &seed)| Reset {
                env,
                seed: Some(seed),
            })
            .collect();
        self.envs.reset(&resets, self.obs.rows_mut()).unwrap();
    }

    fn step(&mut self, which: &[usize], push: f32) -> Vec<f32> {
        let num_envs = self.envs.num_envs();
        self.actions
            .rows_mut()
            .get_mut(Key::new(0))
            .unwrap()
            .fill(push);
        let mut reward = vec![0.0; num_envs];
        let (mut terminated, mut truncated) = (vec![false; num_envs], vec![false; num_envs]);
        let outcomes = Outcomes {
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
        };
        let actions = self.actions.rows();
        self.envs
            .step_some(which, actions, self.obs.rows_mut(), outcomes)
            .unwrap();
        reward
    }

    fn seen(&self, env: usize) -> Vec<u64> {
        let row = self.obs.rows().env(env).unwrap();
        row.get(Key::<f64>::new(0))
            .unwrap()
            .iter()
            .map(|value| value.to_bits())
            .collect()
    }
}

#[test]
#[ignore = "needs MuJoCo in WINDROW_PYTHON: `cargo xtask test` has it"]
fn environments_of_a_vector_are_what_each_is_alone() {
    let mut all = Driver::new(envs("together", 3));
    let mut alone = [0, 1, 2].map(|i| Driver::new(envs(&format!("alone{i}"), 1)));
    all.reset(&[4, 5, 6]);
    for (env, one) in alone.iter_mut().enumerate() {
        one.reset(&[4 + env as u64]);
    }
    let mut compared = 0;
    for step in 0..60 {
        // Environment 1 takes part in every second step.
        let which: &[usize] = if step % 2 == 0 { &[0, 1, 2] } else { &[0, 2] };
        let push = (step as f32).sin();
        let rewards = all.step(which, push);
        for &env in which {
            assert_eq!(
                alone[env].step(&[0], push)[0].to_bits(),
                rewards[env].to_bits()
            );
        }
        for (env, one) in alone.iter().enumerate() {
            assert_eq!(one.seen(0), all.seen(env), "step {step}, environment {env}");
            compared += 1;
        }
    }
    println!("compared {compared} steps of simulations");
}

#[test]
#[ignore = "needs MuJoCo in WINDROW_PYTHON: `cargo xtask test` has it"]
fn a_state_goes_on_bit_by_bit_in_other_simulations() {
    let mut first = Driver::new(envs("first", 2));
    first.reset(&[1, 2]);
    for _ in 0..17 {
        first.step(&[0, 1], 0.7);
    }
    let mut saving = StateVisitor::saving();
    first.envs.visit_state(&mut saving).unwrap();
    let bytes = saving.finish().unwrap();
    let mut second = Driver::new(envs("second", 2));
    second.reset(&[8, 9]);
    second.step(&[0, 1], -1.0);
    let mut loading = StateVisitor::loading(&bytes);
    second.envs.visit_state(&mut loading).unwrap();
    loading.finish().unwrap();
    for _ in 0..40 {
        assert_eq!(first.step(&[0, 1], -0.3), second.step(&[0, 1], -0.3));
        assert_eq!(
            (first.seen(0), first.seen(1)),
            (second.seen(0), second.seen(1))
        );
    }
}

#[test]
#[ignore = "needs MuJoCo in WINDROW_PYTHON: `cargo xtask test` has it"]
fn what_a_model_lacks_is_an_error_that_names_it() {
    let mut model = model("lacking");
    let text = |error: EnvError| error.to_string();
    assert_eq!(
        text(model.field("xpoz").unwrap_err()),
        "mjData of MuJoCo has no field \"xpoz\" of numbers"
    );
    let error = text(model.body("leg").unwrap_err());
    assert!(error.ends_with("has no body called \"leg\""), "{error}");
    assert_eq!(model.numbers("actuator_ctrlrange").unwrap(), [-1.0, 2.0]);
    let error =
        MujocoModel::from_xml_with(Path::new("/nowhere.xml"), Some(&library())).unwrap_err();
    assert!(text(error).starts_with("MuJoCo refuses the model /nowhere.xml: "));
    let one = envs("unbegun", 1);
    let mut obs = RowBlock::new(&one.spec().observation_leaves(), 1).unwrap();
    let actions = RowBlock::new(&one.spec().action_leaves(), 1).unwrap();
    let action = actions.rows().env(0).unwrap();
    let error = one
        .single()
        .unwrap()
        .step(action, obs.rows_mut().env_mut(0).unwrap());
    assert!(matches!(error, Err(EnvError::NotReset)));
}

/// Two of Gymnasium's Hopper-v5 that observe these entries of `info`.
fn hoppers(info: &[&str]) -> Result<Box<dyn VecEnv>, EnvError> {
    let text = |folder: PathBuf| Setting::Text(folder.display().to_string());
    let models = package("gymnasium").join("envs/mujoco/assets");
    let names = info.iter().map(|&name| name.to_owned()).collect();
    let arguments = [
        ("library", text(library())),
        ("models", text(models)),
        ("healthy_reward", Setting::Integer(3)),
        ("info", Setting::Names(names)),
    ];
    let arguments: Settings = arguments
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    EnvRecipe::of("Hopper-v5")
        .with_arguments(&arguments)?
        .build(2)
}

#[test]
#[ignore = "needs MuJoCo in WINDROW_PYTHON: `cargo xtask test` has it"]
fn entries_of_info_are_observed_in_their_order_where_they_are_asked_for() {
    let wanted = ["reward_survive", "x_position", "reward_ctrl", EXACT_REWARD];
    let mut envs = hoppers(&wanted).unwrap();
    let leaves = envs.spec().observation_leaves();
    let dtypes: Vec<DType> = leaves.iter().map(|leaf| leaf.dtype).collect();
    let expected = [DType::F64, DType::I64, DType::F64, DType::F32, DType::F64];
    assert_eq!(dtypes, expected);
    assert_eq!(envs.spec().info.len(), 4);
    let mut obs = RowBlock::new(&leaves, 2).unwrap();
    let actions = RowBlock::new(&envs.spec().action_leaves(), 2).unwrap();
    let resets = [0, 1].map(|env| Reset { env, seed: Some(1) });
    envs.reset(&resets, obs.rows_mut()).unwrap();
    let begun = obs.rows().get(Key::<f64>::new(2)).unwrap()[0];
    assert!(begun != 0.0 && begun.abs() < 5e-3, "{begun}");
    // Steps alone return these.
    assert_eq!(obs.rows().get(Key::<i64>::new(1)).unwrap(), [0, 0]);
    let (mut reward, mut terminated, mut truncated) = ([0.0; 2], [false; 2], [false; 2]);
    let outcomes = Outcomes {
        reward: &mut reward,
        terminated: &mut terminated,
        truncated: &mut truncated,
    };
    envs.step(actions.rows(), obs.rows_mut(), outcomes).unwrap();
    assert_eq!(obs.rows().get(Key::<i64>::new(1)).unwrap(), [3, 3]);
    // No action costs nothing.
    let ctrl = obs.rows().get(Key::<f32>::new(3)).unwrap();
    assert_eq!(ctrl[0].to_bits(), (-0.0f32).to_bits());
    let exact = obs.rows().get(Key::<f64>::new(4)).unwrap();
    assert_eq!(exact[0] as f32, reward[0]);
    let unknown = hoppers(&["x_position", "reward_run"]).err().unwrap();
    let unknown = unknown.to_string();
    assert!(
        unknown.starts_with("info of Hopper-v5: expected some of [\"x_position\", "),
        "{unknown}"
    );
}

#[test]
fn names_are_told_from_ranges_and_whole_numbers_from_others() {
    let text =
        r#"{"a": ["x", "y"], "b": ["-inf", 2], "c": ["inf", "-inf"], "d": 3, "e": 3.0, "f": []}"#;
    let read: Settings = serde_json::from_str(text).unwrap();
    let values: Vec<String> = read.values().map(|value| format!("{value:?}")).collect();
    let expected = [
        r#"Names(["x", "y"])"#,
        r#"Range([Other("-inf"), Finite(2.0)])"#,
        r#"Range([Other("inf"), Other("-inf")])"#,
        "Integer(3)",
        "Number(3.0)",
        "Names([])",
    ];
    assert_eq!(values, expected);
    assert_eq!(
        serde_json::from_str::<Settings>(&serde_json::to_string(&read).unwrap()).unwrap(),
        read
    );
}

#[test]
fn a_file_that_is_no_library_is_an_error() {
    if env::var_os("WINDROW_MUJOCO").is_some() {
        println!("WINDROW_MUJOCO names another library");
        return;
    }
    let path = env::temp_dir().join(format!("libmujoco.so.{}", std::process::id()));
    fs::write(&path, "no library").unwrap();
    let error = MujocoModel::from_xml_with(Path::new("a.xml"), Some(&path)).unwrap_err();
    fs::remove_file(&path).unwrap();
    let text = error.to_string();
    assert!(text.starts_with("MuJoCo cannot be loaded from "), "{text}");
}
