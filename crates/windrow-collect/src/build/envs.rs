//! The environments of all workers.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::Builder;

use windrow_env::{EnvSpec, VecEnv};
use windrow_sync::Interrupt;

use crate::config::builder::CollectorBuilder;
use crate::config::options::CollectorConfig;
use crate::error::{ArgumentError, BuildError};
use crate::worker::factory::WorkerFactory;

/// What makes the environments and the policy of each worker.
pub(super) fn makers(chosen: &CollectorBuilder) -> Result<Vec<WorkerFactory>, ArgumentError> {
    let workers = match (chosen.config.num_workers, chosen.envs.len()) {
        (Some(0), _) | (_, 0) => {
            return Err(ArgumentError::NotPositive {
                name: "num_workers",
            });
        }
        (Some(workers), 1) => workers,
        (Some(workers), envs) if workers != envs => {
            return Err(ArgumentError::EnvFactories {
                workers,
                factories: envs,
            });
        }
        (_, envs) => envs,
    };
    if workers > MOST_WORKERS {
        return Err(ArgumentError::Count {
            name: "num_workers",
            most: MOST_WORKERS,
            got: workers,
        });
    }
    let config = Arc::new(CollectorConfig {
        num_workers: Some(workers),
        ..chosen.config.clone()
    });
    let maker = |worker: usize| WorkerFactory {
        worker,
        config: Arc::clone(&config),
        env: Arc::clone(&chosen.envs[worker.min(chosen.envs.len() - 1)]),
        policy: chosen.policy.clone(),
        service: None,
        is_interruption: chosen.is_interruption,
    };
    Ok((0..workers).map(maker).collect())
}

/// No machine runs more threads than this.
const MOST_WORKERS: usize = 1 << 16;

/// The environments of all workers, made concurrently, since some take long.
pub(super) fn make_all(
    makers: &[WorkerFactory],
    interrupt: &Interrupt,
) -> Result<Vec<Box<dyn VecEnv>>, BuildError> {
    match makers {
        [maker] => Ok(vec![maker.guarded_envs()?]),
        _ => make_in_threads(makers, interrupt),
    }
}

/// The spec and the number of environments that all workers have in common.
pub(super) fn common<'a>(
    workers: impl ExactSizeIterator<Item = (&'a EnvSpec, usize)>,
) -> Result<(EnvSpec, usize), BuildError> {
    let count = workers.len();
    let mut joint: Option<(EnvSpec, usize)> = None;
    for (worker, (spec, num_envs)) in workers.enumerate() {
        let failed = |source| BuildError::Env { worker, source };
        spec.check().map_err(failed)?;
        let (joined, expected) = joint.get_or_insert_with(|| {
            let mut joined = spec.clone();
            // Those of one worker mean nothing to others.
            joined.statistics.clear();
            (joined, num_envs)
        });
        joined.join(spec).map_err(failed)?;
        if num_envs != *expected {
            return Err(BuildError::UnequalEnvs {
                worker,
                expected: *expected,
                got: num_envs,
            });
        }
    }
    let Some((spec, num_envs)) = joint else {
        let name = "num_workers";
        return Err(ArgumentError::NotPositive { name }.into());
    };
    if u32::try_from(num_envs.saturating_mul(count)).is_err() {
        let count = ArgumentError::Count {
            name: "num_envs",
            // Environments are numbered with 32 bits.
            most: u32::MAX as usize / count,
            got: num_envs,
        };
        return Err(count.into());
    }
    Ok((spec, num_envs))
}

/// Environments that are made by a thread for each worker. After an interrupt, the threads drop
/// what they make.
fn make_in_threads(
    makers: &[WorkerFactory],
    interrupt: &Interrupt,
) -> Result<Vec<Box<dyn VecEnv>>, BuildError> {
    let mut threads = Vec::with_capacity(makers.len());
    let mut made: Vec<_> = makers.iter().map(|_| None).collect();
    let (done, results) = channel();
    for (worker, maker) in makers.iter().enumerate() {
        let (maker, done) = (maker.clone(), done.clone());
        let make = move || {
            // The receiver is gone after an interrupt.
            let _ = done.send((worker, maker.guarded_envs()));
        };
        let thread = Builder::new().name(format!("windrow-maker-{worker}"));
        threads.push(thread.spawn(make).map_err(BuildError::Thread)?);
    }
    while made.iter().any(Option::is_none) {
        let (worker, result) = interrupt.wait(|slice| results.recv_timeout(slice).ok())?;
        made[worker] = Some(result);
    }
    for thread in threads {
        // Panics of users' code were sent as results.
        let _ = thread.join();
    }
    made.into_iter().flatten().collect()
}
