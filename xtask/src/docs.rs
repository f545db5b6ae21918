//! `cargo xtask docs`: the site of `docs/`, with the documentation of the Rust crate below it.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context, Result};

use crate::{
    cargo, python,
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
    let foreign = match documented(root, true)? {
        Verdict::Passed => foreign(&root.join("target/doc"))?,
        failed => return Ok(failed),
    };
    if !foreign.is_empty() {
        let names = foreign.into_iter().collect::<Vec<_>>().join(", ");
        let why = format!("pages of `windrow` mention what it does not export: {names}");
        return Ok(Verdict::Failed(None, why));
    }
    documented(root, false)
}

/// Documents the public crate alone, or with those that it exports.
fn documented(root: &Path, with_others: bool) -> Result<Verdict> {
    // Crates that were documented there before would be in the search of this one.
    let cleaned = Verdict::of_program(&mut cargo::command(root, "clean --quiet --doc"), "")?;
    if cleaned != Verdict::Passed {
        return Ok(cleaned);
    }
    let mut command = cargo::command(root, "doc --no-deps -p windrow --features windrow/remote");
    if with_others {
        command.args(EXPORTED.iter().flat_map(|name| ["-p", name]));
    }
    command.env("RUSTDOCFLAGS", "-D warnings");
    Verdict::of_program(&mut command, "rustdoc has something to say")
}

/// The pages of other crates that those of `windrow` link to, of all that lie in `docs`.
fn foreign(docs: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    // Each with how many folders lead to `docs`.
    let mut folders = vec![(docs.join("windrow"), 1)];
    while let Some((folder, depth)) = folders.pop() {
        let failed = || format!("failed to read {folder:?}");
        for entry in fs::read_dir(&folder).with_context(failed)? {
            let path = entry?.path();
            if path.is_dir() {
                // What the Python package alone needs.
                if !path.ends_with("binding") {
                    folders.push((path, depth + 1));
                }
            } else if path.extension().is_some_and(|kind| kind == "html") {
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
