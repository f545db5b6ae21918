//! A task of one's own over a model of MuJoCo: a hopper that is to go forward without falling.
//!
//! ```sh
//! pip install mujoco
//! WINDROW_MUJOCO=$(python -c "import mujoco, os; print(os.path.dirname(mujoco.__file__))") \
//!     cargo run --release -p windrow --features mujoco --example own_mujoco
//! ```

use std::error::Error;

use windrow::envs::{EnvError, Field, MujocoEnvs, MujocoModel, MujocoTask, NumpyRng, Simulation};
use windrow::{Collector, DType};

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/examples/own_mujoco/hopper.xml"
);
/// Steps of MuJoCo in one of the environment's.
const FRAME_SKIP: usize = 5;

/// The fields that the task reads.
struct Hop {
    qpos: Field,
    qvel: Field,
    /// Positions of bodies, three numbers each.
    places: Field,
    trunk: usize,
}

impl Hop {
    fn new(model: &mut MujocoModel) -> Result<Self, EnvError> {
        Ok(Self {
            qpos: model.field("qpos")?,
            qvel: model.field("qvel")?,
            places: model.field("xpos")?,
            trunk: model.body("trunk")?,
        })
    }
}

impl MujocoTask for Hop {
    /// All but how far it has come.
    fn observation_len(&self) -> usize {
        self.qpos.len() - 1 + self.qvel.len()
    }

    fn start(&self, qpos: &mut [f64], _: &mut [f64], rng: &mut NumpyRng) {
        for place in &mut qpos[1..] {
            *place += rng.uniform(-0.01, 0.01);
        }
    }

    fn observe(&self, sim: &Simulation<'_>, observation: &mut [f64]) {
        let (places, speeds) = observation.split_at_mut(self.qpos.len() - 1);
        places.copy_from_slice(&sim[self.qpos][1..]);
        speeds.copy_from_slice(&sim[self.qvel]);
    }

    fn reward(&self, sim: &Simulation<'_>) -> f64 {
        let forward = (sim[self.qpos][0] - sim.kept()[0]) / sim.dt();
        let effort: f32 = sim.action().iter().map(|push| push * push).sum();
        1.0 + forward - 0.01 * f64::from(effort)
    }

    fn is_done(&self, sim: &Simulation<'_>) -> bool {
        sim[self.places][3 * self.trunk + 2] < 0.6 || sim[self.qpos][2].abs() > 0.8
    }

    /// How far it has come: the next step is rewarded for the way since.
    fn kept_len(&self) -> usize {
        1
    }

    fn keep(&self, sim: &Simulation<'_>, kept: &mut [f64]) {
        kept[0] = sim[self.qpos][0];
    }
}

fn hoppers(num_envs: usize) -> Result<MujocoEnvs<Hop>, EnvError> {
    let mut model = MujocoModel::from_xml(MODEL)?;
    let task = Hop::new(&mut model)?;
    MujocoEnvs::new("Hop", model, task, FRAME_SKIP, num_envs)?.with_time_limit(500)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut collector = Collector::builder(|| hoppers(8))
        .seed(0)
        .frames_per_batch(4000)
        .build()?;
    let batch = collector.next().ok_or("no batch")??;
    let reward = batch.get(("next", "reward"))?.to_vec::<f32>()?;
    let ends = batch.get(("next", "done"))?.to_vec::<bool>()?;
    let episodes = ends.iter().filter(|&&done| done).count();
    assert_eq!(batch.get("observation")?.dtype(), DType::F64);
    println!(
        "{} frames, {episodes} episodes, {:.2} reward a frame",
        reward.len(),
        reward.iter().sum::<f32>() / reward.len() as f32
    );
    Ok(())
}
