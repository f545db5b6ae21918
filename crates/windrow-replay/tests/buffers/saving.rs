//! Buffers that are written to while a checkpoint is made, and by storages that fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tensordict::{Tensor, TensorDict};
use windrow_replay::{
    ConsumingSampler, LazyMemmapStorage, LazyTensorStorage, ListStorage, MaxRewardWriter,
    ReplayBuffer, ReplayError, ReuseWriter, SliceSampler, Storage, StorageRead,
};

const CAPACITY: usize = 12;
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn frames(numbers: std::ops::Range<i64>) -> TensorDict {
    let count = (numbers.end - numbers.start) as usize;
    let numbers = Tensor::arange(numbers).unwrap();
    let mut frames = TensorDict::new([count]);
    frames.set("number", numbers).unwrap();
    frames
}

fn numbers(buffer: &ReplayBuffer) -> Vec<i64> {
    let all = buffer.all().unwrap();
    let mut numbers = all.get("number").unwrap().to_vec::<i64>().unwrap();
    numbers.sort_unstable();
    numbers
}

/// Who waits, whom it tells that it does, and what for.
type Wait = (thread::ThreadId, Sender<()>, Receiver<()>);

/// A storage of which the thread that is named waits before it reads, and which panics where that
/// is asked for.
#[derive(Debug)]
struct Stubborn {
    inner: Box<dyn Storage>,
    waits: Mutex<Option<Wait>>,
    panics: Arc<AtomicBool>,
}

impl Stubborn {
    fn new(inner: impl Storage + 'static) -> Self {
        Self {
            inner: Box::new(inner),
            waits: Mutex::default(),
            panics: Arc::default(),
        }
    }
}

impl Storage for Stubborn {
    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn prepare(&self, frames: &TensorDict) -> Result<(), ReplayError> {
        self.inner.prepare(frames)
    }

    fn write(&self, first: usize, frames: &TensorDict) -> Result<(), ReplayError> {
        assert!(!self.panics.load(Ordering::Relaxed), "no more room");
        self.inner.write(first, frames)
    }

    fn read(&self) -> Box<dyn StorageRead + '_> {
        let mut waits = self.waits.lock().unwrap();
        let here = thread::current().id();
        if let Some((_, told, released)) = waits.take_if(|(who, ..)| *who == here) {
            drop(waits);
            told.send(()).unwrap();
            released.recv_timeout(LONG).unwrap();
        }
        self.inner.read()
    }

    fn clear(&self) {
        self.inner.clear();
    }

    fn frames_are_alike(&self) -> bool {
        self.inner.frames_are_alike()
    }
}

/// Saves `buffer`, whose storage is `storage`, and has `meanwhile` run before a row is copied; it
/// gets what lets the copying begin.
fn save_and(
    buffer: &ReplayBuffer,
    storage: &Arc<Stubborn>,
    meanwhile: impl FnOnce(&Sender<()>),
) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (told, waits) = channel();
    let (release, released) = channel();
    thread::scope(|scope| {
        let saving = scope.spawn(|| {
            let here = thread::current().id();
            *storage.waits.lock().unwrap() = Some((here, told, released));
            buffer.save(folder.path()).unwrap();
        });
        waits.recv_timeout(LONG).unwrap();
        meanwhile(&release);
        saving.join().unwrap();
    });
    folder
}

/// A handle on a storage that the test holds, too.
#[derive(Debug)]
struct Shared(Arc<Stubborn>);

impl Storage for Shared {
    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    fn prepare(&self, frames: &TensorDict) -> Result<(), ReplayError> {
        self.0.prepare(frames)
    }

    fn write(&self, first: usize, frames: &TensorDict) -> Result<(), ReplayError> {
        self.0.write(first, frames)
    }

    fn read(&self) -> Box<dyn StorageRead + '_> {
        self.0.read()
    }

    fn clear(&self) {
        self.0.clear();
    }

    fn frames_are_alike(&self) -> bool {
        self.0.frames_are_alike()
    }
}

fn loaded(folder: &tempfile::TempDir, best: bool) -> Vec<i64> {
    let builder = ReplayBuffer::builder().storage(LazyTensorStorage::new(CAPACITY));
    let buffer = match best {
        true => builder.writer(MaxRewardWriter::new("number")).build(),
        false => builder.build(),
    };
    let buffer = buffer.unwrap();
    buffer.load(folder.path()).unwrap();
    numbers(&buffer)
}

fn each_storage(check: impl Fn(Arc<Stubborn>, bool)) {
    for best in [false, true] {
        check(
            Arc::new(Stubborn::new(LazyTensorStorage::new(CAPACITY))),
            best,
        );
        check(
            Arc::new(Stubborn::new(LazyMemmapStorage::new(CAPACITY))),
            best,
        );
        check(Arc::new(Stubborn::new(ListStorage::new(CAPACITY))), best);
    }
}

fn build(storage: &Arc<Stubborn>, best: bool) -> ReplayBuffer {
    let builder = ReplayBuffer::builder().storage(Shared(Arc::clone(storage)));
    let buffer = match best {
        true => builder.writer(MaxRewardWriter::new("number")).build(),
        false => builder.build(),
    };
    buffer.unwrap()
}

#[test]
fn writes_to_free_rows_do_not_wait_for_a_checkpoint_and_are_not_in_it() {
    each_storage(|storage, best| {
        let buffer = build(&storage, best);
        buffer.extend(&frames(0..5)).unwrap();
        let folder = save_and(&buffer, &storage, |release| {
            // In a thread of its own, so that a wait without end fails.
            let (other, (done, is_done)) = (buffer.clone(), channel());
            thread::spawn(move || done.send(other.extend(&frames(5..9)).is_ok()));
            assert_eq!(is_done.recv_timeout(LONG), Ok(true));
            assert_eq!(buffer.len(), 9);
            release.send(()).unwrap();
        });
        assert_eq!(loaded(&folder, best), (0..5).collect::<Vec<i64>>());
    });
}

#[test]
fn what_a_write_overwrites_is_in_the_checkpoint_first() {
    each_storage(|storage, best| {
        let buffer = build(&storage, best);
        buffer.extend(&frames(0..CAPACITY as i64)).unwrap();
        let folder = save_and(&buffer, &storage, |release| write_late(&buffer, release));
        assert_eq!(loaded(&folder, best), (0..12).collect::<Vec<i64>>());
        let expected: Vec<i64> = (4..12).chain(90..94).collect();
        assert_eq!(numbers(&buffer), expected);
    });
}

/// Writes frames 90 to 93, which must wait until copying begins.
fn write_late(buffer: &ReplayBuffer, release: &Sender<()>) {
    let (other, (done, is_done)) = (buffer.clone(), channel());
    thread::spawn(move || done.send(other.extend(&frames(90..94)).is_ok()));
    // One that does not wait has the time to do harm.
    let early = is_done.recv_timeout(Duration::from_millis(50));
    assert!(early.is_err(), "it overwrote what was not copied");
    release.send(()).unwrap();
    assert_eq!(is_done.recv_timeout(LONG), Ok(true));
}

#[test]
fn what_a_sample_uses_up_meanwhile_is_in_the_checkpoint_before_its_row_is_written_again() {
    let build = |storage| {
        let builder = ReplayBuffer::builder().storage(Shared(storage));
        let builder = builder.sampler(ConsumingSampler::new(1));
        builder.writer(ReuseWriter::new()).build().unwrap()
    };
    each_storage(|storage, _| {
        let buffer = build(Arc::clone(&storage));
        buffer.extend(&frames(0..CAPACITY as i64)).unwrap();
        let folder = save_and(&buffer, &storage, |release| {
            buffer.sample(5).unwrap();
            write_late(&buffer, release);
        });
        assert_eq!(buffer.len(), 11);
        let other = build(Arc::new(Stubborn::new(LazyTensorStorage::new(CAPACITY))));
        other.load(folder.path()).unwrap();
        assert_eq!(numbers(&other), (0..12).collect::<Vec<i64>>());
    });
}

#[test]
fn a_checkpoint_that_fails_keeps_nobody_waiting() {
    let storage = Arc::new(Stubborn::new(LazyTensorStorage::new(CAPACITY)));
    let buffer = ReplayBuffer::builder().storage(Shared(storage)).build();
    let buffer = buffer.unwrap();
    buffer.extend(&frames(0..CAPACITY as i64)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("file");
    std::fs::write(&in_the_way, "").unwrap();
    buffer.save(&in_the_way).unwrap_err();
    let (other, (done, is_done)) = (buffer.clone(), channel());
    thread::spawn(move || {
        other.extend(&frames(20..24)).unwrap();
        other.empty();
        done.send(())
    });
    is_done.recv_timeout(LONG).unwrap();
}

#[test]
fn a_checkpoint_in_a_mapped_file_keeps_its_order() {
    let make = |storage| {
        let builder = ReplayBuffer::builder().storage(storage);
        builder.sampler(SliceSampler::slice_len(5)).build()
    };
    let buffer = make(LazyMemmapStorage::new(CAPACITY)).unwrap();
    let mut whole = frames(0..17);
    let done = Tensor::zeros(tensordict::DType::Bool, [17, 1]).unwrap();
    whole.set(("next", "done"), done).unwrap();
    buffer.extend(&whole).unwrap();
    let (saved, rows) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    buffer.save(saved.path()).unwrap();
    let open = || make(LazyMemmapStorage::new(CAPACITY).at(rows.path()).unwrap()).unwrap();
    let first = open();
    first.load(saved.path()).unwrap();
    drop(first);
    for _ in 0..20 {
        let sample = open().sample(5).unwrap();
        let drawn = sample.as_slice::<i64>("number").unwrap();
        assert!(
            drawn.windows(2).all(|pair| pair[1] == pair[0] + 1),
            "{drawn:?}"
        );
    }
}

#[test]
fn a_storage_that_panics_keeps_nobody_waiting() {
    each_storage(|storage, best| {
        let buffer = build(&storage, best);
        buffer.extend(&frames(0..10)).unwrap();
        storage.panics.store(true, Ordering::Relaxed);
        let panicked = catch_unwind(AssertUnwindSafe(|| buffer.extend(&frames(10..16))));
        assert!(panicked.is_err());
        storage.panics.store(false, Ordering::Relaxed);
        let (other, (done, is_done)) = (buffer.clone(), channel());
        thread::spawn(move || {
            // Nobody is writing: this does not wait for the sixty seconds that it would wait for
            // somebody.
            while other.sample(3).is_ok() && !other.is_empty() {
                other.empty();
            }
            other.extend(&frames(0..20)).unwrap();
            done.send(())
        });
        is_done.recv_timeout(LONG / 2).unwrap();
        assert_eq!(numbers(&buffer), (8..20).collect::<Vec<i64>>());
    });
}
