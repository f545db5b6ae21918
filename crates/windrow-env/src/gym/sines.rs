//! Sine and cosine of many angles at once, with the bits of `libm`.
//!
//! Vector instructions compute both with a dozen digits to spare, and the distance to the number
//! between two neighbours where rounding changes. The GNU library errs little more than half a unit
//! in the last place: what is farther from that number than its error leaves it no choice. The
//! rest, a tenth, is left to the library itself. Other libraries state no such bound, and compute
//! every angle. One angle is computed in the same way where it is [small](small_sin_cos_of).

use pulp::Simd;

use super::columns::each;

/// Largest errors of the GNU library since 2.28 in the two series, in units in the last place, as
/// its source states them. It adds a number of less than 2⁻⁸, rounded two or three times, to one of
/// a table: 3 · 2⁻⁶² at most, where a unit is 2⁻⁵⁵ or more.
const LIBM: [f64; 2] = [0.518, 0.513];
/// More than the largest error of [`sin_cos_of`], in the same units.
const OWN: f64 = 0.01;
/// Distances to the number that was rounded, in the same units, below which both round alike.
const NEAR: [f64; 2] = [1.0 - LIBM[0] - OWN, 1.0 - LIBM[1] - OWN];
/// Angles below it have sines and cosines that [`small_sin_cos_of`] computes.
const SMALL: f64 = 0.25;
/// Its largest errors, in the same units. What is added to the angle is 0.0104 of it at most and
/// was rounded five times. What is taken from 1, where a unit is 2⁻⁵³, is less than 2⁻⁵ and was
/// rounded by 2⁻⁵⁹ at most.
const OWN_SMALL: [f64; 2] = [0.053, 0.017];
/// Below it, the library's sine is a series that errs less.
const TINY: f64 = 0.126;
const LIBM_TINY: f64 = 0.501;
/// As [`OWN_SMALL`], below [`TINY`].
const OWN_TINY: [f64; 2] = [0.014, 0.009];
const NEAR_SMALL: [f64; 2] = [1.0 - LIBM[0] - OWN_SMALL[0], 1.0 - LIBM[1] - OWN_SMALL[1]];
const NEAR_TINY: [f64; 2] = [1.0 - LIBM_TINY - OWN_TINY[0], 1.0 - LIBM[1] - OWN_TINY[1]];
/// Beyond it, the quarter turns have too many digits.
const MAX_ANGLE: f64 = 4096.0;
/// Below it, what is left of an angle has too few digits.
const MIN_REST: f64 = 1e-6;

/// A quarter turn, π/2: two parts of 40 bits, whose multiples are exact, and the rest.
const QUARTER: [f64; 3] = [
    1.570_796_326_794_152_3,
    7.443_547_480_480_255e-13,
    6.368_317_163_510_95e-25,
];
/// Added to a number, leaves its nearest integer in the lowest bits.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0;

const SIXTH: f64 = -1.0 / 6.0;
/// What -1/6 has beyond [`SIXTH`].
const SIXTH_REST: f64 = -9.251_858_538_542_97e-18;
const TWENTY_FOURTH: f64 = 1.0 / 24.0;
/// What 1/24 has beyond [`TWENTY_FOURTH`].
const TWENTY_FOURTH_REST: f64 = 2.312_964_634_635_742_7e-18;

/// Further terms of the two series, from the fifth and the sixth power on.
const SINE: [f64; 7] = [
    1.0 / 120.0,
    -1.0 / 5_040.0,
    1.0 / 362_880.0,
    -1.0 / 39_916_800.0,
    1.0 / 6_227_020_800.0,
    -1.0 / 1_307_674_368_000.0,
    1.0 / 355_687_428_096_000.0,
];
const COSINE: [f64; 7] = [
    -1.0 / 720.0,
    1.0 / 40_320.0,
    -1.0 / 3_628_800.0,
    1.0 / 479_001_600.0,
    -1.0 / 87_178_291_200.0,
    1.0 / 20_922_789_888_000.0,
    -1.0 / 6_402_373_705_728_000.0,
];

/// Sine and cosine of `angle` (radians): what [`f64::sin_cos`] returns.
#[inline(always)]
pub(super) fn sin_cos(angle: f64) -> (f64, f64) {
    if STATES_ERRORS & is_small(angle) {
        let (sine, cosine) = small_sin_cos_of(angle);
        if sine.is_sure & cosine.is_sure {
            return (sine.value, cosine.value);
        }
    }
    angle.sin_cos()
}

/// Whether `angle` is between 0, whose sign [`small_sin_cos_of`] loses, and [`SMALL`].
#[inline(always)]
fn is_small(angle: f64) -> bool {
    angle.abs().to_bits().wrapping_sub(1) < SMALL.to_bits() - 1
}

/// Sines and cosines of `angles` (radians): what [`f64::sin_cos`] returns for each.
#[inline(always)]
pub(super) fn sin_cos_each<S: Simd, const N: usize>(
    _: S,
    angles: &[f64; N],
) -> ([f64; N], [f64; N]) {
    let (mut sines, mut cosines) = ([0.0; N], [0.0; N]);
    if !has_bound::<S>() {
        for ((angle, sine), cosine) in angles.iter().zip(&mut sines).zip(&mut cosines) {
            (*sine, *cosine) = angle.sin_cos();
        }
        return (sines, cosines);
    }
    let mut unsure = [0; N];
    each::<N>(
        #[inline(always)]
        |i| {
            let (sine, cosine) = sin_cos_of(angles[i]);
            (sines[i], cosines[i]) = (sine.value, cosine.value);
            unsure[i] = u8::from(!(sine.is_sure & cosine.is_sure));
        },
    );
    for_each(&unsure, |i| (sines[i], cosines[i]) = angles[i].sin_cos());
    (sines, cosines)
}

/// Cosines of `angles` (radians): what [`f64::cos`] returns for each.
#[inline(always)]
pub(super) fn cos_each<S: Simd, const N: usize>(_: S, angles: &[f64; N]) -> [f64; N] {
    if !has_bound::<S>() {
        return angles.map(f64::cos);
    }
    let (mut cosines, mut unsure) = ([0.0; N], [0; N]);
    each::<N>(
        #[inline(always)]
        |i| {
            let (_, cosine) = sin_cos_of(angles[i]);
            (cosines[i], unsure[i]) = (cosine.value, u8::from(!cosine.is_sure));
        },
    );
    for_each(&unsure, |i| cosines[i] = angles[i].cos());
    cosines
}

/// Whether the library states how much it errs.
const STATES_ERRORS: bool = cfg!(all(target_os = "linux", target_env = "gnu"));

/// Whether the library states how much it errs, and there are vectors, and with them fused
/// multiply-add.
const fn has_bound<S: Simd>() -> bool {
    S::F64_LANES > 1 && STATES_ERRORS
}

/// Calls `f` with the place of each flag that is 1; there are a multiple of eight. Nobody can
/// predict which are: going from one to the next costs one wrong guess.
#[inline(always)]
pub(super) fn for_each<const N: usize>(flags: &[u8; N], mut f: impl FnMut(usize)) {
    const { assert!(N.is_multiple_of(8), "flags are read eight at a time") };
    let (words, _) = flags.as_chunks::<8>();
    let mut first = 0;
    for word in words {
        let mut word = u64::from_le_bytes(*word);
        while word != 0 {
            f(first + word.trailing_zeros() as usize / 8);
            word &= word - 1;
        }
        first += 8;
    }
}

/// A function's value, correctly rounded.
struct Rounded {
    value: f64,
    /// Whether a function that errs by no more than [`LIBM`] must return it, too.
    is_sure: bool,
}

/// Sine and cosine of `angle`.
///
/// Pairs of numbers `(x, x_rest)` stand for sums, after T. J. Dekker, "A floating-point technique
/// for extending the available precision" (1971). Products that a pair takes apart are exact by
/// fused multiply-add.
#[inline(always)]
fn sin_cos_of(angle: f64) -> (Rounded, Rounded) {
    let turned = angle.mul_add(std::f64::consts::FRAC_2_PI, TO_INTEGER);
    let (quarters, count) = (turned - TO_INTEGER, turned.to_bits());
    // The angle within an eighth of a turn of a whole number of quarters.
    let coarse = quarters.mul_add(-QUARTER[0], angle);
    let fine = quarters * QUARTER[1];
    let x = coarse - fine;
    let x_rest = quarters.mul_add(-QUARTER[2], (coarse - x) - fine);
    // Its second power, and the fourth.
    let z = x * x;
    let z_rest = x.mul_add(x, -z) + 2.0 * x * x_rest;
    let w = z * z;
    let w_rest = z.mul_add(z, -w) + 2.0 * z * z_rest;

    // sin x = x + x (-z/6 + w (1/120 - …))
    let (sixth, further) = (SIXTH * z, series(z, SINE));
    let sixth_rest = SIXTH.mul_add(z, -sixth) + (SIXTH * z_rest + SIXTH_REST * z);
    let (bend, bend_rest) = sum(sixth, w * further);
    let bend_rest = bend_rest + (sixth_rest + w_rest * SINE[0]);
    let lower = x * bend;
    let lower_rest = x.mul_add(bend, -lower) + x * bend_rest;
    let (sine, sine_rest) = sum(x, lower);
    let along = x_rest + x_rest * bend;
    let (sine, sine_rest) = sum(sine, sine_rest + (lower_rest + along));

    // cos x = 1 - z/2 + w (1/24 - z (1/720 - …))
    let (half, half_rest) = (0.5 * z, 0.5 * z_rest);
    let (bend, further) = (TWENTY_FOURTH * w, w * z * series(z, COSINE));
    let bend_rest =
        TWENTY_FOURTH.mul_add(w, -bend) + (TWENTY_FOURTH * w_rest + TWENTY_FOURTH_REST * w);
    let (upper, upper_rest) = sum(bend, further);
    let (cosine, cosine_rest) = sum(1.0, -half);
    let rests = (cosine_rest - half_rest) + (upper_rest + bend_rest);
    let (cosine, cosine_rest) = sum(cosine, upper);
    let (cosine, cosine_rest) = sum(cosine, cosine_rest + rests);

    let fits = (angle.abs() < MAX_ANGLE) & (x.abs() > MIN_REST);
    let sine = (sine, fits & is_sure(sine, sine_rest, NEAR[0]));
    let cosine = (cosine, fits & is_sure(cosine, cosine_rest, NEAR[1]));
    let (sine, cosine) = match count & 1 {
        0 => (sine, cosine),
        _ => (cosine, sine),
    };
    let turn = |(value, is_sure): (f64, bool), quarters: u64| Rounded {
        value: f64::from_bits(value.to_bits() ^ ((quarters & 2) << 62)),
        is_sure,
    };
    (turn(sine, count), turn(cosine, count.wrapping_add(1)))
}

/// Sine and cosine of an `angle` of less than [`SMALL`]: what the first terms lose is little enough
/// without pairs of numbers.
#[inline(always)]
fn small_sin_cos_of(angle: f64) -> (Rounded, Rounded) {
    let (x, z) = (angle, angle * angle);
    let w = z * z;
    // sin x = x - x z (1/6 - …)
    let [a, b, c, d, e, ..] = SINE;
    let further = (a + b * z) + (c + d * z + e * w) * w;
    let lower = x * z * (SIXTH + z * further);
    let (sine, sine_rest) = sum(x, lower);
    // cos x = 1 - z/2 + w (1/24 - …)
    let [a, b, c, d, ..] = COSINE;
    let further = (a + b * z) + (c + d * z) * w;
    let (first, first_rest) = sum(1.0, -0.5 * z);
    let (cosine, cosine_rest) = sum(first, first_rest + w * (TWENTY_FOURTH + z * further));
    let near = match x.abs() < TINY {
        true => NEAR_TINY,
        false => NEAR_SMALL,
    };
    let rounded = |value, rest, near| Rounded {
        value,
        is_sure: is_sure(value, rest, near),
    };
    (
        rounded(sine, sine_rest, near[0]),
        rounded(cosine, cosine_rest, near[1]),
    )
}

/// `larger + smaller` and what rounding took from it.
#[inline(always)]
fn sum(larger: f64, smaller: f64) -> (f64, f64) {
    let sum = larger + smaller;
    (sum, smaller - (sum - larger))
}

/// `c₀ + c₁ z + c₂ z² + …`
#[inline(always)]
fn series<const N: usize>(z: f64, coefficients: [f64; N]) -> f64 {
    let mut sum = coefficients[N - 1];
    for i in 1..N {
        sum = sum.mul_add(z, coefficients[N - 1 - i]);
    }
    sum
}

/// Whether `rest`, which rounding took from `rounded`, is less than `near` units in its last place.
/// Less than half a unit would be rounded away again: so `rest` is scaled until `near` is half a
/// unit. Below a power of two units are half as large, which addition knows.
#[inline(always)]
fn is_sure(rounded: f64, rest: f64, near: f64) -> bool {
    rounded + rest * (0.5 / near) == rounded
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, WithSimd};

    use super::*;
    use crate::NumpyRng;

    const WIDTH: usize = 16;

    struct SinCos<'a>(&'a [f64; WIDTH]);

    impl WithSimd for SinCos<'_> {
        type Output = [[f64; WIDTH]; 3];

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
            let (sines, cosines) = sin_cos_each(simd, self.0);
            [sines, cosines, cos_each(simd, self.0)]
        }
    }

    fn assert_as_libm(angles: [f64; WIDTH]) {
        let columns = Arch::new().dispatch(SinCos(&angles));
        for (i, angle) in angles.into_iter().enumerate() {
            let (sine, cosine) = angle.sin_cos();
            let got = columns.map(|column| column[i].to_bits());
            assert_eq!(got, [sine, cosine, cosine].map(f64::to_bits), "{angle:e}");
            let (alone, alone_cosine) = sin_cos(angle);
            assert_eq!(
                [alone, alone_cosine].map(f64::to_bits),
                [sine, cosine].map(f64::to_bits),
                "{angle:e}"
            );
        }
    }

    #[test]
    fn bits_are_those_of_libm_at_any_magnitude() {
        let mut rng = NumpyRng::new(3);
        for largest in [
            1e-300, 1e-9, 1e-3, 0.13, 0.25, 0.8, 3.2, 60.0, 4e3, 1e5, 1e300,
        ] {
            for _ in 0..2_000 {
                assert_as_libm(rng.uniform_array(-largest, largest));
            }
        }
    }

    #[test]
    fn bits_are_those_of_libm_beside_quarter_turns_and_at_the_edges() {
        for quarters in 0..300 {
            let quarter = f64::from(quarters) * std::f64::consts::FRAC_PI_2;
            let near = std::array::from_fn(|i| quarter * (1.0 + (i as f64 - 8.0) * 1e-16));
            assert_as_libm(near);
            assert_as_libm(near.map(|angle| -angle + 1e-6));
        }
        let mut edges = [0.0, -0.0, f64::INFINITY, 1.0, -1.0, 4096.0, 5e-324, 1e-6].repeat(2);
        edges[15] = f64::MAX;
        assert_as_libm(edges.try_into().unwrap());
        for edge in (1..60).map(|power| 0.5_f64.powi(power)).chain([TINY, 1e-6]) {
            assert_as_libm(std::array::from_fn(|i| {
                edge * (1.0 + (i as f64 - 8.0) * 1e-16)
            }));
        }
    }

    #[test]
    fn most_angles_need_no_library() {
        let mut rng = NumpyRng::new(4);
        let sure = (0..10_000).filter(|_| sin_cos_of(rng.uniform(-9.0, 9.0)).0.is_sure);
        let share = sure.count() as f64 / 10_000.0;
        assert!((0.93..0.96).contains(&share), "{share}");
        for (largest, least) in [(0.126, 0.89), (0.25, 0.8)] {
            let sure = (0..10_000).filter(|_| {
                let (sine, cosine) = small_sin_cos_of(rng.uniform(-largest, largest));
                sine.is_sure & cosine.is_sure
            });
            let share = sure.count() as f64 / 10_000.0;
            assert!((least..0.97).contains(&share), "{largest}: {share}");
        }
    }
}
