use std::f64::consts::PI;
use std::hint::black_box;
use std::sync::Arc;

use pulp::Simd;
use serde::{Deserialize, Serialize};
use windrow_slab::{Row, RowMut};

use super::columns::{Columns, Physics, at_once, each};
use super::sines::{sin_cos, sin_cos_each};
use super::space::{OBSERVATION, choice, interval, meaning_compared, visit_motion};
use crate::{AtOnce, Env, EnvError, EnvRng, EnvSpec, Outcome, Spec, StateVisitor, TimeLimit};

const GRAVITY: f64 = 9.8;
const POLE_MASS: f64 = 0.1;
const TOTAL_MASS: f64 = POLE_MASS + 1.0;
/// Half of the pole's length, in metres.
const LENGTH: f64 = 0.5;
const POLE_MOMENT: f64 = POLE_MASS * LENGTH;
/// Push to the left and to the right, in newtons.
const FORCES: [f64; 2] = [-10.0, 10.0];
/// Seconds of one step.
const TAU: f64 = 0.02;
/// Radians (12°) beyond which the pole counts as fallen.
const MAX_ANGLE: f64 = 12.0 * 2.0 * PI / 360.0;
/// Metres from the centre beyond which the cart has left the track.
const MAX_POSITION: f64 = 2.4;

/// The greatest absolute values of a state: any finite ones, since velocities have no bound.
const REACH: [f64; 4] = [f64::MAX; 4];

/// A pole on a cart: push the cart left or right so that the pole stays up.
///
/// Observation `float32 [4]`: position (m), velocity (m/s), angle (rad), angular velocity (rad/s).
/// Action `int64`: 0 left, 1 right. Reward 1 for every step until the pole has fallen or the cart
/// has left the track, which terminates the episode, 0 for steps after that.
///
/// [`new`](Self::new) is the bare physics, [`v1`](Self::v1) is Gymnasium's `CartPole-v1`.
///
/// ```
/// use windrow_env::{CartPole, Env};
/// use windrow_slab::{Key, RowBlock};
///
/// let mut env = CartPole::v1();
/// let mut obs = RowBlock::new(&env.spec().observation_leaves(), 1)?;
/// env.reset(Some(42), obs.rows_mut().env_mut(0).unwrap())?;
/// assert_eq!(obs.rows().get(Key::<f32>::new(0))?, [0.027395604, -0.006112156, 0.035859793, 0.019736802]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Source: A. G. Barto, R. S. Sutton and C. W. Anderson, "Neuronlike adaptive elements that can
/// solve difficult learning control problems" (1983); equations with the corrections of R. V.
/// Florian (2007), as in Gymnasium.
#[derive(Debug, Clone)]
pub struct CartPole {
    state: Option<CartPoleState>,
    /// Sine and cosine of the angle, where the last step has computed them. The next angle depends
    /// on neither the action nor the forces of a step, so that a processor computes these while it
    /// waits for the divisions of that step.
    sines: Option<(f64, f64)>,
    fallen: bool,
    rng: EnvRng,
    spec: Arc<EnvSpec>,
}

/// Both positions come first, then both velocities: the compiler computes neighbours at once, and
/// the sines of the angle should not wait for the divisions that the velocities need.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(from = "[f64; 4]", into = "[f64; 4]")]
struct CartPoleState {
    x: f64,
    theta: f64,
    x_dot: f64,
    theta_dot: f64,
}

impl From<[f64; 4]> for CartPoleState {
    #[inline(always)]
    fn from([x, x_dot, theta, theta_dot]: [f64; 4]) -> Self {
        Self {
            x,
            theta,
            x_dot,
            theta_dot,
        }
    }
}

impl From<CartPoleState> for [f64; 4] {
    #[inline(always)]
    fn from(state: CartPoleState) -> Self {
        [state.x, state.x_dot, state.theta, state.theta_dot]
    }
}

impl CartPole {
    /// The bare physics: an episode lasts until it terminates.
    #[must_use]
    pub fn new() -> Self {
        let high = [
            (MAX_POSITION * 2.0) as f32,
            f32::INFINITY,
            (MAX_ANGLE * 2.0) as f32,
            f32::INFINITY,
        ];
        let observation = interval(high.map(|bound| -bound), high);
        Self {
            state: None,
            sines: None,
            fallen: false,
            rng: EnvRng::new(),
            spec: Arc::new(EnvSpec::new("CartPole-v1", observation, Spec::discrete(2))),
        }
    }

    /// `CartPole-v1`: truncated after 500 steps.
    #[must_use]
    pub fn v1() -> TimeLimit<Self> {
        TimeLimit::of(Self::new(), 500)
    }

    /// The reward of a step: none for those after the pole has fallen.
    #[inline(always)]
    fn reward(&mut self, terminated: bool) -> f32 {
        let reward = if terminated & self.fallen { 0.0 } else { 1.0 };
        self.fallen |= terminated;
        reward
    }
}

impl Default for CartPole {
    fn default() -> Self {
        Self::new()
    }
}

impl CartPoleState {
    /// One explicit Euler step under `force`, with sine and cosine of the angle; velocities are
    /// those before the step.
    #[inline(always)]
    fn advance(self, force: f64, (sin, cos): (f64, f64)) -> Self {
        let temp = (force + POLE_MOMENT * (self.theta_dot * self.theta_dot) * sin) / TOTAL_MASS;
        let theta_acc = (GRAVITY * sin - cos * temp)
            / (LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS));
        let x_acc = temp - POLE_MOMENT * theta_acc * cos / TOTAL_MASS;
        Self {
            x: self.x + TAU * self.x_dot,
            x_dot: self.x_dot + TAU * x_acc,
            theta: self.theta + TAU * self.theta_dot,
            theta_dot: self.theta_dot + TAU * theta_acc,
        }
    }

    #[inline(always)]
    fn observation(self) -> [f32; 4] {
        <[f64; 4]>::from(self).map(|number| number as f32)
    }
}

/// Whether the cart has left the track or the pole has fallen.
#[inline(always)]
fn is_out(x: f64, theta: f64) -> bool {
    (x.abs() > MAX_POSITION) | (theta.abs() > MAX_ANGLE)
}

impl Env for CartPole {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        let drawn: [f64; 4] = self.rng.for_reset(seed).uniform_array(-0.05, 0.05);
        let state = CartPoleState::from(drawn);
        self.state = Some(state);
        self.sines = None;
        self.fallen = false;
        Ok(obs.write(OBSERVATION, &state.observation())?)
    }

    #[inline(always)]
    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let force = choice(action, &FORCES)?;
        let Some(state) = &mut self.state else {
            return Err(EnvError::NotReset);
        };
        let sines = self.sines.unwrap_or_else(|| sin_cos(state.theta));
        // Computed first, and kept there by `black_box`: a processor that waits for the divisions
        // below goes on with the next frame.
        let ahead = state.theta + TAU * state.theta_dot;
        let ahead = black_box(sin_cos(ahead));
        *state = state.advance(force, sines);
        self.sines = Some(ahead);
        obs.write(OBSERVATION, &state.observation())?;
        let terminated = is_out(state.x, state.theta);
        Ok(Outcome {
            reward: self.reward(terminated),
            terminated,
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
        visit_motion(state, reach, &mut self.state, Into::into)?;
        self.sines = None;
        state.value(&mut self.fallen)?;
        state.value(&mut self.rng)
    }
}

impl Physics<5, 4> for CartPole {
    type Action = i64;

    #[inline(always)]
    fn meaning(action: i64) -> Option<f64> {
        meaning_compared(action, &FORCES)
    }

    #[inline(always)]
    fn state(&self) -> Option<[f64; 5]> {
        let [x, x_dot, theta, theta_dot] = self.state?.into();
        let fallen = f64::from(u8::from(self.fallen));
        Some([x, x_dot, theta, theta_dot, fallen])
    }

    fn keep(&mut self, [x, x_dot, theta, theta_dot, fallen]: [f64; 5]) {
        self.state = Some([x, x_dot, theta, theta_dot].into());
        self.sines = None;
        self.fallen = fallen > 0.0;
    }

    #[inline(always)]
    fn advance<S: Simd, const L: usize>(simd: S, columns: &mut Columns<5, 4, L>) {
        let (sines, cosines) = sin_cos_each(simd, &columns.state[2]);
        each::<L>(
            #[inline(always)]
            |i| {
                let [x, x_dot, theta, theta_dot, _] = &mut columns.state;
                let state = CartPoleState {
                    x: x[i],
                    x_dot: x_dot[i],
                    theta: theta[i],
                    theta_dot: theta_dot[i],
                };
                let state = state.advance(columns.action[i], (sines[i], cosines[i]));
                (x[i], x_dot[i]) = (state.x, state.x_dot);
                (theta[i], theta_dot[i]) = (state.theta, state.theta_dot);
                columns.observe(i, state.observation());
            },
        );
        // By itself: with it, the compiler uses no vectors above.
        each::<L>(
            #[inline(always)]
            |i| {
                let is_out = is_out(columns.state[0][i], columns.state[2][i]);
                let (fallen, out) = (columns.state[4][i], if is_out { 1.0 } else { 0.0 });
                columns.terminated[i] = is_out;
                columns.reward[i] = (1.0 - fallen * out) as f32;
                columns.state[4][i] = fallen.max(out);
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
        let (observations, rewards) = Driver::new(CartPole::v1()).play(42, &[1i64, 0]);
        let expected = [
            [0.027395604, -0.006112156, 0.035859793, 0.019736802],
            [0.027273363, 0.18847767, 0.03625453, -0.26141977],
            [0.031042915, -0.0071425503, 0.031026132, 0.04247424],
        ];
        assert_eq!(observations, expected);
        assert_eq!(rewards, [1.0, 1.0]);
    }

    #[test]
    fn reward_stops_one_step_after_the_fall() {
        let mut env = Driver::new(CartPole::new());
        env.reset(Some(0));
        let (_, fall) = env.run(1i64);
        assert_eq!((fall.reward, fall.terminated), (1.0, true));
        assert_eq!(env.step(1i64).unwrap().reward, 0.0);
        env.reset(None);
        assert_eq!(env.step(1i64).unwrap().reward, 1.0);
    }

    #[test]
    fn checks_actions_and_keeps_seeds() {
        assert_choices_are_checked(CartPole::new(), 2);
        assert_seeds_are_kept(CartPole::new);
    }
}
