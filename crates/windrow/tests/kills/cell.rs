//! Which collector, what becomes of its batches, how its workers die, and what their loss does to
//! it.

use windrow::{
    AsyncCollector, Collector, CollectorBuilder, FaultKind, MultiAsyncCollector,
    MultiSyncCollector, OnLoss, Placement, PolicyRecipe, WorkerError,
};

use crate::env::{LIFE, random};
use crate::policy;

/// One kind of run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) class: Class,
    pub(crate) mode: Mode,
    pub(crate) way: Way,
    pub(crate) rule: Rule,
    /// Environments of each worker.
    pub(crate) num_envs: usize,
    /// Workers that are to die.
    pub(crate) deaths: usize,
    /// How old weights may be.
    pub(crate) max_lag: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Collector,
    Async,
    MultiSync,
    MultiAsync,
}

/// What becomes of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// They are delivered.
    Yield,
    /// They are written to a replay buffer in the background.
    Replay,
    /// They are put together to whole trajectories.
    Trajectories,
}

/// How a worker dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By signal 9.
    Kill,
    /// It is stopped for a while, then killed.
    Stop,
    /// Its environment ends the process.
    Exit,
    /// Its environment panics, which the process survives.
    Panic,
    /// Its environment aborts the process.
    Abort,
    /// Its environment takes more memory than the process may have.
    Hunger,
}

/// What the loss of a worker does to its collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Another worker takes the place.
    Restart,
    /// It ends the collector.
    Raise,
    /// The others go on; the last one's loss ends the collector.
    Continue,
}

/// Frames of a batch, for every class and number of environments.
pub(crate) const FRAMES_PER_BATCH: usize = 240;
pub(crate) const TRAJS_PER_BATCH: usize = 8;
/// Frames that are collected for each death.
pub(crate) const FRAMES_PER_DEATH: usize = 50 * FRAMES_PER_BATCH;
/// Workers of the classes that have several, and most environments of each.
const WORKERS: usize = 3;
const MOST_ENVS: usize = 2;
/// Ages that a collector may be asked to keep.
const LAGS: [Option<usize>; 4] = [None, Some(0), Some(1), Some(3)];
/// More frames than all workers fill before they die by themselves, and than they fill while those
/// who kill them have to wait for a processor.
const MORE_THAN_A_LIFE: usize = 16 * LIFE as usize * WORKERS * MOST_ENVS;

impl Cell {
    /// Every class, every use, every death, every rule; in an order of its own each time. `deaths`:
    /// in the life of a collector whose workers are replaced.
    pub(crate) fn all(deaths: usize) -> Vec<Self> {
        use Class::{Async, Collector, MultiAsync, MultiSync};
        let mut cells = Vec::new();
        for class in [Collector, Async, MultiSync, MultiAsync] {
            for mode in [Mode::Yield, Mode::Replay, Mode::Trajectories] {
                for (way, rule) in Way::ALL
                    .into_iter()
                    .flat_map(|way| Rule::ALL.map(|rule| (way, rule)))
                {
                    let cell = Self {
                        class,
                        mode,
                        way,
                        rule,
                        num_envs: 1 + random() as usize % MOST_ENVS,
                        deaths: 1,
                        max_lag: LAGS[random() as usize % LAGS.len()],
                    };
                    match (rule, cell.workers()) {
                        (Rule::Restart, _) => cells.push(Self { deaths, ..cell }),
                        (Rule::Raise, _) => cells.push(cell),
                        // Nobody would be left to go on.
                        (Rule::Continue, 1) => {}
                        (Rule::Continue, workers) => {
                            let deaths = 1 + random() as usize % workers;
                            cells.push(Self { deaths, ..cell });
                        }
                    }
                }
            }
        }
        cells.sort_by_cached_key(|_| random());
        cells
    }

    /// All that the kind is, without what differs from run to run.
    pub(crate) fn name(self) -> String {
        let Self {
            class,
            mode,
            way,
            rule,
            ..
        } = self;
        format!("{class:?} {mode:?} {way:?} {rule:?}")
    }

    pub(crate) fn workers(self) -> usize {
        match self.class {
            Class::Collector | Class::Async => 1,
            Class::MultiSync | Class::MultiAsync => WORKERS,
        }
    }

    /// Whether the collector has to end with the error of a worker.
    pub(crate) fn has_to_fail(self) -> bool {
        match self.rule {
            Rule::Restart => false,
            Rule::Raise => true,
            Rule::Continue => self.deaths == self.workers(),
        }
    }

    /// Whether it may: nobody knows how many die in time, where they do by themselves.
    pub(crate) fn may_fail(self) -> bool {
        self.has_to_fail() || self.rule == Rule::Continue && self.way.is_own()
    }

    /// Frames that the collector is asked for.
    pub(crate) fn total_frames(self) -> usize {
        match self.has_to_fail() {
            true => MORE_THAN_A_LIFE,
            false => self.deaths * FRAMES_PER_DEATH,
        }
    }

    pub(crate) fn builder(self) -> CollectorBuilder {
        let id = self.way.id();
        let builder = match self.class {
            Class::Collector => Collector::builder(id),
            Class::Async => AsyncCollector::builder(id),
            Class::MultiSync => MultiSyncCollector::builder(id).num_workers(WORKERS),
            Class::MultiAsync => MultiAsyncCollector::builder(id).num_workers(WORKERS),
        };
        let builder = match self.mode {
            Mode::Trajectories => builder.trajs_per_batch(TRAJS_PER_BATCH),
            Mode::Yield | Mode::Replay => builder,
        };
        let builder = match self.max_lag {
            Some(max_lag) => builder.max_lag(max_lag),
            None => builder,
        };
        builder
            .policy_recipe(PolicyRecipe::named(policy::NAME))
            .track_policy_version(true)
            .placement(Placement::Processes)
            .on_loss(match self.rule {
                Rule::Restart => OnLoss::Restart { budget: usize::MAX },
                Rule::Raise => OnLoss::Raise,
                Rule::Continue => OnLoss::Continue,
            })
            // Batches without a worker lack its frames, or have those of others.
            .allow_partial_batch(random().is_multiple_of(2))
            .num_envs(self.num_envs)
            .frames_per_batch(FRAMES_PER_BATCH)
            .total_frames(self.total_frames() as u64)
            .seed(random() >> 16)
    }
}

impl Rule {
    pub(crate) const ALL: [Self; 3] = [Self::Restart, Self::Raise, Self::Continue];
}

impl Way {
    pub(crate) const ALL: [Self; 6] = [
        Self::Kill,
        Self::Stop,
        Self::Exit,
        Self::Panic,
        Self::Abort,
        Self::Hunger,
    ];

    /// The environment that dies so.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Kill => "Ledger-kill",
            Self::Stop => "Ledger-stop",
            Self::Exit => "Ledger-exit",
            Self::Panic => "Ledger-panic",
            Self::Abort => "Ledger-abort",
            Self::Hunger => "Ledger-hunger",
        }
    }

    /// Whether the environment does it itself.
    pub(crate) fn is_own(self) -> bool {
        !matches!(self, Self::Kill | Self::Stop)
    }

    /// Whether a loss is told with the reason that it has.
    pub(crate) fn is_told_by(self, loss: &WorkerError) -> bool {
        let (kind, words) = match self {
            Self::Kill | Self::Stop => (FaultKind::Died, "signal 9 (SIGKILL)"),
            Self::Exit => (FaultKind::Died, "exit status 3"),
            Self::Abort => (FaultKind::Died, "signal 6 (SIGABRT)"),
            Self::Hunger => (FaultKind::Died, "memory allocation of"),
            Self::Panic => (FaultKind::Panic, crate::env::LAST_WORDS),
        };
        let text = loss.to_string();
        let as_said = text.contains(words);
        // That of the abort with which a program ends that gets no memory.
        let aborted = self != Self::Hunger || text.contains("signal 6 (SIGABRT)");
        loss.fault().kind() == kind && as_said && aborted
    }
}
