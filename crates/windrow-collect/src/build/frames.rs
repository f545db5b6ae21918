//! How many frames each worker has in a batch.

use crate::config::builder::CollectorBuilder;
use crate::config::options::CollectorConfig;
use crate::config::plan::{Delivery, FramesPerBatch, Plan};
use crate::error::ArgumentError;
use crate::shared::schedule::{Schedule, even_shares};

/// The argument that is checked here.
const NAME: &str = "frames_per_batch";

/// Checks the frame counts against each other, and shares a batch out.
pub(super) fn schedule(
    chosen: &CollectorBuilder,
    workers: usize,
    num_envs: usize,
) -> Result<Schedule, ArgumentError> {
    let config = &chosen.config;
    let plan = config.plan();
    let steps = match &chosen.steps_per_batch {
        Some(steps) => vec![steps(num_envs); plan.parts(workers)],
        None => shares(config, plan, workers, num_envs)?,
    };
    let slabs_per_batch = plan.slabs_per_batch();
    let per_slab = steps
        .iter()
        .fold(0, |sum: usize, steps| sum.saturating_add(*steps))
        .saturating_mul(num_envs);
    let per_batch = per_slab.saturating_mul(slabs_per_batch);
    let mut total_frames = config.total_frames;
    if config.trajs_per_batch.is_some() {
        // Trajectories are delivered, not frames: the rest of a whole step of all environments is
        // left out.
        total_frames = total_frames.map(|total| total - total % num_envs as u64);
    } else if let Some(total) = total_frames {
        let asked = match config.frames_per_batch {
            Some(FramesPerBatch::Total(frames)) => frames,
            _ => per_batch,
        };
        let unit = match config.allow_partial_batch {
            Some(true) => num_envs as u64,
            // A batch that was rounded up is no multiple of what was asked for.
            _ => common_multiple(asked as u64, num_envs as u64),
        };
        if !total.is_multiple_of(asked as u64) && config.allow_partial_batch != Some(true) {
            let (below, above) = nearest(total, unit);
            return Err(ArgumentError::IndivisibleTotal {
                total,
                per_batch: asked,
                below,
                above,
            });
        }
        lockstep("total_frames", total, num_envs, unit)?;
    }
    Ok(Schedule {
        envs: num_envs,
        alive: vec![true; steps.len()],
        steps,
        frames_per_slab: per_slab as u64,
        slabs_per_batch: slabs_per_batch as u64,
        total_frames,
        init_random_frames: config.init_random_frames,
        start: 0,
        first_seq: 0,
        counting: true,
    })
}

/// Steps of each part of a batch.
fn shares(
    config: &CollectorConfig,
    plan: Plan,
    workers: usize,
    num_envs: usize,
) -> Result<Vec<usize>, ArgumentError> {
    match &config.frames_per_batch {
        Some(FramesPerBatch::Total(frames)) => {
            even(*frames, config.round_up, plan, workers, num_envs)
        }
        Some(FramesPerBatch::Each(frames)) => uneven(frames, plan, workers, num_envs),
        None => Err(ArgumentError::Missing { name: NAME }),
    }
}

/// Shares of `frames` frames for all workers of a batch.
fn even(
    frames: usize,
    round_up: bool,
    plan: Plan,
    workers: usize,
    num_envs: usize,
) -> Result<Vec<usize>, ArgumentError> {
    let parts = plan.parts(workers);
    ArgumentError::check_positive(NAME, frames)?;
    let together = num_envs * plan.slabs_per_batch();
    if !round_up {
        lockstep(NAME, frames as u64, together, together as u64)?;
    }
    let steps = frames.div_ceil(together);
    if steps < parts {
        return Err(ArgumentError::TooFewFrames {
            frames,
            workers: parts,
            num_envs,
        });
    }
    Ok(even_shares(steps, parts))
}

/// Shares of `frames[n]` frames for worker `n`.
fn uneven(
    frames: &[usize],
    plan: Plan,
    workers: usize,
    num_envs: usize,
) -> Result<Vec<usize>, ArgumentError> {
    if frames.len() != workers {
        return Err(ArgumentError::Entries {
            name: NAME,
            workers,
            got: frames.len(),
        });
    }
    if plan.delivery != Delivery::Synchronous && frames.iter().any(|f| *f != frames[0]) {
        return Err(ArgumentError::UnequalFrames {
            frames: frames.to_vec(),
        });
    }
    for &frames in frames {
        ArgumentError::check_positive(NAME, frames)?;
        lockstep(NAME, frames as u64, num_envs, num_envs as u64)?;
    }
    let shares = frames[..plan.parts(workers)].iter();
    Ok(shares.map(|frames| frames / num_envs).collect())
}

/// Environments that step together deliver the same number of frames each. The error proposes
/// multiples of `unit`.
fn lockstep(
    name: &'static str,
    frames: u64,
    num_envs: usize,
    unit: u64,
) -> Result<(), ArgumentError> {
    if frames.is_multiple_of(num_envs as u64) {
        return Ok(());
    }
    let (below, above) = nearest(frames, unit);
    Err(ArgumentError::IndivisibleBatch {
        name,
        frames,
        num_envs,
        below,
        above,
    })
}

/// The multiples of `unit` below (at least one) and above `frames`; the lower one twice where the
/// upper one is too large to count.
fn nearest(frames: u64, unit: u64) -> (u64, u64) {
    let below = (frames / unit).max(1) * unit;
    let above = frames.div_ceil(unit).checked_mul(unit);
    (below, above.unwrap_or(below))
}

/// The smallest number that both divide, or the largest of all numbers where that is too large.
fn common_multiple(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).saturating_mul(b)
}
