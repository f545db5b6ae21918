//! Faults at random moments, more of them than the ordinary tests have time for.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::{
    cargo,
    package::{self, Profile},
    process::{self, Show},
    python,
    report::{Report, Verdict},
};

/// The fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// What remote policies send is lost, repeated, changed or late, and strangers knock at their server
    Network,
    /// A process is killed that writes a replay buffer on disk, and checkpoints of it
    Replay,
    /// Worker processes of collectors are killed, stopped, or end by themselves
    Workers,
}

/// How many workers die in a complete run of the tests, and how many of the Python package's.
const WORKERS: u32 = 200;
const PYTHON_WORKERS: u32 = 50;

/// The program in which those of the Python package die, and where it is.
const PYTHON_PROGRAM: &str = "kills";
const PYTHON_FOLDER: &str = "python/tests";

/// The test in which they die.
const WORKERS_TEST: &str = "kills";

/// The variable that says how often.
const VARIABLE: &str = "WINDROW_KILLS";

impl Fault {
    /// The test that makes it happen.
    fn test(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Replay => "kill",
            Self::Workers => WORKERS_TEST,
        }
    }
}

/// Whether a test target makes faults, so many of them that they are a step of their own.
pub(crate) fn is_step(test: &str) -> bool {
    test == WORKERS_TEST
}

/// Has worker processes die, as a step of `report`.
pub(crate) fn add_to(report: &mut Report, root: &Path) {
    report.step("deaths of worker processes", || {
        Ok(match run(root, Fault::Workers, WORKERS)? {
            true => Verdict::Passed,
            false => Verdict::Failed(None, "a death of a worker did harm".to_owned()),
        })
    });
}

/// Has worker processes of the Python package die, which is installed beside the interpreter `python`.
///
/// # Errors
/// When the interpreter cannot be started.
pub(crate) fn of_python(root: &Path, python: &Path) -> Result<Verdict> {
    Ok(match kill(root, python, PYTHON_WORKERS)? {
        true => Verdict::Passed,
        false => Verdict::Failed(None, "a death of a worker did harm".to_owned()),
    })
}

/// Builds the Python package, and runs what [`run`] does with its collectors.
///
/// # Errors
/// When the package cannot be built, or `fault` does not concern it.
pub(crate) fn run_python(root: &Path, fault: Fault, times: u32) -> Result<bool> {
    if fault != Fault::Workers {
        bail!("--python: expected the fault `workers`, the only one that concerns Python alone");
    }
    let python = python::environment(root)?;
    package::build(root, &python, Profile::Dev)?;
    kill(root, &python, times)
}

fn kill(root: &Path, python: &Path, times: u32) -> Result<bool> {
    let mut command = Command::new(python);
    command.current_dir(root.join(PYTHON_FOLDER));
    command.args(["-m", PYTHON_PROGRAM, "--kills", &times.to_string()]);
    let finished = process::run(&mut command, Show::Only(tells))?;
    Ok(finished.success && finished.lines.iter().any(|line| counts(line)))
}

/// Runs the test of one fault and shows the line in which it counts; `true` when it passed.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) fn run(root: &Path, fault: Fault, times: u32) -> Result<bool> {
    let mut command = cargo::test(root, fault.test());
    command
        .args(["--", "--nocapture"])
        .env(VARIABLE, times.to_string());
    let finished = process::run(&mut command, Show::Only(tells))?;
    // A run that does nothing has no such line.
    Ok(finished.success && finished.lines.iter().any(|line| counts(line)))
}

/// Whether a test says in this line what it made, and what came of it.
fn tells(line: &str) -> bool {
    const FURTHER: [&str; 5] = [
        "cells: ",
        "parents: ",
        "descriptors: ",
        "memory: ",
        "violation: ",
    ];
    counts(line) || FURTHER.iter().any(|beginning| line.starts_with(beginning))
}

/// Whether a test says in this line how often it made its fault.
fn counts(line: &str) -> bool {
    line.contains(" kills, ") || line.contains(" faults, ")
}

#[cfg(test)]
mod tests {
    use super::{counts, tells};

    #[test]
    fn the_line_that_counts_is_known() {
        assert!(counts("50 kills, 3 frames lost") && tells("50 kills, 3 frames lost"));
        assert!(tells("50 faults, 0 duplicates"));
        assert!(tells("violation: a frame came twice") && !counts("violation: a frame came twice"));
        assert!(!tells("running 2 tests"));
    }
}
