//! Directions between the rooms of the engine and of the crate of environments, and circles among
//! the engine's files.

use std::collections::BTreeSet;

use super::{Findings, Order};
use crate::scan::{
    Source,
    modules::{Graph, Module, circles},
};

pub(crate) const FOLDER: &str = "crates/windrow-collect/src/";

/// Most files that may know each other in a circle: a type and its other half.
const CIRCLE: usize = 2;

/// Each room at the top of the crate, and those it may know, which stand above it in the table:
/// reading goes one way.
const ROOMS: Order = Order(&[
    ("error", ""),
    ("probe", "error"),
    ("trajectories", "error"),
    ("postproc", "error trajectories"),
    ("config", "error probe trajectories postproc"),
    ("shared", "error probe config"),
    ("worker", "error probe config shared"),
    ("process", "error probe config shared worker"),
    ("placement", "error probe config shared worker process"),
    (
        "deliver",
        "error probe trajectories postproc config shared worker placement",
    ),
    (
        "build",
        "error probe trajectories postproc config shared worker process placement deliver",
    ),
    // A user of collectors, as others are.
    ("evaluator", "error trajectories config deliver build"),
]);

/// The crate of environments, and its rooms for those that come with windrow, which [`TABLE`] alone
/// knows.
const ENVS: &str = "crates/windrow-env/src/";
const OF_ENVS: [&str; 2] = ["gym", "mujoco"];
const TABLE: &str = "builtin";

/// Checks that no room of environments is known outside of it.
pub(super) fn check_envs(sources: &[Source], findings: &mut Findings) {
    let room = |module: &Module| {
        let room = module.first().map_or("", String::as_str);
        OF_ENVS.into_iter().find(|name| *name == room)
    };
    for (from, to) in Graph::read(sources, ENVS).edges() {
        let is_table = from.first().is_some_and(|first| first == TABLE);
        if let Some(known) = room(&to).filter(|known| !is_table && room(&from) != Some(known)) {
            findings.problems.push(format!(
                "{ENVS}{}.rs knows {}: `{TABLE}` alone may know `{known}`, since it is a feature",
                name(&from).replace("::", "/"),
                to.join("::"),
            ));
        }
    }
}

/// Checks the engine's modules.
pub(super) fn check(sources: &[Source], findings: &mut Findings) {
    let edges = Graph::read(sources, FOLDER).edges();
    let mut unknown = BTreeSet::new();
    for (from, to) in &edges {
        let Some(room) = from.first() else {
            continue;
        };
        let Some(allowed) = ROOMS.allowed(room) else {
            unknown.insert(room);
            continue;
        };
        let known = to.first().filter(|known| *known != room);
        if known.is_some_and(|known| !allowed.contains(&known.as_str())) {
            findings.problems.push(format!(
                "{FOLDER}{}.rs knows {}: `{room}` may know {}",
                from.join("/"),
                to.join("::"),
                allowed.join(", ")
            ));
        }
    }
    for room in unknown {
        findings.problems.push(format!(
            "{FOLDER}{room}: expected an entry in the table of rooms, got none"
        ));
    }
    for circle in circles(&edges) {
        if circle.len() > CIRCLE {
            let names: Vec<_> = circle.iter().map(name).collect();
            findings.problems.push(format!(
                "{FOLDER}: {} files know each other in a circle, expected at most {CIRCLE}: {}",
                circle.len(),
                names.join(", ")
            ));
        }
    }
}

/// The name of a module, `lib` at the root.
pub(crate) fn name(module: &Module) -> String {
    match module.as_slice() {
        [] => "lib".to_owned(),
        module => module.join("::"),
    }
}

#[cfg(test)]
mod tests {
    use super::{ENVS, ROOMS, check, check_envs};
    use crate::tidy::tests::{assert_no_circle, problems, problems_in_collect};

    fn in_collect(files: &[(&str, &str)]) -> Vec<String> {
        problems_in_collect(check, files)
    }

    #[test]
    fn a_room_may_know_those_below_it_and_no_other() {
        let down = [("worker.rs", "use crate::shared::Desk;"), ("shared.rs", "")];
        assert!(in_collect(&down).is_empty());
        let up = [
            ("worker.rs", ""),
            ("shared.rs", "mod desk;"),
            ("shared/desk.rs", "use crate::worker::Worker;"),
        ];
        assert_eq!(
            in_collect(&up),
            [
                "crates/windrow-collect/src/shared/desk.rs knows worker: `shared` may know error, probe, config"
            ]
        );
    }

    #[test]
    fn a_new_room_needs_an_entry() {
        let files = [("news.rs", "use crate::error::E;"), ("error.rs", "")];
        assert_eq!(
            in_collect(&files),
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
        assert!(in_collect(&two).is_empty());
        let three = [
            ("worker.rs", "mod a;\nmod b;\nuse a::A;"),
            ("worker/a.rs", "use super::b::B;"),
            ("worker/b.rs", "use super::Worker;"),
        ];
        assert_eq!(
            in_collect(&three),
            [
                "crates/windrow-collect/src/: 3 files know each other in a circle, expected at most 2: worker, worker::a, worker::b"
            ]
        );
    }

    #[test]
    fn environments_of_a_feature_are_known_by_their_table_alone() {
        let lib = "#[cfg(feature = \"gym\")]\nmod gym;\nmod vec_env;\npub use gym::CartPole;";
        let gym = "use crate::vec_env::Serial;\npub struct CartPole;\npub(crate) fn entries() {}";
        let found = |name: &str, text: &str| {
            let files = [
                ("lib.rs", lib),
                ("gym.rs", gym),
                ("vec_env.rs", ""),
                (name, text),
            ];
            let files = files.map(|(name, text)| (format!("{ENVS}{name}"), text));
            let files = files.each_ref().map(|(name, text)| (name.as_str(), *text));
            problems(check_envs, &files)
        };
        assert!(found("builtin.rs", "use crate::gym::entries;").is_empty());
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::CartPole;\n}";
        assert!(found("pool.rs", tests).is_empty());
        for other in ["use crate::CartPole;", "use crate::gym::CartPole;"] {
            assert_eq!(
                found("pool/member.rs", other),
                [
                    "crates/windrow-env/src/pool/member.rs knows gym: `builtin` alone may know `gym`, since it is a feature"
                ]
            );
        }
        assert_eq!(found("mujoco/envs.rs", "use crate::CartPole;").len(), 1);
    }

    #[test]
    fn the_table_has_no_circle() {
        assert_no_circle(&ROOMS);
    }
}
