//! Models of concurrency: loom explores every interleaving around a lock or two, shuttle many interleavings of whole
//! collectors.

use std::env;

use anyhow::{Result, bail};

use crate::{
    cargo,
    counts::Counts,
    process::{self, Show},
    report::{Report, Verdict},
    workspace::Workspace,
};

const LOOM_PACKAGES: [&str; 5] = [
    "windrow-slab",
    "windrow-process",
    "windrow-store",
    "windrow-policy",
    "windrow-replay",
];

/// Where schedules are tried.
const SHUTTLE_TEST: (&str, &str) = ("windrow-collect", "conformance");

/// Bound of loom's search, unless the variable of this name says otherwise.
const PREEMPTIONS: (&str, &str) = ("LOOM_MAX_PREEMPTIONS", "3");

/// Runs the models alone; `true` when all passed.
///
/// # Errors
/// Never; failures are part of the report.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let mut report = Report::default();
    add_to(&mut report, workspace);
    Ok(report.close())
}

/// Runs the models as steps of `report`.
pub(crate) fn add_to(report: &mut Report, workspace: &Workspace) {
    report.step("loom models", || loom(workspace));
    report.step("shuttle schedules", || shuttle(workspace));
}

/// Whether a test target holds loom models: it is empty in an ordinary build.
pub(crate) fn is_loom(test: &str) -> bool {
    test.starts_with("loom")
}

fn loom(workspace: &Workspace) -> Result<Verdict> {
    let mut targets = Vec::new();
    for name in LOOM_PACKAGES {
        let package = workspace.package(name)?;
        let models: Vec<_> = package.tests().filter(|test| is_loom(test)).collect();
        if models.is_empty() {
            bail!("expected a file tests/loom*.rs in {name}, found none");
        }
        targets.extend(["--package", name]);
        targets.extend(models.into_iter().flat_map(|model| ["--test", model]));
    }
    verdict(workspace, "loom", &targets)
}

fn shuttle(workspace: &Workspace) -> Result<Verdict> {
    let (package, test) = SHUTTLE_TEST;
    verdict(
        workspace,
        "shuttle",
        &["--package", package, "--test", test],
    )
}

/// Tests `targets` in a target folder of their own, because every crate is built with `--cfg {tool}`.
fn verdict(workspace: &Workspace, tool: &str, targets: &[&str]) -> Result<Verdict> {
    let mut command = cargo::command(&workspace.root);
    command.args(["test", "--release", "--no-fail-fast", "--target-dir"]);
    command.arg(format!("target/{tool}")).args(targets);
    command.args(["--", "--nocapture"]);
    command.env("RUSTFLAGS", cargo::rustflags(&format!("--cfg {tool}")));
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
