//! The figures of a tree: lengths of files and functions, numbers of parameters, share of comments and documentation.
//!
//! They are computed from the files alone, so that one command measures any tree. Tests are not counted.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::{
    scan::{
        functions::{Function, in_python, in_rust},
        python, rust,
    },
    tidy::{self, Source},
};

/// The crate whose circles of modules are printed.
const ENGINE: &str = "crates/windrow-collect/src/";

/// A longer function deserves a second look.
const LONG: usize = 40;

/// The figures of some files.
#[derive(Debug, Default)]
struct Figures {
    /// Lines of each file.
    files: Vec<usize>,
    functions: Vec<Function>,
    /// Lines of comments and documentation.
    prose: usize,
}

/// Prints the figures of the tree at `root`.
///
/// # Errors
/// When it cannot be read, or holds no crates.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let crates = root.join("crates");
    let mut folders: Vec<_> = fs::read_dir(&crates)
        .with_context(|| format!("failed to read {}", crates.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|folder| folder.join("src").is_dir())
        .collect();
    folders.sort();
    if folders.is_empty() {
        bail!("expected crates in {}, found none", crates.display());
    }
    println!("{HEADER}");
    let mut all = Figures::default();
    let mut engine = Vec::new();
    for folder in folders {
        let sources = tidy::below(root, &folder.join("src"), ".rs")?;
        let figures = Figures::of(&sources);
        println!(
            "{}",
            figures.line(&folder.file_name().unwrap_or_default().to_string_lossy())
        );
        all.add(figures);
        if folder.join("src") == root.join(ENGINE) {
            engine = sources;
        }
    }
    println!("{}", all.line("all Rust"));
    let python = tidy::below(root, &root.join(tidy::PYTHON), ".py")?;
    println!("{}", Figures::of(&python).line(tidy::PYTHON));
    let circles = tidy::graph(&engine, ENGINE).circles();
    let largest = circles.first().map_or(1, Vec::len);
    println!("\nlargest circle of modules in windrow-collect: {largest} files");
    if let Some(circle) = circles.first() {
        let names: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
        println!("  {}", names.join(", "));
    }
    Ok(true)
}

const HEADER: &str = "                          files    lines   file med/max   function p50/p90/max   parameters   prose   functions > 40";

impl Figures {
    fn of(sources: &[Source]) -> Self {
        let mut figures = Self::default();
        for source in sources.iter().filter(|source| !tidy::is_test(&source.path)) {
            figures.read(source);
        }
        figures
    }

    fn read(&mut self, source: &Source) {
        let text = rust::without_unit_tests(&source.text);
        self.files.push(text.lines().count());
        if source.path.ends_with(".py") {
            self.functions.extend(in_python(text));
            self.prose += python::Source::read(text).prose();
        } else {
            self.functions.extend(in_rust(text));
            let is_prose = |line: &&str| line.trim_start().starts_with("//");
            self.prose += text.lines().filter(is_prose).count();
        }
    }

    fn add(&mut self, other: Self) {
        self.files.extend(other.files);
        self.functions.extend(other.functions);
        self.prose += other.prose;
    }

    fn line(&self, name: &str) -> String {
        let lines: usize = self.files.iter().sum();
        let lengths: Vec<_> = self
            .functions
            .iter()
            .filter_map(|function| function.lines)
            .collect();
        let parameters = self
            .functions
            .iter()
            .map(Function::parameters)
            .max()
            .unwrap_or(0);
        let long = lengths.iter().filter(|lines| **lines > LONG).count();
        let functions = [50, 90, 100].map(|share| percentile(&lengths, share).to_string());
        let files = [50, 100].map(|share| percentile(&self.files, share).to_string());
        format!(
            "{name:<24}{:>7}{lines:>9}{:>15}{:>23}{parameters:>13}{:>6} %{long:>17}",
            self.files.len(),
            files.join(" / "),
            functions.join(" / "),
            (self.prose * 100).checked_div(lines).unwrap_or(0),
        )
    }
}

/// The value that `share` in a hundred do not exceed; 0 of none.
fn percentile(values: &[usize], share: usize) -> usize {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * share / 100).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Figures, percentile};
    use crate::tidy::Source;

    #[test]
    fn the_figures_of_a_file_leave_its_tests_out() {
        let source = |path: &str, text: &str| Source {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let text = "//! Why.\nfn f(a: u8, b: u8) {\n}\n\n#[cfg(test)]\nmod tests {\n    fn g(a: u8, b: u8, c: u8) {}\n}\n";
        let figures = Figures::of(&[source("src/a.rs", text), source("src/tests.rs", text)]);
        let words: Vec<_> = figures
            .line("a")
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let expected = "a 1 4 4 / 4 2 / 2 / 2 2 25 % 0";
        assert_eq!(words.join(" "), expected);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values = [9, 1, 5, 3, 7];
        assert_eq!(
            [0, 50, 90, 100].map(|share| percentile(&values, share)),
            [1, 5, 7, 9]
        );
        assert_eq!(percentile(&[], 50), 0);
    }
}
