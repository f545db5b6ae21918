//! Counter-based randomness: a stream of random numbers for every (seed, environment, frame) (ADR
//! 0003).

use std::convert::Infallible;

use rand_core::TryRng;
use rand_distr::{Distribution, Exp1, StandardNormal};

/// Odd and without short patterns of bits: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Positions of an environment's sequence that belong to one frame: 2^20 draws.
const FRAME_BITS: u32 = 20;

/// A stream of random numbers that depends on nothing but a seed, an environment and a frame.
///
/// A generator that is carried along would make an action depend on how many draws came before it,
/// so on the number of workers and on which of them steps an environment. Here every row starts
/// from its own key instead.
///
/// Each environment has a SplitMix64 generator whose start and whose (odd) increment are hashed
/// from seed and environment; frame `f` reads it from position `f * 2^20` on. Since the generator
/// is a counter followed by a finaliser, any position costs the same two multiplications, with no
/// state to keep. Environments with different increments walk through different sequences, so that
/// two of them cannot repeat each other with a delay. A frame has 2^20 draws before it would run
/// into the next one, an environment 2^44 frames.
///
/// Not for cryptography.
///
/// Source: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators",
/// OOPSLA 2014, with the finaliser called variant 13 in D. Stafford, "Better bit mixing", 2011.
///
/// ```
/// use windrow_policy::Noise;
///
/// let mut noise = Noise::new(7, 3, 1000);
/// let (x, choice) = (noise.f32(), noise.below(6));
/// assert!((0.0..1.0).contains(&x) && choice < 6);
/// assert_eq!(Noise::new(7, 3, 1000).f32(), x);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noise {
    state: u64,
    increment: u64,
}

impl Noise {
    /// The stream of environment `env` (over all workers) at its frame `frame`.
    #[inline(always)]
    #[must_use]
    pub fn new(seed: u64, env: u32, frame: u64) -> Self {
        let key = finalise(seed.wrapping_add(u64::from(env).wrapping_add(1).wrapping_mul(GOLDEN)));
        let increment = key.rotate_left(32) | 1;
        Self {
            state: key.wrapping_add((frame << FRAME_BITS).wrapping_mul(increment)),
            increment,
        }
    }

    /// The stream at its present position, as bytes.
    pub(crate) fn to_bytes(&self) -> [u8; 16] {
        (u128::from(self.state) | u128::from(self.increment) << 64).to_le_bytes()
    }

    /// The stream that [`to_bytes`](Self::to_bytes) wrote.
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Self {
            state: both as u64,
            // Only an odd increment visits all numbers.
            increment: (both >> 64) as u64 | 1,
        }
    }

    /// From the start of a frame's stream to the start of the next frame's, before anything was
    /// drawn.
    #[inline(always)]
    pub(crate) fn next_frame(&mut self) {
        self.state = self
            .state
            .wrapping_add(self.increment.wrapping_mul(1 << FRAME_BITS));
    }

    /// The `n`-th stream beside this one, for a second kind of draws whose number must not shift
    /// the first's; number 0 is this stream itself.
    #[inline(always)]
    #[must_use]
    pub fn branch(&self, n: usize) -> Self {
        if n == 0 {
            return self.clone();
        }
        Self {
            state: finalise(self.state ^ (n as u64).wrapping_mul(GOLDEN)),
            increment: self.increment,
        }
    }

    /// 64 random bits.
    #[inline(always)]
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(self.increment);
        finalise(self.state)
    }

    /// Uniform in `[0, 1)`, a multiple of 2^-24.
    #[inline(always)]
    pub fn f32(&mut self) -> f32 {
        (self.bits() >> 40) as f32 * (1.0 / 16_777_216.0)
    }

    /// Uniform in `[0, 1)`, a multiple of 2^-53.
    #[inline(always)]
    pub fn f64(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Uniform in `0..n`; 0 when `n` is 0.
    ///
    /// The upper half of a 64 by 64 bit product: the probabilities of two values differ by less
    /// than 2^-64, which no feasible number of draws could show, so there is no loop that rejects.
    #[inline(always)]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `0..n`; 0 when `n` is 0. Cheaper than [`below`](Self::below), from 32 bits only:
    /// the probabilities of two values differ by less than 2^-32, which shows only after about 2^64
    /// / n draws.
    #[inline(always)]
    pub fn below_u32(&mut self, n: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// Normal with mean 0 and deviation 1, by the ziggurat: about one draw a number.
    #[inline]
    pub fn normal(&mut self) -> f64 {
        StandardNormal.sample(self)
    }

    /// Exponential with mean 1.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        Exp1.sample(self)
    }
}

/// Flips about half of the result's bits for any one bit of `z`; a bijection.
#[inline(always)]
fn finalise(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Any distribution of `rand_distr` can draw from the stream.
impl TryRng for Noise {
    type Error = Infallible;

    #[inline(always)]
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.bits() >> 32) as u32)
    }

    #[inline(always)]
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.bits())
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Infallible> {
        for chunk in dst.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "noise_tests.rs"]
pub(crate) mod tests;
