//! A server evaluates the policy of all workers: what is delivered is what workers with policies of
//! their own would deliver.

use std::time::Duration;

use tensordict::TensorDict;
use windrow_collect::{
    ArgumentError, AsyncBatchedCollector, Collector, CollectorBuilder, ControlError, ErrorKind,
    Inference, MultiAsyncCollector, OnLoss, Placement, Stuck, TrajFormat,
};
use windrow_policy::{
    Backend, Binding, Head, NetworkPolicy, Policy, PolicyError, PolicyIn, PolicySpec, Weights,
    nn::Sequential, policy_fn,
};
use windrow_slab::{LeafSpec, RowsMut};
use windrow_sync::error_chain;

use crate::faulty::{Acts, At, Fault, Gate, How, Makes};
use crate::frames::{Frame, MAX_LENGTH, by_env, check_contiguous, check_ids, check_pieces, frames};
use crate::stamp::weights;

const WORKERS: usize = 3;

/// Ledgers, and a policy that writes the value of its weights.
fn builder(envs: [Makes; WORKERS], policy: Acts) -> CollectorBuilder {
    AsyncBatchedCollector::builder(|| Makes::default().make())
        .worker_envs(envs.map(|makes| move || makes.make()))
        .policy_factory(move |worker| policy.make(worker))
        .num_envs(2)
        .frames_per_batch(20)
        .track_policy_version(true)
        .seed(0)
}

fn ledgers() -> [Makes; WORKERS] {
    [0, 1, 2].map(|_| Makes::default())
}

/// A fault of the policy that all workers share.
fn fault(how: How, times: usize) -> (Acts, Fault) {
    let fault = Fault::new(At::Step(13), how, times);
    let acts = Acts {
        fault: Some((0, fault.clone())),
        ..Acts::default()
    };
    (acts, fault)
}

/// A policy of a framework, which has a thread of its own.
struct Framed<P>(P);

impl<P: Policy> Policy for Framed<P> {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        Ok(self.0.bind(binding)?.backend(Backend::Framework))
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        assert_eq!(std::thread::current().name(), Some("windrow-server"));
        self.0.act(input, out)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.load(weights)
    }

    fn weights(&self) -> Weights {
        self.0.weights()
    }
}

fn check_ledger(batches: &[TensorDict]) {
    let all: Vec<Frame> = batches.iter().flat_map(frames).collect();
    check_ids(&all);
    for frames in by_env(all).values() {
        check_contiguous(frames, MAX_LENGTH);
    }
}

#[test]
fn frames_carry_the_version_that_acted_while_weights_change_at_any_time() {
    let mut collector = builder(ledgers(), Acts::default())
        .total_frames(20 * 100)
        .build()
        .unwrap();
    let handle = collector.handle();
    std::thread::scope(|scope| {
        let learner = scope.spawn(move || {
            let mut published = 0;
            while handle.stats().frames < 20 * 90 {
                published += 1;
                let version = handle.update_policy_weights(&weights(published as f32));
                assert_eq!(version.unwrap(), published);
            }
            published
        });
        let batches: Vec<_> = collector
            .by_ref()
            .map(|batch| batch.unwrap().detach())
            .collect();
        let published = learner.join().unwrap();
        assert_eq!(batches.len(), 100);
        check_ledger(&batches);
        let all: Vec<Frame> = batches.iter().flat_map(frames).collect();
        for frame in &all {
            assert_eq!(frame.weight, frame.version as f32, "{frame:?}");
            assert!((0..=published).contains(&frame.version), "{frame:?}");
        }
        for frames in by_env(all).values() {
            assert!(frames.is_sorted_by_key(|frame| frame.version));
        }
    });
    let stats = collector.server_stats().unwrap();
    assert!(stats.rows >= 2000 && stats.requests >= 1000 && stats.failed_batches == 0);
    assert_eq!(
        (stats.rows, stats.policy_version >= 1),
        (2 * stats.requests, true)
    );
    collector.shutdown().unwrap();
    assert_eq!(collector.server_stats().unwrap().clients, 0);
}

#[test]
fn one_policy_acts_for_all_and_has_no_weights_for_one_worker() {
    let acts = Acts {
        own_weights: true,
        ..Acts::default()
    };
    let mut collector = builder(ledgers(), acts).build().unwrap();
    for batch in collector.by_ref().take(30) {
        let served = frames(&batch.unwrap());
        assert!(
            served.iter().all(|frame| frame.weight == 0.0),
            "those of worker 0"
        );
    }
    let error = collector
        .update_worker_weights(1, &weights(3.0))
        .unwrap_err();
    assert!(error_chain(&error).contains("inference local"), "{error}");
    assert!(matches!(
        error,
        ControlError::Argument(ArgumentError::Needs {
            name: "update_worker_weights",
            ..
        })
    ));
}

#[test]
fn a_saved_state_brings_its_weights_to_the_server() {
    let mut saving = builder(ledgers(), Acts::default()).build().unwrap();
    saving.update_policy_weights(&weights(4.0)).unwrap();
    drop(saving.next());
    let state = saving.state_dict().unwrap();
    let mut loading = builder(ledgers(), Acts::default()).build().unwrap();
    loading.update_policy_weights(&weights(9.0)).unwrap();
    // Each worker has acted with version 1 before.
    for batch in loading.by_ref().take(30) {
        batch.unwrap();
    }
    loading.load_state_dict(&state).unwrap();
    let batches: Vec<_> = loading.by_ref().take(40).collect();
    // Parts that were begun before come first.
    for batch in &batches[WORKERS + 1..] {
        for frame in frames(batch.as_ref().unwrap()) {
            assert_eq!((frame.version, frame.weight), (1, 4.0), "{frame:?}");
        }
    }
}

#[test]
fn whole_trajectories_come_one_at_a_time() {
    let mut collector = builder(ledgers(), Acts::default())
        .trajs_per_batch(1)
        .traj_format(TrajFormat::Cat)
        .total_frames(2000)
        .build()
        .unwrap();
    let mut count = 0;
    for batch in &mut collector {
        let frames = frames(&batch.unwrap());
        check_pieces(&frames, MAX_LENGTH);
        assert!(
            frames
                .iter()
                .all(|frame| frame.traj_id == frames[0].traj_id)
        );
        count += 1;
    }
    assert!(count > 100, "{count}");
}

#[test]
fn an_error_of_the_policy_is_a_loss_of_those_whose_batch_it_failed() {
    let (acts, struck) = fault(How::Error, usize::MAX);
    let mut collector = builder(ledgers(), acts).build().unwrap();
    let error = error_chain(&collector.find_map(Result::err).unwrap());
    assert!(
        error.starts_with("worker ")
            && error.ends_with("the policy failed: made to fail in Step(13)"),
        "{error}"
    );
    assert_eq!(struck.left(), usize::MAX - 1);
    // The others of its batch have told the same.
    for error in collector.shutdown().err().iter().map(ToString::to_string) {
        assert!(error.contains("made to fail in Step(13)"), "{error}");
    }
}

#[test]
fn a_worker_starts_over_with_another_server_where_the_policy_has_panicked() {
    for (how, framed) in [
        (How::Error, false),
        (How::Panic, false),
        (How::Error, true),
        (How::Panic, true),
    ] {
        let panics = matches!(how, How::Panic);
        let (acts, struck) = fault(how, 1);
        let framing = acts.clone();
        let builder = builder(ledgers(), acts);
        let builder = match framed {
            true => builder.policy_factory(move |worker| Framed(framing.make(worker))),
            false => builder,
        };
        let mut collector = builder
            .on_loss(OnLoss::Restart { budget: 1 })
            .total_frames(20 * 100)
            .build()
            .unwrap();
        collector.update_policy_weights(&weights(6.0)).unwrap();
        let batches: Vec<_> = collector
            .by_ref()
            .map(|batch| batch.unwrap().detach())
            .collect();
        assert_eq!(batches.len(), 100);
        assert_eq!(struck.left(), 0);
        check_ledger(&batches);
        for frame in batches.iter().flat_map(frames) {
            // What a policy that was made anew begins with are the newest weights.
            assert_eq!((frame.version, frame.weight), (1, 6.0), "{frame:?}");
        }
        let losses = collector.take_losses();
        assert_eq!(losses.len() as u64, collector.stats().restarts);
        match panics {
            // All have lost their server.
            true => assert_eq!(losses.len(), WORKERS),
            false => assert!((1..=WORKERS).contains(&losses.len())),
        }
        for loss in &losses {
            let text = error_chain(&loss);
            let said = [
                "made to fail in Step(13)",
                "its policy panicked: made to panic in Step(13)",
            ];
            assert!(text.ends_with(said[usize::from(panics)]), "{text}");
        }
        collector.shutdown().unwrap();
    }
}

#[test]
fn environments_fail_start_over_and_leave_as_elsewhere() {
    for how in [|| How::Error, || How::Panic] {
        let make = |times| {
            let fault = Fault::new(At::Step(25), how(), times);
            let mut envs = ledgers();
            envs[1].fault = Some(fault.clone());
            // Whoever has the fault may have to wait for a processor.
            (envs[0].beside, envs[2].beside) = (vec![fault.clone()], vec![fault.clone()]);
            (builder(envs, Acts::default()), fault)
        };
        let mut raises = make(usize::MAX).0.build().unwrap();
        let error = raises.find_map(Result::err).unwrap().to_string();
        assert!(
            error.starts_with("worker 1, environment 2, episode"),
            "{error}"
        );
        raises.shutdown().unwrap();

        for on_loss in [OnLoss::Restart { budget: 1 }, OnLoss::Continue] {
            let (builder, fault) = make(1);
            let builder = builder.on_loss(on_loss).total_frames(20 * 200);
            let mut collector = builder.build().unwrap();
            let batches: Vec<_> = collector
                .by_ref()
                .map(|batch| batch.unwrap().detach())
                .collect();
            assert_eq!((batches.len(), fault.left()), (200, 0));
            check_ledger(&batches);
            let alive = match on_loss {
                OnLoss::Continue => WORKERS - 1,
                _ => WORKERS,
            };
            assert_eq!(collector.stats().workers_alive, alive);
            assert_eq!(collector.take_losses().len(), 1);
        }
    }
}

#[test]
fn a_learner_that_is_slow_stops_the_environments() {
    let mut collector = builder(ledgers(), Acts::default()).build().unwrap();
    drop(collector.next());
    // Each worker fills a part ahead and then waits, so that the server has no more to do.
    let most = (2 + 2 * WORKERS as u64) * 20;
    let rows = || collector.server_stats().unwrap().rows;
    let mut before = rows();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = rows();
        if now == before {
            break;
        }
        before = now;
    }
    assert!(before <= most, "{before} rows");
    assert!(collector.stats().slabs <= 1 + WORKERS);
}

#[test]
fn a_collector_ends_while_the_policy_acts_and_says_who_is_busy() {
    let gate = Gate::default();
    let (acts, _) = fault(How::Wait(gate.clone()), 1);
    let builder = builder(ledgers(), acts).interrupt(gate.interrupt());
    let mut collector = builder.build().unwrap();
    while let Some(Ok(_)) = collector.next() {}
    let ended = collector.shutdown_within(Duration::from_millis(1));
    let error = ended.unwrap_err();
    assert!(
        matches!(
            error,
            ControlError::Stuck(Stuck {
                threads: WORKERS,
                ..
            })
        ),
        "{error}"
    );
    gate.open();
    drop(collector);
}

#[test]
fn choices_that_do_not_go_together_are_named() {
    let build = |builder: CollectorBuilder| builder.frames_per_batch(10).build().unwrap_err();
    let local = || MultiAsyncCollector::builder("CartPole-v1");
    let served = || AsyncBatchedCollector::builder("CartPole-v1");
    let placed = |placement| served().placement(placement);
    let error = [
        build(local().max_batch_size(2)),
        build(local().min_batch_size(2)),
        build(local().server_timeout(Duration::from_millis(100))),
        build(placed(Placement::Inline)),
        build(placed(Placement::Processes)),
        build(served().max_batch_size(0)),
        build(served().num_workers(2).min_batch_size(3)),
        build(served().num_envs(5).max_batch_size(4)),
    ];
    let expected = [
        "max_batch_size needs inference served",
        "min_batch_size needs inference served",
        "server_timeout needs inference served",
        "inference served needs workers in threads: placement threads",
        "inference served needs workers in threads: placement threads",
        "failed to set up the policy of worker 0: max_batch_size of an inference server must be a positive number, got 0",
        "failed to set up the policy of worker 0: min_batch_size of an inference server must be within 1 to max_batch_size=2, got 3",
        "failed to set up the policy of worker 0: max_batch_size of an inference server must be at least 5, the environments of a client, got 4",
    ];
    for (error, expected) in error.iter().zip(expected) {
        assert_eq!(
            (error_chain(error).as_str(), error.kind()),
            (expected, ErrorKind::Argument)
        );
    }
}

#[test]
fn a_policy_with_a_state_is_refused_by_its_name() {
    let columns = [
        LeafSpec::new("action", tensordict::DType::I64, []),
        LeafSpec::new("hidden", tensordict::DType::F32, [2]),
        LeafSpec::new(("next", "hidden"), tensordict::DType::F32, [2]),
    ];
    let policy = policy_fn(columns, |_, _| Ok(()));
    let builder = AsyncBatchedCollector::builder("CartPole-v1").policy(policy);
    let error = error_chain(&builder.frames_per_batch(10).build().unwrap_err());
    assert!(
        error.contains("cannot be served: it writes \"hidden\""),
        "{error}"
    );
}

fn network() -> NetworkPolicy {
    let net = Sequential::new().linear(4, 16).tanh().linear(16, 2).seed(1);
    NetworkPolicy::new(net, Head::Categorical).return_log_prob(true)
}

#[test]
fn a_server_gives_what_local_policies_give_with_random_steps_first() {
    let run = |inference, framed: bool| {
        let builder = Collector::builder("CartPole-v1");
        let builder = match framed {
            true => builder.policy_factory(|_| Framed(network())),
            false => builder.policy(network()),
        };
        let mut collector = builder
            .placement(Placement::Threads)
            .inference(inference)
            .num_workers(3)
            .num_envs(2)
            .init_random_frames(100)
            .frames_per_batch(60)
            .track_policy_version(true)
            .seed(3)
            .build()
            .unwrap();
        let mut batches = Vec::new();
        for seed in 0..6 {
            collector
                .update_policy_weights(&network_weights(seed))
                .unwrap();
            batches.push(collector.next().unwrap().unwrap().detach());
        }
        batches
    };
    let expected = run(Inference::Local, false);
    for framed in [false, true] {
        assert_eq!(run(Inference::Served, framed), expected);
    }
}

fn network_weights(seed: u64) -> Weights {
    let net = Sequential::new()
        .linear(4, 16)
        .tanh()
        .linear(16, 2)
        .seed(seed);
    NetworkPolicy::new(net, Head::Categorical).weights()
}
