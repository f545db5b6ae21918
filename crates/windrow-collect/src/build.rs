//! From what was chosen to a collector: everything that can be wrong is found here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use windrow_env::{EnvSpec, StepCounter, VecEnv};
use windrow_slab::{Layout, RecordSpec, Ring, RingSpec, Shares};

use crate::CollectError;
use crate::actor::Actor;
use crate::builder::{CollectorBuilder, EnvMaker, Frames};
use crate::collector::{Collector, Parts};
use crate::consumer::Consumer;
use crate::cursor::{Cursor, TrajIds};
use crate::error::{WorkerError, WorkerFault};
use crate::placement::Crew;
use crate::plan::{Delivery, Plan};
use crate::schedule::{Schedule, even_shares};
use crate::trajectories::TrajectoryBatcher;
use crate::worker::{Maker, Shared, Worker};

/// See [`CollectorBuilder::build`].
pub(crate) fn build(chosen: CollectorBuilder) -> Result<Collector, CollectError> {
    let plan = chosen.plan;
    let makers = env_makers(&chosen)?;
    let workers = makers.len();
    check_plan(&chosen, workers)?;
    let batcher = batcher(&chosen)?;
    let envs = make_all(&makers, &chosen)?;
    let spec = envs[0].spec().clone();
    let num_envs = envs[0].num_envs();
    let schedule = schedule(&chosen, workers, num_envs)?;
    let seed = chosen.seed.unwrap_or_else(entropy);

    let mut actors = (0..workers)
        .map(|id| {
            guarded(id, || {
                Actor::new((chosen.policy)(id), &spec, chosen.exploration_type)
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let columns = actors[0].columns().to_vec();
    if let Some(other) = actors.iter().position(|actor| actor.columns() != columns) {
        return Err(CollectError::Workers(format!(
            "policies of one collector write the same columns: expected {columns:?} as worker 0, got {:?} from worker {other}",
            actors[other].columns()
        )));
    }
    let reference = guarded(0, || Ok((chosen.policy)(0)))?;
    let record = RecordSpec {
        observation: spec.observation_leaves(),
        policy: columns,
        traj_ids: chosen.track_traj_ids,
        policy_version: chosen.track_policy_version,
    };
    let shares = Shares {
        steps: schedule.steps.clone(),
        envs: num_envs,
        batched: num_envs > 1 || chosen.num_envs.is_some(),
    };
    let ring = Ring::new(Layout::new(&record, shares)?, ring_spec(&chosen, workers))?;
    ring.end_at(schedule.end());
    let shared = Arc::new(Shared::new(schedule, workers, chosen.on_loss));
    let ids = TrajIds {
        base: 0,
        total_envs: workers * num_envs,
    };
    let crew = envs
        .into_iter()
        .zip(actors.drain(..))
        .zip(makers)
        .enumerate()
        .map(|(id, ((env, actor), maker))| {
            let first = (id * num_envs) as u32;
            Ok(Worker {
                id,
                cursor: Cursor::new(&spec, num_envs, first, ids, seed, chosen.cursor)?,
                env,
                actor,
                ring: Arc::clone(&ring),
                shared: Arc::clone(&shared),
                maker: worker_maker(id, maker, &chosen),
                losses: 0,
            })
        })
        .collect::<Result<Vec<_>, CollectError>>()?;
    Ok(Collector::new(Parts {
        crew: Crew::new(plan.placement, crew),
        ring,
        shared,
        reference,
        consumer: Consumer {
            batcher,
            split_trajs: chosen.split_trajs,
            ..chosen.consumer
        },
        plan,
        cat_results: chosen.cat_results,
        preempting: chosen.preemptive_threshold.is_some(),
        num_envs,
        seed,
    }))
}

/// What puts whole trajectories together, if that is wanted.
fn batcher(chosen: &CollectorBuilder) -> Result<Option<TrajectoryBatcher>, CollectError> {
    let wanted = chosen.trajs_per_batch;
    if !chosen.track_traj_ids && (wanted.is_some() || chosen.split_trajs) {
        return Err(CollectError::Workers(
            "trajectories are told apart by their ids: trajs_per_batch and split_trajs need track_traj_ids(true)".to_owned(),
        ));
    }
    wanted
        .map(|trajectories| TrajectoryBatcher::new(trajectories, chosen.traj_format))
        .transpose()
}

/// One factory for each worker.
fn env_makers(chosen: &CollectorBuilder) -> Result<Vec<EnvMaker>, CollectError> {
    let workers = match (chosen.num_workers, chosen.envs.len()) {
        (Some(0), _) | (_, 0) => return Err(not_positive("num_workers", 0)),
        (Some(workers), 1) => workers,
        (Some(workers), envs) if workers != envs => {
            return Err(CollectError::Workers(format!(
                "num_workers={workers}, but there are {envs} environment factories: give one for each worker, or one for all"
            )));
        }
        (_, envs) => envs,
    };
    Ok((0..workers)
        .map(|worker| Arc::clone(&chosen.envs[worker.min(chosen.envs.len() - 1)]))
        .collect())
}

fn check_plan(chosen: &CollectorBuilder, workers: usize) -> Result<(), CollectError> {
    if let Delivery::FirstCome { workers_per_batch } = chosen.plan.delivery
        && !(1..=workers).contains(&workers_per_batch)
    {
        return Err(CollectError::Workers(format!(
            "workers_per_batch={workers_per_batch} must be within 1 to {workers}, the number of workers"
        )));
    }
    let Some(threshold) = chosen.preemptive_threshold else {
        return Ok(());
    };
    if !(0.0..=1.0).contains(&threshold) {
        return Err(CollectError::OutOfRange {
            name: "preemptive_threshold",
            expected: "0 to 1",
            got: threshold,
        });
    }
    if chosen.plan.delivery != Delivery::Synchronous {
        return Err(CollectError::Workers(
            "preemptive_threshold makes no sense where batches do not wait for all workers"
                .to_owned(),
        ));
    }
    Ok(())
}

fn ring_spec(chosen: &CollectorBuilder, workers: usize) -> RingSpec {
    let plan = chosen.plan;
    let ahead = plan.ahead(workers);
    RingSpec {
        order: plan.order(),
        workers,
        ahead,
        max_slabs: if chosen.return_same_td {
            1
        } else {
            chosen.max_slabs.max(ahead + 2)
        },
        cut_after: chosen
            .preemptive_threshold
            .filter(|threshold| *threshold < 1.0)
            .map(|threshold| (workers as f64 * threshold) as usize),
    }
}

/// The environments of all workers, made at the same time: some take long.
fn make_all(
    makers: &[EnvMaker],
    chosen: &CollectorBuilder,
) -> Result<Vec<Box<dyn VecEnv>>, CollectError> {
    if chosen.num_envs == Some(0) {
        return Err(not_positive("num_envs", 0));
    }
    let options = EnvOptions::of(chosen);
    let make = |worker: usize, maker: &EnvMaker| guarded(worker, || options.make(maker));
    let envs = if let [maker] = makers {
        vec![make(0, maker)?]
    } else {
        std::thread::scope(|scope| {
            let started: Vec<_> = makers
                .iter()
                .enumerate()
                .map(|(worker, maker)| scope.spawn(move || make(worker, maker)))
                .collect();
            started
                .into_iter()
                .enumerate()
                .map(|(worker, thread)| {
                    let joined = thread.join();
                    joined.unwrap_or_else(|panic| Err(panicked(worker, panic.as_ref())))
                })
                .collect::<Result<Vec<_>, _>>()
        })?
    };
    let first = (envs[0].spec(), envs[0].num_envs());
    for (worker, env) in envs.iter().enumerate() {
        if (env.spec(), env.num_envs()) != first {
            return Err(CollectError::Workers(format!(
                "environments of one collector are alike: expected {} of {} as worker 0, got {} of {} from worker {worker}",
                first.1,
                describe(first.0),
                env.num_envs(),
                describe(env.spec())
            )));
        }
    }
    Ok(envs)
}

/// What `make` makes for worker `worker`; a panic is an error like any other.
fn guarded<T>(
    worker: usize,
    make: impl FnOnce() -> Result<T, CollectError>,
) -> Result<T, CollectError> {
    catch_unwind(AssertUnwindSafe(make))
        .unwrap_or_else(|panic| Err(panicked(worker, panic.as_ref())))
}

fn panicked(worker: usize, panic: &(dyn std::any::Any + Send)) -> CollectError {
    WorkerError::new(worker, None, WorkerFault::panic(panic)).into()
}

fn describe(spec: &EnvSpec) -> String {
    format!(
        "{} (observation {:?}, action {:?})",
        spec.id, spec.observation, spec.action
    )
}

/// What is done to each worker's environments.
#[derive(Debug, Clone, Copy)]
struct EnvOptions {
    num_envs: usize,
    max_frames_per_traj: Option<usize>,
}

impl EnvOptions {
    fn of(chosen: &CollectorBuilder) -> Self {
        Self {
            num_envs: chosen.num_envs.unwrap_or(1),
            max_frames_per_traj: chosen.max_frames_per_traj,
        }
    }

    fn make(self, maker: &EnvMaker) -> Result<Box<dyn VecEnv>, CollectError> {
        let env = maker.build(self.num_envs)?;
        Ok(match self.max_frames_per_traj {
            None => env,
            Some(0) => return Err(not_positive("max_frames_per_traj", 0)),
            Some(frames) => Box::new(StepCounter::new(env)?.with_max_steps(frames)?),
        })
    }
}

/// How worker `id` starts over after a loss.
fn worker_maker(id: usize, env: EnvMaker, chosen: &CollectorBuilder) -> Maker {
    let options = EnvOptions::of(chosen);
    let policy = Arc::clone(&chosen.policy);
    Maker {
        env: Box::new(move || options.make(&env)),
        policy: Box::new(move || policy(id)),
    }
}

/// Checks the frame counts against each other, and shares a batch out.
fn schedule(
    chosen: &CollectorBuilder,
    workers: usize,
    num_envs: usize,
) -> Result<Schedule, CollectError> {
    let steps = shares(chosen, chosen.plan, workers, num_envs)?;
    let slabs_per_batch = chosen.plan.slabs_per_batch();
    let per_slab = steps.iter().sum::<usize>() * num_envs;
    let per_batch = per_slab * slabs_per_batch;
    let mut total_frames = chosen.total_frames;
    if chosen.trajs_per_batch.is_some() {
        // Frames are not what is delivered, so nobody minds the few that a whole step of all environments would exceed.
        total_frames = total_frames.map(|total| total - total % num_envs as u64);
    } else if let Some(total) = total_frames {
        let batch = per_batch as u64;
        if !total.is_multiple_of(batch) && !chosen.partial_last_batch {
            return Err(CollectError::IndivisibleTotal {
                total,
                per_batch,
                below: (total / batch).max(1) * batch,
                above: total.div_ceil(batch) * batch,
            });
        }
        lockstep("total_frames", total, num_envs)?;
    }
    Ok(Schedule {
        envs: num_envs,
        alive: vec![true; steps.len()],
        steps,
        frames_per_slab: per_slab as u64,
        slabs_per_batch: slabs_per_batch as u64,
        total_frames,
        init_random_frames: chosen.init_random_frames,
        start: 0,
        first_seq: 0,
        counting: true,
    })
}

/// Steps of each part of a batch.
fn shares(
    chosen: &CollectorBuilder,
    plan: Plan,
    workers: usize,
    num_envs: usize,
) -> Result<Vec<usize>, CollectError> {
    let parts = plan.parts(workers);
    match &chosen.frames_per_batch {
        Frames::Missing => Err(CollectError::NotPositive {
            name: "frames_per_batch",
            got: "nothing".to_owned(),
        }),
        Frames::Batch(0) => Err(not_positive("frames_per_batch", 0)),
        Frames::Batch(frames) => {
            let slabs = plan.slabs_per_batch();
            lockstep("frames_per_batch", *frames as u64, num_envs * slabs)?;
            let steps = frames / (num_envs * slabs);
            if steps < parts {
                return Err(CollectError::Workers(format!(
                    "frames_per_batch={frames} leaves workers without a frame: {parts} workers of {num_envs} environments need {} or more",
                    parts * num_envs
                )));
            }
            Ok(even_shares(steps, parts))
        }
        Frames::Workers(frames) => {
            if frames.len() != workers {
                return Err(CollectError::Workers(format!(
                    "frames_per_worker has {} entries for {workers} workers",
                    frames.len()
                )));
            }
            if plan.delivery != Delivery::Synchronous && frames.iter().any(|f| *f != frames[0]) {
                return Err(CollectError::Workers(format!(
                    "where batches do not wait for all workers, any of them may fill any part: expected equal entries in frames_per_worker, got {frames:?}"
                )));
            }
            for &frames in frames {
                if frames == 0 {
                    return Err(not_positive("frames_per_worker", 0));
                }
                lockstep("frames_per_worker", frames as u64, num_envs)?;
            }
            Ok(frames[..parts]
                .iter()
                .map(|frames| frames / num_envs)
                .collect())
        }
    }
}

/// Environments that step together deliver the same number of frames each.
fn lockstep(name: &'static str, frames: u64, num_envs: usize) -> Result<(), CollectError> {
    let envs = num_envs as u64;
    if frames.is_multiple_of(envs) {
        return Ok(());
    }
    Err(CollectError::IndivisibleBatch {
        name,
        frames,
        num_envs,
        below: (frames / envs).max(1) * envs,
        above: frames.div_ceil(envs) * envs,
    })
}

fn not_positive(name: &'static str, got: u64) -> CollectError {
    CollectError::NotPositive {
        name,
        got: got.to_string(),
    }
}

/// A seed that differs from run to run: the standard library keys its hash maps with the operating system's entropy.
fn entropy() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Seeds are shown as `i64` in saved states.
    RandomState::new().hash_one(0u8) >> 1
}
