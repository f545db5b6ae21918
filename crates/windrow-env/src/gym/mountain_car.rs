use std::sync::Arc;

use pulp::Simd;
use serde::{Deserialize, Serialize};
use windrow_slab::{Row, RowMut};

use super::columns::{Columns, Physics, at_once, column, each};
use super::sines::cos_each;
use super::space::{OBSERVATION, choice, interval, meaning_compared, visit_motion};
use crate::{AtOnce, Env, EnvError, EnvRng, EnvSpec, Outcome, Spec, StateVisitor, TimeLimit};

pub(super) const MIN_POSITION: f64 = -1.2;
pub(super) const MAX_POSITION: f64 = 0.6;
pub(super) const MAX_SPEED: f64 = 0.07;
pub(super) const GRAVITY: f64 = 0.0025;
const GOAL: f64 = 0.5;
/// Change of velocity by pushing left, not at all, and right.
const PUSHES: [f64; 3] = [-0.001, 0.0, 0.001];

/// The greatest absolute values of position and velocity.
const REACH: [f64; 2] = [-MIN_POSITION, MAX_SPEED];

/// A car in a valley, too weak to drive straight up: it has to swing.
///
/// Observation `float32 [2]`: position, velocity. Action `int64`: 0 pushes left, 1 not at all, 2
/// right. Reward -1 a step. Terminates at the top of the right hill (position 0.5).
///
/// [`new`](Self::new) is the bare physics, [`v0`](Self::v0) is Gymnasium's `MountainCar-v0`.
///
/// Source: A. W. Moore, "Efficient memory-based learning for robot control" (1990), as in
/// Gymnasium.
#[derive(Debug, Clone)]
pub struct MountainCar {
    state: Option<CarState>,
    rng: EnvRng,
    spec: Arc<EnvSpec>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct CarState {
    position: f64,
    velocity: f64,
}

impl MountainCar {
    /// The bare physics: an episode lasts until it terminates.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: None,
            rng: EnvRng::new(),
            spec: Arc::new(EnvSpec::new(
                "MountainCar-v0",
                observation_space(),
                Spec::discrete(3),
            )),
        }
    }

    /// `MountainCar-v0`: truncated after 200 steps.
    #[must_use]
    pub fn v0() -> TimeLimit<Self> {
        TimeLimit::of(Self::new(), 200)
    }
}

/// Positions and velocities that either car can have.
pub(super) fn observation_space() -> Spec {
    interval(
        [MIN_POSITION as f32, -MAX_SPEED as f32],
        [MAX_POSITION as f32, MAX_SPEED as f32],
    )
}

impl Default for MountainCar {
    fn default() -> Self {
        Self::new()
    }
}

impl CarState {
    /// A step, given the cosine of three times the position.
    #[inline(always)]
    fn advance(self, push: f64, cosine: f64) -> Self {
        let velocity = self.velocity + (push + cosine * -GRAVITY);
        let velocity = velocity.clamp(-MAX_SPEED, MAX_SPEED);
        let position = (self.position + velocity).clamp(MIN_POSITION, MAX_POSITION);
        let stopped = position == MIN_POSITION && velocity < 0.0;
        Self {
            position,
            velocity: if stopped { 0.0 } else { velocity },
        }
    }

    #[inline(always)]
    fn is_up(self) -> bool {
        (self.position >= GOAL) & (self.velocity >= 0.0)
    }

    #[inline(always)]
    fn observation(self) -> [f32; 2] {
        [self.position as f32, self.velocity as f32]
    }
}

impl Env for MountainCar {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        let state = CarState {
            position: self.rng.for_reset(seed).uniform(-0.6, -0.4),
            velocity: 0.0,
        };
        self.state = Some(state);
        Ok(obs.write(OBSERVATION, &state.observation())?)
    }

    #[inline(always)]
    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let push = choice(action, &PUSHES)?;
        let Some(state) = &mut self.state else {
            return Err(EnvError::NotReset);
        };
        *state = state.advance(push, (3.0 * state.position).cos());
        obs.write(OBSERVATION, &state.observation())?;
        Ok(Outcome {
            reward: -1.0,
            terminated: state.is_up(),
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
        visit_motion(state, reach, &mut self.state, |car| {
            [car.position, car.velocity]
        })?;
        state.value(&mut self.rng)
    }
}

impl Physics<2, 2> for MountainCar {
    type Action = i64;

    #[inline(always)]
    fn meaning(action: i64) -> Option<f64> {
        meaning_compared(action, &PUSHES)
    }

    #[inline(always)]
    fn state(&self) -> Option<[f64; 2]> {
        let state = self.state?;
        Some([state.position, state.velocity])
    }

    #[inline(always)]
    fn keep(&mut self, [position, velocity]: [f64; 2]) {
        self.state = Some(CarState { position, velocity });
    }

    #[inline(always)]
    fn advance<S: Simd, const L: usize>(simd: S, columns: &mut Columns<2, 2, L>) {
        let angles: [f64; L] = column(
            #[inline(always)]
            |i| 3.0 * columns.state[0][i],
        );
        let cosines = cos_each(simd, &angles);
        each::<L>(
            #[inline(always)]
            |i| {
                let (position, velocity) = (columns.state[0][i], columns.state[1][i]);
                let state = CarState { position, velocity };
                let state = state.advance(columns.action[i], cosines[i]);
                (columns.state[0][i], columns.state[1][i]) = (state.position, state.velocity);
                columns.reward[i] = -1.0;
                columns.terminated[i] = state.is_up();
                columns.observe(i, state.observation());
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Driver, assert_choices_are_checked, assert_seeds_are_kept};

    #[test]
    fn first_steps_are_those_of_gymnasium() {
        let (observations, rewards) = Driver::new(MountainCar::v0()).play(42, &[2i64, 0]);
        let expected = [
            [-0.4452088, 0.0],
            [-0.44479132, 0.00041747934],
            [-0.4459594, -0.0011680858],
        ];
        assert_eq!(observations, expected);
        assert_eq!(rewards, [-1.0, -1.0]);
    }

    #[test]
    fn stops_at_the_left_wall() {
        let at_wall = CarState {
            position: -1.19,
            velocity: -0.05,
        }
        .advance(-0.001, (3.0 * MIN_POSITION).cos());
        assert_eq!((at_wall.position, at_wall.velocity), (MIN_POSITION, 0.0));
    }

    #[test]
    fn terminates_at_the_top() {
        let mut env = MountainCar::new();
        env.state = Some(CarState {
            position: 0.49,
            velocity: 0.05,
        });
        let mut env = Driver::new(env);
        assert!(env.step(2i64).unwrap().terminated);
    }

    #[test]
    fn checks_actions_and_keeps_seeds() {
        assert_choices_are_checked(MountainCar::new(), 3);
        assert_seeds_are_kept(MountainCar::new);
    }
}
