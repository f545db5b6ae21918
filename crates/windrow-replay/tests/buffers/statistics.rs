//! What samplers draw has the distribution that it should have.
//!
//! Seeds are fixed, so that a test that passes goes on passing. Every limit is the quantile of the
//! chi-square distribution with a significance of 1e-4: a right sampler with another seed would
//! fail once in ten thousand times.

use std::collections::BTreeMap;

use crate::common::{Stamp, batch, flags, index, stamps};
use tensordict::{Tensor, TensorDict};
use windrow_replay::{
    LazyTensorStorage, PrioritizedSampler, PrioritizedSliceSampler, RandomSampler, ReplayBuffer,
    Sampler, SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement,
};

/// The 1 - 1e-4 quantile of the chi-square distribution with `k` degrees of freedom.
///
/// Source: E. B. Wilson and M. M. Hilferty, *The Distribution of Chi-Square*, 1931. It is off by
/// less than 2 % here.
fn limit(k: usize) -> f64 {
    const NORMAL: f64 = 3.719_016_5;
    let k = k as f64;
    let spread = 2.0 / (9.0 * k);
    k * (1.0 - spread + NORMAL * spread.sqrt()).powi(3)
}

/// Compares how often things came with how likely each was; `probabilities` add up to 1.
fn check<K: Ord + std::fmt::Debug>(found: &BTreeMap<K, usize>, probabilities: &BTreeMap<K, f64>) {
    let total: usize = found.values().sum();
    let mut square = 0.0;
    for (thing, &probability) in probabilities {
        let expected = probability * total as f64;
        assert!(expected >= 5.0, "too few draws for {thing:?}");
        let found = found.get(thing).copied().unwrap_or(0) as f64;
        square += (found - expected).powi(2) / expected;
    }
    assert!(found.keys().all(|thing| probabilities.contains_key(thing)));
    let limit = limit(probabilities.len() - 1);
    assert!(
        square < limit,
        "chi-square {square}, expected less than {limit}"
    );
}

/// Trajectories of these lengths, one stream each, `[frames]`.
fn trajectories(lens: &[usize]) -> TensorDict {
    let stamps: Vec<Stamp> = lens
        .iter()
        .enumerate()
        .flat_map(|(stream, &len)| (0..len).map(move |t| [stream as i64, 0, t as i64]))
        .collect();
    let mut frames = batch(&[stamps], true);
    let done = Tensor::from_vec(vec![false; frames.numel()], [frames.numel(), 1]).unwrap();
    frames.set(("next", "done"), done).unwrap();
    frames
}

/// A ring of 50 rows that was written three times over, and ends with `last`.
fn buffer(sampler: impl Sampler + 'static, last: &TensorDict) -> ReplayBuffer {
    let buffer = ReplayBuffer::builder()
        .storage(LazyTensorStorage::new(50))
        .sampler(sampler)
        .seed(20)
        .build()
        .unwrap();
    buffer.extend(&trajectories(&[30, 30, 40, 3])).unwrap();
    buffer.extend(last).unwrap();
    buffer
}

fn count<K: Ord>(things: impl IntoIterator<Item = K>, counts: &mut BTreeMap<K, usize>) {
    for thing in things {
        *counts.entry(thing).or_default() += 1;
    }
}

const LENS: [usize; 6] = [7, 20, 3, 4, 11, 5];

#[test]
fn random_rows_are_uniform() {
    let buffer = buffer(RandomSampler::new(), &trajectories(&LENS));
    let mut found = BTreeMap::new();
    for _ in 0..400 {
        count(index(&buffer.sample(50).unwrap()), &mut found);
    }
    check(&found, &(0..50).map(|row| (row, 0.02)).collect());
}

#[test]
fn the_first_batch_without_replacement_is_uniform() {
    let mut found = BTreeMap::new();
    let buffer = buffer(
        SamplerWithoutReplacement::new().drop_last(true),
        &trajectories(&LENS),
    );
    // The second batch of 26 begins a new pass each time.
    for _ in 0..800 {
        let rows = index(&buffer.sample(26).unwrap());
        count(rows[..2].iter().copied(), &mut found);
    }
    check(&found, &(0..50).map(|row| (row, 0.02)).collect());
}

/// How likely each first frame is: trajectories are all as likely, then places in them.
fn of_starts(lens: &[usize], len: usize) -> BTreeMap<Stamp, f64> {
    let long: Vec<(usize, usize)> = lens
        .iter()
        .copied()
        .enumerate()
        .filter(|(_, frames)| *frames >= len)
        .collect();
    let mut probabilities = BTreeMap::new();
    for &(stream, frames) in &long {
        let places = frames - len + 1;
        for t in 0..places {
            let probability = 1.0 / (long.len() * places) as f64;
            probabilities.insert([stream as i64, 0, t as i64], probability);
        }
    }
    probabilities
}

#[test]
fn slices_choose_trajectories_and_then_places() {
    let buffer = buffer(SliceSampler::slice_len(4), &trajectories(&LENS));
    let mut found = BTreeMap::new();
    for _ in 0..600 {
        let batch = buffer.sample(64).unwrap();
        count(stamps(&batch).into_iter().step_by(4), &mut found);
    }
    // Five of them have four frames at least.
    check(&found, &of_starts(&LENS, 4));
}

#[test]
fn slices_without_replacement_choose_trajectories_and_places_evenly() {
    let slices = SliceSamplerWithoutReplacement::new(SliceSampler::slice_len(4)).drop_last(true);
    let buffer = buffer(slices, &trajectories(&LENS));
    let mut found = BTreeMap::new();
    // Five of them have four frames at least: the second batch of three begins a new pass each
    // time.
    for _ in 0..6000 {
        let batch = buffer.sample(12).unwrap();
        count(stamps(&batch).into_iter().take(1), &mut found);
    }
    check(&found, &of_starts(&LENS, 4));
}

#[test]
fn spans_reach_beyond_both_ends_evenly() {
    let buffer = buffer(SliceSampler::slice_len(4).span(2, 1), &trajectories(&[50]));
    let mut found = BTreeMap::new();
    for _ in 0..600 {
        let batch = buffer.sample(64).unwrap();
        let (stamps, last) = (stamps(&batch), flags(&batch, &["next", "truncated"]));
        let mut first = 0;
        for at in (0..stamps.len()).filter(|&at| last[at]) {
            count([(stamps[first][2], stamps[at][2])], &mut found);
            first = at + 1;
        }
    }
    let starts = -2i64..=47;
    let probability = 1.0 / starts.clone().count() as f64;
    let pieces = starts.map(|start| ((start.max(0), (start + 3).min(49)), probability));
    check(&found, &pieces.collect());
}

const ALPHA: f64 = 0.6;

/// Priorities of 50 rows: from 0 to 6.
fn priority(row: usize) -> f32 {
    (row * 7 % 13) as f32 * 0.5
}

fn masses() -> Vec<f64> {
    (0..50)
        .map(|row| (f64::from(priority(row)) + 0.01).powf(ALPHA))
        .collect()
}

fn prioritize(buffer: &ReplayBuffer) {
    let rows: Vec<i64> = (0..50).collect();
    let priorities: Vec<f32> = (0..50).map(priority).collect();
    assert_eq!(buffer.update_priority(&rows, &priorities).unwrap(), 50);
}

fn shares(masses: impl Iterator<Item = (i64, f64)>) -> BTreeMap<i64, f64> {
    let masses: BTreeMap<i64, f64> = masses.collect();
    let total: f64 = masses.values().sum();
    masses
        .into_iter()
        .map(|(row, mass)| (row, mass / total))
        .collect()
}

#[test]
fn priorities_are_probabilities() {
    let sampler = PrioritizedSampler::new(ALPHA, 1.0).eps(0.01);
    let buffer = buffer(sampler, &trajectories(&LENS));
    prioritize(&buffer);
    let mut found = BTreeMap::new();
    let mut weighted = vec![0.0; 50];
    for _ in 0..1000 {
        let batch = buffer.sample(50).unwrap();
        let weights = batch.as_slice::<f32>("priority_weight").unwrap();
        for (row, &weight) in index(&batch).into_iter().zip(weights) {
            weighted[row as usize] += f64::from(weight);
        }
        count(index(&batch), &mut found);
    }
    check(&found, &shares((0..).zip(masses())));
    // With beta = 1, weights make up for it: every row weighs the same. Five standard deviations of
    // the rarest row.
    let least = masses().into_iter().fold(f64::INFINITY, f64::min);
    let expected = 50_000.0 * least / masses().iter().sum::<f64>();
    for weight in weighted {
        assert!(
            (weight - expected).abs() < 5.0 * expected.sqrt(),
            "{weight} for {expected}"
        );
    }
}

#[test]
fn prioritized_slices_begin_where_priorities_say() {
    let slices = SliceSampler::slice_len(4);
    let sampler = PrioritizedSliceSampler::new(slices, ALPHA, 0.5).eps(0.01);
    let buffer = buffer(sampler, &trajectories(&LENS));
    prioritize(&buffer);
    // Known by the stamps, not by what the sampler thinks.
    let rows: Vec<i64> = (0..50).collect();
    let held = stamps(&buffer.get(&rows).unwrap());
    let starts = of_starts(&LENS, 4);
    let possible = (0..50usize).filter(|&row| starts.contains_key(&held[row]));
    let expected = shares(possible.map(|row| (row as i64, masses()[row])));
    let mut found = BTreeMap::new();
    for _ in 0..1000 {
        let rows = index(&buffer.sample(128).unwrap());
        count(rows.into_iter().step_by(4), &mut found);
    }
    check(&found, &expected);
}
