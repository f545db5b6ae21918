//! The rules of the tree that no lint knows: sizes of files and functions, columns of comments and
//! documentation, which crates may be unsafe, what may panic and how, which crate and which room of
//! the engine may know which, and that there is one loop.

mod arrows;
mod columns;
mod doors;
mod engine;
mod files;
mod invariants;
mod ports;
mod rooms;
mod tour;

use anyhow::Result;

use crate::{report::Verdict, scan, workspace::Workspace};

pub(crate) use rooms::{FOLDER as ENGINE, name};

/// Broken rules.
#[derive(Debug, Default)]
struct Findings {
    problems: Vec<String>,
}

/// Which of some names may know which others.
#[derive(Debug)]
struct Order(&'static [(&'static str, &'static str)]);

impl Order {
    /// The names that `name` may know; `None` when it has no entry.
    fn allowed(&self, name: &str) -> Option<Vec<&'static str>> {
        let entry = self.0.iter().find(|(entry, _)| *entry == name);
        entry.map(|(_, allowed)| allowed.split_whitespace().collect())
    }
}

/// Checks the rules and prints which are broken.
pub(crate) fn verdict(workspace: &Workspace) -> Result<Verdict> {
    let mut sources = Vec::new();
    for package in &workspace.packages {
        sources.extend(scan::rust(&workspace.root, package.folder())?);
    }
    sources.extend(scan::python(&workspace.root)?);
    // The folder of one package may hold another.
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    sources.dedup_by(|one, other| one.path == other.path);
    let mut findings = Findings::default();
    files::check_sizes(&sources, &mut findings);
    files::check_roots(workspace, &sources, &mut findings);
    arrows::check(workspace, &mut findings);
    rooms::check(&sources, &mut findings);
    rooms::check_envs(&sources, &mut findings);
    engine::check(&sources, &mut findings);
    invariants::check(&sources, &mut findings);
    invariants::check_list(&sources, &mut findings);
    ports::check(&sources, &mut findings);
    columns::check(&workspace.root, &sources, &mut findings)?;
    doors::check(&sources, &mut findings);
    tour::check(&workspace.root, &mut findings)?;

    for problem in &findings.problems {
        println!("    {problem}");
    }
    let count = findings.problems.len();
    let plural = if count == 1 { " is" } else { "s are" };
    let why = format!("{count} rule{plural} broken");
    Ok(Verdict::of_check(count == 0, &why))
}

#[cfg(test)]
mod tests {
    use super::{ENGINE, Findings, Order};
    use crate::scan::Source;

    type Check = fn(&[Source], &mut Findings);

    /// The problems that `check` finds in files of Rust, given by their paths and texts.
    pub(super) fn problems(check: Check, files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| {
            Source::of_rust((*path).to_owned(), (*text).to_owned()).expect("tokens of Rust")
        };
        let mut findings = Findings::default();
        check(&files.iter().map(source).collect::<Vec<_>>(), &mut findings);
        findings.problems
    }

    /// The problems that `check` finds in files of windrow-collect, given by their paths below
    /// `src` and texts.
    pub(super) fn problems_in_collect(check: Check, files: &[(&str, &str)]) -> Vec<String> {
        let path = |(name, _): &(&str, _)| format!("{ENGINE}{name}");
        let paths: Vec<_> = files.iter().map(path).collect();
        let files = paths.iter().zip(files);
        let files: Vec<_> = files
            .map(|(path, (_, text))| (path.as_str(), *text))
            .collect();
        problems(check, &files)
    }

    /// Fails unless each entry knows only entries above it.
    pub(super) fn assert_no_circle(order: &Order) {
        for (place, (name, allowed)) in order.0.iter().enumerate() {
            for known in allowed.split_whitespace() {
                let above = &order.0[..place];
                let is_above = above.iter().any(|(other, _)| *other == known);
                assert!(is_above, "{name} ▸ {known}");
            }
        }
    }
}
