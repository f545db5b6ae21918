use std::sync::{Arc, Mutex, PoisonError};

use windrow_env::VecEnv;
use windrow_slab::{Ring, SlabError};

use crate::actor::Actor;
use crate::cursor::Cursor;
use crate::error::{WorkerError, WorkerFault};
use crate::rollout::rollout;
use crate::schedule::Schedule;

/// Environments, the policy that acts in them, and where they stand.
pub(crate) struct Worker {
    pub(crate) id: usize,
    pub(crate) env: Box<dyn VecEnv>,
    pub(crate) actor: Actor,
    pub(crate) cursor: Cursor,
    pub(crate) ring: Arc<Ring>,
    pub(crate) schedule: Arc<Mutex<Schedule>>,
}

impl Worker {
    /// Claims a part, fills it and hands it over; `false` when there is nothing to fill.
    ///
    /// # Errors
    /// What went wrong and where. The part was given back unwritten.
    pub(crate) fn run_once(&mut self) -> Result<bool, WorkerError> {
        let claimed = self.ring.try_claim(self.id);
        let Some(mut part) = claimed.map_err(|error| self.error(error.into()))? else {
            return Ok(false);
        };
        let share = self
            .schedule
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .share(part.seq());
        part.shorten(share.steps);
        self.actor.set_warming_up(share.random);
        let done = rollout(
            self.env.as_mut(),
            &mut self.actor,
            &mut self.cursor,
            &mut part,
        );
        done.map_err(|fault| self.error(fault))?;
        part.commit();
        Ok(true)
    }

    fn error(&self, fault: WorkerFault) -> WorkerError {
        let place = fault.env().map(|env| self.cursor.locate(env));
        WorkerError::new(self.id, place, fault)
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("id", &self.id)
            .field("env", &self.env.spec().id)
            .field("num_envs", &self.env.num_envs())
            .field("actor", &self.actor)
            .finish_non_exhaustive()
    }
}

impl From<SlabError> for WorkerFault {
    fn from(error: SlabError) -> Self {
        Self::Slab(error)
    }
}
