//! Native environments stepped many at once, a column a number of their states, so that the compiler uses vector instructions.
//!
//! Each environment keeps its state itself, wherever it is stepped: [`step_many`] reads the states of 16 or 8 environments, computes
//! with columns of them, and writes the states back. The arithmetic is that of one environment, operation by operation, so that both
//! ways give the same bits.

use pulp::{Arch, Simd, WithSimd};
use tensordict::Element;
use windrow_slab::{Key, Rows, RowsMut};

use super::space::OBSERVATION;
use crate::{Env, Outcomes};

/// Environments that are computed at once: two vectors of the widest instructions.
const WIDE: usize = 16;
/// As many at once, where no more are left.
const NARROW: usize = 8;
/// Fewer are stepped one after the other.
const FEW: usize = 6;

/// Calls `f` with each place of a column. It and what it calls must be compiled into their caller, whose vector instructions they have
/// nowhere else: closures say `inline(always)`, and methods of iterators are no alternative.
#[inline(always)]
pub(super) fn each<const N: usize>(mut f: impl FnMut(usize)) {
    for i in 0..N {
        f(i);
    }
}

/// The column of what `f` returns for each place.
#[inline(always)]
pub(super) fn column<const N: usize>(mut f: impl FnMut(usize) -> f64) -> [f64; N] {
    let mut column = [0.0; N];
    for (i, value) in column.iter_mut().enumerate() {
        *value = f(i);
    }
    column
}

/// An environment whose state is `N` numbers and whose observation is `M`.
pub(super) trait Physics<const N: usize, const M: usize>: Env + Sized {
    /// Elements of the action.
    type Action: Element + Copy;

    /// The number that `action` stands for in [`advance`](Self::advance); `None` if it is none.
    fn meaning(action: Self::Action) -> Option<f64>;

    /// The present state; `None` before the first reset.
    fn state(&self) -> Option<[f64; N]>;

    /// Takes the state after a step. `reward` is that of the step, and may be changed by what is remembered beside the state.
    fn keep(&mut self, state: [f64; N], terminated: bool, reward: &mut f32);

    /// One step of all.
    fn advance<S: Simd, const L: usize>(simd: S, columns: &mut Columns<N, M, L>);
}

/// States, actions and results of `L` environments in one step.
pub(super) struct Columns<const N: usize, const M: usize, const L: usize> {
    pub(super) state: [[f64; L]; N],
    /// [Meanings](Physics::meaning) of actions.
    pub(super) action: [f64; L],
    /// Written by the step, as what follows.
    pub(super) observation: [[f32; L]; M],
    pub(super) reward: [f32; L],
    pub(super) terminated: [bool; L],
}

impl<const N: usize, const M: usize, const L: usize> Columns<N, M, L> {
    #[inline(always)]
    fn new() -> Self {
        Self {
            state: [[0.0; L]; N],
            action: [0.0; L],
            observation: [[0.0; L]; M],
            reward: [0.0; L],
            terminated: [false; L],
        }
    }

    /// Writes what environment `i` observes.
    #[expect(
        clippy::needless_range_loop,
        reason = "enumerated, loops are not inlined"
    )]
    #[inline(always)]
    pub(super) fn observe(&mut self, i: usize, observation: [f32; M]) {
        for m in 0..M {
            self.observation[m][i] = observation[m];
        }
    }
}

/// Steps environments from the first one on, each the part `own` of one of `worlds`, and returns how many: those whose number is not
/// worth it are left, and those from the first on that cannot be stepped.
#[inline]
pub(super) fn step_many<E, W, const N: usize, const M: usize>(
    worlds: &mut [W],
    own: impl Fn(&mut W) -> &mut E,
    actions: Rows<'_>,
    mut obs: RowsMut<'_>,
    outcomes: Outcomes<'_>,
) -> usize
where
    E: Physics<N, M>,
{
    let Ok(actions) = actions.get(Key::<E::Action>::new(0)) else {
        return 0;
    };
    let Ok(obs) = obs.get_mut(OBSERVATION) else {
        return 0;
    };
    let (rows, _) = obs.as_chunks_mut::<M>();
    let many = Many {
        worlds,
        own,
        actions,
        rows,
        outcomes,
    };
    Arch::new().dispatch(many)
}

/// The arguments of [`step_many`].
struct Many<'a, E: Physics<N, M>, W, F, const N: usize, const M: usize> {
    worlds: &'a mut [W],
    own: F,
    actions: &'a [E::Action],
    rows: &'a mut [[f32; M]],
    outcomes: Outcomes<'a>,
}

impl<E, W, F, const N: usize, const M: usize> WithSimd for Many<'_, E, W, F, N, M>
where
    E: Physics<N, M>,
    F: Fn(&mut W) -> &mut E,
{
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) -> usize {
        // Without vectors, columns gain nothing.
        if S::F64_LANES == 1 {
            return 0;
        }
        let all = self.worlds.len();
        let mut stepped = 0;
        if all > NARROW {
            let mut columns = Columns::<N, M, WIDE>::new();
            while all - stepped > NARROW {
                match self.step(simd, stepped, &mut columns) {
                    Some(count) => stepped += count,
                    None => return stepped,
                }
            }
        }
        if all - stepped >= FEW {
            let mut columns = Columns::<N, M, NARROW>::new();
            stepped += self.step(simd, stepped, &mut columns).unwrap_or(0);
        }
        stepped
    }
}

impl<E, W, F, const N: usize, const M: usize> Many<'_, E, W, F, N, M>
where
    E: Physics<N, M>,
    F: Fn(&mut W) -> &mut E,
{
    /// Steps as many environments from `first` on as `columns` have place for, and returns how many; `None` if one of them cannot be stepped.
    #[inline(always)]
    fn step<S: Simd, const L: usize>(
        &mut self,
        simd: S,
        first: usize,
        columns: &mut Columns<N, M, L>,
    ) -> Option<usize> {
        let count = L.min(self.worlds.len() - first);
        self.read(first, count, columns)?;
        E::advance(simd, columns);
        self.write(first, count, columns);
        Some(count)
    }

    /// Reads states and actions of `count` environments from `first` on; `None` if one of them cannot be stepped.
    #[expect(
        clippy::needless_range_loop,
        reason = "enumerated, loops are not inlined"
    )]
    #[inline(always)]
    fn read<const L: usize>(
        &mut self,
        first: usize,
        count: usize,
        columns: &mut Columns<N, M, L>,
    ) -> Option<()> {
        let worlds = &mut self.worlds[first..][..count];
        let actions = &self.actions[first..][..count];
        for i in 0..count {
            columns.action[i] = E::meaning(actions[i])?;
            let state = (self.own)(&mut worlds[i]).state()?;
            for n in 0..N {
                columns.state[n][i] = state[n];
            }
        }
        Some(())
    }

    /// Writes what followed.
    #[expect(
        clippy::needless_range_loop,
        reason = "enumerated, loops are not inlined"
    )]
    #[inline(always)]
    fn write<const L: usize>(&mut self, first: usize, count: usize, columns: &Columns<N, M, L>) {
        let worlds = &mut self.worlds[first..][..count];
        let rows = &mut self.rows[first..][..count];
        let rewards = &mut self.outcomes.reward[first..][..count];
        let terminated = &mut self.outcomes.terminated[first..][..count];
        for i in 0..count {
            let state = column(
                #[inline(always)]
                |n| columns.state[n][i],
            );
            for m in 0..M {
                rows[i][m] = columns.observation[m][i];
            }
            (rewards[i], terminated[i]) = (columns.reward[i], columns.terminated[i]);
            (self.own)(&mut worlds[i]).keep(state, terminated[i], &mut rewards[i]);
        }
        self.outcomes.truncated[first..][..count].fill(false);
    }
}

#[cfg(test)]
mod tests {
    use windrow_slab::RowBlock;

    use super::*;
    use crate::{
        Acrobot, CartPole, EnvError, MountainCar, MountainCarContinuous, NumpyRng, Pendulum, Reset,
        Serial, Spec, StateVisitor, TimeLimit, VecEnv, VecEnvError,
    };

    /// Environments with their rows.
    struct Stepped<E> {
        envs: Serial<E>,
        actions: RowBlock,
        obs: RowBlock,
        reward: Vec<f32>,
        terminated: Vec<bool>,
        truncated: Vec<bool>,
    }

    impl<E: Env> Stepped<E> {
        fn new(count: usize, make: impl Fn() -> E) -> Self {
            let mut envs = Serial::from_fn(count, make).unwrap();
            let actions = RowBlock::new(&envs.spec().action_leaves(), count).unwrap();
            let mut obs = RowBlock::new(&envs.spec().observation_leaves(), count).unwrap();
            let seeded = |env| Reset {
                env,
                seed: Some(env as u64),
            };
            let resets: Vec<_> = (0..count).map(seeded).collect();
            envs.reset(&resets, obs.rows_mut()).unwrap();
            Self {
                envs,
                actions,
                obs,
                reward: vec![9.0; count],
                terminated: vec![true; count],
                truncated: vec![true; count],
            }
        }

        /// Draws actions, some of which are beyond the bounds of a continuous one.
        fn draw(&mut self, rng: &mut NumpyRng) {
            let choices = match self.envs.spec().action {
                Spec::Discrete { n } => n as u32,
                _ => 0,
            };
            let mut rows = self.actions.rows_mut();
            if choices > 0 {
                let actions = rows.get_mut(Key::<i64>::new(0)).unwrap();
                actions.fill_with(|| i64::from(rng.integers(choices)));
            } else {
                let actions = rows.get_mut(Key::<f32>::new(0)).unwrap();
                actions.fill_with(|| rng.uniform(-2.5, 2.5) as f32);
            }
        }

        /// Steps all, at once or one after the other.
        fn step(&mut self, at_once: bool) -> Result<(), VecEnvError> {
            let outcomes = Outcomes {
                reward: &mut self.reward,
                terminated: &mut self.terminated,
                truncated: &mut self.truncated,
            };
            let (actions, obs) = (self.actions.rows(), self.obs.rows_mut());
            match at_once {
                true => self.envs.step(actions, obs, outcomes),
                false => {
                    let all: Vec<_> = (0..self.envs.num_envs()).collect();
                    self.envs.step_some(&all, actions, obs, outcomes)
                }
            }
        }

        /// Everything that a step can write, as bytes: observations, rewards, both flags and the environments' states.
        fn seen(&mut self) -> [Vec<u8>; 5] {
            let obs = self.obs.rows().get(OBSERVATION).unwrap();
            let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_ne_bytes()).collect();
            let flags = |flags: &[bool]| flags.iter().map(|flag| u8::from(*flag)).collect();
            let mut state = StateVisitor::saving();
            self.envs.visit_state(&mut state).unwrap();
            [
                bytes(obs),
                bytes(&self.reward),
                flags(&self.terminated),
                flags(&self.truncated),
                state.finish().unwrap(),
            ]
        }

        /// Begins an episode where one has ended.
        fn reset_ended(&mut self) {
            let ended = |&env: &usize| self.terminated[env] | self.truncated[env];
            let ended = (0..self.reward.len()).filter(ended);
            let resets: Vec<_> = ended.map(|env| Reset { env, seed: None }).collect();
            self.envs.reset(&resets, self.obs.rows_mut()).unwrap();
        }
    }

    /// Steps 12 environments, a part of wide columns, and 39, two of them and a part of narrow ones.
    fn assert_alike<E: Env>(steps: usize, make: impl Fn() -> E) {
        for count in [12, 39] {
            assert_count_alike(count, steps, &make);
        }
    }

    /// Steps `count` environments at once, one after the other, and both ways in turns.
    fn assert_count_alike<E: Env>(count: usize, steps: usize, make: &impl Fn() -> E) {
        let mut runs = [(); 3].map(|()| (Stepped::new(count, make), NumpyRng::new(5)));
        let mut ends = 0;
        for step in 0..steps {
            for ((envs, rng), at_once) in runs.iter_mut().zip([true, false, step % 5 < 3]) {
                envs.draw(rng);
                envs.step(at_once).unwrap();
            }
            let [(at_once, _), (each, _), (mixed, _)] = &mut runs;
            // Not after every step: an environment whose state is saved forgets what a step has computed ahead.
            if step % 7 == 6 {
                assert_eq!(at_once.seen(), each.seen(), "step {step}");
                assert_eq!(mixed.seen(), each.seen(), "step {step}");
            }
            ends += at_once.truncated.iter().filter(|cut| **cut).count();
            // Some go on after their end, as they may.
            if step % 3 > 0 {
                runs.iter_mut().for_each(|(envs, _)| envs.reset_ended());
            }
        }
        assert!(ends > 0);
    }

    #[test]
    fn cart_poles_step_alike_at_once_and_one_after_the_other() {
        assert_alike(2_000, || TimeLimit::new(CartPole::new(), 30).unwrap());
    }

    #[test]
    fn pendulums_step_alike_at_once_and_one_after_the_other() {
        assert_alike(1_000, Pendulum::v1);
    }

    #[test]
    fn mountain_cars_step_alike_at_once_and_one_after_the_other() {
        assert_alike(1_000, MountainCar::v0);
    }

    #[test]
    fn continuous_mountain_cars_step_alike_at_once_and_one_after_the_other() {
        assert_alike(3_000, MountainCarContinuous::v0);
    }

    #[test]
    fn acrobots_step_alike_at_once_and_one_after_the_other() {
        assert_alike(1_100, Acrobot::v1);
    }

    #[test]
    fn an_action_that_is_none_stops_at_its_environment() {
        for wrong in [20, 36] {
            let mut envs = Stepped::new(39, CartPole::v1);
            let mut each = Stepped::new(39, CartPole::v1);
            for stepped in [&mut envs, &mut each] {
                let mut rows = stepped.actions.rows_mut();
                rows.get_mut(Key::<i64>::new(0)).unwrap()[wrong] = 2;
            }
            let error = envs.step(true).unwrap_err();
            assert_eq!(error.env, wrong);
            assert!(matches!(error.source, EnvError::Action { .. }));
            assert_eq!(each.step(false).unwrap_err().env, wrong);
            assert_eq!(envs.seen(), each.seen());
        }
    }
}
