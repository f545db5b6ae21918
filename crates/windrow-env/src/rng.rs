//! NumPy's default random number generator, so that a seed gives the same episode as in Gymnasium.

mod normal;

use rand_core::Rng;
use rand_pcg::Pcg64;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// `numpy.random.default_rng(seed)`: PCG64 seeded by a seed sequence, and the draws that
/// environments make.
///
/// The same seed gives the same bits as NumPy, draw by draw.
///
/// ```
/// use windrow_env::NumpyRng;
///
/// // numpy.random.default_rng(42).random()
/// assert_eq!(NumpyRng::new(42).random(), 0.7739560485559633);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumpyRng {
    #[serde(deserialize_with = "of_full_period")]
    pcg: Pcg64,
    /// The upper half of 64 bits whose lower half was drawn as 32 bits: the next 32 bits.
    half: Option<u32>,
}

impl NumpyRng {
    /// The generator that NumPy makes from the integer `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let [state_high, state_low, stream_high, stream_low] = SeedSequence::new(seed).words();
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        Self {
            pcg: Pcg64::new(wide(state_high, state_low), wide(stream_high, stream_low)),
            half: None,
        }
    }

    /// A generator seeded by the operating system, which gives other numbers every time.
    #[must_use]
    pub fn from_entropy() -> Self {
        Self::new(windrow_sync::entropy())
    }

    /// The next 64 bits, as `Generator.bit_generator.random_raw()`.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.pcg.next_u64()
    }

    /// The next 32 bits: those that the last draw of 32 bits left of 64, otherwise the lower half
    /// of the next 64.
    #[inline]
    fn next_u32(&mut self) -> u32 {
        match self.half.take() {
            Some(half) => half,
            None => {
                let next = self.next_u64();
                self.half = Some((next >> 32) as u32);
                next as u32
            }
        }
    }

    /// The next integer from 0 to `high`, which is left out and not 0, as
    /// `Generator.integers(high)`. The index of `Generator.choice` among `high` values is drawn in
    /// the same way.
    ///
    /// ```
    /// use windrow_env::NumpyRng;
    ///
    /// let mut rng = NumpyRng::new(42);
    /// // rng = numpy.random.default_rng(42); [rng.integers(13) for _ in range(5)]
    /// assert_eq!([(); 5].map(|()| rng.integers(13)), [1, 10, 8, 5, 5]);
    /// ```
    #[inline]
    pub fn integers(&mut self, high: u32) -> u32 {
        if high <= 1 {
            return 0;
        }
        // D. Lemire, "Fast random integer generation in an interval" (2019), as in NumPy.
        loop {
            let product = u64::from(self.next_u32()) * u64::from(high);
            let rest = product as u32;
            if rest >= high || rest >= high.wrapping_neg() % high {
                return (product >> 32) as u32;
            }
        }
    }

    /// The next number in `[0, 1)`, as `Generator.random()`: 53 bits of the next 64.
    #[inline]
    pub fn random(&mut self) -> f64 {
        const UNIT: f64 = 1.0 / (1u64 << 53) as f64;
        (self.next_u64() >> 11) as f64 * UNIT
    }

    /// The next number in `[low, high)`, as `Generator.uniform(low, high)`.
    #[inline]
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.random()
    }

    /// `N` numbers in `[low, high)`, as `Generator.uniform(low, high, size=N)`.
    #[inline]
    pub fn uniform_array<const N: usize>(&mut self, low: f64, high: f64) -> [f64; N] {
        std::array::from_fn(|_| self.uniform(low, high))
    }

    /// The next number of the standard normal distribution, as `Generator.standard_normal()`.
    pub fn standard_normal(&mut self) -> f64 {
        normal::draw(self)
    }
}

/// Reads a saved generator, and refuses one with an even increment. Generators that are made of a
/// seed have an odd one, and so the full period. One of a damaged file might draw the same number
/// for ever, and [`integers`] would never return.
///
/// [`integers`]: NumpyRng::integers
fn of_full_period<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Pcg64, D::Error> {
    let pcg = Pcg64::deserialize(deserializer)?;
    let saved = postcard::to_allocvec(&pcg).map_err(D::Error::custom)?;
    let (_state, increment): (u128, u128) =
        postcard::from_bytes(&saved).map_err(D::Error::custom)?;
    match increment % 2 {
        1 => Ok(pcg),
        _ => Err(D::Error::custom(
            "expected a generator with an odd increment",
        )),
    }
}

/// The generator that belongs to one environment, made when the first reset needs it.
///
/// It treats seeds as [`Env::reset`](crate::Env::reset) promises.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvRng(Option<NumpyRng>);

impl EnvRng {
    /// A generator still to be seeded.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }

    /// The generator for an episode that starts with `seed`: a new one for `Some`, otherwise the
    /// present one. The first one without a seed is seeded by the operating system.
    pub fn for_reset(&mut self, seed: Option<u64>) -> &mut NumpyRng {
        if let Some(seed) = seed {
            self.0 = Some(NumpyRng::new(seed));
        }
        self.present()
    }

    /// The present generator, for draws within an episode.
    #[inline]
    pub fn present(&mut self) -> &mut NumpyRng {
        self.0.get_or_insert_with(NumpyRng::from_entropy)
    }
}

/// `numpy.random.SeedSequence(seed)` of an integer below 2^64.
///
/// Source: NumPy's `bit_generator.pyx`, after M. E. O'Neill's `seed_seq_fe` ("Developing a seed_seq
/// alternative", 2015; MIT licence, copyright 2015 Melissa E. O'Neill).
struct SeedSequence {
    pool: [u32; 4],
}

impl SeedSequence {
    fn new(seed: u64) -> Self {
        let mut hash = EntropyHash(0x43b0_d7e5);
        // Words that a short seed lacks count as zero.
        let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(|word| hash.absorb(word));
        for from in 0..pool.len() {
            for to in 0..pool.len() {
                if from != to {
                    pool[to] = blend(pool[to], hash.absorb(pool[from]));
                }
            }
        }
        Self { pool }
    }

    /// `generate_state(4, uint64)`.
    fn words(&self) -> [u64; 4] {
        let mut constant: u32 = 0x8b51_f9dd;
        let mut halves = self.pool.iter().cycle().map(|&word| {
            let mixed = word ^ constant;
            constant = constant.wrapping_mul(0x58f3_8ded);
            fold(mixed.wrapping_mul(constant))
        });
        let mut half = || u64::from(halves.next().expect("A cycle over an array has no end."));
        std::array::from_fn(|_| half() | half() << 32)
    }
}

/// A hash whose constant moves on with every word.
struct EntropyHash(u32);

impl EntropyHash {
    fn absorb(&mut self, word: u32) -> u32 {
        let mixed = word ^ self.0;
        self.0 = self.0.wrapping_mul(0x931e_8875);
        fold(mixed.wrapping_mul(self.0))
    }
}

fn blend(x: u32, y: u32) -> u32 {
    let left = x.wrapping_mul(0xca01_f9dd);
    fold(left.wrapping_sub(y.wrapping_mul(0x4973_f715)))
}

fn fold(x: u32) -> u32 {
    x ^ x >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by NumPy 2.4.6: the seed, `SeedSequence(seed).generate_state(8)`, three
    /// `random_raw()`.
    const PRINTED: [(u64, [u32; 8], [u64; 3]); 5] = [
        (
            0,
            [
                0xb0f4_78be,
                0xdb2c_d7e7,
                0x2c71_ba49,
                0xabf4_641a,
                0x9d7b_8d41,
                0x20c6_ed6d,
                0x223c_39d4,
                0x2c40_99de,
            ],
            [
                0xa30f_ebcf_d9c2_825f,
                0x4510_bdf8_82d9_d721,
                0x0a7d_3da9_4ecd_e8b8,
            ],
        ),
        (
            42,
            [
                0xcd54_0ab7,
                0x9f1e_2e6d,
                0x79fb_94b6,
                0xd578_73dc,
                0x64d4_20b7,
                0x7d28_2a1b,
                0x4692_d5ff,
                0x3365_7971,
            ],
            [
                0xc621_fbcd_16d9_2688,
                0x705a_5661_a791_ffc1,
                0xdbcd_12c2_6eda_1624,
            ],
        ),
        (
            u32::MAX as u64,
            [
                0x76c1_fe08,
                0x2a05_c5e2,
                0xc20e_8198,
                0x2032_e40f,
                0x787f_4396,
                0xed4a_c06d,
                0xf3db_80fd,
                0x5689_6cb4,
            ],
            [
                0x407f_5fa9_30d8_fd9f,
                0x3814_b22e_b968_4802,
                0x498b_7dce_e8d8_dc95,
            ],
        ),
        (
            1 << 32,
            [
                0xec53_f444,
                0x50ff_846c,
                0xe827_8562,
                0x7a49_18db,
                0x362e_2b19,
                0x3bff_9f6c,
                0x9a06_54e3,
                0xbdb1_7753,
            ],
            [
                0xe3c5_ebe2_85ac_1625,
                0x8ea0_9968_fe31_dbcc,
                0xcd08_4ff8_4d8d_e9be,
            ],
        ),
        (
            u64::MAX,
            [
                0x928c_ad0d,
                0xaebc_a151,
                0x8638_dc7a,
                0x119c_3044,
                0x59e6_42a7,
                0x1bbb_1556,
                0xe8c4_a8f6,
                0xa76b_11e3,
            ],
            [
                0xae16_3a7a_8c47_568f,
                0xd866_59f5_f338_2359,
                0x01e5_2b19_5bc2_d24a,
            ],
        ),
    ];

    #[test]
    fn seed_sequence_is_that_of_numpy() {
        for (seed, words, _) in PRINTED {
            let got = SeedSequence::new(seed)
                .words()
                .map(|word| [word as u32, (word >> 32) as u32]);
            assert_eq!(got.as_flattened(), words, "seed {seed}");
        }
    }

    #[test]
    fn raw_bits_are_those_of_numpy() {
        for (seed, _, raw) in PRINTED {
            let mut rng = NumpyRng::new(seed);
            assert_eq!(raw.map(|_| rng.next_u64()), raw, "seed {seed}");
        }
    }

    #[test]
    fn uniform_numbers_are_those_of_numpy() {
        let mut rng = NumpyRng::new(0);
        let four: [f64; 4] = rng.uniform_array(-0.05, 0.05);
        let bits = [
            0x3f8c_0cbc_a647_ced0,
            0xbf97_92e7_3632_0f47,
            0xbfa7_808d_4489_d6d2,
            0xbfa8_c0f8_0ec8_f29d,
        ];
        assert_eq!(four.map(f64::to_bits), bits);
        assert_eq!(
            rng.uniform(-0.6, -0.4).to_bits(),
            13_824_922_181_041_399_830
        );
        assert_eq!(rng.random().to_bits(), 4_606_396_590_900_692_995);
    }

    #[test]
    fn integers_are_those_of_numpy() {
        let mut rng = NumpyRng::new(7);
        // rng = numpy.random.default_rng(7); [rng.integers(high) for high in (13, 4, 3, 1, 2**32 -
        // 1)], rng.random(), rng.integers(13)
        let drawn = [13, 4, 3, 1, u32::MAX].map(|high| rng.integers(high));
        assert_eq!(drawn, [12, 2, 2, 0, 3_853_503_931]);
        assert_eq!(
            (rng.random(), rng.integers(13)),
            (0.775_685_690_245_193_5, 10)
        );
    }

    #[test]
    fn entropy_differs_every_time() {
        assert_ne!(NumpyRng::from_entropy(), NumpyRng::from_entropy());
    }

    #[test]
    fn resets_go_on_unless_seeded() {
        let mut rng = EnvRng::new();
        let first = rng.for_reset(Some(7)).next_u64();
        let second = rng.for_reset(None).next_u64();
        assert_eq!(rng.for_reset(Some(7)).next_u64(), first);
        assert_eq!(rng.for_reset(None).next_u64(), second);
        assert_ne!(
            EnvRng::new().for_reset(None).next_u64(),
            EnvRng::new().for_reset(None).next_u64()
        );
    }
}
