//! What a worker pays for a part: a claim and a commit, alone and with a second worker doing the
//! same.
//!
//! Values are nanoseconds and targets are upper limits. Parts are as small as they can be, one step
//! of one environment, so that nothing but the ring is timed.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "common/mod.rs"]
mod timing;

use std::sync::Arc;
use std::time::Instant;

use windrow_slab::{Layout, Order, PartOrder, RecordSpec, Ring, RingSpec, Shares};

const PARTS: usize = 32768;
const SLABS: u64 = 2;

fn main() {
    timing::at_most("claim_commit_alone_ns", 200.0, || nanoseconds(1));
    timing::at_most("claim_commit_two_workers_ns", 2000.0, || nanoseconds(2));
}

/// Time of one claim and commit, for each of `workers` workers at once.
fn nanoseconds(workers: usize) -> f64 {
    let shares = Shares {
        steps: vec![1; PARTS],
        envs: 1,
        batched: false,
        order: PartOrder::Sequential,
    };
    let spec = RingSpec {
        order: Order::ByArrival,
        workers,
        // As far ahead as is timed, so that nobody waits for a consumer.
        ahead: SLABS as usize,
        max_slabs: SLABS as usize + 1,
        cut_after: None,
        max_age: None,
    };
    let layout = Layout::new(&RecordSpec::default(), shares).unwrap();
    let ring = Ring::new(layout, spec).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for id in 0..workers {
            let ring = Arc::clone(&ring);
            scope.spawn(move || {
                while let Some(part) = ring.try_claim(id).unwrap() {
                    part.commit();
                }
            });
        }
    });
    let elapsed = start.elapsed().as_nanos() as f64;
    elapsed * workers as f64 / (SLABS as f64 * PARTS as f64)
}
