//! Calling cargo from inside cargo.

use std::{
    env,
    ffi::{OsStr, OsString},
    iter,
    path::Path,
    process::Command,
};

/// The packages that build on a learning framework: built on request only.
pub(crate) const CANDLE: [&str; 2] = ["windrow-candle", "windrow-examples-candle"];

/// The packages that a command is about. All steps of a run select the same: a build unites the
/// features of what is selected, so another selection builds most crates anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// All of the workspace.
    All,
    /// All but [`CANDLE`].
    WithoutCandle,
}

impl Selection {
    /// The arguments that select these packages.
    pub(crate) fn arguments(self) -> impl Iterator<Item = &'static str> {
        let left_out = CANDLE.into_iter().filter(move |package| !self.has(package));
        let left_out = left_out.flat_map(|package| ["--exclude", package]);
        iter::once("--workspace").chain(left_out)
    }

    /// Whether `package` is one of them.
    pub(crate) fn has(self, package: &str) -> bool {
        self == Self::All || !CANDLE.contains(&package)
    }
}

/// Cargo of the toolchain in use, run in `root` with `arguments`, which hold no spaces.
pub(crate) fn command(root: &Path, arguments: &str) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    of(&program, root, arguments)
}

/// Cargo of the nightly toolchain, found through rustup.
pub(crate) fn nightly(root: &Path, arguments: &str) -> Command {
    let mut command = of("cargo".as_ref(), root, &format!("+nightly {arguments}"));
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// `cargo test` of the test target `test`, with the features that the packages of `selection` have
/// together: what was built for all tests is not built anew.
pub(crate) fn test(root: &Path, selection: Selection, test: &str) -> Command {
    let mut command = command(root, "test --no-fail-fast");
    command.args(selection.arguments());
    command.args(["--test", test, "--", "--nocapture"]);
    command
}

/// The present `RUSTFLAGS`, followed by `flags`.
pub(crate) fn rustflags(flags: &str) -> String {
    match env::var("RUSTFLAGS") {
        Ok(present) if !present.trim().is_empty() => format!("{present} {flags}"),
        _ => flags.to_owned(),
    }
}

/// Drops the variables that the surrounding `cargo run` has set for this package: build scripts
/// that watch them would run again for nothing.
fn of(program: &OsStr, root: &Path, arguments: &str) -> Command {
    const OWN: &str = "CARGO_PKG_ CARGO_MANIFEST_ CARGO_BIN_ CARGO_CRATE_";
    let mut command = Command::new(program);
    // Summaries are read from the output.
    command.env("CARGO_TERM_COLOR", "never");
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if OWN.split(' ').any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
    command.current_dir(root).args(arguments.split_whitespace());
    command
}
