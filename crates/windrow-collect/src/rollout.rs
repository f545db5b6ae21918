//! The one place where environments are stepped in a loop.

use windrow_env::{Outcomes, VecEnv};
use windrow_slab::Part;

use crate::actor::Actor;
use crate::cursor::Cursor;
use crate::error::WorkerFault;

/// Fills `part`: the policy acts, the environments step, ended episodes start anew.
///
/// # Errors
/// What went wrong; [`Cursor::locate`] tells where. The part is then to be dropped, not committed.
pub(crate) fn rollout(
    env: &mut dyn VecEnv,
    actor: &mut Actor,
    cursor: &mut Cursor,
    part: &mut Part,
) -> Result<(), WorkerFault> {
    cursor.open(env, part)?;
    let mut rows = part.rows();
    while let Some(mut step) = rows.next_step() {
        actor.act(cursor.envs(), &mut step)?;
        let outcomes = Outcomes {
            reward: step.reward,
            terminated: step.terminated,
            truncated: step.truncated,
        };
        env.step(step.policy.as_rows(), step.next_obs.reborrow(), outcomes)?;
        cursor.close(env, step)?;
    }
    Ok(())
}
