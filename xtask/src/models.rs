//! Models of concurrency: loom explores every interleaving around a lock or two, shuttle many
//! interleavings of whole collectors.

use std::env;

use anyhow::{Result, bail};

use crate::{
    cargo,
    report::{Report, Verdict},
    workspace::Workspace,
};

const LOOM_PACKAGES: &str = "windrow-slab windrow-peer windrow-store windrow-policy windrow-replay";

/// Where schedules are tried.
const SHUTTLE_TEST: &str = "--package=windrow-collect --test=conformance";

/// Bound of loom's search, unless the variable of this name says otherwise.
const PREEMPTIONS: (&str, &str) = ("LOOM_MAX_PREEMPTIONS", "3");

/// Runs the models as steps of `report`.
pub(crate) fn add_to(report: &mut Report, workspace: &Workspace) {
    report.step("loom models", || {
        for name in LOOM_PACKAGES.split(' ') {
            if !workspace.tests(name, is_loom)?.contains("--test") {
                bail!("expected a file tests/loom*.rs in {name}, found none");
            }
        }
        verdict(workspace, "loom", &workspace.tests(LOOM_PACKAGES, is_loom)?)
    });
    report.step("shuttle schedules", || {
        verdict(workspace, "shuttle", SHUTTLE_TEST)
    });
}

/// Whether a test target holds loom models: it is empty in an ordinary build.
pub(crate) fn is_loom(test: &str) -> bool {
    test.starts_with("loom")
}

/// Tests `targets` in a target folder of their own, because every crate is built with
/// `--cfg {tool}`.
fn verdict(workspace: &Workspace, tool: &str, targets: &str) -> Result<Verdict> {
    let test = format!("test --release --no-fail-fast --target-dir target/{tool} {targets}");
    let mut command = cargo::command(&workspace.root, &test);
    command.args(["--", "--nocapture"]);
    command.env("RUSTFLAGS", cargo::rustflags(&format!("--cfg {tool}")));
    if env::var_os(PREEMPTIONS.0).is_none() {
        command.env(PREEMPTIONS.0, PREEMPTIONS.1);
    }
    Verdict::of_runner(&mut command)
}
