//! Ledgers and policies that fail, burst or wait at a chosen call.
#![allow(dead_code, reason = "each test target uses some of it")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use windrow_env::testing::LedgerEnv;
use windrow_env::{Env, EnvError, EnvSpec, Outcome};
use windrow_policy::{Binding, Policy, PolicyError, PolicyIn, PolicySpec, Weights};
use windrow_slab::{Row, RowMut, RowsMut};

use super::frames::MAX_LENGTH;
use super::stamp::Stamp;

/// The call that goes wrong, counted from 1 over the life of one environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Reset(u64),
    Step(u64),
}

/// What goes wrong in it.
#[derive(Debug, Clone)]
pub(crate) enum How {
    Error,
    Panic,
    /// Nothing, but the call does not return before the gate is open.
    Wait(Gate),
}

/// What goes wrong, and how often it still may: copies share that number.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) at: At,
    pub(crate) how: How,
    times: usize,
    left: Arc<AtomicUsize>,
}

impl Fault {
    pub(crate) fn new(at: At, how: How, times: usize) -> Self {
        Self {
            at,
            how,
            times,
            left: Arc::new(AtomicUsize::new(times)),
        }
    }

    /// How often it still may go wrong.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }

    /// Whether something is still to go wrong: all of it, or, where there is no end to it, the first.
    fn is_due(&self) -> bool {
        match self.times {
            usize::MAX => self.left() == self.times,
            _ => self.left() > 0,
        }
    }

    fn strike(&self, now: At) -> Result<(), String> {
        let burning = |left: usize| left.checked_sub(1);
        if now != self.at
            || self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, burning)
                .is_err()
        {
            return Ok(());
        }
        match &self.how {
            How::Error => Err(format!("made to fail in {now:?}")),
            How::Panic => panic!("made to panic in {now:?}"),
            How::Wait(gate) => {
                gate.pass();
                Ok(())
            }
        }
    }
}

/// Holds whoever comes until it is opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Debug, Default)]
struct GateState {
    open: bool,
    came: usize,
}

impl Gate {
    fn pass(&self) {
        let (state, bell) = &*self.0;
        let mut state = state.lock().unwrap();
        state.came += 1;
        bell.notify_all();
        drop(bell.wait_while(state, |state| !state.open).unwrap());
    }

    pub(crate) fn open(&self) {
        let (state, bell) = &*self.0;
        state.lock().unwrap().open = true;
        bell.notify_all();
    }

    /// Whether somebody has come so far.
    pub(crate) fn has_somebody(&self) -> bool {
        self.0.0.lock().unwrap().came > 0
    }

    /// Waits until somebody stands before the gate.
    pub(crate) fn await_somebody(&self) {
        let (state, bell) = &*self.0;
        let state = state.lock().unwrap();
        drop(bell.wait_while(state, |state| state.came == 0).unwrap());
    }
}

/// A ledger with a fault, if it is given one.
#[derive(Debug, Clone)]
pub(crate) struct Faulty {
    inner: LedgerEnv,
    fault: Option<Fault>,
    /// Faults of others, which this one does not run away from.
    beside: Vec<Fault>,
    resets: u64,
    steps: u64,
}

impl Faulty {
    pub(crate) fn new(fault: Option<Fault>, step_time: Duration) -> Self {
        Self {
            inner: LedgerEnv::from_seed()
                .with_max_length(MAX_LENGTH)
                .with_step_time(step_time),
            fault,
            beside: Vec::new(),
            resets: 0,
            steps: 0,
        }
    }

    /// Steps slowly for as long as one of `faults` is due: whoever has it may have to wait for a processor.
    pub(crate) fn beside(mut self, faults: Vec<Fault>) -> Self {
        self.beside = faults;
        self
    }

    fn strike(&self, now: At) -> Result<(), EnvError> {
        match &self.fault {
            Some(fault) => fault.strike(now).map_err(EnvError::failed),
            None => Ok(()),
        }
    }
}

impl Env for Faulty {
    fn spec(&self) -> &EnvSpec {
        self.inner.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.resets += 1;
        self.strike(At::Reset(self.resets))?;
        self.inner.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.steps += 1;
        if self.beside.iter().any(Fault::is_due) {
            thread::sleep(Duration::from_millis(1));
        }
        // What was written before the fault must never be seen.
        let outcome = self.inner.step(action, obs.reborrow())?;
        self.strike(At::Step(self.steps))?;
        Ok(outcome)
    }
}

/// A policy with a fault: its steps are counted, all rows at once.
#[derive(Debug, Clone)]
pub(crate) struct FaultyPolicy {
    inner: Stamp,
    fault: Option<Fault>,
    steps: u64,
}

impl FaultyPolicy {
    pub(crate) fn new(fault: Option<Fault>) -> Self {
        Self {
            inner: Stamp::default(),
            fault,
            steps: 0,
        }
    }
}

impl Policy for FaultyPolicy {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        self.inner.bind(binding)
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        self.steps += 1;
        self.inner.act(input, out)?;
        match &self.fault {
            Some(fault) => fault
                .strike(At::Step(self.steps))
                .map_err(PolicyError::failed),
            None => Ok(()),
        }
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.inner.load(weights)
    }
}
