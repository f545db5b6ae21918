//! `cargo xtask test`: every check and every test, all of them even when one fails.

use std::{
    collections::BTreeSet,
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{
    cargo,
    counts::Counts,
    faults, models, package,
    process::{self, Show},
    python,
    report::{Report, Verdict},
    tidy,
    workspace::Workspace,
};

/// A test target that compares windrow with something else, and says how much it compared.
struct Comparison {
    title: &'static str,
    test: &'static str,
    /// Whether the other side is a Python library.
    python: bool,
}

const COMPARISONS: [Comparison; 4] = [
    Comparison {
        title: "comparison with Gymnasium",
        test: "gymnasium",
        python: true,
    },
    Comparison {
        title: "comparison with PyTorch",
        test: "torch",
        python: true,
    },
    Comparison {
        title: "comparison of collectors with ledgers",
        test: "conformance",
        python: false,
    },
    Comparison {
        title: "comparison of replay with a list",
        test: "model",
        python: false,
    },
];

/// Runs all steps; `true` when nothing failed. `examples`: clippy reads `windrow-examples` too.
///
/// # Errors
/// Never; failures are part of the report.
pub(crate) fn run(root: &Path, examples: bool) -> Result<bool> {
    let mut report = Report::default();
    let workspace = match Workspace::load(root) {
        Ok(workspace) => workspace,
        Err(error) => {
            report.step("workspace", || Err(error));
            return Ok(report.close());
        }
    };
    report.step("formatting", || formatting(root));
    report.step("clippy", || clippy(root, examples));
    report.step("tidy", || tidy::verdict(&workspace));

    let mut python = None;
    report.step("Python environment", || {
        python = Some(python::environment(root)?);
        Ok(Verdict::Passed)
    });
    report.step("tests", || tests(&workspace, python.as_ref()));
    for comparison in &COMPARISONS {
        report.step(comparison.title, || {
            compare(&workspace, comparison, python.as_ref())
        });
    }
    faults::add_to(&mut report, root);
    report.step("doctests", || doctests(root));
    package::steps(&mut report, root, python.as_ref());
    models::add_to(&mut report, &workspace);
    Ok(report.close())
}

fn formatting(root: &Path) -> Result<Verdict> {
    let mut command = cargo::command(root);
    command.args(["fmt", "--all", "--", "--check", "-l"]);
    check(
        &mut command,
        "these files are not formatted: run `cargo fmt --all`",
    )
}

fn clippy(root: &Path, examples: bool) -> Result<Verdict> {
    let mut command = cargo::command(root);
    command.args(["clippy", "--workspace", "--all-targets"]);
    if !examples {
        println!("    without {}: `--examples` includes it", cargo::EXAMPLES);
        command.args(["--exclude", cargo::EXAMPLES]);
    }
    command.args(["--", "-D", "warnings"]);
    check(&mut command, "clippy has something to say")
}

/// Unit and integration tests, without comparisons and deaths of workers (steps of their own) and the loom models (built otherwise).
fn tests(workspace: &Workspace, python: Option<&PathBuf>) -> Result<Verdict> {
    let nextest = cargo::has_nextest(&workspace.root);
    let mut command = cargo::command(&workspace.root);
    if nextest {
        command.args([
            "nextest",
            "run",
            "--no-tests",
            "pass",
            "--status-level",
            "fail",
            "--final-status-level",
            "slow",
        ]);
    } else {
        command.arg("test");
    }
    command.args([
        "--no-fail-fast",
        "--workspace",
        "--exclude",
        cargo::EXAMPLES,
        "--lib",
        "--bins",
    ]);
    for test in integration_tests(workspace) {
        command.args(["--test", test]);
    }
    if !nextest {
        command.args(["--", "--quiet"]);
    }
    run_tests(&mut command, python, Show::All)
}

fn integration_tests(workspace: &Workspace) -> BTreeSet<&str> {
    let packages = workspace
        .packages
        .iter()
        .filter(|package| package.name != cargo::EXAMPLES);
    let compares = |test: &str| COMPARISONS.iter().any(|comparison| comparison.test == test);
    packages
        .flat_map(|package| package.tests())
        .filter(|test| !compares(test) && !faults::is_step(test) && !models::is_loom(test))
        .collect()
}

/// Runs one comparison and forwards the lines in which it says how much it compared; without such a line it failed.
fn compare(
    workspace: &Workspace,
    comparison: &Comparison,
    python: Option<&PathBuf>,
) -> Result<Verdict> {
    if comparison.python && python.is_none() {
        return Ok(Verdict::NotRun("there is no Python environment".to_owned()));
    }
    let mut command = cargo::test(&workspace.root, comparison.test);
    command.args(["--", "--nocapture"]);
    if comparison.python {
        // They need an interpreter, so ordinary runs skip them.
        command.arg("--include-ignored");
    }
    if let Some(python) = python {
        command.env(python::VARIABLE, python);
    }
    let finished = process::run(&mut command, Show::Only(|line| compared(line).is_some()))?;
    let amount: u64 = finished
        .lines
        .iter()
        .filter_map(|line| compared(line))
        .sum();
    if finished.success && amount == 0 {
        let counts = Counts::read(&finished.lines);
        return Ok(Verdict::Failed(
            counts,
            "no line says that anything was compared".to_owned(),
        ));
    }
    Ok(Verdict::of_tests(
        finished.success,
        Counts::read(&finished.lines),
        &finished.status,
    ))
}

/// The number in a line such as `CartPole-v1: 120 steps compared` or `compared 64 outputs`.
fn compared(line: &str) -> Option<u64> {
    let words: Vec<_> = line.split_whitespace().collect();
    if !words
        .iter()
        .any(|word| word.trim_matches(|letter: char| !letter.is_alphanumeric()) == "compared")
    {
        return None;
    }
    words.iter().find_map(|word| {
        word.trim_end_matches([',', ';', '.'])
            .replace([',', '_'], "")
            .parse()
            .ok()
    })
}

fn doctests(root: &Path) -> Result<Verdict> {
    let mut command = cargo::command(root);
    command.args([
        "test",
        "--doc",
        "--no-fail-fast",
        "--workspace",
        "--exclude",
        cargo::EXAMPLES,
        "--",
        "--quiet",
    ]);
    run_tests(&mut command, None, Show::All)
}

fn run_tests(command: &mut Command, python: Option<&PathBuf>, show: Show) -> Result<Verdict> {
    match python {
        Some(python) => command.env(python::VARIABLE, python),
        None => command.env_remove(python::VARIABLE),
    };
    if env::var_os("CARGO_TERM_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "never");
    }
    let finished = process::run(command, show)?;
    Ok(Verdict::of_tests(
        finished.success,
        Counts::read(&finished.lines),
        &finished.status,
    ))
}

fn check(command: &mut Command, failure: &str) -> Result<Verdict> {
    let finished = process::run(command, Show::All)?;
    Ok(if finished.success {
        Verdict::Passed
    } else {
        Verdict::Failed(None, failure.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{compared, integration_tests};
    use crate::workspace::{Kind, Package, Target, Workspace};

    #[test]
    fn lines_of_a_comparison_are_recognised() {
        assert_eq!(
            compared("gymnasium comparison: 120345 steps compared"),
            Some(120_345)
        );
        assert_eq!(compared("compared 64 outputs of 3 networks"), Some(64));
        assert_eq!(compared("(12,000 steps compared)"), None);
        assert_eq!(compared("12,000 steps compared."), Some(12_000));
        assert_eq!(compared("running 3 tests"), None);
        assert_eq!(compared("nothing compared"), None);
    }

    #[test]
    fn models_comparisons_deaths_and_examples_are_not_ordinary_tests() {
        let package = |name: &str, tests: &[&str]| Package {
            name: name.to_owned(),
            targets: tests
                .iter()
                .map(|test| Target {
                    name: (*test).to_owned(),
                    kind: Kind::Test,
                    source: PathBuf::new(),
                })
                .collect(),
            ..Package::default()
        };
        let workspace = Workspace {
            root: PathBuf::new(),
            packages: vec![
                package("windrow-slab", &["loom", "compile_fail"]),
                package("windrow-env", &["gymnasium", "errors"]),
                package("windrow-policy", &["torch", "errors"]),
                package("windrow", &["kills"]),
                package("windrow-examples", &["learns"]),
            ],
        };
        assert_eq!(
            integration_tests(&workspace)
                .into_iter()
                .collect::<Vec<_>>(),
            ["compile_fail", "errors"]
        );
    }
}
