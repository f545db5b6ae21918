use windrow_slab::{LeafSpec, Rows, RowsMut};

use crate::{
    EnvError, EnvSpec, Gathering, Outcomes, Reset, SpecError, StateVisitor, VecEnv, VecEnvError,
};

/// Environments that begin another episode by themselves, one step after theirs has ended:
/// Gymnasium's mode `NEXT_STEP`.
///
/// That step does not read their action. It writes the first observation of the new episode, a
/// reward of 0 and no flags. The engine's own loops reset environments in the same step and need no
/// such wrapper; it is for those who step by hand.
///
/// ```
/// use windrow_env::{CartPole, NextStep, Outcomes, Reset, Serial, VecEnv};
/// use windrow_slab::RowBlock;
///
/// let mut envs = NextStep::new(Serial::from_fn(1, CartPole::v1)?)?;
/// let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 1)?;
/// let actions = RowBlock::new(&envs.spec().action_leaves(), 1)?;
/// envs.reset(&[Reset { env: 0, seed: Some(0) }], obs.rows_mut())?;
/// let (mut reward, mut terminated, mut truncated) = ([0.0], [false], [false]);
/// let mut rewards = Vec::new();
/// for _ in 0..12 {
///     let outcomes = Outcomes { reward: &mut reward, terminated: &mut terminated, truncated: &mut truncated };
///     envs.step(actions.rows(), obs.rows_mut(), outcomes)?;
///     rewards.push(reward[0]);
/// }
/// // The pole falls in the eleventh step, and the twelfth begins anew.
/// assert_eq!(rewards, [[1.0; 11].as_slice(), &[0.0]].concat());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NextStep<V> {
    envs: V,
    /// Whose episode has ended by the last step.
    ended: Vec<bool>,
    /// The others, and the resets of those; empty between two steps.
    going: Vec<usize>,
    resets: Vec<Reset>,
}

impl<V: VecEnv> NextStep<V> {
    /// The environments `envs` in this mode.
    ///
    /// # Errors
    /// [`SpecError::Argument`] where they can only step together: one that begins anew could not be
    /// left out of a step.
    pub fn new(envs: V) -> Result<Self, EnvError> {
        let count = envs.num_envs();
        if !envs.step_apart() {
            return Err(SpecError::Argument {
                argument: "environments",
                of: envs.spec().id.clone(),
                expected: "some that step alone, since NEXT_STEP leaves those out that begin anew"
                    .to_owned(),
                got: format!("{count} that step together"),
            }
            .into());
        }
        Ok(Self {
            ended: vec![false; count],
            going: Vec::with_capacity(count),
            resets: Vec::with_capacity(count),
            envs,
        })
    }

    /// Steps those whose episodes go on, and resets the others.
    fn step_or_reset(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.going.clear();
        self.resets.clear();
        for (env, &ended) in self.ended.iter().enumerate() {
            match ended {
                true => self.resets.push(Reset { env, seed: None }),
                false => self.going.push(env),
            }
        }
        if !self.going.is_empty() {
            let (obs, outcomes) = (obs.reborrow(), outcomes.reborrow());
            self.envs.step_some(&self.going, actions, obs, outcomes)?;
        }
        self.envs.reset(&self.resets, obs)?;
        for reset in &self.resets {
            outcomes.reward[reset.env] = 0.0;
            outcomes.terminated[reset.env] = false;
            outcomes.truncated[reset.env] = false;
        }
        Ok(())
    }
}

impl<V: VecEnv> VecEnv for NextStep<V> {
    fn spec(&self) -> &EnvSpec {
        self.envs.spec()
    }

    fn num_envs(&self) -> usize {
        self.envs.num_envs()
    }

    fn reset(&mut self, resets: &[Reset], obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        self.envs.reset(resets, obs)?;
        for reset in resets {
            self.ended[reset.env] = false;
        }
        Ok(())
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        match self.ended.contains(&true) {
            false => self.envs.step(actions, obs, outcomes.reborrow())?,
            true => self.step_or_reset(actions, obs, outcomes.reborrow())?,
        }
        let flags = outcomes.terminated.iter().zip(&*outcomes.truncated);
        for (ended, (terminated, truncated)) in self.ended.iter_mut().zip(flags) {
            *ended = *terminated || *truncated;
        }
        Ok(())
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        self.envs.bind(columns)
    }

    fn panicked_at(&self) -> Option<usize> {
        self.envs.panicked_at()
    }

    fn gatherings(&mut self) -> Vec<&mut Gathering> {
        self.envs.gatherings()
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.envs.visit_state(state)?;
        state.values(&mut self.ended)
    }
}

#[cfg(test)]
mod tests {
    use windrow_slab::RowBlock;

    use super::*;
    use crate::{CartPole, Joined, RewardSum, Serial, TimeLimit};

    /// Rewards, and whether an episode has ended, of each environment in each step.
    fn run(envs: &mut impl VecEnv, steps: usize) -> Vec<Vec<(f32, bool)>> {
        let count = envs.num_envs();
        let mut obs = RowBlock::new(&envs.spec().observation_leaves(), count).unwrap();
        let actions = RowBlock::new(&envs.spec().action_leaves(), count).unwrap();
        let resets: Vec<_> = (0..count).map(|env| Reset { env, seed: Some(0) }).collect();
        envs.reset(&resets, obs.rows_mut()).unwrap();
        let mut reward = vec![9.0; count];
        let (mut terminated, mut truncated) = (vec![false; count], vec![false; count]);
        let mut seen = Vec::new();
        for _ in 0..steps {
            let outcomes = Outcomes {
                reward: &mut reward,
                terminated: &mut terminated,
                truncated: &mut truncated,
            };
            envs.step(actions.rows(), obs.rows_mut(), outcomes).unwrap();
            let ends = terminated.iter().zip(&truncated).map(|(a, b)| a | b);
            seen.push(reward.iter().copied().zip(ends).collect());
        }
        seen
    }

    #[test]
    fn an_ended_environment_begins_anew_while_the_others_go_on() {
        let limited = [2, 3].map(|limit| -> Box<dyn VecEnv> {
            let env = TimeLimit::new(CartPole::new(), limit).unwrap();
            Box::new(Serial::new(vec![env]).unwrap())
        });
        let mut envs = NextStep::new(Joined::new(limited.into()).unwrap()).unwrap();
        let seen = run(&mut envs, 4);
        let (goes_on, ends, begins) = ((1.0, false), (1.0, true), (0.0, false));
        assert_eq!(
            seen,
            [
                [goes_on, goes_on],
                [ends, goes_on],
                [begins, ends],
                [goes_on, begins]
            ]
        );
    }

    #[test]
    fn a_reset_by_hand_leaves_no_reset_for_the_next_step() {
        let limited = TimeLimit::new(CartPole::new(), 1).unwrap();
        let mut envs = NextStep::new(Serial::new(vec![limited]).unwrap()).unwrap();
        // Each run resets, and steps once: a step that begins anew would end nothing.
        assert_eq!(run(&mut envs, 1), [[(1.0, true)]]);
        assert_eq!(run(&mut envs, 1), [[(1.0, true)]]);
    }

    #[test]
    fn whose_episode_has_ended_is_part_of_the_state() {
        let limited = || Serial::new(vec![TimeLimit::new(CartPole::new(), 1).unwrap()]).unwrap();
        let (mut envs, mut other) = (
            NextStep::new(limited()).unwrap(),
            NextStep::new(limited()).unwrap(),
        );
        assert_eq!(run(&mut envs, 1), [[(1.0, true)]]);
        let mut saving = StateVisitor::saving();
        envs.visit_state(&mut saving).unwrap();
        let bytes = saving.finish().unwrap();
        other
            .visit_state(&mut StateVisitor::loading(&bytes))
            .unwrap();
        assert_eq!(other.ended, [true]);
    }

    #[test]
    fn environments_that_step_together_are_refused() {
        let pair = Serial::from_fn(2, CartPole::v1).unwrap();
        let together = pair.transformed(RewardSum::new()).unwrap();
        let refused = NextStep::new(together).unwrap_err().to_string();
        assert!(refused.ends_with("got 2 that step together"), "{refused}");
    }
}
