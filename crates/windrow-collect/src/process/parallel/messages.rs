//! What the owner of environments in processes and these processes tell each other.

use serde::{Deserialize, Serialize};
use tensordict::{DType, LeafSpec};
use windrow_env::{EnvRecipe, EnvSpec};
use windrow_slab::{Key, Layout, PartOrder, RecordSpec, Shares, SlabError};

use crate::error::SentError;

/// Kinds of frames, beside those of collectors.
pub(crate) mod frame {
    /// To the worker: [`Introduction`](super::Introduction).
    pub(crate) const MEMBER: u8 = 20;
    /// To the worker: [`Seat`](super::Seat), with the files of rows and lanes.
    pub(crate) const SEAT: u8 = 21;
    /// From the worker: it has taken its seat.
    pub(crate) const SEATED: u8 = 22;
    /// From the worker: [`Fault`](super::Fault).
    pub(crate) const FAULT: u8 = 23;
}

/// By a lane to the worker: step all environments.
pub(super) const STEP: u32 = 1;
/// Reset those that are marked in [the columns behind the actions](Seat::reset).
pub(super) const RESET: u32 = 2;
/// Answer a call, which comes in a frame.
pub(super) const CALL: u32 = 3;
/// Leave this seat for another one, which comes in a frame.
pub(super) const MOVE: u32 = 4;
/// By a lane from the worker: done.
pub(super) const DONE: u32 = 1;
/// It failed, as a frame tells.
pub(super) const FAILED: u32 = 2;

/// How a reset is marked.
pub(super) const UNSEEDED: i64 = 1;
pub(super) const SEEDED: i64 = 2;

/// What a worker process makes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Introduction {
    pub(crate) env: EnvRecipe,
}

/// What failed in a worker process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Fault {
    /// The environment, among those of the worker.
    pub(super) env: usize,
    pub(super) message: String,
    pub(super) sent: Option<SentError>,
}

/// Where the rows of all workers lie: one step, one part for each worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Seat {
    /// What the environments read: actions, and what the policy writes beside.
    pub(super) columns: Vec<LeafSpec>,
    /// Whether the environments are told of the columns.
    pub(super) bind: bool,
    pub(super) observation: Vec<LeafSpec>,
    pub(super) workers: usize,
    pub(super) envs: usize,
    /// The worker that sits here.
    pub(super) worker: usize,
}

impl Seat {
    pub(super) fn new(
        spec: &EnvSpec,
        columns: Vec<LeafSpec>,
        bind: bool,
        (workers, envs): (usize, usize),
    ) -> Self {
        Self {
            columns,
            bind,
            observation: spec.observation_leaves(),
            workers,
            envs,
            worker: 0,
        }
    }

    /// The columns behind the actions: which environments are to be reset, and their seeds.
    pub(super) fn reset(&self) -> (Key<i64>, Key<i64>) {
        let first = self.columns.len();
        (Key::new(first), Key::new(first + 1))
    }

    pub(super) fn layout(&self) -> Result<Layout, SlabError> {
        // Found by their numbers. Names could be those of other columns.
        let numbered = |prefix: &str, leaves: &[LeafSpec]| {
            let leaf = |(at, leaf): (usize, &LeafSpec)| LeafSpec {
                key: format!("{prefix}{at}").into(),
                ..leaf.clone()
            };
            leaves.iter().enumerate().map(leaf).collect::<Vec<_>>()
        };
        let mut policy = numbered("read", &self.columns);
        for name in ["reset", "seed"] {
            policy.push(LeafSpec::new(name, DType::I64, []));
        }
        let record = RecordSpec {
            observation: numbered("observed", &self.observation),
            policy,
            ..RecordSpec::default()
        };
        let shares = Shares {
            steps: vec![1; self.workers],
            envs: self.envs,
            batched: true,
            order: PartOrder::Sequential,
        };
        Layout::new(&record, shares)
    }
}
