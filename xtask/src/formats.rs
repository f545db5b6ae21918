//! `cargo xtask formats`: data sets that the Python package writes, read by the libraries whose
//! formats they are. Each of these is in an environment of its own, which has nothing of windrow.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    faults, python,
    report::{Report, Verdict},
};

/// Where the environments and the data sets are.
const FOLDER: &str = "target/formats";
/// What the environments hold: a file for each format.
const RECIPES: &str = "tests/python/formats";
const FORMATS: [&str; 4] = ["lerobot", "minari", "parquet", "safetensors"];

/// Which formats to look at.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// Formats; all unless given
    #[arg(value_parser = FORMATS)]
    formats: Vec<String>,
    /// How many processes to kill that write a data set of each format
    #[arg(long, default_value_t = 200)]
    kills: u32,
}

/// Writes, reads, and kills processes that write; `true` when every frame was read as it was
/// written.
pub(crate) fn run(root: &Path, request: &Request) -> Result<bool> {
    let package = python::with_package(root, python::DEV)?;
    let sets = root.join(FOLDER).join("sets");
    if sets.exists() {
        fs::remove_dir_all(&sets).with_context(|| format!("failed to remove {sets:?}"))?;
    }
    let written = module(root, package.clone(), "formats write")
        .arg(&sets)
        .status();
    if !written.is_ok_and(|status| status.success()) {
        bail!("the data sets were not written");
    }
    let all = FORMATS.map(str::to_owned);
    let formats = match request.formats.as_slice() {
        [] => &all[..],
        some => some,
    };
    Report::alone(|report| {
        for format in formats {
            report.step(&format!("{format}, read"), || {
                let folder = format!("{FOLDER}/{format}");
                let recipe = format!("{RECIPES}/{format}.txt");
                let library = python::environment_of(root, &folder, &recipe)?;
                let mut read = module(root, library, "formats read");
                let why = "frames are not read as they were written";
                Verdict::of_program(read.arg(format).arg(&sets), why)
            });
            if request.kills > 0 {
                report.step(&format!("{format}, deaths of writers"), || {
                    let program = format!("killed_sinks --kills {} {format}", request.kills);
                    let passed = faults::program(root, &package, &program)?;
                    Ok(Verdict::of_check(passed, "a death did harm"))
                });
            }
        }
    })
}

/// A module among the tests of the Python package, with its arguments.
fn module(root: &Path, python: PathBuf, arguments: &str) -> Command {
    let mut command = Command::new(python);
    command.current_dir(root.join("python/tests")).arg("-m");
    command.args(arguments.split(' '));
    command
}
