//! The cells of the matrix: every kind of collector, with environments that step at different
//! speeds.

use std::fmt;
use std::time::Duration;

use windrow_collect::{
    CatResults, Collector, CollectorBuilder, Delivery, Inference, Placement, TrajFormat,
};

use super::faulty::Makes;
use super::recorder::Recorder;
use super::world::{HOMES, World};

/// Steps of a whole batch, over all of its parts: three workers cannot share them evenly.
pub(crate) const STEPS: usize = 10;

/// Whole slabs of a run; a short one of this many steps follows.
pub(crate) const WHOLE: usize = 9;
const REST: usize = 4;

/// Trajectories in a batch of them.
pub(crate) const TRAJECTORIES: usize = 3;

/// What batches hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Frames(CatResults),
    Trajectories(TrajFormat),
    /// Written to a sink instead: all frames side by side, or whole episodes only.
    Written {
        whole: bool,
    },
}

/// How many workers a batch waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    All,
    First,
    Some,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) placement: Placement,
    pub(crate) inference: Inference,
    pub(crate) wait: Wait,
    pub(crate) kind: Kind,
    pub(crate) workers: usize,
    /// Environments of a worker; `None` for batches without a dimension for them.
    pub(crate) envs: Option<usize>,
}

const WAITS: [Wait; 3] = [Wait::All, Wait::First, Wait::Some];
const KINDS: [Kind; 7] = [
    Kind::Frames(CatResults::Flat),
    Kind::Frames(CatResults::Time),
    Kind::Frames(CatResults::Stack),
    Kind::Trajectories(TrajFormat::Padded),
    Kind::Trajectories(TrajFormat::Cat),
    Kind::Written { whole: false },
    Kind::Written { whole: true },
];
const WORKERS: [usize; 3] = [1, 2, 3];
const ENVS: [Option<usize>; 2] = [None, Some(2)];

/// Number of all cells.
pub(crate) const CELLS: usize =
    HOMES.len() * WAITS.len() * KINDS.len() * WORKERS.len() * ENVS.len();

/// All cells.
pub(crate) fn all() -> impl Iterator<Item = Cell> {
    (0..CELLS).map(|mut i| {
        let mut digit = |base: usize| {
            let digit = i % base;
            i /= base;
            digit
        };
        let (placement, inference) = HOMES[digit(HOMES.len())];
        Cell {
            placement,
            inference,
            wait: WAITS[digit(WAITS.len())],
            kind: KINDS[digit(KINDS.len())],
            workers: WORKERS[digit(WORKERS.len())],
            envs: ENVS[digit(ENVS.len())],
        }
    })
}

impl Cell {
    /// Workers whose parts make a batch.
    pub(crate) fn parts(self) -> usize {
        match self.wait {
            Wait::All => self.workers,
            Wait::First => 1,
            Wait::Some => self.workers.min(2),
        }
    }

    pub(crate) fn envs_per_worker(self) -> usize {
        self.envs.unwrap_or(1)
    }

    pub(crate) fn cat_results(self) -> CatResults {
        match self.kind {
            Kind::Frames(how) => how,
            Kind::Trajectories(_) => CatResults::Flat,
            // Uneven shares are padded then, which is not to be written.
            Kind::Written { .. } => CatResults::Stack,
        }
    }

    /// Batches that workers may begin before they are asked for.
    pub(crate) fn ahead(self) -> usize {
        match (self.placement, self.wait) {
            (Placement::Inline, _) | (_, Wait::All) => 0,
            _ => self.workers,
        }
    }

    /// Steps of each part of a whole batch.
    pub(crate) fn shares(self) -> Vec<usize> {
        let parts = self.parts();
        (0..parts)
            .map(|part| STEPS / parts + usize::from(part < STEPS % parts))
            .collect()
    }

    /// A collector of this kind over ledgers, of which the last workers' are the slowest.
    pub(crate) fn builder(self) -> CollectorBuilder {
        let delivery = match self.wait {
            Wait::All => Delivery::Synchronous,
            Wait::First | Wait::Some => Delivery::FirstCome {
                workers_per_batch: self.parts(),
            },
        };
        let slow = match self.placement {
            // Schedules say who is slow.
            Placement::Inline => Duration::ZERO,
            _ if cfg!(shuttle) => Duration::ZERO,
            _ => Duration::from_micros(40),
        };
        let envs = (0..self.workers as u32).map(|worker| Makes {
            step_time: slow * worker * worker,
            text: true,
            ..Makes::default()
        });
        // Seeded with 0, environment `i` takes the index `i` from its seed.
        let builder = World::of(envs)
            .builder(self.placement)
            .inference(self.inference)
            .delivery(delivery)
            .cat_results(self.cat_results())
            .track_policy_version(true)
            .frames_per_batch(STEPS * self.envs_per_worker())
            .seed(0);
        let builder = match self.envs {
            Some(envs) => builder.num_envs(envs),
            None => builder,
        };
        match self.kind {
            Kind::Frames(_) => builder,
            Kind::Trajectories(format) => builder.trajs_per_batch(TRAJECTORIES).traj_format(format),
            Kind::Written { whole: false } => builder.replay_buffer(Recorder::new()),
            Kind::Written { whole: true } => builder
                .trajs_per_batch(TRAJECTORIES)
                .replay_buffer(Recorder::new()),
        }
    }

    /// Frames of a run, the last slab of which is short.
    pub(crate) fn total_frames(self) -> usize {
        (WHOLE * STEPS + REST) * self.envs_per_worker()
    }

    /// A collector that comes to an end by itself.
    pub(crate) fn finite(self) -> Collector {
        self.builder()
            .total_frames(self.total_frames() as u64)
            .allow_partial_batch(true)
            .build()
            .unwrap()
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}, {:?}, {:?} of {} workers, {:?}, {:?} environments",
            self.placement, self.inference, self.wait, self.workers, self.kind, self.envs
        )
    }
}
