use std::sync::Arc;

use pulp::Simd;
use serde::{Deserialize, Serialize};
use windrow_slab::{Row, RowMut};

use super::columns::{Columns, Physics, at_once, column, each};
use super::mountain_car::{GRAVITY, MAX_POSITION, MAX_SPEED, MIN_POSITION, observation_space};
use super::sines::cos_each;
use super::space::{OBSERVATION, interval, number, visit_motion};
use crate::{AtOnce, Env, EnvError, EnvRng, EnvSpec, Outcome, StateVisitor, TimeLimit};

const GOAL: f64 = 0.45;
const MAX_ACTION: f32 = 1.0;
/// Change of velocity by a full push.
const POWER: f64 = 0.0015;

/// The greatest absolute values of position and velocity: rounded to `float32`, which is upwards.
const REACH: [f64; 2] = [-MIN_POSITION as f32 as f64, MAX_SPEED as f32 as f64];

/// [`MountainCar`](crate::MountainCar) with a throttle: the less fuel the better.
///
/// Observation `float32 [2]`: position, velocity. Action `float32 [1]`: force, clipped to
/// `[-1, 1]`. Reward `-0.1 a²` a step with the action as it came, and 100 for reaching the goal
/// (position 0.45), which terminates.
///
/// [`new`](Self::new) is the bare physics, [`v0`](Self::v0) is Gymnasium's
/// `MountainCarContinuous-v0`.
///
/// Source: A. W. Moore, "Efficient memory-based learning for robot control" (1990), as in
/// Gymnasium.
#[derive(Debug, Clone)]
pub struct MountainCarContinuous {
    state: Option<CarState>,
    rng: EnvRng,
    spec: Arc<EnvSpec>,
}

/// Gymnasium starts an episode in `float64` and goes on in `float32` after the first step.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum CarState {
    Fresh { position: f64 },
    Moved { position: f32, velocity: f32 },
}

/// Where a step led, before it is rounded to the `float32` that is kept.
struct Landing {
    position: f64,
    velocity: f64,
    terminated: bool,
}

impl MountainCarContinuous {
    /// The bare physics: an episode lasts until it terminates.
    #[must_use]
    pub fn new() -> Self {
        let action = interval([-MAX_ACTION], [MAX_ACTION]);
        Self {
            state: None,
            rng: EnvRng::new(),
            spec: Arc::new(EnvSpec::new(
                "MountainCarContinuous-v0",
                observation_space(),
                action,
            )),
        }
    }

    /// `MountainCarContinuous-v0`: truncated after 999 steps.
    #[must_use]
    pub fn v0() -> TimeLimit<Self> {
        TimeLimit::of(Self::new(), 999)
    }
}

impl Default for MountainCarContinuous {
    fn default() -> Self {
        Self::new()
    }
}

impl CarState {
    #[inline(always)]
    fn advance(self, action: f32) -> Landing {
        let [position, velocity] = self.numbers();
        match self {
            Self::Fresh { .. } => {
                let cosine = (3.0 * position).cos();
                advance([position, velocity], action, cosine, |exact| exact)
            }
            Self::Moved { .. } => {
                let cosine = narrow(3.0 * position).cos();
                advance([position, velocity], action, cosine, narrow)
            }
        }
    }

    /// Position and velocity.
    #[inline(always)]
    fn numbers(self) -> [f64; 2] {
        match self {
            Self::Fresh { position } => [position, 0.0],
            Self::Moved { position, velocity } => [position, velocity].map(f64::from),
        }
    }
}

/// One `float32` operation is the `float64` one, rounded: twice the digits and two more.
#[inline(always)]
fn narrow(exact: f64) -> f64 {
    f64::from(exact as f32)
}

/// One step from position and velocity in the precision that `round` rounds to, constants included;
/// `cosine` is that of three times the position.
#[inline(always)]
fn advance(
    [position, velocity]: [f64; 2],
    action: f32,
    cosine: f64,
    round: impl Fn(f64) -> f64,
) -> Landing {
    let slope = GRAVITY * cosine;
    // An action within bounds is a `float32` and makes the difference one; a clipped one is a
    // `float64`.
    let push = if action.abs() <= MAX_ACTION {
        f64::from(action * POWER as f32 - slope as f32)
    } else {
        round(POWER.copysign(f64::from(action)) - slope)
    };
    let fastest = round(MAX_SPEED);
    let velocity = round(velocity + push).clamp(-fastest, fastest);
    let wall = round(MIN_POSITION);
    let position = round(position + velocity).clamp(wall, round(MAX_POSITION));
    let stopped = position == wall && velocity < 0.0;
    let velocity = if stopped { 0.0 } else { velocity };
    Landing {
        position,
        velocity,
        terminated: (position >= round(GOAL)) & (velocity >= 0.0),
    }
}

impl Landing {
    #[inline(always)]
    fn reward(&self, action: f64) -> f32 {
        let prize = if self.terminated { 100.0 } else { 0.0 };
        (prize - action * action * 0.1) as f32
    }
}

impl Env for MountainCarContinuous {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        let position = self.rng.for_reset(seed).uniform(-0.6, -0.4);
        self.state = Some(CarState::Fresh { position });
        Ok(obs.write(OBSERVATION, &[position as f32, 0.0])?)
    }

    #[inline(always)]
    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let action = number(action, MAX_ACTION)?;
        let Some(state) = &mut self.state else {
            return Err(EnvError::NotReset);
        };
        let landing = state.advance(action);
        let (position, velocity) = (landing.position as f32, landing.velocity as f32);
        *state = CarState::Moved { position, velocity };
        obs.write(OBSERVATION, &[position, velocity])?;
        Ok(Outcome {
            reward: landing.reward(f64::from(action)),
            terminated: landing.terminated,
            truncated: false,
        })
    }

    fn at_once<'a>(
        envs: impl ExactSizeIterator<Item = &'a Self> + Clone,
    ) -> Option<Box<dyn AtOnce<Self>>> {
        at_once(envs.len())
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let reach = (self.spec.id.as_str(), REACH);
        visit_motion(state, reach, &mut self.state, CarState::numbers)?;
        state.value(&mut self.rng)
    }
}

/// The third number of the state is 1 until the first step, then 0.
impl Physics<3, 2> for MountainCarContinuous {
    type Action = f32;

    #[inline(always)]
    fn meaning(action: f32) -> Option<f64> {
        (!action.is_nan()).then(|| f64::from(action))
    }

    #[inline(always)]
    fn state(&self) -> Option<[f64; 3]> {
        let state = self.state?;
        let [position, velocity] = state.numbers();
        let is_fresh = matches!(state, CarState::Fresh { .. });
        Some([position, velocity, f64::from(u8::from(is_fresh))])
    }

    #[inline(always)]
    fn keep(&mut self, [position, velocity, fresh]: [f64; 3]) {
        self.state = Some(match fresh > 0.0 {
            true => CarState::Fresh { position },
            false => CarState::Moved {
                position: position as f32,
                velocity: velocity as f32,
            },
        });
    }

    #[inline(always)]
    fn advance<S: Simd, const L: usize>(simd: S, columns: &mut Columns<3, 2, L>) {
        let [position, velocity, fresh] = columns.state;
        let round = |i: usize, exact: f64| match fresh[i] > 0.0 {
            true => exact,
            false => narrow(exact),
        };
        let angles: [f64; L] = column(
            #[inline(always)]
            |i| round(i, 3.0 * position[i]),
        );
        let cosines = cos_each(simd, &angles);
        each::<L>(
            #[inline(always)]
            |i| {
                let (from, action) = ([position[i], velocity[i]], columns.action[i]);
                let landing = advance(
                    from,
                    action as f32,
                    cosines[i],
                    #[inline(always)]
                    |exact| round(i, exact),
                );
                columns.state[0][i] = narrow(landing.position);
                columns.state[1][i] = narrow(landing.velocity);
                columns.state[2][i] = 0.0;
                columns.terminated[i] = landing.terminated;
                columns.reward[i] = landing.reward(action);
                columns.observe(i, [landing.position as f32, landing.velocity as f32]);
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Driver, assert_seeds_are_kept};

    #[test]
    fn first_steps_are_those_of_gymnasium() {
        let mut env = Driver::new(MountainCarContinuous::v0());
        let (observations, rewards) = env.play(42, &[0.5f32, -3.0]);
        let expected = [
            [-0.4452088, 0.0],
            [-0.4450413, 0.00016747933],
            [-0.44695756, -0.001916263],
        ];
        assert_eq!(observations, expected);
        assert_eq!(rewards, [-0.025, -0.9]);
    }

    #[test]
    fn goal_is_rewarded() {
        let mut env = MountainCarContinuous::new();
        env.state = Some(CarState::Moved {
            position: 0.44,
            velocity: 0.05,
        });
        let outcome = Driver::new(env).step(1.0f32).unwrap();
        assert_eq!((outcome.reward, outcome.terminated), (99.9, true));
    }

    #[test]
    fn checks_actions_and_keeps_seeds() {
        let mut env = Driver::new(MountainCarContinuous::new());
        assert!(matches!(env.step(0.0f32), Err(EnvError::NotReset)));
        let error = env.step(f32::NAN).unwrap_err().to_string();
        assert!(
            error.contains("from -1.0 to 1.0") && error.ends_with("got NaN"),
            "{error}"
        );
        assert_seeds_are_kept(MountainCarContinuous::new);
    }
}
