use std::sync::{Arc, Weak};

use windrow_slab::{Pump, Ring};

use crate::process::crew::Crew;
use crate::process::employer::Employer;

/// Workers in processes, which get their first part with the first batch that is asked for.
pub(crate) struct Processes {
    crew: Employer,
    begun: bool,
}

impl Processes {
    pub(crate) fn new(crew: Employer, ring: &Ring) -> Self {
        let pump: Weak<Crew> = Arc::downgrade(&crew);
        ring.attend(pump as Weak<dyn Pump>);
        Self { crew, begun: false }
    }

    pub(crate) fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            self.crew.employ();
        }
    }

    /// Waits at most `timeout` until every process has ended; returns how many have not.
    pub(crate) fn join(&mut self, timeout: std::time::Duration) -> usize {
        self.crew.end(timeout)
    }

    /// Kills processes that have not ended; returns how many remain even so.
    pub(crate) fn kill(&mut self) -> usize {
        self.crew.kill()
    }
}

impl std::fmt::Debug for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Processes")
            .field("begun", &self.begun)
            .finish_non_exhaustive()
    }
}
