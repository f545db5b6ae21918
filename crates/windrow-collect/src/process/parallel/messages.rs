//! What the owner of environments in processes and these processes say to each other, beside
//! [`ToWorker`](crate::process::messages::ToWorker).

use serde::{Deserialize, Serialize};
use tensordict::{DType, LeafSpec};
use windrow_env::EnvSpec;
use windrow_slab::{Key, Layout, PartOrder, RecordSpec, Shares, SlabError};

use crate::error::SentError;

/// From the owner to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum MemberCommand {
    /// Step all environments.
    Step,
    /// Reset those that are marked in [the columns behind the actions](RowsLayout::reset).
    Reset,
    /// Answer a call, which comes by the socket.
    Call,
    /// Answer with the state.
    Save { pickle: bool },
    /// Go on from a state, which comes by the socket.
    Load,
    /// Leave these rows for others, which come by the socket.
    Move,
}

impl MemberCommand {
    /// Whether a [`FromWorker::Returned`](crate::process::messages::FromWorker::Returned) belongs
    /// to the answer.
    pub(super) fn returns(self) -> bool {
        matches!(self, Self::Call | Self::Save { .. } | Self::Load)
    }
}

/// From a member to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum MemberAnswer {
    Done,
    /// It failed, as a message by the socket says.
    Failed,
}

/// How a reset is marked.
pub(super) const UNSEEDED: i64 = 1;
pub(super) const SEEDED: i64 = 2;

/// What failed in a member.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::process) struct MemberFault {
    /// The environment, among those of the worker.
    pub(super) env: usize,
    pub(super) message: String,
    pub(super) sent: Option<SentError>,
}

#[cfg(feature = "remote")]
impl MemberFault {
    /// The error in the program's own form, if the member has sent it.
    pub(in crate::process) fn sent(&self) -> Option<&SentError> {
        self.sent.as_ref()
    }
}

/// How the rows of all members lie: one step, one part for each member.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::process) struct RowsLayout {
    /// What the environments read: actions, and what the policy writes beside.
    pub(super) columns: Vec<LeafSpec>,
    /// Whether the environments are bound to the columns.
    pub(super) bind: bool,
    pub(super) observation: Vec<LeafSpec>,
    pub(super) workers: usize,
    pub(super) envs: usize,
    /// Numbers beside the rows of each, for running statistics.
    pub(super) notes: usize,
    /// The member that uses them.
    pub(super) worker: usize,
}

impl RowsLayout {
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
            notes: 0,
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
            let leaf = |(at, leaf): (usize, &LeafSpec)| {
                LeafSpec::new(format!("{prefix}{at}"), leaf.dtype, &leaf.shape)
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
            notes: self.notes,
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
