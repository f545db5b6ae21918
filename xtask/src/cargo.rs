//! Calling cargo from inside cargo.

use std::{
    env,
    ffi::OsString,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use crate::process;

/// The package that builds on a learning framework: built on request only.
pub(crate) const EXAMPLES: &str = "windrow-examples";

/// Cargo of the toolchain in use, run in `root`.
pub(crate) fn command(root: &Path) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    clean(Command::new(program), root)
}

/// Cargo of the toolchain called `toolchain`, found through rustup.
pub(crate) fn of_toolchain(root: &Path, toolchain: &str) -> Command {
    let mut command = clean(Command::new("cargo"), root);
    command
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .arg(format!("+{toolchain}"));
    command
}

/// `cargo test` of the test target `test`, with the features that the packages of the workspace have together: what was built for all
/// tests is not built anew.
pub(crate) fn test(root: &Path, test: &str) -> Command {
    let mut command = command(root);
    command.args(["test", "--no-fail-fast", "--workspace"]);
    command.args(["--exclude", EXAMPLES, "--test", test]);
    command
}

/// Whether cargo-nextest is installed.
pub(crate) fn has_nextest(root: &Path) -> bool {
    process::succeeds(command(root).args(["nextest", "--version"]))
}

/// The present `RUSTFLAGS`, followed by `flags`.
pub(crate) fn rustflags(flags: &str) -> String {
    match env::var("RUSTFLAGS") {
        Ok(present) if !present.trim().is_empty() => format!("{present} {flags}"),
        _ => flags.to_owned(),
    }
}

/// Runs the PPO example with the terminal as its own; `false` when it ended with an error.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) fn demo(root: &Path, arguments: &[String]) -> Result<bool> {
    let status = command(root)
        .args(["run", "--release", "--example", "ppo_cartpole", "--"])
        .args(arguments)
        .stdin(Stdio::inherit())
        .status()
        .context("failed to start cargo")?;
    Ok(status.success())
}

/// Drops the variables that the surrounding `cargo run` has set for this package: build scripts that watch them would run
/// again for nothing.
fn clean(mut command: Command, root: &Path) -> Command {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if [
            "CARGO_PKG_",
            "CARGO_MANIFEST_",
            "CARGO_BIN_",
            "CARGO_CRATE_",
        ]
        .iter()
        .any(|start| text.starts_with(start))
        {
            command.env_remove(&name);
        }
    }
    command.current_dir(root);
    command
}
