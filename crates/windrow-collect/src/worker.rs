//! Fills parts: the policy acts, the environments step.

pub(crate) mod actor;
pub(crate) mod cursor;
pub(crate) mod factory;
mod rollout;
pub(crate) mod saved;
#[cfg(test)]
mod tests;

use windrow_env::{Gathering, VecEnv};
use windrow_slab::Part;
use windrow_sync::catch_panic;

use crate::error::{BuildError, WorkerError, WorkerFault};
use crate::probe::{Phase, Probe, Recorder};
use crate::shared::commands::Commands;
use crate::shared::link::{Assignment, OnFault, Order, Progress, WorkerLink};
use crate::shared::reentrancy::ReentrancyGuard;
use crate::shared::statistics;
use actor::Actor;
use cursor::Cursor;
use factory::WorkerFactory;
use rollout::rollout;

/// Owns some environments and a copy of the policy, and fills the parts that its link gives it.
pub(crate) struct Worker<D> {
    pub(crate) link: D,
    pub(crate) env: Box<dyn VecEnv>,
    pub(crate) actor: Actor,
    pub(crate) cursor: Cursor,
    pub(crate) maker: WorkerFactory,
}

impl<D: WorkerLink> Worker<D> {
    /// Runs `f`, by whose end environments and policy are dropped. Panics while filling a part were
    /// caught there; one that is left, such as of a `drop`, is reported here: otherwise the
    /// consumer would wait for a worker that is gone.
    pub(crate) fn contained(self, f: impl FnOnce(Self)) {
        let mut link = self.link.clone();
        let _guard = ReentrancyGuard::enter(link.collector());
        if let Err(message) = catch_panic(|| f(self)) {
            let fault = WorkerFault::Panic(message);
            link.fail(WorkerError::new(link.worker(), None, fault));
        }
    }

    /// Fills parts until there are no more.
    pub(crate) fn run(mut self) {
        while let Some(order) = self.link.claim() {
            match order {
                Order::Fill(assignment) => {
                    if let Err(interruption) = self.fill(assignment) {
                        // The interrupted call waits in another thread: only the end of the
                        // collector reaches it.
                        self.link.fail(interruption);
                    }
                }
                Order::Save { pickle } => {
                    let saved = self.save(pickle);
                    self.link.answer(saved.to_bytes());
                }
                Order::Load(state) => {
                    let loaded = self.load(&state);
                    self.link.answer(loaded.to_bytes());
                }
            }
        }
    }

    /// Fills a part and hands it over, or gives it back and sees to the loss.
    ///
    /// # Errors
    /// An interruption. The part was given back, and is filled from new episodes with the next
    /// claim.
    pub(crate) fn fill(&mut self, assignment: Assignment) -> Result<(), WorkerError> {
        let _guard = ReentrancyGuard::enter(self.link.collector());
        let Assignment {
            mut part,
            share,
            commands,
        } = assignment;
        part.shorten(share.steps);
        let mut recorder = self.link.recorder();
        let recording = recorder.as_deref_mut().and_then(Recorder::begin);
        // A panic of the user's code is an error like any other. What it left half done,
        // environments and policy, is made anew or not used again.
        let filled = catch_panic(|| match recording {
            None => {
                let mut notes = self.link.progress_probe();
                self.collect(&mut part, commands, share.random, &mut notes)
            }
            Some(recorder) => {
                let mut both = (recorder, self.link.progress_probe());
                self.collect(&mut part, commands, share.random, &mut both)
            }
        });
        let (fault, env) = match filled {
            Ok(Ok(())) => {
                self.link.deliver(part, self.progress());
                if let Some(recorder) = recorder {
                    self.link.take_recorder(recorder, true);
                }
                return Ok(());
            }
            Ok(Err(fault)) => {
                let env = fault.env();
                (fault, env)
            }
            Err(message) => (WorkerFault::Panic(message), self.env.panicked_at()),
        };
        let mut progress = self.progress();
        // Noise was drawn for the frame that was lost.
        progress.next_frame += 1;
        self.link.give_back(part, progress);
        if let Some(recorder) = recorder {
            self.link.take_recorder(recorder, false);
        }
        self.lose(fault, env)
    }

    /// Brings itself up to date, and fills a part.
    fn collect<P: Probe>(
        &mut self,
        part: &mut Part,
        commands: Commands,
        random: bool,
        probe: &mut P,
    ) -> Result<(), WorkerFault> {
        self.follow(commands);
        let link = &self.link;
        self.actor.refresh(|held| link.newer_weights(held))?;
        self.actor.set_warming_up(random);
        probe.mark(Phase::LoadWeights);
        let env = self.env.as_mut();
        statistics::take_up(env, part).map_err(|error| error.of(0))?;
        rollout(env, &mut self.actor, &mut self.cursor, part, probe)?;
        statistics::hand_in(env, part);
        Ok(())
    }

    fn follow(&mut self, commands: Commands) {
        if let Some(saved) = commands.resume {
            self.cursor.resume(saved);
            self.actor.forget_version();
        }
        if let Some(restart) = commands.restart {
            self.cursor.restart(restart);
        }
    }

    /// Reports a fault, in its environment `env` if it is one's, and does as the link says.
    ///
    /// # Errors
    /// An interruption.
    fn lose(&mut self, fault: WorkerFault, env: Option<usize>) -> Result<(), WorkerError> {
        let place = env.map(|env| self.cursor.locate(env));
        let error = WorkerError::new(self.link.worker(), place, fault);
        match self.link.lose(error) {
            OnFault::Stop => {}
            OnFault::Replace => {
                if let Err(fault) = self.remake() {
                    let error = WorkerError::new(self.link.worker(), None, fault);
                    self.link.fail(error);
                }
            }
            OnFault::Interrupted(error) => {
                // Where an interrupted environment stands is unknown.
                self.cursor.start_over();
                let gatherings = self.env.gatherings().into_iter();
                gatherings.for_each(Gathering::forget);
                return Err(error);
            }
        }
        Ok(())
    }

    /// New environments and a new policy in place of those that failed.
    fn remake(&mut self) -> Result<(), WorkerFault> {
        let made = catch_panic(|| {
            let mut env = self.maker.envs()?;
            let (spec, seat) = (env.spec().clone(), self.maker.seat(env.num_envs()));
            seat.take(
                self.maker.policy()?,
                env.as_mut(),
                &spec,
                |policy, binding| self.actor.replace(policy, binding),
            )?;
            let worker = self.link.worker();
            env.bind(&self.actor.spec().columns)
                .map_err(|source| BuildError::Env { worker, source })?;
            Ok(env)
        });
        self.env = match made {
            Ok(Ok(env)) => env,
            Ok(Err(error)) => return Err(WorkerFault::Remake(Box::new(error))),
            Err(message) => return Err(WorkerFault::Panic(message)),
        };
        self.cursor.start_over();
        Ok(())
    }

    fn progress(&self) -> Progress {
        Progress {
            version: self.actor.version(),
            next_frame: self.cursor.next_frame(),
            next_traj_id: self.cursor.next_traj_id(),
        }
    }
}

impl<D: WorkerLink> std::fmt::Debug for Worker<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("id", &self.link.worker())
            .field("env", &self.env.spec().id)
            .field("num_envs", &self.env.num_envs())
            .field("actor", &self.actor)
            .finish_non_exhaustive()
    }
}
