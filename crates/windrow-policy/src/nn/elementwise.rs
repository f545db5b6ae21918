use pulp::Simd;
use serde::{Deserialize, Serialize};

use super::{Activation, math};

/// An element-wise function of one value in a [`Graph`](super::Graph); named as PyTorch names it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Function {
    /// An activation that PyTorch has as a module.
    Activation(Activation),
    /// `|x|`.
    Abs,
    /// `-x`.
    Neg,
    /// -1, 0 or 1.
    Sign,
    /// The exponential.
    Exp,
    /// `exp(x) - 1`.
    Expm1,
    /// The natural logarithm.
    Log,
    /// `ln(1 + x)`.
    Log1p,
    /// The square root.
    Sqrt,
    /// `1 / √x`.
    Rsqrt,
    /// `1 / x`.
    Reciprocal,
    /// `x²`.
    Square,
    /// The largest integer that is not above `x`.
    Floor,
    /// The smallest integer that is not below `x`.
    Ceil,
    /// The nearest integer; the even one of two.
    Round,
    /// `x` without its fraction.
    Trunc,
    /// The sine.
    Sin,
    /// The cosine.
    Cos,
    /// The error function.
    Erf,
    /// The inverse of the error function.
    Erfinv,
    /// The logarithm of the absolute value of the gamma function.
    Lgamma,
    /// The derivative of the logarithm of the gamma function.
    Digamma,
    /// 1 where `x` is 0, otherwise 0.
    Not,
    /// 1 where `x` is not a number, otherwise 0.
    Isnan,
}

impl Function {
    /// Applies the function to every element; the length of `values` is a multiple of the lanes.
    #[inline(always)]
    pub(crate) fn apply<S: Simd>(self, simd: S, values: &mut [f32]) {
        match self {
            Self::Activation(activation) => activation.apply(simd, values),
            Self::Exp => {
                for x in S::as_mut_simd_f32s(values).0 {
                    *x = math::exp(simd, *x);
                }
            }
            Self::Abs => each(values, f32::abs),
            Self::Neg => each(values, |x| -x),
            Self::Sign => each(values, |x| if x == 0.0 { 0.0 } else { x.signum() }),
            Self::Expm1 => each(values, f32::exp_m1),
            Self::Log => each(values, f32::ln),
            Self::Log1p => each(values, f32::ln_1p),
            Self::Sqrt => each(values, f32::sqrt),
            Self::Rsqrt => each(values, |x| 1.0 / x.sqrt()),
            Self::Reciprocal => each(values, |x| 1.0 / x),
            Self::Square => each(values, |x| x * x),
            Self::Floor => each(values, f32::floor),
            Self::Ceil => each(values, f32::ceil),
            Self::Round => each(values, f32::round_ties_even),
            Self::Trunc => each(values, f32::trunc),
            Self::Sin => each(values, f32::sin),
            Self::Cos => each(values, f32::cos),
            Self::Erf => each(values, |x| erf(f64::from(x)) as f32),
            Self::Erfinv => each(values, erfinv),
            Self::Lgamma => each(values, |x| lgamma(f64::from(x)) as f32),
            Self::Digamma => each(values, |x| digamma(f64::from(x)) as f32),
            Self::Not => each(values, |x| f32::from(x == 0.0)),
            Self::Isnan => each(values, |x| f32::from(x.is_nan())),
        }
    }
}

#[inline(always)]
pub(super) fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
    for x in values {
        *x = f(*x);
    }
}

/// The error function, from its Taylor series; beyond ±4 it differs from ±1 by less than half of
/// the last bit of an `f32`.
fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 4.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..70 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

/// The inverse of the error function: a closed approximation, made exact by Newton's method.
///
/// Source: the approximation is that of S. Winitzki, "A handy approximation for the error function
/// and its inverse", 2008.
fn erfinv(y: f32) -> f32 {
    let y = f64::from(y);
    if y.abs() >= 1.0 || y.is_nan() {
        return if y.abs() == 1.0 {
            (y * f64::INFINITY) as f32
        } else {
            f32::NAN
        };
    }
    let a = 0.147;
    let log = (-y * y).ln_1p();
    let b = 2.0 / (std::f64::consts::PI * a) + 0.5 * log;
    let mut x = ((b * b - log / a).sqrt() - b).sqrt().copysign(y);
    for _ in 0..3 {
        x -= (erf(x) - y) / (std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp());
    }
    x as f32
}

/// From here on, the asymptotic series of the gamma function are exact in `f64`.
const FAR: f64 = 12.0;

/// The logarithm of the absolute value of the gamma function: Stirling's series, after the
/// recurrence has led far enough, and the reflection below zero.
fn lgamma(x: f64) -> f64 {
    if x.is_infinite() {
        return f64::INFINITY;
    }
    if x <= 0.0 {
        let sine = (std::f64::consts::PI * (x - x.round())).sin().abs();
        return (std::f64::consts::PI / sine).ln() - lgamma(1.0 - x);
    }
    let (mut x, mut product) = (x, 1.0);
    while x < FAR {
        product *= x;
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    let series = (1.0 / 12.0 - y * (1.0 / 360.0 - y * (1.0 / 1260.0 - y / 1680.0))) / x;
    let half_log = 0.5 * (2.0 * std::f64::consts::PI).ln();
    (x - 0.5) * x.ln() - x + half_log + series - product.ln()
}

/// The derivative of [`lgamma`], in the same way; infinite at 0 and not a number at the other
/// poles, as in PyTorch.
fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return -f64::INFINITY.copysign(x);
    }
    if x < 0.0 {
        let pi = std::f64::consts::PI;
        let fraction = x - x.trunc();
        return match fraction == 0.0 {
            true => f64::NAN,
            false => digamma(1.0 - x) - pi / (pi * fraction).tan(),
        };
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < FAR {
        sum -= 1.0 / x;
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    let series = y * (1.0 / 12.0 - y * (1.0 / 120.0 - y * (1.0 / 252.0 - y * (1.0 / 240.0))));
    sum + x.ln() - 0.5 / x - series
}

/// A function of two values in a [`Graph`](super::Graph), element by element. Comparisons give 1
/// and 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Zip {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
    /// The larger one; NaN where one of them is.
    Max,
    /// The smaller one; NaN where one of them is.
    Min,
    /// `a` to the power of `b`.
    Pow,
    /// The remainder of `a` divided by `b`, with the sign of `b`; exact.
    Remainder,
    /// `a ln(b)`; 0 where `a` is 0, unless `b` is not a number.
    Xlogy,
    /// `a == b`.
    Eq,
    /// `a != b`.
    Ne,
    /// `a < b`.
    Lt,
    /// `a <= b`.
    Le,
    /// `a > b`.
    Gt,
    /// `a >= b`.
    Ge,
    /// Both differ from 0.
    And,
    /// One of them differs from 0.
    Or,
}

impl Zip {
    /// `out[i] = f(a[i], b[i])`.
    #[inline(always)]
    pub(crate) fn apply(self, a: &[f32], b: &[f32], out: &mut [f32]) {
        match self {
            Self::Add => pairs(a, b, out, |a, b| a + b),
            Self::Sub => pairs(a, b, out, |a, b| a - b),
            Self::Mul => pairs(a, b, out, |a, b| a * b),
            Self::Div => pairs(a, b, out, |a, b| a / b),
            Self::Max => pairs(a, b, out, |a, b| if a.is_nan() | (a > b) { a } else { b }),
            Self::Min => pairs(a, b, out, |a, b| if a.is_nan() | (a < b) { a } else { b }),
            Self::Pow => pairs(a, b, out, |a, b| if b == 2.0 { a * a } else { a.powf(b) }),
            Self::Remainder => pairs(a, b, out, remainder),
            Self::Xlogy => pairs(a, b, out, xlogy),
            Self::Eq => pairs(a, b, out, |a, b| f32::from(a == b)),
            Self::Ne => pairs(a, b, out, |a, b| f32::from(a != b)),
            Self::Lt => pairs(a, b, out, |a, b| f32::from(a < b)),
            Self::Le => pairs(a, b, out, |a, b| f32::from(a <= b)),
            Self::Gt => pairs(a, b, out, |a, b| f32::from(a > b)),
            Self::Ge => pairs(a, b, out, |a, b| f32::from(a >= b)),
            Self::And => pairs(a, b, out, |a, b| f32::from((a != 0.0) & (b != 0.0))),
            Self::Or => pairs(a, b, out, |a, b| f32::from((a != 0.0) | (b != 0.0))),
        }
    }
}

/// As [`Zip::Remainder`].
fn remainder(a: f32, b: f32) -> f32 {
    let rest = a % b;
    if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
        rest + b
    } else {
        rest
    }
}

/// As [`Zip::Xlogy`].
fn xlogy(a: f32, b: f32) -> f32 {
    if a == 0.0 && !b.is_nan() {
        0.0
    } else {
        a * b.ln()
    }
}

#[inline(always)]
fn pairs(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    for (out, (&a, &b)) in out.iter_mut().zip(a.iter().zip(b)) {
        *out = f(a, b);
    }
}

/// How a [`Graph`](super::Graph) reduces a run of numbers to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The largest number.
    Max,
    /// The smallest number.
    Min,
    /// Where the largest number stands first.
    Argmax,
    /// Where the smallest number stands first.
    Argmin,
    /// `ln Σ exp(x)`.
    Logsumexp,
}

impl Reduction {
    #[inline(always)]
    pub(crate) fn apply(self, run: &[f32]) -> f32 {
        let fold = |f: fn(f32, f32) -> f32| run.iter().copied().reduce(f).unwrap_or(0.0);
        match self {
            Self::Sum => super::norm::sum(run, |x| x),
            Self::Prod => run.iter().product(),
            Self::Max => fold(|a, b| if a.is_nan() | (a > b) { a } else { b }),
            Self::Min => fold(|a, b| if a.is_nan() | (a < b) { a } else { b }),
            Self::Argmax => place(run, |x, best| x > best),
            Self::Argmin => place(run, |x, best| x < best),
            Self::Logsumexp => {
                let top = Self::Max.apply(run);
                match top.is_infinite() {
                    true => top,
                    false => top + super::norm::sum(run, |x| (x - top).exp()).ln(),
                }
            }
        }
    }
}

/// The first place that no other beats; NaN where a number is none, since it has no place.
#[inline(always)]
fn place(run: &[f32], beats: impl Fn(f32, f32) -> bool) -> f32 {
    let mut best = 0;
    for (i, &x) in run.iter().enumerate() {
        if x.is_nan() {
            return x;
        }
        if beats(x, run[best]) {
            best = i;
        }
    }
    best as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_and_its_inverse_undo_each_other() {
        assert!((erf(0.5) - 0.520_499_877_813_046_5).abs() < 1e-14);
        assert!((erf(2.0) - 0.995_322_265_018_952_7).abs() < 1e-12);
        for i in -99..100 {
            let y = i as f32 * 0.01;
            assert!(
                (erf(f64::from(erfinv(y))) - f64::from(y)).abs() < 1e-6,
                "{y}"
            );
        }
        assert_eq!(erfinv(1.0), f32::INFINITY);
        assert!(erfinv(1.5).is_nan());
    }

    #[test]
    fn the_gamma_function_obeys_its_recurrences() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-11 * a.abs().max(1.0);
        // The logarithm of 9!, half that of pi, and Euler's constant.
        assert!(near(lgamma(10.0), 12.801_827_480_081_469));
        assert!(near(lgamma(0.5), 0.572_364_942_924_700_1));
        assert!(near(digamma(1.0), -0.577_215_664_901_532_9));
        for x in [-3.7, -0.2, 1e-3, 0.4, 1.0, 2.0, 7.9, 12.1, 1e4] {
            assert!(near(lgamma(x + 1.0), lgamma(x) + f64::abs(x).ln()), "{x}");
            assert!(near(digamma(x + 1.0), digamma(x) + 1.0 / x), "{x}");
        }
        assert_eq!(lgamma(0.0), f64::INFINITY);
        assert_eq!(lgamma(-2.0), f64::INFINITY);
        assert_eq!(digamma(0.0), f64::NEG_INFINITY);
        assert!(digamma(-2.0).is_nan() && lgamma(f64::NAN).is_nan());
    }

    #[test]
    fn remainders_are_exact_and_have_the_sign_of_the_divisor() {
        assert_eq!(remainder(-7.0, 3.0), 2.0);
        assert_eq!(remainder(7.0, -3.0), -2.0);
        assert_eq!(remainder(1e9, 0.7), (1e9_f64 % f64::from(0.7_f32)) as f32);
        assert!(remainder(1.0, 0.0).is_nan());
        assert_eq!(xlogy(0.0, 0.0), 0.0);
        assert!(xlogy(0.0, f32::NAN).is_nan());
    }

    #[test]
    fn reductions_keep_what_is_no_number() {
        let run = [1.0, f32::NAN, 3.0];
        for reduction in [
            Reduction::Max,
            Reduction::Min,
            Reduction::Argmax,
            Reduction::Logsumexp,
        ] {
            assert!(reduction.apply(&run).is_nan(), "{reduction:?}");
        }
        assert_eq!(
            Reduction::Logsumexp.apply(&[f32::NEG_INFINITY; 2]),
            f32::NEG_INFINITY
        );
        assert_eq!(Reduction::Argmax.apply(&[1.0, 3.0, 3.0]), 1.0);
    }
}
