//! Buffers that hold frames are given others, and other samplers.

use crate::common::{Stream, batch, index, stamps};
use tensordict::{DType, Tensor, TensorDict};
use windrow_replay::{
    LazyMemmapStorage, LazyTensorStorage, ListStorage, PrioritizedSampler, PrioritizedSliceSampler,
    RateLimiter, Reduction, ReplayBuffer, ReplayBufferBuilder, ReplayError, Sampler,
    SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement,
};
use windrow_slab::Sink;
use windrow_sync::error_chain;

const CAPACITY: usize = 40;

fn storages() -> [ReplayBufferBuilder; 3] {
    [
        ReplayBuffer::builder().storage(LazyTensorStorage::new(CAPACITY)),
        ReplayBuffer::builder().storage(LazyMemmapStorage::new(CAPACITY)),
        ReplayBuffer::builder().storage(ListStorage::new(CAPACITY)),
    ]
}

/// The next frames of one stream.
fn frames(stream: &mut Stream, count: usize) -> TensorDict {
    batch(&[(0..count).map(|_| stream.step()).collect()], true)
}

fn numbers(numbers: &[i64]) -> TensorDict {
    let mut frames = TensorDict::new([numbers.len()]);
    frames
        .set(
            "number",
            Tensor::from_slice(numbers, [numbers.len()]).unwrap(),
        )
        .unwrap();
    frames
}

#[test]
fn a_ran_out_with_its_last_draw_and_the_next_takes_all_frames() {
    for shuffle in [true, false] {
        let sampler = SamplerWithoutReplacement::new().shuffle(shuffle);
        let buffer = ReplayBuffer::builder()
            .storage(LazyTensorStorage::new(CAPACITY))
            .sampler(sampler)
            .batch_size(4)
            .build()
            .unwrap();
        assert!(!buffer.ran_out());
        buffer.extend(&numbers(&[0, 1, 2, 3, 4, 5])).unwrap();
        buffer.sample(None).unwrap();
        assert!(!buffer.ran_out());
        buffer.sample(None).unwrap();
        assert!(buffer.ran_out());
        buffer.extend(&numbers(&[6, 7])).unwrap();
        let next = [buffer.sample(None).unwrap(), buffer.sample(None).unwrap()];
        assert!(buffer.ran_out());
        let mut rows = next.iter().flat_map(index).collect::<Vec<i64>>();
        rows.sort_unstable();
        assert_eq!(rows, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

#[test]
fn frames_after_it_was_empty_may_be_others() {
    for builder in storages() {
        let buffer = builder.batch_size(3).build().unwrap();
        buffer.extend(&numbers(&[1, 2, 3])).unwrap();
        let mut others = TensorDict::new([2]);
        others
            .set("pixels", Tensor::zeros(DType::U8, [2, 3]).unwrap())
            .unwrap();
        buffer.empty();
        buffer.extend(&others).unwrap();
        assert_eq!(buffer.all().unwrap(), others);
        buffer.empty();
        buffer.extend(&numbers(&[4])).unwrap();
        assert_eq!(buffer.all().unwrap(), numbers(&[4]));
    }
}

#[test]
fn frames_are_as_they_were_until_a_storage_is_cleared() {
    for builder in [
        ReplayBuffer::builder().storage(LazyTensorStorage::new(CAPACITY)),
        ReplayBuffer::builder().storage(LazyMemmapStorage::new(CAPACITY)),
    ] {
        let buffer = builder.build().unwrap();
        buffer.extend(&numbers(&[1, 2, 3])).unwrap();
        buffer.empty();
        buffer.extend(&numbers(&[1])).unwrap();
        let mut others = TensorDict::new([2]);
        others
            .set("number", Tensor::zeros(DType::U8, [2]).unwrap())
            .unwrap();
        let refused = buffer.extend(&others).unwrap_err().to_string();
        assert_eq!(
            refused,
            r#"entry "number": expected int64 [] a frame, got uint8 []"#
        );
    }
}

#[test]
fn rows_are_set_in_their_places() {
    for builder in storages() {
        let buffer = builder.build().unwrap();
        buffer.extend(&numbers(&[0, 1, 2, 3, 4])).unwrap();
        buffer.set(&[3, 1, 2], &numbers(&[30, 10, 20])).unwrap();
        assert_eq!(buffer.all().unwrap(), numbers(&[0, 10, 20, 30, 4]));
        assert!(matches!(
            buffer.set(&[5], &numbers(&[9])),
            Err(ReplayError::NoFrame { row: 5 })
        ));
        let refused = buffer.set(&[1, 2], &numbers(&[9])).unwrap_err().to_string();
        assert_eq!(
            refused,
            "frames: expected a batch size of [2], as there are rows, got [1]"
        );
        assert_eq!(buffer.all().unwrap(), numbers(&[0, 10, 20, 30, 4]));
    }
}

#[test]
fn rows_that_slices_are_of_end_where_they_did() {
    let mut stream = Stream::new(1);
    let buffer = ReplayBuffer::builder()
        .storage(LazyTensorStorage::new(CAPACITY))
        .sampler(SliceSampler::slice_len(1))
        .build()
        .unwrap();
    let written = frames(&mut stream, 20);
    buffer.extend(&written).unwrap();
    buffer
        .set(&[2, 3], &written.narrow(0, 2, 2).unwrap())
        .unwrap();
    let refused = buffer.set(&[2, 3], &frames(&mut stream, 2)).unwrap_err();
    assert!(refused.to_string().contains("where trajectories end"));
}

#[test]
fn frames_bring_priorities() {
    let sampler = PrioritizedSampler::new(1.0, 1.0).priority_key("number", Reduction::Max);
    let buffer = ReplayBuffer::builder()
        .storage(LazyTensorStorage::new(3))
        .sampler(sampler)
        .seed(0)
        .build()
        .unwrap();
    // The first is overwritten at once.
    buffer.extend(&numbers(&[9, 1, 0, 3])).unwrap();
    let mut often = [0; 10];
    for number in buffer
        .sample(4000)
        .unwrap()
        .as_slice::<i64>("number")
        .unwrap()
    {
        often[*number as usize] += 1;
    }
    assert_eq!(often[0] + often[9], 0);
    assert!((900..1100).contains(&often[1]), "{often:?}");
    let refused = error_chain(&buffer.extend(&numbers(&[1, -2])).unwrap_err());
    assert!(
        refused.contains(r#""number", got -2 for frame 1"#),
        "{refused}"
    );
    assert_eq!(buffer.write_count(), 4);
}

#[test]
fn several_values_make_one() {
    let values = Tensor::from_vec(vec![4.0f32, 1.0, 3.0, 2.0], [1, 4]).unwrap();
    let mut frames = TensorDict::new([1]);
    frames.set("value", values).unwrap();
    let reductions = [
        (Reduction::Sum, 10.0),
        (Reduction::Mean, 2.5),
        (Reduction::Max, 4.0),
        (Reduction::Min, 1.0),
        (Reduction::Median, 2.0),
    ];
    for (reduction, expected) in reductions {
        let buffer = ReplayBuffer::builder()
            .storage(LazyTensorStorage::new(2))
            .sampler(PrioritizedSampler::new(1.0, 1.0).priority_key("value", reduction))
            .build()
            .unwrap();
        buffer.extend(&frames).unwrap();
        let state = buffer.state_dict().unwrap();
        let max = state.get(("sampler", "max_priority")).unwrap();
        assert_eq!(max.item::<f32>().unwrap(), expected);
    }
}

#[test]
fn another_sampler_begins_with_all_frames() {
    for builder in storages() {
        let mut stream = Stream::new(1);
        let buffer = builder.seed(0).build().unwrap();
        for _ in 0..3 {
            buffer.extend(&frames(&mut stream, 20)).unwrap();
        }
        buffer
            .set_sampler(SamplerWithoutReplacement::new())
            .unwrap();
        let mut rows = index(&buffer.sample(CAPACITY).unwrap());
        assert!(buffer.ran_out());
        rows.sort_unstable();
        assert!(rows.into_iter().eq(0..CAPACITY as i64));

        buffer.set_sampler(SliceSampler::slice_len(3)).unwrap();
        for _ in 0..2 {
            let drawn = stamps(&buffer.sample(300).unwrap());
            for slice in drawn.chunks(3) {
                let [stream, episode, step] = slice[0];
                let following = [0, 1, 2].map(|later| [stream, episode, step + later]);
                assert_eq!(slice, following);
            }
            buffer.extend(&frames(&mut stream, 20)).unwrap();
        }
    }
}

#[test]
fn a_sampler_that_does_not_fit_is_refused() {
    let buffer = ReplayBuffer::builder().batch_size(2).build().unwrap();
    buffer.extend(&numbers(&[1, 2])).unwrap();
    assert!(matches!(
        buffer.set_sampler(SliceSampler::slice_len(2)),
        Err(ReplayError::NoRuns { .. })
    ));
    assert!(matches!(
        buffer.set_sampler(PrioritizedSampler::new(-1.0, 1.0)),
        Err(ReplayError::Argument { name: "alpha", .. })
    ));
    buffer.sample(None).unwrap();
}

#[test]
fn what_a_buffer_can_never_hold_is_refused_at_once() {
    let limits: [fn() -> RateLimiter; 2] = [
        || RateLimiter::min_size(CAPACITY + 1),
        || RateLimiter::sample_to_insert_ratio(1.0, CAPACITY + 1, 50.0).unwrap(),
    ];
    for (builder, limit) in storages().into_iter().zip(limits) {
        let refused = builder.limiter(limit()).build().unwrap_err().to_string();
        assert_eq!(
            refused,
            "min_size_to_sample: expected at most 40 frames, which the buffer has room for, got 41"
        );
    }
    for builder in storages() {
        let refused = builder.sampler(SliceSampler::slice_len(41)).build();
        assert_eq!(
            refused.unwrap_err().to_string(),
            "slice_len: expected at most 40 frames, which the buffer has room for, got 41"
        );
    }
    // Where it takes a batch to know, with a writer that might be waited for.
    let samplers: [(Box<dyn Sampler>, usize); 4] = [
        (SliceSampler::num_slices(2).into(), 82),
        (
            PrioritizedSliceSampler::new(SliceSampler::num_slices(2), 0.5, 0.5).into(),
            82,
        ),
        (
            SamplerWithoutReplacement::new().drop_last(true).into(),
            CAPACITY + 1,
        ),
        (
            SliceSamplerWithoutReplacement::new(SliceSampler::slice_len(1))
                .drop_last(true)
                .into(),
            CAPACITY + 1,
        ),
    ];
    for (sampler, batch_size) in samplers {
        let [builder, ..] = storages();
        let buffer = builder.sampler(sampler).build().unwrap();
        buffer.attach();
        buffer.extend(&frames(&mut Stream::new(1), 20)).unwrap();
        let refused = buffer.sample(batch_size);
        assert!(
            matches!(refused, Err(ReplayError::Argument { .. })),
            "{refused:?}"
        );
        assert_eq!(buffer.stats().sampled, 0);
    }
    // Slices that may be short may be longer than the buffer.
    let short = SliceSampler::slice_len(41).strict_length(false);
    let [builder, ..] = storages();
    let buffer = builder.sampler(short).build().unwrap();
    buffer.extend(&frames(&mut Stream::new(1), 20)).unwrap();
    buffer.sample(41).unwrap();
}

#[test]
fn frames_that_are_overwritten_since_the_last_sample_are_counted() {
    for builder in storages() {
        let buffer = builder.build().unwrap();
        let overwritten = || buffer.stats().overwritten;
        buffer.extend(&numbers(&[0; 30])).unwrap();
        assert_eq!(overwritten(), 0);
        buffer.extend(&numbers(&[0; 30])).unwrap();
        assert_eq!(overwritten(), 20);
        // More than there is room for: the first of them are overwritten at once.
        buffer.extend(&numbers(&[0; 45])).unwrap();
        assert_eq!(overwritten(), 65);
        buffer.sample(1).unwrap();
        assert_eq!(overwritten(), 0);
        buffer.add(&numbers(&[0]).index(0).unwrap()).unwrap();
        assert_eq!(overwritten(), 1);
        buffer.empty();
        assert_eq!(overwritten(), 0);
    }
}
