use windrow_slab::{LeafSpec, Row, RowBlock, RowMut, Rows, RowsMut};

use crate::vec_env::{check_rows, out_of_range};
use crate::{EnvError, EnvSpec, Gathering, Outcomes, Reset, StateVisitor, VecEnv, VecEnvError};

/// Several vectors of environments as one. They have the same observations and actions, and may
/// differ otherwise.
///
/// For environments of one type, [`Serial`](crate::Serial) is better: it copies no rows.
pub struct Joined {
    spec: EnvSpec,
    members: Vec<Member>,
    observation: Vec<LeafSpec>,
    num_envs: usize,
}

/// One vector, and the rows in which it steps.
struct Member {
    envs: Box<dyn VecEnv>,
    /// Number of its first environment among all.
    first: usize,
    obs: RowBlock,
    actions: RowBlock,
    resets: Vec<Reset>,
}

impl Joined {
    /// `vectors` as one, in this order.
    ///
    /// # Errors
    /// [`EnvError::Empty`], or [`EnvError::Member`] for one that observes or accepts something else
    /// than the first.
    pub fn new(vectors: Vec<Box<dyn VecEnv>>) -> Result<Self, EnvError> {
        let Some(first) = vectors.first() else {
            return Err(EnvError::Empty);
        };
        let mut spec = first.spec().clone();
        let (observation, action) = (spec.observation_leaves(), spec.action_leaves());
        let statistics = vectors.iter().flat_map(|envs| &envs.spec().statistics);
        spec.statistics = statistics.cloned().collect();
        let mut members = Vec::with_capacity(vectors.len());
        let mut num_envs = 0;
        for envs in vectors {
            spec.join(envs.spec())
                .map_err(|error| EnvError::Member(Box::new(error.of(num_envs))))?;
            let rows = envs.num_envs();
            if rows == 0 {
                return Err(EnvError::Member(Box::new(EnvError::Empty.of(num_envs))));
            }
            members.push(Member {
                first: num_envs,
                obs: RowBlock::new(&observation, rows)?,
                actions: RowBlock::new(&action, rows)?,
                resets: Vec::with_capacity(rows),
                envs,
            });
            num_envs += rows;
        }
        Ok(Self {
            spec,
            members,
            observation,
            num_envs,
        })
    }
}

impl VecEnv for Joined {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.num_envs
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        for member in &mut self.members {
            member.actions = RowBlock::new(columns, member.envs.num_envs())?;
            member.envs.bind(columns)?;
        }
        Ok(())
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        let (envs, rows) = (self.num_envs, obs.envs());
        if let Some(reset) = resets.iter().find(|reset| reset.env >= envs.min(rows)) {
            return Err(out_of_range(reset.env, envs, rows));
        }
        for member in &mut self.members {
            let own = member.first..member.first + member.envs.num_envs();
            member.resets.clear();
            let mine = resets.iter().filter(|reset| own.contains(&reset.env));
            member.resets.extend(mine.map(|reset| Reset {
                env: reset.env - member.first,
                ..*reset
            }));
            if member.resets.is_empty() {
                continue;
            }
            member
                .envs
                .reset(&member.resets, member.obs.rows_mut())
                .map_err(|error| error.shifted(member.first))?;
            for reset in &member.resets {
                member.give_observation(&self.observation, reset.env, &mut obs)?;
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.step_those(None, actions, obs, &mut outcomes)
    }

    fn step_some(
        &mut self,
        which: &[usize],
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        match which.iter().find(|env| **env >= self.num_envs) {
            Some(&env) => Err(out_of_range(env, self.num_envs, obs.envs())),
            None => self.step_those(Some(which), actions, obs, &mut outcomes),
        }
    }

    fn step_apart(&self) -> bool {
        self.members.iter().all(|member| member.envs.step_apart())
    }

    fn panicked_at(&self) -> Option<usize> {
        let mut members = self.members.iter();
        members.find_map(|member| Some(member.first + member.envs.panicked_at()?))
    }

    fn gatherings(&mut self) -> Vec<&mut Gathering> {
        let members = self.members.iter_mut();
        members
            .flat_map(|member| member.envs.gatherings())
            .collect()
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.section(format!("{} vectors", self.members.len()))?;
        let mut members = self.members.iter_mut();
        members.try_for_each(|member| member.envs.visit_state(state))
    }
}

impl Joined {
    /// Steps `which` environments, or all.
    fn step_those(
        &mut self,
        which: Option<&[usize]>,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        outcomes: &mut Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        check_rows(self.num_envs, actions, &obs, outcomes)?;
        for member in &mut self.members {
            let rows = member.envs.num_envs();
            let own = member.first..member.first + rows;
            let told: Option<Vec<usize>> = which.map(|which| {
                let own = which.iter().filter(|env| own.contains(env));
                own.map(|env| env - member.first).collect()
            });
            if told.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            let mut inner = member.actions.rows_mut();
            inner
                .copy_envs(0, actions, own.clone())
                .map_err(|error| EnvError::from(error).of(member.first))?;
            let outcomes = Outcomes {
                reward: &mut outcomes.reward[own.clone()],
                terminated: &mut outcomes.terminated[own.clone()],
                truncated: &mut outcomes.truncated[own],
            };
            let (actions, seen) = (member.actions.rows(), member.obs.rows_mut());
            match &told {
                None => member.envs.step(actions, seen, outcomes),
                Some(told) => member.envs.step_some(told, actions, seen, outcomes),
            }
            .map_err(|error| error.shifted(member.first))?;
            let was_stepped = |env: &usize| told.as_ref().is_none_or(|told| told.contains(env));
            for env in (0..rows).filter(was_stepped) {
                member.give_observation(&self.observation, env, &mut obs)?;
            }
        }
        Ok(())
    }
}

impl Member {
    /// Copies the observation of its environment `env` into the row of this environment among all.
    fn give_observation(
        &self,
        leaves: &[LeafSpec],
        env: usize,
        obs: &mut RowsMut<'_>,
    ) -> Result<(), VecEnvError> {
        let place = self.first + env;
        copy(leaves, self.obs.rows().env(env), obs.env_mut(place))
            .map_err(|source| VecEnvError { env: place, source })
    }
}

/// Copies a row leaf by leaf.
pub(crate) fn copy(
    leaves: &[LeafSpec],
    from: Option<Row<'_>>,
    to: Option<RowMut<'_>>,
) -> Result<(), EnvError> {
    let (Some(from), Some(mut to)) = (from, to) else {
        // A missing row was reported before.
        return Ok(());
    };
    for leaf in 0..leaves.len() {
        to.copy_leaf(leaf, from, leaf)?;
    }
    Ok(())
}

impl std::fmt::Debug for Joined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joined")
            .field("spec", &self.spec)
            .field("vectors", &self.members.len())
            .field("num_envs", &self.num_envs)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use windrow_slab::Key;

    use super::*;
    use crate::testing::LedgerEnv;
    use crate::{CartPole, Pendulum, RewardSum, Serial, StepCounter, Transformed};

    fn ledgers(numbers: std::ops::Range<i64>) -> Box<dyn VecEnv> {
        Box::new(Serial::new(numbers.map(LedgerEnv::new).collect()).unwrap())
    }

    /// The observations and rewards of all environments after each of a reset, a step and a reset
    /// of some.
    fn play(envs: &mut dyn VecEnv) -> (Vec<Vec<i64>>, Vec<f32>) {
        let n = envs.num_envs();
        let mut obs = RowBlock::new(&envs.spec().observation_leaves(), n).unwrap();
        let actions = RowBlock::new(&envs.spec().action_leaves(), n).unwrap();
        let mut seen = Vec::new();
        let mut note = |obs: &RowBlock| {
            seen.push(obs.rows().get::<i64>(Key::new(0)).unwrap().to_vec());
        };
        let reset = |env| Reset { env, seed: None };
        let all: Vec<_> = (0..n).map(reset).collect();
        envs.reset(&all, obs.rows_mut()).unwrap();
        note(&obs);
        let mut reward = vec![0.0; n];
        let outcomes = Outcomes {
            reward: &mut reward,
            terminated: &mut vec![false; n],
            truncated: &mut vec![false; n],
        };
        envs.step(actions.rows(), obs.rows_mut(), outcomes).unwrap();
        note(&obs);
        envs.reset(&[reset(n - 1), reset(0)], obs.rows_mut())
            .unwrap();
        note(&obs);
        (seen, reward)
    }

    #[test]
    fn joined_vectors_are_as_one() {
        let mut joined = Joined::new(vec![ledgers(0..2), ledgers(2..3), ledgers(3..5)]).unwrap();
        assert_eq!(joined.num_envs(), 5);
        assert_eq!(play(&mut joined), play(ledgers(0..5).as_mut()));
    }

    #[test]
    fn some_step_without_the_others() {
        // Those of the last one step together, since a transform is around both.
        let pair = Transformed::new(ledgers(2..4), &RewardSum::new()).unwrap();
        let single = |numbers| -> Box<dyn VecEnv> {
            Box::new(Transformed::new(ledgers(numbers), &RewardSum::new()).unwrap())
        };
        let mut joined = Joined::new(vec![single(0..1), single(1..2), Box::new(pair)]).unwrap();
        assert!(!joined.step_apart());
        let leaves = joined.spec().observation_leaves();
        let mut obs = RowBlock::new(&leaves, 4).unwrap();
        let actions = RowBlock::new(&joined.spec().action_leaves(), 4).unwrap();
        let resets = [0, 1, 2, 3].map(|env| Reset { env, seed: None });
        joined.reset(&resets, obs.rows_mut()).unwrap();
        let seen = |obs: &RowBlock| obs.rows().get::<i64>(Key::new(0)).unwrap().to_vec();
        let width = seen(&obs).len() / 4;
        let first = seen(&obs);
        let mut step = |which: &[usize], obs: &mut RowBlock| {
            let outcomes = Outcomes {
                reward: &mut [0.0; 4],
                terminated: &mut [false; 4],
                truncated: &mut [false; 4],
            };
            joined.step_some(which, actions.rows(), obs.rows_mut(), outcomes)
        };
        step(&[1, 2, 3], &mut obs).unwrap();
        let second = seen(&obs);
        let moved = |env: usize| {
            let own = env * width..(env + 1) * width;
            first[own.clone()] != second[own]
        };
        assert_eq!([0, 1, 2, 3].map(moved), [false, true, true, true]);
        step(&[0], &mut obs).unwrap();
        assert_ne!(seen(&obs)[..width], first[..width]);
        assert_eq!(seen(&obs)[width..], second[width..]);
        // Two environments of one vector step together.
        let error = step(&[0, 3], &mut obs).unwrap_err().to_string();
        assert!(error.starts_with("environment 3: "), "{error}");
        assert!(
            error.contains("all 2, which step together, got [1]"),
            "{error}"
        );
        assert_eq!(step(&[4], &mut obs).unwrap_err().env, 4);
    }

    #[test]
    fn one_of_a_vector_steps_and_the_rows_of_the_others_stay() {
        let mut joined = Joined::new(vec![ledgers(0..2), ledgers(2..4)]).unwrap();
        assert!(joined.step_apart());
        let leaves = joined.spec().observation_leaves();
        let mut obs = RowBlock::new(&leaves, 4).unwrap();
        let actions = RowBlock::new(&joined.spec().action_leaves(), 4).unwrap();
        let resets = [0, 1, 2, 3].map(|env| Reset { env, seed: None });
        joined.reset(&resets, obs.rows_mut()).unwrap();
        // As a transform may leave them.
        let key = Key::<i64>::new(0);
        obs.rows_mut().get_mut(key).unwrap().fill(-1);
        let outcomes = Outcomes {
            reward: &mut [-1.0; 4],
            terminated: &mut [false; 4],
            truncated: &mut [false; 4],
        };
        joined
            .step_some(&[1, 2], actions.rows(), obs.rows_mut(), outcomes)
            .unwrap();
        let seen = obs.rows().get(key).unwrap().to_vec();
        let own = |env: usize| &seen[env * seen.len() / 4..(env + 1) * seen.len() / 4];
        assert_eq!(
            [0, 1, 2, 3].map(|env| own(env)[0] == -1),
            [true, false, false, true]
        );
    }

    #[test]
    fn limits_may_differ() {
        let limited = |steps| -> Box<dyn VecEnv> {
            let envs = Serial::from_fn(1, CartPole::new).unwrap();
            let counter = StepCounter::new().with_max_steps(steps);
            Box::new(envs.transformed(counter).unwrap())
        };
        let joined = Joined::new(vec![limited(2), limited(3)]).unwrap();
        assert_eq!(joined.spec().max_episode_steps, None);
    }

    #[test]
    fn errors_name_the_environment_among_all() {
        let mut joined = Joined::new(vec![ledgers(0..2), ledgers(2..4)]).unwrap();
        let leaves = joined.spec().observation_leaves();
        let mut obs = RowBlock::new(&leaves, 4).unwrap();
        let actions = RowBlock::new(&joined.spec().action_leaves(), 4).unwrap();
        let resets = [0, 1, 2].map(|env| Reset { env, seed: None });
        joined.reset(&resets, obs.rows_mut()).unwrap();
        let outcomes = Outcomes {
            reward: &mut [0.0; 4],
            terminated: &mut [false; 4],
            truncated: &mut [false; 4],
        };
        let error = joined
            .step(actions.rows(), obs.rows_mut(), outcomes)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "environment 3: step was called before reset"
        );
        let beyond = [Reset { env: 4, seed: None }];
        assert_eq!(joined.reset(&beyond, obs.rows_mut()).unwrap_err().env, 4);
    }

    #[test]
    fn unlike_vectors_are_refused() {
        assert!(Joined::new(Vec::new()).is_err());
        let pendulum = Serial::from_fn(1, Pendulum::v1).unwrap();
        let error = Joined::new(vec![ledgers(0..2), Box::new(pendulum)]).unwrap_err();
        assert!(error.to_string().starts_with("environment 2: "), "{error}");
    }
}
