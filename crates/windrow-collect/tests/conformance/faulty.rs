//! Ledgers and policies that fail, burst or wait at a chosen call.
#![allow(dead_code, reason = "each test target uses some of it")]

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windrow_collect::Interrupt;
use windrow_env::testing::LedgerEnv;
use windrow_env::{Env, EnvError, EnvSpec, Outcome};
use windrow_policy::{Binding, Policy, PolicyError, PolicyIn, PolicySpec, Weights};
use windrow_slab::{Row, RowMut, RowsMut};

use super::frames::MAX_LENGTH;
use super::stamp::Stamp;

/// Lines of a file, which all processes of a test can write and read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Notes {
    path: PathBuf,
    /// Removes the file with the last copy in the test's own process.
    #[serde(skip)]
    _file: Option<Arc<tempfile::TempPath>>,
}

impl Default for Notes {
    fn default() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        Self {
            path: file.to_path_buf(),
            _file: Some(Arc::new(file)),
        }
    }
}

impl Notes {
    pub(crate) fn add(&self, line: impl std::fmt::Display) {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().append(true).open(&self.path);
        // One call, so that lines of several processes do not mix.
        file.unwrap()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.path).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.lines().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        std::fs::metadata(&self.path).unwrap().len() == 0
    }

    pub(crate) fn await_lines(&self, lines: usize) {
        while self.count() < lines {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The call that goes wrong, counted from 1 over the life of one environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum At {
    Reset(u64),
    Step(u64),
}

/// What goes wrong in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum How {
    Error,
    /// An error with this message.
    Says(String),
    Panic,
    /// Nothing, but the call does not return before the gate is open.
    Wait(Gate),
    /// An error, once so many have come to theirs.
    Together(Notes, usize),
    /// The process ends, with this status.
    Exit(i32),
    /// The process ends by a signal of its own.
    Abort,
}

/// What goes wrong, and how often it still may: copies share that number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) at: At,
    pub(crate) how: How,
    times: usize,
    struck: Notes,
}

impl Fault {
    pub(crate) fn new(at: At, how: How, times: usize) -> Self {
        Self {
            at,
            how,
            times,
            struck: Notes::default(),
        }
    }

    /// How often it still may go wrong.
    pub(crate) fn left(&self) -> usize {
        self.times.saturating_sub(self.struck.count())
    }

    /// Whether something is still to go wrong: all of it, or, where there is no end to it, the
    /// first.
    fn is_due(&self) -> bool {
        match self.times {
            usize::MAX => self.struck.is_empty(),
            _ => self.left() > 0,
        }
    }

    fn strike(&self, now: At) -> Result<(), String> {
        if now != self.at || self.left() == 0 {
            return Ok(());
        }
        self.struck.add(format_args!("{now:?}"));
        match &self.how {
            How::Error => Err(format!("made to fail in {now:?}")),
            How::Says(message) => Err(message.clone()),
            How::Panic => panic!("made to panic in {now:?}"),
            How::Wait(gate) => {
                gate.pass();
                Ok(())
            }
            How::Together(came, all) => {
                came.add("here");
                came.await_lines(*all);
                Err(format!("made to fail in {now:?}"))
            }
            How::Exit(status) => {
                eprintln!("made to exit in {now:?}");
                std::process::exit(*status)
            }
            How::Abort => {
                eprintln!("made to abort in {now:?}");
                std::process::abort()
            }
        }
    }
}

/// Holds whoever comes until it is opened.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Gate {
    came: Notes,
    open: Notes,
}

impl Gate {
    fn pass(&self) {
        self.came.add(std::process::id());
        self.open.await_lines(1);
    }

    pub(crate) fn open(&self) {
        self.open.add("open");
    }

    /// Whether somebody has come so far.
    pub(crate) fn has_somebody(&self) -> bool {
        !self.came.is_empty()
    }

    /// Interrupts waits while somebody stands before the gate.
    pub(crate) fn interrupt(&self) -> Interrupt {
        let gate = self.clone();
        Interrupt::when(move || gate.has_somebody() && gate.open.is_empty())
    }

    /// Waits until somebody stands before the gate; the process that does.
    pub(crate) fn await_somebody(&self) -> u32 {
        self.came.await_lines(1);
        self.came.lines()[0].parse().unwrap()
    }
}

/// Sends a signal to a process.
#[cfg(target_os = "linux")]
pub(crate) fn signal(name: &str, process: u32) {
    let kill = format!("kill -s {name} {process}");
    let sent = std::process::Command::new("sh")
        .args(["-c", &kill])
        .status();
    assert!(sent.unwrap().success(), "{kill}");
}

/// How to make a ledger with a fault, as a value that other processes can be told.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Makes {
    pub(crate) fault: Option<Fault>,
    /// Faults of others, which this one does not run away from.
    pub(crate) beside: Vec<Fault>,
    pub(crate) step_time: Duration,
    /// Whether frames have text.
    pub(crate) text: bool,
    /// What happens in place of making one.
    pub(crate) fails: Option<How>,
    /// Those that are made before, as `made` counts them.
    pub(crate) spared: usize,
    /// Notes its process as each is made.
    pub(crate) made: Option<Notes>,
    /// Notes that each is dropped.
    pub(crate) dropped: Option<Notes>,
    /// Panics as it is dropped.
    pub(crate) bursts: bool,
    /// What goes wrong as it is dropped.
    pub(crate) ends: Option<How>,
}

impl Makes {
    pub(crate) fn make(&self) -> Result<Faulty, EnvError> {
        let made = self.made.as_ref().map_or(0, Notes::count);
        match &self.fails {
            _ if made < self.spared => {}
            None => {}
            Some(How::Error) => return Err(EnvError::failed("no such world")),
            Some(How::Says(message)) => return Err(EnvError::failed(message.clone())),
            Some(How::Exit(status)) => {
                eprintln!("the world ended");
                std::process::exit(*status)
            }
            Some(How::Wait(gate)) => gate.pass(),
            Some(_) => panic!("the world burst"),
        }
        if let Some(made) = &self.made {
            made.add(std::process::id());
        }
        let inner = LedgerEnv::from_seed()
            .with_max_length(MAX_LENGTH)
            .with_step_time(self.step_time);
        Ok(Faulty {
            inner: match self.text {
                true => inner.with_text(),
                false => inner,
            },
            makes: self.clone(),
            resets: 0,
            steps: 0,
        })
    }
}

/// A ledger with a fault, if it is given one.
#[derive(Debug)]
pub(crate) struct Faulty {
    inner: LedgerEnv,
    makes: Makes,
    resets: u64,
    steps: u64,
}

impl Faulty {
    pub(crate) fn new(fault: Option<Fault>, step_time: Duration) -> Self {
        let makes = Makes {
            fault,
            step_time,
            ..Makes::default()
        };
        makes.make().unwrap()
    }

    fn strike(&self, now: At) -> Result<(), EnvError> {
        match &self.makes.fault {
            Some(fault) => fault.strike(now).map_err(EnvError::failed),
            None => Ok(()),
        }
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        if let Some(dropped) = &self.makes.dropped {
            dropped.add(std::process::id());
        }
        assert!(!self.makes.bursts, "made to panic in drop");
        if let Some(how) = self.makes.ends.take() {
            let end = Fault::new(At::Reset(0), how, 1);
            end.strike(At::Reset(0)).unwrap();
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
        // Whoever has a fault may have to wait for a processor.
        if self.makes.beside.iter().any(Fault::is_due) {
            thread::sleep(Duration::from_millis(1));
        }
        // What was written before the fault must never be seen.
        let outcome = self.inner.step(action, obs.reborrow())?;
        self.strike(At::Step(self.steps))?;
        Ok(outcome)
    }
}

/// How to make a policy with a fault.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Acts {
    /// The worker that has the fault, and the fault.
    pub(crate) fault: Option<(usize, Fault)>,
    /// Notes each step.
    pub(crate) steps: Option<Notes>,
    /// Whether worker `n` begins with the weights `n`.
    pub(crate) own_weights: bool,
    /// Panics in place of making one.
    pub(crate) fails: bool,
}

impl Acts {
    pub(crate) fn make(&self, worker: usize) -> FaultyPolicy {
        assert!(!self.fails, "the policy burst");
        let fault = self.fault.as_ref().filter(|fault| fault.0 == worker);
        let mut inner = Stamp::default();
        if self.own_weights {
            inner.load(&super::stamp::weights(worker as f32)).unwrap();
        }
        FaultyPolicy {
            inner,
            fault: fault.map(|fault| fault.1.clone()),
            noted: self.steps.clone(),
            steps: 0,
        }
    }
}

/// A policy with a fault: its steps are counted, all rows at once.
#[derive(Debug, Clone)]
pub(crate) struct FaultyPolicy {
    inner: Stamp,
    fault: Option<Fault>,
    noted: Option<Notes>,
    steps: u64,
}

impl Policy for FaultyPolicy {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        self.inner.bind(binding)
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        self.steps += 1;
        if let Some(steps) = &self.noted {
            steps.add(self.steps);
        }
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

    fn weights(&self) -> Weights {
        self.inner.weights()
    }
}
