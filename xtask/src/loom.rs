//! The loom models of the ring and of the weight store.

use std::env;

use anyhow::{Result, bail};

use crate::{
    cargo,
    counts::Counts,
    process::{self, Show},
    report::{Report, Verdict},
    workspace::Workspace,
};

const PACKAGES: [&str; 2] = ["windrow-slab", "windrow-policy"];

/// Bound of the search, unless the variable of this name says otherwise.
const PREEMPTIONS: (&str, &str) = ("LOOM_MAX_PREEMPTIONS", "3");

/// Runs the models alone; `true` when all passed.
///
/// # Errors
/// Never; what goes wrong is part of the report.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let mut report = Report::default();
    report.step("loom models", || verdict(workspace));
    Ok(report.close())
}

/// Whether a test target holds loom models: it is empty in an ordinary build.
pub(crate) fn is_model(test: &str) -> bool {
    test.starts_with("loom")
}

/// Runs the models in a target folder of their own, because every crate is built with `--cfg loom`.
///
/// # Errors
/// When there are no models or cargo cannot be started.
pub(crate) fn verdict(workspace: &Workspace) -> Result<Verdict> {
    let mut command = cargo::command(&workspace.root);
    command.args([
        "test",
        "--release",
        "--no-fail-fast",
        "--target-dir",
        "target/loom",
    ]);
    for name in PACKAGES {
        let package = workspace.package(name)?;
        let models: Vec<_> = package.tests().filter(|test| is_model(test)).collect();
        if models.is_empty() {
            bail!("expected a file tests/loom*.rs in {name}, found none");
        }
        command.args(["--package", name]);
        for model in models {
            command.args(["--test", model]);
        }
    }
    command.env("RUSTFLAGS", cargo::rustflags("--cfg loom"));
    // Models need an optimised build, but not one worth linking slowly for.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off");
    command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    if env::var_os(PREEMPTIONS.0).is_none() {
        command.env(PREEMPTIONS.0, PREEMPTIONS.1);
    }
    let finished = process::run(&mut command, Show::All)?;
    Ok(Verdict::of_tests(
        finished.success,
        Counts::read(&finished.lines),
        &finished.status,
    ))
}
