//! Environments that run free: each is told what to do, and whoever waits gets the answers that are there.

mod board;
mod error;
mod member;
mod received;

use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, current};
use std::time::Duration;

use windrow_slab::{LeafSpec, Rows, RowsMut};
use windrow_sync::{Interrupt, unpoisoned};

use crate::joined::copy;
use crate::{EnvError, EnvFactory, EnvSpec, Reset, VecEnv};
use board::{Board, Members};
pub use error::PoolError;
pub use member::Command;
use member::Member;
pub use received::{Answer, Received};

/// N environments that M threads step, each on request: results are received in the order in which they are ready.
///
/// A call that ends with `_send` tells some environments what to do and returns at once; the one that ends with `_recv` waits for as many
/// answers as it [wants](Want). An environment is told one thing at a time. A call out of order is an error that says which call was
/// expected, and of which environment. All calls may come from any thread.
///
/// ```
/// use windrow_env::{AsyncEnvPool, Reset, Want};
/// use windrow_slab::Key;
///
/// let pool = AsyncEnvPool::of(&["CartPole-v1"; 4], 2)?;
/// pool.async_reset_send(&[0, 1, 2, 3].map(|env| Reset { env, seed: Some(env as u64) }))?;
/// drop(pool.async_reset_recv(Want::at_least(4))?);
/// // Acts in whichever environments are ready, and does not wait for the others.
/// let mut envs = vec![0, 1, 2, 3];
/// for _ in 0..20 {
///     pool.async_step_and_maybe_reset_send_with(&envs, |_, mut actions| {
///         Ok(actions.get_mut(Key::<i64>::new(0))?.fill(1))
///     })?;
///     envs.clear();
///     for answer in pool.async_step_and_maybe_reset_recv(Want::at_least(2))?.iter() {
///         assert_eq!(answer.reward(), [1.0]);
///         envs.push(answer.env());
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A hand-over takes some microseconds, so this is for environments that take longer than that, or for those of very different speed;
/// [`Serial`](crate::Serial) steps quick ones. An environment may be a process, such as `windrow_collect::Parallel` of one member.
///
/// A member may itself be a vector of `k` environments, as many in each: then member `m` has the environments from `m * k` on, and is told
/// and received as a whole. Memory is that of two observations and an action for each environment, whatever is sent.
#[derive(Debug)]
pub struct AsyncEnvPool {
    spec: EnvSpec,
    action: Vec<LeafSpec>,
    members: usize,
    /// Environments of each member.
    rows: usize,
    board: Arc<Board>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    interrupt: Interrupt,
}

/// How many answers a call waits for, and how long.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    min: usize,
    max: Option<usize>,
    timeout: Option<Duration>,
    env: Option<usize>,
}

impl Want {
    /// Waits for `min` answers, and takes what else is there by then.
    #[must_use]
    pub fn at_least(min: usize) -> Self {
        Self {
            min,
            max: None,
            timeout: None,
            env: None,
        }
    }

    /// The answer of member `env`.
    #[must_use]
    pub fn of(env: usize) -> Self {
        Self {
            env: Some(env),
            ..Self::at_least(1)
        }
    }

    /// Takes no more than `max`: those that were done first.
    #[must_use]
    pub fn at_most(mut self, max: usize) -> Self {
        self.max = Some(max);
        self
    }

    /// Waits so long for the largest number, and is an error when there is not even the smallest by then.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl AsyncEnvPool {
    /// How long a pool that is dropped waits for environments to return.
    pub const PATIENCE: Duration = Duration::from_secs(5);

    /// Makes an environment of each factory, side by side, and a pool of them as [`new`](Self::new) does.
    ///
    /// # Errors
    /// The error of the first that could not be made, with its number; and those of [`new`](Self::new).
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

    /// A pool of `envs`, all alike, that `threads` step. With as many threads as members, each has one of its own.
    ///
    /// # Errors
    /// [`EnvError::Empty`]; [`PoolError::Unmade`] for one that observes or accepts something else than the first,
    /// [`PoolError::Unequal`] for a vector of another length, [`PoolError::Thread`].
    pub fn new(envs: Vec<Box<dyn VecEnv>>, threads: usize) -> Result<Self, PoolError> {
        let first = envs.first().ok_or(EnvError::Empty)?;
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
            board: Arc::new(Board::new(made, queues)),
            threads: Mutex::default(),
            interrupt: Interrupt::never(),
        };
        // On the way out, dropping the pool ends the threads that were started.
        for thread in 0..threads.clamp(1, members) {
            pool.start(thread, if own { thread } else { 0 })?;
        }
        Ok(pool)
    }

    /// Checks `interrupt` while a call waits for answers, which stay; its error ends the call as [`PoolError::Interrupted`].
    #[must_use]
    pub fn interrupt(mut self, interrupt: Interrupt) -> Self {
        self.interrupt = interrupt;
        self
    }

    fn start(&self, thread: usize, queue: usize) -> Result<(), PoolError> {
        let board = Arc::clone(&self.board);
        board.count_thread();
        let serve = move || {
            board.serve(queue);
            board.discount_thread();
        };
        let name = format!("windrow-pool-{thread}");
        let started = Builder::new().name(name).spawn(serve).map_err(|error| {
            self.board.discount_thread();
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

    /// Has environments begin an episode, each with its seed.
    ///
    /// # Errors
    /// [`PoolError::Busy`] and others, before anything was sent.
    pub fn async_reset_send(&self, resets: &[Reset]) -> Result<(), PoolError> {
        let rows = self.rows;
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

    /// Has `members` take a step, each by its rows of `actions`, which follow each other in this order.
    ///
    /// # Errors
    /// [`PoolError::Busy`], [`PoolError::NotReset`] and others, before anything was sent.
    pub fn async_step_send(&self, members: &[usize], actions: Rows<'_>) -> Result<(), PoolError> {
        self.send_rows(Command::Step, members, actions)
    }

    /// As [`async_step_send`](Self::async_step_send); `fill` writes the actions of the n-th of `members`.
    ///
    /// # Errors
    /// As there, and what `fill` returns.
    pub fn async_step_send_with(
        &self,
        members: &[usize],
        fill: impl FnMut(usize, RowsMut<'_>) -> Result<(), EnvError>,
    ) -> Result<(), PoolError> {
        self.send_with(Command::Step, members, fill)
    }

    /// As [`async_step_send`](Self::async_step_send); environments whose episode ends begin another one.
    ///
    /// # Errors
    /// As there.
    pub fn async_step_and_maybe_reset_send(
        &self,
        members: &[usize],
        actions: Rows<'_>,
    ) -> Result<(), PoolError> {
        self.send_rows(Command::StepAndMaybeReset, members, actions)
    }

    /// As [`async_step_send_with`](Self::async_step_send_with); environments whose episode ends begin another one.
    ///
    /// # Errors
    /// As there.
    pub fn async_step_and_maybe_reset_send_with(
        &self,
        members: &[usize],
        fill: impl FnMut(usize, RowsMut<'_>) -> Result<(), EnvError>,
    ) -> Result<(), PoolError> {
        self.send_with(Command::StepAndMaybeReset, members, fill)
    }

    /// The answers to [`async_reset_send`](Self::async_reset_send).
    ///
    /// # Errors
    /// [`PoolError::Env`] and [`PoolError::Panicked`] as soon as an environment that may be received has failed: the answers of the
    /// others stay. [`PoolError::NotSent`] and [`PoolError::NotSentTo`] where the wait would be for ever, [`PoolError::TimedOut`],
    /// [`PoolError::Bounds`], [`PoolError::Interrupted`], [`PoolError::Closed`].
    pub fn async_reset_recv(&self, want: Want) -> Result<Received<'_>, PoolError> {
        self.receive(Command::Reset, want)
    }

    /// The answers to [`async_step_send`](Self::async_step_send).
    ///
    /// # Errors
    /// As [`async_reset_recv`](Self::async_reset_recv).
    pub fn async_step_recv(&self, want: Want) -> Result<Received<'_>, PoolError> {
        self.receive(Command::Step, want)
    }

    /// The answers to [`async_step_and_maybe_reset_send`](Self::async_step_and_maybe_reset_send).
    ///
    /// # Errors
    /// As [`async_reset_recv`](Self::async_reset_recv).
    pub fn async_step_and_maybe_reset_recv(&self, want: Want) -> Result<Received<'_>, PoolError> {
        self.receive(Command::StepAndMaybeReset, want)
    }

    /// The answers to `called`.
    ///
    /// # Errors
    /// As [`async_reset_recv`](Self::async_reset_recv).
    pub fn receive(&self, called: Command, want: Want) -> Result<Received<'_>, PoolError> {
        if want.min == 0 || want.max.is_some_and(|max| max < want.min) {
            let (min, max) = (want.min, want.max);
            return Err(PoolError::Bounds { min, max });
        }
        let members = self.board.receive(called, want, &self.interrupt)?;
        let board = &self.board;
        Ok(Received { board, members })
    }

    /// The answers of all that were told `called`. After a fault, those of the others are dropped, so that all may be told something
    /// else.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_all(&self, called: Command) -> Result<Received<'_>, PoolError> {
        let told = self.board.count_told(called);
        let received = self.receive(called, Want::at_least(told.max(1)));
        let mut left = received.is_err();
        while left {
            let next = self.receive(called, Want::at_least(1));
            // Further faults are of no use: the first is told.
            left = matches!(
                next,
                Ok(_) | Err(PoolError::Env(_) | PoolError::Panicked { .. })
            );
        }
        received
    }

    /// All members as their last answers have left them, none of which does anything.
    ///
    /// # Errors
    /// [`PoolError::Busy`] for one that does; [`PoolError::Panicked`], [`PoolError::Closed`].
    pub fn all(&self) -> Result<Received<'_>, PoolError> {
        self.hold(Command::Reset, 0..self.members)
    }

    /// Begins episodes, in some environments or in all, and waits for the first observations.
    ///
    /// # Errors
    /// As [`async_reset_send`](Self::async_reset_send) and [`async_reset_recv`](Self::async_reset_recv).
    pub fn reset(&self, resets: &[Reset]) -> Result<Received<'_>, PoolError> {
        // None but those that are told here will answer.
        drop(self.all()?);
        self.async_reset_send(resets)?;
        self.receive_all(Command::Reset)
    }

    /// Steps all environments, and waits for them.
    ///
    /// # Errors
    /// As [`async_step_send`](Self::async_step_send) and [`async_step_recv`](Self::async_step_recv).
    pub fn step(&self, actions: Rows<'_>) -> Result<Received<'_>, PoolError> {
        self.step_all(Command::Step, actions)
    }

    /// As [`step`](Self::step); environments whose episode ends begin another one.
    ///
    /// # Errors
    /// As there.
    pub fn step_and_maybe_reset(&self, actions: Rows<'_>) -> Result<Received<'_>, PoolError> {
        self.step_all(Command::StepAndMaybeReset, actions)
    }

    fn step_all(&self, called: Command, actions: Rows<'_>) -> Result<Received<'_>, PoolError> {
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
        held: Received<'_>,
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
    ) -> Result<Received<'_>, PoolError> {
        let members = self.board.hold(called, members)?;
        let board = &self.board;
        Ok(Received { board, members })
    }

    /// Ends the threads, which drop the environments, and waits at most `timeout` for them; answers that nobody has received are lost.
    /// Every later call is [`PoolError::Closed`]. A second shutdown waits for what the first has left.
    ///
    /// # Errors
    /// [`PoolError::Stuck`]: an environment has not returned.
    pub fn shutdown(&self, timeout: Duration) -> Result<(), PoolError> {
        self.board.close();
        let here = current().id();
        // An environment that drops its own pool waits for nobody.
        if self
            .handles()
            .iter()
            .any(|thread| thread.thread().id() == here)
        {
            return Ok(());
        }
        let ended = self.board.wait_for_end(timeout);
        ended.map_err(|envs| PoolError::Stuck { envs, timeout })?;
        for thread in self.handles().drain(..) {
            // It catches the panics of environments.
            let _ = thread.join();
        }
        Ok(())
    }
}

impl Drop for AsyncEnvPool {
    fn drop(&mut self) {
        // Threads that are left behind end when their environments return; a shutdown has waited for them.
        if self.board.is_open() {
            let _ = self.shutdown(Self::PATIENCE);
        }
    }
}
