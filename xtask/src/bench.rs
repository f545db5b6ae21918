//! Benchmarks that judge themselves: one line `name  value  target  ok|short` for each figure.

use std::{collections::BTreeSet, fs, io, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{cargo, process, python};

const FOLDER: &str = "crates/windrow/benches";

/// The benchmarks of the Python package, and their programs. One that has the name of one in Rust
/// runs after that.
const PROGRAMS: [(&str, &str); 12] = [
    ("datasets", "python/benches/datasets.py"),
    ("devices", "python/benches/devices.py"),
    ("evaluation", "python/benches/evaluation.py"),
    ("physics", "python/benches/physics.py"),
    ("pictures", "python/benches/pictures.py"),
    ("python", "python/benches/ratios.py"),
    ("processes-python", "python/benches/processes.py"),
    ("ray", "python/benches/ray_actors.py"),
    ("scripts", "python/benches/scripts.py"),
    ("served", "python/benches/served.py"),
    ("vectors", "python/benches/vectors.py"),
    ("weights", "python/benches/weights.py"),
];

/// Those that time a Python library beside windrow.
const WITH_PYTHON: [&str; 1] = ["replay"];

/// Which benchmark to run, and how often.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// Which one; without a name, the known ones are listed
    name: Option<String>,
    /// Fail when a line ends in `short`, or when no line with a verdict came
    #[arg(long)]
    check: bool,
    /// How many times to run it; more than one adds a summary over the runs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Rows of the buffers on disk that `replay` measures instead, each tenfold number up to this
    /// one
    #[arg(long)]
    rows: Option<u32>,
    /// Arguments for the benchmark itself
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// One figure a benchmark judged.
#[derive(Debug, Clone, PartialEq)]
struct Figure {
    name: String,
    value: Option<f64>,
    enough: bool,
}

/// Runs a benchmark and forwards its lines; with `check`, `false` unless every line of every run
/// says `ok`. Without a name, prints those of the benchmarks.
pub(crate) fn run(root: &Path, request: &Request) -> Result<bool> {
    let in_rust = in_rust(root)?;
    let names = PROGRAMS.iter().map(|(name, _)| *name);
    let known: BTreeSet<_> = names.chain(in_rust.iter().map(String::as_str)).collect();
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    let Some(name) = &request.name else {
        println!("benchmarks: {known}");
        return Ok(true);
    };
    let program = PROGRAMS.iter().find(|(known, _)| known == name);
    if program.is_none() && !in_rust.contains(name) {
        bail!("expected one of the benchmarks {known}, got `{name}`");
    }
    if request.rows.is_some() && name != "replay" {
        bail!("expected the benchmark replay with --rows, got `{name}`");
    }
    let rows = request.rows.iter();
    let rows = rows.flat_map(|rows| ["--rows".to_owned(), rows.to_string()]);
    let arguments: Vec<String> = rows.chain(request.arguments.iter().cloned()).collect();
    let python = match program {
        _ if request.rows.is_some() => None,
        Some(_) => Some(python::with_package(root, python::RELEASE)?),
        None if WITH_PYTHON.contains(&name.as_str()) => Some(python::environment(root)?),
        None => None,
    };
    let mut figures = Vec::new();
    for run in 1..=request.runs {
        if request.runs > 1 {
            println!("run {run} of {}", request.runs);
        }
        let is_in_rust = in_rust.contains(name);
        let in_rust = is_in_rust.then(|| of_rust(root, python.as_deref(), name, &arguments));
        let in_python = python.as_ref().zip(program).map(|(python, (_, program))| {
            let mut command = Command::new(python);
            command.current_dir(root).arg(program);
            command.args(&arguments);
            command
        });
        for mut command in in_rust.into_iter().chain(in_python) {
            let finished = process::run(&mut command, |_| true)?;
            if !finished.success {
                bail!("the benchmark `{name}` failed ({})", finished.status);
            }
            figures.extend(finished.lines.iter().filter_map(|line| Figure::read(line)));
        }
    }
    if request.runs > 1 {
        summary(&figures).iter().for_each(|line| println!("{line}"));
    }
    Ok(!request.check || judge(&figures))
}

fn of_rust(root: &Path, python: Option<&Path>, name: &str, arguments: &[String]) -> Command {
    let mut command = cargo::command(
        root,
        "bench --quiet --package windrow --all-features --bench",
    );
    command.arg(name);
    if let Some(python) = python {
        command.env(python::VARIABLE, python);
    }
    if !arguments.is_empty() {
        command.arg("--").args(arguments);
    }
    command
}

fn judge(figures: &[Figure]) -> bool {
    let short = figures.iter().filter(|figure| !figure.enough).count();
    let all = figures.len();
    match (all, short) {
        (0, _) => println!("check failed: expected lines that end in `ok` or `short`, got none"),
        (_, 0) => println!("check passed: {all} lines say `ok`"),
        _ => println!("check failed: {short} of {all} lines say `short`"),
    }
    all > 0 && short == 0
}

/// Median, least and greatest value of each name, over all runs.
fn summary(figures: &[Figure]) -> Vec<String> {
    let mut known = BTreeSet::new();
    let names = figures.iter().map(|figure| figure.name.as_str());
    let names = names.filter(|name| known.insert(*name));
    let line = |name: &str| {
        let same = figures.iter().filter(|figure| figure.name == name);
        let mut values: Vec<_> = same.filter_map(|figure| figure.value).collect();
        values.sort_by(f64::total_cmp);
        let (least, greatest, runs) = (values.first()?, values.last()?, values.len());
        let median = f64::midpoint(values[(runs - 1) / 2], values[runs / 2]);
        Some(format!(
            "{name}: median {median:.3} of {runs}, from {least:.3} to {greatest:.3}"
        ))
    };
    names.filter_map(line).collect()
}

impl Figure {
    /// Reads `name  value  target  ok|short`, whose columns are at least two spaces apart.
    fn read(line: &str) -> Option<Self> {
        let columns = line.split("  ").map(str::trim);
        let columns: Vec<_> = columns.filter(|column| !column.is_empty()).collect();
        let [name, value, _target, verdict @ ("ok" | "short")] = columns.as_slice() else {
            return None;
        };
        let number = value.split_whitespace().next()?.replace(['_', ','], "");
        Some(Self {
            name: (*name).to_owned(),
            value: number.parse().ok(),
            enough: *verdict == "ok",
        })
    }
}

/// The benchmarks in Rust.
fn in_rust(root: &Path) -> Result<Vec<String>> {
    let failed = || format!("failed to read {FOLDER}");
    let entries = fs::read_dir(root.join(FOLDER)).with_context(failed)?;
    let name = |entry: io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        Some(name.strip_suffix(".rs")?.to_owned())
    };
    Ok(entries.filter_map(name).collect())
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
