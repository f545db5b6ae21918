use std::hint::black_box;

/// `x**2` as NumPy computes it for a single number: by `libm`'s `pow`, whose last bit now and then
/// is not that of the product.
///
/// `pow` errs by little more than half a unit in the last place, so that it can only differ from
/// the product, the correctly rounded square, where the exact square lies next to the middle
/// between two numbers. Only there it is called: it takes ten times as long.
#[inline(always)]
pub(crate) fn square(x: f64) -> f64 {
    let product = x * x;
    match is_square(x, product) {
        true => product,
        false => by_libm(x),
    }
}

/// The square of `x` by `libm`'s `pow`.
#[inline(always)]
pub(crate) fn by_libm(x: f64) -> f64 {
    // Without the box the compiler makes it a product again.
    x.powf(black_box(2.0))
}

/// Whether `pow` must return `product`, which is that of `x` and `x`.
#[inline(always)]
pub(crate) fn is_square(x: f64, product: f64) -> bool {
    /// Of half a unit: beyond it the middle is near. Implementations stay below 0.52 units of
    /// error, this allows 0.525.
    const NEAR: f64 = 0.95;
    let half_unit = f64::from_bits(product.to_bits() & EXPONENT) * HALF_EPSILON;
    (error_of_square(x, product).abs() < NEAR * half_unit) & (product > SMALL)
}

const EXPONENT: u64 = 0x7ff << 52;
/// Below it the error would lose digits to underflow.
const SMALL: f64 = 1e-250;
const HALF_EPSILON: f64 = f64::EPSILON / 2.0;

/// `x² - product`, but for what lies far below the last place of `product`.
///
/// Source: T. J. Dekker, "A floating-point technique for extending the available precision" (1971).
#[inline(always)]
fn error_of_square(x: f64, product: f64) -> f64 {
    // The upper half of the digits and the lower one, each short enough for exact products.
    let high = f64::from_bits(x.to_bits() & !0x07ff_ffff);
    let low = x - high;
    ((high * high - product) + 2.0 * high * low) + low * low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NumpyRng;

    #[test]
    fn squares_are_those_of_pow() {
        let mut rng = NumpyRng::new(0);
        let mut unlike_products = 0;
        for _ in 0..300_000 {
            let x = rng.uniform(-30.0, 30.0);
            let pow = x.powf(black_box(2.0));
            assert_eq!(square(x).to_bits(), pow.to_bits(), "{x:?}");
            unlike_products += u32::from(pow != x * x);
        }
        println!("pow differs from the product in {unlike_products} of 300000 cases");
    }

    #[test]
    fn extreme_numbers_are_left_to_pow() {
        for x in [0.0, -0.0, 1e-160, 5e-324, 1e200, f64::INFINITY, f64::NAN] {
            assert_eq!(
                square(x).to_bits(),
                x.powf(black_box(2.0)).to_bits(),
                "{x:?}"
            );
        }
    }
}
