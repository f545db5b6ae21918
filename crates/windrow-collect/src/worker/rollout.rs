//! The one place where environments are stepped in a loop.

use windrow_env::{Outcomes, VecEnv};
use windrow_slab::{Part, Step};

use crate::error::WorkerFault;
use crate::probe::{Phase, Probe};
use crate::worker::actor::Actor;
use crate::worker::cursor::{Cursor, join_flags};

/// Fills `part`: the policy acts, the environments step, ended episodes start anew. A part that is
/// cut short ends early, after at least one step. `probe` marks the ends of phases.
///
/// # Errors
/// The fault; [`Cursor::locate`] tells where. The caller then drops the part.
pub(crate) fn rollout<P: Probe>(
    env: &mut dyn VecEnv,
    actor: &mut Actor,
    cursor: &mut Cursor,
    part: &mut Part,
    probe: &mut P,
) -> Result<(), WorkerFault> {
    cursor.open(env, part)?;
    let mut rows = part.rows();
    probe.mark(Phase::Open);
    probe.stands(|| cursor.places());
    while let Some(step) = rows.next_step() {
        // Taken apart, its slices stay in registers; as a whole they would be written to memory and
        // read again.
        let Step {
            obs,
            mut policy,
            mut next_obs,
            reward,
            terminated,
            truncated,
            done,
            traj_ids,
            version,
            following,
        } = step;
        actor.act(cursor.envs(), obs, policy.reborrow(), version)?;
        probe.mark(Phase::Policy);
        let outcomes = Outcomes {
            reward,
            terminated: &mut *terminated,
            truncated: &mut *truncated,
        };
        env.step(policy.as_rows(), next_obs.reborrow(), outcomes)?;
        probe.mark(Phase::EnvStep);
        let any = join_flags(terminated, truncated, done);
        cursor.close(env, any, done, next_obs.as_rows(), traj_ids, following)?;
        probe.mark(Phase::Close);
        probe.stands(|| cursor.begun());
        if rows.is_cut() {
            break;
        }
    }
    cursor.end(&mut rows)?;
    let done = rows.steps_done();
    cursor.carry_from(part, done)
}
