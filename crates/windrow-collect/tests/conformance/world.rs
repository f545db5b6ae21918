//! What workers make, wherever they run: here, or in processes that are this very test program, run
//! again.
#![allow(dead_code, reason = "each test target uses some of it")]

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use windrow_collect::{Collector, CollectorBuilder, Inference, Placement};
use windrow_policy::{PolicyError, Pushed, WeightUpdater, Weights};

use crate::faulty::{Acts, Makes};

/// All placements that this platform has.
pub(crate) const PLACEMENTS: &[Placement] = &[
    Placement::Inline,
    Placement::Threads,
    #[cfg(all(target_os = "linux", not(shuttle)))]
    Placement::Processes,
];

/// Where workers run, and who evaluates their policy.
pub(crate) const HOMES: &[(Placement, Inference)] = &[
    (Placement::Inline, Inference::Local),
    (Placement::Threads, Inference::Local),
    (Placement::Threads, Inference::Served),
    #[cfg(all(target_os = "linux", not(shuttle)))]
    (Placement::Processes, Inference::Local),
];

/// The placements of workers that run beside the test.
pub(crate) fn elsewhere() -> impl Iterator<Item = Placement> {
    let placements = PLACEMENTS.iter().copied();
    placements.filter(|placement| *placement != Placement::Inline)
}

/// The environments of each worker, and their policy.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct World {
    pub(crate) envs: Vec<Makes>,
    pub(crate) policy: Acts,
}

impl World {
    pub(crate) fn of(envs: impl IntoIterator<Item = Makes>) -> Self {
        Self {
            envs: envs.into_iter().collect(),
            policy: Acts::default(),
        }
    }

    /// A collector with a worker for each of `envs`.
    pub(crate) fn builder(&self, placement: Placement) -> CollectorBuilder {
        let unused = || Makes::default().make();
        let builder = Collector::builder(unused).placement(placement);
        #[cfg(all(target_os = "linux", not(shuttle)))]
        if placement == Placement::Processes {
            let envs = (0..self.envs.len()).map(|worker| format!("{NAME}-{worker}"));
            let policy = windrow_policy::PolicyRecipe::named(NAME);
            let builder = builder.worker_envs(envs).policy_recipe(policy);
            let builder = builder.weight_updater(Keeps(self.clone()));
            return builder.worker_program(program(self));
        }
        let policy = self.policy.clone();
        let envs = self.envs.iter().cloned();
        builder
            .worker_envs(envs.map(|makes| move || makes.make()))
            .policy_factory(move |worker| policy.make(worker))
    }
}

/// Keeps the files that workers in processes write, as long as there is their collector.
struct Keeps(World);

impl WeightUpdater for Keeps {
    fn push(&mut self, _: Option<usize>, _: i64, weights: &Weights) -> Result<Pushed, PolicyError> {
        Ok(Pushed::Here(Arc::new(weights.clone())))
    }
}

#[cfg(all(target_os = "linux", not(shuttle)))]
#[allow(unused_imports, reason = "each test target uses some of it")]
pub(crate) use processes::program;

/// What an error says that is an interruption where workers are processes.
pub(crate) const INTERRUPTION: &str = "told to end";

/// Under which a worker process finds its environments and its policy.
const NAME: &str = "world";

#[cfg(all(target_os = "linux", not(shuttle)))]
mod processes {
    use std::sync::LazyLock;

    use windrow_collect::{WorkerMain, WorkerProgram};

    use super::{NAME, World};

    /// The variable that tells a worker process of its world.
    const VARIABLE: &str = "WINDROW_TEST_WORLD";

    /// This program, run again to be a worker of `world`.
    pub(crate) fn program(world: &World) -> WorkerProgram {
        LazyLock::force(&REGISTERED);
        let (_, module) = module_path!().split_once("::").unwrap();
        let entry = format!("{module}::worker_entry");
        let mut program = WorkerProgram::current();
        program.args = ["--exact", &entry, "--nocapture"].map(Into::into).to_vec();
        let world = serde_json::to_string(world).unwrap();
        program.vars = vec![(VARIABLE.into(), world.into())];
        program
    }

    static REGISTERED: LazyLock<()> = LazyLock::new(|| {
        let world = std::env::var(VARIABLE).map_or_else(
            |_| World::default(),
            |world| serde_json::from_str(&world).unwrap(),
        );
        WorkerMain::new()
            .interruptions(told_to_end)
            .run(|registry| {
                for (worker, makes) in world.envs.into_iter().enumerate() {
                    registry.env(format!("{NAME}-{worker}"), move || makes.make())?;
                }
                registry.policy(NAME, move |worker| world.policy.make(worker))?;
                Ok(())
            })
            .unwrap();
    });

    /// What is no fault in these tests.
    fn told_to_end(error: &(dyn std::error::Error + 'static)) -> bool {
        windrow_sync::error_chain(&error).contains(super::INTERRUPTION)
    }

    /// Not a test: what the worker processes of the others run.
    #[test]
    fn worker_entry() {
        LazyLock::force(&REGISTERED);
    }
}
