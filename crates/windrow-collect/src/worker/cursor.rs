use std::ops::Range;

use serde::{Deserialize, Serialize};
use tensordict::DType;
use windrow_env::{EnvError, EnvSpec, Reset, StateVisitor, VecEnv};
use windrow_policy::EnvRows;
use windrow_slab::{Key, LeafSpec, Part, PartRows, RowBlock, Rows, RowsMut, SlabError};

use crate::error::{Place, WorkerFault};
use crate::shared::commands::{Restart, Resume};

/// Where each environment of a worker stands: what lasts from one part to the next.
#[derive(Debug)]
pub(crate) struct Cursor {
    leaves: Vec<LeafSpec>,
    /// Observations that the next part starts from.
    carry: RowBlock,
    /// Numbers of the environments, and the frames that each has delivered since it was seeded.
    envs: EnvRows,
    /// Episodes that each environment has begun before the present one.
    episode: Vec<u64>,
    /// Frame at which each environment's present episode began.
    began: Vec<u64>,
    traj_ids: Vec<i64>,
    ids: TrajIds,
    /// Whether `carry` holds the first observations of episodes that were begun before collection
    /// was.
    primed: bool,
    /// How the episodes are to begin when the next part is opened, if all are to begin anew.
    restart: Option<Restart>,
    /// Environments that were reset last, in the present step or as a part was opened.
    resets: Vec<Reset>,
    /// Observations that are marked together with the last step of a part.
    group_flags: Vec<Key<bool>>,
    options: CursorOptions,
}

/// How the episodes of all workers begin.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Beginning {
    /// Environments of all workers.
    pub(crate) total_envs: usize,
    /// Key of the noise.
    pub(crate) seed: u64,
    pub(crate) first_episodes: Restart,
    pub(crate) options: CursorOptions,
}

impl Beginning {
    /// The cursor of worker `worker` with `num_envs` environments.
    ///
    /// # Errors
    /// As [`Cursor::new`].
    pub(crate) fn cursor(
        &self,
        spec: &EnvSpec,
        worker: usize,
        num_envs: usize,
    ) -> Result<Cursor, SlabError> {
        let envs = (worker * num_envs) as u32..((worker + 1) * num_envs) as u32;
        let ids = TrajIds {
            base: 0,
            total_envs: self.total_envs,
        };
        Cursor::new(
            spec,
            envs,
            ids,
            self.seed,
            self.first_episodes,
            self.options,
        )
    }
}

/// The user's choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CursorOptions {
    /// Begin every part with new episodes.
    pub(crate) reset_at_each_iter: bool,
    /// Mark the last step of every part as truncated.
    pub(crate) set_truncated: bool,
}

/// Numbers trajectories: episode `e` of environment `i` of `total` is `base + e * total + i`.
///
/// Unique over the life of a collector without a shared counter, so ids do not depend on which
/// worker was faster.
#[derive(Debug, Clone, Copy)]
struct TrajIds {
    base: i64,
    total_envs: usize,
}

impl TrajIds {
    fn id(self, env: u32, episode: u64) -> i64 {
        self.base + episode as i64 * self.total_envs as i64 + i64::from(env)
    }
}

impl Cursor {
    /// A cursor for environments number `envs` among all. They begin as `first_episodes` says;
    /// `seed` keys the noise.
    fn new(
        spec: &EnvSpec,
        envs: Range<u32>,
        ids: TrajIds,
        seed: u64,
        first_episodes: Restart,
        options: CursorOptions,
    ) -> Result<Self, SlabError> {
        let env_ids: Vec<u32> = envs.collect();
        let envs = env_ids.len();
        let leaves = spec.observation_leaves();
        Ok(Self {
            carry: RowBlock::new(&leaves, envs)?,
            leaves,
            traj_ids: env_ids.iter().map(|&env| ids.id(env, 0)).collect(),
            envs: EnvRows::new(seed, env_ids),
            episode: vec![0; envs],
            began: vec![0; envs],
            ids,
            primed: false,
            restart: Some(first_episodes),
            resets: Vec::with_capacity(envs),
            group_flags: group_flags(spec),
            options,
        })
    }

    /// Takes in the first observations of episodes that were begun so that the policy could see
    /// them. Collection goes on with these episodes unless its first ones are seeded.
    pub(crate) fn prime(&mut self, first: RowBlock) {
        self.carry = first;
        self.primed = true;
    }

    /// Begins all episodes anew at the next part, or gives them new ids at once. Keeps a seed from
    /// an earlier command.
    pub(crate) fn restart(&mut self, how: Restart) {
        if how == Restart::Renamed {
            return self.rename();
        }
        if how != Restart::Unseeded || self.restart.is_none() {
            self.restart = Some(how);
        }
    }

    /// Saves or loads where each environment stands, between two parts.
    pub(crate) fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.section(format!("{} environments in all", self.ids.total_envs))?;
        self.envs.visit_state(state)?;
        state.rows(&self.leaves, &mut self.carry)?;
        state.values(&mut self.episode)?;
        state.values(&mut self.began)?;
        state.values(&mut self.traj_ids)?;
        state.value(&mut self.ids.base)?;
        state.value(&mut self.primed)?;
        state.value(&mut self.restart)
    }

    /// Goes on from a saved state.
    pub(crate) fn resume(&mut self, saved: Resume) {
        self.envs.set_frame(saved.frame);
        self.envs.set_seed(saved.seed);
        self.began.fill(saved.frame);
        self.episode.fill(0);
        self.ids.base = saved.traj_id;
        self.restart = Some(Restart::Resumed);
    }

    /// Begins new episodes after the environments were replaced.
    pub(crate) fn start_over(&mut self) {
        self.number_next_episodes();
        // Frames that were lost are not collected again: noise and seeds go on behind them.
        let frame = self.envs.frames().iter().max().map_or(0, |frame| frame + 1);
        self.envs.set_frame(frame);
        self.began.fill(frame);
        self.restart = Some(Restart::Resumed);
    }

    /// Gives new ids, which no frame carries yet, to the episodes that go on.
    fn rename(&mut self) {
        self.ids.base += self.ids.total_envs as i64;
        let numbers = self.envs.ids().iter().zip(&self.episode);
        let ids = numbers.map(|(&env, &episode)| self.ids.id(env, episode));
        self.traj_ids = ids.collect();
    }

    /// The smallest frame that no environment has reached yet.
    pub(crate) fn next_frame(&self) -> u64 {
        self.envs.frames().iter().max().copied().unwrap_or(0)
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
        let fresh = self.envs.frames() == self.began;
        let asked = self
            .restart
            .or_else(|| self.options.reset_at_each_iter.then_some(Restart::Unseeded));
        if let Some(how) = asked {
            // An episode without a single frame keeps its number, which no other frame carries.
            if !fresh {
                self.number_next_episodes();
            }
            self.begin_all(env, how)?;
            self.restart = None;
        }
        part.first_obs().copy_from(self.carry.rows())?;
        Ok(())
    }

    /// The environments, for the policy.
    #[inline(always)]
    pub(crate) fn envs(&self) -> &EnvRows {
        &self.envs
    }

    /// Finishes a step, in which some episode has ended where `any` is set: numbers its frames,
    /// carries the observations `next_obs` over to the step that follows, and begins new episodes
    /// there.
    #[inline(always)]
    pub(crate) fn close(
        &mut self,
        env: &mut dyn VecEnv,
        any: bool,
        done: &[bool],
        next_obs: Rows<'_>,
        traj_ids: &mut [i64],
        following: Option<RowsMut<'_>>,
    ) -> Result<(), WorkerFault> {
        if !traj_ids.is_empty() {
            copy_ids(&self.traj_ids, traj_ids);
        }
        self.envs.advance();
        if !any {
            self.resets.clear();
        }
        // The carry is borrowed only where it is needed, so that `self` stays whole for the resets.
        if let Some(mut following) = following {
            following.copy_from(next_obs)?;
            if any {
                self.begin_ended(env, done, following)?;
            }
        } else {
            self.carry_over(env, next_obs, any.then_some(done))?;
        }
        Ok(())
    }

    /// Marks the last step of a part as truncated, if that is wanted. The episodes go on.
    pub(crate) fn end(&self, rows: &mut PartRows<'_>) -> Result<(), WorkerFault> {
        if !self.options.set_truncated {
            return Ok(());
        }
        if let Some((truncated, done)) = rows.last_flags() {
            truncated.fill(true);
            done.fill(true);
        }
        // What the next part starts from was carried over before.
        if let Some(mut next_obs) = rows.last_next_obs() {
            for &flag in &self.group_flags {
                next_obs.get_mut(flag)?.fill(true);
            }
        }
        Ok(())
    }

    /// Takes over where a part that was cut short after `steps` steps has left off; at a whole one,
    /// `close` did.
    pub(crate) fn carry_from(&mut self, part: &mut Part, steps: usize) -> Result<(), WorkerFault> {
        if steps < part.steps() {
            if let Some(obs) = part.obs(steps) {
                self.carry.rows_mut().copy_from(obs)?;
            }
            part.shorten(steps);
        }
        Ok(())
    }

    /// Where environment `env` of this worker stands.
    pub(crate) fn locate(&self, env: usize) -> Place {
        Place {
            env: self.envs.ids().get(env).map_or(env, |&id| id as usize),
            episode: self.episode.get(env).copied().unwrap_or(0),
            step: match (self.envs.frames().get(env), self.began.get(env)) {
                (Some(frame), Some(began)) => frame - began,
                _ => 0,
            },
        }
    }

    /// Where each environment of this worker stands.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, Place)> {
        (0..self.envs.len()).map(|env| (env, self.locate(env)))
    }

    /// Where those stand that have begun an episode with the present step.
    pub(crate) fn begun(&self) -> impl Iterator<Item = (usize, Place)> {
        let envs = self.resets.iter().map(|reset| reset.env);
        envs.map(|env| (env, self.locate(env)))
    }

    #[cold]
    fn carry_over(
        &mut self,
        env: &mut dyn VecEnv,
        next_obs: Rows<'_>,
        ended: Option<&[bool]>,
    ) -> Result<(), WorkerFault> {
        self.carry.rows_mut().copy_from(next_obs)?;
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
        for (block, ended) in ended.chunks(64).enumerate() {
            let mut bits = to_bits(ended);
            while bits != 0 {
                let env = 64 * block + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                self.resets.push(Reset { env, seed: None });
                self.number_next_episode(env);
            }
        }
    }

    fn number_next_episodes(&mut self) {
        for env in 0..self.envs.len() {
            self.number_next_episode(env);
        }
    }

    fn number_next_episode(&mut self, env: usize) {
        self.episode[env] += 1;
        self.began[env] = self.envs.frames()[env];
        self.envs.begin(env);
        self.traj_ids[env] = self.ids.id(self.envs.ids()[env], self.episode[env]);
    }

    fn begin_all(&mut self, env: &mut dyn VecEnv, how: Restart) -> Result<(), WorkerFault> {
        self.resets.clear();
        if let Restart::Seeded { seed, .. } = how {
            // What follows depends on the seed alone, so frames are counted from here.
            self.envs.set_frame(0);
            self.envs.set_seed(seed);
            self.began.fill(0);
        }
        for env in 0..self.envs.len() {
            let id = self.envs.ids()[env];
            let seed = match how {
                Restart::Unseeded | Restart::Renamed => None,
                Restart::Seeded { seed, same: true } => Some(seed),
                Restart::Seeded { seed, same: false } => Some(seed.wrapping_add(u64::from(id))),
                // The generator behind it is another one, so it does not matter that the policy
                // draws from it too.
                Restart::Resumed => Some(self.envs.noise(env).bits()),
            };
            self.resets.push(Reset { env, seed });
            self.envs.begin(env);
            self.traj_ids[env] = self.ids.id(id, self.episode[env]);
        }
        let goes_on = std::mem::take(&mut self.primed) && how == Restart::Unseeded;
        if !goes_on {
            env.reset(&self.resets, self.carry.rows_mut())?;
        }
        Ok(())
    }
}

/// Writes `terminated | truncated` to `done`, and says whether any is set. One environment is a
/// case of its own, since setting a vector loop up costs more than it does.
#[inline(always)]
pub(crate) fn join_flags(terminated: &[bool], truncated: &[bool], done: &mut [bool]) -> bool {
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

/// The flags of nested groups that say that an episode is over, or cut.
fn group_flags(spec: &EnvSpec) -> Vec<Key<bool>> {
    let leaves = spec.observation_leaves();
    let flags = leaves.iter().enumerate().filter(|(_, leaf)| {
        let name = leaf.key.components().last();
        let ends = name.is_some_and(|name| matches!(&**name, "done" | "truncated"));
        ends && leaf.dtype == DType::Bool && spec.flags.contains(&leaf.key)
    });
    flags.map(|(place, _)| Key::new(place)).collect()
}

/// At most 64 flags as the bits of a word. No branch predictor can tell which of many environments
/// ends: going from bit to bit costs one wrong guess a step instead of one an environment.
fn to_bits(flags: &[bool]) -> u64 {
    let mut bits = 0;
    let (bytes, rest) = flags.as_chunks::<8>();
    for (i, flags) in bytes.iter().enumerate() {
        let word = u64::from_le_bytes(flags.map(u8::from));
        // Moves bit 8·k to bit 56 + k, for all k at once: no two products meet.
        bits |= (word.wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * i);
    }
    for (i, flag) in rest.iter().enumerate() {
        bits |= u64::from(*flag) << (8 * bytes.len() + i);
    }
    bits
}

/// Few ids are stored one by one: a call to `memcpy` costs more than they do.
#[inline(always)]
fn copy_ids(from: &[i64], to: &mut [i64]) {
    if let ([to], Some(from)) = (&mut *to, from.first()) {
        *to = *from;
    } else {
        to.copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_has_its_bit() {
        for len in [1, 7, 8, 9, 63, 64] {
            for set in 0..len {
                let mut flags = vec![false; len];
                flags[set] = true;
                assert_eq!(to_bits(&flags), 1 << set);
                flags[0] = true;
                flags[len - 1] = true;
                assert_eq!(to_bits(&flags), (1 << set) | 1 | (1 << (len - 1)));
            }
            let all = to_bits(&vec![true; len]);
            assert_eq!(
                (all.count_ones(), all.trailing_ones()),
                (len as u32, len as u32)
            );
        }
        assert_eq!(to_bits(&[]), 0);
    }
}
