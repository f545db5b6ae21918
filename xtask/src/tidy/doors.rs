//! The modules of the Python package that read what a connection brings must not unpickle it.
//!
//! Whoever sends a pickled object runs code where it is read. Only `windrow._codecs` decides where
//! pickled objects are read too.

use super::Findings;
use crate::scan::Source;

/// Modules of the package that read what a connection brings.
const DOORS: &[&str] = &[
    "_data",
    "_values",
    "modules._door",
    "modules._inference",
    "modules._remote",
    "processes.exceptions",
    "processes.proxy",
];

/// Checks that none of these modules imports, or names, what reads pickled objects; and that each
/// exists, since a renamed module would escape the rule.
pub(super) fn check(sources: &[Source], findings: &mut Findings) {
    for door in DOORS {
        let door = format!("windrow.{door}");
        let Some(source) = sources.iter().find(|source| source.module == door) else {
            findings.problems.push(format!(
                "{door}: expected a module that reads what a connection brings, found none"
            ));
            continue;
        };
        for reader in &source.unpicklers {
            findings.problems.push(format!(
                "{}: it names {reader}, by which what a connection brings could run code: read data by windrow._data, or take \
                 the codec of windrow._codecs",
                source.path
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DOORS, check};
    use crate::{scan::Source, tidy::Findings};

    fn problems(unpicklers: &[&str], without: &str) -> Vec<String> {
        let module = |name: &&str| Source {
            path: format!("python/{name}.py"),
            module: format!("windrow.{name}"),
            unpicklers: unpicklers.iter().map(|name| (*name).to_owned()).collect(),
            ..Source::default()
        };
        let sources: Vec<_> = DOORS
            .iter()
            .filter(|name| **name != without)
            .map(module)
            .collect();
        let mut findings = Findings::default();
        check(&sources, &mut findings);
        findings.problems
    }

    #[test]
    fn a_door_that_names_pickle_is_a_problem() {
        assert!(problems(&[], "").is_empty());
        let found = problems(&["pickle"], "");
        assert_eq!(found.len(), DOORS.len(), "{found:?}");
        assert!(found[0].contains("_data.py: it names pickle"), "{found:?}");
    }

    #[test]
    fn a_door_that_is_no_more_is_a_problem() {
        let found = problems(&[], DOORS[1]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("_values: expected a module"), "{found:?}");
    }
}
