//! The checks of the matrix under schedules that shuttle chooses: who runs next is decided at every
//! lock, counter and channel between a collector and its workers, instead of by how fast each of
//! them is.

use std::sync::Arc;

use shuttle::thread;
use windrow_collect::Placement;
use windrow_slab::WaitQueue;
use windrow_sync::{Mutex, lock};

use super::cell::{self, Cell};
use super::{check, ends};

/// Schedules for each cell, and as many again that prefer one thread and interrupt it at few
/// places.
const SCHEDULES: usize = 80;
const INTERRUPTIONS: usize = 3;

fn explore(check: fn(Cell)) {
    let mut ran = 0;
    let cells = cell::all().filter(|cell| {
        cell.placement == Placement::Threads && cell.workers == 2 && cell.envs.is_none()
    });
    for cell in cells {
        shuttle::check_random(move || check(cell), SCHEDULES);
        shuttle::check_pct(move || check(cell), SCHEDULES, INTERRUPTIONS);
        ran += 1;
    }
    // Evaluated by the workers, and by a server.
    assert_eq!(ran, 2 * 21);
    println!("shuttle: {} schedules of {ran} cells", 2 * SCHEDULES * ran);
}

#[test]
fn in_any_schedule_each_frame_is_delivered_once_as_the_ledger_says() {
    explore(check);
}

#[test]
fn in_any_schedule_every_collector_ends_in_any_order() {
    explore(ends::check);
}

#[test]
fn a_thread_that_falls_asleep_is_not_woken_in_the_place_of_another() {
    let check = || {
        let shared = Arc::new((WaitQueue::new(), Mutex::new(0)));
        let wait_for = |least| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (queue, value) = &*shared;
                queue.wait(value, |value| (*value >= least).then_some(()));
            })
        };
        let waiting = [wait_for(1), wait_for(2)];
        for (value, thread) in (1..).zip(waiting) {
            *lock(&shared.1) = value;
            shared.0.wake_all();
            thread.join().unwrap();
        }
    };
    shuttle::check_random(check, 2000);
}
