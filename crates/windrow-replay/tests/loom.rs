//! Every interleaving of a writer and a sampler on one buffer: run with `cargo xtask models`.
//!
//! A row that is drawn while it is written is an error of the storage, and a thread that nobody
//! wakes a deadlock; both fail the model.
#![cfg(loom)]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use loom::thread;
use tensordict::{Tensor, TensorDict};
use windrow_replay::{
    LazyTensorStorage, RandomSampler, RateLimiter, ReplayBuffer, ReplayBufferBuilder, ReplayError,
    Sampler, SliceSampler,
};
use windrow_slab::{Sink, SinkError};

/// Frames `first, first + 1, …` of a trajectory that does not end.
fn frames(first: i64, count: i64) -> TensorDict {
    let mut frames = TensorDict::new([count as usize]);
    frames
        .set("t", Tensor::arange(first..first + count).unwrap())
        .unwrap();
    let ids = Tensor::full([count as usize], 7i64).unwrap();
    frames.set(("collector", "traj_ids"), ids).unwrap();
    frames
}

fn builder(capacity: usize, sampler: impl Sampler + 'static) -> ReplayBufferBuilder {
    ReplayBuffer::builder()
        .storage(LazyTensorStorage::new(capacity))
        .sampler(sampler)
        .seed(0)
        .timeout(Duration::MAX)
}

fn times(batch: &TensorDict) -> Vec<i64> {
    batch.get("t").unwrap().to_vec().unwrap()
}

/// All interleavings with at most `preemptions` switches away from a thread that could go on.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

#[test]
fn rows_are_whole_and_slices_contiguous_while_the_ring_wraps() {
    model(2, || {
        let buffer = builder(3, SliceSampler::slice_len(2)).build().unwrap();
        buffer.extend(&frames(0, 3)).unwrap();
        let other = buffer.clone();
        let writer = thread::spawn(move || {
            other.extend(&frames(3, 1)).unwrap();
            other.extend(&frames(4, 1)).unwrap();
        });
        let batch = buffer.sample(2).unwrap();
        let drawn = times(&batch);
        assert_eq!(drawn[1], drawn[0] + 1);
        writer.join().unwrap();
        assert_eq!(times(&buffer.all().unwrap()), [3, 4, 2]);
    });
}

#[test]
fn a_sample_is_woken_by_the_frames_that_it_waits_for() {
    model(2, || {
        let buffer = builder(2, RandomSampler::new()).build().unwrap();
        let (other, writer) = (buffer.clone(), buffer.attach());
        let writer = thread::spawn(move || {
            Sink::extend(&other, writer, &frames(0, 1)).unwrap();
        });
        assert_eq!(times(&buffer.sample(1).unwrap()), [0]);
        writer.join().unwrap();
    });
}

#[test]
fn a_sample_is_woken_by_the_end_of_the_last_writer() {
    model(3, || {
        let buffer = builder(2, RandomSampler::new()).build().unwrap();
        let (other, writer) = (buffer.clone(), buffer.attach());
        let writer = thread::spawn(move || {
            other.detach(writer, Some(SinkError::failed("gone")));
        });
        let error = buffer.sample(1).unwrap_err();
        assert!(matches!(error, ReplayError::Writer(_)), "{error}");
        writer.join().unwrap();
    });
}

#[test]
fn the_limiter_lets_both_sides_through() {
    model(2, || {
        let limiter = RateLimiter::sample_to_insert_ratio(1.0, 1, 1.0).unwrap();
        let buffer = builder(2, RandomSampler::new())
            .limiter(limiter)
            .build()
            .unwrap();
        let (other, writer) = (buffer.clone(), buffer.attach());
        let writer = thread::spawn(move || {
            for t in 0..3 {
                Sink::extend(&other, writer, &frames(t, 1)).unwrap();
            }
        });
        // The third insertion waits for the first sample.
        buffer.sample(1).unwrap();
        writer.join().unwrap();
        assert_eq!(buffer.write_count(), 3);
    });
}

#[test]
fn a_writer_that_waits_is_woken_by_its_end() {
    model(2, || {
        let limiter = RateLimiter::sample_to_insert_ratio(1.0, 1, 1.0).unwrap();
        let buffer = builder(4, RandomSampler::new())
            .limiter(limiter)
            .build()
            .unwrap();
        let writer = buffer.attach();
        Sink::extend(&buffer, writer, &frames(0, 1)).unwrap();
        Sink::extend(&buffer, writer, &frames(1, 1)).unwrap();
        let other = buffer.clone();
        let waiting = thread::spawn(move || {
            let refused = Sink::extend(&other, writer, &frames(2, 1));
            assert!(matches!(refused, Err(SinkError::Detached)));
        });
        buffer.detach(writer, None);
        waiting.join().unwrap();
    });
}
