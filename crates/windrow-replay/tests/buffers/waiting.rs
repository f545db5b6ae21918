//! Who waits for whom, what wakes them, and what they are told.

use std::error::Error;
use std::thread;
use std::time::Duration;

use crate::common::{Stamp, batch};
use tensordict::{Tensor, TensorDict};
use windrow_replay::{
    LazyTensorStorage, RandomSampler, RateLimiter, ReplayBuffer, ReplayBufferBuilder, ReplayError,
    SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement,
};
use windrow_slab::{Sink, SinkError, WriterId};
use windrow_sync::error_chain;

/// `frames` frames of a trajectory that does not end.
fn frames(frames: i64) -> TensorDict {
    let stamps: Vec<Stamp> = (0..frames).map(|t| [0, 0, 100 + t]).collect();
    batch(&[stamps], true)
}

fn builder() -> ReplayBufferBuilder {
    ReplayBuffer::builder()
        .storage(LazyTensorStorage::new(1000))
        .sampler(RandomSampler::new())
        .seed(0)
}

fn slices() -> ReplayBuffer {
    builder()
        .sampler(SliceSampler::slice_len(32))
        .build()
        .unwrap()
}

#[test]
fn without_a_writer_a_sample_fails_at_once_and_says_what_there_is() {
    let buffer = slices();
    assert_eq!(
        buffer.sample(64).unwrap_err().to_string(),
        "cannot draw 64 frames: the buffer is empty; the buffer holds 0 frames of 0 trajectories, 0 of them complete; no \
         writer is attached"
    );
    let mut ended = frames(12);
    let mut done = vec![false; 12];
    done[8] = true;
    ended
        .set(("next", "done"), Tensor::from_vec(done, [12, 1]).unwrap())
        .unwrap();
    buffer.extend(&ended).unwrap();
    assert_eq!(
        buffer.sample(64).unwrap_err().to_string(),
        "cannot draw 64 frames: no trajectory has the 32 frames of a slice, the longest has 9; the buffer holds 12 frames \
         of 2 trajectories, 1 of them complete; no writer is attached"
    );
}

#[test]
fn a_sample_waits_for_a_writer_and_is_woken_by_its_frames() {
    let buffer = slices();
    let writer = buffer.attach();
    thread::scope(|scope| {
        let sample = scope.spawn(|| buffer.sample(64).unwrap());
        for _ in 0..4 {
            Sink::extend(&buffer, writer, &frames(10)).unwrap();
        }
        // Runs of ten frames go on, because the id is the same: the fourth makes forty.
        assert_eq!(sample.join().unwrap().numel(), 64);
    });
    assert_eq!(buffer.stats().trajectories, Some(1));
}

#[test]
fn a_sample_that_waited_in_vain_says_for_whom() {
    let buffer = builder()
        .timeout(Duration::from_millis(20))
        .build()
        .unwrap();
    buffer.attach();
    buffer.attach();
    let error = buffer.sample(8).unwrap_err().to_string();
    let (head, tail) = error.split_once("waited ").unwrap();
    assert_eq!(
        head,
        "cannot draw 8 frames: the buffer is empty; the buffer holds 0 frames of 0 trajectories, 0 of them complete; "
    );
    assert!(tail.ends_with(" s for 2 writers"), "{tail}");
}

#[test]
fn the_last_writer_that_leaves_wakes_a_sample() {
    let buffer = builder().timeout(Duration::MAX).build().unwrap();
    let (first, last) = (buffer.attach(), buffer.attach());
    thread::scope(|scope| {
        let sample = scope.spawn(|| buffer.sample(8));
        buffer.detach(first, None);
        buffer.detach(last, None);
        let error = sample.join().unwrap().unwrap_err();
        assert!(
            matches!(error, ReplayError::NotEnough { asked: 8, .. }),
            "{error}"
        );
    });
}

#[test]
fn the_failure_of_a_writer_is_told_to_a_sample() {
    let buffer = builder().timeout(Duration::MAX).build().unwrap();
    let writer = buffer.attach();
    thread::scope(|scope| {
        let sample = scope.spawn(|| buffer.sample(8));
        buffer.detach(writer, Some(SinkError::failed("worker 3: out of cheese")));
        let error = sample.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "a writer of the buffer failed");
        assert_eq!(
            error.source().unwrap().to_string(),
            "worker 3: out of cheese"
        );
    });
    // It stays the reason why there is nothing.
    assert!(matches!(buffer.sample(8), Err(ReplayError::Writer(_))));
    // What is there can be sampled nevertheless, once somebody was told.
    buffer.extend(&frames(5)).unwrap();
    assert_eq!(buffer.sample(8).unwrap().numel(), 8);
    let writer = buffer.attach();
    buffer.detach(writer, Some(SinkError::failed("again")));
    assert!(buffer.sample(8).is_err());
    assert!(buffer.sample(8).is_ok());
}

/// A call on a buffer.
type Call = fn(&ReplayBuffer) -> Result<(), ReplayError>;

#[test]
fn the_failure_of_a_writer_is_told_once_to_whoever_calls_next() {
    let calls: [Call; 4] = [
        |buffer| buffer.sample(8).map(drop),
        |buffer| buffer.extend(&frames(5)).map(drop),
        |buffer| buffer.add(&frames(1).index(0)?).map(drop),
        ReplayBuffer::check_writers,
    ];
    let buffer = builder().build().unwrap();
    buffer.extend(&frames(5)).unwrap();
    for call in calls {
        call(&buffer).unwrap();
        let (failed, other) = (buffer.attach(), buffer.attach());
        buffer.detach(failed, Some(SinkError::failed("out of cheese")));
        // Another collector goes on: it has not failed.
        Sink::extend(&buffer, other, &frames(5)).unwrap();
        let held = buffer.len();
        assert!(matches!(call(&buffer), Err(ReplayError::Writer(_))));
        assert_eq!(buffer.len(), held);
        call(&buffer).unwrap();
        buffer.detach(other, None);
    }
}

#[test]
fn a_writer_that_was_detached_writes_no_more() {
    let buffer = builder().build().unwrap();
    let writer = buffer.attach();
    buffer.detach(writer, None);
    buffer.detach(writer, None);
    for writer in [writer, WriterId(77)] {
        let refused = Sink::extend(&buffer, writer, &frames(1));
        assert!(matches!(refused, Err(SinkError::Detached)), "{refused:?}");
    }
    assert!(buffer.is_empty());
}

#[test]
fn a_batch_that_does_not_fit_is_refused_whole() {
    let buffer = builder().build().unwrap();
    let writer = buffer.attach();
    Sink::extend(&buffer, writer, &frames(3)).unwrap();
    let mut other = frames(3);
    other.remove("is_init").unwrap();
    let refused = Sink::extend(&buffer, writer, &other)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("is_init"), "{refused}");
    assert_eq!((buffer.len(), buffer.write_count()), (3, 3));
    let empty = buffer.extend(&TensorDict::new([2, 0])).unwrap_err();
    assert_eq!(
        empty.to_string(),
        "batch: expected a batch size of [time] or [..., time], of at least one frame, got [2, 0]"
    );
    assert!(buffer.extend(&TensorDict::new([])).is_err());
}

fn limited(error_buffer: f64) -> ReplayBufferBuilder {
    let limiter = RateLimiter::sample_to_insert_ratio(1.0, 10, error_buffer).unwrap();
    builder().limiter(limiter)
}

#[test]
fn the_limiter_lets_writers_and_samples_wait_for_each_other() {
    let buffer = limited(20.0).build().unwrap();
    let writer = buffer.attach();
    thread::scope(|scope| {
        let sink = &buffer;
        scope.spawn(move || {
            for _ in 0..50 {
                Sink::extend(sink, writer, &frames(10)).unwrap();
                let [written, sampled] = [sink.stats().write_count, sink.stats().sampled];
                assert!(written <= sampled + 30 + 10, "{written} {sampled}");
            }
        });
        for _ in 0..60 {
            buffer.sample(8).unwrap();
        }
    });
    assert_eq!((buffer.write_count(), buffer.stats().sampled), (500, 480));
}

#[test]
fn a_minimum_size_is_waited_for() {
    let limiter = RateLimiter::min_size(20);
    let buffer = builder().limiter(limiter).build().unwrap();
    buffer.extend(&frames(19)).unwrap();
    let error = buffer.sample(4).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "cannot draw 4 frames: the limiter waits for 20 frames, the buffer holds 19; "
        ),
        "{error}"
    );
    buffer.extend(&frames(1)).unwrap();
    buffer.sample(4).unwrap();
}

#[test]
fn an_insertion_that_waited_in_vain_says_why() {
    let buffer = limited(5.0)
        .timeout(Duration::from_millis(20))
        .build()
        .unwrap();
    buffer.extend(&frames(10)).unwrap();
    let error = buffer.extend(&frames(6)).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "cannot write 6 frames: the limiter waits for more to be sampled: (10 frames inserted + 6) * 1 - 0 sampled = \
             16 > 15; waited "
        ),
        "{error}"
    );
    assert_eq!(
        buffer.extend(&frames(11)).unwrap_err().to_string(),
        "11 frames can never be written together: error_buffer=5 must be at least 5.5"
    );
    assert_eq!(
        buffer.sample(11).unwrap_err().to_string(),
        "11 frames can never be sampled together: error_buffer=5 must be at least 5.5"
    );
}

#[test]
fn a_write_waits_no_longer_than_it_is_told() {
    let buffer = limited(5.0).timeout(Duration::MAX).build().unwrap();
    let writer = buffer.attach();
    let wait = Duration::from_millis(1);
    buffer.write_within(writer, &frames(10), wait).unwrap();
    let refused = buffer.extend_within(&frames(6), wait);
    assert!(matches!(
        refused,
        Err(ReplayError::NotTaken { frames: 6, .. })
    ));
    let SinkError::Failed(refused) = buffer.write_within(writer, &frames(6), wait).unwrap_err()
    else {
        panic!("the writer is attached");
    };
    assert!(matches!(
        refused.downcast_ref(),
        Some(ReplayError::NotTaken { frames: 6, .. })
    ));
    buffer.sample(1).unwrap();
    buffer.write_within(writer, &frames(6), wait).unwrap();
    buffer.detach(writer, None);
    let refused = buffer.write_within(writer, &frames(1), wait);
    assert!(matches!(refused, Err(SinkError::Detached)));
}

#[test]
fn a_writer_that_waits_for_the_limiter_is_woken_by_its_end_and_by_a_reset() {
    let buffer = limited(5.0).build().unwrap();
    let writer = buffer.attach();
    Sink::extend(&buffer, writer, &frames(10)).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Sink::extend(&buffer, writer, &frames(6)));
        buffer.detach(writer, None);
        assert!(matches!(waiting.join().unwrap(), Err(SinkError::Detached)));
    });
    let writer = buffer.attach();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Sink::extend(&buffer, writer, &frames(6)));
        buffer.empty();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn parts_that_make_no_sense_are_named() {
    let text = |builder: ReplayBufferBuilder| builder.build().unwrap_err().to_string();
    let slices = || SliceSampler::slice_len(4);
    assert_eq!(
        text(builder().sampler(slices().pad_output(true))),
        "pad_output: expected strict_length(false) with it: strict slices are never short, got true"
    );
    assert_eq!(
        text(builder().sampler(slices().span(0, 4))),
        "span: expected fewer steps than the 4 of a slice, got 4"
    );
    assert_eq!(
        text(builder().sampler(SliceSampler::num_slices(0))),
        "num_slices: expected at least 1, got 0"
    );
    assert_eq!(
        text(builder().storage(LazyTensorStorage::new(0))),
        "storage: expected a capacity of 1 to 4294967295 frames, got 0"
    );
    let writer = windrow_replay::MaxRewardWriter::new("worth");
    assert_eq!(
        text(builder().sampler(slices()).writer(writer)),
        "writer: expected one that keeps frames in order, which the sampler needs, got MaxRewardWriter"
    );
    let buffer = builder().sampler(slices()).build().unwrap();
    buffer.extend(&frames(10)).unwrap();
    assert_eq!(
        buffer.sample(6).unwrap_err().to_string(),
        "batch size 6 is not a multiple of slice_len=4: use 4 or 8"
    );
    assert_eq!(
        buffer.sample(None).unwrap_err().to_string(),
        "expected a batch size, got none: give one to sample(), or make the buffer with a batch_size"
    );
    assert_eq!(
        buffer
            .update_priority(&[0], &[1.0])
            .unwrap_err()
            .to_string(),
        "the sampler has no priorities: build the buffer with a prioritized sampler"
    );
    assert_eq!(
        buffer.get(&[3, 10]).unwrap_err().to_string(),
        "row 10 holds no frame"
    );
    let strict = SliceSamplerWithoutReplacement::new(slices()).drop_last(true);
    let buffer = builder().sampler(strict).build().unwrap();
    buffer.extend(&frames(10)).unwrap();
    let error = buffer.sample(8).unwrap_err().to_string();
    assert!(
        error.contains(
            "with drop_last that takes 2 trajectories of at least 4 frames, there are 1;"
        ),
        "{error}"
    );
    let strict = SamplerWithoutReplacement::new().drop_last(true);
    let buffer = builder().sampler(strict).build().unwrap();
    buffer.extend(&frames(10)).unwrap();
    let error = buffer.sample(11).unwrap_err().to_string();
    assert!(
        error.contains("without replacement and with drop_last that takes 11 frames"),
        "{error}"
    );
}

#[test]
fn priorities_that_make_no_sense_change_nothing() {
    let buffer = builder()
        .sampler(windrow_replay::PrioritizedSampler::new(1.0, 1.0))
        .build()
        .unwrap();
    buffer.extend(&frames(3)).unwrap();
    let refused = |rows: &[i64], priorities: &[f32]| {
        error_chain(&buffer.update_priority(rows, priorities).unwrap_err())
    };
    assert_eq!(
        refused(&[0, 1], &[1.0]),
        "priorities: expected one for each of 2 rows, got 1"
    );
    assert_eq!(
        refused(&[0, 2], &[5.0, -1.0]),
        "priorities: expected finite numbers of at least 0, got -1 for row 2 (place 1)"
    );
    assert!(refused(&[0], &[f32::NAN]).contains("NaN"));
    let weights = buffer.sample(20).unwrap();
    assert_eq!(
        weights.as_slice::<f32>("priority_weight").unwrap(),
        [1.0; 20]
    );
    assert_eq!(
        buffer
            .update_priority(&[-1, 2, 3, 9999], &[1.0; 4])
            .unwrap(),
        1
    );
    buffer.set_beta(0.5).unwrap();
    assert_eq!(buffer.beta(), Some(0.5));
    assert_eq!(
        buffer.set_beta(-1.0).unwrap_err().to_string(),
        "beta: expected a finite number of at least 0, got -1"
    );
}
