//! Choices among a few: where workers run, how their shares make batches, what happens when one
//! fails.

use std::fmt;

use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use windrow_slab::Order;

/// Where workers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Placement {
    /// In the thread that asks for a batch, one after the other: for one worker, or to debug
    /// several without threads. Workers collect nothing in advance.
    Inline,
    /// Each in a thread of its own.
    Threads,
    /// Each in a process of its own, on Linux: this program, run again, which begins with
    /// [`worker_main`](crate::worker_main). A worker that dies ends nothing but itself.
    Processes,
}

/// Who evaluates the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Inference {
    /// Each worker, for its own environments, with a policy of its own.
    #[default]
    Local,
    /// An [`InferenceServer`](windrow_policy::InferenceServer), for all workers: one policy, that
    /// of worker 0, in batches of those that are ready. It takes up new weights between two
    /// batches, so that a worker's part may hold frames of several
    /// [versions](crate::CollectorBuilder::track_policy_version).
    Served,
}

/// How the parts of workers make batches. Written down as `"synchronous"`, or as the number of
/// workers in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// Each batch holds a share of every worker, in the order of workers, all collected after the
    /// call: the same data for any number of workers, all with the newest weights.
    Synchronous,
    /// Each batch holds the parts of the first workers that are ready. The others go on meanwhile,
    /// each up to a part ahead.
    FirstCome {
        /// Workers in a batch; 1 for batches of one worker each.
        workers_per_batch: usize,
    },
}

/// Frames of a batch. Written down as a number or a list of numbers, which also become one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum FramesPerBatch {
    /// This many over all workers.
    Total(usize),
    /// This many of each worker.
    Each(Vec<usize>),
}

impl From<usize> for FramesPerBatch {
    fn from(frames: usize) -> Self {
        Self::Total(frames)
    }
}

impl From<Vec<usize>> for FramesPerBatch {
    fn from(frames: Vec<usize>) -> Self {
        Self::Each(frames)
    }
}

impl<const WORKERS: usize> From<[usize; WORKERS]> for FramesPerBatch {
    fn from(frames: [usize; WORKERS]) -> Self {
        Self::Each(frames.to_vec())
    }
}

/// How the shares of several workers are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CatResults {
    /// One after the other along the first dimension: `[frames]`, or `[workers · envs, time]`.
    #[default]
    Flat,
    /// One after the other along time: `[frames]`, or `[envs, workers · time]`.
    Time,
    /// Side by side: `[workers, time]`, or `[workers, envs, time]`. Shares of different lengths, or
    /// cut short, are padded with zeros; `("collector", "mask")` is true where there is a frame,
    /// and trajectory ids are -1 where there is none.
    Stack,
}

/// What happens when an environment fails. Written down as `"raise"`, `"continue"`, or as the
/// number of restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLoss {
    /// The error is delivered and the collector ends.
    #[default]
    Raise,
    /// The worker makes its environments and policy anew and fills the lost part again, at most
    /// `budget` times in its life; one more loss is raised. The new episodes have seeds and
    /// trajectory ids that were not used before.
    Restart {
        /// Losses that each worker may have.
        budget: usize,
    },
    /// The worker retires; batches go on without its frames, or with those of others in their place
    /// where [`allow_partial_batch`](crate::CollectorBuilder::allow_partial_batch) is `false`. The
    /// last one's error is raised.
    Continue,
}

/// Where workers run, how their parts make batches, and who evaluates the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) placement: Placement,
    pub(crate) delivery: Delivery,
    pub(crate) inference: Inference,
}

impl Delivery {
    /// Each batch is one worker's.
    pub(crate) const FIRST_COME: Self = Self::FirstCome {
        workers_per_batch: 1,
    };
}

impl Plan {
    /// Parts of a slab. Where the first workers that are ready make a batch, each part has its own
    /// slab, so that no frames wait for a slower worker.
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

impl Serialize for Delivery {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Synchronous => serializer.serialize_str("synchronous"),
            Self::FirstCome { workers_per_batch } => workers_per_batch.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Delivery {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NameOrNumber {
            expected: "\"synchronous\" or a number of workers in a batch",
            names: &[("synchronous", Self::Synchronous)],
            number: |workers_per_batch| Self::FirstCome { workers_per_batch },
        })
    }
}

impl Serialize for OnLoss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Raise => serializer.serialize_str("raise"),
            Self::Continue => serializer.serialize_str("continue"),
            Self::Restart { budget } => budget.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for OnLoss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NameOrNumber {
            expected: "\"raise\", \"continue\" or a number of restarts",
            names: &[("raise", Self::Raise), ("continue", Self::Continue)],
            number: |budget| Self::Restart { budget },
        })
    }
}

impl<'de> Deserialize<'de> for FramesPerBatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrList)
    }
}

/// Reads [`FramesPerBatch`].
struct NumberOrList;

impl<'de> Visitor<'de> for NumberOrList {
    type Value = FramesPerBatch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or a list of one for each worker")
    }

    fn visit_u64<E: Error>(self, frames: u64) -> Result<FramesPerBatch, E> {
        usize::try_from(frames)
            .map(FramesPerBatch::Total)
            .map_err(|_| E::invalid_value(Unexpected::Unsigned(frames), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FramesPerBatch, A::Error> {
        let mut each = Vec::new();
        while let Some(frames) = list.next_element()? {
            each.push(frames);
        }
        Ok(FramesPerBatch::Each(each))
    }
}

/// Reads a choice that is written as one of a few names, or as a number.
struct NameOrNumber<T: 'static> {
    expected: &'static str,
    names: &'static [(&'static str, T)],
    number: fn(usize) -> T,
}

impl<T: Copy> Visitor<'_> for NameOrNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        let choice = self.names.iter().find(|choice| choice.0 == name);
        choice
            .map(|choice| choice.1)
            .ok_or_else(|| E::invalid_value(Unexpected::Str(name), &self))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        usize::try_from(number)
            .map(self.number)
            .map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }
}
