//! Where the members of a pool are, and the threads that step them.
//!
//! A member is in one of five places, and moves from one to the next: *idle*, *held* by the user who writes its actions, in a *queue*, with a
//! thread, *done*, and held again by the user who reads what it has answered. A command moves it and copies nothing. There is one queue
//! for all threads, or one for each where each member has a thread of its own.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use windrow_sync::{Interrupt, catch_panic, unpoisoned};

use super::Want;
use super::error::PoolError;
use super::member::{Command, Member};

/// Members, moved from place to place.
pub(super) type Members = Vec<Box<Member>>;

#[derive(Debug)]
pub(super) struct Board {
    state: Mutex<State>,
    /// Of each queue: something is in it.
    queued: Vec<Condvar>,
    /// A member is done, or a thread has ended.
    moved: Condvar,
}

#[derive(Debug)]
struct State {
    /// By number.
    idle: Vec<Option<Box<Member>>>,
    /// What each was told and has not been received from it.
    told: Vec<Option<Command>>,
    queues: Vec<VecDeque<Box<Member>>>,
    /// The first that was done is first.
    done: VecDeque<Box<Member>>,
    /// Empty, kept for the next call.
    spare: Vec<Members>,
    is_closed: bool,
    threads: usize,
}

impl Board {
    pub(super) fn new(members: Members, queues: usize) -> Self {
        let count = members.len();
        Self {
            state: Mutex::new(State {
                idle: members.into_iter().map(Some).collect(),
                told: vec![None; count],
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
    fn lock(&self) -> MutexGuard<'_, State> {
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

    /// Has the threads do what `called` says with `held`.
    pub(super) fn tell(&self, called: Command, mut held: Members) -> Result<(), PoolError> {
        let mut state = self.lock();
        if state.is_closed {
            drop(state);
            discard(held);
            return Err(PoolError::Closed);
        }
        let one = state.queues.len() == 1;
        for mut member in held.drain(..) {
            member.command = called;
            state.told[member.index] = Some(called);
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

    /// Puts members that somebody held back where they are idle.
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

    /// Waits for what members have answered to `called`.
    pub(super) fn receive(
        &self,
        called: Command,
        want: Want,
        interrupt: &Interrupt,
    ) -> Result<Members, PoolError> {
        let begin = Instant::now();
        let mut state = self.lock();
        loop {
            let left = want
                .timeout
                .map(|timeout| timeout.saturating_sub(begin.elapsed()));
            let is_late = left.is_some_and(|left| left.is_zero());
            let done = state.done_by(called, want, is_late)?;
            if let Some(count) = done {
                return Ok(state.take(called, want, count));
            }
            if let Some(timeout) = want.timeout.filter(|_| is_late) {
                let (min, got) = (want.min, state.count_done(called, want));
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

    /// How many were told `called`, and have not been received from.
    pub(super) fn count_told(&self, called: Command) -> usize {
        let state = self.lock();
        state
            .told
            .iter()
            .filter(|&&told| told == Some(called))
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

    /// What a thread does: has the members in `queue` obey, until the pool is closed. Then it drops them.
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
                member.obey();
            }
            let mut state = self.lock();
            if state.is_closed {
                state.told[member.index] = None;
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

    /// Has the threads drop the members that nobody holds, and end.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let State {
            idle,
            told,
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
            told[member.index] = None;
        }
        drop(state);
        self.queued.iter().for_each(Condvar::notify_all);
        self.moved.notify_all();
    }

    /// Waits at most `timeout` for the threads to end. Otherwise the members that have not returned.
    pub(super) fn wait_for_end(&self, timeout: Duration) -> Result<(), Vec<usize>> {
        let waited = self
            .moved
            .wait_timeout_while(self.lock(), timeout, |state| state.threads > 0);
        let (state, _) = unpoisoned(waited);
        if state.threads == 0 {
            return Ok(());
        }
        let told = state.told.iter().enumerate();
        Err(told.filter_map(|(env, told)| told.map(|_| env)).collect())
    }
}

impl State {
    /// Whether `env` can be told `called`.
    fn check(&self, env: usize, called: Command) -> Result<(), PoolError> {
        if self.is_closed {
            return Err(PoolError::Closed);
        }
        let envs = self.idle.len();
        let Some(place) = self.idle.get(env) else {
            return Err(PoolError::NoSuchEnv { env, envs });
        };
        let Some(member) = place else {
            return Err(match self.told[env] {
                Some(told) => PoolError::Busy { env, told, called },
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

    /// How many members `want` gets of those that have answered to `called`; `None` when it waits for more.
    fn done_by(
        &mut self,
        called: Command,
        want: Want,
        is_late: bool,
    ) -> Result<Option<usize>, PoolError> {
        if self.is_closed {
            return Err(PoolError::Closed);
        }
        let told = self.told.iter().filter(|&&told| told == Some(called));
        let told = match want.env {
            None => told.count(),
            Some(env) => match self.told.get(env) {
                None => {
                    let envs = self.told.len();
                    return Err(PoolError::NoSuchEnv { env, envs });
                }
                Some(&told) if told == Some(called) => 1,
                Some(&told) => return Err(PoolError::NotSentTo { env, called, told }),
            },
        };
        if told < want.min {
            let mut each = self.told.iter().enumerate();
            let others =
                each.find_map(|(env, told)| Some((env, (*told)?)).filter(|told| told.1 != called));
            let min = want.min;
            return Err(PoolError::NotSent {
                called,
                min,
                told,
                others,
            });
        }
        if let Some(fault) = self.take_fault(called, want) {
            return Err(fault);
        }
        let done = self.count_done(called, want);
        let most = want.max.unwrap_or(told).min(told);
        let is_enough = done >= want.min && (want.timeout.is_none() || is_late);
        Ok((done >= most || is_enough).then_some(done.min(most)))
    }

    fn count_done(&self, called: Command, want: Want) -> usize {
        let done = self.done.iter();
        done.filter(|member| want.means(called, member)).count()
    }

    /// What has failed; the others stay where they are.
    fn take_fault(&mut self, called: Command, want: Want) -> Option<PoolError> {
        let failed = |member: &Member| want.means(called, member) && member.fault.is_some();
        let place = self.done.iter().position(|member| failed(member))?;
        let mut member = self.done.remove(place)?;
        let (index, fault) = (member.index, member.fault.take());
        self.told[index] = None;
        self.idle[index] = Some(member);
        fault
    }

    /// Takes `count` members that have answered to `called`, those first that were done first, and has them in order.
    fn take(&mut self, called: Command, want: Want, count: usize) -> Members {
        let mut taken = self.spare.pop().unwrap_or_default();
        for _ in 0..self.done.len() {
            let Some(member) = self.done.pop_front() else {
                break;
            };
            if taken.len() < count && want.means(called, &member) {
                self.told[member.index] = None;
                taken.push(member);
            } else {
                self.done.push_back(member);
            }
        }
        taken.sort_unstable_by_key(|member| member.index);
        taken
    }
}

impl Want {
    fn means(&self, called: Command, member: &Member) -> bool {
        member.command == called && self.env.is_none_or(|env| env == member.index)
    }
}

/// Drops members. A panic of an environment's destructor ends there.
fn discard(members: impl IntoIterator<Item = Box<Member>>) {
    for member in members {
        let _ = catch_panic(|| drop(member));
    }
}
