//! Every kind of collector delivers what a ledger says: the same checks for all of them.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod cell;
mod ends;
mod episodes;
mod faulty;
mod frames;
mod recorder;
mod run;
#[cfg(shuttle)]
mod schedules;
mod stamp;
mod world;
mod written;

use cell::{Cell, Kind};
#[cfg(not(shuttle))]
use windrow_collect::Inference;

/// Everything that is delivered from the first batch to the last.
fn check(cell: Cell) {
    match cell.kind {
        Kind::Frames(_) => run::check(cell),
        Kind::Trajectories(format) => episodes::check(cell, format),
        Kind::Written { whole } => written::check(cell, whole),
    }
}

#[cfg(not(shuttle))]
/// Runs `check` on every cell, says which ones failed, and returns how many there were.
fn each(check: fn(Cell)) -> usize {
    let mut failed = Vec::new();
    let mut ran = 0;
    for cell in cell::all() {
        ran += 1;
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(cell)));
        if checked.is_err() {
            failed.push(cell.to_string());
        }
    }
    assert!(failed.is_empty(), "cells that failed: {failed:#?}");
    ran
}

#[cfg(not(shuttle))]
#[test]
fn every_collector_delivers_each_frame_once_as_the_ledger_says() {
    let ran = each(check);
    assert_eq!(ran, cell::CELLS);
    let served = cell::all().filter(|cell| cell.inference == Inference::Served);
    println!(
        "conformance: {ran} cells compared with ledgers, none skipped; {} of them served",
        served.count()
    );
}

#[cfg(not(shuttle))]
#[test]
fn every_collector_ends_in_any_order() {
    assert_eq!(each(ends::check), cell::CELLS);
}
