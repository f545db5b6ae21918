//! From the choices to a collector. Finds everything that can be wrong with them.

pub(crate) mod collectors;
mod envs;
mod frames;
mod inference;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use tensordict::NestedKey;
use tracing::warn;
use windrow_env::EnvSpec;
use windrow_policy::{Policy, PolicySpec};
use windrow_slab::{
    Layout, LeafSpec, MaxAge, PartOrder, RecordSpec, RingSpec, Shares, Sink, SlabError,
};
use windrow_sync::atomic::{AtomicBool, AtomicU64};
use windrow_sync::{Interrupt, Mutex};

use crate::TARGET;
use crate::config::builder::CollectorBuilder;
use crate::config::options::CollectorConfig;
use crate::config::plan::{CatResults, Delivery, OnLoss, Placement};
use crate::deliver::batches::{Batches, Shape};
use crate::deliver::collector::Collector;
use crate::deliver::core::Core;
use crate::deliver::driver::Driver;
use crate::deliver::sink_writer::SinkWriter;
use crate::deliver::slabs::Slabs;
use crate::deliver::stage::LastStage;
use crate::error::{ArgumentError, BuildError};
use crate::shared::Shared;
use crate::shared::commands::Restart;
use crate::shared::lifecycle::Lifecycle;
use crate::shared::publisher::WeightPublisher;
use crate::shared::reports::LossRule;
use crate::shared::statistics::SharedStatistics;
use crate::shared::stats::Counters;
use crate::trajectories::{MASK, TrajectoryBatcher};
use crate::worker::actor::describe;
use crate::worker::cursor::{Beginning, CursorOptions};
use crate::worker::factory::{WorkerFactory, batched};
use envs::makers;
use frames::schedule;
use inference::{check_clones, check_inference, service};
use workers::{LinkSpec, NewWorkers};

impl CollectorBuilder {
    /// Makes the environments, all workers' at once, binds the policies and lays out the memory.
    ///
    /// # Errors
    /// [`BuildError::Argument`], naming the argument, what was expected and what came;
    /// [`BuildError::Env`] and [`BuildError::Policy`] with the error of the user's code, and others
    /// where environments, policies and memory do not go together; [`BuildError::WaitInterrupted`]
    /// where an [interrupt](Self::interrupt) ends the wait for environments. Those that are
    /// finished later are dropped.
    pub fn build(mut self) -> Result<Collector, BuildError> {
        let hooks = std::mem::take(&mut self.hooks);
        self.build_with(hooks)
    }

    /// As [`build`](Self::build), with the caller's own last stage in place of hooks and
    /// post-processing.
    ///
    /// # Errors
    /// Those of [`build`](Self::build).
    #[doc(hidden)]
    pub fn build_with<S: LastStage>(self, stage: S) -> Result<Collector<S>, BuildError> {
        build(self, stage)
    }
}

fn build<S: LastStage>(chosen: CollectorBuilder, stage: S) -> Result<Collector<S>, BuildError> {
    let config = &chosen.config;
    let makers = makers(&chosen)?;
    let workers = makers.len();
    check_plan(config, workers)?;
    check_inference(&chosen)?;
    check_clones(&chosen, workers)?;
    let batcher = batcher(&chosen)?;
    check_choices(&chosen)?;
    let reference_maker = makers[0].clone();
    let mut new = NewWorkers::new(&chosen, makers)?;
    let (spec, num_envs) = new.common()?;
    let schedule = schedule(&chosen, workers, num_envs)?;
    let (seed, first_episodes) = beginning(config, &spec);
    let service = service(&chosen, workers, num_envs);
    if let Some(service) = &service {
        new.serve(service);
    }

    let policy = new.bind(&spec, &chosen.interrupt)?;
    check_mask_is_free(&policy, &spec)?;
    let reference = reference(&reference_maker, &policy)?;
    check_max_lag(config, &*reference)?;
    let backend = policy.backend;
    let statistics = SharedStatistics::new(&reference_maker.config, new.statistics())?;
    let record = record(config, &spec, policy.columns.clone(), statistics.notes());
    let shares = slab_shares(config, schedule.steps.clone(), num_envs);
    let ring = Layout::new(&record, shares.clone())
        .and_then(|layout| new.ring(layout, ring_spec(config, workers)))
        .map_err(|error| unbuilt(error, &spec, &record, schedule.frames_per_batch()))?;
    ring.end_at(schedule.end());
    let loss_rule = LossRule {
        on_loss: config.on_loss,
        reassigns: reassigns(config),
        is_interruption: chosen.is_interruption,
    };
    let mut shared = Shared::new(ring, schedule, workers, loss_rule, seed, statistics);
    if let Some(service) = service {
        shared = shared.served_by(service);
    }
    let beginning = Beginning {
        total_envs: workers * num_envs,
        seed,
        first_episodes,
        options: cursor_options(config),
    };
    let links = LinkSpec {
        spec: &spec,
        policy: &policy,
        record,
        shares,
        beginning,
        step_timeout: config.step_timeout,
    };
    let (members, shared) = new.connect(shared, links, &*reference)?;
    let publisher = WeightPublisher::new(
        Arc::clone(&shared),
        reference,
        backend,
        (chosen.updater, chosen.weight_source),
        (chosen.interrupt.clone(), config.step_timeout),
    );
    let core = core(
        config,
        shared,
        publisher,
        (chosen.sink, chosen.interrupt),
        (spec, num_envs),
    );
    let update_at_each_batch = config.update_at_each_batch;
    let shape = shape(
        config,
        batcher.map(|batcher| batcher.of_envs(beginning.total_envs)),
    );
    let core = Arc::new(core);
    let slabs = Slabs::new(members, Arc::clone(&core));
    let batches = Batches::new(slabs, Arc::clone(&core), shape);
    let driver = Driver::new(core, batches, stage, update_at_each_batch);
    Ok(Collector::new(driver))
}

fn cursor_options(config: &CollectorConfig) -> CursorOptions {
    let whole_trajectories = config.trajs_per_batch.is_some();
    CursorOptions {
        // Whole trajectories end where episodes are cut; otherwise one longer than a batch would
        // never be delivered.
        set_truncated: config.set_truncated || (config.reset_at_each_iter && whole_trajectories),
        reset_at_each_iter: config.reset_at_each_iter,
    }
}

fn shape(config: &CollectorConfig, batcher: Option<TrajectoryBatcher>) -> Shape {
    Shape {
        batcher,
        trajs_per_write: config.trajs_per_write,
        split_trajs: config.split_trajs,
    }
}

fn core(
    config: &CollectorConfig,
    shared: Arc<Shared>,
    publisher: WeightPublisher,
    (sink, interrupt): (Option<Box<dyn Sink>>, Interrupt),
    (spec, num_envs): (EnvSpec, usize),
) -> Core {
    let lifecycle = Arc::<Lifecycle>::default();
    let are_all = spec.dimensions.iter().product::<usize>() == num_envs;
    Core {
        ring: Arc::clone(&shared.ring),
        shared,
        publisher,
        plan: config.plan(),
        cat_results: config.cat_results,
        preempting: config.preemptive_threshold.is_some(),
        ages_are_bounded: config.max_lag.is_some(),
        num_envs,
        dimensions: spec.dimensions.into_iter().filter(|_| are_all).collect(),
        deltas: spec.deltas,
        writer: sink.map(|sink| Arc::new(SinkWriter::new(sink, Arc::clone(&lifecycle)))),
        lifecycle,
        counters: Mutex::new(Counters::default()),
        interrupt,
        forget: AtomicBool::new(false),
        undelivered: AtomicU64::new(0),
        not_held: Mutex::new(None),
        running: AtomicBool::new(false),
    }
}

/// How the frames of a slab are shared out. Parts lie side by side where batches are flat along the
/// environments, and one after the other where they are along time, so that both are views.
fn slab_shares(config: &CollectorConfig, steps: Vec<usize>, num_envs: usize) -> Shares {
    let batched = batched(config, num_envs);
    let equal = steps.iter().all(|&part| part == steps[0]);
    let is_view = config.cat_results == CatResults::Flat && config.trajs_per_batch.is_none();
    let order = match batched && equal && steps.len() > 1 && is_view {
        true => PartOrder::Interleaved,
        false => PartOrder::Sequential,
    };
    Shares {
        steps,
        envs: num_envs,
        batched,
        order,
    }
}

/// The columns of a frame, where policies write `columns`, and the numbers beside those of a part.
fn record(
    config: &CollectorConfig,
    spec: &EnvSpec,
    columns: Vec<LeafSpec>,
    notes: usize,
) -> RecordSpec {
    RecordSpec {
        observation: spec.observation_leaves(),
        policy: columns,
        next_only: spec.rewards.clone(),
        groups: spec.groups.clone(),
        traj_ids: config.track_traj_ids,
        policy_version: config.track_policy_version,
        notes,
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

/// A policy that checks weights for policies that say `bound` about themselves.
fn reference(maker: &WorkerFactory, bound: &PolicySpec) -> Result<Box<dyn Policy>, BuildError> {
    maker.guarded(|| {
        let mut reference = maker.own_policy()?;
        reference.become_reference(bound);
        Ok(reference)
    })
}

/// The batcher of whole trajectories, if they are wanted.
fn batcher(chosen: &CollectorBuilder) -> Result<Option<TrajectoryBatcher>, ArgumentError> {
    let config = &chosen.config;
    let wanted = config.trajs_per_batch;
    let needs = |name, needs| Err(ArgumentError::Needs { name, needs });
    if !config.track_traj_ids && wanted.is_some() {
        return needs("trajs_per_batch", "track_traj_ids");
    }
    if !config.track_traj_ids && config.split_trajs {
        return needs("split_trajs", "track_traj_ids");
    }
    if config.traj_format.is_some() && wanted.is_none() {
        return needs("traj_format", "trajs_per_batch");
    }
    if let Some(trajectories) = config.trajs_per_write {
        let name = "trajs_per_write";
        ArgumentError::check_positive(name, trajectories)?;
        if wanted.is_none() {
            return needs(name, "trajs_per_batch");
        }
        if chosen.sink.is_none() {
            return needs(name, "a replay_buffer");
        }
    }
    let format = config.traj_format.unwrap_or_default();
    wanted
        .map(|trajectories| TrajectoryBatcher::new(trajectories, format))
        .transpose()
}

fn check_choices(chosen: &CollectorBuilder) -> Result<(), ArgumentError> {
    ArgumentError::check_positive("num_envs", chosen.config.num_envs)?;
    if chosen.config.update_at_each_batch && chosen.weight_source.is_none() {
        return Err(ArgumentError::Needs {
            name: "update_at_each_batch",
            needs: "a weight_source",
        });
    }
    Ok(())
}

fn check_plan(config: &CollectorConfig, workers: usize) -> Result<(), ArgumentError> {
    if let Delivery::FirstCome { workers_per_batch } = config.plan().delivery
        && !(1..=workers).contains(&workers_per_batch)
    {
        return Err(ArgumentError::Count {
            name: "workers_per_batch",
            most: workers,
            got: workers_per_batch,
        });
    }
    check_step_timeout(config)?;
    report_idle_workers(config, workers);
    let Some(threshold) = config.preemptive_threshold else {
        return Ok(());
    };
    if !(0.0..=1.0).contains(&threshold) {
        return Err(ArgumentError::OutOfRange {
            name: "preemptive_threshold",
            expected: "0 to 1",
            got: threshold,
        });
    }
    if config.plan().delivery != Delivery::Synchronous {
        return Err(ArgumentError::Needs {
            name: "preemptive_threshold",
            needs: "batches that wait for all workers",
        });
    }
    if reassigns(config) && config.on_loss == OnLoss::Continue && threshold < 1.0 {
        return Err(ArgumentError::Needs {
            name: "allow_partial_batch=false",
            needs: "batches that preemptive_threshold does not cut short: leave one of them out, or let on_loss=3 replace lost workers",
        });
    }
    Ok(())
}

/// Refuses to bound the age of weights that others replace than the collector.
fn check_max_lag(config: &CollectorConfig, reference: &dyn Policy) -> Result<(), ArgumentError> {
    match config.max_lag.is_some() && reference.version().is_some() {
        true => Err(ArgumentError::Needs {
            name: "max_lag",
            needs: "a policy whose weights the collector publishes: those of a remote policy are replaced at its server",
        }),
        false => Ok(()),
    }
}

/// Says when `max_lag` lets some workers wait while others collect.
fn report_idle_workers(config: &CollectorConfig, workers: usize) {
    let Some(max_lag) = config.max_lag else {
        return;
    };
    let plan = config.plan();
    let per_batch = plan.slabs_per_batch();
    let enough = workers.saturating_sub(per_batch).div_ceil(per_batch);
    if plan.delivery != Delivery::Synchronous && max_lag < enough {
        let at_once = per_batch * (max_lag + 1);
        warn!(
            target: TARGET, max_lag, enough,
            "at most {at_once} of {workers} workers collect at once, so that no batch is older than max_lag allows"
        );
    }
}

/// Whether others fill the parts of a worker that they go on without.
fn reassigns(config: &CollectorConfig) -> bool {
    config.allow_partial_batch == Some(false)
}

/// Whether workers can be killed that exceed a time-out, if there is one.
///
/// # Errors
/// [`ArgumentError::NotPositive`] and [`ArgumentError::Needs`].
pub(crate) fn check_step_timeout(config: &CollectorConfig) -> Result<(), ArgumentError> {
    let name = "step_timeout";
    match config.step_timeout {
        None => Ok(()),
        Some(Duration::ZERO) => Err(ArgumentError::NotPositive { name }),
        Some(_) if config.plan().placement != Placement::Processes => Err(ArgumentError::Needs {
            name,
            needs: "workers that can be killed: placement processes",
        }),
        Some(_) => Ok(()),
    }
}

/// Refuses a policy that writes what says which entries of a padded batch are frames: frames would
/// be taken for padding.
fn check_mask_is_free(policy: &PolicySpec, spec: &EnvSpec) -> Result<(), BuildError> {
    let mask = NestedKey::from(MASK);
    let mut written = policy.columns.iter();
    match written.find(|leaf| leaf.key.overlaps(&mask)) {
        None => Ok(()),
        Some(leaf) => Err(BuildError::PolicyWrites {
            env: spec.id.clone(),
            expected: format!("{mask:?} in batches with padding"),
            got: describe(Some(leaf)),
        }),
    }
}

/// The error of a ring that could not be made.
fn unbuilt(
    error: SlabError,
    spec: &EnvSpec,
    record: &RecordSpec,
    frames_per_batch: u64,
) -> BuildError {
    match error {
        SlabError::DuplicateColumn { key } => {
            let written = record.policy.iter().find(|leaf| leaf.key.overlaps(&key));
            match written {
                None => SlabError::DuplicateColumn { key }.into(),
                Some(leaf) => BuildError::PolicyWrites {
                    env: spec.id.clone(),
                    expected: format!("{key:?}"),
                    got: describe(Some(leaf)),
                },
            }
        }
        SlabError::TooLarge { .. } | SlabError::NoMemory { .. } => BuildError::BatchMemory {
            frames_per_batch,
            source: error,
        },
        other => other.into(),
    }
}

fn ring_spec(config: &CollectorConfig, workers: usize) -> RingSpec {
    let plan = config.plan();
    let max_age = config.max_lag.map(|epochs| MaxAge {
        epochs,
        slabs_per_batch: plan.slabs_per_batch(),
    });
    let ahead = plan.ahead(workers);
    let ahead = max_age.map_or(ahead, |max| ahead.min(max.ahead()));
    RingSpec {
        order: plan.order(),
        workers,
        ahead,
        max_slabs: if config.return_same_td {
            1
        } else {
            config.max_slabs.max(ahead + 1 + plan.slabs_per_batch())
        },
        cut_after: config
            .preemptive_threshold
            .filter(|threshold| *threshold < 1.0)
            .map(|threshold| (workers as f64 * threshold) as usize),
        max_age,
    }
}

/// A seed that differs from run to run.
pub(crate) fn entropy() -> u64 {
    // Seeds are shown as `i64` in saved states.
    windrow_sync::entropy() >> 1
}
