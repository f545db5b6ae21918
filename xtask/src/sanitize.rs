//! Tools that look for undefined behaviour and leaks while the tests of the unsafe crates run.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use crate::{
    cargo,
    counts::Counts,
    models,
    process::{self, Show},
    report::{Report, Verdict},
    workspace::Workspace,
};

/// Crates that contain `unsafe`.
const PACKAGES: [&str; 4] = [
    "windrow-tensordict",
    "windrow-slab",
    "windrow-process",
    "windrow-store",
];

/// Where collectors are, and those of their tests whose workers run in processes, and die.
const COLLECTORS: &str = "windrow-collect";
const IN_PROCESSES: [&str; 4] = ["--test", "processes", "--test", "deaths"];

/// The crate of processes and sockets, of which miri has neither.
const PROCESSES: &str = "windrow-process";

/// Tests that start `/proc/self/exe`, which under valgrind is valgrind itself, and watch it by calls that valgrind does not know.
const STARTS_ITSELF: &str = "/windrow-process/tests/";

/// Part of the name of tests that run the compiler, which is not examined.
const COMPILER: &str = "compile_fail";

/// Cases of a property test: each costs up to a hundred times more than usual.
const CASES: (&str, &str) = ("PROPTEST_CASES", "16");

/// Status by which valgrind tells its own findings from a failed test.
const FOUND: &str = "97";

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
///
/// # Errors
/// When no tool is installed.
pub(crate) fn run(workspace: &Workspace, only: Option<Sanitizer>) -> Result<bool> {
    let chosen = only.map_or_else(|| Sanitizer::value_variants().to_vec(), |tool| vec![tool]);
    let mut report = Report::default();
    let mut missing = Vec::new();
    for tool in &chosen {
        match tool.missing(workspace) {
            Some(what) => {
                println!("{} is left out: {what}", tool.title());
                missing.push(what);
            }
            None => report.step(tool.title(), || tool.verdict(workspace)),
        }
    }
    if missing.len() == chosen.len() {
        bail!("nothing could run: {}", missing.join("; "));
    }
    Ok(report.close())
}

impl Sanitizer {
    fn title(self) -> &'static str {
        match self {
            Self::Asan => "AddressSanitizer",
            Self::Memcheck => "memcheck",
            Self::Miri => "miri",
        }
    }

    /// The missing program or component without which the tool cannot run.
    fn missing(self, workspace: &Workspace) -> Option<&'static str> {
        let root = &workspace.root;
        match self {
            Self::Asan => {
                (!process::succeeds(cargo::of_toolchain(root, "nightly").arg("--version")))
                    .then_some("the nightly toolchain is not installed")
            }
            Self::Memcheck => (!process::succeeds(Command::new("valgrind").arg("--version")))
                .then_some("valgrind is not installed"),
            Self::Miri => (!process::succeeds(
                cargo::of_toolchain(root, "nightly").args(["miri", "--version"]),
            ))
            .then_some("the nightly toolchain has no component miri"),
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

/// The unsafe crates, then what makes most of windrow-process.
fn asan(workspace: &Workspace) -> Result<Verdict> {
    workspace.package(COLLECTORS)?;
    let collectors = [&["--package", COLLECTORS], &IN_PROCESSES[..]].concat();
    let collectors = collectors.into_iter().map(str::to_owned).collect();
    let (mut counts, mut failures) = (Counts::default(), Vec::new());
    for arguments in [targets(workspace, &PACKAGES)?, collectors] {
        let finished = process::run(&mut with_asan(workspace, &arguments)?, Show::All)?;
        counts = counts + Counts::read(&finished.lines).unwrap_or_default();
        if !finished.success {
            failures.push(finished.status);
        }
    }
    Ok(Verdict::of_tests(
        failures.is_empty(),
        Some(counts),
        &failures.join("; "),
    ))
}

/// The target is named although it is the host's: only then are build scripts and macros built without the sanitizer.
fn with_asan(workspace: &Workspace, arguments: &[String]) -> Result<Command> {
    let mut command = cargo::of_toolchain(&workspace.root, "nightly");
    command.args([
        "test",
        "--no-fail-fast",
        "--target-dir",
        "target/asan",
        "--target",
        &host(workspace)?,
    ]);
    command.args(arguments);
    command.args(["--", "--quiet", "--skip", COMPILER]);
    command.env(
        "RUSTFLAGS",
        cargo::rustflags("-Zsanitizer=address --cap-lints=warn"),
    );
    // Some tests ask for too much memory, and expect the same error as without the sanitizer.
    command.env(
        "ASAN_OPTIONS",
        "detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1",
    );
    command.env(CASES.0, CASES.1).env_remove("RUSTDOCFLAGS");
    Ok(command)
}

fn miri(workspace: &Workspace) -> Result<Verdict> {
    let mut command = cargo::of_toolchain(&workspace.root, "nightly");
    command.args([
        "miri",
        "test",
        "--no-fail-fast",
        "--target-dir",
        "target/miri",
    ]);
    let packages = PACKAGES.into_iter().filter(|&name| name != PROCESSES);
    let packages: Vec<_> = packages.collect();
    command.args(targets(workspace, &packages)?);
    command.args(["--", "--quiet", "--skip", COMPILER]);
    command
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .env(CASES.0, "2");
    finish(&mut command)
}

fn memcheck(workspace: &Workspace) -> Result<Verdict> {
    let mut counts = Counts::default();
    let mut failures = Vec::new();
    for binary in test_binaries(workspace)? {
        let shown = binary.file_name().unwrap_or_default().display().to_string();
        println!("    {shown}");
        let mut command = Command::new("valgrind");
        command
            .arg("--quiet")
            .arg(format!("--error-exitcode={FOUND}"));
        command.args([
            "--leak-check=full",
            "--show-leak-kinds=definite",
            "--errors-for-leak-kinds=definite",
        ]);
        command
            .arg(&binary)
            .args(["--quiet", "--test-threads=1", "--skip", COMPILER]);
        command.env(CASES.0, CASES.1).current_dir(&workspace.root);
        let finished = process::run(
            &mut command,
            Show::Only(|line| line.starts_with("test result:")),
        )?;
        counts = counts + Counts::read(&finished.lines).unwrap_or_default();
        if !finished.success {
            failures.push(format!("{shown}: {}", finished.status));
        }
    }
    Ok(Verdict::of_tests(
        failures.is_empty(),
        Some(counts),
        &failures.join("; "),
    ))
}

/// Builds the tests that valgrind can run, and asks cargo where it put them.
fn test_binaries(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut command = cargo::command(&workspace.root);
    command.args([
        "test",
        "--no-run",
        "--target-dir",
        "target/memcheck",
        "--message-format",
        "json-render-diagnostics",
    ]);
    command.args(targets(workspace, &PACKAGES)?);
    let finished = process::run(&mut command, Show::Only(|line| !line.starts_with('{')))?;
    if !finished.success {
        bail!("the tests do not build ({})", finished.status);
    }
    let messages = finished
        .lines
        .iter()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let runs = |message: &Value| {
        let source = message.pointer("/target/src_path").and_then(Value::as_str);
        !source.is_some_and(|source| source.contains(STARTS_ITSELF))
    };
    Ok(messages
        .filter(runs)
        .filter_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .collect())
}

/// Libraries and integration tests of these crates, less those that only run the compiler or loom.
fn targets(workspace: &Workspace, packages: &[&str]) -> Result<Vec<String>> {
    let mut arguments = vec!["--lib".to_owned()];
    for &name in packages {
        let package = workspace.package(name)?;
        arguments.extend(["--package".to_owned(), name.to_owned()]);
        let tests = package
            .tests()
            .filter(|test| !test.contains(COMPILER) && !models::is_loom(test));
        arguments.extend(tests.flat_map(|test| ["--test".to_owned(), test.to_owned()]));
    }
    Ok(arguments)
}

/// The triple nightly builds for unless told otherwise.
fn host(workspace: &Workspace) -> Result<String> {
    let output = cargo::of_toolchain(&workspace.root, "nightly")
        .arg("-vV")
        .output()
        .context("failed to start cargo")?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
        .context("expected a line `host: …` from `cargo +nightly -vV`, got none")
}

fn finish(command: &mut Command) -> Result<Verdict> {
    let finished = process::run(command, Show::All)?;
    Ok(Verdict::of_tests(
        finished.success,
        Counts::read(&finished.lines),
        &finished.status,
    ))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::targets;
    use crate::workspace::{Kind, Package, Target, Workspace};

    #[test]
    fn tests_of_the_compiler_and_models_are_not_examined() {
        let target = |name: &str| Target {
            name: name.into(),
            kind: Kind::Test,
            source: PathBuf::new(),
        };
        let package = |name: &str, targets| Package {
            name: name.into(),
            targets,
            ..Package::default()
        };
        let mut workspace = Workspace {
            root: PathBuf::new(),
            packages: vec![
                package("windrow-tensordict", vec![target("io")]),
                package(
                    "windrow-slab",
                    vec![target("compile_fail"), target("loom"), target("ring")],
                ),
                package("windrow-store", vec![target("loom"), target("store")]),
            ],
        };
        let packages = ["windrow-tensordict", "windrow-slab", "windrow-store"];
        let expected = [
            "--lib",
            "--package",
            "windrow-tensordict",
            "--test",
            "io",
            "--package",
            "windrow-slab",
            "--test",
            "ring",
            "--package",
            "windrow-store",
            "--test",
            "store",
        ];
        let named = targets(&workspace, &packages).expect("all are there");
        assert_eq!(named, expected);
        workspace.packages.pop();
        let error = targets(&workspace, &packages).expect_err("one is gone");
        assert!(error.to_string().contains("windrow-store"));
    }
}
