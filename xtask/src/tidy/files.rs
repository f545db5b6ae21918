//! Sizes of files, and where `unsafe` may stand.

use super::{Findings, Source, relative};
use crate::{
    scan::rust as code,
    workspace::{Kind, Workspace},
};

/// A file of more lines deserves a second look; unit tests at its end are not counted.
const LONG: usize = 500;

/// A file of more lines is more than one idea.
const TOO_LONG: usize = 800;

/// Crates that may contain `unsafe`, by folder.
const UNSAFE: [&str; 6] = [
    "crates/tensordict/",
    "crates/windrow-sync/",
    "crates/windrow-slab/",
    "crates/windrow-process/",
    "crates/windrow-store/",
    "crates/windrow-python/",
];

const FORBID: &str = "#![forbid(unsafe_code)]";

/// Checks each file by itself.
pub(super) fn check(sources: &[Source], findings: &mut Findings) {
    for source in sources {
        let lines = code::without_unit_tests(&source.text).lines().count();
        if lines > LONG && !is_test(&source.path) {
            let text = format!(
                "{}: expected at most {LONG} lines, got {lines}",
                source.path
            );
            if lines > TOO_LONG {
                findings.problem(text)
            } else {
                findings.warning(text)
            }
        }
        if source.path.ends_with(".rs") && !may_be_unsafe(&source.path) {
            for line in code::lines_with(&code::blank(&source.text), "unsafe") {
                findings.problem(format!(
                    "{}:{line}: `unsafe` outside of the crates that may contain it",
                    source.path
                ));
            }
        }
    }
}

/// Checks that the libraries and programs of the other crates forbid `unsafe` themselves.
pub(super) fn check_roots(workspace: &Workspace, sources: &[Source], findings: &mut Findings) {
    let targets = workspace
        .packages
        .iter()
        .flat_map(|package| &package.targets);
    for target in targets.filter(|target| matches!(target.kind, Kind::Library | Kind::Binary)) {
        let path = relative(&workspace.root, &target.source);
        let forbids = sources
            .iter()
            .any(|source| source.path == path && code::blank(&source.text).contains(FORBID));
        if !may_be_unsafe(&path) && !forbids {
            findings.problem(format!("{path}: expected `{FORBID}`"));
        }
    }
}

fn may_be_unsafe(path: &str) -> bool {
    UNSAFE.iter().any(|folder| path.starts_with(folder))
}

/// Whether a file holds nothing but tests.
pub(crate) fn is_test(path: &str) -> bool {
    path.split('/')
        .any(|part| matches!(part, "tests" | "tests.rs") || part.ends_with("_tests.rs"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{check, check_roots};
    use crate::{
        tidy::{Findings, Source},
        workspace::{Kind, Package, Target, Workspace},
    };

    fn source(path: &str, text: impl Into<String>) -> Source {
        Source {
            path: path.into(),
            text: text.into(),
        }
    }

    #[test]
    fn long_files_are_told_unless_they_are_tests() {
        let mut findings = Findings::default();
        let sources = [
            source("crates/a/src/long.rs", "//\n".repeat(501)),
            source("crates/a/src/too_long.rs", "//\n".repeat(801)),
            source(
                "crates/a/src/tested.rs",
                format!(
                    "//\n\n#[cfg(test)]\nmod tests {{\n{}}}\n",
                    "//\n".repeat(900)
                ),
            ),
            source("crates/a/tests/all.rs", "//\n".repeat(900)),
        ];
        check(&sources, &mut findings);
        assert_eq!(
            findings.warnings,
            ["crates/a/src/long.rs: expected at most 500 lines, got 501"]
        );
        assert_eq!(
            findings.problems,
            ["crates/a/src/too_long.rs: expected at most 500 lines, got 801"]
        );
    }

    #[test]
    fn unsafe_has_its_places() {
        let mut findings = Findings::default();
        let text = "// fine\nunsafe { f() }\n";
        check(
            &[
                source("crates/windrow-slab/src/memory.rs", text),
                source("crates/windrow-env/src/env.rs", text),
            ],
            &mut findings,
        );
        assert_eq!(
            findings.problems,
            ["crates/windrow-env/src/env.rs:2: `unsafe` outside of the crates that may contain it"]
        );
    }

    #[test]
    fn other_crates_forbid_it_themselves() {
        let target = |path: &str| Target {
            name: "a".into(),
            kind: Kind::Library,
            source: PathBuf::from(path),
        };
        let targets = vec![
            target("/w/crates/a/src/lib.rs"),
            target("/w/crates/b/src/lib.rs"),
            target("/w/crates/windrow-slab/src/lib.rs"),
        ];
        let workspace = Workspace {
            root: "/w".into(),
            packages: vec![Package {
                targets,
                ..Package::default()
            }],
        };
        let sources = [
            source("crates/a/src/lib.rs", "#![forbid(unsafe_code)]"),
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
