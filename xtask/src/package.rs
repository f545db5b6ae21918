//! The Python package: built into the environment of the tests, its types checked, its tests run.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::{
    counts::Counts,
    faults,
    process::{self, Show},
    report::{Report, Verdict},
    stale,
};

/// Runs the steps that concern the package; none can be tried without an interpreter.
pub(crate) fn steps(report: &mut Report, root: &Path, python: Option<&PathBuf>) {
    let mut built = false;
    report.step("Python package", || {
        let Some(python) = python else {
            return Ok(Verdict::NotRun("there is no Python environment".to_owned()));
        };
        build(root, python, Profile::Dev)?;
        built = true;
        Ok(Verdict::Passed)
    });
    let python = python.filter(|_| built);
    report.step("Python types", || {
        with(python, |python| types(root, python))
    });
    report.step("Python tests", || {
        with(python, |python| tests(root, python))
    });
    report.step("deaths of Python's worker processes", || {
        with(python, |python| faults::of_python(root, python))
    });
    report.step("state of Python's policies", || {
        with(python, |python| stale::drawn(root, python))
    });
}

fn with(python: Option<&PathBuf>, step: impl FnOnce(&Path) -> Result<Verdict>) -> Result<Verdict> {
    match python {
        Some(python) => step(python),
        None => Ok(Verdict::NotRun("the package was not built".to_owned())),
    }
}

/// How the extension is optimised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// As in all tests.
    Dev,
    /// As it is released.
    Release,
}

/// Builds the extension and installs the package so that its sources are those of the tree.
///
/// # Errors
/// When maturin fails; it says why.
pub(crate) fn build(root: &Path, python: &Path, profile: Profile) -> Result<()> {
    let mut command = in_environment(root, python);
    // A target folder of its own: the settings that PyO3 is built with differ, and each change builds everything anew.
    command
        .args(["-m", "maturin", "develop", "--quiet"])
        .env("CARGO_TARGET_DIR", root.join("target/python"));
    if profile == Profile::Release {
        command.arg("--release");
    }
    let built = process::run(&mut command, Show::Only(|_| false))?;
    if !built.success {
        bail!("maturin failed to build the package ({})", built.status);
    }
    Ok(())
}

fn types(root: &Path, python: &Path) -> Result<Verdict> {
    for (what, arguments) in [
        ("mypy", ["-m", "mypy"].as_slice()),
        ("stubtest", &["-m", "mypy.stubtest", "windrow._windrow"]),
    ] {
        let mut command = in_environment(root, python);
        command.args(arguments).env("MYPYPATH", "python");
        let checked = process::run(&mut command, Show::All)?;
        if !checked.success {
            return Ok(Verdict::Failed(
                None,
                format!("{what} has something to say"),
            ));
        }
    }
    Ok(Verdict::Passed)
}

fn tests(root: &Path, python: &Path) -> Result<Verdict> {
    let mut command = in_environment(root, python);
    // Many tests start programs and wait for them, so two at a time take little more than half as long.
    command.args(["-m", "pytest", "--quiet", "-n", "2", "--dist", "worksteal"]);
    let finished = process::run(&mut command, Show::All)?;
    Ok(Verdict::of_tests(
        finished.success,
        Counts::read(&finished.lines),
        &finished.status,
    ))
}

fn in_environment(root: &Path, python: &Path) -> Command {
    let mut command = Command::new(python);
    command
        .current_dir(root)
        .env("VIRTUAL_ENV", root.join("target/venv"));
    command
}
