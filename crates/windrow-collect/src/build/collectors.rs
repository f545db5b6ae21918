//! The familiar names: each is a choice of where workers run and how their shares make batches.

use std::sync::Arc;

use windrow_env::EnvFactory;

use crate::config::builder::CollectorBuilder;
use crate::config::options::CollectorConfig;
use crate::config::plan::{Delivery, Inference, Placement};
use crate::deliver::collector::Collector;

/// One worker in a thread of its own, which collects the next batch while the present one is being
/// used.
#[derive(Debug, Clone, Copy)]
pub struct AsyncCollector;

/// Workers in threads; each batch holds a share of every one of them, collected after it was asked
/// for.
#[derive(Debug, Clone, Copy)]
pub struct MultiSyncCollector;

/// Workers in threads; each batch is one worker's, whichever is ready first, and all go on
/// meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct MultiAsyncCollector;

/// Workers in threads: [`MultiSyncCollector`] or [`MultiAsyncCollector`].
#[derive(Debug, Clone, Copy)]
pub struct MultiCollector;

/// Workers in threads, for which a server evaluates one policy in batches; each batch is one
/// worker's, whichever is ready first.
#[derive(Debug, Clone, Copy)]
pub struct AsyncBatchedCollector;

impl AsyncCollector {
    /// A collector over the environments that `env` makes.
    ///
    /// ```
    /// use windrow_collect::AsyncCollector;
    ///
    /// let mut collector = AsyncCollector::builder("CartPole-v1")
    ///     .frames_per_batch(200)
    ///     .total_frames(600)
    ///     .build()?;
    /// assert_eq!(collector.by_ref().count(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn builder(env: impl EnvFactory + Send + Sync + 'static) -> CollectorBuilder {
        builder_of(env, Placement::Threads, Delivery::FIRST_COME)
    }
}

impl MultiSyncCollector {
    /// A collector over the environments that `env` makes for each of its workers.
    ///
    /// ```
    /// use windrow_collect::MultiSyncCollector;
    ///
    /// let mut collector = MultiSyncCollector::builder("CartPole-v1")
    ///     .num_workers(2)
    ///     .frames_per_batch(200)
    ///     .total_frames(600)
    ///     .build()?;
    /// for batch in &mut collector {
    ///     assert_eq!(batch?.batch_size(), &[200]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn builder(env: impl EnvFactory + Send + Sync + 'static) -> CollectorBuilder {
        builder_of(env, Placement::Threads, Delivery::Synchronous).merge_statistics(true)
    }
}

impl MultiAsyncCollector {
    /// A collector over the environments that `env` makes for each of its workers.
    /// `frames_per_batch` is what one worker collects for one batch.
    #[must_use]
    pub fn builder(env: impl EnvFactory + Send + Sync + 'static) -> CollectorBuilder {
        builder_of(env, Placement::Threads, Delivery::FIRST_COME).merge_statistics(true)
    }
}

impl AsyncBatchedCollector {
    /// A collector over the environments that `env` makes for each of its workers: many
    /// environments that step when they like, and a policy that is worth evaluating for several of
    /// them at once. `frames_per_batch` is what one worker collects for one batch.
    ///
    /// ```
    /// use windrow_collect::AsyncBatchedCollector;
    ///
    /// let mut collector = AsyncBatchedCollector::builder("CartPole-v1")
    ///     .num_workers(8)
    ///     .frames_per_batch(100)
    ///     .total_frames(2000)
    ///     .build()?;
    /// assert_eq!(collector.by_ref().count(), 20);
    /// let rows = collector.server_stats().map(|stats| stats.rows);
    /// assert!(rows.is_some_and(|rows| rows >= 2000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn builder(env: impl EnvFactory + Send + Sync + 'static) -> CollectorBuilder {
        builder_of(env, Placement::Threads, Delivery::FIRST_COME)
            .merge_statistics(true)
            .inference(Inference::Served)
    }
}

impl MultiCollector {
    /// A collector over the environments that `env` makes for each of its workers; `sync` waits for
    /// all of them, otherwise the first come is delivered first.
    #[must_use]
    pub fn builder(env: impl EnvFactory + Send + Sync + 'static, sync: bool) -> CollectorBuilder {
        let delivery = if sync {
            Delivery::Synchronous
        } else {
            Delivery::FIRST_COME
        };
        builder_of(env, Placement::Threads, delivery).merge_statistics(true)
    }
}

impl Collector {
    /// A collector over the environments that `env` makes: a function such as `CartPole::v1`, or an
    /// id such as `"CartPole-v1"`.
    #[must_use]
    pub fn builder(env: impl EnvFactory + Send + Sync + 'static) -> CollectorBuilder {
        builder_of(env, Placement::Inline, Delivery::Synchronous)
    }
}

fn builder_of(
    env: impl EnvFactory + Send + Sync + 'static,
    placement: Placement,
    delivery: Delivery,
) -> CollectorBuilder {
    let config = CollectorConfig {
        placement: Some(placement),
        delivery: Some(delivery),
        ..CollectorConfig::default()
    };
    CollectorBuilder::new(Arc::new(env), config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::Plan;

    const ENV: &str = "CartPole-v1";

    fn named() -> [CollectorBuilder; 6] {
        [
            Collector::builder(ENV),
            AsyncCollector::builder(ENV),
            MultiSyncCollector::builder(ENV),
            MultiAsyncCollector::builder(ENV),
            MultiCollector::builder(ENV, false),
            AsyncBatchedCollector::builder(ENV),
        ]
    }

    #[test]
    fn a_configuration_changes_of_what_a_name_stands_for_only_what_it_says() {
        for builder in named() {
            let plan = builder.config.plan();
            let config = r#"{"frames_per_batch": 64, "num_workers": 2}"#;
            let config: CollectorConfig = serde_json::from_str(config).unwrap();
            let merges = builder.config.merge_statistics;
            let builder = builder.config(config);
            assert_eq!(builder.config.plan(), plan);
            assert_eq!(builder.config.merge_statistics, merges);
            assert_eq!(builder.config.num_workers, Some(2));

            let config: CollectorConfig = serde_json::from_str(r#"{"delivery": 2}"#).unwrap();
            let changed = builder.config(config).config.plan();
            let delivery = Delivery::FirstCome {
                workers_per_batch: 2,
            };
            assert_eq!(changed, Plan { delivery, ..plan });
        }
    }
}
