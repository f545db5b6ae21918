//! `cargo xtask certify`: native environments beside those of Gymnasium, step by step, and the
//! certificates of `docs/certificates`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use clap::Args;

use crate::{process, python, report::Verdict, suite::compared};

/// Where the program is, and where it writes certificates.
const FOLDER: &str = "python/tests";
const CERTIFICATES: &str = "docs/certificates";

/// Steps of each environment in a complete run of the tests.
const SHORT: u32 = 20_000;

/// Which environments to compare.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// Ids of native environments, such as `CartPole-v1`
    #[arg(required_unless_present = "all")]
    environments: Vec<String>,
    /// All native environments, those of MuJoCo included
    #[arg(long, conflicts_with = "environments")]
    all: bool,
    /// Steps of each environment without arguments; a tenth of them with each set of arguments
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
}

/// Compares, and writes a certificate of each environment; `false` when one differs.
pub(crate) fn run(root: &Path, request: &Request) -> Result<bool> {
    let mut command = program(
        root,
        python::with_package(root, python::DEV)?,
        request.steps,
    );
    command.args(&request.environments);
    if request.all {
        command.arg("--all");
    }
    command.arg("--write");
    let finished = process::run(command.arg(root.join(CERTIFICATES)), |_| true)?;
    Ok(finished.success)
}

/// Compares all environments for some steps, as a step of the tests.
pub(crate) fn short(root: &Path, python: &Path) -> Result<Verdict> {
    let mut command = program(root, python.to_owned(), SHORT);
    let finished = process::run(&mut command, |line| compared(line).is_some())?;
    let is_any = finished.lines.iter().any(|line| compared(line).is_some());
    let why = "a native environment differs from Gymnasium's, or none was compared";
    Ok(Verdict::of_check(finished.success && is_any, why))
}

fn program(root: &Path, python: PathBuf, steps: u32) -> Command {
    let mut command = Command::new(python);
    command.current_dir(root.join(FOLDER));
    command.args(["-m", "certify", "--steps", &steps.to_string()]);
    command
}
