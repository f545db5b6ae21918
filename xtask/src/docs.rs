//! `cargo xtask docs`: the site of `docs/`, with the documentation of the Rust crate below it.

mod api;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{
    cargo, process, python,
    report::{Report, Verdict},
};

/// The crates whose names `windrow` exports.
const EXPORTED: [&str; 10] = [
    "windrow-collect",
    "windrow-env",
    "windrow-peer",
    "windrow-policy",
    "windrow-remote",
    "windrow-replay",
    "windrow-slab",
    "windrow-store",
    "windrow-sync",
    "windrow-tensordict",
];

/// Builds the site; `true` when neither `rustdoc` nor MkDocs has something to say.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let built = Report::alone(|report| add_to(report, root))?;
    if built {
        println!("see {}", root.join("target/site/index.html").display());
    }
    Ok(built)
}

/// Adds the steps that build the site.
pub(crate) fn add_to(report: &mut Report, root: &Path) {
    report.step("rustdoc", || rustdoc(root));
    report.step("site", || site(root));
}

/// Documents the public crate, into `target/doc`.
fn rustdoc(root: &Path) -> Result<Verdict> {
    clean(root)?;
    // First the others: a page links to pages of another crate that are there already.
    let mut others = cargo::command(root, "doc --no-deps --all-features");
    others.args(EXPORTED.iter().flat_map(|name| ["-p", name]));
    let documented = [document(others)?, document(public(root))?];
    if let Some(failed) = documented.into_iter().find(|step| *step != Verdict::Passed) {
        return Ok(failed);
    }
    let foreign = foreign(&root.join("target/doc"))?;
    if !foreign.is_empty() {
        let names = foreign.into_iter().collect::<Vec<_>>().join(", ");
        let why = format!("pages of `windrow` mention what it does not export: {names}");
        return Ok(Verdict::Failed(None, why));
    }
    // Alone, so that its search finds no other crate.
    clean(root)?;
    match document(public(root))? {
        Verdict::Passed => same_api(root),
        failed => Ok(failed),
    }
}

fn public(root: &Path) -> Command {
    cargo::command(root, "doc --no-deps -p windrow --all-features")
}

fn document(mut command: Command) -> Result<Verdict> {
    command.env("RUSTDOCFLAGS", "-D warnings");
    Verdict::of_program(&mut command, "rustdoc has something to say")
}

/// Removes what was documented before.
fn clean(root: &Path) -> Result<()> {
    let cleaned = process::succeeds(&mut cargo::command(root, "clean --quiet --doc"));
    ensure!(cleaned, "failed to remove {:?}", root.join("target/doc"));
    Ok(())
}

/// Compares the public API with the file in which it is written down.
fn same_api(root: &Path) -> Result<Verdict> {
    const WRITTEN: &str = "crates/windrow/api.txt";
    const FOUND: &str = "target/doc/api.txt";
    let found = api::text(&root.join("target/doc/windrow"))?;
    let written = fs::read_to_string(root.join(WRITTEN)).unwrap_or_default();
    if found == written {
        return Ok(Verdict::Passed);
    }
    fs::write(root.join(FOUND), &found)?;
    let lines = |text| BTreeSet::from_iter(str::lines(text));
    let (new, old) = (lines(&found), lines(&written));
    let (added, removed) = (new.difference(&old), old.difference(&new));
    for line in removed.take(20) {
        println!("    - {}", line.trim());
    }
    for line in added.take(20) {
        println!("    + {}", line.trim());
    }
    let why = format!("the public API changed: if it should, `cp {FOUND} {WRITTEN}`");
    Ok(Verdict::Failed(None, why))
}

/// The pages of other crates that those of `windrow` link to, of all that lie in `docs`.
fn foreign(docs: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for path in pages(&docs.join("windrow"))? {
        // How many folders lead to `docs`.
        let depth = path.strip_prefix(docs)?.components().count() - 1;
        let failed = || format!("failed to read {path:?}");
        let page = fs::read_to_string(&path).with_context(failed)?;
        found.extend(page.split("href=\"").skip(1).filter_map(|rest| {
            let link = rest.split(['"', '#']).next()?;
            let target = link.trim_start_matches("../");
            let is_outside = link.len() - target.len() == depth * "../".len();
            let of = target.split('/').next()?;
            let is_ours = EXPORTED
                .iter()
                .any(|name| name.replace('-', "_").ends_with(of));
            (is_outside && is_ours).then(|| target.replace('/', "::"))
        }));
    }
    Ok(found)
}

/// The pages below `folder`, but for those of `binding`, which the Python package alone needs.
fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        let failed = || format!("failed to read {folder:?}");
        for entry in fs::read_dir(&folder).with_context(failed)? {
            let path = entry?.path();
            if path.is_dir() && !path.ends_with("binding") {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "html") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// Builds the pages, into `target/site`.
fn site(root: &Path) -> Result<Verdict> {
    let python = python::environment_of(root, "target/venv-docs", "docs/requirements.txt")?;
    let mut command = Command::new(python);
    command.current_dir(root);
    // Not `--quiet`, with which `--strict` lets warnings pass.
    command.args(["-m", "mkdocs", "build", "--strict"]);
    // Its theme says at each start that it has a successor.
    command.env("NO_MKDOCS_2_WARNING", "1");
    Verdict::of_program(&mut command, "MkDocs has something to say")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_another_crate_is_found_and_one_to_a_module_of_its_name_is_not() {
        let docs = std::env::temp_dir().join(format!("windrow-docs-{}", std::process::id()));
        let envs = docs.join("windrow/envs");
        fs::create_dir_all(&envs).unwrap();
        let page = r##"<a href="../../windrow_env/fn.sole.html#a">, <a href="../tensordict/struct.Tensor.html">"##;
        fs::write(envs.join("index.html"), page).unwrap();
        let found = foreign(&docs).unwrap();
        fs::remove_dir_all(&docs).unwrap();
        assert_eq!(Vec::from_iter(found), ["windrow_env::fn.sole.html"]);
    }
}
