//! The tasks of the workspace: `cargo xtask test`, `bench`, `demo`, `faults`, `figures`, `models`, `sanitize`, `scale`, `stale`,
//! `tidy`.
//!
//! Continuous integration and developers run the same: `.ci/run` only calls `cargo xtask test`.
#![forbid(unsafe_code)]

mod bench;
mod cargo;
mod counts;
mod faults;
mod figures;
mod models;
mod package;
mod process;
mod python;
mod report;
mod sanitize;
mod scale;
mod scan;
mod stale;
mod suite;
mod tidy;
mod workspace;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

use faults::Fault;
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
    /// Formatting, clippy, the tree's own rules (tidy), unit and integration tests, doctests, the comparisons with
    /// Gymnasium and PyTorch, the Python package with its types and tests, and the models of loom and shuttle. All of
    /// them run even when one fails. Needs Rust, a C compiler and Python 3.11 or newer; the Python packages go into
    /// `target/venv`, once. Uses cargo-nextest where it is installed.
    Test {
        /// Let clippy read the package `windrow-examples` too (builds a learning framework)
        #[arg(long)]
        examples: bool,
    },
    /// Runs a benchmark of `crates/windrow/benches`, or `python`, `processes-python`, `pictures` or `scripts`, those of the Python
    /// package
    Bench {
        /// Which one; without a name, the known ones are listed
        name: Option<String>,
        /// Fail when a line ends in `short`, or when no line with a verdict came
        #[arg(long)]
        check: bool,
        /// How many times to run it; more than one adds a summary over the runs
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Arguments for the benchmark itself
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Learns CartPole with PPO: `cargo run --release --example ppo_cartpole`
    #[command(disable_help_flag = true)]
    Demo {
        /// Arguments for the example, such as `--seed 3` or `--help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Injects a fault at random moments, many times over, and checks the result
    Faults {
        /// The fault
        #[arg(value_enum)]
        fault: Fault,
        /// How many times
        #[arg(long, visible_alias = "kills", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
        times: u32,
        /// Below the collectors of the Python package, with environments in Python
        #[arg(long)]
        python: bool,
    },
    /// Explores the interleavings of the ring, of stores and buffers and of the weight store with loom, and those of collectors with shuttle
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
    /// Checks the rules of the tree: sizes of files and functions, `unsafe`, arrows between crates and rooms, the one loop
    Tidy,
    /// Simulates collection over Ray on 1 to 1000 machines, with the costs of `docs/scaling.md`
    Scale(scale::Options),
    /// Changes the state of policies in every way, below every class of the Python package, and checks each action
    Stale(stale::Options),
    /// Prints how long files and functions are and how much of them is prose, per crate and for the Python package
    Figures {
        /// Another tree than this one
        path: Option<PathBuf>,
    },
    /// Makes the Python environment of the tests if need be and prints the path of its interpreter
    Python,
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
    let root = workspace::root()?;
    match task {
        Task::Test { examples } => suite::run(&root, examples),
        Task::Bench { name: None, .. } => bench::list(&root),
        Task::Bench {
            name: Some(name),
            check,
            runs,
            arguments,
        } => bench::run(
            &root,
            &bench::Request {
                name,
                check,
                runs,
                arguments,
            },
        ),
        Task::Demo { arguments } => cargo::demo(&root, &arguments),
        Task::Faults {
            fault,
            times,
            python: true,
        } => faults::run_python(&root, fault, times),
        Task::Faults { fault, times, .. } => faults::run(&root, fault, times),
        Task::Models => models::run(&Workspace::load(&root)?),
        Task::Sanitize { tool } => sanitize::run(&Workspace::load(&root)?, tool),
        Task::Tidy => tidy::run(&Workspace::load(&root)?),
        Task::Scale(options) => scale::run(&root, &options),
        Task::Stale(options) => stale::run(&root, &options),
        Task::Figures { path } => figures::run(&path.unwrap_or(root)),
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
