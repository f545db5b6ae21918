//! Native environments stepped many at once, a column a number of their states, so that the
//! compiler uses vector instructions.
//!
//! States stay in columns from step to step, 16 environments a block. The arithmetic is that of one
//! environment, operation by operation, so that both ways give the same bits.

use std::marker::PhantomData;

use pulp::{Arch, Simd, WithSimd};
use tensordict::Element;
use windrow_slab::{Key, Rows, RowsMut};

use super::space::OBSERVATION;
use crate::{AtOnce, Env, Outcomes};

/// Environments of a block: two vectors of the widest instructions.
const WIDE: usize = 16;
/// As many of the last block are computed at once, where it has no more.
const NARROW: usize = 8;
/// Fewer are stepped one after the other.
const FEW: usize = 6;

/// Calls `f` with each place of a column. It and what it calls must be compiled into their caller,
/// whose vector instructions they have nowhere else: closures say `inline(always)`, and methods of
/// iterators are no alternative.
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

    /// Takes the state after a step.
    fn keep(&mut self, state: [f64; N]);

    /// One step of all.
    fn advance<S: Simd, const L: usize>(simd: S, columns: &mut Columns<N, M, L>);
}

/// States, actions and results of `L` environments in one step, in this order: vectors that begin
/// where a line of the cache does are read and written faster.
#[repr(C, align(64))]
pub(super) struct Columns<const N: usize, const M: usize, const L: usize> {
    pub(super) state: [[f64; L]; N],
    /// [Meanings](Physics::meaning) of actions.
    pub(super) action: [f64; L],
    /// Written by the step, as what follows.
    pub(super) observation: [[f32; M]; L],
    pub(super) reward: [f32; L],
    pub(super) terminated: [bool; L],
}

impl<const N: usize, const M: usize, const L: usize> Columns<N, M, L> {
    #[inline(always)]
    fn new() -> Self {
        Self {
            state: [[0.0; L]; N],
            action: [0.0; L],
            observation: [[0.0; M]; L],
            reward: [0.0; L],
            terminated: [false; L],
        }
    }

    /// Writes what environment `i` observes.
    #[inline(always)]
    pub(super) fn observe(&mut self, i: usize, observation: [f32; M]) {
        self.observation[i] = observation;
    }
}

/// The states of a block of environments, a column a number.
#[derive(Clone)]
#[repr(align(64))]
struct Block<const N: usize>([[f64; WIDE]; N]);

/// The states of a number of environments.
struct Blocks<E, const N: usize, const M: usize> {
    states: Vec<Block<N>>,
    of: PhantomData<fn() -> E>,
}

/// Columns for the states of `count` environments; `None` if they gain nothing.
pub(super) fn at_once<E, const N: usize, const M: usize>(count: usize) -> Option<Box<dyn AtOnce<E>>>
where
    E: Physics<N, M> + 'static,
{
    if count < FEW || !Arch::new().dispatch(HasVectors) {
        return None;
    }
    Some(Box::new(Blocks::<E, N, M> {
        states: vec![Block([[0.0; WIDE]; N]); count.div_ceil(WIDE)],
        of: PhantomData,
    }))
}

struct HasVectors;

impl WithSimd for HasVectors {
    type Output = bool;

    fn with_simd<S: Simd>(self, _: S) -> bool {
        S::F64_LANES > 1
    }
}

impl<E, const N: usize, const M: usize> AtOnce<E> for Blocks<E, N, M>
where
    E: Physics<N, M> + 'static,
{
    fn load(&mut self, place: usize, env: &E) -> bool {
        let Some(state) = env.state() else {
            return false;
        };
        let Block(block) = &mut self.states[place / WIDE];
        for (column, number) in block.iter_mut().zip(state) {
            column[place % WIDE] = number;
        }
        true
    }

    fn store(&self, place: usize, env: &mut E) {
        let Block(block) = &self.states[place / WIDE];
        env.keep(std::array::from_fn(|n| block[n][place % WIDE]));
    }

    fn step(&mut self, actions: Rows<'_>, mut obs: RowsMut<'_>, outcomes: Outcomes<'_>) -> usize {
        let (Ok(actions), Ok(obs)) = (actions.get(Key::new(0)), obs.get_mut(OBSERVATION)) else {
            return 0;
        };
        let (rows, _) = obs.as_chunks_mut();
        Arch::new().dispatch(Step::<E, N, M> {
            states: &mut self.states,
            actions,
            rows,
            outcomes,
        })
    }

    fn copied(&self) -> Box<dyn AtOnce<E>> {
        Box::new(Self {
            states: self.states.clone(),
            of: PhantomData,
        })
    }
}

/// The arguments of a step.
struct Step<'a, E: Physics<N, M>, const N: usize, const M: usize> {
    states: &'a mut [Block<N>],
    actions: &'a [E::Action],
    rows: &'a mut [[f32; M]],
    outcomes: Outcomes<'a>,
}

impl<E, const N: usize, const M: usize> WithSimd for Step<'_, E, N, M>
where
    E: Physics<N, M>,
{
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        self.step(simd)
    }
}

impl<E, const N: usize, const M: usize> Step<'_, E, N, M>
where
    E: Physics<N, M>,
{
    /// Steps environments from the first one on, and returns how many.
    #[inline(always)]
    fn step(mut self, simd: impl Simd) -> usize {
        let all = self.actions.len();
        let mut stepped = 0;
        if all > NARROW {
            let mut columns = Columns::<N, M, WIDE>::new();
            while all - stepped > NARROW {
                match self.step_block(simd, stepped, &mut columns) {
                    0 => break,
                    count => stepped += count,
                }
            }
        }
        if (1..=NARROW).contains(&(all - stepped)) {
            stepped += self.step_block(simd, stepped, &mut Columns::<N, M, NARROW>::new());
        }
        // All at once, since each block would do it by a call.
        self.outcomes.truncated[..stepped].fill(false);
        stepped
    }

    /// Steps the environments of the block from `first` on, and returns how many: none where an
    /// action is none. The compiler uses vectors because nothing else can refer to `columns`, a
    /// variable of the caller.
    #[inline(always)]
    fn step_block<const L: usize>(
        &mut self,
        simd: impl Simd,
        first: usize,
        columns: &mut Columns<N, M, L>,
    ) -> usize {
        let count = L.min(self.actions.len() - first);
        let all = first..first + count;
        let Block(state) = &mut self.states[first / WIDE];
        copy_columns(state, &mut columns.state);
        let mut are_some = true;
        for (place, action) in columns.action.iter_mut().zip(&self.actions[all.clone()]) {
            let meaning = E::meaning(*action);
            are_some &= meaning.is_some();
            *place = meaning.unwrap_or(0.0);
        }
        if !are_some {
            return 0;
        }
        // Places without an environment do as the first one does.
        for i in count..L {
            columns.action[i] = columns.action[0];
            for column in &mut columns.state {
                column[i] = column[0];
            }
        }
        E::advance(simd, columns);
        copy_columns(&columns.state, state);
        let Outcomes {
            reward, terminated, ..
        } = self.outcomes.reborrow();
        copy(&columns.observation, &mut self.rows[all.clone()]);
        copy(&columns.reward, &mut reward[all.clone()]);
        copy(&columns.terminated, &mut terminated[all]);
        count
    }
}

/// Copies the places that both have, place by place: columns as a whole would be copied by calls.
#[inline(always)]
fn copy_columns<const N: usize, const A: usize, const B: usize>(
    from: &[[f64; A]; N],
    to: &mut [[f64; B]; N],
) {
    for i in 0..A.min(B) {
        for n in 0..N {
            to[n][i] = from[n][i];
        }
    }
}

/// Copies `from` to `to`, which may be shorter.
#[inline(always)]
fn copy<T: Copy, const L: usize>(from: &[T; L], to: &mut [T]) {
    match to.first_chunk_mut::<L>() {
        Some(to) => *to = *from,
        None => copy_part(from, to),
    }
}

/// By itself, so that whole blocks are not copied by calls.
#[cold]
fn copy_part<T: Copy>(from: &[T], to: &mut [T]) {
    to.copy_from_slice(&from[..to.len()]);
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

    impl<E: Env + 'static> Stepped<E> {
        fn new(count: usize, make: impl Fn() -> E) -> Self {
            let envs = Serial::from_fn(count, make).unwrap();
            let mut stepped = Self {
                actions: RowBlock::new(&envs.spec().action_leaves(), count).unwrap(),
                obs: RowBlock::new(&envs.spec().observation_leaves(), count).unwrap(),
                envs,
                reward: vec![9.0; count],
                terminated: vec![true; count],
                truncated: vec![true; count],
            };
            stepped.reset();
            stepped
        }

        /// Begins an episode everywhere.
        fn reset(&mut self) {
            let seeded = |env| Reset {
                env,
                seed: Some(env as u64),
            };
            let resets: Vec<_> = (0..self.reward.len()).map(seeded).collect();
            self.envs.reset(&resets, self.obs.rows_mut()).unwrap();
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

        /// Everything that a step can write, as bytes: observations, rewards, both flags and the
        /// environments' states.
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

    /// Steps 12 environments, a part of wide columns, and 39, two of them and a part of narrow
    /// ones.
    fn assert_alike<E: Env + 'static>(steps: usize, make: impl Fn() -> E) {
        for count in [12, 39] {
            assert_count_alike(count, steps, &make);
        }
    }

    /// Steps `count` environments at once, one after the other, and both ways in turns.
    fn assert_count_alike<E: Env + 'static>(count: usize, steps: usize, make: &impl Fn() -> E) {
        let mut runs = [(); 3].map(|()| (Stepped::new(count, make), NumpyRng::new(5)));
        let mut ends = 0;
        for step in 0..steps {
            for ((envs, rng), at_once) in runs.iter_mut().zip([true, false, step % 5 < 3]) {
                envs.draw(rng);
                envs.step(at_once).unwrap();
            }
            let [(at_once, _), (each, _), (mixed, _)] = &mut runs;
            // Not after every step: an environment whose state is saved forgets what a step has
            // computed ahead.
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
    fn limits_around_limits_and_clones_step_alike() {
        let shorter = || TimeLimit::new(CartPole::new(), 9).unwrap();
        assert_alike(200, || TimeLimit::new(shorter(), 30).unwrap());
        let mut envs = Stepped::new(20, || TimeLimit::new(shorter(), 4).unwrap());
        envs.step(true).unwrap();
        let copy = envs.envs.clone();
        envs.step(true).unwrap();
        let seen = envs.seen();
        envs.step(true).unwrap();
        envs.envs = copy;
        envs.step(true).unwrap();
        assert_eq!(envs.seen(), seen);
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
            for (stepped, at_once) in [(&mut envs, true), (&mut each, false)] {
                stepped.draw(&mut NumpyRng::new(1));
                stepped.step(at_once).unwrap();
            }
            assert_eq!(envs.seen(), each.seen());
        }
    }
}
