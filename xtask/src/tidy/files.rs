//! Sizes of files and functions, and which crates may contain `unsafe`.

use super::Findings;
use crate::{
    scan::{Function, Source, is_test, relative},
    workspace::Workspace,
};

/// A file of more lines is more than one idea; unit tests are not counted.
const LONG: usize = 800;

/// Most lines of a function, its signature and docstring included.
const LINES: usize = 80;

/// Most parameters of a function, `self` aside.
const PARAMETERS: usize = 6;

/// Crates that may contain `unsafe`, by folder.
const UNSAFE: [&str; 7] = [
    "crates/tensordict/",
    "crates/windrow-sync/",
    "crates/windrow-slab/",
    "crates/windrow-peer/",
    "crates/windrow-store/",
    "crates/windrow-mujoco/",
    "crates/windrow-python/",
];

/// What forbids it: `#![forbid(unsafe_code)]`.
const FORBID: [&str; 8] = ["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]"];

/// Checks every file outside of tests, and its functions.
pub(super) fn check_sizes(sources: &[Source], findings: &mut Findings) {
    for source in sources.iter().filter(|source| !is_test(&source.path)) {
        let (path, lines) = (&source.path, source.lines);
        if lines > LONG {
            let text = format!("{path}: expected at most {LONG} lines, got {lines}");
            findings.problems.push(text);
        }
        for function in &source.functions {
            let (lines, parameters) = match source.is_python() {
                true => without_options(function),
                false => (function.lines.unwrap_or(0), function.parameters()),
            };
            let place = format!("{path}:{}: `{}`", function.line, function.name);
            if lines > LINES {
                let text = format!("{place} has {lines} lines: expected at most {LINES}");
                findings.problems.push(text);
            }
            if parameters > PARAMETERS {
                findings.problems.push(format!(
                    "{place} takes {parameters} parameters: expected at most {PARAMETERS}"
                ));
            }
        }
    }
}

/// Lines and parameters of a function of Python without those that users read as a list of options.
/// A constructor may take any number of options, since a class has only one; a public function
/// those that callers name.
fn without_options(function: &Function) -> (usize, usize) {
    let (name, lines) = (function.name.as_str(), function.lines.unwrap_or(0));
    let body = lines - function.signature;
    match name {
        "__init__" | "__new__" => (body, 0),
        _ if name.starts_with('_') => (lines, function.parameters()),
        _ if function.by_name > PARAMETERS => (body, function.positional),
        _ => (lines, function.positional),
    }
}

/// Checks that the libraries and programs of the other crates forbid `unsafe` themselves.
pub(super) fn check_roots(workspace: &Workspace, sources: &[Source], findings: &mut Findings) {
    let forbids = |source: &Source| {
        let mut places = source.code.find("#");
        places.any(|at| source.code.follow(at, &FORBID))
    };
    for target in workspace.programs() {
        let path = relative(&workspace.root, target);
        let mut roots = sources.iter().filter(|source| source.path == path);
        if !may_be_unsafe(&path) && !roots.any(forbids) {
            findings
                .problems
                .push(format!("{path}: expected `{}`", FORBID.concat()));
        }
    }
}

fn may_be_unsafe(path: &str) -> bool {
    UNSAFE.iter().any(|folder| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::{check_roots, check_sizes};
    use crate::{
        scan::{Function, Source},
        tidy::{Findings, tests},
        workspace::tests::library,
    };

    fn source(path: &str, text: &str) -> Source {
        Source::of_rust(path.into(), text.into()).expect("tokens of Rust")
    }

    fn problems(path: &str, text: &str) -> Vec<String> {
        tests::problems(check_sizes, &[(path, text)])
    }

    /// A function of Python of 91 lines of signature and 1 more, which takes 90 parameters.
    fn of_python(name: &str, are_named: bool) -> Vec<String> {
        let function = Function {
            name: name.to_owned(),
            line: 1,
            signature: 91,
            lines: Some(92),
            positional: if are_named { 0 } else { 90 },
            by_name: if are_named { 90 } else { 0 },
        };
        let source = Source {
            path: "a.py".to_owned(),
            functions: vec![function],
            ..Source::default()
        };
        let mut findings = Findings::default();
        check_sizes(&[source], &mut findings);
        findings.problems
    }

    #[test]
    fn long_files_are_told_unless_they_are_tests() {
        let lines = |count: usize| "//\n".repeat(count);
        let tests = format!("//\n\n#[cfg(test)]\nmod tests {{\n{}}}\n", lines(900));
        let sources = [
            source("crates/a/src/long.rs", &lines(800)),
            source("crates/a/src/too_long.rs", &lines(801)),
            source("crates/a/src/tested.rs", &tests),
            source("crates/a/tests/all.rs", &lines(900)),
        ];
        let mut findings = Findings::default();
        check_sizes(&sources, &mut findings);
        assert_eq!(
            findings.problems,
            ["crates/a/src/too_long.rs: expected at most 800 lines, got 801"]
        );
    }

    #[test]
    fn a_function_of_eighty_lines_is_fine_and_a_longer_one_is_not() {
        let lines = |lines: usize| format!("fn f() {{\n{}}}\n", "    a();\n".repeat(lines - 2));
        assert!(problems("a.rs", &lines(80)).is_empty());
        assert!(problems("tests/a.rs", &lines(90)).is_empty());
        let expected = "a.rs:1: `f` has 81 lines: expected at most 80";
        assert_eq!(problems("a.rs", &lines(81)), [expected]);
    }

    #[test]
    fn six_parameters_are_fine_and_seven_are_not() {
        let takes = |count: usize| format!("fn f(&self, {}) {{}}", "_: u8, ".repeat(count));
        assert!(problems("a.rs", &takes(6)).is_empty());
        let expected = "a.rs:1: `f` takes 7 parameters: expected at most 6";
        assert_eq!(problems("a.rs", &takes(7)), [expected]);
    }

    #[test]
    fn options_of_a_constructor_and_of_a_public_function_are_not_counted() {
        assert!(of_python("__init__", false).is_empty());
        assert!(of_python("made", true).is_empty());
        assert_eq!(of_python("made", false).len(), 2);
        assert_eq!(of_python("_made", true).len(), 2);
    }

    #[test]
    fn other_crates_forbid_it_themselves() {
        let workspace = library(&["a", "b", "windrow-slab"]);
        let sources = [
            source("crates/a/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]"),
            source("crates/b/src/lib.rs", "// #![forbid(unsafe_code)]"),
        ];
        let mut findings = Findings::default();
        check_roots(&workspace, &sources, &mut findings);
        assert_eq!(
            findings.problems,
            ["crates/b/src/lib.rs: expected `#![forbid(unsafe_code)]`"]
        );
    }
}
