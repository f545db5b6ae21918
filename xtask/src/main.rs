//! The tasks of the workspace: `cargo xtask test`, `age`, `bench`, `board`, `certify`, `docs`,
//! `faults`, `figures`, `formats`, `models`, `sanitize`, `stale`, `tidy`, `wheels`.
//!
//! Continuous integration and developers run the same: `.ci/run` only calls `cargo xtask test`.
#![forbid(unsafe_code)]

mod bench;
mod board;
mod cargo;
mod certify;
mod counts;
mod docs;
mod faults;
mod figures;
mod formats;
mod models;
mod process;
mod python;
mod report;
mod sanitize;
mod scan;
mod suite;
mod tidy;
mod wheels;
mod workspace;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

use cargo::Selection;
use report::Report;
use sanitize::Sanitizer;
use workspace::Workspace;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Tasks of the windrow workspace",
    version
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Runs every check and every test, and ends with one line that counts them
    ///
    /// Formatting, clippy, ruff, the tree's own rules (tidy), unit and integration tests, doctests,
    /// the comparisons with Gymnasium and PyTorch, the site, the Python package with its types and
    /// tests, and the models of loom and shuttle. All of them run even when one fails. Needs Rust,
    /// a C compiler and Python 3.11 or newer; the Python packages go into `target/venv`, once. Uses
    /// cargo-nextest where it is installed.
    Test {
        /// Check `windrow-candle` and `windrow-examples-candle` too (builds a learning framework)
        #[arg(long)]
        examples: bool,
    },
    /// Collects frames with each class of collector while weights are published at any moment, and
    /// checks that no part is older than `max_lag` allows
    Age {
        /// Frames in threads; a hundredth of them are collected in processes
        #[arg(long, default_value_t = 10_000_000)]
        frames: u64,
    },
    /// Runs a benchmark of `crates/windrow/benches`, or `python`, `processes-python`, `pictures` or
    /// `scripts`, those of the Python package
    Bench(bench::Request),
    /// Learns tasks by windrow and by other libraries, each by its own script, and adds the times
    /// to `docs/board.json`
    ///
    /// Arguments are those of `python/board`: tasks, `--library NAME`, `--seeds 1 2 3`, `--quick`,
    /// and clones of repositories whose scripts no package has. `--help` after `--` lists them.
    Board {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Steps native environments beside Gymnasium's, compares all that both return, and writes
    /// their certificates into `docs/certificates`
    Certify(certify::Request),
    /// Builds the site of `docs/`, with the documentation of the crate `windrow`, into
    /// `target/site`
    ///
    /// A dead link, or anything else that rustdoc or MkDocs warns of, is an error. The tools of the
    /// site are installed into `target/venv-docs`, once.
    Docs,
    /// Injects a fault at random moments, many times over, and checks the result
    Faults(faults::Options),
    /// Writes data sets with the Python package, lets the libraries read them whose formats they
    /// are, and kills processes that write
    ///
    /// Each library is installed into an environment of its own in `target/formats`, once; that of
    /// LeRobot is large.
    Formats(formats::Request),
    /// Explores the interleavings of the ring, of stores and buffers and of the weight store with
    /// loom, and those of collectors with shuttle
    ///
    /// `LOOM_MAX_PREEMPTIONS` bounds the search; it is 3 unless you set it.
    Models,
    /// Looks for undefined behaviour and leaks in the crates that contain `unsafe`
    ///
    /// Skips a tool that is not installed, and says so; fails when no tool could run.
    Sanitize {
        /// One tool only
        #[arg(value_enum)]
        tool: Option<Sanitizer>,
    },
    /// Checks the rules of the tree: sizes of files and functions, columns of prose, `unsafe`,
    /// arrows between crates and rooms, the one loop
    Tidy,
    /// Changes the state of policies in every way, below every class of the Python package, and
    /// checks each action
    Stale(faults::Changes),
    /// Prints how long files and functions are, how many statements and how much prose they have,
    /// and how much there is to know
    Figures {
        /// Another tree than this one
        path: Option<PathBuf>,
    },
    /// Makes the Python environment of the tests if need be and prints the path of its interpreter
    Python,
    /// Builds the Python distributions as they are published, checks them, and tests each in a new
    /// environment of every Python that is here
    ///
    /// A wheel for manylinux_2_28 on x86_64, another on aarch64 where Rust's standard library for
    /// it is installed, and the source distribution that they are built from. They and their
    /// symbols for debuggers go into `target/wheels`.
    Wheels(wheels::Request),
}

fn main() -> ExitCode {
    match perform(Arguments::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does one task; `false` when it ran and something did not pass.
fn perform(task: Task) -> Result<bool> {
    let root = workspace::root();
    match task {
        Task::Test { examples: true } => suite::run(&root, Selection::All),
        Task::Test { examples: false } => suite::run(&root, Selection::WithoutCandle),
        Task::Age { frames } => faults::ages(&root, frames),
        Task::Bench(request) => bench::run(&root, &request),
        Task::Board { arguments } => board::run(&root, &arguments),
        Task::Certify(request) => certify::run(&root, &request),
        Task::Docs => docs::run(&root),
        Task::Faults(options) => faults::run(&root, &options),
        Task::Formats(request) => formats::run(&root, &request),
        Task::Models => {
            let workspace = Workspace::load(&root)?;
            Report::alone(|report| models::add_to(report, &workspace))
        }
        Task::Sanitize { tool } => sanitize::run(&Workspace::load(&root)?, tool),
        Task::Tidy => {
            let workspace = Workspace::load(&root)?;
            Report::alone(|report| report.step("tidy", || tidy::verdict(&workspace)))
        }
        Task::Stale(changes) => faults::change(&root, &changes),
        Task::Figures { path } => figures::run(&path.unwrap_or(root)),
        Task::Wheels(request) => wheels::run(&root, &request),
        Task::Python => {
            let python = python::environment(&root)?;
            println!("{}", python.display());
            Ok(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Arguments;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
