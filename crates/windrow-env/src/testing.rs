//! Environments for tests, and a test for environments.
//!
//! # Writing an environment
//!
//! [`CountingEnv`] is the smallest complete one; read its source first. An environment
//!
//! 1. declares its observations and actions in an [`EnvSpec`](crate::EnvSpec), once, in its
//!    constructor;
//! 2. writes every leaf of its observation into the given row, in `reset` and in `step`, through
//!    [`Key`](windrow_slab::Key)s: the n-th key is the n-th leaf of the spec, and its type the
//!    leaf's element type;
//! 3. draws all its randomness from an [`EnvRng`](crate::EnvRng), which treats seeds as
//!    [`Env::reset`](crate::Env::reset) requires;
//! 4. returns an [`Outcome`](crate::Outcome) from each step, and never resets by itself;
//! 5. returns an [`EnvError`](crate::EnvError) if it cannot continue:
//!    [`NotReset`](crate::EnvError::NotReset) before the first reset,
//!    [`Action`](crate::EnvError::Action) for an action it does not know, and
//!    [`EnvError::failed`](crate::EnvError::failed) for its own errors.
//!
//! Leave time limits to [`TimeLimit`](crate::TimeLimit). [`check_env`] then finds the rest of the
//! mistakes:
//!
//! ```
//! use windrow_env::testing::check_env;
//! use windrow_env::{Env, EnvError, EnvRng, EnvSpec, Outcome, Spec, TimeLimit};
//! use windrow_slab::{Key, Row, RowMut};
//!
//! /// A walk on a line that ends 5 steps away from where it begins.
//! struct Walk {
//!     spec: EnvSpec,
//!     rng: EnvRng,
//!     place: Option<f32>,
//! }
//!
//! const PLACE: Key<f32> = Key::new(0);
//! const MOVE: Key<i64> = Key::new(0);
//!
//! impl Walk {
//!     fn new() -> Result<Self, EnvError> {
//!         let observation = Spec::bounded(&[-6.0], &[6.0])?;
//!         let spec = EnvSpec::new("Walk", observation, Spec::discrete(2));
//!         Ok(Self { spec, rng: EnvRng::new(), place: None })
//!     }
//! }
//!
//! impl Env for Walk {
//!     fn spec(&self) -> &EnvSpec {
//!         &self.spec
//!     }
//!
//!     fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
//!         let place = self.rng.for_reset(seed).uniform(-1.0, 1.0) as f32;
//!         self.place = Some(place);
//!         Ok(obs.write(PLACE, &[place])?)
//!     }
//!
//!     fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
//!         let place = self.place.as_mut().ok_or(EnvError::NotReset)?;
//!         *place += match action.scalar(MOVE)? {
//!             0 => -1.0,
//!             1 => 1.0,
//!             other => {
//!                 return Err(EnvError::Action { expected: "0 or 1".into(), got: other.to_string() });
//!             }
//!         };
//!         obs.write(PLACE, &[*place])?;
//!         let terminated = place.abs() >= 5.0;
//!         Ok(Outcome { reward: if terminated { 1.0 } else { 0.0 }, terminated, truncated: false })
//!     }
//! }
//!
//! let mut env = TimeLimit::new(Walk::new()?, 100)?;
//! let report = check_env(&mut env, 42)?;
//! assert!(report.episodes > 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Environments that test their users
//!
//! [`LedgerEnv`] makes every frame recognisable, so that a test can check whether a collector
//! delivered each exactly once; [`CountingEnv`] is easy to follow by eye; [`FailingEnv`] fails on
//! demand.

mod check;
mod counting;
mod failing;
mod ledger;
mod recorder;

pub use check::{CheckError, Report, check_env, check_vec_env};
pub use counting::CountingEnv;
pub use failing::{FailAt, FailingEnv, Failure};
pub use ledger::{Ending, LedgerEnv};
