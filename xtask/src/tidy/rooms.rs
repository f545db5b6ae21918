//! Directions between the rooms of the engine, and circles among its files.

use std::collections::BTreeSet;

use super::{Findings, Source, files};
use crate::scan::modules::{Graph, Module};

const FOLDER: &str = "crates/windrow-collect/src/";

/// Most files that may know each other in a circle: a type and its other half.
const CIRCLE: usize = 2;

/// Each room at the top of the crate, and those it may know, which stand above it in the table: reading goes one way.
const ROOMS: [(&str, &[&str]); 12] = [
    ("error", &[]),
    ("probe", &["error"]),
    ("trajectories", &["error"]),
    ("postproc", &["error", "trajectories"]),
    ("config", &["error", "probe", "trajectories", "postproc"]),
    ("shared", &["error", "probe", "config"]),
    ("worker", &["error", "probe", "config", "shared"]),
    ("process", &["error", "probe", "config", "shared", "worker"]),
    (
        "placement",
        &["error", "probe", "config", "shared", "worker", "process"],
    ),
    (
        "deliver",
        &[
            "error",
            "probe",
            "trajectories",
            "postproc",
            "config",
            "shared",
            "worker",
            "placement",
        ],
    ),
    (
        "build",
        &[
            "error",
            "probe",
            "trajectories",
            "postproc",
            "config",
            "shared",
            "worker",
            "process",
            "placement",
            "deliver",
        ],
    ),
    // A user of collectors, as others are.
    (
        "evaluator",
        &["error", "trajectories", "config", "deliver", "build"],
    ),
];

/// Checks the engine's modules.
pub(super) fn check(sources: &[Source], findings: &mut Findings) {
    let graph = graph(sources, FOLDER);
    let edges = graph.edges();
    let rooms: BTreeSet<&String> = edges.iter().filter_map(|(from, _)| from.first()).collect();
    let unknown = rooms
        .into_iter()
        .filter(|room| ROOMS.iter().all(|(name, _)| name != room));
    for room in unknown {
        findings.problem(format!(
            "{FOLDER}{room}: expected an entry in the table of rooms, got none"
        ));
    }
    for (from, to) in &edges {
        let (Some(room), Some(known)) = (from.first(), to.first()) else {
            continue;
        };
        let entry = ROOMS.iter().find(|(name, _)| name == room);
        let Some((_, allowed)) = entry.filter(|_| room != known) else {
            continue;
        };
        if !allowed.contains(&known.as_str()) {
            findings.problem(format!(
                "{FOLDER}{}.rs knows {}: `{room}` may know {}",
                from.join("/"),
                to.join("::"),
                allowed.join(", ")
            ));
        }
    }
    for circle in graph
        .circles()
        .iter()
        .filter(|circle| circle.len() > CIRCLE)
    {
        let names: Vec<_> = circle.iter().map(name).collect();
        findings.problem(format!(
            "{FOLDER}: {} files know each other in a circle, expected at most {CIRCLE}: {}",
            circle.len(),
            names.join(", ")
        ));
    }
}

/// The graph of the files below `folder` that are no tests.
pub(crate) fn graph(sources: &[Source], folder: &str) -> Graph {
    let below = sources
        .iter()
        .filter(|source| !files::is_test(&source.path));
    let below = below.filter_map(|source| {
        let path = source.path.strip_prefix(folder)?;
        Some((path, source.text.as_str()))
    });
    Graph::read(below)
}

fn name(module: &Module) -> String {
    match module.as_slice() {
        [] => "lib".to_owned(),
        module => module.join("::"),
    }
}

#[cfg(test)]
mod tests {
    use super::{ROOMS, check};
    use crate::tidy::Findings;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        Findings::in_collect(check, files).problems
    }

    #[test]
    fn a_room_may_know_those_below_it_and_no_other() {
        let down = [("worker.rs", "use crate::shared::Desk;"), ("shared.rs", "")];
        assert!(problems(&down).is_empty());
        let up = [
            ("worker.rs", ""),
            ("shared.rs", "mod desk;"),
            ("shared/desk.rs", "use crate::worker::Worker;"),
        ];
        assert_eq!(
            problems(&up),
            [
                "crates/windrow-collect/src/shared/desk.rs knows worker: `shared` may know error, probe, config"
            ]
        );
    }

    #[test]
    fn a_new_room_needs_an_entry() {
        let files = [("news.rs", "use crate::error::E;"), ("error.rs", "")];
        assert_eq!(
            problems(&files),
            ["crates/windrow-collect/src/news: expected an entry in the table of rooms, got none"]
        );
    }

    #[test]
    fn two_files_may_know_each_other_and_three_may_not() {
        let two = [
            ("worker.rs", "mod a;\nmod b;"),
            ("worker/a.rs", "use super::b::B;"),
            ("worker/b.rs", "use super::a::A;"),
        ];
        assert!(problems(&two).is_empty());
        let three = [
            ("worker.rs", "mod a;\nmod b;\nuse a::A;"),
            ("worker/a.rs", "use super::b::B;"),
            ("worker/b.rs", "use super::Worker;"),
        ];
        assert_eq!(
            problems(&three),
            [
                "crates/windrow-collect/src/: 3 files know each other in a circle, expected at most 2: worker, worker::a, worker::b"
            ]
        );
    }

    #[test]
    fn the_table_has_no_circle() {
        for (place, (room, allowed)) in ROOMS.iter().enumerate() {
            for known in *allowed {
                let below = ROOMS.iter().position(|(other, _)| other == known);
                assert!(below.is_some_and(|below| below < place), "{room} ▸ {known}");
            }
        }
    }
}
