//! Bad input: every error names what was expected, what came, and where, and nothing hangs
//! afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tensordict::{DType, Tensor};
use windrow_collect::{
    AsyncCollector, BuildError, Collector, CollectorBuilder, ControlError, MultiAsyncCollector,
    MultiSyncCollector, NextError, OnLoss, WorkerError, WorkerFault,
};
use windrow_env::testing::{FailAt, FailingEnv, Failure, LedgerEnv};
use windrow_env::{
    AsyncEnvPool, CartPole, Env, EnvError, EnvFactory, EnvSpec, Joined, Outcome, Outcomes,
    Pendulum, Reset, Spec, StepCounter, VecEnv, VecEnvError, make_vec,
};
use windrow_policy::{
    Binding, Head, NetworkPolicy, Policy, PolicyError, PolicyIn, PolicySpec, Weights,
    nn::Sequential, policy_fn,
};
use windrow_slab::{Key, LeafSpec, Row, RowMut, Rows, RowsMut};
use windrow_sync::error_chain;

fn refused(builder: CollectorBuilder) -> String {
    error_chain(&builder.build().unwrap_err())
}

fn cartpole() -> CollectorBuilder {
    Collector::builder("CartPole-v1")
}

/// The action is a weight, which clones share, or have each.
#[derive(Clone)]
struct Constant<T>(T);

trait Weight: Clone + Send + 'static {
    fn get(&self) -> i64;
    fn set(&mut self, value: i64);
}

impl Weight for i64 {
    fn get(&self) -> i64 {
        *self
    }

    fn set(&mut self, value: i64) {
        *self = value;
    }
}

impl Weight for Arc<AtomicI64> {
    fn get(&self) -> i64 {
        self.load(Ordering::Relaxed)
    }

    fn set(&mut self, value: i64) {
        self.store(value, Ordering::Relaxed);
    }
}

impl<T: Weight> Policy for Constant<T> {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        Ok(PolicySpec::new(binding.spec.action_leaves()))
    }

    fn act(&mut self, _: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        out.get_mut(Key::<i64>::new(0))?.fill(self.0.get());
        Ok(())
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        let value = weights.get("value").and_then(|value| value.item::<i64>());
        self.0.set(value.map_err(PolicyError::failed)?);
        Ok(())
    }

    fn weights(&self) -> Weights {
        let mut weights = Weights::new([]);
        weights.set("value", Tensor::scalar(self.0.get())).unwrap();
        weights
    }
}

#[test]
fn clones_that_share_their_weights_are_refused_where_workers_take_them_up_at_different_times() {
    for value in [0, 1] {
        let shared = Arc::new(AtomicI64::new(value));
        let policy = || Constant(Arc::clone(&shared));
        let build = |builder: CollectorBuilder| builder.frames_per_batch(20).build();
        let builders: [fn() -> CollectorBuilder; 3] = [
            || MultiSyncCollector::builder("CartPole-v1").num_workers(2),
            || MultiAsyncCollector::builder("CartPole-v1").num_workers(2),
            || AsyncCollector::builder("CartPole-v1"),
        ];
        for builder in builders {
            let error = build(builder().policy(policy())).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("what is loaded into one clone acts in all")
                    && error.contains("policy_factory"),
                "{error}"
            );
            assert_eq!(shared.load(Ordering::Relaxed), value, "they are as before");
            build(builder().policy(Constant(value))).unwrap();
            let made = policy();
            build(builder().policy_factory(move |_| Constant(made.0.get()))).unwrap();
        }
        // One worker in the calling thread takes them up between two batches.
        build(cartpole().policy(policy())).unwrap();
    }
}

#[test]
fn frame_counts_must_fit() {
    assert_eq!(refused(cartpole()), "frames_per_batch is missing");
    assert_eq!(
        refused(cartpole().frames_per_batch(0)),
        "frames_per_batch must be a positive number, got 0"
    );
    assert_eq!(
        refused(cartpole().frames_per_batch(300).total_frames(1000)),
        "total_frames=1000 is not a multiple of frames_per_batch=300: use 900 or 1200, or set allow_partial_batch for a short last batch"
    );
    assert_eq!(
        refused(cartpole().num_envs(8).frames_per_batch(100)),
        "frames_per_batch=100 cannot be split over 8 environments that step together: use 96 or 104"
    );
    let partial = cartpole()
        .num_envs(8)
        .frames_per_batch(16)
        .allow_partial_batch(true);
    assert_eq!(
        refused(partial.total_frames(20)),
        "total_frames=20 cannot be split over 8 environments that step together: use 16 or 24"
    );
    assert!(
        refused(cartpole().frames_per_batch(3).num_envs(0))
            .starts_with("num_envs must be a positive")
    );
    assert!(
        refused(cartpole().frames_per_batch(3).max_frames_per_traj(0))
            .contains("max_frames_per_traj")
    );
}

#[test]
fn constant_batches_after_a_loss_and_batches_that_are_cut_short_exclude_each_other() {
    let builder = || {
        let builder = MultiSyncCollector::builder("CartPole-v1").num_workers(2);
        builder.frames_per_batch(20).on_loss(OnLoss::Continue)
    };
    assert_eq!(
        refused(
            builder()
                .preemptive_threshold(0.5)
                .allow_partial_batch(false)
        ),
        "allow_partial_batch=false needs batches that preemptive_threshold does not cut short: leave one of them out, or let on_loss=3 \
         replace lost workers"
    );
    for fits in [
        builder().preemptive_threshold(0.5),
        builder()
            .preemptive_threshold(1.0)
            .allow_partial_batch(false),
        builder()
            .preemptive_threshold(0.5)
            .on_loss(OnLoss::Raise)
            .allow_partial_batch(false),
    ] {
        fits.build().unwrap();
    }
}

#[test]
fn absurdly_many_workers_or_environments_are_refused() {
    for workers in [(1 << 16) + 1, 1 << 42, usize::MAX] {
        let error = refused(cartpole().num_workers(workers).frames_per_batch(10));
        assert!(
            error.starts_with("num_workers must be within 1 to 65536, got "),
            "{error}"
        );
    }
    for envs in [1 << 50, usize::MAX] {
        for builder in [cartpole(), Collector::builder(CartPole::v1)] {
            let error = refused(builder.num_envs(envs).frames_per_batch(10));
            assert!(
                error.contains(&format!("no memory for {envs} environments")),
                "{error}"
            );
        }
    }
}

/// An environment that is never stepped.
struct Contradictory(EnvSpec);

impl Env for Contradictory {
    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, _: Option<u64>, _: RowMut<'_>) -> Result<(), EnvError> {
        Ok(())
    }

    fn step(&mut self, _: Row<'_>, _: RowMut<'_>) -> Result<Outcome, EnvError> {
        Ok(Outcome::default())
    }
}

#[test]
fn specs_that_contradict_themselves_are_refused_whoever_acts() {
    let short = Spec::Bounded {
        dtype: DType::F32,
        shape: [4].into_iter().collect(),
        low: vec![1.0; 2],
        high: vec![2.0; 2],
    };
    let free = Spec::unbounded(DType::F32, [1]);
    for (observation, action) in [(free.clone(), short.clone()), (short, free)] {
        let spec = EnvSpec::new("x", observation, action);
        let env = move || Contradictory(spec.clone());
        let error = refused(Collector::builder(env).frames_per_batch(10));
        assert!(
            error.contains("a lower and an upper bound for each of 4 elements"),
            "{error}"
        );
    }
}

#[test]
fn a_call_after_an_error_does_not_blame_a_shutdown_alone() {
    let policy = policy_fn([LeafSpec::new("action", DType::I64, [])], |_, _| {
        Err(PolicyError::failed("no idea"))
    });
    let mut collector = cartpole()
        .frames_per_batch(1)
        .policy(policy)
        .build()
        .unwrap();
    assert!(collector.next().unwrap().is_err());
    let weights = collector.policy_weights();
    let error = collector.update_policy_weights(&weights).unwrap_err();
    assert!(
        error_chain(&error).contains("or an error that an earlier call returned has ended it"),
        "{error}"
    );
}

#[test]
fn totals_that_an_error_proposes_are_taken() {
    let collector = |total| {
        let builder = cartpole().num_envs(3).frames_per_batch(20).round_up(true);
        builder.total_frames(total)
    };
    for (total, proposed) in [(40, "use 60"), (41, "use 60"), (80, "use 60 or 120")] {
        let error = refused(collector(total));
        assert!(error.contains(proposed), "{error}");
    }
    let frames = |total: u64| {
        let collector = collector(total).build().unwrap();
        collector
            .map(|batch| batch.unwrap().numel() as u64)
            .sum::<u64>()
    };
    assert_eq!([60, 120].map(frames), [60, 120]);
    // The next multiple is too large to count.
    let error = refused(cartpole().frames_per_batch(20).total_frames(u64::MAX));
    assert!(error.contains("use 18446744073709551600, or"), "{error}");
}

#[test]
fn a_batch_must_fit_into_memory() {
    let error = refused(cartpole().frames_per_batch(1 << 45));
    assert!(
        error.starts_with(
            "frames_per_batch=35184372088832 is too much: no memory for 35184372088832 frames of "
        ),
        "{error}"
    );
    for frames in [usize::MAX, usize::MAX - 7] {
        let builder = cartpole().num_envs(8).frames_per_batch(frames);
        let error = refused(builder.round_up(true));
        assert!(error.contains("its size in bytes overflows"), "{error}");
    }
}

#[test]
fn an_unknown_id_lists_near_names() {
    let error = refused(Collector::builder("CartPole-v2").frames_per_batch(1));
    assert!(
        error.contains("\"CartPole-v2\"") && error.contains("CartPole-v1"),
        "{error}"
    );
}

#[test]
fn a_policy_for_another_action_is_refused() {
    let policy = policy_fn([LeafSpec::new("action", DType::F32, [3])], |_, _| Ok(()));
    let error = refused(cartpole().policy(policy).frames_per_batch(1));
    assert!(
        error.contains("float32") && error.contains("[3]") && error.contains("int64"),
        "{error}"
    );
    let net = Sequential::new().linear(3, 2);
    let policy = NetworkPolicy::new(net, Head::Categorical);
    let error = refused(cartpole().policy(policy).frames_per_batch(1));
    assert!(error.contains('3') && error.contains('4'), "{error}");
    let policy = NetworkPolicy::new(Sequential::new().linear(3, 2), Head::Categorical);
    let pendulum = Collector::builder(Pendulum::v1).policy(policy);
    assert!(matches!(
        pendulum.frames_per_batch(1).build(),
        Err(BuildError::Policy { worker: 0, .. })
    ));
}

#[test]
fn step_counters_do_not_stack() {
    let counted = || make_vec("CartPole-v1", 1)?.transformed(StepCounter::new());
    let builder = Collector::builder(counted)
        .max_frames_per_traj(5)
        .frames_per_batch(1);
    assert!(refused(builder).contains("step_count"));
}

/// Collects until the first error.
fn failure(
    env: impl Fn() -> FailingEnv<LedgerEnv> + Send + Sync + 'static,
) -> (usize, WorkerError, Collector) {
    let mut collector = Collector::builder(env)
        .num_envs(2)
        .frames_per_batch(10)
        .seed(0)
        .build()
        .unwrap();
    let mut batches = 0;
    loop {
        match collector.next().unwrap() {
            Ok(_) => batches += 1,
            Err(NextError::Worker(error)) => return (batches, error, collector),
            Err(other) => panic!("{other}"),
        }
    }
}

fn ledger() -> LedgerEnv {
    LedgerEnv::from_seed().with_max_length(1000)
}

#[test]
fn an_error_in_step_says_where_and_what() {
    let at = FailAt::Step(13);
    let (batches, error, mut collector) =
        failure(move || FailingEnv::new(ledger(), at, Failure::Error));
    assert_eq!(batches, 2);
    assert_eq!((error.worker(), error.env()), (0, Some(0)));
    let text = error.to_string();
    assert!(
        text.starts_with("worker 0, environment 0, episode "),
        "{text}"
    );
    assert!(
        matches!(error.fault(), WorkerFault::Env(inner) if matches!(inner.source, EnvError::Failed(_)))
    );
    assert!(collector.next().is_none());
    assert!(matches!(collector.rollout(), Err(NextError::ShutDown)));
}

#[test]
fn an_error_in_reset_says_where() {
    let at = FailAt::Reset(1);
    let (batches, error, _) = failure(move || FailingEnv::new(ledger(), at, Failure::Error));
    assert_eq!((batches, error.env(), error.step()), (0, Some(0), Some(0)));
    let at = FailAt::Reset(3);
    let short = move || {
        FailingEnv::new(
            LedgerEnv::from_seed().with_max_length(4),
            at,
            Failure::Error,
        )
    };
    let (_, error, _) = failure(short);
    assert_eq!((error.episode(), error.step()), (Some(2), Some(0)));
}

#[test]
fn an_environment_that_breaks_its_spec_is_caught() {
    for (failure_kind, words) in [
        (Failure::WrongLength, "elements"),
        (Failure::WrongDType, "accessed as"),
    ] {
        let at = FailAt::Step(4);
        let (_, error, _) = failure(move || FailingEnv::new(ledger(), at, failure_kind));
        let text = error_chain(&error);
        assert!(
            text.contains("broke its spec") && text.contains(words),
            "{text}"
        );
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_collector_can_be_dropped() {
    let mut collector =
        Collector::builder(|| FailingEnv::new(ledger(), FailAt::Step(3), Failure::Panic))
            .frames_per_batch(10)
            .build()
            .unwrap();
    let Some(Err(NextError::Worker(error))) = collector.next() else {
        panic!("no error")
    };
    assert!(matches!(error.fault(), WorkerFault::Panic(_)));
    assert!(
        error
            .to_string()
            .starts_with("worker 0, environment 0, episode 0, step 2: panicked: "),
        "{error}"
    );
    collector.shutdown().unwrap();
}

#[test]
fn an_action_out_of_range_is_refused_by_the_environment() {
    let policy = policy_fn([LeafSpec::new("action", DType::I64, [])], |_, mut out| {
        out.get_mut::<i64>(Key::new(0))?.fill(2);
        Ok(())
    });
    let mut collector = Collector::builder(CartPole::v1)
        .policy(policy)
        .frames_per_batch(5)
        .build()
        .unwrap();
    let error = collector.next().unwrap().unwrap_err().to_string();
    assert!(
        error.starts_with("worker 0, environment 0, episode 0, step 0: action out of range"),
        "{error}"
    );
    assert!(error.ends_with("got 2"), "{error}");
}

#[test]
fn an_error_of_the_policy_is_passed_on() {
    let policy = policy_fn([LeafSpec::new("action", DType::I64, [])], |_, mut out| {
        out.get_mut::<f32>(Key::new(0))?.fill(0.0);
        Ok(())
    });
    let mut collector = cartpole()
        .policy(policy)
        .frames_per_batch(5)
        .build()
        .unwrap();
    let Some(Err(NextError::Worker(error))) = collector.next() else {
        panic!("no error")
    };
    assert!(matches!(
        error.fault(),
        WorkerFault::Policy(PolicyError::Row(_))
    ));
    assert_eq!(error.env(), None);
    assert_eq!(
        error_chain(&error),
        "worker 0: the policy failed: policy broke its spec: leaf 0 holds int64, but was accessed as float32"
    );
}

#[test]
fn after_a_shutdown_the_collector_says_so_once() {
    let mut collector = cartpole().frames_per_batch(5).build().unwrap();
    let kept = collector.next().unwrap().unwrap();
    collector.shutdown().unwrap();
    collector.shutdown().unwrap();
    assert!(matches!(collector.next(), Some(Err(NextError::ShutDown))));
    assert!(collector.next().is_none());
    let weights = collector.policy_weights();
    assert!(matches!(
        collector.update_policy_weights(&weights),
        Err(ControlError::Next(NextError::ShutDown))
    ));
    drop(collector);
    assert_eq!(
        kept.get(("next", "reward"))
            .unwrap()
            .to_vec::<f32>()
            .unwrap(),
        [1.0; 5]
    );
}

#[test]
fn a_column_named_like_one_of_the_engines_is_refused() {
    let columns = [
        LeafSpec::new("action", DType::I64, []),
        LeafSpec::new("done", DType::F32, []),
    ];
    let policy = policy_fn(columns, |_, _| Ok(()));
    let error = refused(cartpole().policy(policy).frames_per_batch(1));
    assert!(error.contains("done"), "{error}");
}

/// A vector of no environments.
struct Nobody(EnvSpec);

impl Nobody {
    fn boxed() -> Box<dyn VecEnv> {
        let observation = Spec::unbounded(DType::F32, [2]);
        Box::new(Self(EnvSpec::new("nobody", observation, Spec::discrete(2))))
    }
}

impl VecEnv for Nobody {
    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn num_envs(&self) -> usize {
        0
    }

    fn bind(&mut self, _: &[LeafSpec]) -> Result<(), EnvError> {
        Ok(())
    }

    fn reset(&mut self, _: &[Reset], _: RowsMut<'_>) -> Result<(), VecEnvError> {
        Ok(())
    }

    fn step(&mut self, _: Rows<'_>, _: RowsMut<'_>, _: Outcomes<'_>) -> Result<(), VecEnvError> {
        Ok(())
    }
}

/// A custom factory, of which the builder knows nothing before it makes environments.
struct MakesNobody;

impl EnvFactory for MakesNobody {
    fn build(&self, _: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        Ok(Nobody::boxed())
    }
}

#[test]
fn a_vector_of_no_environments_is_refused_wherever_one_is_taken() {
    let expected = "a vector of environments needs at least one, got none";
    let collectors = [
        Collector::builder(Nobody::boxed),
        Collector::builder(MakesNobody),
        MultiSyncCollector::builder(MakesNobody).num_workers(2),
    ];
    for collector in collectors {
        let told = refused(collector.frames_per_batch(10));
        assert!(told.ends_with(expected), "{told}");
    }
    let pool = AsyncEnvPool::new(vec![Nobody::boxed()], 1).unwrap_err();
    assert!(error_chain(&pool).ends_with(expected));
    let joined = Joined::new(vec![Nobody::boxed()]).unwrap_err();
    assert!(error_chain(&joined).ends_with(expected));
}
