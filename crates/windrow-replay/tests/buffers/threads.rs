//! Writers and samplers in threads: whatever is drawn is whole, and every slice is of one episode.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::{Stamp, Stream, batch, flags, index, payload, stamps};
use tensordict::TensorDict;
use windrow_replay::{
    LazyMemmapStorage, LazyTensorStorage, ListStorage, MaxRewardWriter, PrioritizedSampler,
    PrioritizedSliceSampler, RandomSampler, ReplayBuffer, Sampler, SamplerWithoutReplacement,
    SliceSampler, Storage,
};
use windrow_slab::Sink;

const WRITERS: i64 = 3;
const BATCHES: usize = 300;
const SLICE: usize = 4;

/// Slices of a batch follow each other in one episode.
fn check_slices(batch: &TensorDict) {
    let stamps = stamps(batch);
    let last = flags(batch, &["next", "truncated"]);
    let mut first = 0;
    for at in (0..stamps.len()).filter(|&at| last[at]) {
        let [stream, episode, t] = stamps[first];
        let expected: Vec<Stamp> = (t..)
            .take(at + 1 - first)
            .map(|t| [stream, episode, t])
            .collect();
        assert_eq!(stamps[first..=at], expected);
        assert!(at + 1 - first <= SLICE);
        first = at + 1;
    }
    assert_eq!(first, stamps.len());
}

/// Three writers of one or two streams each, and two samplers, on one buffer that wraps many times.
fn run(storage: impl Storage + 'static, sampler: impl Sampler + 'static, slices: bool) {
    let priorities = format!("{sampler:?}").starts_with("Prioritized");
    let buffer = ReplayBuffer::builder()
        .storage(storage)
        .sampler(sampler)
        .batch_size(32)
        .seed(3)
        .build()
        .unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let id = buffer.attach();
                let sink: &dyn Sink = &buffer;
                scope.spawn(move || {
                    let mut streams = [Stream::new(2 * writer), Stream::new(2 * writer + 1)];
                    for round in 0..BATCHES {
                        let rows = &mut streams[..1 + round % 2];
                        let steps = 1 + (round * 7 + writer as usize) % 23;
                        let frames: Vec<Vec<Stamp>> = rows
                            .iter_mut()
                            .map(|stream| (0..steps).map(|_| stream.step()).collect())
                            .collect();
                        sink.extend(id, &batch(&frames, true)).unwrap();
                    }
                    sink.detach(id, None);
                })
            })
            .collect();
        for _ in 0..2 {
            let (buffer, over) = (buffer.clone(), &over);
            scope.spawn(move || {
                let mut drawn = 0;
                while !over.load(Ordering::Relaxed) || drawn < 50 {
                    let batch = buffer.sample(None).unwrap();
                    if slices {
                        check_slices(&batch);
                    } else {
                        stamps(&batch);
                    }
                    if priorities {
                        let rows = index(&batch);
                        let given: Vec<f32> = rows.iter().map(|&row| (row % 5) as f32).collect();
                        buffer.update_priority(&rows, &given).unwrap();
                    }
                    drawn += 1;
                }
            });
        }
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        over.store(true, Ordering::Relaxed);
    });
    let frames: usize = (0..WRITERS as usize)
        .flat_map(|writer| (0..BATCHES).map(move |round| (round, writer)))
        .map(|(round, writer)| (1 + round % 2) * (1 + (round * 7 + writer) % 23))
        .sum();
    assert_eq!(buffer.write_count(), frames as u64);
    assert_eq!(buffer.len(), buffer.capacity());
    assert_eq!(stamps(&buffer.all().unwrap()).len(), buffer.len());
    assert_eq!(buffer.stats().writers, 0);
}

fn slices() -> SliceSampler {
    SliceSampler::slice_len(SLICE)
}

#[test]
fn random() {
    run(LazyTensorStorage::new(100), RandomSampler::new(), false);
}

#[test]
fn without_replacement() {
    let sampler = SamplerWithoutReplacement::new();
    run(LazyTensorStorage::new(100), sampler, false);
}

#[test]
fn slices_in_memory() {
    run(LazyTensorStorage::new(200), slices(), true);
}

#[test]
fn slices_in_a_mapped_file() {
    run(
        LazyMemmapStorage::new(200),
        slices().strict_length(false),
        true,
    );
}

#[test]
fn slices_of_a_list() {
    run(ListStorage::new(200), slices().span(1, 2), true);
}

#[test]
fn prioritized() {
    let sampler = PrioritizedSampler::new(0.7, 0.5);
    run(LazyTensorStorage::new(100), sampler, false);
}

#[test]
fn prioritized_slices() {
    let sampler = PrioritizedSliceSampler::new(slices(), 0.7, 0.5);
    run(LazyTensorStorage::new(200), sampler, true);
}

#[test]
fn the_best_frames_are_kept_whoever_writes_them() {
    let buffer = ReplayBuffer::builder()
        .storage(LazyTensorStorage::new(50))
        .writer(MaxRewardWriter::new(("next", "payload")).reduction(windrow_replay::Reduction::Max))
        .build()
        .unwrap();
    let all: Vec<Vec<Stamp>> = (0..4)
        .map(|writer| {
            let mut stream = Stream::new(writer);
            (0..400).map(|_| stream.step()).collect()
        })
        .collect();
    thread::scope(|scope| {
        for frames in &all {
            let buffer = buffer.clone();
            scope.spawn(move || {
                for frames in frames.chunks(9) {
                    buffer.extend(&batch(&[frames.to_vec()], false)).unwrap();
                    stamps(&buffer.sample_within(16, std::time::Duration::MAX).unwrap());
                }
            });
        }
    });
    let worth = |stamp: &Stamp| payload(*stamp).into_iter().max().unwrap();
    let mut expected: Vec<i64> = all.concat().iter().map(worth).collect();
    expected.sort_unstable();
    let mut kept: Vec<i64> = stamps(&buffer.all().unwrap()).iter().map(worth).collect();
    kept.sort_unstable();
    assert_eq!(kept, expected[expected.len() - 50..]);
}
