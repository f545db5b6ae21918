//! What the consumer commands workers to do before their next part. Workers look between two parts
//! only, so that no collected frame is lost.

use serde::{Deserialize, Serialize};

/// Commands for one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Commands {
    pub(crate) restart: Option<Restart>,
    /// Carried out before `restart`.
    pub(crate) resume: Option<Resume>,
    /// Gives the episodes that go on new ids: frames before the next part were taken out of the
    /// stream, and nobody shall join what comes to what came.
    pub(crate) apart: bool,
}

impl Commands {
    /// Adds a restart. An ordered seed is not forgotten: episodes that begin anew without one would
    /// begin anyway.
    pub(crate) fn restart(&mut self, how: Restart) {
        if how != Restart::Unseeded || self.restart.is_none() {
            self.restart = Some(how);
        }
    }
}

/// How all environments of a worker begin new episodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Restart {
    /// Their generators go on.
    Unseeded,
    /// Environment `i` is seeded with `seed + i`, or all with `seed`, and noise begins anew.
    Seeded { seed: u64, same: bool },
    /// From the seed, the environment and its frame, so that no episode is repeated.
    Resumed,
}

/// The part of a saved state that concerns workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resume {
    /// Where all environments go on: no noise or seed of this frame or a later one was drawn
    /// before.
    pub(crate) frame: u64,
    pub(crate) traj_id: i64,
    pub(crate) seed: u64,
}
