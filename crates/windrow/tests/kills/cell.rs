//! Which collector, what becomes of its batches, and how its workers die.

use windrow::{
    AsyncCollector, Collector, CollectorBuilder, FaultKind, MultiAsyncCollector,
    MultiSyncCollector, OnLoss, Placement, WorkerError,
};

/// One kind of run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) class: Class,
    pub(crate) mode: Mode,
    pub(crate) way: Way,
    /// Environments of each worker.
    pub(crate) num_envs: usize,
}

#[derive(Debug, Clone, Copy)]
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
}

/// Frames of a batch, for every class and number of environments.
pub(crate) const FRAMES_PER_BATCH: usize = 240;
pub(crate) const TRAJS_PER_BATCH: usize = 8;

impl Cell {
    /// Every class, every use, every death; in an order of its own each time.
    pub(crate) fn all() -> Vec<Self> {
        use Class::{Async, Collector, MultiAsync, MultiSync};
        let mut cells = Vec::new();
        for class in [Collector, Async, MultiSync, MultiAsync] {
            for mode in [Mode::Yield, Mode::Replay, Mode::Trajectories] {
                for way in Way::ALL {
                    let num_envs = 1 + (crate::env::random() % 2) as usize;
                    cells.push(Self {
                        class,
                        mode,
                        way,
                        num_envs,
                    });
                }
            }
        }
        cells.sort_by_cached_key(|_| crate::env::random());
        cells
    }

    pub(crate) fn builder(self) -> CollectorBuilder {
        let id = self.way.id();
        let builder = match self.class {
            Class::Collector => Collector::builder(id),
            Class::Async => AsyncCollector::builder(id),
            Class::MultiSync => MultiSyncCollector::builder(id).num_workers(3),
            Class::MultiAsync => MultiAsyncCollector::builder(id).num_workers(3),
        };
        let builder = match self.mode {
            Mode::Trajectories => builder.trajs_per_batch(TRAJS_PER_BATCH),
            Mode::Yield | Mode::Replay => builder,
        };
        builder
            .placement(Placement::Processes)
            .on_loss(OnLoss::Restart { budget: usize::MAX })
            .num_envs(self.num_envs)
            .frames_per_batch(FRAMES_PER_BATCH)
            .seed(crate::env::random() >> 16)
    }
}

impl Way {
    pub(crate) const ALL: [Self; 5] =
        [Self::Kill, Self::Stop, Self::Exit, Self::Panic, Self::Abort];

    /// The environment that dies so.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Kill => "Ledger-kill",
            Self::Stop => "Ledger-stop",
            Self::Exit => "Ledger-exit",
            Self::Panic => "Ledger-panic",
            Self::Abort => "Ledger-abort",
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
            Self::Panic => (FaultKind::Panic, crate::env::LAST_WORDS),
        };
        loss.fault().kind() == kind && loss.to_string().contains(words)
    }
}
