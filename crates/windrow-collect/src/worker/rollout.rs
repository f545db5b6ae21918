//! The one place where environments are stepped in a loop.

use windrow_env::{Outcomes, VecEnv};
use windrow_slab::Part;

use crate::error::WorkerFault;
use crate::probe::{Phase, Probe};
use crate::worker::actor::Actor;
use crate::worker::cursor::Cursor;

/// Fills `part`: the policy acts, the environments step, ended episodes start anew. A part that is cut short ends early,
/// after at least one step. `probe` marks the ends of phases.
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
    while let Some(mut step) = rows.next_step() {
        actor.act(cursor.envs(), &mut step)?;
        probe.mark(Phase::Policy);
        let outcomes = Outcomes {
            reward: step.reward,
            terminated: step.terminated,
            truncated: step.truncated,
        };
        env.step(step.policy.as_rows(), step.next_obs.reborrow(), outcomes)?;
        probe.mark(Phase::EnvStep);
        cursor.close(env, step)?;
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
