use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

/// The random numbers of one buffer: a function of its seed and the count of draws.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleRng {
    seed: u64,
    drawn: u64,
    pcg: Pcg64,
}

impl SampleRng {
    /// The generator that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            drawn: 0,
            pcg: Pcg64::seed_from_u64(seed),
        }
    }

    /// A generator with a seed from the operating system.
    #[must_use]
    pub fn from_entropy() -> Self {
        Self::new(windrow_sync::entropy())
    }

    /// The generator of `seed` after `drawn` numbers.
    pub(crate) fn resume(seed: u64, drawn: u64) -> Self {
        let mut rng = Self::new(seed);
        rng.pcg.advance(u128::from(drawn));
        rng.drawn = drawn;
        rng
    }

    /// The seed, and how many numbers were drawn.
    pub(crate) fn state(&self) -> (u64, u64) {
        (self.seed, self.drawn)
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        self.pcg.next_u64()
    }

    /// A whole number below `limit`, uniform up to one part in 2^64 / `limit`; 0 when `limit` is 0.
    #[inline]
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.bits()) * limit as u128) >> 64) as usize
    }

    /// A number in `[0, 1)`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        const UNIT: f64 = 1.0 / (1u64 << 53) as f64;
        (self.bits() >> 11) as f64 * UNIT
    }
}

#[cfg(test)]
mod tests {
    use super::SampleRng;

    #[test]
    fn a_resumed_generator_goes_on_with_the_same_numbers() {
        let mut rng = SampleRng::new(7);
        for _ in 0..1000 {
            rng.bits();
        }
        let (seed, drawn) = rng.state();
        let mut resumed = SampleRng::resume(seed, drawn);
        assert_eq!(resumed, rng);
        assert_eq!(resumed.below(1000), rng.below(1000));
    }

    #[test]
    fn numbers_stay_below_their_limit() {
        let mut rng = SampleRng::new(0);
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
        let mut seen = [false; 5];
        (0..200).for_each(|_| seen[rng.below(5)] = true);
        assert_eq!(seen, [true; 5]);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&rng.unit())));
    }
}
