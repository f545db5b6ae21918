//! What kind of collector is to be built: where workers run, and how their parts make batches.

use windrow_slab::Order;

/// Where workers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// In the thread that asks for a batch, one after the other: for one worker, and to look at any other collector
    /// without threads. Nothing is collected before it is asked for.
    Inline,
    /// Each in a thread of its own.
    Threads,
}

/// How the parts of workers make batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// Each batch holds a share of every worker, in the order of workers, all of it collected after it was asked for: the
    /// same data for any number of workers, all acted by the newest weights.
    Synchronous,
    /// Each batch holds the parts of the first so many workers that are ready. Workers go on meanwhile, each up to a part
    /// ahead.
    FirstCome {
        /// Workers in a batch; 1 for batches of one worker each.
        workers_per_batch: usize,
    },
}

/// How the shares of several workers are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CatResults {
    /// One after the other along the first dimension: `[frames]`, or `[workers · envs, time]`.
    #[default]
    Flat,
    /// One after the other along time: `[frames]`, or `[envs, workers · time]`.
    Time,
    /// Side by side: `[workers, time]`, or `[workers, envs, time]`. Shares of different lengths, or
    /// cut short, are padded with zeros; `("collector", "mask")` is true where there is a frame, and trajectory ids are -1
    /// where there is none.
    Stack,
}

/// What happens when an environment fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLoss {
    /// The error is delivered and the collector ends.
    #[default]
    Raise,
    /// The worker makes its environments and policy anew and fills the lost part again, at most `budget` times in its
    /// life; one more loss is raised. The new episodes have seeds and trajectory ids that were not used before.
    Restart {
        /// Losses that each worker may have.
        budget: usize,
    },
    /// The worker retires; batches go on without it. The last one's error is raised.
    Continue,
}

/// Two answers that make a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) placement: Placement,
    pub(crate) delivery: Delivery,
}

impl Plan {
    pub(crate) const COLLECTOR: Self = Self {
        placement: Placement::Inline,
        delivery: Delivery::Synchronous,
    };
    pub(crate) const MULTI_SYNC: Self = Self {
        placement: Placement::Threads,
        delivery: Delivery::Synchronous,
    };
    pub(crate) const MULTI_ASYNC: Self = Self {
        placement: Placement::Threads,
        delivery: Delivery::FirstCome {
            workers_per_batch: 1,
        },
    };

    /// Parts of a slab. Where the first come make a batch, each has a slab to itself: nobody's frames wait for those of a
    /// slower one.
    pub(crate) fn parts(self, workers: usize) -> usize {
        match self.delivery {
            Delivery::Synchronous => workers,
            Delivery::FirstCome { .. } => 1,
        }
    }

    /// Slabs that make a batch.
    pub(crate) fn slabs_per_batch(self) -> usize {
        match self.delivery {
            Delivery::Synchronous => 1,
            Delivery::FirstCome { workers_per_batch } => workers_per_batch,
        }
    }

    pub(crate) fn order(self) -> Order {
        match self.delivery {
            Delivery::Synchronous => Order::ByWorker,
            Delivery::FirstCome { .. } => Order::ByArrival,
        }
    }

    /// Slabs that may be started before they are asked for.
    pub(crate) fn ahead(self, workers: usize) -> usize {
        match (self.placement, self.delivery) {
            (Placement::Inline, _) | (_, Delivery::Synchronous) => 0,
            (_, Delivery::FirstCome { .. }) => workers,
        }
    }
}
