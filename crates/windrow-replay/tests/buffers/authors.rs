//! Whose frames follow each other: what collectors and users write goes on in their own frames
//! only.

use std::time::Duration;

use crate::common::{ALIKE, Stamp, Stream, batch, flags, stamps};
use tensordict::{DType, Tensor, TensorDict};
use windrow_replay::{
    LazyMemmapStorage, LazyTensorStorage, ListStorage, PrioritizedSliceSampler, RandomSampler,
    ReplayBuffer, ReplayBufferBuilder, Sampler, SliceSampler, SliceSamplerWithoutReplacement,
};
use windrow_slab::{Sink, WriterId};

const CAPACITY: usize = 100;
const LEN: usize = 3;

fn slices() -> SliceSampler {
    SliceSampler::slice_len(LEN)
}

fn samplers() -> Vec<fn() -> Box<dyn Sampler>> {
    vec![
        || slices().into(),
        || slices().strict_length(false).into(),
        || SliceSamplerWithoutReplacement::new(slices()).into(),
        || PrioritizedSliceSampler::new(slices(), 0.6, 0.4).into(),
    ]
}

fn builder() -> ReplayBufferBuilder {
    let storage = LazyTensorStorage::new(CAPACITY);
    ReplayBuffer::builder().storage(storage).seed(0)
}

/// Frames of one trajectory that does not end, from the one with the number `from` on; those of
/// different streams have the same id.
fn frames(stream: i64, from: i64, count: i64) -> TensorDict {
    let stamps: Vec<Stamp> = (from..from + count)
        .map(|t| [ALIKE + stream, 4, t])
        .collect();
    endless(batch(&[stamps], true))
}

/// The same frames, none of which is the last of its episode.
fn endless(mut frames: TensorDict) -> TensorDict {
    let done = [frames.batch_size(), &[1]].concat();
    let done = Tensor::zeros(DType::Bool, done).unwrap();
    frames.set(("next", "done"), done).unwrap();
    frames
}

/// Frames each trajectory has, in the order in which they were written.
fn lens(buffer: &ReplayBuffer) -> Vec<i64> {
    let state = buffer.state_dict().unwrap();
    state.get(("runs", "len")).unwrap().to_vec().unwrap()
}

/// Slices are of frames that follow each other.
fn check_slices(buffer: &ReplayBuffer) {
    for _ in 0..40 {
        let Ok(sample) = buffer.sample(4 * LEN) else {
            continue;
        };
        let last = flags(&sample, &["next", "truncated"]);
        for (pair, last) in stamps(&sample).windows(2).zip(last) {
            let [stream, episode, t] = pair[0];
            assert!(last || pair[1] == [stream, episode, t + 1], "{pair:?}");
        }
    }
}

/// Writes as a collector does that was first attached as `first`.
fn collect(buffer: &ReplayBuffer, first: &mut Option<WriterId>, frames: &TensorDict) {
    let writer = match *first {
        Some(first) => buffer.attach_again(first),
        None => *first.insert(buffer.attach()),
    };
    Sink::extend(buffer, writer, frames).unwrap();
    buffer.detach(writer, None);
}

#[test]
fn collectors_that_use_the_same_ids_are_told_apart_under_every_sampler() {
    for sampler in samplers() {
        let buffer = builder().sampler(sampler()).build().unwrap();
        let (mut a, mut b) = (None, None);
        collect(&buffer, &mut a, &frames(0, 0, 5));
        collect(&buffer, &mut a, &frames(0, 5, 5));
        collect(&buffer, &mut b, &frames(1, 0, 5));
        buffer.extend(&frames(2, 0, 5)).unwrap();
        buffer.extend(&frames(2, 5, 5)).unwrap();
        collect(&buffer, &mut b, &frames(1, 5, 5));
        assert_eq!(lens(&buffer), [10, 5, 10, 5]);
        check_slices(&buffer);
    }
}

#[test]
fn a_batch_for_a_collector_that_is_not_attached_is_its_own() {
    let buffer = builder().build().unwrap();
    let (a, b) = (buffer.attach(), buffer.attach());
    buffer.detach(a, None);
    let write = |of: WriterId, frames: &TensorDict| {
        buffer.extend_for(of, frames, Duration::ZERO).unwrap();
    };
    write(a, &frames(0, 0, 2));
    write(a, &frames(0, 2, 2));
    write(b, &frames(1, 0, 2));
    Sink::extend(&buffer, b, &frames(1, 2, 2)).unwrap();
    assert_eq!(lens(&buffer), [4, 4]);
}

#[test]
fn nothing_goes_on_behind_what_was_loaded() {
    let make = || builder().sampler(slices()).build().unwrap();
    let buffer = make();
    let mut first = None;
    collect(&buffer, &mut first, &frames(0, 0, 5));
    let folder = tempfile::tempdir().unwrap();
    buffer.save(folder.path()).unwrap();
    let state = buffer.state_dict().unwrap();
    let loads: [&dyn Fn(&ReplayBuffer); 2] =
        [&|buffer| buffer.load(folder.path()).unwrap(), &|buffer| {
            buffer.load_state_dict(&state).unwrap()
        }];
    for load in loads {
        let other = make();
        load(&other);
        collect(&other, &mut None, &frames(1, 0, 5));
        load(&buffer);
        // What it wrote since is gone, and its trajectory with it.
        collect(&buffer, &mut first, &frames(0, 9, 5));
        for buffer in [&buffer, &other] {
            assert_eq!(lens(buffer), [5, 5]);
            check_slices(buffer);
        }
    }
}

/// Two environments without ids, whose episodes do not end.
fn two_rows() -> TensorDict {
    let row = |stream| (0..10).map(|t| [stream, 7, t]).collect::<Vec<Stamp>>();
    endless(batch(&[row(1), row(2)], false))
}

#[test]
fn rows_of_a_batch_stay_apart_whichever_sampler_is_set() {
    let other_keys = || slices().end_key(("next", "done")).traj_key("nowhere");
    let storages: [fn() -> ReplayBufferBuilder; 2] = [builder, || {
        ReplayBuffer::builder().storage(ListStorage::new(CAPACITY))
    }];
    for make in storages {
        for sampler in samplers() {
            let buffer = make().sampler(RandomSampler::new()).build().unwrap();
            buffer.extend(&two_rows()).unwrap();
            buffer.extend(&two_rows()).unwrap();
            for _ in 0..2 {
                buffer.set_sampler(sampler()).unwrap();
                assert_eq!(lens(&buffer), [10; 4]);
                check_slices(&buffer);
                buffer.set_sampler(other_keys()).unwrap();
                assert_eq!(lens(&buffer), [10; 4]);
                check_slices(&buffer);
            }
        }
    }
}

#[test]
fn rows_of_a_batch_stay_apart_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let storage = LazyMemmapStorage::new(35).at(folder.path()).unwrap();
        let builder = ReplayBuffer::builder().storage(storage).sampler(slices());
        builder.seed(0).build().unwrap()
    };
    let buffer = open();
    buffer.extend(&two_rows()).unwrap();
    buffer.extend(&two_rows()).unwrap();
    let state = buffer.state_dict().unwrap();
    assert_eq!(lens(&buffer), [5, 10, 10, 10]);
    drop(buffer);
    // Written, found again, overwritten in place, and loaded.
    let buffer = open();
    assert_eq!(lens(&buffer), [5, 10, 10, 10]);
    check_slices(&buffer);
    let row = buffer.get(&[4]).unwrap();
    buffer.set(&[4], &row.exclude(&["index"])).unwrap();
    drop(buffer);
    let buffer = open();
    assert_eq!(lens(&buffer), [5, 10, 10, 10]);
    buffer.empty();
    buffer.load_state_dict(&state).unwrap();
    drop(buffer);
    assert_eq!(lens(&open()), [5, 10, 10, 10]);
}

#[test]
fn rows_that_are_set_in_a_file_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let storage = LazyMemmapStorage::new(CAPACITY).at(folder.path()).unwrap();
        let builder = ReplayBuffer::builder().storage(storage).sampler(slices());
        builder.seed(0).build().unwrap()
    };
    let buffer = open();
    for first in (0..70).step_by(10) {
        collect(&buffer, &mut None, &frames(1, first, 10));
    }
    let row = buffer.get(&[3]).unwrap();
    buffer.set(&[3], &row.exclude(&["index"])).unwrap();
    let (lens_before, rows) = (lens(&buffer), buffer.state_dict().unwrap());
    drop(buffer);
    let buffer = open();
    assert_eq!(lens(&buffer), lens_before);
    let again = buffer.state_dict().unwrap();
    assert_eq!(again.get("rows").unwrap(), rows.get("rows").unwrap());
    check_slices(&buffer);
}

/// The runs of a buffer: number of the oldest frame's row, lengths, and which have ended.
fn runs(buffer: &ReplayBuffer) -> (Vec<i64>, Vec<bool>) {
    let state = buffer.state_dict().unwrap();
    let ended = state.as_slice::<bool>(("runs", "ended")).unwrap();
    (lens(buffer), ended.to_vec())
}

#[test]
fn a_file_finds_the_runs_that_reading_its_rows_finds() {
    let folder = tempfile::tempdir().unwrap();
    let open = |traj_key: Option<(&str, &str)>| {
        let storage = LazyMemmapStorage::new(CAPACITY).at(folder.path()).unwrap();
        let sampler = match traj_key {
            Some(key) => slices().traj_key(key),
            None => slices(),
        };
        let builder = ReplayBuffer::builder().storage(storage).sampler(sampler);
        builder.seed(0).build().unwrap()
    };
    // Each eleventh is the last of its episode.
    let some = |stream, from: i64, count| {
        let mut frames = frames(stream, from, count);
        let done: Vec<bool> = (from..from + count).map(|t| t % 11 == 0).collect();
        let done = Tensor::from_vec(done, [count as usize, 1]).unwrap();
        frames.set(("next", "done"), done).unwrap();
        frames
    };
    let mut rng = windrow_replay::SampleRng::new(3);
    let mut from = 0;
    let mut buffer = open(None);
    for round in 0..200 {
        let count = 1 + rng.below(if round % 50 == 49 { 3 * CAPACITY } else { 9 }) as i64;
        match rng.below(12) {
            0 => buffer.empty(),
            1 if !buffer.is_empty() => {
                let row = (0..CAPACITY as i64).find(|row| buffer.get(&[*row]).is_ok());
                let row = [row.unwrap()];
                let frame = buffer.get(&row).unwrap().exclude(&["index"]);
                buffer.set(&row, &frame).unwrap();
            }
            2 => {
                let state = buffer.state_dict().unwrap();
                buffer.load_state_dict(&state).unwrap();
            }
            3 => {
                let row = |stream| (from..from + 5).map(|t| [ALIKE + stream, 4, t]).collect();
                let rows: [Vec<Stamp>; 2] = [row(1), row(2)];
                buffer.extend(&endless(batch(&rows, true))).unwrap();
            }
            4 => collect(&buffer, &mut None, &some(rng.below(3) as i64, from, count)),
            _ => buffer.extend(&some(7, from, count)).map(|_| ()).unwrap(),
        }
        from += count;
        if rng.below(3) > 0 {
            continue;
        }
        let kept = runs(&buffer);
        drop(buffer);
        assert_eq!(runs(&open(None)), kept, "round {round}");
        // Keys of another name, which the file knows nothing of, although frames are those that the
        // usual ones name.
        let key = Some(("collector", "traj_ids"));
        assert_eq!(runs(&open(key)), kept, "round {round}, read");
        buffer = open(rng.below(2).eq(&0).then_some(("collector", "traj_ids")));
        assert_eq!(runs(&buffer), kept, "round {round}, and again");
    }
}

#[test]
fn a_collector_does_not_go_on_in_a_file_that_another_left() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let storage = LazyMemmapStorage::new(CAPACITY).at(folder.path()).unwrap();
        let builder = ReplayBuffer::builder().storage(storage).sampler(slices());
        builder.seed(0).build().unwrap()
    };
    for stream in 0..3 {
        collect(&open(), &mut None, &frames(stream, 0, 5));
        check_slices(&open());
    }
    assert_eq!(lens(&open()), [5, 5, 5]);
}

#[test]
fn a_refused_state_lets_a_trajectory_go_on() {
    let buffer = builder().build().unwrap();
    buffer.extend(&frames(0, 0, 5)).unwrap();
    let mut damaged = buffer.state_dict().unwrap();
    let runs = Tensor::from_vec(vec![i64::MAX], [1]).unwrap();
    damaged.set(("runs", "len"), runs).unwrap();
    buffer.load_state_dict(&damaged).unwrap_err();
    buffer.extend(&frames(0, 5, 5)).unwrap();
    assert_eq!(lens(&buffer), [10]);
}

#[test]
fn another_sampler_with_the_same_keys_lets_a_trajectory_go_on() {
    let buffer = builder().build().unwrap();
    let mut first = None;
    collect(&buffer, &mut first, &frames(0, 0, 5));
    buffer.set_sampler(slices()).unwrap();
    collect(&buffer, &mut first, &frames(0, 5, 5));
    assert_eq!(lens(&buffer), [10]);
}

#[test]
fn frames_without_ids_that_are_written_in_turn_go_on_up_to_the_end() {
    let buffer = builder().sampler(slices()).build().unwrap();
    let mut stream = Stream::new(0);
    let mut whole: Vec<Stamp> = Vec::new();
    for count in [3, 1, 4, 2, 5] {
        let stamps: Vec<Stamp> = (0..count).map(|_| stream.step()).collect();
        let frames = batch(std::slice::from_ref(&stamps), false);
        buffer.extend(&frames).unwrap();
        whole.extend(stamps);
        let stamp = stream.step();
        let frame = batch(&[vec![stamp]], false).index(0).unwrap();
        buffer.add(&frame).unwrap();
        whole.push(stamp);
    }
    let episodes = whole.chunk_by(|a, b| a[1] == b[1]);
    let expected: Vec<i64> = episodes.map(|frames| frames.len() as i64).collect();
    assert_eq!(lens(&buffer), expected);
    check_slices(&buffer);
}

#[test]
fn threads_that_write_without_ids_do_not_go_on_in_each_other_s_frames() {
    let buffer = builder().build().unwrap();
    let row = |stream: i64| endless(batch(&[(0..3).map(|t| [stream, 7, t]).collect()], false));
    buffer.extend(&row(0)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| buffer.extend(&row(1)).unwrap());
    });
    buffer.extend(&row(2)).unwrap();
    assert_eq!(lens(&buffer), [3, 3, 3]);
}
