//! Faults at random moments, more of them than the ordinary tests have time for.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;

use crate::{
    cargo,
    counts::Counts,
    process::{self, Show},
};

/// The fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// A process is killed that writes a replay buffer on disk, and checkpoints of it
    Replay,
}

impl Fault {
    /// Package and test that make it happen, and the variable that says how often.
    fn test(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Replay => ("windrow-replay", "kill", "WINDROW_KILLS"),
        }
    }
}

/// Runs the test of one fault and shows the line in which it counts; `true` when it passed.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) fn run(root: &Path, fault: Fault, times: u32) -> Result<bool> {
    let (package, test, variable) = fault.test();
    let mut command = cargo::command(root);
    command.args(["test", "--package", package, "--test", test]);
    command
        .args(["--", "--nocapture"])
        .env(variable, times.to_string());
    let finished = process::run(&mut command, Show::Only(|line| line.contains(" kills, ")))?;
    let passed = Counts::read(&finished.lines).is_some_and(|counts| counts.passed > 0);
    Ok(finished.success && passed)
}
