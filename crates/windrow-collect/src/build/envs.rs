//! The environments of all workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use windrow_env::{EnvError, EnvSpec, StepCounter, VecEnv};

use crate::CollectError;
use crate::config::builder::{CollectorBuilder, EnvMaker};
use crate::config::options::CollectorConfig;
use crate::error::{WorkerError, WorkerFault};

/// One factory for each worker.
pub(super) fn env_makers(chosen: &CollectorBuilder) -> Result<Vec<EnvMaker>, CollectError> {
    let workers = match (chosen.config.num_workers, chosen.envs.len()) {
        (Some(0), _) | (_, 0) => {
            return Err(CollectError::NotPositive {
                name: "num_workers",
            });
        }
        (Some(workers), 1) => workers,
        (Some(workers), envs) if workers != envs => {
            return Err(CollectError::EnvFactories {
                workers,
                factories: envs,
            });
        }
        (_, envs) => envs,
    };
    if workers > MOST_WORKERS {
        return Err(CollectError::Count {
            name: "num_workers",
            most: MOST_WORKERS,
            got: workers,
        });
    }
    Ok((0..workers)
        .map(|worker| Arc::clone(&chosen.envs[worker.min(chosen.envs.len() - 1)]))
        .collect())
}

/// No machine runs more threads than this.
const MOST_WORKERS: usize = 1 << 16;

/// How often a caller who waits for environments may give up.
const GLANCE: Duration = Duration::from_millis(50);

/// The environments of all workers, made concurrently, since some take long.
pub(super) fn make_all(
    makers: &[EnvMaker],
    config: &CollectorConfig,
    given_up: impl FnMut() -> bool,
) -> Result<Vec<Box<dyn VecEnv>>, CollectError> {
    if config.num_envs == Some(0) {
        return Err(CollectError::NotPositive { name: "num_envs" });
    }
    let options = EnvOptions::of(config);
    let envs = match makers {
        [maker] => vec![guarded(0, || options.make(0, maker))?],
        _ => make_in_threads(makers, options, given_up)?,
    };
    Ok(envs)
}

/// The spec and the number of environments that all workers have in common.
pub(super) fn common(envs: &[Box<dyn VecEnv>]) -> Result<(EnvSpec, usize), CollectError> {
    let (mut spec, num_envs) = (envs[0].spec().clone(), envs[0].num_envs());
    for (worker, env) in envs.iter().enumerate() {
        let joined = env.spec().check().and_then(|()| spec.join(env.spec()));
        joined.map_err(|source| CollectError::Env { worker, source })?;
        if env.num_envs() != num_envs {
            return Err(CollectError::UnequalEnvs {
                worker,
                expected: num_envs,
                got: env.num_envs(),
            });
        }
    }
    if u32::try_from(num_envs.saturating_mul(envs.len())).is_err() {
        return Err(CollectError::Count {
            name: "num_envs",
            // Environments are numbered with 32 bits.
            most: u32::MAX as usize / envs.len(),
            got: num_envs,
        });
    }
    Ok((spec, num_envs))
}

/// Environments that are made by a thread for each worker. Once `given_up`, the threads drop what they make.
fn make_in_threads(
    makers: &[EnvMaker],
    options: EnvOptions,
    mut given_up: impl FnMut() -> bool,
) -> Result<Vec<Box<dyn VecEnv>>, CollectError> {
    let mut threads = Vec::with_capacity(makers.len());
    let mut made: Vec<_> = makers.iter().map(|_| None).collect();
    let (done, results) = channel();
    for (worker, maker) in makers.iter().enumerate() {
        let (maker, done) = (Arc::clone(maker), done.clone());
        let make = move || {
            let made = guarded(worker, || options.make(worker, &maker));
            // The receiver is gone where the caller gave up.
            let _ = done.send((worker, made));
        };
        let thread = Builder::new().name(format!("windrow-maker-{worker}"));
        threads.push(thread.spawn(make).map_err(CollectError::Start)?);
    }
    while made.iter().any(Option::is_none) {
        match results.recv_timeout(GLANCE) {
            Ok((worker, result)) => made[worker] = Some(result),
            Err(_) if given_up() => return Err(CollectError::BuildGivenUp),
            Err(_) => {}
        }
    }
    for thread in threads {
        // Panics of users' code were sent as results.
        let _ = thread.join();
    }
    made.into_iter().flatten().collect()
}

/// The result of `make` for worker `worker`; a panic becomes an error.
pub(super) fn guarded<T>(
    worker: usize,
    make: impl FnOnce() -> Result<T, CollectError>,
) -> Result<T, CollectError> {
    catch_unwind(AssertUnwindSafe(make))
        .unwrap_or_else(|panic| Err(panicked(worker, panic.as_ref())))
}

fn panicked(worker: usize, panic: &(dyn std::any::Any + Send)) -> CollectError {
    WorkerError::new(worker, None, WorkerFault::panic(panic)).into()
}

/// Options of each worker's environments.
#[derive(Debug, Clone, Copy)]
pub(super) struct EnvOptions {
    num_envs: usize,
    max_frames_per_traj: Option<usize>,
}

impl EnvOptions {
    pub(super) fn of(config: &CollectorConfig) -> Self {
        Self {
            num_envs: config.num_envs.unwrap_or(1),
            max_frames_per_traj: config.max_frames_per_traj,
        }
    }

    pub(super) fn make(
        self,
        worker: usize,
        maker: &EnvMaker,
    ) -> Result<Box<dyn VecEnv>, CollectError> {
        if self.max_frames_per_traj == Some(0) {
            return Err(CollectError::NotPositive {
                name: "max_frames_per_traj",
            });
        }
        self.try_make(maker)
            .map_err(|source| CollectError::Env { worker, source })
    }

    fn try_make(self, maker: &EnvMaker) -> Result<Box<dyn VecEnv>, EnvError> {
        let env = maker.build(self.num_envs)?;
        Ok(match self.max_frames_per_traj {
            None => env,
            Some(frames) => Box::new(env.transformed(StepCounter::new().with_max_steps(frames))?),
        })
    }
}
