//! One member of a pool: its environments, their command, and the rows that they read and write.

use windrow_slab::{RowBlock, Rows};
use windrow_sync::catch_panic;

use super::error::PoolError;
use crate::{EnvError, Outcomes, Reset, VecEnv, VecEnvError};

/// A command for environments of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Begin an episode.
    Reset,
    /// Take a step.
    Step,
    /// Take a step, and begin another episode if this one has ended.
    StepAndMaybeReset,
}

impl std::fmt::Display for Command {
    /// The name of the calls, without `_send` and `_recv`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Reset => "async_reset",
            Self::Step => "async_step",
            Self::StepAndMaybeReset => "async_step_and_maybe_reset",
        })
    }
}

/// Belongs to one thread at a time: to the pool's user, or to the thread that steps it.
pub(super) struct Member {
    pub(super) index: usize,
    envs: Box<dyn VecEnv>,
    pub(super) command: Command,
    /// The environments to reset, numbered within the member.
    pub(super) resets: Vec<Reset>,
    pub(super) actions: RowBlock,
    /// The observations that the next actions answer.
    pub(super) obs: RowBlock,
    /// The observations after the last step, if a reset has followed it.
    last: RowBlock,
    has_last: bool,
    pub(super) reward: Vec<f32>,
    pub(super) terminated: Vec<bool>,
    pub(super) truncated: Vec<bool>,
    pub(super) is_reset: bool,
    pub(super) has_failed: bool,
    pub(super) fault: Option<PoolError>,
    /// The message of a panic.
    pub(super) panicked: Option<String>,
}

impl Member {
    pub(super) fn new(index: usize, envs: Box<dyn VecEnv>) -> Result<Self, EnvError> {
        let rows = envs.num_envs();
        let observation = envs.spec().observation_leaves();
        Ok(Self {
            index,
            command: Command::Reset,
            resets: Vec::with_capacity(rows),
            actions: RowBlock::new(&envs.spec().action_leaves(), rows)?,
            obs: RowBlock::new(&observation, rows)?,
            last: RowBlock::new(&observation, rows)?,
            has_last: false,
            reward: vec![0.0; rows],
            terminated: vec![false; rows],
            truncated: vec![false; rows],
            is_reset: false,
            has_failed: false,
            fault: None,
            panicked: None,
            envs,
        })
    }

    /// The observations after the last command; after a step, those before any reset.
    pub(super) fn next(&self) -> Rows<'_> {
        match self.has_last {
            true => self.last.rows(),
            false => self.obs.rows(),
        }
    }

    /// Executes the command. Keeps faults and panics, which the receiver of the output gets.
    pub(super) fn execute(&mut self) {
        self.has_last = false;
        let first = self.index * self.envs.num_envs();
        match catch_panic(|| self.act()) {
            Ok(Ok(())) => (self.is_reset, self.has_failed) = (true, false),
            Ok(Err(fault)) => {
                (self.is_reset, self.has_failed) = (false, true);
                self.fault = Some(fault.shifted(first).into());
            }
            Err(message) => {
                self.panicked = Some(message.clone());
                let env = first + self.envs.panicked_at().unwrap_or(0);
                self.fault = Some(PoolError::Panicked { env, message });
            }
        }
    }

    fn act(&mut self) -> Result<(), VecEnvError> {
        if self.command == Command::Reset {
            for reset in &self.resets {
                self.reward[reset.env] = 0.0;
                self.terminated[reset.env] = false;
                self.truncated[reset.env] = false;
            }
            return self.envs.reset(&self.resets, self.obs.rows_mut());
        }
        let outcomes = Outcomes {
            reward: &mut self.reward,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
        };
        self.envs
            .step(self.actions.rows(), self.obs.rows_mut(), outcomes)?;
        if self.command == Command::Step {
            return Ok(());
        }
        let ended = self.terminated.iter().zip(&self.truncated);
        let ended = ended.map(|(terminated, truncated)| terminated | truncated);
        self.resets.clear();
        for (env, _) in ended.enumerate().filter(|&(_, ended)| ended) {
            self.resets.push(Reset { env, seed: None });
        }
        if self.resets.is_empty() {
            return Ok(());
        }
        let kept = self.last.rows_mut().copy_from(self.obs.rows());
        kept.map_err(|error| EnvError::from(error).of(0))?;
        self.has_last = true;
        self.envs.reset(&self.resets, self.obs.rows_mut())
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("index", &self.index)
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}
