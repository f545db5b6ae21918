//! Priorities of frames that were overwritten since they were sampled.

use tensordict::{Tensor, TensorDict};
use windrow_replay::{
    LazyTensorStorage, MaxRewardWriter, PrioritizedSampler, PrioritizedSliceSampler, ReplayBuffer,
    ReplayBufferBuilder, ReplayError, Sampler, SliceSampler,
};

/// Three rows; with `alpha` 1, frames are drawn in proportion to their priorities.
fn builder(sampler: impl Sampler + 'static) -> ReplayBufferBuilder {
    ReplayBuffer::builder()
        .storage(LazyTensorStorage::new(3))
        .sampler(sampler)
        .batch_size(30)
        .seed(0)
}

fn by_frame() -> PrioritizedSampler {
    PrioritizedSampler::new(1.0, 1.0)
}

/// Frames of one episode, each worth more than the one before.
fn frames(first: i64, count: i64) -> TensorDict {
    let mut frames = TensorDict::new([count as usize]);
    let numbers = Tensor::arange(first..first + count).unwrap();
    let done = Tensor::full([count as usize, 1], false).unwrap();
    frames.set("worth", numbers).unwrap();
    frames.set(("next", "done"), done).unwrap();
    frames
}

fn entry<'a>(sample: &'a TensorDict, name: &str) -> &'a [i64] {
    sample.as_slice(name).unwrap()
}

/// Sets the priorities of the sample's frames; returns how many of its rows got theirs.
fn update(buffer: &ReplayBuffer, sample: &TensorDict, priority: f32) -> usize {
    let (rows, generations) = (entry(sample, "index"), entry(sample, "index_generation"));
    let priorities = vec![priority; rows.len()];
    buffer
        .update_priority_of(rows, generations, &priorities)
        .unwrap()
}

/// The rows that are drawn.
fn drawn(buffer: &ReplayBuffer) -> Vec<i64> {
    let mut rows = entry(&buffer.sample(300).unwrap(), "index").to_vec();
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// How many of the rows of `sample` are `row`.
fn count(sample: &TensorDict, row: i64) -> usize {
    entry(sample, "index")
        .iter()
        .filter(|&&it| it == row)
        .count()
}

fn check_overwritten(builder: ReplayBufferBuilder) {
    let buffer = builder.build().unwrap();
    buffer.extend(&frames(0, 3)).unwrap();
    let sample = buffer.sample(None).unwrap();
    let [row] = buffer.extend(&frames(3, 1)).unwrap()[..] else {
        panic!("one frame has one row");
    };
    let old = count(&sample, row);
    assert!(old > 0 && old < 30);
    let zeros = vec![0.0; 30];
    let applied = buffer
        .update_priority(entry(&sample, "index"), &zeros)
        .unwrap();
    assert_eq!(applied, 30 - old);
    assert_eq!(drawn(&buffer), [row]);
    assert_eq!(update(&buffer, &sample, 0.0), 30 - old);
    assert_eq!(drawn(&buffer), [row]);
}

#[test]
fn an_overwritten_frame_gives_its_priority_to_no_other() {
    check_overwritten(builder(by_frame()));
    check_overwritten(builder(by_frame()).writer(MaxRewardWriter::new("worth")));
    check_overwritten(builder(PrioritizedSliceSampler::new(
        SliceSampler::slice_len(1),
        1.0,
        1.0,
    )));
}

#[test]
fn each_of_two_samples_gives_priorities_to_its_own_frames() {
    let buffer = builder(by_frame()).build().unwrap();
    buffer.extend(&frames(0, 3)).unwrap();
    let first = buffer.sample(None).unwrap();
    buffer.extend(&frames(3, 1)).unwrap();
    let second = buffer.sample(None).unwrap();
    assert_eq!(update(&buffer, &first, 0.0), 30 - count(&first, 0));
    assert_eq!(drawn(&buffer), [0]);
    assert_eq!(update(&buffer, &second, 1.0), 30);
    assert_eq!(drawn(&buffer), [0, 1, 2]);
}

#[test]
fn rows_of_which_no_frame_was_drawn_stand_for_what_they_hold() {
    let buffer = builder(by_frame()).build().unwrap();
    buffer.extend(&frames(0, 5)).unwrap();
    assert_eq!(
        buffer
            .update_priority(&[0, 1, 2], &[0.0, 0.0, 1.0])
            .unwrap(),
        3
    );
    assert_eq!(drawn(&buffer), [2]);
}

#[test]
fn samples_from_before_the_buffer_was_empty_change_nothing() {
    let buffer = builder(by_frame()).build().unwrap();
    buffer.extend(&frames(0, 3)).unwrap();
    let sample = buffer.sample(None).unwrap();
    buffer.empty();
    assert_eq!(update(&buffer, &sample, 0.0), 0);
    buffer.extend(&frames(0, 3)).unwrap();
    assert_eq!(update(&buffer, &sample, 0.0), 0);
    assert_eq!(drawn(&buffer), [0, 1, 2]);
}

#[test]
fn samples_from_before_a_load_change_nothing_after_it() {
    let [buffer, other] = [0, 100].map(|first| {
        let buffer = builder(by_frame()).build().unwrap();
        buffer.extend(&frames(first, 3)).unwrap();
        buffer
    });
    for source in [&other, &buffer] {
        let saved = source.state_dict().unwrap();
        let sample = buffer.sample(None).unwrap();
        buffer.load_state_dict(&saved).unwrap();
        assert_eq!(update(&buffer, &sample, 0.0), 0);
        let rows = entry(&sample, "index");
        assert_eq!(buffer.update_priority(rows, &[0.0; 30]).unwrap(), 0);
        assert_eq!(drawn(&buffer), [0, 1, 2]);
    }
}

#[test]
fn samples_from_before_a_load_mean_no_frame_that_is_written_after_it() {
    let buffer = builder(by_frame()).build().unwrap();
    buffer.extend(&frames(0, 3)).unwrap();
    let saved = buffer.state_dict().unwrap();
    buffer.extend(&frames(3, 3)).unwrap();
    let lost = buffer.sample(None).unwrap();
    buffer.load_state_dict(&saved).unwrap();
    buffer.extend(&frames(3, 3)).unwrap();
    assert_eq!(update(&buffer, &lost, 0.0), 0);
}

#[test]
fn frames_drawn_ahead_count_as_drawn_when_they_are_handed_out() {
    let buffer = builder(by_frame()).build().unwrap();
    buffer.extend(&frames(0, 3)).unwrap();
    let (_, first) = buffer.sample_ahead(None).unwrap();
    buffer.extend(&frames(3, 3)).unwrap();
    let (_, second) = buffer.sample_ahead(None).unwrap();
    let rows = [0, 1, 2];
    for (sample, applied) in [(first, 0), (second, 3)] {
        buffer.hand_out(entry(&sample, "index"), entry(&sample, "index_generation"));
        assert_eq!(buffer.update_priority(&rows, &[1.0; 3]).unwrap(), applied);
    }
}

#[test]
fn samples_have_numbers_of_their_frames_only_where_there_are_priorities() {
    let random = builder(windrow_replay::RandomSampler::new())
        .build()
        .unwrap();
    random.extend(&frames(0, 3)).unwrap();
    assert!(
        !random
            .sample(None)
            .unwrap()
            .contains_key("index_generation")
    );
    // A sampler that takes the place of another numbers the frames that are there.
    random.set_sampler(by_frame()).unwrap();
    let sample = random.sample(None).unwrap();
    random.extend(&frames(3, 3)).unwrap();
    assert_eq!(update(&random, &sample, 1.0), 0);
}

#[test]
fn numbers_that_are_not_as_many_as_rows_are_refused() {
    let buffer = builder(by_frame()).build().unwrap();
    buffer.extend(&frames(0, 3)).unwrap();
    let refused = buffer.update_priority_of(&[0, 1], &[0], &[1.0, 1.0]);
    assert!(matches!(refused, Err(ReplayError::Priorities(_))));
}
