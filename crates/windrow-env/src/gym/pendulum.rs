use std::f64::consts::{PI, TAU};
use std::hint::black_box;
use std::sync::Arc;

use pulp::Simd;
use serde::{Deserialize, Serialize};
use windrow_slab::{Row, RowMut};

use super::columns::{Columns, Physics, at_once, each};
use super::sines::{sin_cos, sin_cos_each};
use super::space::{OBSERVATION, interval, number, visit_motion};
use crate::{AtOnce, Env, EnvError, EnvRng, EnvSpec, Outcome, StateVisitor, TimeLimit};

/// Fastest rotation, in rad/s.
const MAX_SPEED: f64 = 8.0;
/// Strongest torque, in N·m.
const MAX_TORQUE: f32 = 2.0;
/// Seconds of one step.
const DT: f64 = 0.05;
/// `3 g / 2 l` of a rod of one metre with `g = 10`, in 1/s².
const PULL: f64 = 15.0;
/// `3 / m l²` of a rod of one kilogram and one metre, in 1/(kg·m²).
const INERTIA: f32 = 3.0;

/// The greatest absolute values of the angle, to which turns add up, and of the velocity.
const REACH: [f64; 2] = [f64::MAX, MAX_SPEED];

/// A rod that hangs from one end: swing it up and keep it there.
///
/// Observation `float32 [3]`: cosine and sine of the angle (0 is upright), angular velocity
/// (rad/s). Action `float32 [1]`: torque in N·m, clipped to `[-2, 2]`. Reward
/// `-(θ² + 0.1 ω² + 0.001 u²)` with the angle in `[-π, π)` and all three from before the step.
/// Never terminates.
///
/// [`new`](Self::new) is the bare physics, [`v1`](Self::v1) is Gymnasium's `Pendulum-v1`.
#[derive(Debug, Clone)]
pub struct Pendulum {
    state: Option<PendulumState>,
    rng: EnvRng,
    spec: Arc<EnvSpec>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct PendulumState {
    theta: f64,
    theta_dot: f64,
}

impl Pendulum {
    /// The bare physics: an episode never ends.
    #[must_use]
    pub fn new() -> Self {
        let high = [1.0, 1.0, MAX_SPEED as f32];
        let observation = interval(high.map(|bound| -bound), high);
        let action = interval([-MAX_TORQUE], [MAX_TORQUE]);
        Self {
            state: None,
            rng: EnvRng::new(),
            spec: Arc::new(EnvSpec::new("Pendulum-v1", observation, action)),
        }
    }

    /// `Pendulum-v1`: truncated after 200 steps.
    #[must_use]
    pub fn v1() -> TimeLimit<Self> {
        TimeLimit::of(Self::new(), 200)
    }
}

impl Default for Pendulum {
    fn default() -> Self {
        Self::new()
    }
}

impl PendulumState {
    #[inline(always)]
    fn cost(self, angle: f64, effort: f32) -> f64 {
        angle * angle + 0.1 * (self.theta_dot * self.theta_dot) + f64::from(effort)
    }

    /// A step, given the sine of the angle.
    #[inline(always)]
    fn advance(self, torque: f32, sine: f64) -> Self {
        let push = f64::from(INERTIA * torque);
        let theta_dot = self.theta_dot + (PULL * sine + push) * DT;
        let theta_dot = theta_dot.clamp(-MAX_SPEED, MAX_SPEED);
        Self {
            theta: self.theta + theta_dot * DT,
            theta_dot,
        }
    }

    #[inline(always)]
    fn observation(self, (sin, cos): (f64, f64)) -> [f32; 3] {
        [cos as f32, sin as f32, self.theta_dot as f32]
    }
}

/// The share of the torque in the cost.
#[inline(always)]
fn effort(torque: f32) -> f32 {
    // Gymnasium's torque is a `float32`, squared by `powf`, which may be off by the last bit where
    // a product would not be; the `float32` reward shows it. Without the box the compiler makes it
    // a product.
    0.001 * torque.powf(black_box(2.0))
}

/// The same angle in `[-π, π)`.
#[inline(always)]
fn wrapped(angle: f64) -> f64 {
    let turned = angle + PI;
    // Most angles need no division.
    let turned = if (0.0..TAU).contains(&turned) {
        turned
    } else {
        turned.rem_euclid(TAU)
    };
    turned - PI
}

/// As [`wrapped`], without branches, for processors with fused multiply-add, by which remainders
/// are exact.
#[inline(always)]
fn wrapped_by_turns(angle: f64) -> f64 {
    let turned = angle + PI;
    let turns = (turned.abs() / TAU).floor();
    let rest = (-turns).mul_add(TAU, turned.abs());
    // The quotient may have been rounded up to a whole number.
    let rest = match rest < 0.0 {
        true => (1.0 - turns).mul_add(TAU, turned.abs()),
        false => rest,
    };
    let backward = (turned < 0.0) & (rest > 0.0);
    let turned = if backward { TAU - rest } else { rest };
    turned - PI
}

impl Env for Pendulum {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        let rng = self.rng.for_reset(seed);
        let state = PendulumState {
            theta: rng.uniform(-PI, PI),
            theta_dot: rng.uniform(-1.0, 1.0),
        };
        self.state = Some(state);
        Ok(obs.write(OBSERVATION, &state.observation(sin_cos(state.theta)))?)
    }

    #[inline(always)]
    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let torque = number(action, MAX_TORQUE)?.clamp(-MAX_TORQUE, MAX_TORQUE);
        let Some(state) = &mut self.state else {
            return Err(EnvError::NotReset);
        };
        let reward = -state.cost(wrapped(state.theta), effort(torque)) as f32;
        *state = state.advance(torque, sin_cos(state.theta).0);
        obs.write(OBSERVATION, &state.observation(sin_cos(state.theta)))?;
        Ok(Outcome {
            reward,
            terminated: false,
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
        visit_motion(state, reach, &mut self.state, |rod| {
            [rod.theta, rod.theta_dot]
        })?;
        state.value(&mut self.rng)
    }
}

impl Physics<2, 3> for Pendulum {
    type Action = f32;

    #[inline(always)]
    fn meaning(torque: f32) -> Option<f64> {
        (!torque.is_nan()).then(|| f64::from(torque.clamp(-MAX_TORQUE, MAX_TORQUE)))
    }

    #[inline(always)]
    fn state(&self) -> Option<[f64; 2]> {
        let state = self.state?;
        Some([state.theta, state.theta_dot])
    }

    #[inline(always)]
    fn keep(&mut self, [theta, theta_dot]: [f64; 2]) {
        self.state = Some(PendulumState { theta, theta_dot });
    }

    #[inline(always)]
    fn advance<S: Simd, const L: usize>(simd: S, columns: &mut Columns<2, 3, L>) {
        let (sines, _) = sin_cos_each(simd, &columns.state[0]);
        let state = |theta: f64, theta_dot: f64| PendulumState { theta, theta_dot };
        each::<L>(
            #[inline(always)]
            |i| {
                let before = state(columns.state[0][i], columns.state[1][i]);
                let torque = columns.action[i] as f32;
                let cost = before.cost(wrapped_by_turns(before.theta), effort(torque));
                columns.reward[i] = -cost as f32;
                let after = before.advance(torque, sines[i]);
                (columns.state[0][i], columns.state[1][i]) = (after.theta, after.theta_dot);
            },
        );
        let (sines, cosines) = sin_cos_each(simd, &columns.state[0]);
        each::<L>(
            #[inline(always)]
            |i| {
                let state = state(columns.state[0][i], columns.state[1][i]);
                columns.observe(i, state.observation((sines[i], cosines[i])));
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
        let (observations, rewards) = Driver::new(Pendulum::v1()).play(42, &[1.5f32, -3.0]);
        let expected = [
            [-0.14995256, 0.9886932, -0.12224312],
            [-0.19154312, 0.9814842, 0.8442768],
            [-0.25394195, 0.9672195, 1.2803899],
        ];
        assert_eq!(observations, expected);
        assert_eq!(rewards, [-2.9666753, -3.18532]);
    }

    #[test]
    fn angles_are_wrapped_as_by_a_remainder() {
        assert_eq!(wrapped(0.5), (0.5 + PI) - PI);
        assert_eq!(wrapped(-PI), -PI);
        assert_eq!(wrapped(PI), -PI);
        assert!((wrapped(7.0) - (7.0 - TAU)).abs() < 1e-12);
        assert!((wrapped(-7.0) - (TAU - 7.0)).abs() < 1e-12);
        for i in -40_000..40_000 {
            for angle in [0.003 * f64::from(i), PI * f64::from(i)] {
                assert_eq!(wrapped_by_turns(angle), wrapped(angle), "{angle}");
            }
        }
    }

    #[test]
    fn lasts_200_steps() {
        let mut env = Driver::new(Pendulum::v1());
        env.reset(Some(1));
        let (steps, end) = env.run(0.0f32);
        assert_eq!((steps, end.terminated, end.truncated), (200, false, true));
    }

    #[test]
    fn checks_actions_and_keeps_seeds() {
        let mut env = Driver::new(Pendulum::new());
        assert!(matches!(env.step(0.0f32), Err(EnvError::NotReset)));
        assert_eq!(
            env.step(f32::NAN).unwrap_err().to_string(),
            "action out of range: expected a number from -2.0 to 2.0, or one to be clipped to it, got NaN"
        );
        assert_seeds_are_kept(Pendulum::new);
    }
}
