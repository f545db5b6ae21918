//! Where workers run.

mod inline;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use windrow_slab::Lease;
use windrow_sync::{Interrupt, Interrupted};

use crate::error::NextError;
#[cfg(target_os = "linux")]
use crate::process::pool::PoolGuard;
use crate::shared::heartbeat::{Silence, silent};
use crate::shared::link::Progress;
use crate::shared::service::Service;
use crate::shared::{Shared, ThreadLink};
use crate::worker::Worker;

use inline::Inline;
use threads::Threads;

/// The workers of a collector, where they run.
#[derive(Debug)]
pub(crate) enum Workers {
    Inline(Inline),
    Threads(Threads),
    #[cfg(target_os = "linux")]
    Processes(PoolGuard),
}

impl Workers {
    /// Workers of this process: in the thread that asks, or each in one of its own, where `service`
    /// may evaluate their policy.
    pub(crate) fn local(
        inline: bool,
        workers: Vec<Worker<ThreadLink>>,
        service: Option<Arc<Service>>,
    ) -> Self {
        match inline {
            true => Self::Inline(Inline::new(workers)),
            false => Self::Threads(Threads::new(workers, service)),
        }
    }

    /// Worker `worker`, where no thread has it and the caller may look at it: otherwise it is
    /// asked.
    pub(crate) fn here(&mut self, worker: usize) -> Option<&mut Worker<ThreadLink>> {
        match self {
            Self::Inline(inline) => inline.worker(worker),
            Self::Threads(threads) => threads.waiting(worker),
            #[cfg(target_os = "linux")]
            Self::Processes(_) => None,
        }
    }

    /// Workers that are lost go on from `progress` in other processes.
    pub(crate) fn go_on_from(&self, progress: Progress) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Processes(pool) => pool.go_on_from(progress),
            Self::Inline(_) | Self::Threads(_) => {
                let _ = progress;
            }
        }
    }

    /// The next whole slab.
    ///
    /// # Errors
    /// [`NextError::Slab`] as [`Ring::next`]; [`NextError::Interrupted`] where workers run in this
    /// thread, and [`NextError::WaitInterrupted`] where they do not.
    pub(crate) fn next(
        &mut self,
        shared: &Shared,
        interrupt: &Interrupt,
    ) -> Result<Lease, NextError> {
        let ring = &shared.ring;
        match self {
            Self::Inline(inline) => return inline.next(ring),
            Self::Threads(threads) => threads.begin(),
            #[cfg(target_os = "linux")]
            Self::Processes(pool) => pool.begin(),
        }
        if interrupt.is_never() {
            return Ok(ring.next()?);
        }
        let mut silence = Silence::default();
        interrupt.wait(|slice| {
            let next = ring.next_within(slice).map_err(NextError::from);
            next.transpose().or_else(|| {
                let reported = self.report_silent(shared, &mut silence, interrupt);
                reported.err().map(|error| Err(error.into()))
            })
        })?
    }

    /// Reports workers that have not moved for long.
    ///
    /// # Errors
    /// The error of the report.
    fn report_silent(
        &self,
        shared: &Shared,
        silence: &mut Silence,
        interrupt: &Interrupt,
    ) -> Result<(), Interrupted> {
        let Some(after) = interrupt.reports_after() else {
            return Ok(());
        };
        let heartbeats = match self {
            #[cfg(target_os = "linux")]
            Self::Processes(pool) => pool.heartbeats(),
            Self::Inline(_) | Self::Threads(_) => shared.reports.heartbeats(),
        };
        for worker in silence.look(heartbeats, after) {
            let doing = match self {
                #[cfg(target_os = "linux")]
                Self::Processes(pool) => pool.doing(worker),
                Self::Inline(_) | Self::Threads(_) => String::new(),
            };
            interrupt.report(&silent(&shared.name(worker), after, &doing))?;
        }
        Ok(())
    }

    /// Waits at most `timeout` until all workers have ended, and drops them; returns how many still
    /// run. Stop the ring before.
    pub(crate) fn join(&mut self, timeout: Duration) -> usize {
        match self {
            Self::Inline(inline) => {
                inline.end();
                0
            }
            Self::Threads(threads) => threads.join(timeout),
            #[cfg(target_os = "linux")]
            Self::Processes(pool) => pool.end(timeout),
        }
    }

    /// Lets workers end that wait for orders of a ring that was stopped, without waiting for them:
    /// those in processes do not see it.
    pub(crate) fn dismiss(&mut self) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Processes(pool) => {
                pool.end(Duration::ZERO);
            }
            Self::Inline(_) | Self::Threads(_) => {}
        }
    }

    /// Ends the `running` workers that can be ended against their will: those in processes. Returns
    /// how many go on.
    pub(crate) fn kill(&mut self, running: usize) -> usize {
        match self {
            #[cfg(target_os = "linux")]
            Self::Processes(pool) => pool.kill(),
            Self::Inline(_) | Self::Threads(_) => running,
        }
    }
}
