//! Which crate of the workspace may know which other.

use super::{Findings, Order};
use crate::workspace::Workspace;

/// Each package and those it may depend on, without `windrow-`:
/// `tensordict ◀ slab ◀ env ◀ policy ◀ collect ◀ windrow ◀ python`, `slab ◀ peer ◀ collect`,
/// `mujoco ◀ env`, `tensordict ◀ store ◀ replay ◀ windrow`, `policy ◀ remote ◀ windrow` and
/// `policy ◀ candle`; all of them but tensordict and mujoco may depend on sync. Collection and
/// replay do not know each other: what they share is the slab crate's `Sink`.
const ARROWS: Order = Order(&[
    ("tensordict", ""),
    ("sync", ""),
    ("slab", "tensordict sync"),
    ("peer", "tensordict sync slab"),
    ("store", "tensordict sync"),
    ("mujoco", ""),
    ("env", "tensordict sync slab mujoco"),
    ("policy", "tensordict sync slab env"),
    ("collect", "tensordict sync slab peer env policy"),
    ("replay", "tensordict sync slab store"),
    // Its tests run collectors over a connection.
    ("remote", "tensordict sync slab peer env policy collect"),
    (
        "windrow",
        "tensordict sync slab peer store env policy collect replay remote",
    ),
    (
        "python",
        "tensordict sync slab peer store env policy collect replay remote windrow",
    ),
    // Its tests and examples run collectors.
    ("candle", "tensordict policy windrow"),
    ("examples", "windrow"),
    ("examples-candle", "windrow candle examples"),
    ("xtask", ""),
]);

/// Checks dependencies of every sort, those of tests included.
pub(super) fn check(workspace: &Workspace, findings: &mut Findings) {
    let short = |name: &str| name.trim_start_matches("windrow-").to_owned();
    let members: Vec<_> = workspace
        .packages
        .iter()
        .map(|package| &package.name)
        .collect();
    for package in &workspace.packages {
        let name = &package.name;
        let Some(allowed) = ARROWS.allowed(&short(name)) else {
            findings.problems.push(format!(
                "{name}: expected an entry in the table of arrows, got none"
            ));
            continue;
        };
        let known = package
            .dependencies
            .iter()
            .map(|dependency| &dependency.name);
        for known in known.filter(|known| members.contains(known)) {
            if !allowed.contains(&short(known).as_str()) {
                let allowed = match allowed.is_empty() {
                    true => "nothing of this workspace".to_owned(),
                    false => allowed.join(", "),
                };
                findings.problems.push(format!(
                    "{name} depends on {known}: it may depend on {allowed}"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ARROWS, check};
    use crate::{
        tidy::{Findings, tests::assert_no_circle},
        workspace::{Dependency, Package, Workspace},
    };

    fn problems(packages: &[(&str, &[&str])]) -> Vec<String> {
        let dependency = |name: &&str| Dependency {
            name: (*name).to_owned(),
        };
        let packages = packages.iter().map(|(name, dependencies)| Package {
            name: (*name).to_owned(),
            dependencies: dependencies.iter().map(dependency).collect(),
            ..Package::default()
        });
        let workspace = Workspace {
            root: "/w".into(),
            packages: packages.collect(),
        };
        let mut findings = Findings::default();
        check(&workspace, &mut findings);
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
            ["windrow-slab depends on windrow-env: it may depend on tensordict, sync"]
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
        assert_no_circle(&ARROWS);
    }
}
