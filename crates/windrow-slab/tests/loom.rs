//! Every interleaving of up to three threads on one ring: run with `cargo xtask models`.
//!
//! Beside each part's memory lies a loom cell that is written with the part and read with the
//! lease, so two owners at once, or a read that is not ordered behind its write, fail the model.
#![cfg(loom)]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use tensordict::DType;
use windrow_slab::{
    Key, Layout, LeafSpec, Order, Part, PartOrder, RecordSpec, Ring, RingSpec, Shares, SlabError,
    WaitQueue,
};
use windrow_sync::{Mutex, lock};

fn ring(order: Order, workers: usize, parts: usize, ahead: usize, max_slabs: usize) -> Arc<Ring> {
    let spec = RingSpec {
        order,
        workers,
        ahead,
        max_slabs,
        cut_after: None,
        max_age: None,
    };
    of_steps(1, parts, spec)
}

fn of_steps(steps: usize, parts: usize, spec: RingSpec) -> Arc<Ring> {
    let shares = Shares {
        steps: vec![steps; parts],
        envs: 1,
        batched: false,
        order: PartOrder::Sequential,
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
fn of_two_that_sleep_none_sleeps_on_after_either_of_two_changes() {
    model(2, || {
        let waits = Arc::new((WaitQueue::new(), Mutex::new(0)));
        let sleeping = [1, 2].map(|least| {
            let waits = Arc::clone(&waits);
            thread::spawn(move || {
                let (queue, value) = &*waits;
                queue.wait(value, |value| (*value >= least).then_some(()));
            })
        });
        for _ in 0..2 {
            *lock(&waits.1) += 1;
            waits.0.wake_all();
        }
        for thread in sleeping {
            thread.join().unwrap();
        }
    });
}

/// A ring whose frames have a text.
fn with_text(ahead: usize, max_slabs: usize) -> Arc<Ring> {
    let record = RecordSpec {
        observation: vec![LeafSpec::new("text", DType::Bytes, [])],
        ..RecordSpec::default()
    };
    let shares = Shares {
        steps: vec![1],
        envs: 1,
        batched: false,
        order: PartOrder::Sequential,
    };
    let spec = RingSpec {
        order: Order::ByWorker,
        workers: 1,
        ahead,
        max_slabs,
        cut_after: None,
        max_age: None,
    };
    Ring::new(Layout::new(&record, shares).unwrap(), spec).unwrap()
}

#[test]
fn nobody_reads_text_of_the_next_use_of_a_slab() {
    model(2, || {
        let ring = with_text(1, 2);
        let text = |seq: u64| vec![b'0' + seq as u8; 3 + seq as usize];
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                while let Some(mut part) = ring.claim(0) {
                    let text = text(part.seq());
                    let mut first = part.first_obs();
                    let mut row = first.env_mut(0).unwrap();
                    row.write_string(Key::new(0), 0, &text).unwrap();
                    write(part).commit();
                }
            })
        };
        for seq in 0..3 {
            let batch = ring.next().unwrap().part(0).unwrap();
            // The worker goes on meanwhile, in other memory.
            thread::yield_now();
            let texts = batch.get("text").unwrap();
            assert_eq!(texts.string_at(&[0]).unwrap(), text(seq));
        }
        ring.stop();
        writer.join().unwrap();
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
        ring.end_at(2);
        let workers = [worker(&ring, 0), worker(&ring, 1)];
        let mut seen: Vec<u64> = (0..2)
            .map(|_| {
                let lease = ring.next().unwrap();
                lease.part(0).unwrap();
                lease.seq()
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1]);
        assert_eq!(ring.next().unwrap_err(), SlabError::Stopped);
        ring.stop();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn what_is_committed_after_a_stop_is_not_delivered_and_what_was_before_is_once() {
    model(2, || {
        let ring = ring(Order::ByArrival, 2, 1, 1, 3);
        let workers = [worker(&ring, 0), worker(&ring, 1)];
        let mut seen = vec![ring.next().unwrap().seq()];
        ring.stop();
        while let Some(lease) = ring.try_next() {
            lease.part(0).unwrap();
            seen.push(lease.seq());
        }
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
        assert!(ring.try_next().is_none());
        seen.sort_unstable();
        assert!(seen.is_sorted_by(|before, after| before < after));
    });
}

#[test]
fn a_worker_that_is_gone_leaves_its_part_empty_and_nobody_waiting() {
    model(3, || {
        let ring = ring(Order::ByArrival, 2, 1, 0, 1);
        let lost = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                drop(ring.claim(0).map(write));
                ring.retire(0);
            })
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

#[test]
fn nobody_writes_while_a_pause_is_held() {
    model(3, || {
        let ring = ring(Order::ByArrival, 1, 1, 1, 2);
        let writing = Arc::new(AtomicBool::new(false));
        let worker = {
            let (ring, writing) = (Arc::clone(&ring), Arc::clone(&writing));
            thread::spawn(move || {
                while let Some(part) = ring.claim(0) {
                    writing.store(true, Ordering::SeqCst);
                    let part = write(part);
                    writing.store(false, Ordering::SeqCst);
                    part.commit();
                }
            })
        };
        ring.pause();
        assert!(!writing.load(Ordering::SeqCst));
        thread::yield_now();
        assert!(!writing.load(Ordering::SeqCst));
        ring.resume();
        // What was whole before the pause and what comes after it: nothing is left out.
        for seq in 0..2 {
            let lease = ring.next().unwrap();
            assert_eq!(lease.seq(), seq);
            lease.part(0).unwrap();
        }
        ring.stop();
        worker.join().unwrap();
    });
}

#[test]
fn an_end_that_is_moved_lets_the_worker_go_on() {
    model(3, || {
        let ring = ring(Order::ByWorker, 1, 1, 0, 1);
        ring.end_at(1);
        let worker = worker(&ring, 0);
        drop(ring.next().unwrap().part(0).unwrap());
        assert_eq!(ring.next().unwrap_err(), SlabError::Stopped);
        ring.end_at(2);
        let lease = ring.next().unwrap();
        assert_eq!(lease.seq(), 1);
        lease.part(0).unwrap();
        ring.stop();
        worker.join().unwrap();
    });
}

/// As [`worker`], ending parts of two steps early where they are cut.
fn cuttable(ring: &Arc<Ring>, id: usize) -> thread::JoinHandle<()> {
    let ring = Arc::clone(ring);
    thread::spawn(move || {
        while let Some(mut part) = ring.claim(id) {
            let mut rows = part.rows();
            while rows.next_step().is_some() && !rows.is_cut() {}
            let done = rows.steps_done();
            part.shorten(done);
            part.commit();
        }
    })
}

#[test]
fn a_slab_with_a_cut_part_has_a_step_of_each_and_one_whole_part() {
    model(2, || {
        let spec = RingSpec {
            order: Order::ByWorker,
            workers: 2,
            ahead: 0,
            max_slabs: 1,
            cut_after: Some(1),
            max_age: None,
        };
        let ring = of_steps(2, 2, spec);
        let workers = [cuttable(&ring, 0), cuttable(&ring, 1)];
        let lease = ring.next().unwrap();
        let steps: Vec<usize> = lease.commits().iter().map(|commit| commit.steps).collect();
        assert!(steps.iter().all(|steps| (1..=2).contains(steps)));
        assert!(steps.contains(&2));
        lease.part(0).unwrap();
        drop(lease);
        ring.stop();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn a_cut_from_another_thread_leaves_a_step_and_a_stop_its_end() {
    model(2, || {
        let spec = RingSpec {
            order: Order::ByArrival,
            workers: 1,
            ahead: 1,
            max_slabs: 2,
            cut_after: None,
            max_age: None,
        };
        let ring = of_steps(2, 1, spec);
        let worker = cuttable(&ring, 0);
        let cutter = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                ring.cut_all(true);
                ring.stop();
            })
        };
        for _ in 0..2 {
            match ring.next() {
                Ok(lease) => assert!((1..=2).contains(&lease.commits()[0].steps)),
                Err(error) => assert_eq!(error, SlabError::Stopped),
            }
        }
        worker.join().unwrap();
        cutter.join().unwrap();
    });
}

/// A worker that somebody else retires, twice, whatever it is at: it fills its parts or gives them
/// back.
fn retired_by_another(order: Order, commits: bool) {
    model(2, move || {
        let ring = ring(order, 2, 2, 0, 1);
        let lost = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                if let Some(part) = ring.claim(0).map(write)
                    && commits
                {
                    part.commit();
                }
            })
        };
        let retirer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                ring.retire(0);
                ring.retire(0);
            })
        };
        ring.request().unwrap();
        // The thread that waits fills the other worker's parts: loom has few threads to give.
        let lease = loop {
            if let Some(lease) = ring.try_next() {
                break lease;
            }
            match ring.try_claim(1).unwrap() {
                Some(part) => write(part).commit(),
                None => thread::yield_now(),
            }
        };
        // Read only where both have written it.
        let _ = lease.stacked().unwrap();
        assert!(lease.commits().iter().any(|commit| commit.steps > 0));
        lost.join().unwrap();
        retirer.join().unwrap();
    });
}

#[test]
fn a_worker_that_another_retires_makes_no_slab_whole_twice_and_none_wait() {
    for order in [Order::ByWorker, Order::ByArrival] {
        for commits in [false, true] {
            retired_by_another(order, commits);
        }
    }
}

#[test]
fn a_worker_fills_the_part_of_one_that_is_lost_whoever_learns_of_it_and_each_part_has_one_writer() {
    for by_another in [false, true] {
        model(2, move || {
            let ring = ring(Order::ByWorker, 2, 2, 0, 2);
            let reassigner = by_another.then(|| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || ring.reassign(0))
            });
            let lost = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    drop(ring.claim(0).map(write));
                    if !by_another {
                        ring.reassign(0);
                        assert!(ring.claim(0).is_none());
                    }
                })
            };
            // The thread that waits fills the parts: loom has few threads to give.
            for seq in 0..2 {
                ring.request().unwrap();
                let lease = loop {
                    if let Some(lease) = ring.try_next() {
                        break lease;
                    }
                    match ring.try_claim(1).unwrap() {
                        Some(part) => write(part).commit(),
                        None => thread::yield_now(),
                    }
                };
                assert_eq!((lease.seq(), lease.frames()), (seq, 2));
                assert!(lease.order().is_some());
                let _ = lease.stacked().unwrap();
            }
            reassigner
                .into_iter()
                .chain([lost])
                .for_each(|thread| thread.join().unwrap());
        });
    }
}

#[test]
fn a_worker_that_waits_is_woken_for_the_part_of_one_that_is_lost() {
    model(3, || {
        let ring = ring(Order::ByWorker, 2, 2, 0, 1);
        let worker = worker(&ring, 1);
        ring.request().unwrap();
        drop(ring.claim(0).map(write));
        ring.reassign(0);
        let lease = ring.next().unwrap();
        let _ = lease.stacked().unwrap();
        drop(lease);
        ring.stop();
        worker.join().unwrap();
    });
}

#[test]
fn a_worker_that_retires_leaves_its_parts_empty_and_nobody_waits_for_them() {
    model(2, || {
        let ring = ring(Order::ByWorker, 2, 2, 0, 2);
        let lost = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                drop(ring.claim(0).map(write));
                ring.retire(0);
                assert!(ring.claim(0).is_none());
            })
        };
        let worker = worker(&ring, 1);
        for seq in 0..2 {
            let lease = ring.next().unwrap();
            let steps: Vec<usize> = lease.commits().iter().map(|commit| commit.steps).collect();
            assert_eq!((lease.seq(), &steps[..]), (seq, &[0, 1][..]));
            lease.part(1).unwrap();
        }
        ring.stop();
        lost.join().unwrap();
        worker.join().unwrap();
    });
}
