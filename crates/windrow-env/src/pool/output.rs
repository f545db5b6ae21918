//! Members that the pool's user holds, to read their outputs or to write their actions.

use windrow_slab::{Rows, RowsMut};

use super::error::PoolError;
use super::member::{Command, Member};
use super::queues::{MemberQueues, Members};
use crate::EnvError;

/// The outputs of some members, in the order of their numbers. The members can get new commands
/// once this is dropped.
#[derive(Debug)]
pub struct PoolOutput<'a> {
    pub(super) queues: &'a MemberQueues,
    pub(super) members: Members,
}

impl PoolOutput<'_> {
    /// The output of each member.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Answer<'_>> {
        self.members.iter().map(|member| Answer { member })
    }

    /// Number of members; at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Calls `fill` to write the actions of each member, then sends the command `called`.
    pub(super) fn filled(
        mut self,
        called: Command,
        mut fill: impl FnMut(usize, RowsMut<'_>) -> Result<(), EnvError>,
    ) -> Result<(), PoolError> {
        for (place, member) in self.members.iter_mut().enumerate() {
            let first = member.index * member.reward.len();
            let filled = fill(place, member.actions.rows_mut());
            filled.map_err(|error| error.of(first))?;
        }
        self.send(called)
    }

    pub(super) fn send(mut self, called: Command) -> Result<(), PoolError> {
        let members = std::mem::take(&mut self.members);
        self.queues.send(called, members)
    }
}

impl Drop for PoolOutput<'_> {
    fn drop(&mut self) {
        let members = std::mem::take(&mut self.members);
        if members.capacity() > 0 {
            self.queues.give_back(members);
        }
    }
}

/// The output of one member: each entry is `[k, *shape]`, for `k` environments.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    member: &'a Member,
}

impl<'a> Answer<'a> {
    /// Number of the member.
    #[must_use]
    pub fn env(&self) -> usize {
        self.member.index
    }

    /// Observations; after a step, those before any reset.
    #[must_use]
    pub fn observation(&self) -> Rows<'a> {
        self.member.next()
    }

    /// The observations that the next actions answer: as above, or the first ones of another
    /// episode after
    /// [`async_step_and_maybe_reset_send`](super::AsyncEnvPool::async_step_and_maybe_reset_send).
    #[must_use]
    pub fn root(&self) -> Rows<'a> {
        self.member.obs.rows()
    }

    /// Rewards of the step; 0 after a reset.
    #[must_use]
    pub fn reward(&self) -> &'a [f32] {
        &self.member.reward
    }

    /// Whether episodes ended by themselves.
    #[must_use]
    pub fn terminated(&self) -> &'a [bool] {
        &self.member.terminated
    }

    /// Whether episodes were cut.
    #[must_use]
    pub fn truncated(&self) -> &'a [bool] {
        &self.member.truncated
    }
}
