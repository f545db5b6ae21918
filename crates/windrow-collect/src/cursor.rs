use windrow_env::{EnvSpec, Reset, VecEnv};
use windrow_policy::{ExplorationType, PolicyIn};
use windrow_slab::{Part, RowBlock, Rows, RowsMut, SlabError, Step};

use crate::error::{Place, WorkerFault};

/// Where each environment of a worker stands: what lasts from one part to the next.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// Observations that the next part starts from.
    carry: RowBlock,
    /// Number of each environment over all workers.
    env_ids: Vec<u32>,
    /// Frames that each environment has delivered.
    frame: Vec<u64>,
    /// Episodes that each environment has begun before the present one.
    episode: Vec<u64>,
    /// Frame at which each environment's present episode began.
    began: Vec<u64>,
    is_first: Vec<bool>,
    /// Whether any of `is_first` is set.
    any_first: bool,
    traj_ids: Vec<i64>,
    ids: TrajIds,
    /// How the episodes are to begin when the next part is opened, if all are to begin anew.
    restart: Option<Restart>,
    /// Scratch: environments to be reset.
    resets: Vec<Reset>,
    options: CursorOptions,
}

/// What the user chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CursorOptions {
    /// Begin every part with new episodes.
    pub(crate) reset_at_each_iter: bool,
    /// Mark the last step of every part as truncated.
    pub(crate) set_truncated: bool,
}

/// Numbers trajectories: episode `e` of environment `i` of `total` is `base + e * total + i`.
///
/// Unique over the life of a collector without a shared counter, so ids do not depend on who was faster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrajIds {
    pub(crate) base: i64,
    pub(crate) total_envs: usize,
}

impl TrajIds {
    fn id(self, env: u32, episode: u64) -> i64 {
        self.base + episode as i64 * self.total_envs as i64 + i64::from(env)
    }
}

/// How all environments of a cursor begin new episodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restart {
    /// Their generators go on.
    Unseeded,
    /// Environment `i` is seeded with `seed + i`, or all with `seed`.
    Seeded { seed: u64, same: bool },
    /// As after a loss: from the seed, the environment and the episode, so that no episode is repeated.
    Resumed { seed: u64 },
}

impl Cursor {
    /// A cursor for `envs` environments, the first of which is number `first_env` of all.
    pub(crate) fn new(
        spec: &EnvSpec,
        envs: usize,
        first_env: u32,
        ids: TrajIds,
        seed: u64,
        options: CursorOptions,
    ) -> Result<Self, SlabError> {
        let env_ids: Vec<u32> = (first_env..).take(envs).collect();
        Ok(Self {
            carry: RowBlock::new(&spec.observation_leaves(), envs)?,
            traj_ids: env_ids.iter().map(|&env| ids.id(env, 0)).collect(),
            env_ids,
            frame: vec![0; envs],
            episode: vec![0; envs],
            began: vec![0; envs],
            is_first: vec![true; envs],
            any_first: true,
            ids,
            restart: Some(Restart::Seeded { seed, same: false }),
            resets: Vec::with_capacity(envs),
            options,
        })
    }

    /// Begins all episodes anew at the next part.
    pub(crate) fn restart(&mut self, how: Restart) {
        self.restart = Some(how);
    }

    /// Goes on from a saved state: `frame` frames into each environment, ids from `base` on.
    pub(crate) fn resume(&mut self, frame: u64, base: i64, seed: u64) {
        self.frame.fill(frame);
        self.began.fill(frame);
        self.episode.fill(0);
        self.ids.base = base;
        self.restart = Some(Restart::Resumed { seed });
    }

    /// The smallest id that no frame carries yet, however episodes go on.
    pub(crate) fn next_traj_id(&self) -> i64 {
        let episode = self.episode.iter().max().map_or(0, |episode| episode + 1);
        self.ids.id(0, episode)
    }

    /// Writes the observations that `part` starts from.
    pub(crate) fn open(
        &mut self,
        env: &mut dyn VecEnv,
        part: &mut Part,
    ) -> Result<(), WorkerFault> {
        let fresh = self.frame == self.began;
        let asked = self.restart.or_else(|| {
            self.options
                .reset_at_each_iter
                .then_some(Restart::Unseeded)
        });
        if let Some(how) = asked {
            // An episode without a single frame keeps its number: there is nothing that could share it.
            if !fresh {
                self.number_next_episodes();
            }
            self.begin_all(env, how)?;
            self.restart = None;
        }
        part.first_obs().copy_from(self.carry.rows())?;
        Ok(())
    }

    /// What the policy may know of the step whose observations are `obs`.
    #[inline(always)]
    pub(crate) fn policy_input<'a>(&'a self, obs: Rows<'a>) -> PolicyIn<'a> {
        PolicyIn {
            obs,
            is_first: &self.is_first,
            env_ids: &self.env_ids,
            frame: &self.frame,
            seed: 0,
            exploration: ExplorationType::default(),
        }
    }

    /// Finishes a step: keeps the final observations of ended episodes, begins new ones in place, and carries the
    /// observations over to the step that follows.
    #[inline(always)]
    pub(crate) fn close(
        &mut self,
        env: &mut dyn VecEnv,
        step: Step<'_>,
    ) -> Result<(), WorkerFault> {
        let Step {
            next_obs,
            terminated,
            truncated,
            done,
            traj_ids,
            following,
            ..
        } = step;
        let any = join_flags(terminated, truncated, done);
        if !traj_ids.is_empty() {
            copy_ids(&self.traj_ids, traj_ids);
        }
        self.count_frames();
        let last = following.is_none();
        // The carry is borrowed only where it is needed, so that `self` stays whole for the resets.
        if let Some(mut following) = following {
            following.copy_from(next_obs.as_rows())?;
            if any {
                self.begin_ended(env, done, following)?;
            }
        } else {
            self.carry_over(env, &next_obs, any.then_some(&*done))?;
        }
        if last && self.options.set_truncated {
            truncated.fill(true);
            done.fill(true);
        }
        Ok(())
    }

    #[inline(always)]
    fn count_frames(&mut self) {
        if let [frame] = &mut self.frame[..] {
            *frame += 1;
        } else {
            self.frame.iter_mut().for_each(|frame| *frame += 1);
        }
        if self.any_first {
            self.is_first.fill(false);
            self.any_first = false;
        }
    }

    /// Where environment `env` of this worker stands.
    pub(crate) fn locate(&self, env: usize) -> Place {
        Place {
            env: self.env_ids.get(env).map_or(env, |&id| id as usize),
            episode: self.episode.get(env).copied().unwrap_or(0),
            step: match (self.frame.get(env), self.began.get(env)) {
                (Some(frame), Some(began)) => frame - began,
                _ => 0,
            },
        }
    }

    #[cold]
    fn carry_over(
        &mut self,
        env: &mut dyn VecEnv,
        next_obs: &RowsMut<'_>,
        ended: Option<&[bool]>,
    ) -> Result<(), WorkerFault> {
        self.carry.rows_mut().copy_from(next_obs.as_rows())?;
        if let Some(ended) = ended {
            self.number_ended(ended);
            env.reset(&self.resets, self.carry.rows_mut())?;
        }
        Ok(())
    }

    fn begin_ended(
        &mut self,
        env: &mut dyn VecEnv,
        ended: &[bool],
        obs: RowsMut<'_>,
    ) -> Result<(), WorkerFault> {
        self.number_ended(ended);
        env.reset(&self.resets, obs)?;
        Ok(())
    }

    /// Numbers the episodes that follow the ended ones, and notes what is to be reset.
    fn number_ended(&mut self, ended: &[bool]) {
        self.resets.clear();
        for (env, _) in ended.iter().enumerate().filter(|(_, ended)| **ended) {
            self.resets.push(Reset { env, seed: None });
            self.number_next_episode(env);
        }
    }

    fn number_next_episodes(&mut self) {
        for env in 0..self.env_ids.len() {
            self.number_next_episode(env);
        }
    }

    fn number_next_episode(&mut self, env: usize) {
        self.episode[env] += 1;
        self.began[env] = self.frame[env];
        self.is_first[env] = true;
        self.any_first = true;
        self.traj_ids[env] = self.ids.id(self.env_ids[env], self.episode[env]);
    }

    fn begin_all(&mut self, env: &mut dyn VecEnv, how: Restart) -> Result<(), WorkerFault> {
        self.resets.clear();
        for (i, &id) in self.env_ids.iter().enumerate() {
            let seed = match how {
                Restart::Unseeded => None,
                Restart::Seeded { seed, same: true } => Some(seed),
                Restart::Seeded { seed, same: false } => Some(seed.wrapping_add(u64::from(id))),
                Restart::Resumed { seed } => {
                    Some(windrow_policy::Noise::new(seed, id, self.frame[i]).bits())
                }
            };
            self.resets.push(Reset { env: i, seed });
            self.is_first[i] = true;
            self.any_first = true;
            self.traj_ids[i] = self.ids.id(id, self.episode[i]);
        }
        env.reset(&self.resets, self.carry.rows_mut())?;
        Ok(())
    }
}

/// Writes `terminated | truncated` to `done`, and says whether any is set. One environment is a case of its own, since
/// setting a vector loop up costs more than it does.
#[inline(always)]
fn join_flags(terminated: &[bool], truncated: &[bool], done: &mut [bool]) -> bool {
    if let ([terminated], [truncated], [done]) = (terminated, truncated, &mut *done) {
        *done = *terminated | *truncated;
        return *done;
    }
    let mut any = false;
    for ((done, terminated), truncated) in done.iter_mut().zip(terminated).zip(truncated) {
        *done = *terminated | *truncated;
        any |= *done;
    }
    any
}

/// Few ids are stored one by one: a call to `memcpy` costs more than they do.
#[inline(always)]
fn copy_ids(from: &[i64], to: &mut [i64]) {
    if let ([from], [to]) = (from, &mut *to) {
        *to = *from;
    } else {
        to.copy_from_slice(from);
    }
}
