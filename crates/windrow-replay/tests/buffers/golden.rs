//! Draws, errors and saved states of every sampler, as numbers that must not change: what a seed
//! draws and what a file keeps stay the same from one version to the next.

use crate::common::{Stamp, Stream, batch, flags, index};
use tensordict::TensorDict;
use windrow_replay::{
    ConsumingSampler, GoalStrategy, HindsightSampler, LazyTensorStorage, MaxRewardWriter,
    PrioritizedSampler, PrioritizedSliceSampler, RandomSampler, Reduction, ReplayBuffer,
    ReplayBufferBuilder, ReuseWriter, SamplerWithoutReplacement, SliceSampler,
    SliceSamplerWithoutReplacement,
};
use windrow_sync::error_chain;

type Kind = fn(ReplayBufferBuilder) -> ReplayBufferBuilder;

/// Each sampler with its choices, and the fingerprint of all that it does.
#[rustfmt::skip]
const KINDS: &[(&str, Kind, u64)] = &[
    ("random", |b| b.sampler(RandomSampler::new()),
        0x7416_0a07_9cf9_b462),
    ("random, any order", |b| b.sampler(RandomSampler::new()).writer(best()),
        0x7952_9ed0_2d36_4344),
    ("consuming once", |b| b.sampler(ConsumingSampler::new(1)).writer(ReuseWriter::new()),
        0x9fd3_333e_51b7_231a),
    ("consuming thrice", |b| b.sampler(ConsumingSampler::new(3)).writer(ReuseWriter::new()),
        0x33ba_d19c_7b7f_b43d),
    ("hindsight, future", |b| b.sampler(HindsightSampler::new(0.5)),
        0x59c8_0411_bef2_fdbb),
    ("hindsight, episode", |b| {
        b.sampler(HindsightSampler::new(0.8).strategy(GoalStrategy::Episode))
    }, 0xeaa5_3974_c009_1068),
    ("pass", |b| b.sampler(passes()),
        0xc4d0_361e_0eac_f0b7),
    ("pass, any order", |b| b.sampler(passes()).writer(best()),
        0xbfe2_c264_4d0e_1629),
    ("pass, whole batches", |b| b.sampler(passes().drop_last(true)),
        0xbdea_4efb_914a_1c5a),
    ("pass, in order", |b| b.sampler(passes().shuffle(false)),
        0x38da_752d_3c1e_f87f),
    ("pass, in order, any order", |b| b.sampler(passes().shuffle(false)).writer(best()),
        0xb030_c604_475e_d5b5),
    ("pass, in order, whole batches", |b| b.sampler(passes().shuffle(false).drop_last(true)),
        0xb47f_bca8_d5ff_c387),
    ("slices", |b| b.sampler(long()),
        0x78ca_10c8_59ed_9f63),
    ("slices by number", |b| b.sampler(many()),
        0x8523_499d_c265_da86),
    ("slices, short", |b| b.sampler(short()),
        0x3b5a_7c54_ca54_1aad),
    ("slices, padded, apart, warm", |b| {
        b.sampler(short().pad_output(true).span(2, 1).stride(2).burn_in(1))
    }, 0x5120_55a2_c4c1_003b),
    ("slice pass", |b| b.sampler(slice_passes(long())),
        0xda32_5742_44d3_a31e),
    ("slice pass, short", |b| b.sampler(slice_passes(short()).drop_last(true)),
        0x3db3_ccff_54e4_00b3),
    ("slice pass by number", |b| b.sampler(slice_passes(many()).drop_last(true)),
        0x3509_02d3_b4ec_f26b),
    ("slice pass, in order", |b| b.sampler(slice_passes(short()).shuffle(false)),
        0xc7a7_05fb_3ce2_7b0a),
    ("slice pass, in order, whole batches", |b| {
        b.sampler(slice_passes(long()).shuffle(false).drop_last(true))
    }, 0x2ddc_ce16_e33a_cffc),
    ("priorities", |b| b.sampler(PrioritizedSampler::new(1.0, 1.0)),
        0x1c01_9010_ada2_46d7),
    ("priorities, any order", |b| b.sampler(PrioritizedSampler::new(1.0, 1.0)).writer(best()),
        0x4ba4_6a2f_bbc0_0ba2),
    ("priorities of an entry", |b| {
        let sampler = PrioritizedSampler::new(1.0, 1.0).eps(0.5);
        b.sampler(sampler.priority_key("stamp", Reduction::Max))
    }, 0xfc31_f8aa_ba6f_3927),
    ("slices by priorities", |b| b.sampler(PrioritizedSliceSampler::new(long(), 1.0, 1.0)),
        0x1f35_96a7_103b_5e65),
    ("slices by number and priorities", |b| {
        b.sampler(PrioritizedSliceSampler::new(many(), 1.0, 1.0))
    }, 0x6fa6_d0be_61e0_4f18),
    ("short slices by priorities of an entry", |b| {
        let slices = short().pad_output(true).span(0, 1);
        let sampler = PrioritizedSliceSampler::new(slices, 1.0, 1.0).eps(0.5);
        b.sampler(sampler.priority_key("stamp", Reduction::Max))
    }, 0x7a5a_45c6_96a4_927d),
];

fn passes() -> SamplerWithoutReplacement {
    SamplerWithoutReplacement::new()
}

fn best() -> MaxRewardWriter {
    MaxRewardWriter::new(("next", "payload")).reduction(Reduction::Min)
}

fn long() -> SliceSampler {
    SliceSampler::slice_len(4)
}

fn short() -> SliceSampler {
    SliceSampler::slice_len(4).strict_length(false)
}

fn many() -> SliceSampler {
    SliceSampler::num_slices(4)
}

fn slice_passes(slices: SliceSampler) -> SliceSamplerWithoutReplacement {
    SliceSamplerWithoutReplacement::new(slices)
}

/// FNV-1a.
struct Fingerprint(u64);

impl Fingerprint {
    fn add(&mut self, bytes: impl IntoIterator<Item = u8>) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn numbers(&mut self, numbers: impl IntoIterator<Item = i64>) {
        numbers
            .into_iter()
            .for_each(|number| self.add(number.to_le_bytes()));
    }

    fn sample(&mut self, sample: &TensorDict) {
        self.numbers(index(sample));
        if sample.contains_key("priority_weight") {
            let weights = sample.as_slice::<f32>("priority_weight").unwrap();
            self.numbers(
                weights
                    .iter()
                    .map(|weight| (weight * 1024.0).round() as i64),
            );
        }
        for key in [
            ["next", "done"],
            ["collector", "mask"],
            ["collector", "burn_in"],
        ] {
            if sample.contains_key(key) {
                self.add(flags(sample, &key).into_iter().map(u8::from));
            }
        }
    }
}

fn build(kind: Kind, capacity: usize, seed: u64) -> ReplayBuffer {
    let storage = LazyTensorStorage::new(capacity);
    kind(ReplayBuffer::builder().storage(storage).seed(seed))
        .build()
        .unwrap()
}

/// Writes, samples, sets priorities, empties, and goes on with another buffer from a saved state.
fn fingerprint(kind: Kind, capacity: usize, seed: u64) -> u64 {
    let mut all = Fingerprint(0xcbf2_9ce4_8422_2325);
    let mut buffer = build(kind, capacity, seed);
    let mut stream = Stream::new(seed as i64);
    for round in 0..60 {
        let frames: Vec<Stamp> = (0..round % 7).map(|_| stream.step()).collect();
        if !frames.is_empty() {
            buffer
                .extend(&batch(&[frames], seed.is_multiple_of(2)))
                .unwrap();
        }
        for batch_size in [8, 4, 16][..round % 4].iter().copied() {
            match buffer.sample(batch_size) {
                Ok(sample) => {
                    all.sample(&sample);
                    let priorities: Vec<f32> = index(&sample)
                        .iter()
                        .map(|&row| ((row * 7 + round as i64) % 5) as f32 * 0.25)
                        .collect();
                    if sample.contains_key("priority_weight") {
                        let rows = index(&sample);
                        all.numbers([buffer.update_priority(&rows, &priorities).unwrap() as i64]);
                    }
                }
                Err(error) => all.add(error_chain(&error).into_bytes()),
            }
            all.numbers([i64::from(buffer.ran_out()), buffer.len() as i64]);
        }
        if round % 9 == 8 {
            let state = buffer.state_dict().unwrap();
            all.add(state.get_dict("sampler").unwrap().to_bytes().unwrap());
            buffer = build(kind, capacity, seed + 1);
            buffer.load_state_dict(&state).unwrap();
        }
        if round == 40 {
            buffer.empty();
        }
    }
    all.0
}

#[test]
fn a_seed_draws_what_it_always_drew() {
    let mut changed = Vec::new();
    for &(name, kind, expected) in KINDS {
        let mut all = Fingerprint(0);
        for (capacity, seed) in [(9, 0), (40, 1), (40, 2), (300, 3), (23, 1 << 40)] {
            all.numbers([fingerprint(kind, capacity, seed) as i64]);
        }
        if all.0 != expected {
            changed.push((name, format!("{:#018x}", all.0)));
        }
    }
    assert!(changed.is_empty(), "{changed:#?}");
}
