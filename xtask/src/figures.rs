//! The figures of a tree: lengths of files and functions, numbers of parameters, share of comments
//! and documentation, and how much there is to know.
//!
//! They are computed from the files alone, so that one command measures any tree; a file that it
//! does not have counts as empty.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};

use crate::{
    scan::{
        self, PYTHON, Source,
        modules::{Graph, circles},
        package::{imports, named},
    },
    tidy::{ENGINE, name},
};

/// The crates that run workers wherever they are.
const WORKERS: &str = "windrow-collect windrow-peer windrow-remote windrow-sync";

/// A longer function deserves a second look.
const LONG: usize = 40;

/// How many groups of types that share a name are printed.
const GROUPS: usize = 5;

const HEADER: &str = "                          files    lines   file med/max   function p50/p90/max   parameters   prose   functions > 40    tests";

/// Prints the figures of the tree at `root`.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let read = |name| fs::read_to_string(root.join(name)).unwrap_or_default();
    let crates = crates(root)?;
    let all: Vec<_> = crates.values().flatten().collect();
    let python = scan::python(root)?;
    println!("{HEADER}");
    for (name, sources) in &crates {
        println!("{}", line(name, sources));
    }
    println!("{}", line("all Rust", all.iter().copied()));
    println!("{}", line(PYTHON, &python));
    let tasks = scan::rust(root, &root.join("xtask"))?;
    println!("{}\n", line("xtask", &tasks));

    let names = WORKERS.split(' ').filter(|name| crates.contains_key(*name));
    let names: Vec<_> = names.collect();
    let workers = names.iter().flat_map(|name| &crates[*name]);
    let own = workers
        .filter(|source| source.is_own())
        .map(|source| source.lines);
    println!("lines of {}: {}", names.join(" + "), own.sum::<usize>());
    let packages = read("Cargo.lock").matches("[[package]]").count();
    println!("packages in Cargo.lock: {packages}");
    println!("types of one name: {}", types(&all));
    println!("{}", words(&read("ARCHITECTURE.md")));
    let engine = crates.get("windrow-collect").map_or(&[][..], Vec::as_slice);
    let edges = Graph::read(engine, ENGINE).edges();
    let edges = edges.iter().map(|(from, to)| (name(from), name(to)));
    circle("windrow-collect", &edges.collect());
    circle(PYTHON, &imports(&python));
    let named = named(all.iter().copied(), &python);
    println!("private Python modules that Rust names: {}", named.len());
    println!("  {}", named.join(", "));
    println!("plain `Any` in {PYTHON}: {}", anys(&python));
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
    let (mut files, mut functions, mut prose, mut tests) = (Vec::new(), Vec::new(), 0, 0);
    for source in sources {
        tests += source.tests;
        if source.is_own() {
            files.push(source.lines);
            functions.extend(&source.functions);
            prose += source.prose;
        } else {
            tests += source.lines;
        }
    }
    let lines: usize = files.iter().sum();
    let lengths = functions.iter().filter_map(|function| function.lines);
    let lengths: Vec<_> = lengths.collect();
    let parameters = functions.iter().map(|function| function.parameters());
    format!(
        "{name:<24}{:>7}{lines:>9}{:>15}{:>23}{:>13}{:>6} %{:>17}{tests:>9}",
        files.len(),
        percentiles(&files, &[50, 100]),
        percentiles(&lengths, &[50, 90, 100]),
        parameters.max().unwrap_or(0),
        (prose * 100).checked_div(lines).unwrap_or(0),
        lengths.iter().filter(|lines| **lines > LONG).count(),
    )
}

/// The values that each of `shares` in a hundred do not exceed; 0 of none.
fn percentiles(values: &[usize], shares: &[usize]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    let value = |share: &usize| sorted.get(last * share / 100).unwrap_or(&0).to_string();
    shares.iter().map(value).collect::<Vec<_>>().join(" / ")
}

/// The names that the most types have, and how many.
fn types(sources: &[&Source]) -> String {
    let mut counts = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_own()) {
        let names = source.code.types();
        names.for_each(|name| *counts.entry(name).or_insert(0) += 1);
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    counts.truncate(GROUPS);
    let groups = counts.iter().map(|(name, count)| format!("{name} {count}"));
    groups.collect::<Vec<_>>().join(", ")
}

/// How long a page and its glossary are.
fn words(page: &str) -> String {
    let mut sections = page.split("\n## ");
    let glossary = sections.find(|section| section.starts_with("Words\n"));
    let glossary = glossary.unwrap_or_default();
    let [all, own] = [page, glossary].map(|text| text.split_whitespace().count());
    let entries = glossary.matches("\n| **").count();
    format!("words of ARCHITECTURE.md: {all}, of its glossary: {own} in {entries} entries")
}

fn circle(package: &str, edges: &BTreeSet<(String, String)>) {
    let circles = circles(edges);
    let largest = circles.first().map_or(1, Vec::len);
    println!("largest circle of modules in {package}: {largest} files");
    if let Some(circle) = circles.first() {
        println!("  {}", circle.join(", "));
    }
}

/// Shares of parameters and of results.
fn anys(python: &[Source]) -> String {
    let sum = |at: usize| python.iter().map(|source| source.any_shares[at]).sum();
    let [some, parameters, any, results]: [usize; 4] = [0, 1, 2, 3].map(sum);
    let share = |some: usize, all: usize| (100 * some).checked_div(all).unwrap_or(0);
    let [some, any] = [share(some, parameters), share(any, results)];
    format!("{some} % of {parameters} parameters, {any} % of {results} results")
}

#[cfg(test)]
mod tests {
    use super::{Source, anys, imports, line, named, percentiles, types, words};

    fn source(path: &str, text: &str) -> Source {
        Source::of_rust(path.to_owned(), text.to_owned()).expect("tokens of Rust")
    }

    fn module(name: &str, imports: &[&str]) -> Source {
        Source {
            module: name.to_owned(),
            imports: imports.iter().map(|known| (*known).to_owned()).collect(),
            ..Source::default()
        }
    }

    #[test]
    fn the_figures_of_a_file_leave_its_tests_out() {
        let text = "//! Why.\nfn f(a: u8, b: u8) {\n}\n\n#[cfg(test)]\nmod tests {\n    // No.\n    fn g(a: u8, b: u8, c: u8) {}\n}\n";
        let files = [source("src/a.rs", text), source("src/tests.rs", text)];
        let line = line("a", &files);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words.join(" "), "a 1 4 4 / 4 2 / 2 / 2 2 25 % 0 14");
    }

    #[test]
    fn types_of_one_name_are_counted_in_all_files() {
        let files = [
            source(
                "a.rs",
                "pub struct Place<T>(T); enum Other {} trait Place {}",
            ),
            source(
                "b.rs",
                "macro_rules! m { () => { struct Place; } }\ntype Other = u8; // enum Other {}",
            ),
            source("b_tests.rs", "struct Other;"),
        ];
        let files: Vec<_> = files.iter().collect();
        assert_eq!(types(&files), "Place 3, Other 1");
    }

    #[test]
    fn modules_that_rust_names_by_string_are_found() {
        let python = [
            module("windrow._a", &[]),
            module("windrow.b", &[]),
            module("windrow.b._c", &[]),
        ];
        let text = "fn f() { import(\"windrow._a\", \"windrow.b\"); } // \"windrow.b._c\"";
        let rust = source("a.rs", text);
        assert_eq!(named([&rust], &python), ["windrow._a"]);
    }

    #[test]
    fn a_module_that_imports_itself_is_no_circle() {
        let modules = [module("a", &["a", "b"]), module("b", &[])];
        let edges = imports(&modules);
        assert_eq!(
            edges.into_iter().collect::<Vec<_>>(),
            [("a".to_owned(), "b".to_owned())]
        );
    }

    #[test]
    fn the_glossary_ends_with_its_section() {
        let page = "# A\n\n## Words\n\n| **ring** | a |\n\n## More\n\nb\n";
        let expected = "words of ARCHITECTURE.md: 12, of its glossary: 6 in 1 entries";
        assert_eq!(words(page), expected);
    }

    #[test]
    fn shares_are_those_of_all_files() {
        let of = |any_shares| Source {
            any_shares,
            ..Source::default()
        };
        let expected = "50 % of 4 parameters, 25 % of 4 results";
        assert_eq!(anys(&[of([1, 3, 0, 1]), of([1, 1, 1, 3])]), expected);
        assert_eq!(anys(&[]), "0 % of 0 parameters, 0 % of 0 results");
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values = [9, 1, 5, 3, 7];
        assert_eq!(percentiles(&values, &[0, 50, 90, 100]), "1 / 5 / 7 / 9");
        assert_eq!(percentiles(&[], &[50]), "0");
    }
}
