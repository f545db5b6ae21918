//! A ledger that dies.

use std::hash::{BuildHasher, RandomState};
use std::sync::Once;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use windrow::envs::testing::LedgerEnv;
use windrow::envs::{Env, EnvError, EnvSpec, Outcome, Spec};
use windrow::{DType, Key, Registry, Row, RowMut};

use crate::cell::Way;
use crate::policy::{self, Stamp};

/// Longest episode.
pub(crate) const MAX_LENGTH: i64 = 20;
/// Bytes of an observation beside `[env, episode, t]`, which follow from these.
pub(crate) const PAYLOAD: usize = 96;
/// Steps after which each environment dies by itself, in the middle of what it may draw.
pub(crate) const LIFE: u64 = 6_000;
/// How an environment that dies by itself says when: nanoseconds of a clock that all processes
/// share.
pub(crate) const LAST_WORDS: &str = "dies at ";

/// A ledger that leaves its process little memory.
pub(crate) const CRAMPED: &str = "Ledger-cramped";

const MIB: u64 = 1 << 20;

/// Names the ledgers of all ways to die, and their policy.
pub(crate) fn register(
    registry: &mut Registry,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    for way in Way::ALL {
        registry.env(way.id(), move || Mortal::new(way))?;
    }
    registry.env(CRAMPED, || {
        may_have_more(MIB * 16);
        Mortal::new(Way::Kill)
    })?;
    registry.policy(policy::NAME, |_| Stamp::default())?;
    Ok(())
}

/// Nanoseconds of a clock that all processes share.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A number that nobody can foresee.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// What stands beside `[env, episode, t]`.
pub(crate) fn payload([env, episode, t]: [i64; 3]) -> [u8; PAYLOAD] {
    let mut x = (env ^ episode.rotate_left(24) ^ t.rotate_left(48)).cast_unsigned();
    std::array::from_fn(|_| {
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1) ^ (x >> 29);
        (x >> 40) as u8
    })
}

/// Lets this process have this much memory beside what it has.
fn may_have_more(bytes: u64) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let current = Some(pages * rustix::param::page_size() as u64 + bytes);
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
}

/// Takes memory until there is none.
fn starve() -> ! {
    may_have_more(8 * MIB);
    let mut taken = Vec::new();
    loop {
        taken.push(std::hint::black_box(vec![1_u8; MIB as usize]));
    }
}

/// A [`LedgerEnv`] with more to write, whose process may die between the first and the last byte of
/// a row.
struct Mortal {
    ledger: LedgerEnv,
    spec: EnvSpec,
    way: Way,
    /// Steps that are left to it.
    left: u64,
}

impl Mortal {
    fn new(way: Way) -> Self {
        static SILENCE: Once = Once::new();
        // Its panics are expected, and no news.
        SILENCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
        let ledger = LedgerEnv::from_seed().with_max_length(MAX_LENGTH);
        let observation = Spec::composite([
            ("ledger", Spec::unbounded(DType::I64, [3])),
            ("payload", Spec::unbounded(DType::U8, [PAYLOAD])),
        ]);
        Self {
            ledger,
            spec: EnvSpec::new(way.id(), observation, Spec::discrete(LedgerEnv::ACTIONS)),
            way,
            left: match way.is_own() {
                true => 1 + random() % (2 * LIFE),
                false => u64::MAX,
            },
        }
    }

    fn finish(obs: &mut RowMut<'_>) -> Result<(), EnvError> {
        let record = obs.get_mut(Key::<i64>::new(0))?;
        let record = [record[0], record[1], record[2]];
        Ok(obs.write(Key::new(1), &payload(record))?)
    }

    fn die(&self) {
        let words = format!("{LAST_WORDS}{}", now());
        match self.way {
            Way::Exit => {
                eprintln!("{words}");
                std::process::exit(3)
            }
            Way::Abort => {
                eprintln!("{words}");
                std::process::abort()
            }
            Way::Hunger => {
                eprintln!("{words}");
                starve()
            }
            Way::Panic => panic!("{words}"),
            Way::Kill | Way::Stop => {}
        }
    }
}

impl Env for Mortal {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        self.ledger.reset(seed, obs.reborrow())?;
        Self::finish(&mut obs)
    }

    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let outcome = self.ledger.step(action, obs.reborrow())?;
        self.left -= 1;
        if self.left == 0 {
            self.die();
        }
        Self::finish(&mut obs)?;
        Ok(outcome)
    }
}
