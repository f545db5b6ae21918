//! Every kind of collector delivers what a ledger says: the same checks for all of them.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod cell;
mod ends;
mod episodes;
mod frames;
mod recorder;
mod run;
mod stamp;
mod written;

use std::panic::{AssertUnwindSafe, catch_unwind};

use cell::{Cell, Kind};

/// Runs `check` on every cell, says which ones failed, and returns how many there were.
fn each(check: fn(Cell)) -> usize {
    let mut failed = Vec::new();
    let mut ran = 0;
    for cell in cell::all() {
        ran += 1;
        if catch_unwind(AssertUnwindSafe(|| check(cell))).is_err() {
            failed.push(cell.to_string());
        }
    }
    assert!(failed.is_empty(), "cells that failed: {failed:#?}");
    ran
}

#[test]
fn every_collector_delivers_each_frame_once_as_the_ledger_says() {
    let ran = each(|cell| match cell.kind {
        Kind::Frames(_) => run::check(cell),
        Kind::Trajectories(format) => episodes::check(cell, format),
        Kind::Written { whole } => written::check(cell, whole),
    });
    assert_eq!(ran, cell::CELLS);
    println!("conformance: {ran} cells ran, none skipped");
}

#[test]
fn every_collector_ends_in_any_order() {
    assert_eq!(each(ends::check), cell::CELLS);
}
