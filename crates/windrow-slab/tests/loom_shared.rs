//! Every interleaving of up to three threads around a bell and a pump: run with
//! `cargo xtask models`.
//!
//! A missed wake-up leaves a thread asleep for ever, which fails the model.
#![cfg(all(loom, target_os = "linux"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::{Arc, Weak};

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;
use windrow_slab::{
    Bell, Layout, Order, Part, PartOrder, Pump, RecordSpec, Ring, RingSpec, Shares,
};

/// All interleavings with at most `preemptions` switches away from a thread that could go on.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

/// Waits until `there`.
fn wait_for(bell: &Bell, there: impl Fn() -> bool) {
    loop {
        let seen = bell.count();
        if there() {
            return;
        }
        bell.wait(seen, None);
    }
}

#[test]
fn no_ring_is_lost_and_what_was_written_before_it_is_seen() {
    model(3, || {
        let shared = Arc::new((Bell::new(), AtomicU32::new(0)));
        let ringers = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (bell, written) = &*shared;
                written.fetch_add(1, Ordering::Relaxed);
                bell.ring();
            })
        });
        let (bell, written) = &*shared;
        wait_for(bell, || written.load(Ordering::Relaxed) == 2);
        ringers
            .into_iter()
            .for_each(|ringer| ringer.join().unwrap());
    });
}

#[test]
fn one_ring_wakes_all_who_wait() {
    model(3, || {
        let shared = Arc::new((Bell::new(), AtomicBool::new(false)));
        let waiters = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (bell, written) = &*shared;
                wait_for(bell, || written.load(Ordering::Relaxed));
            })
        });
        let (bell, written) = &*shared;
        written.store(true, Ordering::Relaxed);
        bell.ring();
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().unwrap());
    });
}

fn ring(ahead: usize, max_slabs: usize) -> Arc<Ring> {
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
    Ring::shared(Layout::new(&RecordSpec::default(), shares).unwrap(), spec).unwrap()
}

fn attend<P: Pump + 'static>(ring: &Ring, pump: &Arc<P>) {
    let weak: Weak<P> = Arc::downgrade(pump);
    ring.attend(weak);
}

/// Notes which changes it has seen.
struct Witness {
    changed: [AtomicBool; 2],
    seen: [AtomicBool; 2],
    pumping: AtomicBool,
}

impl Pump for Witness {
    fn pump(&self) {
        assert!(!self.pumping.swap(true, Ordering::Relaxed), "one at a time");
        for (changed, seen) in self.changed.iter().zip(&self.seen) {
            if changed.load(Ordering::Relaxed) {
                seen.store(true, Ordering::Relaxed);
            }
        }
        self.pumping.store(false, Ordering::Relaxed);
    }
}

#[test]
fn two_changes_at_once_are_both_seen_by_a_pump_that_runs_in_one_thread_at_a_time() {
    model(3, || {
        let ring = ring(0, 1);
        let witness = Arc::new(Witness {
            changed: [AtomicBool::new(false), AtomicBool::new(false)],
            seen: [AtomicBool::new(false), AtomicBool::new(false)],
            pumping: AtomicBool::new(false),
        });
        attend(&ring, &witness);
        let changers = [0, 1].map(|i| {
            let (ring, witness) = (Arc::clone(&ring), Arc::clone(&witness));
            thread::spawn(move || {
                witness.changed[i].store(true, Ordering::Relaxed);
                ring.pump();
            })
        });
        changers
            .into_iter()
            .for_each(|changer| changer.join().unwrap());
        for seen in &witness.seen {
            assert!(seen.load(Ordering::Relaxed));
        }
    });
}

/// A worker elsewhere, by its words: a count of orders, and one of answers.
struct Lane {
    ring: Arc<Ring>,
    part: Mutex<Option<Part>>,
    orders: AtomicU32,
    ordered: Bell,
    answers: AtomicU32,
}

impl Pump for Lane {
    fn pump(&self) {
        let mut part = self.part.lock().unwrap();
        let orders = self.orders.load(Ordering::Relaxed);
        if part.is_some() && self.answers.load(Ordering::Acquire) == orders {
            let mut part = part.take().unwrap();
            let _ = part.rows();
            part.commit();
        }
        if part.is_none() {
            *part = self.ring.try_claim(0).unwrap_or(None);
            if part.is_some() {
                self.orders.store(orders + 1, Ordering::Release);
                self.ordered.ring();
            }
        }
    }
}

impl Lane {
    fn new(ring: &Arc<Ring>) -> Arc<Self> {
        let lane = Arc::new(Self {
            ring: Arc::clone(ring),
            part: Mutex::new(None),
            orders: AtomicU32::new(0),
            ordered: Bell::new(),
            answers: AtomicU32::new(0),
        });
        attend(ring, &lane);
        lane
    }

    /// Answers orders, up to number `last`.
    fn worker(self: &Arc<Self>, last: u32) -> thread::JoinHandle<()> {
        let lane = Arc::clone(self);
        thread::spawn(move || {
            for order in 1..=last {
                wait_for(&lane.ordered, || {
                    lane.orders.load(Ordering::Acquire) == order
                });
                lane.answers.store(order, Ordering::Release);
                lane.ring.bell().unwrap().ring();
            }
        })
    }
}

#[test]
fn the_consumer_hears_of_every_answer_and_the_worker_of_every_order() {
    model(2, || {
        let ring = ring(0, 1);
        let lane = Lane::new(&ring);
        let worker = lane.worker(2);
        for seq in 0..2 {
            let lease = ring.next().unwrap();
            assert_eq!(lease.seq(), seq);
            lease.part(0).unwrap();
        }
        worker.join().unwrap();
    });
}

#[test]
fn a_batch_dropped_elsewhere_has_the_worker_go_on_whoever_pumps() {
    model(2, || {
        let ring = ring(1, 1);
        let lane = Lane::new(&ring);
        let worker = lane.worker(2);
        let lease = ring.next().unwrap();
        let reader = thread::spawn(move || drop(lease.part(0).unwrap()));
        // Ends when the answer to the second order is taken, which nobody gives before the batch is
        // dropped.
        worker.join().unwrap();
        ring.pause();
        assert!(lane.part.lock().unwrap().is_none());
        reader.join().unwrap();
    });
}

#[test]
fn a_pause_waits_for_what_is_out_while_another_thread_pumps() {
    model(2, || {
        let ring = ring(0, 1);
        let lane = Lane::new(&ring);
        ring.request().unwrap();
        let worker = lane.worker(1);
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.pump())
        };
        ring.pause();
        assert!(lane.part.lock().unwrap().is_none());
        worker.join().unwrap();
        other.join().unwrap();
    });
}
