//! From the choices to a collector. Finds everything that can be wrong with them.

pub(crate) mod collectors;
mod envs;
mod frames;

use std::sync::Arc;

use windrow_env::{EnvSpec, VecEnv};
use windrow_policy::{Policy, PolicySpec};
use windrow_slab::{
    Layout, LeafSpec, RecordSpec, Ring, RingSpec, RowBlock, Shares, Sink, SlabError,
};

use crate::CollectError;
use crate::config::builder::{CollectorBuilder, EnvMaker};
use crate::config::options::CollectorConfig;
use crate::config::plan::{Delivery, Placement};
use crate::deliver::collector::Collector;
use crate::deliver::core::Core;
use crate::deliver::driver::{Driver, Shape};
use crate::deliver::sink_writer::SinkWriter;
use crate::deliver::stage::LastStage;
use crate::placement::Workers;
use crate::shared::orders::Restart;
use crate::shared::publisher::WeightPublisher;
use crate::shared::reports::LossRule;
use crate::shared::stats::Counters;
use crate::shared::{LocalDesk, Shared};
use crate::sync::{AtomicBool, AtomicU64, Mutex};
use crate::trajectories::TrajectoryBatcher;
use crate::worker::actor::{Actor, PolicySeat, describe, describe_all};
use crate::worker::cursor::{Cursor, CursorOptions, TrajIds};
use crate::worker::{Maker, Worker};
use envs::{EnvOptions, common, env_makers, guarded, make_all};
use frames::schedule;

impl CollectorBuilder {
    /// Makes the environments, all workers' at once, binds the policies and lays out the memory.
    ///
    /// # Errors
    /// [`CollectError`], naming the argument, what was expected and what came.
    pub fn build(self) -> Result<Collector, CollectError> {
        self.build_unless(|| false)
    }

    /// As [`build`](Self::build), but gives up once `given_up` returns true; it is called from time to time while the
    /// environments of several workers are made. Environments that are finished later are dropped.
    ///
    /// # Errors
    /// As there; [`CollectError::BuildGivenUp`] then.
    pub fn build_unless(
        mut self,
        given_up: impl FnMut() -> bool,
    ) -> Result<Collector, CollectError> {
        let hooks = std::mem::take(&mut self.hooks);
        build(self, hooks, given_up)
    }

    /// As [`build_unless`](Self::build_unless), with the caller's own last stage in place of hooks and post-processing.
    ///
    /// # Errors
    /// As there.
    pub fn build_with<S: LastStage>(
        self,
        stage: S,
        given_up: impl FnMut() -> bool,
    ) -> Result<Collector<S>, CollectError> {
        build(self, stage, given_up)
    }
}

fn build<S: LastStage>(
    chosen: CollectorBuilder,
    stage: S,
    given_up: impl FnMut() -> bool,
) -> Result<Collector<S>, CollectError> {
    let config = &chosen.config;
    let plan = config.plan();
    let makers = env_makers(&chosen)?;
    let workers = makers.len();
    check_plan(config, workers)?;
    let batcher = batcher(&chosen)?;
    let mut envs = make_all(&makers, config, given_up)?;
    let (spec, num_envs) = common(&envs)?;
    let schedule = schedule(config, workers, num_envs)?;
    let (seed, first_episodes) = beginning(config, &spec);

    let batched = num_envs > 1 || config.num_envs.is_some();
    let (actors, policy) = actors(&chosen, &mut envs, &spec, batched)?;
    let envs = bound(envs, &policy.columns)?;
    let reference = reference(&chosen, &policy)?;
    let backend = policy.backend;
    let record = record(config, &spec, policy.columns);
    let shares = Shares {
        steps: schedule.steps.clone(),
        envs: num_envs,
        batched,
    };
    let ring = Layout::new(&record, shares)
        .and_then(|layout| Ring::new(layout, ring_spec(config, workers)))
        .map_err(|error| unbuilt(error, &spec, &record, schedule.frames_per_batch()))?;
    ring.end_at(schedule.end());
    let loss_rule = LossRule {
        on_loss: config.on_loss,
        is_interruption: chosen.is_interruption,
    };
    let shared = Arc::new(Shared::new(Arc::clone(&ring), schedule, workers, loss_rule));
    let ids = TrajIds {
        base: 0,
        total_envs: workers * num_envs,
    };
    let cursor = cursor_options(config);
    let members = envs
        .into_iter()
        .zip(actors)
        .zip(makers)
        .enumerate()
        .map(|(id, ((env, (actor, first)), maker))| {
            let envs = (id * num_envs) as u32..((id + 1) * num_envs) as u32;
            let mut cursor = Cursor::new(&spec, envs, ids, seed, first_episodes, cursor)?;
            if let Some(first) = first {
                cursor.prime(first);
            }
            Ok(Worker {
                desk: LocalDesk::new(id, Arc::clone(&shared)),
                cursor,
                env,
                actor,
                maker: worker_maker(id, maker, &chosen, batched),
            })
        })
        .collect::<Result<Vec<_>, CollectError>>()?;
    let publisher = WeightPublisher::new(
        Arc::clone(&shared),
        reference,
        backend,
        chosen.updater,
        chosen.weight_source,
    );
    let core = core(config, shared, publisher, chosen.sink, num_envs, seed);
    let shape = shape(
        config,
        batcher.map(|batcher| batcher.of_envs(ids.total_envs)),
    );
    let members = Workers::new(plan.placement, members);
    let driver = Driver::new(members, Arc::new(core), shape, stage);
    Ok(Collector::new(driver))
}

fn cursor_options(config: &CollectorConfig) -> CursorOptions {
    let whole_trajectories = config.trajs_per_batch.is_some();
    CursorOptions {
        // Whole trajectories end where episodes are cut; otherwise one longer than a batch would never be delivered.
        set_truncated: config.set_truncated || (config.reset_at_each_iter && whole_trajectories),
        reset_at_each_iter: config.reset_at_each_iter,
    }
}

fn shape(config: &CollectorConfig, batcher: Option<TrajectoryBatcher>) -> Shape {
    Shape {
        batcher,
        trajs_per_write: config.trajs_per_write,
        split_trajs: config.split_trajs,
        update_at_each_batch: config.update_at_each_batch,
    }
}

fn core(
    config: &CollectorConfig,
    shared: Arc<Shared>,
    publisher: WeightPublisher,
    sink: Option<Box<dyn Sink>>,
    num_envs: usize,
    seed: u64,
) -> Core {
    Core {
        ring: Arc::clone(&shared.ring),
        shared,
        publisher,
        plan: config.plan(),
        cat_results: config.cat_results,
        preempting: config.preemptive_threshold.is_some(),
        num_envs,
        writer: sink.map(|sink| Arc::new(SinkWriter::new(sink))),
        counters: Mutex::new(Counters::default()),
        forget: AtomicBool::new(false),
        seed: AtomicU64::new(seed),
        over: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        running: AtomicBool::new(false),
    }
}

/// The columns of a frame, where policies write `columns`.
fn record(config: &CollectorConfig, spec: &EnvSpec, columns: Vec<LeafSpec>) -> RecordSpec {
    RecordSpec {
        observation: spec.observation_leaves(),
        policy: columns,
        next_only: spec.rewards.clone(),
        groups: spec.groups.clone(),
        traj_ids: config.track_traj_ids,
        policy_version: config.track_policy_version,
    }
}

/// The key of noise, and how environments begin their first episodes.
fn beginning(config: &CollectorConfig, spec: &EnvSpec) -> (u64, Restart) {
    if spec.keeps_seed && config.seed.is_none() {
        return (config.noise_seed.unwrap_or_else(entropy), Restart::Unseeded);
    }
    let seed = config.seed.unwrap_or_else(entropy);
    (seed, Restart::Seeded { seed, same: false })
}

/// The environments of all workers, bound to the columns that policies write.
fn bound(
    mut envs: Vec<Box<dyn VecEnv>>,
    columns: &[LeafSpec],
) -> Result<Vec<Box<dyn VecEnv>>, CollectError> {
    for (worker, env) in envs.iter_mut().enumerate() {
        env.bind(columns)
            .map_err(|source| CollectError::Env { worker, source })?;
    }
    Ok(envs)
}

/// An actor, and the first observations of its environments where episodes were begun for it.
type Bound = (Actor, Option<RowBlock>);

/// The policies of all workers, bound to the environments of each, and what all of them say about themselves.
fn actors(
    chosen: &CollectorBuilder,
    envs: &mut [Box<dyn VecEnv>],
    spec: &EnvSpec,
    batched: bool,
) -> Result<(Vec<Bound>, PolicySpec), CollectError> {
    let bind = |(worker, env): (usize, &mut Box<dyn VecEnv>)| {
        guarded(worker, || {
            let policy = chosen.policy.build(worker);
            let seat = seat(chosen, worker, batched);
            seat.take(policy, env.as_mut(), spec, |policy, binding| {
                Actor::new(policy, binding, chosen.config.exploration_type)
            })
        })
    };
    let actors = envs.iter_mut().enumerate().map(bind);
    let actors = actors.collect::<Result<Vec<_>, CollectError>>()?;
    let policy = actors[0].0.spec().clone();
    for (worker, (actor, _)) in actors.iter().enumerate() {
        let (expected, got) = (&policy.columns, &actor.spec().columns);
        if got != expected {
            return Err(CollectError::UnequalPolicies {
                worker,
                expected: describe_all(expected),
                got: describe_all(got),
            });
        }
    }
    Ok((actors, policy))
}

/// A policy that checks weights for policies that say `bound` about themselves.
fn reference(
    chosen: &CollectorBuilder,
    bound: &PolicySpec,
) -> Result<Box<dyn Policy>, CollectError> {
    guarded(0, || {
        let mut reference = chosen.policy.build(0);
        reference.become_reference(bound);
        Ok(reference)
    })
}

/// The batcher of whole trajectories, if they are wanted.
fn batcher(chosen: &CollectorBuilder) -> Result<Option<TrajectoryBatcher>, CollectError> {
    let config = &chosen.config;
    let wanted = config.trajs_per_batch;
    let needs = |name, needs| Err(CollectError::Needs { name, needs });
    if !config.track_traj_ids && wanted.is_some() {
        return needs("trajs_per_batch", "track_traj_ids");
    }
    if !config.track_traj_ids && config.split_trajs {
        return needs("split_trajs", "track_traj_ids");
    }
    if let Some(trajectories) = config.trajs_per_write {
        let name = "trajs_per_write";
        if trajectories == 0 {
            return Err(CollectError::NotPositive { name });
        }
        if wanted.is_none() {
            return needs(name, "trajs_per_batch");
        }
        if chosen.sink.is_none() {
            return needs(name, "a replay_buffer");
        }
    }
    wanted
        .map(|trajectories| TrajectoryBatcher::new(trajectories, config.traj_format))
        .transpose()
}

fn check_plan(config: &CollectorConfig, workers: usize) -> Result<(), CollectError> {
    if let Delivery::FirstCome { workers_per_batch } = config.delivery
        && !(1..=workers).contains(&workers_per_batch)
    {
        return Err(CollectError::Count {
            name: "workers_per_batch",
            most: workers,
            got: workers_per_batch,
        });
    }
    let Some(threshold) = config.preemptive_threshold else {
        return Ok(());
    };
    if !(0.0..=1.0).contains(&threshold) {
        return Err(CollectError::OutOfRange {
            name: "preemptive_threshold",
            expected: "0 to 1",
            got: threshold,
        });
    }
    if config.delivery != Delivery::Synchronous {
        return Err(CollectError::Needs {
            name: "preemptive_threshold",
            needs: "batches that wait for all workers",
        });
    }
    Ok(())
}

/// The error of a ring that could not be made.
fn unbuilt(
    error: SlabError,
    spec: &EnvSpec,
    record: &RecordSpec,
    frames_per_batch: u64,
) -> CollectError {
    match error {
        SlabError::DuplicateColumn { key } => {
            let written = record.policy.iter().find(|leaf| leaf.key.overlaps(&key));
            match written {
                None => SlabError::DuplicateColumn { key }.into(),
                Some(leaf) => CollectError::PolicyWrites {
                    env: spec.id.clone(),
                    expected: key.to_string(),
                    got: describe(Some(leaf)),
                },
            }
        }
        SlabError::TooLarge { .. } | SlabError::NoMemory { .. } => CollectError::BatchMemory {
            frames_per_batch,
            source: error,
        },
        other => other.into(),
    }
}

fn ring_spec(config: &CollectorConfig, workers: usize) -> RingSpec {
    let plan = config.plan();
    let ahead = plan.ahead(workers);
    RingSpec {
        order: plan.order(),
        workers,
        ahead,
        max_slabs: if config.return_same_td {
            1
        } else {
            config.max_slabs.max(ahead + 2)
        },
        cut_after: config
            .preemptive_threshold
            .filter(|threshold| *threshold < 1.0)
            .map(|threshold| (workers as f64 * threshold) as usize),
    }
}

/// How worker `id` starts over after a loss.
fn worker_maker(id: usize, env: EnvMaker, chosen: &CollectorBuilder, batched: bool) -> Maker {
    let options = EnvOptions::of(&chosen.config);
    let policy = chosen.policy.clone();
    Maker {
        env: Box::new(move || options.make(id, &env)),
        policy: Box::new(move || policy.build(id)),
        seat: seat(chosen, id, batched),
    }
}

/// Where the policy of worker `worker` acts.
fn seat(chosen: &CollectorBuilder, worker: usize, batched: bool) -> PolicySeat {
    PolicySeat {
        worker,
        batched,
        in_caller: chosen.config.placement == Placement::Inline,
        is_interruption: chosen.is_interruption,
    }
}

/// A seed that differs from run to run: the standard library keys its hash maps with the operating system's entropy.
pub(crate) fn entropy() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Seeds are shown as `i64` in saved states.
    RandomState::new().hash_one(0u8) >> 1
}
