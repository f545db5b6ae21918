//! Policies whose state changes: whether Python's collectors act with the state that they have, and whether side effects happen.

use std::{path::Path, process::Command};

use anyhow::Result;
use clap::Args;

use crate::{
    package::{self, Profile},
    process::{self, Show},
    python,
    report::Verdict,
};

/// The program that changes them, and where it is.
const PROGRAM: &str = "stale";
const FOLDER: &str = "python/tests";

/// Seconds that a part of it, which the seed draws, takes in `cargo xtask test`.
const SECONDS: u32 = 45;

/// How much of it to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Changes of state
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Of the order in which policies and collectors come; drawn unless given
    #[arg(long)]
    seed: Option<u64>,
}

/// Builds the Python package and changes the state of policies; `false` when an action was wrong.
///
/// # Errors
/// When the package cannot be built, or the interpreter cannot be started.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    let python = python::environment(root)?;
    package::build(root, &python, Profile::Dev)?;
    let mut arguments = vec!["--count".to_owned(), options.count.to_string()];
    if let Some(seed) = options.seed {
        arguments.extend(["--seed".to_owned(), seed.to_string()]);
    }
    check(root, &python, &arguments)
}

/// A part of it, as a step of the tests.
///
/// # Errors
/// When the interpreter cannot be started.
pub(crate) fn drawn(root: &Path, python: &Path) -> Result<Verdict> {
    let arguments = ["--seconds".to_owned(), SECONDS.to_string()];
    Ok(match check(root, python, &arguments)? {
        true => Verdict::Passed,
        false => Verdict::Failed(None, "an action was computed with another state".to_owned()),
    })
}

fn check(root: &Path, python: &Path, arguments: &[String]) -> Result<bool> {
    let mut command = Command::new(python);
    command.current_dir(root.join(FOLDER));
    command.args(["-m", PROGRAM]).args(arguments);
    let finished = process::run(&mut command, Show::Only(tells))?;
    // A run that does nothing has no such line.
    Ok(finished.success && finished.lines.iter().any(|line| counts(line)))
}

/// Whether the program says in this line what it did, and how to do it again.
fn tells(line: &str) -> bool {
    const FURTHER: [&str; 4] = ["seed ", "violation: ", "effects: ", "modules: "];
    counts(line) || FURTHER.iter().any(|beginning| line.starts_with(beginning))
}

/// Whether the program says in this line how many changes it made.
fn counts(line: &str) -> bool {
    line.contains(" changes, ")
}

#[cfg(test)]
mod tests {
    use super::{counts, tells};

    #[test]
    fn the_line_that_counts_is_known() {
        assert!(counts("2000 changes, 8 rows checked") && tells("2000 changes, 8 rows checked"));
        assert!(tells("seed 8") && !counts("seed 8"));
        assert!(tells("violation: stale: a list") && tells("effects: 40 forms"));
        assert!(!tells("RuntimeWarning: overflow"));
    }
}
