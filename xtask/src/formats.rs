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
/// What the environments hold: a file for each format, which has its name.
const RECIPES: &str = "tests/python/formats";

/// Which formats to look at.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// Formats; all unless given
    formats: Vec<String>,
    /// How many processes to kill that write a data set of each format
    #[arg(long, default_value_t = 200)]
    kills: u32,
}

/// Writes, reads, and kills processes that write; `true` when every frame was read as it was
/// written.
pub(crate) fn run(root: &Path, request: &Request) -> Result<bool> {
    let formats = named(&root.join(RECIPES), &request.formats)?;
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
    Report::alone(|report| {
        for format in &formats {
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

/// The formats that were asked for, or all that have a file in `recipes`.
fn named(recipes: &Path, asked: &[String]) -> Result<Vec<String>> {
    let mut all = fs::read_dir(recipes)
        .with_context(|| format!("failed to list {recipes:?}"))?
        .map(|entry| {
            Ok(entry?
                .path()
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into())
        })
        .collect::<Result<Vec<String>>>()?;
    all.sort();
    if let Some(strange) = asked.iter().find(|name| !all.contains(name)) {
        bail!("expected formats of {}, got {strange}", all.join(", "));
    }
    Ok(if asked.is_empty() {
        all
    } else {
        asked.to_vec()
    })
}

/// A module among the tests of the Python package, with its arguments.
fn module(root: &Path, python: PathBuf, arguments: &str) -> Command {
    let mut command = Command::new(python);
    command.current_dir(root.join("python/tests")).arg("-m");
    command.args(arguments.split(' '));
    command
}
