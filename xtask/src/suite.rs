//! `cargo xtask test`: every check and every test, all of them even when one fails.

use std::{
    collections::BTreeSet,
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::Result;

use crate::{
    cargo::{self, Selection},
    counts::Counts,
    docs, faults, models, process, python,
    report::{Report, Verdict},
    tidy,
    workspace::Workspace,
};

/// A step, its test target, which compares windrow with something else and says how much it
/// compared, and whether that is a Python library.
const COMPARISONS: [(&str, &str, bool); 4] = [
    ("simulations of MuJoCo", "mujoco", true),
    ("comparison with PyTorch", "torch", true),
    (
        "comparison of collectors with ledgers",
        "conformance",
        false,
    ),
    ("comparison of replay with a list", "model", false),
];

/// Runs all steps for the packages of `selection`; `true` when nothing failed.
pub(crate) fn run(root: &Path, selection: Selection) -> Result<bool> {
    let workspace = Workspace::load(root)?;
    let mut report = Report::default();
    // Packages come over the network while both cores compile: begun first, and waited for where
    // tests need them.
    let environment = thread::spawn({
        let root = root.to_owned();
        move || python::environment(&root)
    });
    report.step("formatting", || {
        let mut command = cargo::command(root, "fmt --all -- --check -l");
        let why = "these files are not formatted: run `cargo fmt --all`";
        Verdict::of_program(&mut command, why)
    });
    report.step("clippy", || clippy(root, selection));
    report.step("features", || features(root));
    report.step("tidy", || tidy::verdict(&workspace));

    let mut python = None;
    report.step("Python environment", || {
        let made = environment.join();
        python = Some(made.unwrap_or_else(|panic| resume_unwind(panic))?);
        Ok(Verdict::Passed)
    });
    report.step("Python formatting and lints", || {
        python::style(root, python.as_ref())
    });
    report.step("tests", || tests(&workspace, selection, python.as_ref()));
    for (title, test, in_python) in COMPARISONS {
        report.step(title, || {
            let command = cargo::test(root, selection, test);
            compare(command, in_python, python.as_ref())
        });
    }
    report.step("deaths of worker processes", || {
        faults::of_workers(root, selection)
    });
    report.step("doctests", || {
        let mut command = cargo::command(root, "test --doc --no-fail-fast");
        command.args(selection.arguments()).args(["--", "--quiet"]);
        Verdict::of_runner(command.env_remove(python::VARIABLE))
    });
    // Before the Python tests, some of which look at the site.
    docs::add_to(&mut report, root);
    python::steps(&mut report, root, python.as_ref());
    models::add_to(&mut report, &workspace);
    Ok(report.close())
}

fn clippy(root: &Path, selection: Selection) -> Result<Verdict> {
    let mut command = cargo::command(root, "clippy --all-targets");
    if selection == Selection::WithoutCandle {
        let left_out = cargo::CANDLE.join(" and ");
        println!("    this step and others without {left_out}: `--examples` includes them");
    }
    command.args(selection.arguments());
    command.args(["--", "-D", "warnings"]);
    Verdict::of_program(&mut command, "clippy has something to say")
}

/// Builds the crates with fewer environments than all other steps have.
fn features(root: &Path) -> Result<Verdict> {
    for chosen in [
        "-p windrow-env",
        "-p windrow-env --features gym",
        "-p windrow-env --features mujoco",
        "-p windrow",
    ] {
        let mut command = cargo::command(root, "clippy --no-default-features");
        command
            .args(chosen.split(' '))
            .args(["--", "-D", "warnings"]);
        let why = format!("`{chosen} --no-default-features` does not build without warnings");
        let verdict = Verdict::of_program(&mut command, &why)?;
        if verdict != Verdict::Passed {
            return Ok(verdict);
        }
    }
    Ok(Verdict::Passed)
}

/// Unit and integration tests, and those of examples, without comparisons and deaths of workers
/// (steps of their own) and the loom models (built otherwise).
fn tests(workspace: &Workspace, selection: Selection, python: Option<&PathBuf>) -> Result<Verdict> {
    let nextest = process::succeeds(&mut cargo::command(&workspace.root, "nextest --version"));
    let runner = match nextest {
        true => "nextest run --no-tests pass --status-level fail --final-status-level slow",
        false => "test",
    };
    let mut command = cargo::command(&workspace.root, runner);
    command.args(["--no-fail-fast", "--lib", "--bins"]);
    command.args(selection.arguments());
    for test in integration_tests(workspace, selection) {
        command.args(["--test", test]);
    }
    for package in &workspace.packages {
        for example in package.tested_examples() {
            command.args(["--example", example]);
        }
    }
    if !nextest {
        command.args(["--", "--quiet"]);
    }
    match python {
        Some(python) => command.env(python::VARIABLE, python),
        None => command.env_remove(python::VARIABLE),
    };
    Verdict::of_runner(&mut command)
}

fn integration_tests(workspace: &Workspace, selection: Selection) -> BTreeSet<&str> {
    let compares = |test: &str| COMPARISONS.iter().any(|(_, known, _)| *known == test);
    let is_other = |test: &str| compares(test) || faults::is_step(test) || models::is_loom(test);
    let packages = workspace.packages.iter();
    let packages = packages.filter(|package| selection.has(&package.name));
    let tests = packages.flat_map(|package| package.tests());
    tests.filter(|test| !is_other(test)).collect()
}

/// Runs one comparison and forwards the lines in which it says how much it compared; without such a
/// line it failed.
fn compare(mut command: Command, in_python: bool, python: Option<&PathBuf>) -> Result<Verdict> {
    if in_python {
        // They need an interpreter, so ordinary runs skip them.
        command.arg("--include-ignored");
    }
    if let Some(python) = python {
        command.env(python::VARIABLE, python);
    } else if in_python {
        return Ok(Verdict::NotRun("there is no Python environment".to_owned()));
    }
    let finished = process::run(&mut command, |line| compared(line).is_some())?;
    let amounts = finished.lines.iter().filter_map(|line| compared(line));
    let amount: u64 = amounts.sum();
    if finished.success && amount == 0 {
        let why = "no line says that anything was compared".to_owned();
        return Ok(Verdict::Failed(Counts::read(&finished.lines), why));
    }
    Ok(Verdict::of_finished(&finished))
}

/// The number in a line such as `CartPole-v1: 120 steps compared` or `compared 64 outputs`.
pub(crate) fn compared(line: &str) -> Option<u64> {
    let is_sign = |letter: char| !letter.is_alphanumeric();
    let mut words = line.split_whitespace();
    let mut plain = words.clone().map(|word| word.trim_matches(is_sign));
    plain.find(|word| *word == "compared")?;
    words.find_map(|word| {
        let number = word.trim_end_matches([',', ';', '.']);
        number.replace([',', '_'], "").parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{compared, integration_tests};
    use crate::{
        cargo::Selection,
        workspace::{Workspace, tests::package},
    };

    #[test]
    fn lines_of_a_comparison_are_recognised() {
        assert_eq!(
            compared("torch comparison: 120345 outputs compared"),
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
        let workspace = Workspace {
            root: PathBuf::new(),
            packages: vec![
                package("windrow-slab", &["loom", "compile_fail"]),
                package("windrow-env", &["pool", "errors"]),
                package("windrow-policy", &["torch", "errors"]),
                package("windrow", &["kills"]),
                package("windrow-candle", &["learns"]),
            ],
        };
        let tests = |selection| Vec::from_iter(integration_tests(&workspace, selection));
        let without = tests(Selection::WithoutCandle);
        assert_eq!(without, ["compile_fail", "errors", "pool"]);
        assert_eq!(
            tests(Selection::All),
            ["compile_fail", "errors", "learns", "pool"]
        );
    }
}
