//! The state itself.

use std::sync::Arc;

use tracing::{error, warn};
use windrow_policy::{WeightStore, WeightUpdater};
use windrow_slab::{Part, Ring};
use windrow_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use windrow_sync::{Mutex, MutexGuard, error_chain, lock};

use super::calls::Calls;
use super::commands::{Commands, Restart, Resume};
use super::heartbeat::environments;
use super::link::{Assignment, OnFault, Progress};
use super::reentrancy::CollectorId;
use super::reports::{LossRule, Reports};
use super::schedule::Schedule;
use super::service::Service;
use super::statistics::SharedStatistics;
use crate::TARGET;
use crate::config::plan::OnLoss;
use crate::error::{FaultKind, WorkerError};
use crate::probe::Profile;

/// The state of a collector that its workers and its consumer share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) collector: CollectorId,
    pub(crate) ring: Arc<Ring>,
    seed: AtomicU64,
    /// Environments of a worker; 0 before the first part.
    envs: AtomicUsize,
    schedule: Mutex<Schedule>,
    /// For each worker, until it begins its next part.
    commands: Vec<Mutex<Commands>>,
    pub(crate) weights: Arc<WeightStore>,
    /// What evaluates the policy, where workers do not.
    pub(crate) service: Option<Arc<Service>>,
    pub(crate) reports: Reports,
    pub(super) loss_rule: LossRule,
    /// Where the time of profiled workers is recorded.
    pub(crate) profile: Profile,
    /// Calls to workers in processes.
    pub(crate) calls: Calls,
    /// Running statistics that environments share.
    pub(crate) statistics: SharedStatistics,
}

impl Shared {
    pub(crate) fn new(
        ring: Arc<Ring>,
        schedule: Schedule,
        workers: usize,
        loss_rule: LossRule,
        seed: u64,
        statistics: SharedStatistics,
    ) -> Self {
        Self {
            collector: CollectorId::next(),
            seed: AtomicU64::new(seed),
            envs: AtomicUsize::new(0),
            ring,
            schedule: Mutex::new(schedule),
            commands: (0..workers).map(|_| Mutex::default()).collect(),
            weights: Arc::new(WeightStore::new(workers)),
            service: None,
            reports: Reports::new(workers),
            loss_rule,
            profile: Profile::new(workers),
            calls: Calls::new(workers),
            statistics,
        }
    }

    /// Has `updater` make the copies of weights, for workers that cannot read others.
    pub(crate) fn with_updater(mut self, updater: impl WeightUpdater + 'static) -> Self {
        self.weights = Arc::new(WeightStore::with_updater(self.workers(), updater));
        self
    }

    /// Lets `service` evaluate the policy, with weights of its store.
    pub(crate) fn served_by(mut self, service: Arc<Service>) -> Self {
        self.weights = Arc::clone(service.weights());
        self.service = Some(service);
        self
    }

    /// The seed that environments and the noise of policies derive from.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.load(Ordering::Relaxed)
    }

    /// Whether `error` is no fault, but ends the call during which it came.
    pub(crate) fn is_interruption(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        (self.loss_rule.is_interruption)(error)
    }

    pub(crate) fn workers(&self) -> usize {
        self.commands.len()
    }

    pub(crate) fn schedule(&self) -> MutexGuard<'_, Schedule> {
        lock(&self.schedule)
    }

    /// Commands each worker to begin new episodes, or ids, with its next part.
    pub(crate) fn restart(&self, how: Restart) {
        if let Restart::Seeded { seed, .. } = how {
            self.seed.store(seed, Ordering::Relaxed);
        }
        for commands in &self.commands {
            lock(commands).restart(how);
        }
    }

    /// Commands each worker to go on from a saved state with its next part.
    pub(crate) fn resume(&self, saved: Resume) {
        self.reports.go_on_from(saved);
        self.seed.store(saved.seed, Ordering::Relaxed);
        for commands in &self.commands {
            *lock(commands) = Commands {
                restart: None,
                resume: Some(saved),
            };
        }
    }

    /// What each worker was commanded to do with its next part.
    pub(crate) fn commanded(&self) -> Vec<Commands> {
        self.commands
            .iter()
            .map(|commands| *lock(commands))
            .collect()
    }

    /// Goes on from a saved state, which workers have loaded: with what they were `commanded` then.
    pub(crate) fn go_on_from(&self, saved: Resume, commanded: &[Commands]) {
        self.reports.go_on_from(saved);
        self.seed.store(saved.seed, Ordering::Relaxed);
        for (commands, saved) in self.commands.iter().zip(commanded) {
            *lock(commands) = *saved;
        }
    }

    /// What worker `worker` has to do for `part`, which was claimed for it.
    pub(crate) fn assignment(&self, worker: usize, mut part: Part) -> Assignment {
        self.statistics.send(worker, &mut part);
        self.envs.store(part.envs(), Ordering::Relaxed);
        Assignment {
            share: self.schedule().share(part.seq(), part.index()),
            commands: std::mem::take(&mut *lock(&self.commands[worker])),
            part,
        }
    }

    /// Worker `worker` and its environments, in words.
    pub(crate) fn name(&self, worker: usize) -> String {
        match self.envs.load(Ordering::Relaxed) {
            0 => format!("worker {worker}"),
            envs => format!("worker {worker}, {}", environments(worker * envs, envs)),
        }
    }

    /// Hands a part that worker `worker` has filled over to the consumer.
    pub(crate) fn deliver(&self, worker: usize, part: Part, progress: Progress) {
        let frames = (part.steps() * part.envs()) as u64;
        self.reports.collected(worker, frames, progress);
        part.commit_version(progress.version);
    }

    /// Counts the loss of worker `worker`, which has started over `restarts` times, and decides how
    /// it goes on.
    pub(crate) fn lose(&self, worker: usize, restarts: &mut usize, error: WorkerError) -> OnFault {
        let fault = error.fault();
        // A worker in another process has asked before: what comes from there is text.
        if fault.kind() == FaultKind::Interruption || (self.loss_rule.is_interruption)(fault) {
            return OnFault::Interrupted(error);
        }
        match self.loss_rule.on_loss {
            OnLoss::Restart { budget } if *restarts < budget => {
                *restarts += 1;
                warn!(target: TARGET, worker, restarts, error = error_chain(&error), "a worker was lost, and starts over");
                self.reports.restarted(worker, error);
                return OnFault::Replace;
            }
            OnLoss::Continue if self.reports.leave(worker) > 0 => {
                warn!(target: TARGET, worker, error = error_chain(&error), "a worker was lost, and the others go on");
                self.reports.add_loss(error);
                if self.loss_rule.reassigns {
                    self.ring.reassign(worker);
                } else if self.ring.retire(worker) {
                    self.schedule().retire(worker);
                }
            }
            _ => self.fail(error),
        }
        OnFault::Stop
    }

    /// Ends the collector with an error of a worker.
    pub(crate) fn fail(&self, error: WorkerError) {
        error!(target: TARGET, worker = error.worker(), error = error_chain(&error), "a worker was lost, and the collector ends");
        self.reports.add_failure(error);
        self.ring.stop();
    }
}
