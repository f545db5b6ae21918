//! A full buffer of 10^6 CartPole transitions, beside NumPy's fancy indexing of the same five fields, a plain copy of the
//! same bytes, and itself.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "common/numpy.rs"]
mod numpy;
#[path = "common/mod.rs"]
mod timing;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use windrow::replay::Sampler;
use windrow::{
    Collector, LazyTensorStorage, PrioritizedSampler, RandomSampler, ReplayBuffer, SliceSampler,
    Tensor, TensorDict,
};

use numpy::NumPy;

const CAPACITY: usize = 1_000_000;
const BATCH: usize = 256;
const WRITE: usize = 1000;

fn main() {
    sample();
    slices();
    prioritized();
    extend();
    while_collecting();
}

/// Transitions `[frames]` with episodes of 200: observation, action, reward, next observation, done.
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

/// A data set of 10^6 frames is written again and again, 1000 at a time, so that neither side finds its source in a cache.
fn extend() {
    let buffer = full(RandomSampler::new());
    let frames = transitions(CAPACITY);
    let parts: Vec<TensorDict> = (0..CAPACITY / WRITE)
        .map(|part| frames.narrow(0, part * WRITE, WRITE).unwrap())
        .collect();
    let bytes: usize = parts[0].leaves().map(|(_, leaf)| leaf.byte_len()).sum();
    let source = vec![7u8; bytes * parts.len()];
    let mut copied = vec![1u8; bytes * parts.len()];
    let (mut ours, mut theirs) = (0, 0);
    timing::ratio(
        "extend_1000",
        0.5,
        &mut || {
            ours = (ours + 1) % parts.len();
            buffer.extend(&parts[ours]).unwrap().len() as u64
        },
        &mut || {
            theirs = (theirs + 1) % parts.len();
            let part = theirs * bytes..(theirs + 1) * bytes;
            copied[part.clone()].copy_from_slice(black_box(&source[part]));
            black_box(&copied);
            WRITE as u64
        },
    );
}

/// Sampling while a collector writes, beside sampling alone.
fn while_collecting() {
    let buffer = full(RandomSampler::new());
    let mut collector = Collector::builder("CartPole-v1")
        .num_envs(10)
        .frames_per_batch(WRITE)
        .seed(7)
        .build()
        .unwrap();
    let (collecting, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let leaves = ["observation", "action"].map(windrow::tensordict::NestedKey::from);
    let next = ["reward", "observation", "done"].map(|name| ("next", name).into());
    let keys: Vec<_> = leaves.into_iter().chain(next).collect();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                if collecting.load(Ordering::Acquire) {
                    let batch = collector.next().unwrap().unwrap();
                    buffer.extend(&batch.select(&keys).unwrap()).unwrap();
                } else {
                    thread::park();
                }
            }
        });
        let set = |now: bool| {
            // Waking the thread takes time, and is done where sides change only.
            if collecting.swap(now, Ordering::AcqRel) != now {
                writer.thread().unpark();
            }
        };
        timing::ratio(
            "sample_while_collecting",
            0.8,
            &mut || {
                set(true);
                draw(&buffer)
            },
            &mut || {
                set(false);
                draw(&buffer)
            },
        );
        over.store(true, Ordering::Release);
        writer.thread().unpark();
    });
    eprintln!(
        "    {} frames were written meanwhile",
        buffer.write_count() - CAPACITY as u64
    );
}
