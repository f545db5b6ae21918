use std::f64::consts::{FRAC_PI_2, PI, TAU};
use std::sync::Arc;

use pulp::Simd;
use windrow_slab::{Row, RowMut};

use super::columns::{Columns, Physics, at_once, column, each};
use super::sines::{cos_each, for_each, sin_cos, sin_cos_each};
use super::space::{OBSERVATION, choice, interval, meaning_compared, visit_motion};
use crate::numpy_pow::{by_libm, is_square, square};
use crate::{AtOnce, Env, EnvError, EnvRng, EnvSpec, Outcome, Spec, StateVisitor, TimeLimit};

const GRAVITY: f64 = 9.8;
/// Seconds of one step.
const DT: f64 = 0.2;
/// Fastest rotation of the first and the second joint, in rad/s.
const MAX_SPEEDS: [f64; 2] = [4.0 * PI, 9.0 * PI];
/// Torque on the second joint, in N·m.
const TORQUES: [f64; 3] = [-1.0, 0.0, 1.0];

/// The greatest absolute values of [`Joints`] that a step reaches.
const REACH: [f64; 4] = [PI, PI, MAX_SPEEDS[0], MAX_SPEEDS[1]];

/// Two links hanging from one another: swing the free end above the height of one link.
///
/// Observation `float32 [6]`: cosine and sine of the first joint's angle (0 hangs down), of the
/// second's (relative to the first link), and both angular velocities (rad/s). Action `int64`:
/// torque on the second joint, 0 is -1 N·m, 1 none, 2 is +1 N·m. Reward -1 a step, 0 for the one
/// that reaches the height and terminates.
///
/// [`new`](Self::new) is the bare physics, [`v1`](Self::v1) is Gymnasium's `Acrobot-v1`.
///
/// Source: R. S. Sutton, "Generalization in reinforcement learning: successful examples using
/// sparse coarse coding" (1996), with the equations of Sutton and Barto's book, as in Gymnasium;
/// links of 1 m and 1 kg with their centre of mass in the middle and a moment of inertia of 1
/// kg·m².
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

/// What the motion needs of a state beside its numbers.
struct Parts {
    /// Sine and cosine of the second joint's angle.
    second: (f64, f64),
    /// Cosines of the angles of the first and of both links with the horizontal.
    level: [f64; 2],
    /// Squares of both velocities, and of [`coupling`].
    squares: [f64; 3],
}

impl Parts {
    #[inline(always)]
    fn of(state: Joints) -> Self {
        let [_, theta2, dtheta1, dtheta2] = state;
        let second = sin_cos(theta2);
        Self {
            second,
            level: tilts(state).map(f64::cos),
            squares: [square(dtheta1), square(dtheta2), square(coupling(second.1))],
        }
    }
}

/// Angles of the first and of both links with the horizontal.
#[inline(always)]
fn tilts([theta1, theta2, ..]: Joints) -> [f64; 2] {
    [theta1 - FRAC_PI_2, theta1 + theta2 - FRAC_PI_2]
}

#[inline(always)]
fn coupling(cos2: f64) -> f64 {
    (0.25 + 0.5 * cos2) + 1.0
}

/// How fast `state` changes under `torque`.
///
/// The motion is chaotic: a single other bit here leads to other episodes than Gymnasium's.
#[inline(always)]
fn derivative(state: Joints, torque: f64, parts: &Parts) -> Joints {
    let [_, _, dtheta1, dtheta2] = state;
    let (sin2, cos2) = parts.second;
    let [square1, square2, square_coupling] = parts.squares;
    let d1 = 0.25 + (1.25 + cos2) + 1.0 + 1.0;
    let d2 = coupling(cos2);
    let phi2 = 0.5 * GRAVITY * parts.level[1];
    let phi1 =
        -0.5 * square2 * sin2 - dtheta2 * dtheta1 * sin2 + 1.5 * GRAVITY * parts.level[0] + phi2;
    let ddtheta2 =
        (torque + d2 / d1 * phi1 - 0.5 * square1 * sin2 - phi2) / (1.25 - square_coupling / d1);
    let ddtheta1 = -(d2 * ddtheta2 + phi1) / d1;
    [dtheta1, dtheta2, ddtheta1, ddtheta2]
}

/// One step of the classic Runge-Kutta method of fourth order.
#[inline(always)]
fn advance(state: Joints, torque: f64) -> Joints {
    let slope = |state: Joints| derivative(state, torque, &Parts::of(state));
    let k1 = slope(state);
    let k2 = slope(along(state, k1, DT / 2.0));
    let k3 = slope(along(state, k2, DT / 2.0));
    let k4 = slope(along(state, k3, DT));
    bounded(summed(state, [k1, k2, k3, k4]))
}

/// `state` a time `dt` later.
#[inline(always)]
fn along(state: Joints, slope: Joints, dt: f64) -> Joints {
    std::array::from_fn(|i| state[i] + dt * slope[i])
}

/// `state` a step later.
#[inline(always)]
fn summed(state: Joints, [k1, k2, k3, k4]: [Joints; 4]) -> Joints {
    std::array::from_fn(|i| state[i] + DT / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]))
}

#[inline(always)]
fn bounded([theta1, theta2, dtheta1, dtheta2]: Joints) -> Joints {
    let [fastest1, fastest2] = MAX_SPEEDS;
    [
        turned_back(theta1),
        turned_back(theta2),
        dtheta1.clamp(-fastest1, fastest1),
        dtheta2.clamp(-fastest2, fastest2),
    ]
}

/// The joints of each of many environments.
type ManyJoints<const L: usize> = [[f64; L]; 4];

/// The joints of environment `i`.
#[inline(always)]
fn joints<const L: usize>(columns: &ManyJoints<L>, i: usize) -> Joints {
    [columns[0][i], columns[1][i], columns[2][i], columns[3][i]]
}

/// Joints of many environments by those of each.
#[inline(always)]
fn gathered<const L: usize>(mut of: impl FnMut(usize) -> Joints) -> ManyJoints<L> {
    let mut columns = [[0.0; L]; 4];
    each::<L>(
        #[inline(always)]
        |i| {
            let joints = of(i);
            for n in 0..4 {
                columns[n][i] = joints[n];
            }
        },
    );
    columns
}

/// As [`derivative`], of many environments.
#[inline(always)]
fn derivatives<const L: usize>(
    simd: impl Simd,
    state: &ManyJoints<L>,
    torque: &[f64; L],
) -> ManyJoints<L> {
    let (sines, cosines) = sin_cos_each(simd, &state[1]);
    let first: [f64; L] = column(
        #[inline(always)]
        |i| tilts(joints(state, i))[0],
    );
    let both: [f64; L] = column(
        #[inline(always)]
        |i| tilts(joints(state, i))[1],
    );
    let level = (cos_each(simd, &first), cos_each(simd, &both));
    let couplings: [f64; L] = column(
        #[inline(always)]
        |i| coupling(cosines[i]),
    );
    let of_first = squares(&state[2]);
    let of_second = squares(&state[3]);
    let of_couplings = squares(&couplings);
    gathered(
        #[inline(always)]
        |i| {
            let parts = Parts {
                second: (sines[i], cosines[i]),
                level: [level.0[i], level.1[i]],
                squares: [of_first[i], of_second[i], of_couplings[i]],
            };
            derivative(joints(state, i), torque[i], &parts)
        },
    )
}

/// The squares of many numbers, each as [`square`] computes it.
#[inline(always)]
fn squares<const N: usize>(numbers: &[f64; N]) -> [f64; N] {
    let (mut squares, mut unsure) = ([0.0; N], [0; N]);
    each::<N>(
        #[inline(always)]
        |i| {
            squares[i] = numbers[i] * numbers[i];
            unsure[i] = u8::from(!is_square(numbers[i], squares[i]));
        },
    );
    for_each::<N>(&unsure, |i| squares[i] = by_libm(numbers[i]));
    squares
}

/// As [`along`], of many environments.
#[inline(always)]
fn later<const L: usize>(start: &ManyJoints<L>, slope: &ManyJoints<L>, dt: f64) -> ManyJoints<L> {
    gathered(
        #[inline(always)]
        |i| along(joints(start, i), joints(slope, i), dt),
    )
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

/// Cosine and sine of an angle of at most 0.1 as NumPy computes them in `float32`, which is how
/// Gymnasium observes the start of an episode: by polynomials and fused multiply-adds, not by
/// `libm`.
///
/// Source: NumPy's `loops_trigonometric.dispatch.c.src` (coefficients), for processors that have
/// FMA.
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

/// Whether the free end is above the height, given the cosines of the first link's angle and of
/// both, and the reward.
#[inline(always)]
fn ending(cos1: f64, cos12: f64) -> (bool, f32) {
    let terminated = -cos1 - cos12 > 1.0;
    (terminated, if terminated { 0.0 } else { -1.0 })
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
        let [(sin1, cos1), (sin2, cos2)] = [theta1, theta2].map(sin_cos);
        let seen = [cos1, sin1, cos2, sin2, dtheta1, dtheta2];
        obs.write(OBSERVATION, &seen.map(|x| x as f32))?;
        let (terminated, reward) = ending(cos1, (theta2 + theta1).cos());
        Ok(Outcome {
            reward,
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
        visit_motion(state, reach, &mut self.state, |joints| joints)?;
        state.value(&mut self.rng)
    }
}

impl Physics<4, 6> for Acrobot {
    type Action = i64;

    #[inline(always)]
    fn meaning(action: i64) -> Option<f64> {
        meaning_compared(action, &TORQUES)
    }

    #[inline(always)]
    fn state(&self) -> Option<Joints> {
        self.state
    }

    #[inline(always)]
    fn keep(&mut self, state: Joints) {
        self.state = Some(state);
    }

    #[inline(always)]
    fn advance<S: Simd, const L: usize>(simd: S, columns: &mut Columns<4, 6, L>) {
        let (start, torque) = (columns.state, columns.action);
        let k1 = derivatives(simd, &start, &torque);
        let k2 = derivatives(simd, &later(&start, &k1, DT / 2.0), &torque);
        let k3 = derivatives(simd, &later(&start, &k2, DT / 2.0), &torque);
        let k4 = derivatives(simd, &later(&start, &k3, DT), &torque);
        let end: ManyJoints<L> = gathered(
            #[inline(always)]
            |i| {
                let slopes = [
                    joints(&k1, i),
                    joints(&k2, i),
                    joints(&k3, i),
                    joints(&k4, i),
                ];
                summed(joints(&start, i), slopes)
            },
        );
        columns.state = gathered(
            #[inline(always)]
            |i| bounded(joints(&end, i)),
        );
        let [theta1, theta2, dtheta1, dtheta2] = columns.state;
        let (first, second) = (sin_cos_each(simd, &theta1), sin_cos_each(simd, &theta2));
        let both: [f64; L] = column(
            #[inline(always)]
            |i| theta2[i] + theta1[i],
        );
        let both = cos_each(simd, &both);
        each::<L>(
            #[inline(always)]
            |i| {
                let ((sin1, cos1), (sin2, cos2)) =
                    ((first.0[i], first.1[i]), (second.0[i], second.1[i]));
                let seen = [cos1, sin1, cos2, sin2, dtheta1[i], dtheta2[i]];
                columns.observe(i, seen.map(|x| x as f32));
                (columns.terminated[i], columns.reward[i]) = ending(cos1, both[i]);
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
