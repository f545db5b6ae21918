//! The members of a pool on their way between the pool's user and the threads that step them (ADR
//! 0022).
//!
//! A member moves from one owner to the next: *idle*; *held* by the user, who writes its actions;
//! in a *queue*; with a thread; *done*; and held again by the user, who reads its output. Commands
//! move members and copy nothing. There is one queue for all threads, or one for each thread if
//! each member has a thread of its own.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use windrow_sync::{Interrupt, catch_panic, unpoisoned};

use super::RecvOptions;
use super::error::PoolError;
use super::member::{Command, Member};

/// Members that change their owner together.
pub(super) type Members = Vec<Box<Member>>;

#[derive(Debug)]
pub(super) struct MemberQueues {
    state: Mutex<PoolState>,
    /// Notified when a member is pushed, one for each queue.
    queued: Vec<Condvar>,
    /// Notified when a member is done or a thread has ended.
    moved: Condvar,
}

#[derive(Debug)]
struct PoolState {
    /// By member; `None` for those that are not idle.
    idle: Vec<Option<Box<Member>>>,
    /// By member: the command whose output was not received yet.
    pending: Vec<Option<Command>>,
    queues: Vec<VecDeque<Box<Member>>>,
    /// In the order in which they became done.
    done: VecDeque<Box<Member>>,
    /// Empty vectors for the next call, so that none is allocated.
    spare: Vec<Members>,
    is_closed: bool,
    threads: usize,
}

impl MemberQueues {
    pub(super) fn new(members: Members, queues: usize) -> Self {
        let count = members.len();
        Self {
            state: Mutex::new(PoolState {
                idle: members.into_iter().map(Some).collect(),
                pending: vec![None; count],
                queues: (0..queues)
                    .map(|_| VecDeque::with_capacity(count))
                    .collect(),
                done: VecDeque::with_capacity(count),
                spare: Vec::new(),
                is_closed: false,
                threads: 0,
            }),
            queued: (0..queues).map(|_| Condvar::new()).collect(),
            moved: Condvar::new(),
        }
    }

    /// No code of users runs under this lock.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        unpoisoned(self.state.lock())
    }

    /// Takes idle members, for the command `called`: all of them or none.
    pub(super) fn hold(
        &self,
        called: Command,
        members: impl Iterator<Item = usize> + Clone,
    ) -> Result<Members, PoolError> {
        let mut state = self.lock();
        for member in members.clone() {
            state.check(member, called)?;
        }
        let mut held = state.spare.pop().unwrap_or_default();
        for env in members {
            match state.idle[env].take() {
                Some(member) => held.push(member),
                None => {
                    drop(state);
                    self.give_back(held);
                    return Err(PoolError::Repeated { env });
                }
            }
        }
        Ok(held)
    }

    /// Queues `held` with the command `called`.
    pub(super) fn send(&self, called: Command, mut held: Members) -> Result<(), PoolError> {
        let mut state = self.lock();
        if state.is_closed {
            drop(state);
            discard(held);
            return Err(PoolError::Closed);
        }
        let one = state.queues.len() == 1;
        for mut member in held.drain(..) {
            member.command = called;
            state.pending[member.index] = Some(called);
            let queue = member.index % state.queues.len();
            state.queues[queue].push_back(member);
            if !one {
                self.queued[queue].notify_one();
            }
        }
        state.spare.push(held);
        drop(state);
        if one {
            self.queued[0].notify_all();
        }
        Ok(())
    }

    /// Makes held members idle again.
    pub(super) fn give_back(&self, mut held: Members) {
        let mut state = self.lock();
        if state.is_closed {
            drop(state);
            return discard(held);
        }
        for member in held.drain(..) {
            let index = member.index;
            state.idle[index] = Some(member);
        }
        state.spare.push(held);
    }

    /// Waits for members that are done with `called`.
    pub(super) fn receive(
        &self,
        called: Command,
        options: RecvOptions,
        interrupt: &Interrupt,
    ) -> Result<Members, PoolError> {
        let begin = Instant::now();
        let mut state = self.lock();
        loop {
            let left = options
                .timeout
                .map(|timeout| timeout.saturating_sub(begin.elapsed()));
            let is_late = left.is_some_and(|left| left.is_zero());
            let done = state.done_by(called, options, is_late)?;
            if let Some(count) = done {
                return Ok(state.take(called, options, count));
            }
            if let Some(timeout) = options.timeout.filter(|_| is_late) {
                let (min, got) = (options.min, state.count_done(called, options));
                return Err(PoolError::TimedOut {
                    called,
                    min,
                    got,
                    timeout,
                });
            }
            let slice = left.map_or(Interrupt::SLICE, |left| left.min(Interrupt::SLICE));
            let waited = self.moved.wait_timeout(state, slice);
            let (again, slice) = unpoisoned(waited);
            state = again;
            if slice.timed_out() {
                drop(state);
                interrupt.check()?;
                state = self.lock();
            }
        }
    }

    /// Number of members whose command `called` was not received yet.
    pub(super) fn count_pending(&self, called: Command) -> usize {
        let state = self.lock();
        state
            .pending
            .iter()
            .filter(|&&pending| pending == Some(called))
            .count()
    }

    /// One more thread will serve.
    pub(super) fn count_thread(&self) {
        self.lock().threads += 1;
    }

    /// A thread could not be started, or has ended.
    pub(super) fn discount_thread(&self) {
        self.lock().threads -= 1;
        self.moved.notify_all();
    }

    /// The loop of a thread: executes the commands of members in `queue` until the pool is closed,
    /// then drops them.
    pub(super) fn serve(&self, queue: usize) {
        loop {
            let mut state = self.lock();
            let mut member = loop {
                match state.queues[queue].pop_front() {
                    Some(member) => break member,
                    None if state.is_closed => return,
                    None => {
                        let waited = self.queued[queue].wait(state);
                        state = unpoisoned(waited);
                    }
                }
            };
            let is_closed = state.is_closed;
            drop(state);
            if !is_closed {
                member.execute();
            }
            let mut state = self.lock();
            if state.is_closed {
                state.pending[member.index] = None;
                drop(state);
                discard([member]);
            } else {
                state.done.push_back(member);
                drop(state);
                self.moved.notify_all();
            }
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.lock().is_closed
    }

    /// Ends the threads, which drop the members that the user does not hold.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let PoolState {
            idle,
            pending,
            queues,
            done,
            ..
        } = &mut *state;
        for member in idle
            .iter_mut()
            .filter_map(Option::take)
            .chain(done.drain(..))
        {
            let queue = member.index % queues.len();
            queues[queue].push_back(member);
        }
        for member in queues.iter().flatten() {
            pending[member.index] = None;
        }
        drop(state);
        self.queued.iter().for_each(Condvar::notify_all);
        self.moved.notify_all();
    }

    /// Waits up to `timeout` for the threads to end; an error has the members that are still
    /// stepping.
    pub(super) fn wait_for_end(&self, timeout: Duration) -> Result<(), Vec<usize>> {
        let waited = self
            .moved
            .wait_timeout_while(self.lock(), timeout, |state| state.threads > 0);
        let (state, _) = unpoisoned(waited);
        if state.threads == 0 {
            return Ok(());
        }
        let pending = state.pending.iter().enumerate();
        Err(pending
            .filter_map(|(env, pending)| pending.map(|_| env))
            .collect())
    }
}

impl PoolState {
    /// Checks that member `env` can get the command `called`.
    fn check(&self, env: usize, called: Command) -> Result<(), PoolError> {
        if self.is_closed {
            return Err(PoolError::Closed);
        }
        let envs = self.idle.len();
        let Some(place) = self.idle.get(env) else {
            return Err(PoolError::NoSuchEnv { env, envs });
        };
        let Some(member) = place else {
            return Err(match self.pending[env] {
                Some(pending) => PoolError::Busy {
                    env,
                    told: pending,
                    called,
                },
                None => PoolError::Held { env, called },
            });
        };
        if let Some(message) = member.panicked.clone() {
            return Err(PoolError::Panicked { env, message });
        }
        if called != Command::Reset && !member.is_reset {
            let has_failed = member.has_failed;
            return Err(PoolError::NotReset {
                env,
                has_failed,
                called,
            });
        }
        Ok(())
    }

    /// How many done members a call gets by its options; `None` if it has to wait for more.
    fn done_by(
        &mut self,
        called: Command,
        options: RecvOptions,
        is_late: bool,
    ) -> Result<Option<usize>, PoolError> {
        if self.is_closed {
            return Err(PoolError::Closed);
        }
        let pending = self
            .pending
            .iter()
            .filter(|&&pending| pending == Some(called));
        let pending = match options.env {
            None => pending.count(),
            Some(env) => match self.pending.get(env) {
                None => {
                    let envs = self.pending.len();
                    return Err(PoolError::NoSuchEnv { env, envs });
                }
                Some(&pending) if pending == Some(called) => 1,
                Some(&pending) => {
                    return Err(PoolError::NotSentTo {
                        env,
                        called,
                        told: pending,
                    });
                }
            },
        };
        if pending < options.min {
            let mut each = self.pending.iter().enumerate();
            let others = each.find_map(|(env, pending)| {
                Some((env, (*pending)?)).filter(|pending| pending.1 != called)
            });
            let min = options.min;
            return Err(PoolError::NotSent {
                called,
                min,
                told: pending,
                others,
            });
        }
        if let Some(fault) = self.take_fault(called, options) {
            return Err(fault);
        }
        let done = self.count_done(called, options);
        let most = options.max.unwrap_or(pending).min(pending);
        let is_enough = done >= options.min && (options.timeout.is_none() || is_late);
        Ok((done >= most || is_enough).then_some(done.min(most)))
    }

    fn count_done(&self, called: Command, options: RecvOptions) -> usize {
        let done = self.done.iter();
        done.filter(|member| options.matches(called, member))
            .count()
    }

    /// The error of a failed member, if one is done; the others stay done.
    fn take_fault(&mut self, called: Command, options: RecvOptions) -> Option<PoolError> {
        let failed = |member: &Member| options.matches(called, member) && member.fault.is_some();
        let place = self.done.iter().position(|member| failed(member))?;
        let mut member = self.done.remove(place)?;
        let (index, fault) = (member.index, member.fault.take());
        self.pending[index] = None;
        self.idle[index] = Some(member);
        fault
    }

    /// Takes the first `count` members that became done with `called`, and sorts them by number.
    fn take(&mut self, called: Command, options: RecvOptions, count: usize) -> Members {
        let mut taken = self.spare.pop().unwrap_or_default();
        for _ in 0..self.done.len() {
            let member = self.done.pop_front();
            let member = member.expect("The loop pops as many members as there were.");
            if taken.len() < count && options.matches(called, &member) {
                self.pending[member.index] = None;
                taken.push(member);
            } else {
                self.done.push_back(member);
            }
        }
        taken.sort_unstable_by_key(|member| member.index);
        taken
    }
}

impl RecvOptions {
    fn matches(&self, called: Command, member: &Member) -> bool {
        member.command == called && self.env.is_none_or(|env| env == member.index)
    }
}

/// Drops members, and catches panics of their environments.
fn discard(members: impl IntoIterator<Item = Box<Member>>) {
    for member in members {
        let _ = catch_panic(|| drop(member));
    }
}
