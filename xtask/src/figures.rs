//! The figures of a tree: lengths of files and functions, statements, share of comments and
//! documentation, sizes of groups of files, and numbers of names and dependencies.
//!
//! They are computed from the files alone, so that one command measures any tree; a file that it
//! does not have counts as empty. Unit tests, files of tests, benchmarks and examples are counted
//! apart, and so are files that a program wrote, whose first line begins with "Generated".

mod knowledge;

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::scan::{self, PYTHON, Source};

/// The crates that run workers wherever they are.
const WORKERS: [&str; 4] = [
    "windrow-collect",
    "windrow-peer",
    "windrow-remote",
    "windrow-sync",
];

/// The crate of the extension module.
const EXTENSION: &str = "windrow-python";

/// Folders of the Python package that do not count as its core.
const BESIDE: [&str; 4] = ["_datasets", "datasets", "ray", "torchrl"];

/// A longer function deserves a second look.
const LONG: usize = 40;

/// Lines, statements (see `items.rs` and `scan.py`), documentation lines per public item, functions
/// of more than [`LONG`] lines.
const HEADER: &str = "\
                                         prose  docs/    file         function          para-           gene-
                  files   lines   stmts    %    item     med/max      p50/p90/max  >40  meters  tests   rated";

/// Prints the figures of the tree at `root`.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let crates = crates(root)?;
    let all: Vec<_> = crates.values().flatten().collect();
    let python = scan::python(root)?;
    println!("{HEADER}");
    for (name, sources) in &crates {
        println!("{}", line(name, sources));
    }
    println!("{}", line("all Rust", all.iter().copied()));
    println!("{}", line(PYTHON, &python));
    println!(
        "{}\n",
        line("xtask", &scan::rust(root, &root.join("xtask"))?)
    );

    println!("lines (statements), tests and generated files apart:");
    let workers = WORKERS
        .iter()
        .filter_map(|name| crates.get(*name))
        .flatten();
    size("all Rust in crates/", all.iter().copied());
    size("collect + peer + remote + sync", workers);
    size(EXTENSION, crates.get(EXTENSION).into_iter().flatten());
    size(PYTHON, &python);
    let core = python
        .iter()
        .filter(|source| !source.path.split('/').any(|part| BESIDE.contains(&part)));
    size("of it without torchrl/, ray/, data sets", core);
    println!("\nhow much there is to know:");
    knowledge::print(root, &crates, &python);
    Ok(true)
}

/// The files of each crate.
fn crates(root: &Path) -> Result<BTreeMap<String, Vec<Source>>> {
    let folder = root.join("crates");
    let failed = || format!("failed to read {}", folder.display());
    let mut crates = BTreeMap::new();
    for entry in fs::read_dir(&folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        if path.join("src").is_dir() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            crates.insert(name.into_owned(), scan::rust(root, &path)?);
        }
    }
    if crates.is_empty() {
        bail!("expected crates in {}, found none", folder.display());
    }
    Ok(crates)
}

/// The figures of some files.
fn line<'a>(name: &str, sources: impl IntoIterator<Item = &'a Source>) -> String {
    let (mut own, mut generated, mut tests) = (Vec::new(), 0, 0);
    for source in sources {
        if !source.is_own() {
            tests += source.lines + source.tests;
        } else if source.is_generated() {
            generated += source.lines + source.tests;
        } else {
            tests += source.tests;
            own.push(source);
        }
    }
    let sum = |count: fn(&Source) -> usize| own.iter().map(|source| count(source)).sum::<usize>();
    let lines: Vec<_> = own.iter().map(|source| source.lines).collect();
    let functions: Vec<_> = own.iter().flat_map(|source| &source.functions).collect();
    let lengths: Vec<_> = functions
        .iter()
        .filter_map(|function| function.lines)
        .collect();
    let parameters = functions.iter().map(|function| function.parameters());
    let all = sum(|source| source.lines);
    format!(
        "{name:<16}{:>7}{all:>8}{:>8}{:>5}{:>8}{:>12}{:>17}{:>5}{:>8}{tests:>8}{generated:>7}",
        own.len(),
        sum(|source| source.statements),
        (sum(|source| source.prose) * 100)
            .checked_div(all)
            .unwrap_or(0),
        tenths(
            sum(|source| source.documentation),
            sum(|source| source.public)
        ),
        percentiles(&lines, &[50, 100]),
        percentiles(&lengths, &[50, 90, 100]),
        lengths.iter().filter(|lines| **lines > LONG).count(),
        parameters.max().unwrap_or(0),
    )
}

/// Prints the numbers of lines and statements of some files.
fn size<'a>(name: &str, sources: impl IntoIterator<Item = &'a Source>) {
    let own = sources
        .into_iter()
        .filter(|source| source.is_own() && !source.is_generated());
    let [lines, statements] = own.fold([0, 0], |[lines, statements], source| {
        [lines + source.lines, statements + source.statements]
    });
    println!("  {name:<40}{lines:>8} ({statements})");
}

/// A quotient with one decimal; 0 if `all` is 0.
fn tenths(some: usize, all: usize) -> String {
    let tenths = (some * 10).checked_div(all).unwrap_or(0);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// The values that each of `shares` in a hundred do not exceed; 0 of none.
fn percentiles(values: &[usize], shares: &[usize]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    let value = |share: &usize| sorted.get(last * share / 100).unwrap_or(&0).to_string();
    shares.iter().map(value).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::{Source, line, percentiles, tenths};

    fn source(path: &str, text: &str) -> Source {
        Source::of_rust(path.to_owned(), text.to_owned()).expect("tokens of Rust")
    }

    #[test]
    fn the_figures_of_a_file_leave_its_tests_and_generated_files_out() {
        let text = "//! Why.\n/// Of f.\npub fn f(a: u8, b: u8) {\n}\n\n#[cfg(test)]\nmod tests {\n    // No.\n    fn g(a: u8, b: u8, c: u8) {}\n}\n";
        let generated = format!("// Generated by a program.\n{text}");
        let files = [
            source("src/a.rs", text),
            source("src/tests.rs", text),
            source("src/b.rs", &generated),
        ];
        let line = line("a", &files);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words.join(" "), "a 1 5 1 40 1.0 5/5 2/2/2 0 2 15 11");
    }

    #[test]
    fn only_a_comment_that_begins_so_says_that_a_program_wrote_the_file() {
        for (first, expected) in [
            ("// Generated by x.", true),
            ("//! Generated: edit y.", true),
            ("//! Modules are generated.", false),
            ("Generated!();", false),
        ] {
            assert_eq!(source("a.rs", first).is_generated(), expected, "{first}");
        }
        for (first, expected) in [
            ("# Generated by x.", true),
            ("\"\"\"Generated by x.", true),
            ("Generated = 1", false),
        ] {
            let source = Source {
                first: first.to_owned(),
                ..Source::default()
            };
            assert_eq!(source.is_generated(), expected, "{first}");
        }
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values = [9, 1, 5, 3, 7];
        assert_eq!(percentiles(&values, &[0, 50, 90, 100]), "1/5/7/9");
        assert_eq!(percentiles(&[], &[50]), "0");
    }

    #[test]
    fn a_quotient_has_one_decimal() {
        assert_eq!([tenths(7, 3), tenths(1, 0)], ["2.3", "0.0"]);
    }
}
