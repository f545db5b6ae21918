//! Every interleaving of up to three threads on one ring: run with `cargo xtask loom`.
//!
//! Beside each part's memory lies a loom cell that is written with the part and read with the lease, so two owners at
//! once, or a read that is not ordered behind its write, fail the model.
#![cfg(loom)]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use loom::thread;
use windrow_slab::{Layout, Order, Part, RecordSpec, Ring, RingSpec, Shares, SlabError};

fn ring(order: Order, workers: usize, parts: usize, ahead: usize, max_slabs: usize) -> Arc<Ring> {
    let shares = Shares {
        steps: vec![1; parts],
        envs: 1,
        batched: false,
    };
    let spec = RingSpec {
        order,
        workers,
        ahead,
        max_slabs,
    };
    Ring::new(Layout::new(&RecordSpec::default(), shares).unwrap(), spec).unwrap()
}

/// All interleavings with at most `preemptions` switches away from a thread that could go on.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

fn write(mut part: Part) -> Part {
    let _ = part.rows();
    part
}

/// Fills parts until the ring is stopped.
fn worker(ring: &Arc<Ring>, id: usize) -> thread::JoinHandle<()> {
    let ring = Arc::clone(ring);
    thread::spawn(move || {
        while let Some(part) = ring.claim(id) {
            write(part).commit();
        }
    })
}

#[test]
fn two_workers_fill_one_slab_for_the_consumer() {
    model(2, || {
        let ring = ring(Order::ByWorker, 2, 2, 0, 2);
        let workers = [worker(&ring, 0), worker(&ring, 1)];
        let lease = ring.next().unwrap();
        let batches = [lease.part(0).unwrap(), lease.part(1).unwrap()];
        drop((lease, batches));
        ring.stop();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn a_worker_one_ahead_never_writes_what_is_being_read() {
    model(3, || {
        let ring = ring(Order::ByArrival, 1, 1, 1, 2);
        let worker = worker(&ring, 0);
        for seq in 0..3 {
            let lease = ring.next().unwrap();
            assert_eq!(lease.seq(), seq);
            lease.part(0).unwrap();
        }
        ring.stop();
        worker.join().unwrap();
    });
}

#[test]
fn first_come_first_served_loses_and_repeats_nothing() {
    model(2, || {
        let ring = ring(Order::ByArrival, 2, 1, 1, 3);
        let workers = [worker(&ring, 0), worker(&ring, 1)];
        let mut seen: Vec<u64> = (0..2)
            .map(|_| {
                let lease = ring.next().unwrap();
                lease.part(0).unwrap();
                lease.seq()
            })
            .collect();
        ring.stop();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
        // Whole slabs that nobody took are still there.
        while let Some(lease) = ring.try_next() {
            seen.push(lease.seq());
        }
        seen.sort_unstable();
        assert!(seen.iter().enumerate().all(|(i, &seq)| seq == i as u64));
    });
}

#[test]
fn a_part_lost_by_one_worker_is_filled_by_another() {
    model(3, || {
        let ring = ring(Order::ByArrival, 2, 1, 0, 1);
        let lost = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || drop(ring.claim(0).map(write)))
        };
        let worker = worker(&ring, 1);
        let lease = ring.next().unwrap();
        lease.part(0).unwrap();
        drop(lease);
        ring.stop();
        lost.join().unwrap();
        worker.join().unwrap();
    });
}

#[test]
fn a_lease_dropped_elsewhere_lets_the_worker_go_on() {
    model(3, || {
        let ring = ring(Order::ByWorker, 1, 1, 0, 1);
        let worker = worker(&ring, 0);
        let lease = ring.next().unwrap();
        let reader = thread::spawn(move || drop(lease.part(0).unwrap()));
        match ring.next() {
            Ok(lease) => assert_eq!(lease.seq(), 1),
            Err(error) => assert!(matches!(error, SlabError::Exhausted { slabs: 1, .. })),
        }
        reader.join().unwrap();
        ring.stop();
        worker.join().unwrap();
    });
}

#[test]
fn a_stop_reaches_whoever_waits() {
    model(3, || {
        let ring = ring(Order::ByWorker, 1, 1, 0, 1);
        let worker = worker(&ring, 0);
        let stopper = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.stop())
        };
        match ring.next() {
            Ok(lease) => drop(lease.part(0).unwrap()),
            Err(error) => assert_eq!(error, SlabError::Stopped),
        }
        worker.join().unwrap();
        stopper.join().unwrap();
    });
}
