//! A buffer that goes on from a state, a checkpoint or a mapped file draws what the one before
//! would have drawn.

use crate::common::{Stamp, Stream, batch, flags, index, stamps};
use tensordict::{Tensor, TensorDict};
use windrow_replay::{
    LazyMemmapStorage, LazyTensorStorage, ListStorage, MaxRewardWriter, PrioritizedSampler,
    PrioritizedSliceSampler, RandomSampler, RateLimiter, Reduction, ReplayBuffer,
    ReplayBufferBuilder, SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement,
    Storage,
};
use windrow_sync::error_chain;

const CAPACITY: usize = 60;

fn slices() -> SliceSampler {
    SliceSampler::slice_len(4)
}

/// A buffer of each kind, built anew with `storage` at every call.
fn kinds() -> Vec<fn(ReplayBufferBuilder) -> ReplayBufferBuilder> {
    vec![
        |builder| builder.sampler(RandomSampler::new()),
        |builder| builder.sampler(SamplerWithoutReplacement::new()),
        |builder| builder.sampler(SamplerWithoutReplacement::new().shuffle(false)),
        |builder| builder.sampler(slices().strict_length(false)),
        |builder| builder.sampler(PrioritizedSampler::new(0.6, 0.5)),
        |builder| builder.sampler(PrioritizedSliceSampler::new(slices(), 0.6, 0.5)),
        |builder| {
            let writer = MaxRewardWriter::new(("next", "payload")).reduction(Reduction::Min);
            builder.writer(writer)
        },
        |builder| builder.sampler(SliceSamplerWithoutReplacement::new(slices())),
    ]
}

fn build(
    kind: fn(ReplayBufferBuilder) -> ReplayBufferBuilder,
    storage: impl Storage + 'static,
    seed: u64,
) -> ReplayBuffer {
    let limiter = RateLimiter::sample_to_insert_ratio(1.0, 5, 1000.0).unwrap();
    let builder = ReplayBuffer::builder()
        .storage(storage)
        .limiter(limiter)
        .seed(seed);
    kind(builder).build().unwrap()
}

/// Writes, samples and sets priorities, always in the same way; returns what was drawn, apart from
/// the numbers of frames, which a buffer that loads a state gives anew.
fn use_it(buffer: &ReplayBuffer, stream: &mut Stream, rounds: usize) -> Vec<TensorDict> {
    let mut drawn = Vec::new();
    for round in 0..rounds {
        let frames: Vec<Stamp> = (0..9 + round % 5).map(|_| stream.step()).collect();
        buffer.extend(&batch(&[frames], true)).unwrap();
        let mut sample = buffer.sample(8).unwrap();
        let rows = index(&sample);
        // Only some samplers have priorities.
        let _ = buffer.update_priority(&rows, &vec![round as f32; rows.len()]);
        // Only samplers with priorities number frames.
        let _ = sample.remove("index_generation");
        drawn.push(sample);
    }
    drawn
}

#[test]
fn further_draws_are_those_that_would_have_come() {
    for (at, kind) in kinds().into_iter().enumerate() {
        let buffer = build(kind, LazyTensorStorage::new(CAPACITY), 5);
        let mut stream = Stream::new(0);
        use_it(&buffer, &mut stream, 12);
        let state = buffer.state_dict().unwrap();
        // Through bytes, as a file would keep it.
        let state = TensorDict::from_bytes(&state.to_bytes().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        buffer.save(folder.path()).unwrap();

        let from_state = build(kind, ListStorage::new(CAPACITY), 6);
        from_state.load_state_dict(&state).unwrap();
        let from_disk = build(kind, LazyMemmapStorage::new(CAPACITY), 7);
        use_it(&from_disk, &mut Stream::new(9), 3);
        from_disk.load(folder.path()).unwrap();
        assert_eq!(from_disk.stats(), buffer.stats());

        let expected = use_it(&buffer, &mut stream.clone(), 12);
        for other in [from_state, from_disk] {
            assert_eq!(
                use_it(&other, &mut stream.clone(), 12),
                expected,
                "kind {at}"
            );
            assert_eq!(other.stats(), buffer.stats());
        }
    }
}

#[test]
fn a_state_of_another_buffer_is_refused_and_changes_nothing() {
    let random = kinds()[0];
    let buffer = build(random, LazyTensorStorage::new(CAPACITY), 5);
    use_it(&buffer, &mut Stream::new(0), 3);
    let before = buffer.all().unwrap();
    let refused = |state: &TensorDict| error_chain(&buffer.load_state_dict(state).unwrap_err());

    let smaller = build(random, LazyTensorStorage::new(30), 5);
    assert_eq!(
        refused(&smaller.state_dict().unwrap()),
        "failed to load the state: expected a capacity of 60, got 30"
    );
    let best = build(kinds()[6], LazyTensorStorage::new(CAPACITY), 5);
    assert_eq!(
        refused(&best.state_dict().unwrap()),
        "failed to load the state: expected the state of a buffer whose writer fills rows in the same order, got one with another writer"
    );
    let mut state = buffer.state_dict().unwrap();
    let rows = Tensor::from_vec(vec![1i64, 1], [2]).unwrap();
    state.set("rows", rows).unwrap();
    assert_eq!(
        refused(&state),
        "failed to load the state: expected each row once and below the capacity, got a row twice or beyond it"
    );
    let other = build(random, LazyTensorStorage::new(CAPACITY), 5);
    let mut frames = TensorDict::new([2]);
    frames.set("x", Tensor::arange(0..2).unwrap()).unwrap();
    other.extend(&frames).unwrap();
    let why = refused(&other.state_dict().unwrap());
    assert!(why.contains("frames lack entry"), "{why}");
    assert_eq!(buffer.all().unwrap(), before);

    // An empty one fits every buffer of its kind.
    let empty = build(random, LazyTensorStorage::new(CAPACITY), 5);
    buffer
        .load_state_dict(&empty.state_dict().unwrap())
        .unwrap();
    assert_eq!((buffer.len(), buffer.write_count()), (0, 0));
}

#[test]
fn a_mapped_file_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let storage = || LazyMemmapStorage::new(CAPACITY).at(folder.path()).unwrap();
    let build = || {
        ReplayBuffer::builder()
            .storage(storage())
            .sampler(slices())
            .seed(2)
            .build()
            .unwrap()
    };
    let mut stream = Stream::new(4);
    let buffer = build();
    use_it(&buffer, &mut stream, 13);
    let (all, stats) = (buffer.all().unwrap(), buffer.stats());
    drop(buffer);

    let buffer = build();
    assert_eq!(buffer.all().unwrap(), all);
    assert_eq!(buffer.write_count(), stats.write_count);
    let found = buffer.stats();
    assert_eq!(found.trajectories, stats.trajectories);
    assert_eq!(found.complete_trajectories, stats.complete_trajectories);
    for sample in use_it(&buffer, &mut stream, 13) {
        let last = flags(&sample, &["next", "truncated"]);
        for (stamps, last) in stamps(&sample).chunks(4).zip(last.chunks(4)) {
            let [stream, episode, t] = stamps[0];
            assert_eq!(stamps, [0, 1, 2, 3].map(|step| [stream, episode, t + step]));
            assert_eq!(last, [false, false, false, true]);
        }
    }
}

#[test]
fn the_best_frames_of_a_mapped_file_are_compared_with_new_ones() {
    let folder = tempfile::tempdir().unwrap();
    let build = || {
        ReplayBuffer::builder()
            .storage(LazyMemmapStorage::new(4).at(folder.path()).unwrap())
            .writer(MaxRewardWriter::new("score"))
            .build()
            .unwrap()
    };
    let scores = |scores: &[f32]| {
        let mut frames = TensorDict::new([scores.len()]);
        let tensor = Tensor::from_slice(scores, [scores.len()]).unwrap();
        frames.set("score", tensor).unwrap();
        frames
    };
    build().extend(&scores(&[5.0, 1.0, 4.0, 2.0, 3.0])).unwrap();
    let buffer = build();
    // The first is taken in, and gives way to the last.
    let rows = buffer.extend(&scores(&[2.5, 2.0, 9.0])).unwrap();
    assert_eq!(rows.len(), 1);
    let mut kept = buffer
        .all()
        .unwrap()
        .as_slice::<f32>("score")
        .unwrap()
        .to_vec();
    kept.sort_by(f32::total_cmp);
    assert_eq!(kept, [3.0, 4.0, 5.0, 9.0]);
}

#[test]
fn a_state_that_is_refused_changes_nothing() {
    for (at, kind) in kinds().into_iter().enumerate() {
        let other = build(kind, LazyTensorStorage::new(CAPACITY), 5);
        use_it(&other, &mut Stream::new(0), 12);
        let state = other.state_dict().unwrap();
        for damage in [
            ("rng", Tensor::from_slice(&[1i64], [1]).unwrap()),
            (
                "counts",
                state.get("counts").unwrap().narrow(0, 0, 5).unwrap(),
            ),
            (
                "counts",
                Tensor::from_slice(&[60i64, 0, -3, 0, 0, 0], [6]).unwrap(),
            ),
            ("runs", Tensor::scalar(0i64)),
            ("sampler", Tensor::scalar(0i64)),
        ] {
            let (mine, twin) = (
                build(kind, LazyTensorStorage::new(CAPACITY), 8),
                build(kind, LazyTensorStorage::new(CAPACITY), 8),
            );
            let (mut stream, mut of_twin) = (Stream::new(1), Stream::new(1));
            use_it(&mine, &mut stream, 9);
            use_it(&twin, &mut of_twin, 9);
            let mut damaged = state.clone();
            damaged.set(damage.0, damage.1).unwrap();
            mine.load_state_dict(&damaged).unwrap_err();
            assert_eq!(
                use_it(&mine, &mut stream, 9),
                use_it(&twin, &mut of_twin, 9),
                "kind {at}, {}",
                damage.0
            );
        }
    }
}

/// A state as windrow wrote it before writers had states of their own, and before it knew which
/// runs were written apart.
fn in_the_old_format(mut state: TensorDict) -> TensorDict {
    if state.contains_key(("writer", "values")) {
        let values = state.get(("writer", "values")).unwrap().clone();
        state.set("values", values).unwrap();
    }
    state.remove("writer").unwrap();
    if state.contains_key("runs") {
        state.remove(("runs", "apart")).unwrap();
    }
    state
}

#[test]
fn states_of_the_old_format_are_gone_on_with() {
    for (at, kind) in kinds().into_iter().enumerate() {
        let buffer = build(kind, LazyTensorStorage::new(CAPACITY), 5);
        let mut stream = Stream::new(0);
        use_it(&buffer, &mut stream, 12);
        let old = build(kind, LazyTensorStorage::new(CAPACITY), 6);
        let state = in_the_old_format(buffer.state_dict().unwrap());
        old.load_state_dict(&state).unwrap();
        assert_eq!(
            use_it(&old, &mut stream.clone(), 9),
            use_it(&buffer, &mut stream, 9),
            "kind {at}"
        );
    }
}

/// Frames `[1]` of an entry of their own.
fn unlike(name: &str) -> TensorDict {
    let mut frames = TensorDict::new([1]);
    frames.set(name, Tensor::arange(0..1).unwrap()).unwrap();
    frames
}

#[test]
fn a_checkpoint_whose_later_frames_do_not_fit_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let random = kinds()[0];
    let list = build(random, ListStorage::new(CAPACITY), 5);
    for name in ["first", "second"] {
        list.extend(&unlike(name)).unwrap();
    }
    list.save(directory.path()).unwrap();

    let (mine, twin) = (
        build(random, LazyTensorStorage::new(CAPACITY), 8),
        build(random, LazyTensorStorage::new(CAPACITY), 8),
    );
    let (mut stream, mut of_twin) = (Stream::new(1), Stream::new(1));
    use_it(&mine, &mut stream, 9);
    use_it(&twin, &mut of_twin, 9);
    let refused = mine.load(directory.path()).unwrap_err().to_string();
    assert!(
        refused.contains("frames that are all alike") && refused.contains("second"),
        "{refused}"
    );
    assert_eq!(
        use_it(&mine, &mut stream, 9),
        use_it(&twin, &mut of_twin, 9)
    );
    // Where they fit they are taken.
    let other = build(random, ListStorage::new(CAPACITY), 5);
    use_it(&other, &mut Stream::new(1), 2);
    other.load(directory.path()).unwrap();
    assert_eq!(other.get(&[0]).unwrap(), unlike("first"));
    assert_eq!(other.get(&[1]).unwrap(), unlike("second"));
}
