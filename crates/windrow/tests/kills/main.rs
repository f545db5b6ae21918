//! Worker processes die at any moment, in every way and below every class of collector: each row
//! that is delivered is still what its environment wrote, delivered once, in its order and
//! accounted for, and nothing is left behind. Nor is when the collecting process is killed, or when
//! descriptors or memory run out.
//!
//! `WINDROW_KILLS` says how many workers are to die; `cargo xtask faults workers` sets it. It is a
//! program and no set of tests: its `main` begins as that of every program with worker processes
//! does, and it counts its own threads and descriptors.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[cfg(target_os = "linux")]
mod cell;
#[cfg(target_os = "linux")]
mod descriptors;
#[cfg(target_os = "linux")]
mod env;
#[cfg(target_os = "linux")]
mod ledger;
#[cfg(target_os = "linux")]
mod life;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod parents;
#[cfg(target_os = "linux")]
mod patience;
#[cfg(target_os = "linux")]
mod policy;
#[cfg(target_os = "linux")]
mod reaper;
#[cfg(target_os = "linux")]
mod role;
#[cfg(target_os = "linux")]
mod room;
#[cfg(target_os = "linux")]
mod run;

use std::process::ExitCode;

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    // Workers run in processes on Linux only.
    ExitCode::SUCCESS
}

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    windrow::worker_main(env::register).unwrap();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        // Runners of tests ask what there is before they run it; nothing of it is ignored.
        if !arguments.iter().any(|argument| argument == "--ignored") {
            println!("workers_die_at_any_moment: test");
        }
        return ExitCode::SUCCESS;
    }
    if let Some(role) = role::own() {
        role::play(&role);
        return ExitCode::SUCCESS;
    }
    let kills = std::env::var("WINDROW_KILLS").map_or(15, |kills| kills.parse().unwrap());
    match run::report(kills) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
