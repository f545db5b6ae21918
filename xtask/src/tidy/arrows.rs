//! Which crate of the workspace may know which other.

use super::Findings;
use crate::workspace::Workspace;

const TENSORDICT: &str = "windrow-tensordict";
const SYNC: &str = "windrow-sync";
const SLAB: &str = "windrow-slab";
const PROCESS: &str = "windrow-process";
const STORE: &str = "windrow-store";
const ENV: &str = "windrow-env";
const POLICY: &str = "windrow-policy";
const COLLECT: &str = "windrow-collect";
const REPLAY: &str = "windrow-replay";
const REMOTE: &str = "windrow-remote";
const FACADE: &str = "windrow";

/// Each package and those it may depend on: `tensordict ◀ slab ◀ env ◀ policy ◀ collect ◀ windrow ◀ python`,
/// `slab ◀ process ◀ collect`, `tensordict ◀ store ◀ replay ◀ windrow` and `policy ◀ remote ◀ windrow`; all of them but tensordict may
/// depend on sync. Collection and replay do not know each other: what they share is the slab crate's `Sink`.
const ARROWS: [(&str, &[&str]); 14] = [
    (TENSORDICT, &[]),
    (SYNC, &[]),
    (SLAB, &[TENSORDICT, SYNC]),
    (PROCESS, &[TENSORDICT, SYNC, SLAB]),
    (STORE, &[TENSORDICT, SYNC]),
    (ENV, &[TENSORDICT, SYNC, SLAB]),
    (POLICY, &[TENSORDICT, SYNC, SLAB, ENV]),
    (COLLECT, &[TENSORDICT, SYNC, SLAB, PROCESS, ENV, POLICY]),
    (REPLAY, &[TENSORDICT, SYNC, SLAB, STORE]),
    // Its tests run collectors over a connection.
    (
        REMOTE,
        &[TENSORDICT, SYNC, SLAB, PROCESS, ENV, POLICY, COLLECT],
    ),
    (
        FACADE,
        &[
            TENSORDICT, SYNC, SLAB, PROCESS, STORE, ENV, POLICY, COLLECT, REPLAY, REMOTE,
        ],
    ),
    (
        "windrow-python",
        &[
            TENSORDICT, SYNC, SLAB, PROCESS, STORE, ENV, POLICY, COLLECT, REPLAY, REMOTE, FACADE,
        ],
    ),
    ("windrow-examples", &[FACADE]),
    ("xtask", &[]),
];

/// Checks dependencies of every sort, those of tests included.
pub(super) fn check(workspace: &Workspace, findings: &mut Findings) {
    let is_member = |name: &str| {
        workspace
            .packages
            .iter()
            .any(|package| package.name == name)
    };
    for package in &workspace.packages {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
            findings.problem(format!(
                "{}: expected an entry in the table of arrows, got none",
                package.name
            ));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|name| is_member(name)) {
            if !allowed.contains(&dependency.as_str()) {
                let allowed = if allowed.is_empty() {
                    "nothing of this workspace".to_owned()
                } else {
                    allowed.join(", ")
                };
                findings.problem(format!(
                    "{} depends on {dependency}: it may depend on {allowed}",
                    package.name
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ARROWS, check};
    use crate::{
        tidy::Findings,
        workspace::{Package, Workspace},
    };

    fn problems(packages: &[(&str, &[&str])]) -> Vec<String> {
        let packages = packages
            .iter()
            .map(|(name, dependencies)| Package {
                name: (*name).to_owned(),
                dependencies: dependencies.iter().map(|name| (*name).to_owned()).collect(),
                ..Package::default()
            })
            .collect();
        let mut findings = Findings::default();
        check(
            &Workspace {
                root: "/w".into(),
                packages,
            },
            &mut findings,
        );
        findings.problems
    }

    #[test]
    fn arrows_point_down() {
        assert!(
            problems(&[
                ("windrow-slab", &["windrow-tensordict", "thiserror"]),
                ("windrow-tensordict", &[])
            ])
            .is_empty()
        );
        assert_eq!(
            problems(&[("windrow-slab", &["windrow-env"]), ("windrow-env", &[])]),
            [
                "windrow-slab depends on windrow-env: it may depend on windrow-tensordict, windrow-sync"
            ]
        );
        assert_eq!(
            problems(&[
                ("windrow-collect", &["windrow-replay"]),
                ("windrow-replay", &[])
            ])
            .len(),
            1
        );
    }

    #[test]
    fn a_new_crate_needs_an_entry() {
        assert_eq!(
            problems(&[("windrow-news", &[])]),
            ["windrow-news: expected an entry in the table of arrows, got none"]
        );
    }

    #[test]
    fn the_table_has_no_circle() {
        for (place, (name, allowed)) in ARROWS.iter().enumerate() {
            for dependency in *allowed {
                let below = ARROWS.iter().position(|(other, _)| other == dependency);
                assert!(
                    below.is_some_and(|below| below < place),
                    "{name} ▸ {dependency}"
                );
            }
        }
    }
}
