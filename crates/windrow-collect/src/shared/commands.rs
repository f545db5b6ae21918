//! What the consumer commands workers to do before their next part. Workers look between two parts
//! only, so that no collected frame is lost.

use serde::{Deserialize, Serialize};

/// Commands for one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Commands {
    pub(crate) restart: Option<Restart>,
    /// Carried out before `restart`.
    pub(crate) resume: Option<Resume>,
}

impl Commands {
    /// Adds a restart. An ordered seed is not forgotten: episodes that begin anew without one would
    /// begin anyway.
    pub(crate) fn restart(&mut self, how: Restart) {
        let replaces = match how {
            Restart::Renamed => self.restart.is_none(),
            Restart::Unseeded => matches!(self.restart, None | Some(Restart::Renamed)),
            Restart::Seeded { .. } | Restart::Resumed => true,
        };
        if replaces {
            self.restart = Some(how);
        }
    }
}

/// How all environments of a worker begin new episodes, or new ids of trajectories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Restart {
    /// Their generators go on.
    Unseeded,
    /// Environment `i` is seeded with `seed + i`, or all with `seed`, and noise begins anew.
    Seeded { seed: u64, same: bool },
    /// From the seed, the environment and its frame, so that no episode is repeated.
    Resumed,
    /// Episodes go on under new ids, since frames in between are missing from the stream: the
    /// frames before and after must not be joined.
    Renamed,
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
