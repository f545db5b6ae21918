//! `cargo xtask board`: the time until a return, beside other libraries.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::{process, python};

/// Builds the package as it is published, and runs `python/board`, which has the tasks and the
/// libraries.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let mut command = Command::new(python::with_package(root, python::RELEASE)?);
    command.current_dir(root.join("python"));
    command.args(["-m", "board"]).args(arguments);
    Ok(process::run(&mut command, |_| true)?.success)
}
