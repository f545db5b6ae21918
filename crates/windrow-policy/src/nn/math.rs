//! Transcendental functions on whole vector registers, without table or branch.
//!
//! The bounds given were measured over all of each function's range against `f64` arithmetic, on a
//! machine with fused multiply-add. NaN gives NaN.

use pulp::Simd;

/// 1.5 * 2^23: adding it rounds to the nearest integer, which then stands in the low bits of the
/// mantissa.
const ROUND: f32 = 12_582_912.0;
/// Exponents below give numbers too small for `f32`'s full precision, those above infinity.
const EXP_MIN: f32 = -86.64;
const EXP_MAX: f32 = 89.0;
/// ln 2 in two parts, the first with zeros at its end, so that its multiples are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `c[0] + x c[1] + x² c[2] + …` by Horner's rule.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(simd: S, x: S::f32s, c: [f32; N]) -> S::f32s {
    let mut sum = simd.splat_f32s(c[N - 1]);
    for i in (0..N - 1).rev() {
        sum = simd.mul_add_e_f32s(sum, x, simd.splat_f32s(c[i]));
    }
    sum
}

/// `x` between two bounds; NaN stays, which `min` and `max` of some instruction sets would not
/// leave.
#[inline(always)]
fn clamp<S: Simd>(simd: S, x: S::f32s, low: f32, high: f32) -> S::f32s {
    let raised = simd.max_f32s(simd.splat_f32s(low), x);
    let clamped = simd.min_f32s(simd.splat_f32s(high), raised);
    // Compared beside these, not between them: a comparison takes longer than both.
    simd.select_f32s(simd.equal_f32s(x, x), clamped, x)
}

/// Hyperbolic tangent; absolute error at most 3e-7.
///
/// An odd polynomial over an even one of degrees 13 and 6; beyond ±7.9 the result differs from ±1
/// by no more than the error.
///
/// Source: the coefficients are those published with the fast tanh of Eigen and XLA.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let x = clamp(simd, x, -7.905_311, 7.905_311);
    let y = simd.mul_f32s(x, x);
    let p = polynomial(
        simd,
        y,
        [
            4.893_524_6e-3,
            6.372_619_3e-4,
            1.485_722_4e-5,
            5.122_297_1e-8,
            -8.604_672e-11,
            2.000_188e-13,
            -2.760_768_5e-16,
        ],
    );
    let q = polynomial(
        simd,
        y,
        [4.893_525e-3, 2.268_434_6e-3, 1.185_347_1e-4, 1.198_258_4e-6],
    );
    simd.div_f32s(simd.mul_f32s(x, p), q)
}

/// `n`, as the bits of an exponent, and `exp(r) - 1` with `x = n ln 2 + r` and `|r| <= ln 2 / 2`.
///
/// Source: the polynomial is a minimax fit of this project (relative error 1.3e-8 of `exp(r) - 1`).
#[inline(always)]
fn exp_parts<S: Simd>(simd: S, x: S::f32s) -> (S::u32s, S::f32s) {
    let round = simd.splat_f32s(ROUND);
    let shifted = simd.mul_add_e_f32s(x, simd.splat_f32s(std::f32::consts::LOG2_E), round);
    let n = simd.sub_f32s(shifted, round);
    let r = simd.mul_add_e_f32s(n, simd.splat_f32s(-LN_2_HIGH), x);
    let r = simd.mul_add_e_f32s(n, simd.splat_f32s(-LN_2_LOW), r);
    let p = polynomial(
        simd,
        r,
        [
            0.499_999_97,
            0.166_665_43,
            4.166_72e-2,
            8.366_548e-3,
            1.388_251_7e-3,
        ],
    );
    let tail = simd.mul_add_e_f32s(simd.mul_f32s(r, r), p, r);
    let bits = simd.transmute_u32s_f32s(shifted);
    (simd.wrapping_dyn_shl_u32s(bits, simd.splat_u32s(23)), tail)
}

/// Exponential function; relative error at most 1e-7. Infinite where the result would be above the
/// largest `f32`, zero below -86.64, where it is 2e-38 and half of it would not be a normal number.
///
/// Half of the result is computed, then doubled, since `2^128` is no `f32` though results need it.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let (exponent, tail) = exp_parts(simd, clamp(simd, x, EXP_MIN, EXP_MAX));
    let half = simd.add_u32s(exponent, simd.splat_u32s(0.5f32.to_bits()));
    let half = simd.transmute_f32s_u32s(half);
    let e = simd.mul_add_e_f32s(half, tail, half);
    let tiny = simd.less_than_f32s(x, simd.splat_f32s(EXP_MIN));
    simd.select_f32s(tiny, simd.splat_f32s(0.0), simd.add_f32s(e, e))
}

/// `exp(x) - 1`; relative error at most 2e-7 up to `x = 88.3`, the result stays there beyond it.
#[inline(always)]
pub(crate) fn exp_m1<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let (exponent, tail) = exp_parts(simd, clamp(simd, x, EXP_MIN, 88.37));
    let scale = simd.add_u32s(exponent, simd.splat_u32s(1f32.to_bits()));
    let scale = simd.transmute_f32s_u32s(scale);
    let less = simd.sub_f32s(scale, simd.splat_f32s(1.0));
    simd.mul_add_e_f32s(scale, tail, less)
}

/// `1 / (1 + exp(-x))`; relative error at most 2e-7 for `x > -87`, nothing below -88.72.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let e = exp(simd, simd.neg_f32s(x));
    simd.div_f32s(one, simd.add_f32s(one, e))
}

/// `x sigmoid(x)`; relative error at most 2e-7 for `x > -87`, nothing below -88.72.
#[inline(always)]
pub(crate) fn silu<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let e = exp(simd, simd.neg_f32s(x));
    simd.div_f32s(x, simd.add_f32s(one, e))
}

/// `x` below zero scaled exponentially: `alpha (exp(x) - 1)`; relative error at most 2e-7 (with
/// `alpha` 1).
#[inline(always)]
pub(crate) fn elu<S: Simd>(simd: S, x: S::f32s, alpha: f32) -> S::f32s {
    let below = simd.mul_f32s(simd.splat_f32s(alpha), exp_m1(simd, x));
    let positive = simd.greater_than_f32s(x, simd.splat_f32s(0.0));
    simd.select_f32s(positive, x, below)
}

/// `max(x, 0)`.
#[inline(always)]
pub(crate) fn relu<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let zero = simd.splat_f32s(0.0);
    simd.select_f32s(simd.less_than_f32s(x, zero), zero, x)
}

/// `x Φ(x)` with the distribution function of the normal distribution; error at most 1e-6 of
/// `|x Φ(x)|` down to `x = -13`, where it is 1e-37.
///
/// The smaller tail is `exp(-x²/2)` times a polynomial in `1 / (1 + 0.4 z)`, `z = |x| / √2`, so
/// that nothing cancels.
///
/// Source: the form is that of W. J. Cody, "Rational Chebyshev approximations for the error
/// function", 1969; the polynomial is a minimax fit of this project (relative error 6.2e-8 of the
/// scaled complementary error function).
#[inline(always)]
pub(crate) fn gelu<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let z = simd.mul_f32s(
        simd.abs_f32s(x),
        simd.splat_f32s(std::f32::consts::FRAC_1_SQRT_2),
    );
    let t = simd.div_f32s(one, simd.mul_add_e_f32s(z, simd.splat_f32s(0.4), one));
    let p = polynomial(
        simd,
        t,
        [
            0.225_634_23,
            0.226_443_11,
            0.201_887_62,
            0.193_393_11,
            7.975_668e-2,
            8.796_412e-2,
            8.398_741e-2,
            -0.140_319_27,
            4.125_303_7e-2,
        ],
    );
    let e = exp_of_square(simd, x);
    let half_t = simd.mul_f32s(t, simd.splat_f32s(0.5));
    let tail = simd.mul_f32s(simd.mul_f32s(half_t, p), e);
    let small = simd.mul_f32s(x, tail);
    let positive = simd.greater_than_f32s(x, simd.splat_f32s(0.0));
    simd.select_f32s(positive, simd.sub_f32s(x, small), small)
}

/// `exp(-x²/2)`, with what the square loses by rounding put back.
#[inline(always)]
fn exp_of_square<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    // Far out, where the result is 0, the square and what it loses would be infinite and their sum
    // not a number.
    let x = clamp(simd, x, -20.0, 20.0);
    let h = simd.mul_f32s(x, simd.splat_f32s(-0.5));
    let square = simd.mul_f32s(h, x);
    let lost = simd.mul_add_e_f32s(h, x, simd.neg_f32s(square));
    let e = exp(simd, square);
    simd.mul_add_e_f32s(e, lost, e)
}

/// GELU with `Φ(x)` replaced by `(1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`, which is a sigmoid of
/// twice the same.
///
/// Error at most 1e-6 of the result for `x > -3` and 6e-6 for `x > -8`: the rounding of the
/// argument, magnified by the exponential.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let twice = 2.0 * 0.797_884_6;
    let square = simd.mul_f32s(x, x);
    let inner = simd.mul_add_e_f32s(
        square,
        simd.splat_f32s(twice * 0.044_715),
        simd.splat_f32s(twice),
    );
    let one = simd.splat_f32s(1.0);
    let e = exp(simd, simd.neg_f32s(simd.mul_f32s(x, inner)));
    simd.div_f32s(x, simd.add_f32s(one, e))
}

#[cfg(test)]
#[path = "math_tests.rs"]
mod tests;
