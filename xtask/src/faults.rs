//! Faults at random moments, and changes of what policies compute with: more of them than the
//! ordinary tests have time for.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::{
    cargo::{self, Selection},
    process, python,
    report::Verdict,
};

/// The fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// What remote policies send is lost, repeated, changed or late, and strangers knock at their
    /// server
    Network,
    /// Messages that no client sends, to remote servers of the Python package: huge numbers, odd
    /// specs, wrong lengths
    Messages,
    /// A process is killed that writes a replay buffer on disk, and checkpoints of it
    Replay,
    /// Worker processes of collectors are killed, stopped, or end by themselves
    Workers,
    /// Each fault of an environment, once behind each entry point of the Python package:
    /// collectors, vectors, evaluators
    Doors,
}

/// Which fault to inject, and how often.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The fault
    #[arg(value_enum)]
    fault: Fault,
    /// How many times
    #[arg(long, visible_aliases = ["kills", "count"], default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Below the collectors of the Python package, with environments in Python
    #[arg(long)]
    python: bool,
}

/// How many changes of state to make.
#[derive(Debug, Args)]
pub(crate) struct Changes {
    /// Changes of state
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Of the order in which policies and collectors come; drawn unless given
    #[arg(long)]
    seed: Option<u64>,
}

/// How many workers die in a complete run of the tests.
const WORKERS: u32 = 200;

/// Why the steps of deaths fail.
pub(crate) const HARM: &str = "a death of a worker did harm";

/// Where the programs of the Python package are.
const PYTHON_FOLDER: &str = "python/tests";

/// The test in which workers die, and the program in which those of the Python package do.
const WORKERS_TEST: &str = "kills";

/// The program that sends messages.
const MESSAGES: &str = "messages";

/// The variable that says how often.
const VARIABLE: &str = "WINDROW_KILLS";

/// The test in which parts grow old, and the variable that says how many frames it collects.
const AGES: (&str, &str) = ("ages", "WINDROW_FRAMES");

/// Whether a test target makes faults, so many of them that they are a step of their own.
pub(crate) fn is_step(test: &str) -> bool {
    test == WORKERS_TEST
}

/// Kills worker processes, as a step of the tests.
pub(crate) fn of_workers(root: &Path, selection: Selection) -> Result<Verdict> {
    let passed = inject(cargo::test(root, selection, WORKERS_TEST), WORKERS)?;
    Ok(Verdict::of_check(passed, HARM))
}

/// Injects a fault; `false` when a promise was broken.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    let test = match options.fault {
        Fault::Doors => {
            let python = python::with_package(root, python::DEV)?;
            return program(root, &python, "doors");
        }
        Fault::Messages => {
            let python = python::with_package(root, python::DEV)?;
            let module = format!("{MESSAGES} --count {}", options.times);
            return program(root, &python, &module);
        }
        Fault::Network => "network",
        Fault::Replay => "kill",
        Fault::Workers => WORKERS_TEST,
    };
    if !options.python {
        let command = cargo::test(root, Selection::WithoutCandle, test);
        return inject(command, options.times);
    }
    if options.fault != Fault::Workers {
        bail!("--python: expected the fault `workers`, the only one that concerns Python alone");
    }
    let python = python::with_package(root, python::DEV)?;
    program(
        root,
        &python,
        &format!("{WORKERS_TEST} --kills {}", options.times),
    )
}

/// Builds the Python package and changes the state of policies; `false` when an action was wrong.
pub(crate) fn change(root: &Path, changes: &Changes) -> Result<bool> {
    let seed = changes.seed.map(|seed| format!("--seed {seed}"));
    let arguments = format!("--count {} {}", changes.count, seed.unwrap_or_default());
    program(
        root,
        &python::with_package(root, python::DEV)?,
        &format!("stale {arguments}"),
    )
}

/// Collects as many frames while weights are published at any moment; `false` when a part was too
/// old, or a frame was lost.
pub(crate) fn ages(root: &Path, frames: u64) -> Result<bool> {
    let (test, variable) = AGES;
    let mut command = cargo::test(root, Selection::WithoutCandle, test);
    counted(command.env(variable, frames.to_string()))
}

fn inject(mut command: Command, times: u32) -> Result<bool> {
    counted(command.env(VARIABLE, times.to_string()))
}

/// Runs a module among the tests of the Python package, with its arguments; `true` when it passed.
pub(crate) fn program(root: &Path, python: &Path, module: &str) -> Result<bool> {
    let mut command = Command::new(python);
    command.current_dir(root.join(PYTHON_FOLDER)).arg("-m");
    counted(command.args(module.split_whitespace()))
}

/// Runs a program and shows the lines in which it reports; `true` when it passed.
fn counted(command: &mut Command) -> Result<bool> {
    let finished = process::run(command, reports)?;
    // A run that does nothing has no such line.
    Ok(finished.success && finished.lines.iter().any(|line| counts(line)))
}

/// Whether a program says in this line what it did and found, and how to do it again.
fn reports(line: &str) -> bool {
    const FURTHER: &str =
        "cells: parents: descriptors: memory: violation: seed effects: rows: modules: table:";
    let first = line.split(' ').next();
    counts(line) || FURTHER.split(' ').any(|known| Some(known) == first)
}

/// Whether a program says in this line how often it made its fault or change.
fn counts(line: &str) -> bool {
    let what = [
        " kills, ",
        " faults, ",
        " changes, ",
        " messages, ",
        " frames checked, ",
    ];
    what.iter().any(|what| line.contains(what))
}

#[cfg(test)]
mod tests {
    use super::{counts, reports};

    #[test]
    fn the_line_that_counts_is_known() {
        for line in [
            "50 kills, 3 frames lost",
            "50 faults, 0 duplicates",
            "2000 changes, 8 rows checked",
            "10000 messages, 0 panics",
            "192 cells, 60000 frames checked, 0 violations",
        ] {
            assert!(counts(line) && reports(line), "{line}");
        }
        for line in [
            "violation: a frame came twice",
            "seed 8",
            "effects: 40 forms",
            "rows: 39 policies",
        ] {
            assert!(!counts(line) && reports(line), "{line}");
        }
        for line in ["running 2 tests", "RuntimeWarning: overflow"] {
            assert!(!reports(line), "{line}");
        }
    }
}
