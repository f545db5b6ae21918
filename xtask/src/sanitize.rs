//! Tools that look for undefined behaviour and leaks while the tests of the unsafe crates run.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use crate::{
    cargo, models,
    process::{self, Finished},
    report::{Report, Verdict},
    workspace::Workspace,
};

/// Crates that contain `unsafe`, and those without processes and sockets, of which miri has
/// neither.
const PACKAGES: &str = "windrow-tensordict windrow-slab windrow-store windrow-peer";
const WITHOUT_PROCESSES: &str = "windrow-tensordict windrow-slab windrow-store";

/// Those tests of collectors whose workers run in processes, and die.
const IN_PROCESSES: &str = "--package=windrow-collect --test=processes --test=deaths";

/// Tests that start `/proc/self/exe`, which under valgrind is valgrind itself, and watch it by
/// calls that valgrind does not know.
const STARTS_ITSELF: &str = "/windrow-peer/tests/";

/// Part of the name of tests that run the compiler, which is not examined.
const COMPILER: &str = "compile_fail";

/// Cases of a property test: each costs up to a hundred times more than usual.
const CASES: (&str, &str) = ("PROPTEST_CASES", "16");

/// One tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sanitizer {
    /// AddressSanitizer and its leak detection, with the nightly toolchain
    Asan,
    /// Valgrind's memcheck
    Memcheck,
    /// The interpreter miri, with the nightly toolchain
    Miri,
}

/// Runs one tool, or all; `true` when at least one ran and none found anything.
pub(crate) fn run(workspace: &Workspace, only: Option<Sanitizer>) -> Result<bool> {
    let chosen = only.map_or_else(|| Sanitizer::value_variants().to_vec(), |tool| vec![tool]);
    let mut report = Report::default();
    let mut missing = Vec::new();
    for sanitizer in &chosen {
        let (title, mut program, what) = sanitizer.program(&workspace.root);
        if process::succeeds(program.arg("--version")) {
            report.step(title, || sanitizer.verdict(workspace));
        } else {
            println!("{title} is left out: {what}");
            missing.push(what);
        }
    }
    if missing.len() == chosen.len() {
        bail!("nothing could run: {}", missing.join("; "));
    }
    Ok(report.close())
}

impl Sanitizer {
    /// Its title, a program that runs where it is installed, and what is missing elsewhere.
    fn program(self, root: &Path) -> (&'static str, Command, &'static str) {
        match self {
            Self::Asan => (
                "AddressSanitizer",
                cargo::nightly(root, ""),
                "the nightly toolchain is not installed",
            ),
            Self::Memcheck => (
                "memcheck",
                Command::new("valgrind"),
                "valgrind is not installed",
            ),
            Self::Miri => (
                "miri",
                cargo::nightly(root, "miri"),
                "the nightly toolchain has no component miri",
            ),
        }
    }

    fn verdict(self, workspace: &Workspace) -> Result<Verdict> {
        match self {
            Self::Asan => asan(workspace),
            Self::Memcheck => memcheck(workspace),
            Self::Miri => miri(workspace),
        }
    }
}

/// The unsafe crates, then what makes most of windrow-peer.
fn asan(workspace: &Workspace) -> Result<Verdict> {
    let mut runs = Vec::new();
    for arguments in [targets(workspace, PACKAGES)?.as_str(), IN_PROCESSES] {
        let mut command = with_asan(workspace, arguments)?;
        runs.push(process::run(&mut command, |_| true)?);
    }
    Ok(together(&runs))
}

/// The verdict on several runs.
fn together(runs: &[Finished]) -> Verdict {
    let failures = runs.iter().filter(|run| !run.success);
    let failures: Vec<_> = failures.map(|run| run.status.as_str()).collect();
    Verdict::of_finished(&Finished {
        success: failures.is_empty(),
        status: failures.join("; "),
        lines: runs.iter().flat_map(|run| run.lines.clone()).collect(),
    })
}

/// The target is named although it is the host's: only then are build scripts and macros built
/// without the sanitizer.
fn with_asan(workspace: &Workspace, arguments: &str) -> Result<Command> {
    let host = host(workspace)?;
    let test = format!("test --no-fail-fast --target-dir target/asan --target {host} {arguments}");
    let mut command = cargo::nightly(&workspace.root, &test);
    command.args(["--", "--quiet", "--skip", COMPILER]);
    let flags = "-Zsanitizer=address --cap-lints=warn";
    command.env("RUSTFLAGS", cargo::rustflags(flags));
    // Some tests ask for too much memory, and expect the same error as without the sanitizer.
    const OPTIONS: &str =
        "detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1";
    command.env("ASAN_OPTIONS", OPTIONS);
    command.env(CASES.0, CASES.1).env_remove("RUSTDOCFLAGS");
    Ok(command)
}

fn miri(workspace: &Workspace) -> Result<Verdict> {
    let targets = targets(workspace, WITHOUT_PROCESSES)?;
    let test = format!("miri test --no-fail-fast --target-dir target/miri {targets}");
    let mut command = cargo::nightly(&workspace.root, &test);
    command.args(["--", "--quiet", "--skip", COMPILER]);
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    Verdict::of_runner(command.env(CASES.0, "2"))
}

fn memcheck(workspace: &Workspace) -> Result<Verdict> {
    const OPTIONS: &str = "--quiet --error-exitcode=97 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite";
    let mut runs = Vec::new();
    for binary in test_binaries(workspace)? {
        let shown = binary.file_name().unwrap_or_default().display().to_string();
        println!("    {shown}");
        let mut command = Command::new("valgrind");
        command.current_dir(&workspace.root).env(CASES.0, CASES.1);
        command.args(OPTIONS.split(' ')).arg(&binary);
        command.args(["--quiet", "--test-threads=1", "--skip", COMPILER]);
        let show = |line: &str| line.starts_with("test result:");
        let mut run = process::run(&mut command, show)?;
        run.status = format!("{shown}: {}", run.status);
        runs.push(run);
    }
    Ok(together(&runs))
}

/// Builds the tests that valgrind can run, and asks cargo where it put them.
fn test_binaries(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let targets = targets(workspace, PACKAGES)?;
    let build = format!("test --no-run --target-dir target/memcheck {targets}");
    let mut command = cargo::command(&workspace.root, &build);
    command.args(["--message-format", "json-render-diagnostics"]);
    let finished = process::run(&mut command, |line| !line.starts_with('{'))?;
    if !finished.success {
        bail!("the tests do not build ({})", finished.status);
    }
    let binary = |line: &String| {
        let message: Value = serde_json::from_str(line).ok()?;
        let source = message.pointer("/target/src_path")?.as_str()?;
        let binary = message.get("executable")?.as_str().map(PathBuf::from);
        binary.filter(|_| !source.contains(STARTS_ITSELF))
    };
    Ok(finished.lines.iter().filter_map(binary).collect())
}

/// Libraries and integration tests of these crates, less those that only run the compiler or loom.
fn targets(workspace: &Workspace, packages: &str) -> Result<String> {
    let is_examined = |test: &str| !test.contains(COMPILER) && !models::is_loom(test);
    Ok(format!("--lib {}", workspace.tests(packages, is_examined)?))
}

/// The triple nightly builds for unless told otherwise.
fn host(workspace: &Workspace) -> Result<String> {
    let output = cargo::nightly(&workspace.root, "-vV").output();
    let output = output.context("failed to start cargo")?.stdout;
    let output = String::from_utf8_lossy(&output);
    let host = output.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("expected a line `host: …` from `cargo +nightly -vV`, got none")?;
    Ok(host.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::targets;
    use crate::workspace::{Workspace, tests::package};

    #[test]
    fn tests_of_the_compiler_and_models_are_not_examined() {
        let mut workspace = Workspace {
            root: PathBuf::new(),
            packages: vec![
                package("windrow-tensordict", &["io"]),
                package("windrow-slab", &["compile_fail", "loom", "ring"]),
                package("windrow-store", &["loom", "store"]),
            ],
        };
        let packages = "windrow-tensordict windrow-slab windrow-store";
        let expected = "--lib  --package=windrow-tensordict --test=io --package=windrow-slab --test=ring \
             --package=windrow-store --test=store";
        let named = targets(&workspace, packages).expect("all are there");
        assert_eq!(named, expected);
        workspace.packages.pop();
        let error = targets(&workspace, packages).expect_err("one is gone");
        assert!(error.to_string().contains("windrow-store"));
    }
}
