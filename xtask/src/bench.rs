//! Benchmarks that judge themselves: one line `name  value  target  ok|short` for each figure.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    cargo,
    package::{self, Profile},
    process::{self, Show},
    python,
};

const FOLDER: &str = "crates/windrow/benches";

/// The benchmarks of the Python package, and their programs. One that has the name of one in Rust runs after that.
const PYTHON: [(&str, &str); 7] = [
    ("pictures", "python/benches/pictures.py"),
    ("python", "python/benches/ratios.py"),
    ("processes-python", "python/benches/processes.py"),
    ("ray", "python/benches/ray_actors.py"),
    ("scripts", "python/benches/scripts.py"),
    ("served", "python/benches/served.py"),
    ("weights", "python/benches/weights.py"),
];

/// Those that time a Python library beside windrow.
const WITH_PYTHON: [&str; 1] = ["replay"];

/// Which benchmark to run, and how often.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) name: String,
    pub(crate) check: bool,
    pub(crate) runs: u32,
    pub(crate) arguments: Vec<String>,
}

/// One figure a benchmark judged.
#[derive(Debug, Clone, PartialEq)]
struct Figure {
    name: String,
    value: Option<f64>,
    enough: bool,
}

/// Prints the names of the benchmarks.
///
/// # Errors
/// When their folder cannot be read.
pub(crate) fn list(root: &Path) -> Result<bool> {
    println!("benchmarks: {}", known(root)?.join(", "));
    Ok(true)
}

/// Runs a benchmark and forwards its lines; with `check`, `false` unless every line of every run says `ok`.
///
/// # Errors
/// When there is no such benchmark, or it fails.
pub(crate) fn run(root: &Path, request: &Request) -> Result<bool> {
    let known = known(root)?;
    if !known.contains(&request.name) {
        bail!(
            "expected one of the benchmarks {}, got `{}`",
            known.join(", "),
            request.name
        );
    }
    let interpreter = interpreter(root, &request.name)?;
    let mut figures = Vec::new();
    for run in 1..=request.runs {
        if request.runs > 1 {
            println!("run {run} of {}", request.runs);
        }
        let python = interpreter.as_deref();
        let mut commands = Vec::new();
        if in_rust(root)?.contains(&request.name) {
            commands.push(of_rust(root, python, request));
        }
        if let (Some(python), Some(program)) = (python, program(&request.name)) {
            commands.push(of_python(root, python, program, request));
        }
        for mut command in commands {
            let finished = process::run(&mut command, Show::All)?;
            if !finished.success {
                bail!(
                    "the benchmark `{}` failed ({})",
                    request.name,
                    finished.status
                );
            }
            figures.extend(finished.lines.iter().filter_map(|line| Figure::read(line)));
        }
    }
    if request.runs > 1 {
        summary(&figures).iter().for_each(|line| println!("{line}"));
    }
    Ok(!request.check || judge(&figures))
}

/// The Python environment of a benchmark, with the package in its release build if the benchmark needs it.
fn interpreter(root: &Path, name: &str) -> Result<Option<PathBuf>> {
    let program = program(name);
    if program.is_none() && !WITH_PYTHON.contains(&name) {
        return Ok(None);
    }
    let python = python::environment(root)?;
    if program.is_some() {
        package::build(root, &python, Profile::Release)?;
    }
    Ok(Some(python))
}

/// The program of a benchmark of the Python package.
fn program(name: &str) -> Option<&'static str> {
    let (_, program) = PYTHON.into_iter().find(|(known, _)| *known == name)?;
    Some(program)
}

fn of_python(root: &Path, python: &Path, program: &str, request: &Request) -> Command {
    let mut command = Command::new(python);
    command
        .current_dir(root)
        .arg(program)
        .args(&request.arguments);
    command
}

fn of_rust(root: &Path, python: Option<&Path>, request: &Request) -> Command {
    let mut command = cargo::command(root);
    command.args([
        "bench",
        "--quiet",
        "--package",
        "windrow",
        "--bench",
        &request.name,
    ]);
    if let Some(python) = python {
        command.env(python::VARIABLE, python);
    }
    if !request.arguments.is_empty() {
        command.arg("--").args(&request.arguments);
    }
    command
}

fn judge(figures: &[Figure]) -> bool {
    let short = figures.iter().filter(|figure| !figure.enough).count();
    if figures.is_empty() {
        println!("check failed: expected lines that end in `ok` or `short`, got none");
    } else if short > 0 {
        println!(
            "check failed: {short} of {} lines say `short`",
            figures.len()
        );
    } else {
        println!("check passed: {} lines say `ok`", figures.len());
    }
    !figures.is_empty() && short == 0
}

/// Median, least and greatest value of each name, over all runs.
fn summary(figures: &[Figure]) -> Vec<String> {
    let mut names: Vec<&str> = Vec::new();
    for figure in figures {
        if !names.contains(&figure.name.as_str()) {
            names.push(&figure.name);
        }
    }
    let line = |name: &str| {
        let mut values: Vec<_> = figures
            .iter()
            .filter(|figure| figure.name == name)
            .filter_map(|figure| figure.value)
            .collect();
        values.sort_by(f64::total_cmp);
        let (least, greatest) = (values.first()?, values.last()?);
        let (low, high) = (
            values.get((values.len() - 1) / 2)?,
            values.get(values.len() / 2)?,
        );
        let (median, runs) = (f64::midpoint(*low, *high), values.len());
        Some(format!(
            "{name}: median {median:.3} of {runs}, from {least:.3} to {greatest:.3}"
        ))
    };
    names.into_iter().filter_map(line).collect()
}

impl Figure {
    /// Reads `name  value  target  ok|short`, whose columns are at least two spaces apart.
    fn read(line: &str) -> Option<Self> {
        let columns: Vec<_> = line
            .split("  ")
            .map(str::trim)
            .filter(|column| !column.is_empty())
            .collect();
        let [name, value, _target, verdict] = columns.as_slice() else {
            return None;
        };
        let enough = match *verdict {
            "ok" => true,
            "short" => false,
            _ => return None,
        };
        let value = value
            .split_whitespace()
            .next()
            .and_then(|number| number.replace(['_', ','], "").parse().ok());
        Some(Self {
            name: (*name).to_owned(),
            value,
            enough,
        })
    }
}

fn known(root: &Path) -> Result<Vec<String>> {
    let mut names = in_rust(root)?;
    names.extend(PYTHON.map(|(name, _)| name.to_owned()));
    names.sort();
    names.dedup();
    Ok(names)
}

/// The benchmarks in Rust.
fn in_rust(root: &Path) -> Result<Vec<String>> {
    let folder = root.join(FOLDER);
    let entries =
        fs::read_dir(&folder).with_context(|| format!("failed to read {}", folder.display()))?;
    Ok(entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::{Figure, judge, summary};

    fn figure(line: &str) -> Figure {
        Figure::read(line).expect("a line with a verdict")
    }

    #[test]
    fn lines_with_a_verdict_are_read() {
        let read = figure("random, 64 environments   0.97   >= 0.95   ok");
        assert_eq!(
            read,
            Figure {
                name: "random, 64 environments".into(),
                value: Some(0.97),
                enough: true
            }
        );
        assert!(!figure("claim  412 ns  200 ns  short").enough);
        for other in ["all is ok", "a  b  c  d", "", "warming up  3 s"] {
            assert_eq!(Figure::read(other), None, "{other}");
        }
    }

    #[test]
    fn one_short_line_or_none_at_all_fails_the_check() {
        assert!(judge(&[figure("a  1.0  0.9  ok")]));
        assert!(!judge(&[
            figure("a  1.0  0.9  ok"),
            figure("b  0.1  0.9  short")
        ]));
        assert!(!judge(&[]));
    }

    #[test]
    fn the_summary_has_the_median_of_each_name() {
        let figures = [
            "a  1.0  0  ok",
            "b  5  0  ok",
            "a  3.0  0  ok",
            "b  6  0  ok",
            "a  2.5  0  ok",
        ]
        .map(figure);
        assert_eq!(
            summary(&figures),
            [
                "a: median 2.500 of 3, from 1.000 to 3.000",
                "b: median 5.500 of 2, from 5.000 to 6.000"
            ]
        );
    }
}
