//! How old a part may be when it is taken, and who waits for that.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tensordict::DType;
use windrow_slab::{
    Layout, LeafSpec, Lease, MaxAge, Order, Part, PartOrder, Publication, RecordSpec, Ring,
    RingSpec, Shares,
};

const NOW: Duration = Duration::ZERO;

fn ring(order: Order, workers: usize, epochs: usize, slabs_per_batch: usize) -> Arc<Ring> {
    let record = RecordSpec {
        observation: vec![LeafSpec::new("observation", DType::I64, [])],
        policy: vec![LeafSpec::new("action", DType::I64, [])],
        ..RecordSpec::default()
    };
    let parts = match order {
        Order::ByWorker => workers,
        Order::ByArrival => 1,
    };
    let shares = Shares {
        steps: vec![1; parts],
        envs: 1,
        batched: false,
        order: PartOrder::Sequential,
    };
    let max_age = MaxAge {
        epochs,
        slabs_per_batch,
    };
    let ahead = match order {
        Order::ByWorker => 0,
        Order::ByArrival => max_age.ahead().min(workers),
    };
    let spec = RingSpec {
        order,
        workers,
        ahead,
        max_slabs: 64,
        cut_after: None,
        max_age: Some(max_age),
    };
    Ring::new(Layout::new(&record, shares).unwrap(), spec).unwrap()
}

fn claim(ring: &Arc<Ring>, worker: usize) -> Option<Part> {
    ring.try_claim(worker).unwrap()
}

fn fill(mut part: Part) {
    let mut rows = part.rows();
    while rows.next_step().is_some() {}
    part.commit();
}

/// Publishes, which must not wait.
fn publish(ring: &Ring) {
    let mut publication = ring.publication(None);
    assert!(publication.wait_within(NOW));
    publication.finish();
}

#[test]
fn without_epochs_ahead_workers_begin_when_they_are_asked() {
    let ring = ring(Order::ByArrival, 1, 0, 1);
    assert!(claim(&ring, 0).is_none());
    ring.request().unwrap();
    fill(claim(&ring, 0).unwrap());
    assert_eq!(ring.try_next().unwrap().ages(), [0]);
    publish(&ring);
    assert!(claim(&ring, 0).is_none());
}

#[test]
fn a_slab_is_not_overtaken_once_it_would_be_too_old() {
    let ring = ring(Order::ByArrival, 2, 1, 1);
    ring.request().unwrap();
    let slow = claim(&ring, 0).unwrap();
    fill(claim(&ring, 1).unwrap());
    // Begun for this batch or the next one.
    let first = ring.try_next().unwrap();
    assert_eq!(first.seq(), 1);
    publish(&ring);
    ring.request().unwrap();
    fill(claim(&ring, 1).unwrap());
    assert!(ring.try_next().is_none(), "slab 2 waits for slab 0");
    fill(slow);
    let second = ring.try_next().unwrap();
    assert_eq!((second.seq(), second.ages()), (0, &[1][..]));
}

#[test]
fn publications_between_two_deliveries_count_as_one() {
    let ring = ring(Order::ByArrival, 1, 1, 1);
    ring.request().unwrap();
    fill(claim(&ring, 0).unwrap());
    drop(ring.try_next().unwrap());
    let ahead = claim(&ring, 0).unwrap();
    (0..5).for_each(|_| publish(&ring));
    assert_eq!(ring.oldest(), 1);
    fill(ahead);
    ring.request().unwrap();
    assert_eq!(ring.try_next().unwrap().ages(), [1]);
}

#[test]
fn another_thread_waits_for_parts_that_would_be_too_old() {
    let ring = ring(Order::ByWorker, 2, 0, 1);
    ring.request().unwrap();
    let part = claim(&ring, 0).unwrap();
    let mut publication = ring.publication(None);
    assert!(!publication.wait_within(NOW));
    assert_eq!(publication.delaying(), [0]);
    // What was asked for is begun meanwhile: the publication waits for it.
    fill(claim(&ring, 1).unwrap());
    fill(part);
    assert!(!publication.wait_within(NOW));
    assert_eq!(ring.try_next().unwrap().ages(), [0, 0]);
    ring.request().unwrap();
    assert!(publication.wait_within(NOW), "granted by the delivery");
    assert!(claim(&ring, 0).is_none(), "weights are being replaced");
    publication.finish();
    assert!(claim(&ring, 0).is_some());
}

#[test]
fn a_publication_that_is_given_up_replaces_nothing() {
    let ring = ring(Order::ByWorker, 1, 0, 1);
    ring.request().unwrap();
    let part = claim(&ring, 0).unwrap();
    let mut publication = ring.publication(Some(0));
    assert!(!publication.wait_within(NOW));
    drop(publication);
    fill(part);
    assert_eq!(ring.try_next().unwrap().ages(), [0]);
    publish(&ring);
    ring.request().unwrap();
    assert!(claim(&ring, 0).is_some());
}

#[test]
fn a_request_that_nobody_waits_for_keeps_no_publication_waiting() {
    let ring = ring(Order::ByArrival, 1, 0, 1);
    ring.request().unwrap();
    let part = claim(&ring, 0).unwrap();
    ring.leave_unattended();
    publish(&ring);
    fill(part);
    ring.request().unwrap();
    assert_eq!(ring.try_next().unwrap().ages(), [1], "it was begun before");
}

#[test]
fn a_publication_to_one_worker_ages_its_parts_alone() {
    let ring = ring(Order::ByWorker, 2, 1, 1);
    ring.request().unwrap();
    let parts = [0, 1].map(|worker| claim(&ring, worker).unwrap());
    let mut publication = ring.publication(Some(1));
    assert!(publication.wait_within(NOW));
    publication.finish();
    parts.into_iter().for_each(fill);
    assert_eq!(ring.try_next().unwrap().ages(), [0, 1]);
}

/// A learner, workers and publishers that take turns at random.
struct Game {
    ring: Arc<Ring>,
    slabs_per_batch: usize,
    claimed: Vec<Vec<Part>>,
    kept: VecDeque<Lease>,
    /// Slabs that the batch under way lacks.
    lacking: usize,
    batches: usize,
    random: u64,
}

impl Game {
    fn below(&mut self, bound: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(1);
        (self.random >> 33) as usize % bound
    }

    fn take(&mut self, epochs: usize) -> bool {
        let Some(lease) = self.ring.try_next() else {
            return false;
        };
        let oldest = *lease.ages().iter().max().unwrap();
        assert!(
            oldest <= epochs as u64,
            "age {oldest} after {}",
            self.batches
        );
        self.lacking = self.lacking.saturating_sub(1);
        self.batches += usize::from(self.lacking == 0);
        self.kept.push_back(lease);
        let keeps = self.below(3);
        self.kept.truncate(keeps);
        true
    }

    /// Whether a worker began, finished or lost a part.
    fn work(&mut self, worker: usize) -> bool {
        match self.below(4) {
            0 | 1 => match claim(&self.ring, worker) {
                Some(part) => self.claimed[worker].push(part),
                None => return self.finish(worker),
            },
            2 => return self.finish(worker),
            // Lost: somebody claims it again.
            _ => drop(self.claimed[worker].pop()),
        }
        true
    }

    fn finish(&mut self, worker: usize) -> bool {
        self.claimed[worker].pop().map(fill).is_some()
    }
}

/// Plays until `batches` were delivered; `concurrent` publishers are other threads than the
/// learner's.
fn play(order: Order, [workers, epochs, slabs_per_batch]: [usize; 3], concurrent: bool, seed: u64) {
    let ring = ring(order, workers, epochs, slabs_per_batch);
    let mut game = Game {
        ring: Arc::clone(&ring),
        slabs_per_batch,
        claimed: (0..workers).map(|_| Vec::new()).collect(),
        kept: VecDeque::new(),
        lacking: 0,
        batches: 0,
        random: seed,
    };
    let mut publication: Option<Publication<'_>> = None;
    let mut idle = 0_u32;
    while game.batches < 60 {
        idle += 1;
        assert!(
            idle < 4000,
            "nothing happens after {} batches",
            game.batches
        );
        match game.below(8) {
            0 if game.lacking == 0 => {
                if game.below(2) == 0 && publication.is_none() {
                    publish(&ring);
                }
                game.lacking = game.slabs_per_batch;
                ring.request_many(game.lacking).unwrap();
                idle = 0;
            }
            0..=2 if game.lacking > 0 => {
                ring.request_many(game.lacking).unwrap();
                if game.take(epochs) {
                    idle = 0;
                }
            }
            3 if concurrent => {
                let mut waiting = publication.take().unwrap_or_else(|| {
                    let worker = (game.below(3) == 0).then(|| game.below(workers));
                    ring.publication(worker)
                });
                match waiting.wait_within(NOW) {
                    true if game.below(4) > 0 => waiting.finish(),
                    true => drop(waiting),
                    false => publication = Some(waiting),
                }
            }
            _ => {
                let worker = game.below(workers);
                if game.work(worker) {
                    // Parts that are lost again and again are no progress.
                    idle = idle.saturating_sub(1);
                }
            }
        }
    }
}

#[test]
fn no_part_is_too_old_and_nobody_waits_for_ever_whatever_happens() {
    for seed in 0..40 {
        for concurrent in [false, true] {
            for workers in [1, 2, 5] {
                for epochs in [0, 1, 2, 8] {
                    play(Order::ByWorker, [workers, epochs, 1], concurrent, seed);
                    for per_batch in [1, workers.div_ceil(2), workers] {
                        let numbers = [workers, epochs, per_batch];
                        play(Order::ByArrival, numbers, concurrent, seed);
                    }
                }
            }
        }
    }
}
