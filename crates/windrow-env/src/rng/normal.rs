//! NumPy's draws of the standard normal distribution.
//!
//! Source: G. Marsaglia and W. W. Tsang, "The ziggurat method for generating random variables"
//! (2000), with 256 layers and 52 bits as in NumPy; its layers are computed here, each from the one
//! below.

use std::sync::LazyLock;

use super::NumpyRng;

/// Where the tail begins, and the area of each layer, the tail's included.
const TAIL: f64 = 3.654_152_885_361_009;
const AREA: f64 = 0.004_928_673_233_974_652;
const LAYERS: usize = 256;
/// Numbers that are drawn within a layer.
const STEPS: f64 = (1u64 << 52) as f64;

/// Where NumPy's table has the number above the nearest one, from which those of the layers above
/// follow.
const ROUNDED_UP: usize = 38;

struct Ziggurat {
    /// Below it, a draw of the layer lies under the curve.
    inside: [u64; LAYERS],
    /// What a draw is multiplied with.
    width: [f64; LAYERS],
    /// The curve at the outer end of the layer.
    height: [f64; LAYERS],
}

static ZIGGURAT: LazyLock<Ziggurat> = LazyLock::new(Ziggurat::new);

impl Ziggurat {
    fn new() -> Self {
        let curve = |x: f64| (-0.5 * x * x).exp();
        let mut layers = Self {
            inside: [0; LAYERS],
            width: [0.0; LAYERS],
            height: [0.0; LAYERS],
        };
        let last = LAYERS - 1;
        let mut outer = TAIL;
        layers.width[last] = outer / STEPS;
        layers.height[last] = curve(outer);
        // The lowest layer has the tail beside it.
        layers.inside[0] = (outer * curve(outer) / AREA * STEPS).round_ties_even() as u64;
        layers.width[0] = AREA / curve(outer) / STEPS;
        layers.height[0] = 1.0;
        for layer in (1..last).rev() {
            let inner = (-2.0 * (AREA / outer + layers.height[layer + 1]).ln()).sqrt();
            layers.inside[layer + 1] = (inner / outer * STEPS).round_ties_even() as u64;
            layers.width[layer] = inner / STEPS;
            layers.height[layer] = curve(inner);
            if layer == ROUNDED_UP {
                layers.height[layer] = layers.height[layer].next_up();
            }
            outer = inner;
        }
        layers
    }
}

/// The next number.
pub(super) fn draw(rng: &mut NumpyRng) -> f64 {
    let layers = &*ZIGGURAT;
    loop {
        let bits = rng.next_u64();
        let layer = (bits & 0xff) as usize;
        let is_negative = bits >> 8 & 1 == 1;
        let step = bits >> 9 & ((1 << 52) - 1);
        let distance = step as f64 * layers.width[layer];
        let x = if is_negative { -distance } else { distance };
        if step < layers.inside[layer] {
            return x;
        }
        if layer == 0 {
            return tail(rng, step >> 8 & 1 == 1);
        }
        let (top, bottom) = (layers.height[layer - 1], layers.height[layer]);
        if (top - bottom) * rng.random() + bottom < (-0.5 * x * x).exp() {
            return x;
        }
    }
}

/// A number beyond [`TAIL`].
fn tail(rng: &mut NumpyRng, is_negative: bool) -> f64 {
    loop {
        let beyond = -(1.0 / TAIL) * (-rng.random()).ln_1p();
        let height = -(-rng.random()).ln_1p();
        if height + height > beyond * beyond {
            let x = TAIL + beyond;
            return if is_negative { -x } else { x };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of NumPy 2.4.6: the seed, a million numbers `standard_normal(1_000_000)` as
    /// `sum of bits * 6364136223846793005^k`, the largest, and `random_raw()` after them.
    const PRINTED: [(u64, u64, f64, u64); 3] = [
        (0, 0xcf879107435230f2, 4.731957688635529, 0x233c0c47ab802eef),
        (1, 0xe46fecd698e8151a, 5.040434135971221, 0x8b4e46aa83d9332b),
        (
            42,
            0x960864bd01d9c2f9,
            5.0072352319089966,
            0xe98de1a0c32899f3,
        ),
    ];

    #[test]
    fn a_million_numbers_are_those_of_numpy() {
        for (seed, bits, largest, raw) in PRINTED {
            let mut rng = NumpyRng::new(seed);
            let (mut hash, mut max) = (0u64, 0f64);
            for _ in 0..1_000_000 {
                let x = rng.standard_normal();
                hash = hash
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(x.to_bits());
                max = max.max(x.abs());
            }
            assert_eq!(
                (hash, max, rng.next_u64()),
                (bits, largest, raw),
                "seed {seed}"
            );
        }
    }
}
