//! A full buffer of 10^6 CartPole transitions, beside NumPy's fancy indexing of the same five
//! fields, a plain copy of the same bytes, and itself.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "common/net.rs"]
mod net;
#[path = "common/numpy.rs"]
mod numpy;
#[path = "replay/rows.rs"]
mod rows;
#[path = "common/mod.rs"]
mod timing;

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use memmap2::MmapMut;
use windrow::replay::Sampler;
use windrow::{
    Collector, Head, LazyTensorStorage, NetworkPolicy, PrioritizedSampler, RandomSampler,
    ReplayBuffer, SliceSampler, Tensor, TensorDict,
};

use numpy::NumPy;

const CAPACITY: usize = 1_000_000;
const BATCH: usize = 256;
const WRITE: usize = 1000;

fn main() {
    if rows::run() {
        return;
    }
    sample();
    slices();
    prioritized();
    extend();
    while_collecting();
}

/// Transitions `[frames]` with episodes of 200: observation, action, reward, next observation,
/// done.
fn transitions(frames: usize) -> TensorDict {
    let mut batch = TensorDict::new([frames]);
    let numbers = |width: usize| {
        let numbers = (0..frames * width).map(|at| (at % 1013) as f32 * 0.01);
        Tensor::from_vec(numbers.collect(), [frames, width]).unwrap()
    };
    let actions = (0..frames as i64).map(|at| at & 1).collect();
    let done = (0..frames).map(|at| at % 200 == 199).collect();
    batch.set("observation", numbers(4)).unwrap();
    batch
        .set("action", Tensor::from_vec(actions, [frames]).unwrap())
        .unwrap();
    batch.set(("next", "reward"), numbers(1)).unwrap();
    batch.set(("next", "observation"), numbers(4)).unwrap();
    batch
        .set(
            ("next", "done"),
            Tensor::from_vec(done, [frames, 1]).unwrap(),
        )
        .unwrap();
    batch
}

fn full(sampler: impl Sampler + 'static) -> ReplayBuffer {
    let buffer = ReplayBuffer::builder()
        .storage(LazyTensorStorage::new(CAPACITY))
        .sampler(sampler)
        .batch_size(BATCH)
        .seed(0)
        .build()
        .unwrap();
    buffer.extend(&transitions(CAPACITY)).unwrap();
    buffer
}

fn draw(buffer: &ReplayBuffer) -> u64 {
    black_box(buffer.sample(None).unwrap()).numel() as u64
}

fn sample() {
    const NAME: &str = "sample_256";
    if !timing::is_chosen(NAME) {
        return;
    }
    let Some(mut numpy) = NumPy::start() else {
        eprintln!(
            "{NAME}: WINDROW_PYTHON names no interpreter with NumPy: run `cargo xtask bench replay`"
        );
        println!("{NAME}  -  3.00  short");
        return;
    };
    let buffer = full(RandomSampler::new());
    let _ = (timing::rate(&mut || draw(&buffer)), numpy.rate());
    let pairs = (0..timing::PAIRS).map(|_| (timing::rate(&mut || draw(&buffer)), numpy.rate()));
    timing::report(NAME, 3.0, pairs.collect());
}

fn slices() {
    let (sliced, uniform) = (
        full(SliceSampler::num_slices(8)),
        full(RandomSampler::new()),
    );
    timing::ratio("slices_8x32", 0.5, &mut || draw(&sliced), &mut || {
        draw(&uniform)
    });
}

fn prioritized() {
    let (prioritized, uniform) = (
        full(PrioritizedSampler::new(0.6, 0.4)),
        full(RandomSampler::new()),
    );
    let rows: Vec<i64> = (0..CAPACITY as i64).collect();
    let priorities: Vec<f32> = rows
        .iter()
        .map(|row| (row * 7919 % 1000) as f32 * 0.01)
        .collect();
    prioritized.update_priority(&rows, &priorities).unwrap();
    timing::ratio(
        "prioritized_256",
        0.3,
        &mut || draw(&prioritized),
        &mut || draw(&uniform),
    );
}

/// 64 batches in turn, more than a core keeps in caches of its own, beside copies of their columns
/// to as many rows of memory of the same kind, so that both fetch what they read and write.
fn extend() {
    const PARTS: usize = 64;
    const TURNS: usize = CAPACITY / WRITE;
    let buffer = full(RandomSampler::new());
    let frames = transitions(PARTS * WRITE);
    let parts: Vec<TensorDict> = (0..PARTS)
        .map(|part| frames.narrow(0, part * WRITE, WRITE).unwrap())
        .collect();
    let columns = |part: &TensorDict| part.leaves().map(|(_, leaf)| leaf.clone()).collect();
    let columns: Vec<Vec<Tensor>> = parts.iter().map(columns).collect();
    // Each batch begins at the start of a cache line, as each column does.
    let bytes = columns[0].iter().map(Tensor::byte_len).sum::<usize>();
    let stride = bytes.next_multiple_of(64);
    let mut copied = pages(stride * TURNS);
    let (mut ours, mut theirs) = (0, 0);
    timing::ratio(
        "extend_1000",
        0.5,
        &mut || {
            ours = (ours + 1) % PARTS;
            buffer.extend(&parts[ours]).unwrap().len() as u64
        },
        &mut || {
            theirs = (theirs + 1) % TURNS;
            let mut at = theirs * stride;
            for column in &columns[theirs % PARTS] {
                let column = column.as_bytes().unwrap();
                copied[at..][..column.len()].copy_from_slice(column);
                at += column.len();
            }
            black_box(&copied);
            WRITE as u64
        },
    );
}

/// Memory as a store has it: in large pages where the system gives them, and written once. On the
/// heap, size, alignment and kind of the pages would depend on what was allocated before, and with
/// them the speed of a copy.
fn pages(bytes: usize) -> MmapMut {
    let mut memory = MmapMut::map_anon(bytes).unwrap();
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    memory.fill(7);
    memory
}

/// Sampling while a collector with the network writes to the same buffer, beside sampling alone.
/// What of that is the price of sharing the buffer, and not only cores and memory, goes to standard
/// error: the same beside sampling while the collector writes to another buffer.
fn while_collecting() {
    const NAME: &str = "sample_while_collecting";
    if !timing::is_chosen(NAME) {
        return;
    }
    let (buffer, other) = (full(RandomSampler::new()), full(RandomSampler::new()));
    let mut collector = Collector::builder("CartPole-v1")
        .num_envs(10)
        .policy(NetworkPolicy::new(net::network(), Head::Categorical))
        .frames_per_batch(WRITE)
        .seed(7)
        .build()
        .unwrap();
    let leaves = ["observation", "action"].map(windrow::tensordict::NestedKey::from);
    let next = ["reward", "observation", "done"].map(|name| ("next", name).into());
    let keys: Vec<_> = leaves.into_iter().chain(next).collect();
    let target = AtomicUsize::new(NOBODY);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            loop {
                let buffer = match target.load(Ordering::Acquire) {
                    SAME => &buffer,
                    OTHER => &other,
                    NOBODY => {
                        thread::park();
                        continue;
                    }
                    _ => return,
                };
                let batch = collector.next().unwrap().unwrap();
                buffer.extend(&batch.select(&keys).unwrap()).unwrap();
            }
        });
        let rate = |to: usize| {
            target.store(to, Ordering::Release);
            writer.thread().unpark();
            timing::rate(&mut || draw(&buffer))
        };
        let _ = (rate(SAME), rate(OTHER), rate(NOBODY));
        let mut shared = Vec::new();
        let pairs = (0..timing::PAIRS).map(|_| {
            let (same, lone) = (rate(SAME), rate(NOBODY));
            shared.push(same / rate(OTHER));
            (same, lone)
        });
        timing::report(NAME, 0.8, pairs.collect());
        shared.sort_by(f64::total_cmp);
        eprintln!(
            "    {:.2} of the rate beside a collector that writes to another buffer",
            shared[shared.len() / 2]
        );
        target.store(OVER, Ordering::Release);
        writer.thread().unpark();
    });
    let written = buffer.write_count() - CAPACITY as u64;
    eprintln!("    {written} frames were written to the same buffer meanwhile");
}

/// Where the collector's frames go.
const NOBODY: usize = 0;
const SAME: usize = 1;
const OTHER: usize = 2;
const OVER: usize = 3;
