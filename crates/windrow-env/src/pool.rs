//! A pool of environments that step independently: commands are sent to some, and results are
//! received in the order in which they are ready (ADR 0022).

mod error;
mod member;
mod output;
mod queues;

use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, current};
use std::time::Duration;

use windrow_slab::{LeafSpec, Rows, RowsMut};
use windrow_sync::{Interrupt, unpoisoned};

use crate::joined::copy;
use crate::{EnvError, EnvFactory, EnvSpec, Reset, VecEnv};
pub use error::PoolError;
pub use member::Command;
use member::Member;
pub use output::{Answer, PoolOutput};
use queues::{MemberQueues, Members};

/// N environments that M threads step on request; outputs are received in the order in which they
/// are ready.
///
/// A call whose name ends with `_send` sends a command to some environments and returns at once;
/// the matching `_recv` call waits for as many outputs as its [options](RecvOptions) say. An
/// environment has one command at a time. A call out of order is an error that names the
/// environment and the call that was expected. All calls may come from any thread.
///
/// ```
/// use windrow_env::{AsyncEnvPool, RecvOptions, Reset};
/// use windrow_slab::Key;
///
/// let pool = AsyncEnvPool::of(&["CartPole-v1"; 4], 2)?;
/// pool.async_reset_send(&[0, 1, 2, 3].map(|env| Reset { env, seed: Some(env as u64) }))?;
/// drop(pool.async_reset_recv(RecvOptions::at_least(4))?);
/// // Acts in the environments that are ready, and does not wait for the others.
/// let mut envs = vec![0, 1, 2, 3];
/// for _ in 0..20 {
///     pool.async_step_and_maybe_reset_send_with(&envs, |_, mut actions| {
///         Ok(actions.get_mut(Key::<i64>::new(0))?.fill(1))
///     })?;
///     envs.clear();
///     for answer in pool.async_step_and_maybe_reset_recv(RecvOptions::at_least(2))?.iter() {
///         assert_eq!(answer.reward(), [1.0]);
///         envs.push(answer.env());
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A hand-over takes some microseconds, so a pool suits environments whose steps take longer, or
/// differ much in speed; [`Serial`](crate::Serial) steps quick ones. An environment may be a
/// process, such as `windrow_collect::Parallel` of one member.
///
/// A member may itself be a vector of `k` environments, as many in each: then member `m` has the
/// environments from `m * k` on, and gets commands and is received as a whole. Each environment has
/// memory for two observations and an action.
#[derive(Debug)]
pub struct AsyncEnvPool {
    spec: EnvSpec,
    action: Vec<LeafSpec>,
    members: usize,
    /// Environments of each member.
    rows: usize,
    queues: Arc<MemberQueues>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    interrupt: Interrupt,
    /// The command whose outputs a [`receive_all`](Self::receive_all) that was interrupted has
    /// left.
    interrupted: Mutex<Option<Command>>,
}

/// How many outputs a `_recv` call waits for, and how long.
#[derive(Debug, Clone, Copy)]
pub struct RecvOptions {
    min: usize,
    max: Option<usize>,
    timeout: Option<Duration>,
    env: Option<usize>,
}

impl RecvOptions {
    /// Waits for `min` outputs, and takes all others that are ready by then.
    #[must_use]
    pub fn at_least(min: usize) -> Self {
        Self {
            min,
            max: None,
            timeout: None,
            env: None,
        }
    }

    /// The output of member `env`.
    #[must_use]
    pub fn of(env: usize) -> Self {
        Self {
            env: Some(env),
            ..Self::at_least(1)
        }
    }

    /// Takes `max` outputs at most: the first that were ready.
    #[must_use]
    pub fn at_most(mut self, max: usize) -> Self {
        self.max = Some(max);
        self
    }

    /// Waits up to `timeout` for the largest number; an error if not even the smallest is ready by
    /// then.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl AsyncEnvPool {
    /// How long a pool that is dropped waits for environments to return.
    pub const PATIENCE: Duration = Duration::from_secs(5);

    /// Makes an environment of each factory, side by side, and a pool of them as [`new`](Self::new)
    /// does.
    ///
    /// # Errors
    /// The error of the first environment that could not be made, with its number, and the errors
    /// of [`new`](Self::new).
    pub fn of<F: EnvFactory + Sync>(factories: &[F], threads: usize) -> Result<Self, PoolError> {
        let make = |(env, factory): (usize, &F)| factory.build(1).map_err(|error| error.of(env));
        let made = std::thread::scope(|scope| {
            let making = |each| scope.spawn(move || make(each));
            let making: Vec<_> = factories.iter().enumerate().map(making).collect();
            let made = making.into_iter().enumerate().map(|(env, made)| {
                let panicked = |_| EnvError::failed("panicked while it was made").of(env);
                made.join().unwrap_or_else(|payload| Err(panicked(payload)))
            });
            made.collect::<Vec<_>>()
        });
        Self::new(made.into_iter().collect::<Result<_, _>>()?, threads)
    }

    /// A pool of `envs`, all alike, that `threads` step. With as many threads as members, each has
    /// one of its own.
    ///
    /// # Errors
    /// [`EnvError::Empty`]; [`PoolError::Unmade`] for one that observes or accepts something else
    /// than the first, [`PoolError::Unequal`] for a vector of another length,
    /// [`PoolError::Thread`].
    pub fn new(envs: Vec<Box<dyn VecEnv>>, threads: usize) -> Result<Self, PoolError> {
        let first = envs.first().filter(|first| first.num_envs() > 0);
        let first = first.ok_or(EnvError::Empty)?;
        let (mut spec, rows, members) = (first.spec().clone(), first.num_envs(), envs.len());
        let mut made = Members::with_capacity(members);
        for (member, envs) in envs.into_iter().enumerate() {
            let unlike = |error: EnvError| EnvError::Member(Box::new(error.of(member * rows)));
            spec.join(envs.spec()).map_err(unlike)?;
            let (expected, got) = (rows, envs.num_envs());
            if got != expected {
                return Err(PoolError::Unequal {
                    expected,
                    member,
                    got,
                });
            }
            made.push(Box::new(Member::new(member, envs)?));
        }
        let own = threads >= members;
        let queues = if own { members } else { 1 };
        let pool = Self {
            action: spec.action_leaves(),
            spec,
            members,
            rows,
            queues: Arc::new(MemberQueues::new(made, queues)),
            threads: Mutex::default(),
            interrupt: Interrupt::never(),
            interrupted: Mutex::default(),
        };
        // On the way out, dropping the pool ends the threads that were started.
        for thread in 0..threads.clamp(1, members) {
            pool.start(thread, if own { thread } else { 0 })?;
        }
        Ok(pool)
    }

    /// Checks `interrupt` while a call waits; its error ends the call as
    /// [`PoolError::Interrupted`], and outputs stay: those of [`step`](Self::step) and the like
    /// until the next command is sent.
    #[must_use]
    pub fn interrupt(mut self, interrupt: Interrupt) -> Self {
        self.interrupt = interrupt;
        self
    }

    fn start(&self, thread: usize, queue: usize) -> Result<(), PoolError> {
        let queues = Arc::clone(&self.queues);
        queues.count_thread();
        let serve = move || {
            queues.serve(queue);
            queues.discount_thread();
        };
        let name = format!("windrow-pool-{thread}");
        let started = Builder::new().name(name).spawn(serve).map_err(|error| {
            self.queues.discount_thread();
            PoolError::Thread(error)
        });
        self.handles().push(started?);
        Ok(())
    }

    fn handles(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        unpoisoned(self.threads.lock())
    }

    /// Observation and action of each environment.
    #[must_use]
    pub fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    /// Number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members
    }

    /// Number of environments, those of all members.
    #[must_use]
    pub fn num_envs(&self) -> usize {
        self.members * self.rows
    }

    /// Sends resets: each environment begins an episode, with its seed.
    ///
    /// # Errors
    /// [`PoolError::Busy`] and others, before anything was sent.
    pub fn async_reset_send(&self, resets: &[Reset]) -> Result<(), PoolError> {
        let (rows, envs) = (self.rows, self.num_envs());
        if let Some(&Reset { env, .. }) = resets.iter().find(|reset| reset.env >= envs) {
            return Err(PoolError::NoSuchEnv { env, envs });
        }
        // Each member once, where several of its environments are named.
        let firsts = resets.iter().enumerate().filter(move |&(at, reset)| {
            let mut before = resets[..at].iter();
            !before.any(|before| before.env / rows == reset.env / rows)
        });
        let members = firsts.map(move |(_, reset)| reset.env / rows);
        let mut held = self.hold(Command::Reset, members)?;
        for member in &mut held.members {
            member.resets.clear();
            let first = member.index * rows;
            for reset in resets
                .iter()
                .filter(|reset| reset.env / rows == member.index)
            {
                let env = reset.env;
                if member.resets.iter().any(|known| known.env == env - first) {
                    return Err(PoolError::Repeated { env });
                }
                let seed = reset.seed;
                member.resets.push(Reset {
                    env: env - first,
                    seed,
                });
            }
        }
        held.send(Command::Reset)
    }

    /// Sends a step to `members`, each with its rows of `actions`, in this order.
    ///
    /// # Errors
    /// [`PoolError::Busy`], [`PoolError::NotReset`] and others, before anything was sent.
    pub fn async_step_send(&self, members: &[usize], actions: Rows<'_>) -> Result<(), PoolError> {
        self.send_rows(Command::Step, members, actions)
    }

    /// As [`async_step_send`](Self::async_step_send); `fill` writes the actions of the n-th of
    /// `members`.
    ///
    /// # Errors
    /// The errors of [`async_step_send`](Self::async_step_send), and what `fill` returns.
    pub fn async_step_send_with(
        &self,
        members: &[usize],
        fill: impl FnMut(usize, RowsMut<'_>) -> Result<(), EnvError>,
    ) -> Result<(), PoolError> {
        self.send_with(Command::Step, members, fill)
    }

    /// As [`async_step_send`](Self::async_step_send); environments whose episode ends begin another
    /// one.
    ///
    /// # Errors
    /// The errors of [`async_step_send`](Self::async_step_send).
    pub fn async_step_and_maybe_reset_send(
        &self,
        members: &[usize],
        actions: Rows<'_>,
    ) -> Result<(), PoolError> {
        self.send_rows(Command::StepAndMaybeReset, members, actions)
    }

    /// As [`async_step_send_with`](Self::async_step_send_with); environments whose episode ends
    /// begin another one.
    ///
    /// # Errors
    /// The errors of [`async_step_send_with`](Self::async_step_send_with).
    pub fn async_step_and_maybe_reset_send_with(
        &self,
        members: &[usize],
        fill: impl FnMut(usize, RowsMut<'_>) -> Result<(), EnvError>,
    ) -> Result<(), PoolError> {
        self.send_with(Command::StepAndMaybeReset, members, fill)
    }

    /// The outputs of [`async_reset_send`](Self::async_reset_send).
    ///
    /// # Errors
    /// [`PoolError::Env`] and [`PoolError::Panicked`] as soon as an environment that may be
    /// received has failed: the outputs of the others stay. [`PoolError::NotSent`] and
    /// [`PoolError::NotSentTo`] where the wait would have no end, [`PoolError::TimedOut`],
    /// [`PoolError::Bounds`], [`PoolError::Interrupted`], [`PoolError::Closed`].
    pub fn async_reset_recv(&self, options: RecvOptions) -> Result<PoolOutput<'_>, PoolError> {
        self.receive(Command::Reset, options)
    }

    /// The outputs of [`async_step_send`](Self::async_step_send).
    ///
    /// # Errors
    /// As [`async_reset_recv`](Self::async_reset_recv).
    pub fn async_step_recv(&self, options: RecvOptions) -> Result<PoolOutput<'_>, PoolError> {
        self.receive(Command::Step, options)
    }

    /// The outputs of [`async_step_and_maybe_reset_send`](Self::async_step_and_maybe_reset_send).
    ///
    /// # Errors
    /// As [`async_reset_recv`](Self::async_reset_recv).
    pub fn async_step_and_maybe_reset_recv(
        &self,
        options: RecvOptions,
    ) -> Result<PoolOutput<'_>, PoolError> {
        self.receive(Command::StepAndMaybeReset, options)
    }

    /// The outputs of the command `called`.
    ///
    /// # Errors
    /// As [`async_reset_recv`](Self::async_reset_recv).
    pub fn receive(
        &self,
        called: Command,
        options: RecvOptions,
    ) -> Result<PoolOutput<'_>, PoolError> {
        if options.min == 0 || options.max.is_some_and(|max| max < options.min) {
            let (min, max) = (options.min, options.max);
            return Err(PoolError::Bounds { min, max });
        }
        let members = self.queues.receive(called, options, &self.interrupt)?;
        let queues = &self.queues;
        Ok(PoolOutput { queues, members })
    }

    /// The outputs of all members that have the command `called`. After a fault, the outputs of the
    /// others are dropped, so that all members can get new commands. After an interruption, they
    /// stay until the next command is sent, which waits for them and drops them.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_all(&self, called: Command) -> Result<PoolOutput<'_>, PoolError> {
        let pending = self.queues.count_pending(called);
        let received = self.receive(called, RecvOptions::at_least(pending.max(1)));
        match received {
            Ok(_) => *self.interrupted_command() = None,
            Err(PoolError::Interrupted(_)) => *self.interrupted_command() = Some(called),
            // The first fault is the error; further ones are dropped.
            Err(PoolError::Env(_) | PoolError::Panicked { .. }) => {
                let _ = self.drop_outputs(called);
            }
            Err(_) => {}
        }
        received
    }

    /// The command of [`receive_all`](Self::receive_all), or of [`step`](Self::step) and the like,
    /// if the last one was interrupted and its outputs are still there or to come.
    #[must_use]
    pub fn interrupted(&self) -> Option<Command> {
        *self.interrupted_command()
    }

    /// Waits for the outputs that are left of a call that was interrupted, and drops them. Sending
    /// a command begins with this.
    ///
    /// # Errors
    /// [`PoolError::Interrupted`] and [`PoolError::Closed`].
    pub fn drop_interrupted(&self) -> Result<(), PoolError> {
        self.interrupted()
            .map_or(Ok(()), |called| self.drop_outputs(called))
    }

    /// Receives and drops the outputs of all members that have the command `called`, and their
    /// faults.
    fn drop_outputs(&self, called: Command) -> Result<(), PoolError> {
        *self.interrupted_command() = Some(called);
        loop {
            match self.receive(called, RecvOptions::at_least(1)) {
                Ok(_) | Err(PoolError::Env(_) | PoolError::Panicked { .. }) => {}
                Err(PoolError::NotSent { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        *self.interrupted_command() = None;
        Ok(())
    }

    fn interrupted_command(&self) -> std::sync::MutexGuard<'_, Option<Command>> {
        unpoisoned(self.interrupted.lock())
    }

    /// All members, idle, with the outputs of their last commands.
    ///
    /// # Errors
    /// [`PoolError::Busy`] for one that is not idle; [`PoolError::Panicked`], and those of
    /// [`drop_interrupted`](Self::drop_interrupted).
    pub fn all(&self) -> Result<PoolOutput<'_>, PoolError> {
        self.hold(Command::Reset, 0..self.members)
    }

    /// Begins episodes, in some environments or in all, and waits for the first observations.
    ///
    /// # Errors
    /// As [`async_reset_send`](Self::async_reset_send) and
    /// [`async_reset_recv`](Self::async_reset_recv).
    pub fn reset(&self, resets: &[Reset]) -> Result<PoolOutput<'_>, PoolError> {
        // All are idle, so that only the members reset here will answer.
        drop(self.all()?);
        self.async_reset_send(resets)?;
        self.receive_all(Command::Reset)
    }

    /// Steps all environments, and waits for them.
    ///
    /// # Errors
    /// As [`async_step_send`](Self::async_step_send) and
    /// [`async_step_recv`](Self::async_step_recv).
    pub fn step(&self, actions: Rows<'_>) -> Result<PoolOutput<'_>, PoolError> {
        self.step_all(Command::Step, actions)
    }

    /// As [`step`](Self::step); environments whose episode ends begin another one.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn step_and_maybe_reset(&self, actions: Rows<'_>) -> Result<PoolOutput<'_>, PoolError> {
        self.step_all(Command::StepAndMaybeReset, actions)
    }

    fn step_all(&self, called: Command, actions: Rows<'_>) -> Result<PoolOutput<'_>, PoolError> {
        let held = self.hold(called, 0..self.members)?;
        self.fill(held, called, actions)?;
        self.receive_all(called)
    }

    fn send_rows(
        &self,
        called: Command,
        members: &[usize],
        actions: Rows<'_>,
    ) -> Result<(), PoolError> {
        let held = self.hold(called, members.iter().copied())?;
        self.fill(held, called, actions)
    }

    /// Copies actions to the members that are held, and sends them.
    fn fill(
        &self,
        held: PoolOutput<'_>,
        called: Command,
        actions: Rows<'_>,
    ) -> Result<(), PoolError> {
        let (expected, got) = (held.members.len() * self.rows, actions.envs());
        if got != expected {
            return Err(PoolError::Rows { expected, got });
        }
        held.filled(called, |place, mut to| {
            (0..self.rows).try_for_each(|row| {
                let from = actions.env(place * self.rows + row);
                copy(&self.action, from, to.env_mut(row))
            })
        })
    }

    fn send_with(
        &self,
        called: Command,
        members: &[usize],
        fill: impl FnMut(usize, RowsMut<'_>) -> Result<(), EnvError>,
    ) -> Result<(), PoolError> {
        self.hold(called, members.iter().copied())?
            .filled(called, fill)
    }

    fn hold(
        &self,
        called: Command,
        members: impl Iterator<Item = usize> + Clone,
    ) -> Result<PoolOutput<'_>, PoolError> {
        self.drop_interrupted()?;
        let members = self.queues.hold(called, members)?;
        let queues = &self.queues;
        Ok(PoolOutput { queues, members })
    }

    /// Ends the threads, which drop the environments, and waits at most `timeout` for them; outputs
    /// that were not received are lost. Every later call is [`PoolError::Closed`]. A second
    /// shutdown waits for threads that the first has left.
    ///
    /// # Errors
    /// [`PoolError::Stuck`]: an environment has not returned.
    pub fn shutdown(&self, timeout: Duration) -> Result<(), PoolError> {
        self.queues.close();
        let here = current().id();
        // An environment that drops its own pool must not wait for its own thread.
        if self
            .handles()
            .iter()
            .any(|thread| thread.thread().id() == here)
        {
            return Ok(());
        }
        let ended = self.queues.wait_for_end(timeout);
        ended.map_err(|envs| PoolError::Stuck { envs, timeout })?;
        for thread in self.handles().drain(..) {
            // A thread catches the panics of environments, so that it ends without one.
            let _ = thread.join();
        }
        Ok(())
    }
}

impl Drop for AsyncEnvPool {
    fn drop(&mut self) {
        // Threads that are left behind end when their environments return; a shutdown has waited
        // for them.
        if self.queues.is_open() {
            let _ = self.shutdown(Self::PATIENCE);
        }
    }
}
