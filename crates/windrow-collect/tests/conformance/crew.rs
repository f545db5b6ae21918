//! Two workers with faults of their own, wherever they run and however their parts make batches.
#![allow(dead_code, reason = "each test target uses some of it")]

#[path = "world.rs"]
pub(crate) mod world;

use std::time::Duration;

use windrow_collect::{CollectorBuilder, Delivery, Inference, Placement};

use super::faulty::{Fault, Makes};
use world::{HOMES, World};

pub(crate) const WORKERS: usize = 2;

/// Environments of each worker.
pub(crate) const ENVS: usize = 2;

/// Steps of each worker's part.
pub(crate) const STEPS: usize = 10;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Crew {
    pub(crate) placement: Placement,
    pub(crate) inference: Inference,
    pub(crate) delivery: Delivery,
}

/// Every placement, whoever evaluates the policy there, and every way to wait for two workers.
pub(crate) fn all() -> impl Iterator<Item = Crew> {
    let first = |workers_per_batch| Delivery::FirstCome { workers_per_batch };
    HOMES.iter().flat_map(move |&(placement, inference)| {
        [Delivery::Synchronous, first(1), first(2)].map(|delivery| Crew {
            placement,
            inference,
            delivery,
        })
    })
}

/// Those of [`all`] whose workers are in this process, for tests that look into them.
pub(crate) fn local() -> impl Iterator<Item = Crew> {
    all().filter(|crew| crew.placement != Placement::Processes)
}

/// Those of [`all`] whose workers have policies of their own. `tests/collectors/served.rs` has the
/// faults of one that they share.
pub(crate) fn apart() -> impl Iterator<Item = Crew> {
    all().filter(|crew| crew.inference == Inference::Local)
}

impl Crew {
    pub(crate) fn parts(self) -> usize {
        match self.delivery {
            Delivery::FirstCome { workers_per_batch } => workers_per_batch,
            _ => WORKERS,
        }
    }

    pub(crate) fn runs_ahead(self) -> bool {
        self.placement != Placement::Inline && self.delivery != Delivery::Synchronous
    }

    pub(crate) fn frames_per_batch(self) -> usize {
        self.parts() * STEPS * ENVS
    }

    /// Batches of a run that is to see every worker fill some: `least`, and more where a worker may
    /// collect for others that the machine lets begin late.
    pub(crate) fn batches(self, least: usize) -> usize {
        match self.runs_ahead() {
            true => 2 * least,
            false => least,
        }
    }

    /// A collector of such workers, worker `w` with `faults[w]`.
    pub(crate) fn builder(self, faults: [Option<Fault>; WORKERS]) -> CollectorBuilder {
        let all: Vec<Fault> = faults.iter().flatten().cloned().collect();
        self.builder_beside(faults, &all)
    }

    /// As [`builder`](Self::builder), where workers without a fault do not run away from `others`.
    pub(crate) fn builder_beside(
        self,
        faults: [Option<Fault>; WORKERS],
        others: &[Fault],
    ) -> CollectorBuilder {
        self.builder_of(&self.world(faults, others))
    }

    /// What such workers make.
    pub(crate) fn world(self, faults: [Option<Fault>; WORKERS], others: &[Fault]) -> World {
        // A step takes so long that each worker has its turn, whoever is scheduled first.
        let step_time = match self.runs_ahead() {
            true => Duration::from_micros(20),
            false => Duration::ZERO,
        };
        World::of(faults.map(|fault| Makes {
            beside: match fault {
                None if self.runs_ahead() => others.to_vec(),
                _ => Vec::new(),
            },
            fault,
            step_time,
            ..Makes::default()
        }))
    }

    /// A collector whose workers make what `world` says.
    pub(crate) fn builder_of(self, world: &World) -> CollectorBuilder {
        world
            .builder(self.placement)
            .inference(self.inference)
            .delivery(self.delivery)
            .num_envs(ENVS)
            .frames_per_batch(self.frames_per_batch())
            .track_policy_version(true)
            .seed(0)
    }
}
