//! A ring whose parts are filled elsewhere: every call that waits, or changes what workers may do,
//! has the pump run. The workers are threads that see the ring as another process does.
#![cfg(all(target_os = "linux", not(any(loom, shuttle))))]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tensordict::DType;
use windrow_slab::{
    Key, Layout, LeafSpec, Lease, Order, Part, PartOrder, Pump, RecordSpec, RemoteRing, Ring,
    RingSpec, SharedFile, Shares, SlabError,
};

const ACTION: Key<i64> = Key::new(0);
const LONG: Duration = Duration::MAX;

fn layout(parts: usize) -> Layout {
    let record = RecordSpec {
        policy: vec![LeafSpec::new("action", DType::I64, [])],
        ..RecordSpec::default()
    };
    let shares = Shares {
        steps: vec![4; parts],
        envs: 2,
        batched: true,
        order: PartOrder::Sequential,
    };
    Layout::new(&record, shares).unwrap()
}

/// Slab, part and number.
type Named = (usize, usize, u64);

/// What the pump knows of one worker.
struct Lane {
    /// Claimed for the worker, which is filling it.
    part: Option<Part>,
    orders: Sender<Named>,
    /// Steps that were written.
    answers: Receiver<usize>,
    /// The worker answers one order for each.
    permits: Sender<()>,
}

struct Crew {
    ring: Arc<Ring>,
    lanes: Mutex<Vec<Lane>>,
    pumping: AtomicBool,
    pumps: AtomicUsize,
}

impl Pump for Crew {
    fn pump(&self) {
        assert!(!self.pumping.swap(true, Ordering::SeqCst), "one at a time");
        self.pumps.fetch_add(1, Ordering::SeqCst);
        for (worker, lane) in self.lanes.lock().unwrap().iter_mut().enumerate() {
            if let Ok(steps) = lane.answers.try_recv() {
                let mut part = lane.part.take().unwrap();
                part.shorten(steps);
                part.commit();
            }
            if lane.part.is_none()
                && let Ok(Some(part)) = self.ring.try_claim(worker)
            {
                let _ = lane.orders.send((part.slot(), part.index(), part.seq()));
                lane.part = Some(part);
            }
        }
        self.pumping.store(false, Ordering::SeqCst);
    }
}

impl Crew {
    /// Lets each worker answer `orders` orders.
    fn permit(&self, orders: usize) {
        for lane in self.lanes.lock().unwrap().iter() {
            for _ in 0..orders {
                let _ = lane.permits.send(());
            }
        }
    }

    /// Takes the part of `worker` away, as when its process has died.
    fn lose(&self, worker: usize) {
        let part = self.lanes.lock().unwrap()[worker].part.take();
        drop(part);
    }
}

/// A ring, its pump, and workers that are alive as long as it.
struct Scene {
    ring: Arc<Ring>,
    crew: Arc<Crew>,
    begins: Sender<(usize, u64)>,
    /// Worker and number of each part that was begun.
    begun: Receiver<(usize, u64)>,
    answers: Sender<(usize, u64)>,
    /// The same of each part that was answered.
    answered: Receiver<(usize, u64)>,
    workers: Vec<JoinHandle<()>>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.ring.stop();
        self.crew.permit(100);
        self.crew.lanes.lock().unwrap().clear();
        for worker in self.workers.drain(..) {
            assert!(worker.join().is_ok() || thread::panicking());
        }
    }
}

impl Scene {
    fn new(order: Order, workers: usize, ahead: usize, max_slabs: usize) -> Self {
        let spec = RingSpec {
            order,
            workers,
            ahead,
            max_slabs,
            cut_after: None,
            max_age: None,
        };
        let ring = Ring::shared(layout(workers), spec).unwrap();
        let (begins, begun) = channel();
        let (answers, answered) = channel();
        let crew = Arc::new(Crew {
            ring: Arc::clone(&ring),
            lanes: Mutex::new(Vec::new()),
            pumping: AtomicBool::new(false),
            pumps: AtomicUsize::new(0),
        });
        let mut scene = Self {
            ring,
            crew,
            begins,
            begun,
            answers,
            answered,
            workers: Vec::new(),
        };
        for worker in 0..workers {
            let lane = scene.start(worker, workers);
            scene.crew.lanes.lock().unwrap().push(lane);
        }
        let pump: Weak<Crew> = Arc::downgrade(&scene.crew);
        scene.ring.attend(pump);
        scene
    }

    /// A thread for `worker` of this many.
    fn start(&mut self, worker: usize, workers: usize) -> Lane {
        let (orders, to_fill) = channel::<Named>();
        let (done, filled) = channel();
        let (permits, permitted) = channel();
        let remote = remote(&self.ring, workers);
        let (begins, answers) = (self.begins.clone(), self.answers.clone());
        self.workers.push(thread::spawn(move || {
            while let Ok(named) = to_fill.recv() {
                begins.send((worker, named.2)).unwrap();
                if permitted.recv().is_err() {
                    break;
                }
                let steps = fill(&remote, worker, named);
                let _ = done.send(steps);
                remote.ring_bell();
                let _ = answers.send((worker, named.2));
            }
        }));
        Lane {
            part: None,
            orders,
            answers: filled,
            permits,
        }
    }

    /// Ends the thread of `worker`, which has begun a part, before it writes any of it. Puts
    /// another in its place.
    fn replace(&mut self, worker: usize) {
        let workers = self.crew.lanes.lock().unwrap().len();
        let lane = self.start(worker, workers);
        let lost = std::mem::replace(&mut self.crew.lanes.lock().unwrap()[worker], lane);
        drop(lost);
    }

    /// Asks for a slab and waits until each worker has begun its part of it.
    fn all_out(&self) {
        self.ring.request().unwrap();
        let workers = self.crew.lanes.lock().unwrap().len();
        for _ in 0..workers {
            self.begun.recv().unwrap();
        }
    }
}

fn remote(ring: &Ring, parts: usize) -> Arc<RemoteRing> {
    let fd = ring.file().unwrap().as_fd().try_clone_to_owned().unwrap();
    // SAFETY: the pump leaves a part that it has claimed alone while a worker fills it.
    let file = unsafe { SharedFile::from_fd(fd) }.unwrap();
    RemoteRing::open(layout(parts), file).unwrap()
}

/// Writes every step, or ends where the part is cut. Returns the steps.
fn fill(remote: &Arc<RemoteRing>, worker: usize, (slot, part, seq): Named) -> usize {
    let mut part = remote.part(slot, part, seq).unwrap();
    let mut rows = part.rows();
    while !rows.is_cut()
        && let Some(mut step) = rows.next_step()
    {
        let value = 10 * seq as i64 + worker as i64;
        step.policy.get_mut(ACTION).unwrap().fill(value);
    }
    let steps = rows.steps_done();
    part.commit();
    steps
}

/// The value that each part of a whole batch has everywhere.
fn values(lease: &Lease) -> Vec<i64> {
    let parts = 0..lease.commits().len();
    let value = |part| {
        let batch = lease.part(part).unwrap();
        let actions = batch.get("action").unwrap().to_vec::<i64>().unwrap();
        assert_eq!(actions, vec![actions[0]; 8]);
        actions[0]
    };
    parts.map(value).collect()
}

#[test]
fn next_waits_for_workers_elsewhere() {
    let scene = Scene::new(Order::ByWorker, 2, 0, 3);
    scene.crew.permit(3);
    for seq in 0..3 {
        let lease = scene.ring.next().unwrap();
        assert_eq!(values(&lease), [10 * seq, 10 * seq + 1]);
    }
}

#[test]
fn workers_elsewhere_run_ahead_and_wait_for_nobody() {
    let scene = Scene::new(Order::ByArrival, 1, 2, 4);
    scene.crew.permit(6);
    for seq in 0..6 {
        let lease = scene.ring.next().unwrap();
        assert_eq!((lease.seq(), values(&lease)), (seq, vec![10 * seq as i64]));
    }
}

#[test]
fn next_within_gives_up_while_a_part_is_out_and_gets_it_later() {
    let scene = Scene::new(Order::ByWorker, 2, 0, 2);
    assert!(scene.ring.next_within(Duration::ZERO).unwrap().is_none());
    scene.begun.recv().unwrap();
    scene.begun.recv().unwrap();
    assert!(
        scene
            .ring
            .next_within(Duration::from_millis(1))
            .unwrap()
            .is_none()
    );
    scene.crew.permit(1);
    let lease = scene.ring.next_within(LONG).unwrap().unwrap();
    assert_eq!(values(&lease), [0, 1]);
}

#[test]
fn a_request_alone_has_workers_begin_and_try_next_finds_what_they_answered() {
    let scene = Scene::new(Order::ByWorker, 2, 0, 2);
    scene.crew.permit(2);
    for seq in 0..2 {
        scene.all_out();
        scene.answered.recv().unwrap();
        scene.answered.recv().unwrap();
        let lease = scene.ring.try_next().unwrap();
        assert_eq!(lease.seq(), seq);
        assert!(scene.ring.try_next().is_none());
    }
}

/// `wait` returns once all parts are back, which workers give back only after it has begun.
fn waits_for_parts_that_are_out(wait: impl FnOnce(&Ring)) {
    let scene = Scene::new(Order::ByWorker, 2, 1, 3);
    scene.all_out();
    assert!(!scene.ring.hold());
    thread::scope(|scope| {
        let before = scene.crew.pumps.load(Ordering::SeqCst);
        let crew = &scene.crew;
        scope.spawn(move || {
            while crew.pumps.load(Ordering::SeqCst) == before {
                thread::yield_now();
            }
            crew.permit(1);
        });
        wait(&scene.ring);
    });
    let lanes = scene.crew.lanes.lock().unwrap();
    assert!(lanes.iter().all(|lane| lane.part.is_none()));
    drop(lanes);
    // What was filled is whole, and nothing further was begun.
    assert_eq!(values(&scene.ring.try_next().unwrap()), [0, 1]);
    assert!(scene.begun.try_recv().is_err());
}

#[test]
fn pause_waits_for_parts_that_are_out() {
    waits_for_parts_that_are_out(Ring::pause);
}

#[test]
fn hold_within_waits_for_parts_that_are_out() {
    waits_for_parts_that_are_out(|ring| assert!(ring.hold_within(LONG)));
}

#[test]
fn hold_sees_what_was_answered_while_nobody_waited() {
    let scene = Scene::new(Order::ByWorker, 1, 0, 1);
    scene.all_out();
    scene.crew.permit(1);
    scene.answered.recv().unwrap();
    assert!(scene.ring.hold());
}

#[test]
fn hold_within_gives_up_while_a_part_is_out() {
    let scene = Scene::new(Order::ByWorker, 1, 0, 1);
    scene.all_out();
    assert!(!scene.ring.hold_within(Duration::from_millis(1)));
}

#[test]
fn a_resume_has_workers_begin() {
    let scene = Scene::new(Order::ByWorker, 1, 0, 1);
    scene.ring.pause();
    scene.ring.request().unwrap();
    assert!(scene.begun.try_recv().is_err());
    scene.ring.resume();
    assert_eq!(scene.begun.recv().unwrap(), (0, 0));
}

#[test]
fn a_moved_end_has_workers_begin() {
    let scene = Scene::new(Order::ByWorker, 1, 0, 1);
    scene.ring.end_at(0);
    scene.ring.request().unwrap();
    assert!(scene.begun.try_recv().is_err());
    scene.ring.end_at(1);
    assert_eq!(scene.begun.recv().unwrap(), (0, 0));
}

#[test]
fn a_dropped_batch_has_workers_begin() {
    let scene = Scene::new(Order::ByWorker, 1, 1, 1);
    scene.crew.permit(1);
    let lease = scene.ring.next().unwrap();
    assert_eq!(scene.begun.recv().unwrap(), (0, 0));
    assert!(scene.begun.try_recv().is_err(), "there is no slab to fill");
    drop(lease);
    assert_eq!(scene.begun.recv().unwrap(), (0, 1));
}

#[test]
fn a_stop_wakes_the_waiting_consumer_and_cuts_parts_elsewhere() {
    let scene = Scene::new(Order::ByWorker, 2, 0, 2);
    thread::scope(|scope| {
        let consumer = scope.spawn(|| scene.ring.next());
        scene.begun.recv().unwrap();
        scene.begun.recv().unwrap();
        scene.ring.stop();
        assert_eq!(consumer.join().unwrap().unwrap_err(), SlabError::Stopped);
    });
    scene.crew.permit(1);
    // Each part comes back without a step.
    scene.ring.pause();
    assert!(scene.ring.try_next().is_none());
    let lanes = scene.crew.lanes.lock().unwrap();
    assert!(lanes.iter().all(|lane| lane.part.is_none()));
}

#[test]
fn a_worker_that_died_gets_its_part_again_and_one_retired_leaves_it_empty() {
    let mut scene = Scene::new(Order::ByWorker, 2, 0, 2);
    scene.all_out();
    scene.replace(1);
    scene.ring.pump();
    assert_eq!(scene.begun.recv().unwrap(), (1, 0), "the same part again");
    thread::scope(|scope| {
        let consumer = scope.spawn(|| scene.ring.next().unwrap());
        let lanes = scene.crew.lanes.lock().unwrap();
        lanes[0].permits.send(()).unwrap();
        drop(lanes);
        scene.answered.recv().unwrap();
        assert!(scene.ring.retire(1));
        scene.crew.lose(1);
        let lease = consumer.join().unwrap();
        let steps: Vec<_> = lease.commits().iter().map(|commit| commit.steps).collect();
        assert_eq!(steps, [4, 0]);
    });
}

#[test]
fn a_worker_elsewhere_fills_the_part_of_one_that_is_reassigned() {
    for dies_first in [true, false] {
        let scene = Scene::new(Order::ByWorker, 2, 0, 2);
        scene.all_out();
        for _ in 0..2 {
            let lanes = scene.crew.lanes.lock().unwrap();
            lanes[0].permits.send(()).unwrap();
        }
        thread::scope(|scope| {
            let consumer = scope.spawn(|| scene.ring.next().unwrap());
            if dies_first {
                scene.crew.lose(1);
                scene.ring.reassign(1);
            } else {
                scene.ring.reassign(1);
                scene.crew.lose(1);
            }
            let lease = consumer.join().unwrap();
            assert_eq!(lease.frames(), 16);
        });
    }
}

/// One worker and one slab.
fn ring_of_one() -> Arc<Ring> {
    let spec = RingSpec {
        order: Order::ByWorker,
        workers: 1,
        ahead: 0,
        max_slabs: 1,
        cut_after: None,
        max_age: None,
    };
    Ring::shared(layout(1), spec).unwrap()
}

#[test]
fn threads_of_the_same_process_may_claim_too() {
    let ring = ring_of_one();
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(part) = ring.claim(0) {
                part.commit();
            }
        });
        for seq in 0..3 {
            assert_eq!(ring.next().unwrap().seq(), seq);
        }
        ring.stop();
    });
}

/// Resumes the ring from within, twice.
struct Nested {
    ring: Arc<Ring>,
    inside: AtomicBool,
    calls: AtomicUsize,
}

impl Pump for Nested {
    fn pump(&self) {
        assert!(
            !self.inside.swap(true, Ordering::SeqCst),
            "not within itself"
        );
        if self.calls.fetch_add(1, Ordering::SeqCst) < 2 {
            self.ring.resume();
        }
        self.inside.store(false, Ordering::SeqCst);
    }
}

#[test]
fn a_pump_that_changes_the_ring_runs_again_when_it_has_returned() {
    let ring = ring_of_one();
    let nested = Arc::new(Nested {
        ring: Arc::clone(&ring),
        inside: AtomicBool::new(false),
        calls: AtomicUsize::new(0),
    });
    let pump: Weak<Nested> = Arc::downgrade(&nested);
    ring.attend(pump);
    assert_eq!(nested.calls.load(Ordering::SeqCst), 3);
}

#[test]
fn a_remote_part_is_checked_and_lent_once() {
    let scene = Scene::new(Order::ByWorker, 2, 0, 1);
    let remote = remote(&scene.ring, 2);
    let part = remote.part(0, 1, 7).unwrap();
    assert_eq!((part.slot(), part.index(), part.seq()), (0, 1, 7));
    let again = remote.part(0, 1, 7).unwrap_err();
    assert_eq!(again, SlabError::StillLent { slot: 0, part: 1 });
    drop(remote.part(0, 0, 7).unwrap());
    drop(part);
    remote.part(0, 1, 7).unwrap().commit();
    let part = remote.part(0, 2, 0).unwrap_err();
    assert_eq!(part, SlabError::NoSuchPart { part: 2, parts: 2 });
    for slot in [1, usize::MAX] {
        let slab = remote.part(slot, 0, 0).unwrap_err();
        assert_eq!(slab, SlabError::NoSuchSlab { slot });
    }
}

#[test]
fn memory_that_is_no_ring_or_laid_out_otherwise_is_refused() {
    let scene = Scene::new(Order::ByWorker, 2, 0, 1);
    let fd = scene.ring.file().unwrap().as_fd().try_clone_to_owned();
    // SAFETY: it is not used.
    let file = unsafe { SharedFile::from_fd(fd.unwrap()) }.unwrap();
    let error = RemoteRing::open(layout(3), file).unwrap_err();
    let (expected, got) = (layout(3).fingerprint(), layout(2).fingerprint());
    assert_eq!(error, SlabError::OtherLayout { expected, got });
    for pages in [0, 1] {
        let file = SharedFile::create("test").unwrap();
        if pages > 0 {
            file.reserve(0, (pages * SharedFile::page()) as u64)
                .unwrap();
        }
        let error = RemoteRing::open(layout(2), file).unwrap_err();
        assert!(matches!(error, SlabError::NoRing { got: 0, .. }), "{error}");
    }
}

#[test]
fn a_ring_larger_than_memory_is_refused_when_it_is_built() {
    let shares = Shares {
        steps: vec![1 << 45],
        envs: 1,
        batched: false,
        order: PartOrder::Sequential,
    };
    let layout = Layout::new(&RecordSpec::default(), shares).unwrap();
    let spec = RingSpec {
        order: Order::ByWorker,
        workers: 1,
        ahead: 0,
        max_slabs: usize::MAX,
        cut_after: None,
        max_age: None,
    };
    let error = Ring::shared(layout, spec).unwrap_err();
    assert!(matches!(error, SlabError::NoMemory { .. }), "{error}");
}

/// Panics when it runs for the first time.
struct Clumsy(AtomicUsize);

impl Pump for Clumsy {
    fn pump(&self) {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "as told");
    }
}

#[test]
fn a_pump_that_has_panicked_runs_again() {
    let ring = ring_of_one();
    let clumsy = Arc::new(Clumsy(AtomicUsize::new(0)));
    let pump: Weak<Clumsy> = Arc::downgrade(&clumsy);
    let panicked = catch_unwind(AssertUnwindSafe(|| ring.attend(pump)));
    assert!(panicked.is_err());
    ring.pump();
    assert_eq!(clumsy.0.load(Ordering::SeqCst), 2);
}
