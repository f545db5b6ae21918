//! Fills parts: the environments, the policy that acts in them, and where they stand.

pub(crate) mod actor;
pub(crate) mod cursor;
mod rollout;

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use windrow_env::VecEnv;
use windrow_policy::{Policy, WeightStore};
use windrow_slab::{Part, Ring};

use crate::config::builder::CollectorBuilder;
use crate::config::plan::OnLoss;
use crate::error::{CollectError, WorkerError, WorkerFault};
use crate::probe::{NoProbe, Phase, Probe, Profile, Recorder};
use crate::shared::schedule::Schedule;
use crate::shared::stats::WorkerRecord;
use crate::shared::within::Within;
use crate::sync::{AtomicI64, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::worker::actor::Actor;
use crate::worker::cursor::{Cursor, Restart};
use crate::worker::rollout::rollout;

/// Environments, the policy that acts in them, and where they stand.
pub(crate) struct Worker {
    pub(crate) id: usize,
    pub(crate) env: Box<dyn VecEnv>,
    pub(crate) actor: Actor,
    pub(crate) cursor: Cursor,
    pub(crate) ring: Arc<Ring>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) maker: Maker,
    /// How often environments and policy were made anew.
    pub(crate) losses: usize,
}

/// Makes a worker's environments and policy anew after a loss.
pub(crate) struct Maker {
    pub(crate) env: Box<dyn Fn() -> Result<Box<dyn VecEnv>, CollectError> + Send>,
    pub(crate) policy: Box<dyn Fn() -> Box<dyn Policy> + Send>,
}

/// Tells an interruption from a fault.
pub(crate) type IsInterruption = fn(&(dyn Error + 'static)) -> bool;

/// What the workers of a collector and its consumer both look at.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) schedule: Mutex<Schedule>,
    pub(crate) weights: WeightStore,
    pub(crate) mail: Vec<Mutex<Mail>>,
    /// Errors that are to be delivered, oldest first.
    pub(crate) failures: Mutex<Vec<WorkerError>>,
    /// Errors of workers that were lost without ending the collector, oldest first.
    pub(crate) losses: Mutex<Vec<WorkerError>>,
    pub(crate) on_loss: OnLoss,
    pub(crate) is_interruption: IsInterruption,
    /// Workers that still collect.
    pub(crate) alive: AtomicUsize,
    /// What each worker has done.
    pub(crate) records: Vec<WorkerRecord>,
    /// The smallest trajectory id that no frame carries yet.
    pub(crate) next_traj_id: AtomicI64,
    /// The smallest frame from which no environment's noise and seeds were drawn yet, whatever the seed.
    pub(crate) next_frame: AtomicU64,
    /// Where the time of profiled workers is recorded.
    pub(crate) profile: Profile,
}

/// What a worker is to do before its next part; looked at between two parts only, so that nothing collected is lost.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    pub(crate) restart: Option<Restart>,
    pub(crate) resume: Option<Resume>,
}

/// A saved state, as far as it concerns a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resume {
    /// Where all environments go on: no noise or seed of this frame or a later one was drawn before.
    pub(crate) frame: u64,
    pub(crate) traj_id: i64,
    pub(crate) seed: u64,
}

impl Shared {
    pub(crate) fn new(schedule: Schedule, workers: usize, chosen: &CollectorBuilder) -> Self {
        Self {
            schedule: Mutex::new(schedule),
            weights: WeightStore::new(workers),
            mail: (0..workers).map(|_| Mutex::default()).collect(),
            failures: Mutex::default(),
            losses: Mutex::default(),
            on_loss: chosen.on_loss,
            is_interruption: chosen.is_interruption,
            alive: AtomicUsize::new(workers),
            records: (0..workers).map(|_| WorkerRecord::default()).collect(),
            next_traj_id: AtomicI64::new(0),
            next_frame: AtomicU64::new(0),
            profile: Profile::new(workers),
        }
    }

    pub(crate) fn schedule(&self) -> MutexGuard<'_, Schedule> {
        lock(&self.schedule)
    }

    pub(crate) fn mail(&self, worker: usize) -> MutexGuard<'_, Mail> {
        lock(&self.mail[worker])
    }

    /// Worker `worker` collects no more; how many others still do.
    fn lose(&self, worker: usize) -> usize {
        self.records[worker].gone.store(true, Ordering::Relaxed);
        self.alive.fetch_sub(1, Ordering::AcqRel) - 1
    }

    /// Keeps the error of a worker that was replaced or is gone; of very many, the first ones.
    fn note_loss(&self, error: WorkerError) {
        const KEPT: usize = 1000;
        let mut losses = lock(&self.losses);
        if losses.len() < KEPT {
            losses.push(error);
        }
    }

    /// The errors of workers that were lost since this was last asked.
    pub(crate) fn take_losses(&self) -> Vec<WorkerError> {
        std::mem::take(&mut *lock(&self.losses))
    }

    /// Reports an error that ends the collector.
    pub(crate) fn fail(&self, ring: &Ring, error: WorkerError) {
        lock(&self.failures).push(error);
        ring.stop();
    }

    /// The oldest error that was not delivered yet.
    pub(crate) fn take_failure(&self) -> Option<WorkerError> {
        let mut failures = lock(&self.failures);
        (!failures.is_empty()).then(|| failures.remove(0))
    }
}

/// Nothing that is locked here is left half changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// Runs `f`, by whose end environments and policy are dropped. Panics while filling a part were caught there; one that
    /// is left, such as of a `drop`, is reported here, so that nobody waits for a worker that is gone.
    pub(crate) fn contained(self, f: impl FnOnce(Self)) {
        let (id, shared, ring) = (self.id, Arc::clone(&self.shared), Arc::clone(&self.ring));
        let _within = Within::enter(&shared);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| f(self))) {
            let fault = WorkerFault::panic(panic.as_ref());
            shared.fail(&ring, WorkerError::new(id, None, fault));
        }
    }

    /// Fills parts until there are no more.
    pub(crate) fn run(mut self) {
        loop {
            let asked = Instant::now();
            let Some(part) = self.ring.claim(self.id) else {
                return;
            };
            let waited = asked.elapsed().as_nanos() as u64;
            self.record().waited.fetch_add(waited, Ordering::Relaxed);
            if let Err(interruption) = self.fill(part) {
                // Whoever is interrupted waits in another thread, where only the end is heard of.
                self.raise(interruption);
            }
        }
    }

    /// Fills a part and hands it over, or gives it back and sees to the loss.
    ///
    /// # Errors
    /// An interruption. The part was given back, and is filled from new episodes with the next claim.
    pub(crate) fn fill(&mut self, mut part: Part) -> Result<(), WorkerError> {
        let _within = Within::enter(&self.shared);
        let share = self.shared.schedule().share(part.seq(), part.index());
        part.shorten(share.steps);
        let mut recorder = self.shared.profile.lend(self.id);
        let recording = recorder.as_deref_mut().and_then(Recorder::begin);
        // A panic of the user's code is an error like any other. What it left half done, environments and policy, is
        // made anew or not used again.
        let filled = catch_unwind(AssertUnwindSafe(|| match recording {
            None => self.collect(&mut part, share.random, &mut NoProbe),
            Some(recorder) => self.collect(&mut part, share.random, recorder),
        }));
        let (fault, env) = match filled {
            Ok(Ok(())) => {
                self.note_progress(self.cursor.next_frame());
                let frames = part.steps() * part.envs();
                self.record().collected(frames as u64, self.actor.version());
                part.commit_version(self.actor.version());
                if let Some(recorder) = recorder {
                    self.shared.profile.give_back(recorder, true);
                }
                return Ok(());
            }
            Ok(Err(fault)) => {
                let env = fault.env();
                (fault, env)
            }
            Err(panic) => (WorkerFault::panic(panic.as_ref()), self.env.panicked_at()),
        };
        // Noise was drawn for the frame that was lost. Noted before others learn that the part is not being written any more.
        self.note_progress(self.cursor.next_frame() + 1);
        drop(part);
        if let Some(recorder) = recorder {
            self.shared.profile.give_back(recorder, false);
        }
        if (self.shared.is_interruption)(&fault) {
            let interruption = self.error(fault, env);
            // Nobody knows where environments stand that were interrupted.
            self.cursor.start_over();
            return Err(interruption);
        }
        self.lose(fault, env);
        Ok(())
    }

    /// `fault`, in environment `env`, as an error.
    fn error(&self, fault: WorkerFault, env: Option<usize>) -> WorkerError {
        let place = env.map(|env| self.cursor.locate(env));
        WorkerError::new(self.id, place, fault)
    }

    fn record(&self) -> &WorkerRecord {
        &self.shared.records[self.id]
    }

    /// Brings itself up to date, and fills a part.
    fn collect<P: Probe>(
        &mut self,
        part: &mut Part,
        random: bool,
        probe: &mut P,
    ) -> Result<(), WorkerFault> {
        self.read_mail();
        self.actor.refresh(&self.shared.weights, self.id)?;
        self.actor.set_warming_up(random);
        probe.mark(Phase::LoadWeights);
        rollout(
            self.env.as_mut(),
            &mut self.actor,
            &mut self.cursor,
            part,
            probe,
        )
    }

    fn read_mail(&mut self) {
        let Mail { restart, resume } = std::mem::take(&mut *self.shared.mail(self.id));
        if let Some(resume) = resume {
            self.cursor.resume(resume);
            self.actor.forget_version();
        }
        if let Some(restart) = restart {
            self.cursor.restart(restart);
        }
    }

    /// Follows what the user chose for the loss of a worker, in whose environment `env` there was a fault.
    fn lose(&mut self, fault: WorkerFault, env: Option<usize>) {
        let error = self.error(fault, env);
        match self.shared.on_loss {
            OnLoss::Restart { budget } if self.losses < budget => {
                self.shared.note_loss(error);
                self.losses += 1;
                self.record().restarts.fetch_add(1, Ordering::Relaxed);
                if let Err(fault) = self.remake() {
                    self.raise(WorkerError::new(self.id, None, fault));
                }
            }
            OnLoss::Continue if self.shared.lose(self.id) > 0 => {
                self.shared.note_loss(error);
                if self.ring.retire(self.id) {
                    self.shared.schedule().retire(self.id);
                }
            }
            _ => self.raise(error),
        }
    }

    fn raise(&self, error: WorkerError) {
        self.shared.fail(&self.ring, error);
    }

    /// New environments and a new policy in place of those that failed.
    fn remake(&mut self) -> Result<(), WorkerFault> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let (worker, mut env) = (self.id, (self.maker.env)()?);
            self.actor.replace((self.maker.policy)(), env.spec())?;
            env.bind(self.actor.columns())
                .map_err(|source| CollectError::Env { worker, source })?;
            Ok(env)
        }));
        self.env = match made {
            Ok(Ok(env)) => env,
            Ok(Err(error)) => return Err(WorkerFault::Remake(Box::new(error))),
            Err(panic) => return Err(WorkerFault::panic(panic.as_ref())),
        };
        self.cursor.start_over();
        Ok(())
    }

    /// Tells what a state that is saved later has to begin behind.
    fn note_progress(&self, next_frame: u64) {
        let (shared, next_id) = (&self.shared, self.cursor.next_traj_id());
        shared.next_traj_id.fetch_max(next_id, Ordering::Relaxed);
        shared.next_frame.fetch_max(next_frame, Ordering::Relaxed);
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
