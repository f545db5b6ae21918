//! `cargo xtask docs`: the site of `docs/`, with the documentation of the Rust crate below it.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::{
    cargo, python,
    report::{Report, Verdict},
};

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
    // Crates that somebody has documented there would be in the search of this one.
    let cleaned = Verdict::of_program(&mut cargo::command(root, "clean --quiet --doc"), "")?;
    if cleaned != Verdict::Passed {
        return Ok(cleaned);
    }
    let mut command = cargo::command(root, "doc --no-deps -p windrow --features remote");
    command.env("RUSTDOCFLAGS", "-D warnings");
    Verdict::of_program(&mut command, "rustdoc has something to say")
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
