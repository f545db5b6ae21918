//! A process that fills a buffer on disk and writes checkpoints is killed at any moment: what it
//! leaves is whole.
//!
//! `WINDROW_KILLS` says how often; `cargo xtask faults replay` sets it to fifty.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Seek, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tensordict::{Tensor, TensorDict};
use windrow_replay::{LazyMemmapStorage, LazyTensorStorage, RandomSampler, ReplayBuffer, Storage};

const DIRECTORY: &str = "WINDROW_KILL_DIRECTORY";
const KIND: &str = "WINDROW_KILL_KIND";
const READY: &str = "the writer writes";
/// A writer that nobody kills ends by itself.
const LIFE: Duration = Duration::from_secs(20);

/// Capacity and frames of a buffer.
#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    capacity: usize,
    /// Width and height of a frame's image.
    pixels: usize,
}

const KINDS: [Kind; 2] = [
    Kind {
        name: "images apart from the rest of their frames",
        capacity: 2_000,
        pixels: 64,
    },
    Kind {
        name: "more than 32 MiB of frames in one piece, which are written past the caches",
        capacity: 76_000,
        pixels: 20,
    },
];

fn hash(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// Frames whose every byte follows from their number, some hundreds or thousands of bytes each.
fn frames(kind: Kind, first: u64, n: u64) -> TensorDict {
    let numbers = first..first + n;
    let size = n as usize;
    let floats = |of: u64| {
        let values = numbers.clone().flat_map(move |number| {
            (0..4).map(move |at| (hash(number + of) >> (8 * at) & 0xff) as f32)
        });
        Tensor::from_vec(values.collect::<Vec<f32>>(), [size, 4]).unwrap()
    };
    // One byte all over, so that a writer spends its time with writing.
    let image = kind.pixels * kind.pixels;
    let mut pixels = Vec::with_capacity(size * image);
    for number in numbers.clone() {
        pixels.resize(pixels.len() + image, hash(number) as u8);
    }
    let pixels = Tensor::from_vec(pixels, [size, kind.pixels, kind.pixels]).unwrap();
    let rewards = numbers.clone().map(|number| f64::from(hash(number) as u8));
    let reward = Tensor::from_vec(rewards.collect::<Vec<f64>>(), [size, 1]).unwrap();
    let done = numbers
        .clone()
        .map(|number| hash(number).is_multiple_of(50));
    let done = Tensor::from_vec(done.collect::<Vec<bool>>(), [size, 1]).unwrap();
    let texts = numbers.clone().map(|number| {
        let times = hash(number) % 100;
        format!("{number} ").repeat(times as usize)
    });
    let texts = Tensor::from_strings(&texts.collect::<Vec<_>>(), [size]).unwrap();
    let action = Tensor::arange(first as i64..(first + n) as i64).unwrap();
    let mut dict = TensorDict::new([size]);
    dict.set("action", action).unwrap();
    dict.set("observation", floats(0)).unwrap();
    dict.set("pixels", pixels).unwrap();
    dict.set("text", texts).unwrap();
    dict.set(("next", "observation"), floats(1)).unwrap();
    dict.set(("next", "reward"), reward).unwrap();
    dict.set(("next", "done"), done).unwrap();
    dict
}

/// How many frames are written together from this number on.
fn together(number: u64) -> u64 {
    1 + hash(!number) % 300
}

fn on_disk(kind: Kind, directory: &Path) -> ReplayBuffer {
    let storage = LazyMemmapStorage::new(kind.capacity).at(directory.join("rows"));
    build(storage.unwrap())
}

fn build(storage: impl Storage + 'static) -> ReplayBuffer {
    ReplayBuffer::builder()
        .storage(storage)
        .sampler(RandomSampler::new())
        .build()
        .unwrap()
}

/// A file that holds a number, and survives its process as well.
struct Note(fs::File);

impl Note {
    fn new(path: &Path) -> Self {
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(false).write(true);
        Self(options.open(path).unwrap())
    }

    fn put(&mut self, number: u64) {
        self.0.rewind().unwrap();
        self.0.write_all(&number.to_le_bytes()).unwrap();
    }

    fn read(path: &Path) -> u64 {
        let bytes = fs::read(path).unwrap_or_default();
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }
}

/// Not a test: what the test starts and kills.
#[test]
#[ignore = "runs in a process of its own, which the other test starts"]
fn writer() {
    let Some(directory) = env::var_os(DIRECTORY) else {
        return;
    };
    let directory = Path::new(&directory);
    let kind = env::var(KIND).unwrap();
    let kind = KINDS.into_iter().find(|known| known.name == kind).unwrap();
    let start = Instant::now();
    let buffer = on_disk(kind, directory);
    let mut written = Note::new(&directory.join("written"));
    let mut saved = Note::new(&directory.join("saved"));
    let number = AtomicU64::new(buffer.write_count());
    println!("{READY}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while start.elapsed() < LIFE {
                let before = number.load(Ordering::Acquire);
                buffer.save(directory.join("checkpoint")).unwrap();
                saved.put(before);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        while start.elapsed() < LIFE {
            let first = number.load(Ordering::Relaxed);
            let n = together(first);
            buffer.extend(&frames(kind, first, n)).unwrap();
            written.put(first + n);
            number.store(first + n, Ordering::Release);
        }
    });
}

/// Starts a writer and waits until it writes.
fn start(kind: Kind, directory: &Path) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "writer", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(KIND, kind.name)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().contains(READY)),
        "the writer ended before it wrote"
    );
    child
}

/// Frames of a buffer: the last ones up to its count, whole and without a gap. Returns how many.
fn check(kind: Kind, buffer: &ReplayBuffer) -> u64 {
    let (count, len) = (buffer.write_count(), buffer.len() as u64);
    if len == 0 {
        return 0;
    }
    let mut rows = buffer.all().unwrap();
    let numbers = rows.as_slice::<i64>("action").unwrap();
    // In the order of rows, which begin with the newest frames once the ring has wrapped.
    let seam = (1..numbers.len()).find(|&at| numbers[at] < numbers[at - 1]);
    if let Some(seam) = seam {
        let new = rows.slice(0, ..seam).unwrap();
        let old = rows.slice(0, seam..).unwrap();
        rows = TensorDict::cat(&[old, new], 0).unwrap();
    }
    let whole = rows == frames(kind, count - len, len);
    assert!(whole, "frames before {count} are not as they were written");
    len
}

/// Length of each trajectory of a buffer, and whether it ended.
fn runs(buffer: &ReplayBuffer) -> Vec<(i64, bool)> {
    let state = buffer.state_dict().unwrap();
    let lens = state.as_slice::<i64>(("runs", "len")).unwrap();
    let ended = state.as_slice::<bool>(("runs", "ended")).unwrap();
    lens.iter().copied().zip(ended.iter().copied()).collect()
}

#[derive(Debug)]
struct Tally {
    kind: Kind,
    kills: u64,
    within_a_write: u64,
    within_a_checkpoint: u64,
    on_disk: u64,
    in_checkpoints: u64,
    /// Numbers of the frames at which a process began: those of the process before end there.
    begins: BTreeSet<u64>,
}

impl Tally {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            kills: 0,
            within_a_write: 0,
            within_a_checkpoint: 0,
            on_disk: 0,
            in_checkpoints: 0,
            begins: BTreeSet::new(),
        }
    }

    /// Looks at what a killed writer has left.
    fn look(&mut self, directory: &Path) {
        self.kills += 1;
        let told = Note::read(&directory.join("written"));
        let buffer = on_disk(self.kind, directory);
        let count = buffer.write_count();
        assert!(
            count == told || count == told + together(told),
            "the last write told of ended at {told}, the buffer holds {count} frames"
        );
        let len = check(self.kind, &buffer);
        let torn = count.min(self.kind.capacity as u64) - len;
        assert!(
            torn == 0 || torn <= together(count),
            "{torn} rows are missing"
        );
        self.within_a_write += u64::from(torn > 0);
        self.on_disk += len;
        self.begins.insert(count);
        assert_eq!(runs(&buffer), self.runs(count - len..count));
        drop(buffer);
        self.look_at_checkpoint(directory);
    }

    /// Length of each run of these frames, and whether it ended.
    fn runs(&self, frames: Range<u64>) -> Vec<(i64, bool)> {
        let mut found = Vec::new();
        let mut first = frames.start;
        for number in frames.clone() {
            let ended = hash(number).is_multiple_of(50);
            let behind = number + 1;
            if ended || behind == frames.end || self.begins.contains(&behind) {
                found.push(((behind - first) as i64, ended));
                first = behind;
            }
        }
        found
    }

    fn look_at_checkpoint(&mut self, directory: &Path) {
        let checkpoint = directory.join("checkpoint");
        let finished = checkpoint.join("manifest.json").exists();
        let folders = fs::read_dir(&checkpoint).map_or(0, |entries| {
            let is_folder = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().path().is_dir();
            entries.map(is_folder).filter(|&folder| folder).count()
        });
        self.within_a_checkpoint += u64::from(folders != usize::from(finished));
        let told = Note::read(&directory.join("saved"));
        assert!(finished || told == 0, "a checkpoint is gone");
        if finished {
            let buffer = build(LazyTensorStorage::new(self.kind.capacity));
            buffer.load(&checkpoint).unwrap();
            assert!(buffer.write_count() >= told, "the checkpoint is an old one");
            self.in_checkpoints += check(self.kind, &buffer);
        }
    }
}

#[test]
fn a_killed_process_leaves_whole_rows_and_its_last_checkpoint() {
    let kills: u64 = env::var("WINDROW_KILLS").map_or(6, |kills| kills.parse().unwrap());
    let mut buffers = KINDS.map(|kind| (Tally::new(kind), tempfile::tempdir().unwrap()));
    for kill in 0..kills {
        let (tally, directory) = &mut buffers[kill as usize % KINDS.len()];
        let mut child = start(tally.kind, directory.path());
        let chance = RandomState::new().hash_one(kill);
        std::thread::sleep(Duration::from_micros(chance % 120_000));
        child.kill().unwrap();
        child.wait().unwrap();
        tally.look(directory.path());
    }
    for (tally, _) in buffers {
        println!(
            "{} kills, {} within a write and {} within a checkpoint: {} rows on disk and {} in checkpoints checked, all whole ({})",
            tally.kills,
            tally.within_a_write,
            tally.within_a_checkpoint,
            tally.on_disk,
            tally.in_checkpoints,
            tally.kind.name
        );
    }
}
