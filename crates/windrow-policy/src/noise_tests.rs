//! Statistical tests: with fixed seeds they either always pass or always fail; the significance
//! says how likely a perfect generator would have failed when the seeds were picked.

use super::Noise;

/// Draws of each test.
const N: usize = 1 << 18;

/// Upper 1e-4 quantile of the chi-square distribution with `k` degrees of freedom, by Wilson and
/// Hilferty.
pub(crate) fn chi_square_limit(k: f64) -> f64 {
    let z = 3.719; // 1e-4 of a normal distribution lies above
    let c = 2.0 / (9.0 * k);
    k * (1.0 - c + z * c.sqrt()).powi(3)
}

pub(crate) fn chi_square(counts: &[usize], probabilities: impl Iterator<Item = f64>) -> f64 {
    let n: usize = counts.iter().sum();
    let terms = counts.iter().zip(probabilities).map(|(&count, p)| {
        let expected = n as f64 * p;
        (count as f64 - expected).powi(2) / expected
    });
    terms.sum()
}

fn assert_uniform(name: &str, bins: usize, values: impl Iterator<Item = f64>) {
    let mut counts = vec![0; bins];
    for value in values {
        counts[(value * bins as f64) as usize] += 1;
    }
    let got = chi_square(&counts, std::iter::repeat(1.0 / bins as f64));
    let limit = chi_square_limit(bins as f64 - 1.0);
    assert!(
        got < limit,
        "{name}: chi-square {got:.1} of {bins} bins, limit {limit:.1}"
    );
}

fn correlation(pairs: impl Iterator<Item = (f64, f64)>) -> (f64, usize) {
    let (mut sum, mut n) = (0.0, 0);
    for (x, y) in pairs {
        sum += (x - 0.5) * (y - 0.5) * 12.0;
        n += 1;
    }
    (sum / n as f64, n)
}

/// Of `n` independent pairs the correlation has deviation `1 / √n`; 4.9 of them are left with
/// probability 1e-6.
fn assert_uncorrelated(name: &str, pairs: impl Iterator<Item = (f64, f64)>) {
    let (got, n) = correlation(pairs);
    let limit = 4.9 / (n as f64).sqrt();
    assert!(
        got.abs() < limit,
        "{name}: correlation {got:.2e}, limit {limit:.2e}"
    );
}

#[test]
fn a_key_gives_the_same_numbers_always() {
    let bits: Vec<_> = (0..4).map(|_| Noise::new(1, 2, 3).bits()).collect();
    assert!(bits.iter().all(|&b| b == bits[0]));
    // A change would change every collected batch of a given seed.
    assert_eq!(Noise::new(0, 0, 0).bits(), RECORDED.0);
    assert_eq!(Noise::new(7, 3, 1000).bits(), RECORDED.1);
}

/// Computed with Python's integers from the formula.
const RECORDED: (u64, u64) = (0x63fd_9595_7995_22ed, 0xda34_93b1_2452_d472);

/// Significance 1e-4 each.
#[test]
fn draws_are_uniform_over_frames_environments_seeds_and_within_a_frame() {
    let n = N as u64;
    assert_uniform("frames", 256, (0..n).map(|i| Noise::new(3, 5, i).f64()));
    assert_uniform(
        "environments",
        256,
        (0..n).map(|i| Noise::new(3, i as u32, 5).f64()),
    );
    assert_uniform("seeds", 256, (0..n).map(|i| Noise::new(i, 3, 5).f64()));
    let mut noise = Noise::new(3, 4, 5);
    assert_uniform("one frame", 256, (0..n).map(|_| noise.f64()));
    assert_uniform(
        "f32",
        256,
        (0..n).map(|i| f64::from(Noise::new(9, 5, i).f32())),
    );
    assert_uniform(
        "branches",
        256,
        (0..N).map(|i| Noise::new(9, 5, 1).branch(i).f64()),
    );
    // Single low bits, which weak finalisers leave patterned.
    for bit in [0, 1, 31, 63] {
        let bits = (0..n).map(|i| (Noise::new(1, 0, i).bits() >> bit & 1) as f64 / 2.0);
        assert_uniform("bit", 2, bits);
    }
}

/// Significance 1e-4: pairs of neighbours fill the unit square evenly.
#[test]
fn pairs_of_neighbours_are_uniform() {
    let cell = |x: f64, y: f64| ((x * 32.0).floor() * 32.0 + (y * 32.0).floor()) / 1024.0;
    let n = N as u64;
    let next_env = |i| cell(Noise::new(1, i, 9).f64(), Noise::new(1, i + 1, 9).f64());
    assert_uniform("environments", 1024, (0..N as u32).map(next_env));
    let next_frame = |i| cell(Noise::new(1, 9, i).f64(), Noise::new(1, 9, i + 1).f64());
    assert_uniform("frames", 1024, (0..n).map(next_frame));
    let next_seed = |i| cell(Noise::new(i, 9, 9).f64(), Noise::new(i + 1, 9, 9).f64());
    assert_uniform("seeds", 1024, (0..n).map(next_seed));
    let next_draw = |i| {
        let mut noise = Noise::new(4, 9, i);
        cell(noise.f64(), noise.f64())
    };
    assert_uniform("draws", 1024, (0..n).map(next_draw));
}

/// Significance 1e-6 for each of 121 pairs of keys.
#[test]
fn neighbouring_keys_are_uncorrelated() {
    let at = |env: u32, frame: u64| Noise::new(11, env, frame).f64();
    for env_lag in 0..11_u32 {
        for frame_lag in 0..11_u64 {
            if (env_lag, frame_lag) == (0, 0) {
                continue;
            }
            let pairs = (0..256_u32).flat_map(|env| {
                (0..256_u64)
                    .map(move |frame| (at(env, frame), at(env + env_lag, frame + frame_lag)))
            });
            assert_uncorrelated(&format!("{env_lag}, {frame_lag}"), pairs);
        }
    }
}

#[test]
fn a_frame_never_repeats_another() {
    let mut all: Vec<u64> = (0..64)
        .flat_map(|env| (0..512).map(move |frame| (env, frame)))
        .flat_map(|(env, frame)| {
            let mut noise = Noise::new(0, env, frame);
            [noise.bits(), noise.bits()]
        })
        .collect();
    let n = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), n);
}

/// Significance 1e-4 each.
#[test]
fn integers_are_uniform_below_their_bound() {
    for n in [2_u32, 3, 6, 18, 100] {
        let draws = (0..N as u64).map(|i| Noise::new(2, n, i).below(u64::from(n)) as f64 + 0.5);
        assert_uniform("below", n as usize, draws.map(|x| x / f64::from(n)));
        let draws = (0..N as u64).map(|i| Noise::new(3, n, i).below_u32(n));
        assert_uniform(
            "below_u32",
            n as usize,
            draws.map(|x| (f64::from(x) + 0.5) / f64::from(n)),
        );
    }
    let mut noise = Noise::new(0, 0, 0);
    assert_eq!(
        (noise.below(0), noise.below(1), noise.below_u32(1)),
        (0, 0, 0)
    );
}

/// Significance 1e-6: the first four moments, whose deviations over `n` draws are `√(1/n)`,
/// `√(2/n)`, `√(15/n)` and `√(96/n)`; and the correlation of the same environments at neighbouring
/// frames.
#[test]
fn normal_deviates_have_the_moments_of_a_normal_distribution() {
    let draw = |i| Noise::new(6, 1, i).normal();
    let n = 1 << 20;
    let mut moments = [0.0; 4];
    for i in 0..n {
        let x = draw(i);
        for (k, moment) in moments.iter_mut().enumerate() {
            *moment += x.powi(k as i32 + 1) / n as f64;
        }
    }
    let expected = [(0.0, 1.0_f64), (1.0, 2.0), (0.0, 15.0), (3.0, 96.0)];
    for (k, (got, (mean, variance))) in moments.into_iter().zip(expected).enumerate() {
        let limit = 4.9 * (variance / n as f64).sqrt();
        assert!((got - mean).abs() < limit, "moment {}: {got}", k + 1);
    }
    let products: f64 = (0..n).map(|i| draw(i) * draw(i + 1)).sum();
    assert!((products / n as f64).abs() < 4.9 / (n as f64).sqrt());
}

/// Significance 1e-6: mean 1 and deviation 1.
#[test]
fn exponential_deviates_have_mean_one() {
    let n = 1 << 18;
    let mean = (0..n)
        .map(|i| Noise::new(6, 2, i).exponential())
        .sum::<f64>()
        / n as f64;
    assert!((mean - 1.0).abs() < 4.9 / (n as f64).sqrt(), "{mean}");
}

#[test]
fn distributions_of_rand_distr_draw_from_it() {
    use rand_core::Rng;
    let mut noise = Noise::new(1, 1, 1);
    let mut bytes = [0; 13];
    noise.fill_bytes(&mut bytes);
    let mut again = Noise::new(1, 1, 1);
    assert_eq!(bytes[..8], again.next_u64().to_le_bytes());
    assert_eq!(bytes[8..], again.next_u64().to_le_bytes()[..5]);
    assert_eq!(
        Noise::new(1, 1, 1).next_u32(),
        (Noise::new(1, 1, 1).bits() >> 32) as u32
    );
}
