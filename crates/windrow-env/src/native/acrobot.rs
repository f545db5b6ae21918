use std::f64::consts::{FRAC_PI_2, PI, TAU};
use std::sync::Arc;

use windrow_slab::{Row, RowMut};

use super::numpy_pow::square;
use super::space::{OBSERVATION, choice, interval};
use crate::{Env, EnvError, EnvRng, EnvSpec, Outcome, Spec, StateVisitor, TimeLimit};

const GRAVITY: f64 = 9.8;
/// Seconds of one step.
const DT: f64 = 0.2;
/// Fastest rotation of the first and the second joint, in rad/s.
const MAX_SPEEDS: [f64; 2] = [4.0 * PI, 9.0 * PI];
/// Torque on the second joint, in N·m.
const TORQUES: [f64; 3] = [-1.0, 0.0, 1.0];

/// Two links hanging from one another: swing the free end above the height of one link.
///
/// Observation `float32 [6]`: cosine and sine of the first joint's angle (0 hangs down), of the second's (relative
/// to the first link), and both angular velocities (rad/s). Action `int64`: torque on the second joint, 0 is -1 N·m,
/// 1 none, 2 is +1 N·m. Reward -1 a step, 0 for the one that reaches the height and terminates.
///
/// [`new`](Self::new) is the bare physics, [`v1`](Self::v1) is Gymnasium's `Acrobot-v1`.
///
/// Source: R. S. Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse coding"
/// (1996), with the equations of Sutton and Barto's book, as in Gymnasium; links of 1 m and 1 kg with their centre of
/// mass in the middle and a moment of inertia of 1 kg·m².
#[derive(Debug, Clone)]
pub struct Acrobot {
    state: Option<Joints>,
    rng: EnvRng,
    spec: Arc<EnvSpec>,
}

/// Angles of the two joints, then their velocities.
type Joints = [f64; 4];

impl Acrobot {
    /// The bare physics: an episode lasts until it terminates.
    #[must_use]
    pub fn new() -> Self {
        let [first, second] = MAX_SPEEDS.map(|speed| speed as f32);
        let high = [1.0, 1.0, 1.0, 1.0, first, second];
        let observation = interval(high.map(|bound| -bound), high);
        Self {
            state: None,
            rng: EnvRng::new(),
            spec: Arc::new(EnvSpec::new("Acrobot-v1", observation, Spec::discrete(3))),
        }
    }

    /// `Acrobot-v1`: truncated after 500 steps.
    #[must_use]
    pub fn v1() -> TimeLimit<Self> {
        TimeLimit::of(Self::new(), 500)
    }
}

impl Default for Acrobot {
    fn default() -> Self {
        Self::new()
    }
}

/// How fast `state` changes under `torque`.
///
/// The motion is chaotic: a single other bit here leads to other episodes than Gymnasium's.
#[inline(always)]
fn derivative(state: Joints, torque: f64) -> Joints {
    let [theta1, theta2, dtheta1, dtheta2] = state;
    let (sin2, cos2) = theta2.sin_cos();
    let d1 = 0.25 + (1.25 + cos2) + 1.0 + 1.0;
    let d2 = (0.25 + 0.5 * cos2) + 1.0;
    let phi2 = 0.5 * GRAVITY * (theta1 + theta2 - FRAC_PI_2).cos();
    let phi1 = -0.5 * square(dtheta2) * sin2 - dtheta2 * dtheta1 * sin2
        + 1.5 * GRAVITY * (theta1 - FRAC_PI_2).cos()
        + phi2;
    let ddtheta2 =
        (torque + d2 / d1 * phi1 - 0.5 * square(dtheta1) * sin2 - phi2) / (1.25 - square(d2) / d1);
    let ddtheta1 = -(d2 * ddtheta2 + phi1) / d1;
    [dtheta1, dtheta2, ddtheta1, ddtheta2]
}

/// One step of the classic Runge-Kutta method of fourth order.
#[inline(always)]
fn advance(state: Joints, torque: f64) -> Joints {
    let along =
        |slope: Joints, dt: f64| -> Joints { std::array::from_fn(|i| state[i] + dt * slope[i]) };
    let k1 = derivative(state, torque);
    let k2 = derivative(along(k1, DT / 2.0), torque);
    let k3 = derivative(along(k2, DT / 2.0), torque);
    let k4 = derivative(along(k3, DT), torque);
    let [theta1, theta2, dtheta1, dtheta2] =
        std::array::from_fn(|i| state[i] + DT / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]));
    let [fastest1, fastest2] = MAX_SPEEDS;
    [
        turned_back(theta1),
        turned_back(theta2),
        dtheta1.clamp(-fastest1, fastest1),
        dtheta2.clamp(-fastest2, fastest2),
    ]
}

/// The same angle in `[-π, π]`, by whole turns: a remainder would round differently.
#[inline(always)]
fn turned_back(mut angle: f64) -> f64 {
    while angle > PI {
        angle -= TAU;
    }
    while angle < -PI {
        angle += TAU;
    }
    angle
}

/// Cosine and sine of an angle of at most 0.1 as NumPy computes them in `float32`, which is how Gymnasium observes the
/// start of an episode: by polynomials and fused multiply-adds, not by `libm`.
///
/// Source: NumPy's `loops_trigonometric.dispatch.c.src` (coefficients), for processors that have FMA.
fn narrow_cos_sin(angle: f32) -> (f32, f32) {
    const COS: [u32; 3] = [0x37cc_730b, 0xbab6_036e, 0x3d2a_aa9e];
    const SIN: [u32; 4] = [0x363e_9dde, 0xb950_35dd, 0x3c08_88cd, 0xbe2a_aaab];
    let square = angle * angle;
    let horner = |sum: f32, coefficient: f32| sum.mul_add(square, coefficient);
    let [first, rest @ ..] = COS.map(f32::from_bits);
    let cos = rest.into_iter().chain([-0.5, 1.0]).fold(first, horner);
    let [first, rest @ ..] = SIN.map(f32::from_bits);
    let sin = rest.into_iter().fold(first, horner);
    let sin = (sin * square).mul_add(angle, angle);
    (cos, sin)
}

impl Env for Acrobot {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        let start: Joints = self.rng.for_reset(seed).uniform_array(-0.1, 0.1);
        let start @ [theta1, theta2, dtheta1, dtheta2] = start.map(|x| x as f32);
        self.state = Some(start.map(f64::from));
        let ((cos1, sin1), (cos2, sin2)) = (narrow_cos_sin(theta1), narrow_cos_sin(theta2));
        Ok(obs.write(OBSERVATION, &[cos1, sin1, cos2, sin2, dtheta1, dtheta2])?)
    }

    #[inline(always)]
    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let torque = choice(action, &TORQUES)?;
        let Some(state) = &mut self.state else {
            return Err(EnvError::NotReset);
        };
        *state = advance(*state, torque);
        let [theta1, theta2, dtheta1, dtheta2] = *state;
        let ((sin1, cos1), (sin2, cos2)) = (theta1.sin_cos(), theta2.sin_cos());
        let seen = [cos1, sin1, cos2, sin2, dtheta1, dtheta2];
        obs.write(OBSERVATION, &seen.map(|x| x as f32))?;
        let terminated = -cos1 - (theta2 + theta1).cos() > 1.0;
        Ok(Outcome {
            reward: if terminated { 0.0 } else { -1.0 },
            terminated,
            truncated: false,
        })
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.value(&mut self.state)?;
        state.value(&mut self.rng)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Driver, assert_choices_are_checked, assert_seeds_are_kept};

    #[test]
    fn first_steps_are_those_of_gymnasium() {
        let (observations, rewards) = Driver::new(Acrobot::v1()).play(42, &[2i64, 0]);
        let expected = [
            [
                0.99849933,
                0.054763798,
                0.99992526,
                -0.012224007,
                0.07171959,
                0.039473604,
            ],
            [
                0.9988263,
                0.048435498,
                0.99933636,
                0.03642501,
                -0.13198231,
                0.43717727,
            ],
            [
                0.99949586,
                0.03174992,
                0.99626994,
                0.08629172,
                -0.03034727,
                0.051864672,
            ],
        ];
        assert_eq!(observations, expected);
        assert_eq!(rewards, [-1.0, -1.0]);
    }

    #[test]
    fn angles_turn_back_by_whole_turns() {
        assert_eq!(turned_back(PI), PI);
        assert_eq!(turned_back(4.0), 4.0 - TAU);
        assert_eq!(turned_back(-16.0), -16.0 + TAU + TAU + TAU);
    }

    #[test]
    fn narrow_cosine_and_sine_are_accurate() {
        for i in -1000..=1000 {
            let angle = i as f32 * 1e-4;
            let (cos, sin) = narrow_cos_sin(angle);
            assert!((f64::from(cos) - f64::from(angle).cos()).abs() < 7e-8);
            assert!((f64::from(sin) - f64::from(angle).sin()).abs() < 7e-9);
        }
    }

    #[test]
    fn swinging_up_terminates_without_a_penalty() {
        let mut env = Driver::new(Acrobot::v1());
        env.reset(Some(0));
        let end = loop {
            let along = env.observation::<f32>()[4] > 0.0;
            let outcome = env.step(if along { 0i64 } else { 2 }).unwrap();
            if outcome.terminated || outcome.truncated {
                break outcome;
            }
            assert_eq!(outcome.reward, -1.0);
        };
        assert_eq!((end.reward, end.terminated), (0.0, true));
    }

    #[test]
    fn checks_actions_and_keeps_seeds() {
        assert_choices_are_checked(Acrobot::new(), 3);
        assert_seeds_are_kept(Acrobot::new);
    }
}
