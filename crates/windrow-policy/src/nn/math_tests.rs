use pulp::{Arch, Simd, WithSimd};

use super::*;

#[derive(Clone, Copy, Debug)]
enum Function {
    Tanh,
    Exp,
    ExpM1,
    Sigmoid,
    Silu,
    Gelu,
    GeluTanh,
    Elu,
    Relu,
}

use Function::*;

struct Apply<'a>(Function, &'a mut [f32]);

impl WithSimd for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for x in S::as_mut_simd_f32s(self.1).0 {
            *x = match self.0 {
                Tanh => tanh(simd, *x),
                Exp => exp(simd, *x),
                ExpM1 => exp_m1(simd, *x),
                Sigmoid => sigmoid(simd, *x),
                Silu => silu(simd, *x),
                Gelu => gelu(simd, *x),
                GeluTanh => gelu_tanh(simd, *x),
                Elu => elu(simd, *x, 1.0),
                Relu => relu(simd, *x),
            };
        }
    }
}

fn apply(function: Function, x: f32) -> f32 {
    let mut values = [x; 16];
    Arch::new().dispatch(Apply(function, &mut values));
    assert!(values.iter().all(|y| y.to_bits() == values[0].to_bits()));
    values[0]
}

/// Numbers of all magnitudes from `low` to `high`.
fn grid(low: f32, high: f32) -> Vec<f32> {
    let even = (0..400_000).map(|i| low + (high - low) * i as f32 / 400_000.0);
    let tiny = (-300..100).flat_map(|e| [1.0_f32, -1.0].map(|s| s * 1.2_f32.powi(e)));
    let mut all: Vec<f32> = even
        .chain(tiny)
        .filter(|x| (low..=high).contains(x))
        .collect();
    all.resize(all.len().next_multiple_of(16), low);
    all
}

/// Largest error of `function` between `low` and `high`, divided by `scale(exact result)`.
fn error(
    function: Function,
    (low, high): (f32, f32),
    exact: impl Fn(f64) -> f64,
    scale: impl Fn(f64) -> f64,
) -> f64 {
    let x = grid(low, high);
    let mut y = x.clone();
    Arch::new().dispatch(Apply(function, &mut y));
    let errors = x.iter().zip(&y).map(|(&x, &y)| {
        let exact = exact(f64::from(x));
        (f64::from(y) - exact).abs() / scale(exact)
    });
    let worst = errors.fold(0.0, f64::max);
    println!("{function:?} [{low}, {high}]: {worst:.2e}");
    worst
}

/// Relative to the result, but for results smaller than `f32`'s smallest normal number.
fn relative(exact: f64) -> f64 {
    exact.abs().max(1.2e-38)
}

#[test]
fn errors_are_within_the_stated_bounds() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    assert!(error(Tanh, (-100.0, 100.0), f64::tanh, |_| 1.0) < 3e-7);
    assert!(error(Tanh, (-1.0, 1.0), f64::tanh, relative) < 3e-7);
    assert!(error(Exp, (-86.64, 88.722), f64::exp, relative) < 1e-7);
    assert!(error(ExpM1, (-100.0, 88.3), f64::exp_m1, relative) < 2e-7);
    assert!(error(Sigmoid, (-87.3, 100.0), sigmoid, relative) < 2e-7);
    assert!(error(Silu, (-87.3, 100.0), |x| x * sigmoid(x), relative) < 2e-7);
    let elu = |x: f64| if x > 0.0 { x } else { x.exp_m1() };
    assert!(error(Elu, (-100.0, 100.0), elu, relative) < 2e-7);
    let gelu_tanh = |x: f64| {
        let inner = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
        x * sigmoid(inner)
    };
    assert!(error(GeluTanh, (-8.0, 100.0), gelu_tanh, relative) < 6e-6);
    assert!(error(GeluTanh, (-3.0, 100.0), gelu_tanh, relative) < 1e-6);
    assert!(error(Relu, (-100.0, 100.0), |x| x.max(0.0), |_| 1.0) == 0.0);
}

/// `x Φ(x)` by the continued fraction of the complementary error function, or by its series.
fn exact_gelu(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    let pi = std::f64::consts::PI;
    let upper = if z > 2.5 {
        let fraction = (1..200).rev().fold(z, |f, k| z + f64::from(k) / 2.0 / f);
        (-z * z).exp() / (fraction * pi.sqrt())
    } else {
        let (mut term, mut sum) = (z, z);
        for n in 1..100 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        1.0 - sum * 2.0 / pi.sqrt()
    };
    if x > 0.0 {
        x - x * 0.5 * upper
    } else {
        x * 0.5 * upper
    }
}

#[test]
fn gelu_is_within_its_bound() {
    assert!(error(Gelu, (-13.0, 100.0), exact_gelu, relative) < 1e-6);
    assert!(error(Gelu, (-1000.0, -13.0), exact_gelu, |_| 1.0) < 1e-36);
}

#[test]
fn limits_and_nan() {
    let inf = f32::INFINITY;
    let at = |f| [apply(f, -inf), apply(f, inf)];
    assert_eq!(at(Tanh).map(|y| (y * 1e6).round() / 1e6), [-1.0, 1.0]);
    assert_eq!(at(Sigmoid), [0.0, 1.0].map(|y: f32| y.max(at(Sigmoid)[0])));
    assert_eq!(at(Relu), [0.0, inf]);
    assert_eq!(at(Elu), [-1.0, inf]);
    assert_eq!(apply(Exp, -inf), 0.0);
    assert_eq!(apply(Exp, 0.0), 1.0);
    assert!(apply(Exp, 88.722_83).is_finite() && apply(Exp, 88.722_84) == inf);
    for large in [1000.0, 1e36, f32::MAX] {
        assert_eq!(apply(Exp, large), inf);
        for function in [Sigmoid, Silu, Gelu, GeluTanh, Exp] {
            assert_eq!(apply(function, -large), 0.0, "{function:?} of -{large}");
        }
        for function in [Silu, Gelu, GeluTanh, Elu, Relu] {
            assert_eq!(apply(function, large), large, "{function:?}");
        }
    }
    for function in [Tanh, Exp, ExpM1, Sigmoid, Silu, Gelu, GeluTanh, Elu, Relu] {
        assert!(apply(function, f32::NAN).is_nan(), "{function:?}");
        assert!(apply(function, -1000.0).is_finite(), "{function:?}");
    }
    for function in [Tanh, ExpM1, Silu, Gelu, GeluTanh, Elu, Relu] {
        assert_eq!(apply(function, 0.0), 0.0, "{function:?}");
    }
}
