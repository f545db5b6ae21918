//! Figures of what a reader of a tree has to know: names of types, variants of errors, packages,
//! words, and circles of modules.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::tenths;
use crate::{
    scan::{
        PYTHON, Source,
        modules::{Graph, circles},
        package::{KINDS, edges, named},
    },
    tidy::{ENGINE, name},
};

/// How many groups of types that share a name are printed.
const GROUPS: usize = 5;

/// Most columns of a list.
const COLUMNS: usize = 110;

/// Prints all of it.
pub(super) fn print(root: &Path, crates: &BTreeMap<String, Vec<Source>>, python: &[Source]) {
    let read = |name| fs::read_to_string(root.join(name)).unwrap_or_default();
    let all: Vec<_> = crates
        .values()
        .flatten()
        .filter(|source| source.is_own())
        .collect();
    println!("  public type names: {}", public_types(&all));
    println!("  variants of errors: {}", variants(&all));
    println!("  types of one name: {}", types(&all));
    let packages = read("Cargo.lock").matches("[[package]]").count();
    println!("  packages in Cargo.lock: {packages}");
    println!("  {}", words(&read("ARCHITECTURE.md")));
    println!("  plain `Any` in {PYTHON}: {}", anys(python));
    let named = named(all.iter().copied(), python);
    println!(
        "  private Python modules that Rust names: {}",
        named.join(", ")
    );

    let engine = crates.get("windrow-collect").map_or(&[][..], Vec::as_slice);
    let known = Graph::read(engine, ENGINE).edges();
    let known = known.iter().map(|(from, to)| (name(from), name(to)));
    println!("\ncircles of modules:");
    println!(
        "  windrow-collect: {}",
        circle(&known.collect(), &lines_of(engine))
    );
    for kinds in 1..=KINDS.len() {
        let known = edges(python, &KINDS[..kinds]);
        let label = KINDS[..kinds].join(" + ");
        println!("  {PYTHON}, {label}: {}", circle(&known, &lines_of(python)));
        if kinds == KINDS.len() {
            for circle in circles(&known) {
                println!("{}", wrapped(&circle));
            }
        }
    }
}

/// The numbers of types that are `pub` outside of tests, whether or not their crates export them,
/// and of their different names.
fn public_types(sources: &[&Source]) -> String {
    let items = sources.iter().flat_map(|source| source.code.public());
    let names: Vec<_> = items
        .filter(|item| item.is_type())
        .map(|item| item.name)
        .collect();
    let all = names.len();
    let names: BTreeSet<_> = names.into_iter().collect();
    format!("{} of {all} types", names.len())
}

/// The number of variants of all enums of errors.
fn variants(sources: &[&Source]) -> String {
    let enums: Vec<_> = sources
        .iter()
        .flat_map(|source| source.code.errors())
        .collect();
    let variants: usize = enums.iter().map(|(_, variants)| variants).sum();
    format!("{variants} in {} enums", enums.len())
}

/// The names that the most types have, and how many.
fn types(sources: &[&Source]) -> String {
    let mut counts = BTreeMap::new();
    for source in sources {
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

/// Shares of parameters and of results.
fn anys(python: &[Source]) -> String {
    let sum = |at: usize| python.iter().map(|source| source.any_shares[at]).sum();
    let [some, parameters, any, results]: [usize; 4] = [0, 1, 2, 3].map(sum);
    let share = |some: usize, all: usize| (100 * some).checked_div(all).unwrap_or(0);
    let [some, any] = [share(some, parameters), share(any, results)];
    format!("{some} % of {parameters} parameters, {any} % of {results} results")
}

/// The lines of modules, by the names that they have in circles.
fn lines_of(sources: &[Source]) -> BTreeMap<String, usize> {
    let module = |source: &Source| match source.path.strip_prefix(ENGINE) {
        Some(path) => path.trim_end_matches(".rs").replace('/', "::"),
        None => source.module.clone(),
    };
    sources
        .iter()
        .map(|source| (module(source), source.lines))
        .collect()
}

/// The sizes of circles of modules: modules and thousands of lines of the largest, and the number
/// of modules in all.
fn circle(edges: &BTreeSet<(String, String)>, lines: &BTreeMap<String, usize>) -> String {
    let circles = circles(edges);
    let Some(largest) = circles.first() else {
        return "none".to_owned();
    };
    let lines: usize = largest.iter().filter_map(|name| lines.get(name)).sum();
    let all: usize = circles.iter().map(Vec::len).sum();
    let (count, thousands) = (largest.len(), tenths(lines, 1000));
    format!(
        "{count} modules, {thousands} k lines; in all {all} modules in circles of {}",
        circles.len()
    )
}

/// Names in lines of at most [`COLUMNS`] columns.
fn wrapped(names: &[String]) -> String {
    let mut lines = vec!["    -".to_owned()];
    for name in names {
        let name = name.strip_prefix("windrow.").unwrap_or(name);
        match lines.last_mut() {
            Some(line) if line.len() + name.len() < COLUMNS => *line += &format!(" {name}"),
            _ => lines.push(format!("      {name}")),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{
        Source, anys, circle, edges, lines_of, named, public_types, types, variants, words, wrapped,
    };

    fn source(path: &str, text: &str) -> Source {
        Source::of_rust(path.to_owned(), text.to_owned()).expect("tokens of Rust")
    }

    fn module(name: &str, imports: &[&str], packages: &[&str]) -> Source {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let edges = [("imports", imports), ("packages", packages)];
        Source {
            module: name.to_owned(),
            lines: 100,
            edges: edges
                .into_iter()
                .map(|(kind, names)| (kind.to_owned(), owned(names)))
                .collect(),
            ..Source::default()
        }
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
        ];
        let files: Vec<_> = files.iter().collect();
        assert_eq!(types(&files), "Place 3, Other 1");
    }

    #[test]
    fn a_public_name_counts_once_and_a_private_one_never() {
        let files = [
            source(
                "a.rs",
                "pub struct A; pub(crate) enum B {} trait C {} pub fn f() {}",
            ),
            source("b.rs", "mod inner { pub struct A; pub type D = u8; }"),
        ];
        assert_eq!(public_types(&files.each_ref()), "2 of 3 types");
    }

    #[test]
    fn variants_are_those_of_errors() {
        let files = [
            source("a.rs", "enum AError { A, B { c: u8 } } enum Other { C }"),
            source("b.rs", "#[derive(Error)] pub enum Fault { D, }"),
        ];
        assert_eq!(variants(&files.each_ref()), "3 in 2 enums");
    }

    #[test]
    fn modules_that_rust_names_by_string_are_found() {
        let python = [
            module("windrow._a", &[], &[]),
            module("windrow.b", &[], &[]),
            module("windrow.b._c", &[], &[]),
        ];
        let text = "fn f() { import(\"windrow._a\", \"windrow.b\"); } // \"windrow.b._c\"";
        let rust = source("a.rs", text);
        assert_eq!(named([&rust], &python), ["windrow._a"]);
    }

    #[test]
    fn a_circle_is_as_large_as_the_kinds_of_edges_make_it() {
        let modules = [
            module("a", &["a", "b"], &[]),
            module("b", &["c"], &["a"]),
            module("c", &["b"], &[]),
        ];
        let lines = lines_of(&modules);
        let of = |kinds: &[&str]| circle(&edges(&modules, kinds), &lines);
        assert_eq!(of(&[]), "none");
        assert_eq!(
            of(&["imports"]),
            "2 modules, 0.2 k lines; in all 2 modules in circles of 1"
        );
        let expected = "3 modules, 0.3 k lines; in all 3 modules in circles of 1";
        assert_eq!(of(&["imports", "packages"]), expected);
    }

    #[test]
    fn modules_of_rust_have_lines_too() {
        let files = [source("crates/windrow-collect/src/a/b.rs", "fn f() {\n}")];
        assert_eq!(lines_of(&files), BTreeMap::from([("a::b".to_owned(), 2)]));
    }

    #[test]
    fn long_lists_are_wrapped() {
        let names = vec!["windrow.abcdefg".to_owned(); 20];
        let lines: Vec<_> = wrapped(&names).lines().map(str::len).collect();
        assert_eq!(lines, [109, 61]);
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
}
