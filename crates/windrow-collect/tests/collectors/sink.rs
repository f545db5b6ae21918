//! What a collector writes: every frame once or whole episodes only, and an end whatever stands in
//! its way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tensordict::TensorDict;
use windrow_collect::{
    CatResults, Collector, CollectorBuilder, ControlError, NextError, Placement, Stuck, TrajFormat,
};
use windrow_env::testing::LedgerEnv;
use windrow_sync::error_chain;

use crate::crew::{Crew, ENVS, WORKERS, all};
use crate::faulty::{At, Fault, Gate, How};
use crate::frames::{Frame, MAX_LENGTH, by_env, check_contiguous, check_ids, frames};
use crate::recorder::Recorder;
use crate::stamp::weights;

/// What no wait may last, however busy the machine is: a shutdown gives threads five seconds.
const BOUND: Duration = Duration::from_secs(60);

fn ledger() -> LedgerEnv {
    LedgerEnv::from_seed().with_max_length(MAX_LENGTH)
}

fn healthy(crew: Crew) -> CollectorBuilder {
    crew.builder([None, None])
}

fn writing(builder: CollectorBuilder, sink: &Arc<Recorder>) -> Collector {
    builder.replay_buffer(Arc::clone(sink)).build().unwrap()
}

/// Every frame of each environment from its first on, `total` in all.
fn check_each_once(batches: &[TensorDict], total: usize) {
    let all: Vec<Frame> = batches.iter().flat_map(frames).collect();
    assert_eq!(all.len(), total);
    check_ids(&all);
    for frames in by_env(all).values() {
        check_contiguous(frames, MAX_LENGTH);
    }
}

/// Whole episodes one after the other; how many.
fn check_whole(batches: &[TensorDict]) -> usize {
    let mut episodes = 0;
    for batch in batches {
        assert_eq!(batch.ndim(), 1);
        assert!(!batch.contains_key(("collector", "mask")));
        let all = frames(batch);
        for episode in all.split_inclusive(|frame| frame.done) {
            let [env, number, _] = episode[0].obs;
            let length = LedgerEnv::length(env, number, MAX_LENGTH);
            let expected: Vec<[i64; 3]> = (0..length).map(|t| [env, number, t]).collect();
            let got: Vec<[i64; 3]> = episode.iter().map(|frame| frame.obs).collect();
            assert_eq!(got, expected);
            episodes += 1;
        }
    }
    episodes
}

/// Waits for the end of a started collector, which its sink is told.
fn finish(collector: &mut Collector, sink: &Recorder) {
    sink.await_detached();
    collector.shutdown().unwrap();
    assert!(!collector.is_running());
}

#[test]
fn iterating_writes_each_batch_and_delivers_it() {
    for crew in all() {
        let sink = Recorder::new();
        let total = 12 * crew.frames_per_batch();
        let mut collector = writing(healthy(crew).total_frames(total as u64), &sink);
        assert_eq!(collector.len(), Some(12));
        assert!(!sink.is_attached());
        let mut delivered = Vec::new();
        for batch in &mut collector {
            delivered.push(batch.unwrap().detach());
            assert!(!sink.is_attached(), "between two batches");
        }
        assert_eq!(sink.batches(), delivered, "{crew:?}");
        check_each_once(&delivered, total);
        assert_eq!(collector.stats().batches, 12);
        assert_eq!(sink.errors(), Vec::<String>::new());
    }
}

#[test]
fn a_started_collector_writes_what_iterating_would_have_delivered() {
    for crew in all() {
        let sink = Recorder::new();
        let total = 12 * crew.frames_per_batch();
        let builder = || healthy(crew).total_frames(total as u64);
        let mut collector = writing(builder(), &sink);
        collector.start().unwrap();
        finish(&mut collector, &sink);
        let written = sink.batches();
        check_each_once(&written, total);
        let stats = collector.stats();
        assert_eq!((stats.frames, stats.batches), (total as u64, 12));
        assert!(stats.completed);
        if !crew.runs_ahead() {
            let alone: Vec<TensorDict> = builder()
                .build()
                .unwrap()
                .map(|batch| batch.unwrap().detach())
                .collect();
            assert_eq!(written, alone, "{crew:?}");
        }
    }
}

#[test]
fn whole_trajectories_only_are_written_in_groups_of_any_size() {
    for (crew, group) in all().flat_map(|crew| [None, Some(1), Some(3)].map(|n| (crew, n))) {
        let sink = Recorder::new();
        let total = 20 * crew.frames_per_batch();
        let mut builder = healthy(crew).total_frames(total as u64).trajs_per_batch(50);
        if let Some(group) = group {
            builder = builder.trajs_per_write(group);
        }
        let mut collector = writing(builder, &sink);
        collector.start().unwrap();
        finish(&mut collector, &sink);
        let written = sink.batches();
        let episodes = check_whole(&written);
        if let Some(group) = group {
            assert!(
                written
                    .iter()
                    .all(|batch| (1..=group).contains(&check_whole(std::slice::from_ref(batch))))
            );
            assert!(written.len() >= episodes / group);
        }
        let frames: usize = written.iter().map(TensorDict::numel).sum();
        let stats = collector.stats();
        assert_eq!(stats.frames, total as u64, "frames collected count");
        assert_eq!(frames + stats.dropped_frames as usize, total);
        // What is left over is what is unfinished in each environment.
        assert!(stats.dropped_frames <= (WORKERS * ENVS) as u64 * MAX_LENGTH as u64);
    }
}

#[test]
fn iterating_over_trajectories_says_what_was_written() {
    let sink = Recorder::new();
    let builder = Collector::builder(ledger)
        .frames_per_batch(2)
        .total_frames(200)
        .trajs_per_batch(1)
        .trajs_per_write(1)
        .seed(0);
    let mut collector = writing(builder, &sink);
    assert_eq!(collector.len(), Some(100));
    let delivered: Vec<TensorDict> = collector.by_ref().map(Result::unwrap).collect();
    assert_eq!(delivered.len(), 100, "one for each look, also without any");
    assert!(delivered.iter().any(|batch| batch.batch_size() == [0]));
    let frames = |batches: &[TensorDict]| batches.iter().map(TensorDict::numel).sum::<usize>();
    assert_eq!(frames(&delivered), frames(&sink.batches()));
    assert!(check_whole(&sink.batches()) > 10);
}

#[test]
fn a_reset_writes_no_piece_of_an_episode() {
    for crew in all() {
        let sink = Recorder::new();
        let total = 60 * crew.frames_per_batch();
        let mut collector = writing(
            healthy(crew).total_frames(total as u64).trajs_per_batch(1),
            &sink,
        );
        collector.start().unwrap();
        for _ in 0..10 {
            sink.await_more();
            collector.reset();
        }
        finish(&mut collector, &sink);
        check_whole(&sink.batches());
        let frames: usize = sink.batches().iter().map(TensorDict::numel).sum();
        let dropped = collector.stats().dropped_frames as usize;
        assert_eq!(frames + dropped, total, "{crew:?}");
    }
}

#[test]
fn padding_is_not_written() {
    let sink = Recorder::new();
    let builder = Collector::builder(ledger)
        .num_workers(3)
        .cat_results(CatResults::Stack)
        .frames_per_batch(10)
        .total_frames(100)
        .seed(0);
    let mut collector = writing(builder, &sink);
    collector.start().unwrap();
    finish(&mut collector, &sink);
    let written = sink.batches();
    assert!(written.iter().all(|batch| batch.batch_size() == [10]));
    check_each_once(&written, 100);
}

#[test]
fn hooks_and_postprocessing_come_before_the_write() {
    let sink = Recorder::new();
    let (asked, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (before, after) = (Arc::clone(&asked), Arc::clone(&seen));
    let at_hook = Arc::clone(&sink);
    let builder = Collector::builder(ledger)
        .frames_per_batch(10)
        .total_frames(50)
        .pre_collect_hook(move || {
            before.fetch_add(1, Ordering::SeqCst);
        })
        .postproc(|batch| batch.select(&["observation", "action"]))
        .post_collect_hook(move |batch| {
            assert_eq!(batch.keys().len(), 2);
            let number = after.fetch_add(1, Ordering::SeqCst);
            assert_eq!(at_hook.batches().len() as u64, number);
        })
        .seed(0);
    let mut collector = writing(builder, &sink);
    collector.start().unwrap();
    finish(&mut collector, &sink);
    assert_eq!(asked.load(Ordering::SeqCst), 5);
    assert_eq!(seen.load(Ordering::SeqCst), 5);
    assert!(sink.batches().iter().all(|batch| batch.keys().len() == 2));
}

#[test]
fn warm_up_is_random_in_the_background_too() {
    let sink = Recorder::new();
    let builder = healthy(all().next().unwrap())
        .init_random_frames(100)
        .total_frames(400);
    let mut collector = writing(builder, &sink);
    collector.update_policy_weights(&weights(5.0)).unwrap();
    collector.start().unwrap();
    finish(&mut collector, &sink);
    let all: Vec<Frame> = sink.batches().iter().flat_map(frames).collect();
    // Rounded up to whole batches of 40.
    let weights: Vec<f32> = all.iter().map(|frame| frame.weight).collect();
    assert!(weights[..120].iter().all(|weight| *weight == 0.0));
    assert!(weights[120..].iter().all(|weight| *weight == 5.0));
}

#[test]
fn weights_reach_a_started_collector() {
    for crew in all() {
        let sink = Recorder::new();
        let mut collector = writing(healthy(crew), &sink);
        collector.start().unwrap();
        for version in 1..=5 {
            let published = collector
                .update_policy_weights(&weights(version as f32))
                .unwrap();
            assert_eq!(published, version);
            sink.await_frame(|frame| frame.version == version);
        }
        collector.shutdown().unwrap();
        let all: Vec<Frame> = sink.batches().iter().flat_map(frames).collect();
        assert!(all.iter().all(|frame| frame.weight == frame.version as f32));
    }
}

#[test]
fn nothing_is_written_while_a_pause_is_held() {
    for crew in all() {
        let sink = Recorder::new();
        let total = 40 * crew.frames_per_batch();
        let mut collector = writing(healthy(crew).total_frames(total as u64), &sink);
        collector.start().unwrap();
        for _ in 0..5 {
            let paused = collector.pause().unwrap();
            let before = sink.batches().len();
            let stats = paused.collector().stats();
            assert_eq!(stats.batches as usize, before);
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(sink.batches().len(), before, "{crew:?}");
        }
        finish(&mut collector, &sink);
        check_each_once(&sink.batches(), total);
    }
}

#[test]
fn a_started_collector_is_nobody_elses() {
    let sink = Recorder::new();
    let mut collector = writing(healthy(all().next().unwrap()), &sink);
    let state = collector.state_dict().unwrap();
    collector.start().unwrap();
    assert!(collector.is_running());
    let started = |error: ControlError| {
        assert!(
            matches!(error, ControlError::Next(NextError::Started)),
            "{error}"
        );
    };
    started(collector.start().unwrap_err());
    started(collector.next().unwrap().unwrap_err().into());
    started(collector.next().unwrap().unwrap_err().into());
    started(collector.rollout().unwrap_err().into());
    started(collector.load_state_dict(&state).unwrap_err());
    collector.async_shutdown().unwrap();
    assert!(matches!(
        collector.start().unwrap_err(),
        ControlError::Next(NextError::ShutDown)
    ));
    let mut without = healthy(all().next().unwrap()).build().unwrap();
    assert!(matches!(
        without.start().unwrap_err(),
        ControlError::NoReplayBuffer
    ));
    assert!(without.next().unwrap().is_ok());
}

#[test]
fn after_its_last_frame_a_started_collector_has_no_batch() {
    let sink = Recorder::new();
    let mut collector = writing(healthy(all().next().unwrap()).total_frames(80), &sink);
    collector.start().unwrap();
    sink.await_detached();
    while collector.is_running() {
        std::thread::yield_now();
    }
    assert_eq!(collector.update_policy_weights(&weights(1.0)).unwrap(), 1);
    assert!(collector.next().is_none());
    assert_eq!(sink.errors(), Vec::<String>::new());
}

#[test]
fn what_fails_in_the_background_is_the_next_error_and_the_buffer_is_told() {
    for (crew, how) in all().flat_map(|crew| [How::Error, How::Panic].map(|how| (crew, how))) {
        let sink = Recorder::new();
        let fault = Fault::new(At::Step(13), how, usize::MAX);
        let mut collector = writing(crew.builder([None, Some(fault)]), &sink);
        collector.start().unwrap();
        sink.await_detached();
        let [told] = &sink.errors()[..] else {
            panic!("{:?}", sink.errors())
        };
        let error = collector.update_policy_weights(&weights(1.0)).unwrap_err();
        assert!(
            matches!(error, ControlError::Next(NextError::Worker(_))),
            "{error}"
        );
        assert_eq!(*told, format!("the collector failed: {error}"));
        let again = collector.update_policy_weights(&weights(1.0)).unwrap_err();
        assert!(
            matches!(again, ControlError::Next(NextError::ShutDown)),
            "{again}"
        );
        collector.shutdown().unwrap();
    }
}

type Call = fn(&mut Collector) -> Result<(), ControlError>;

#[test]
fn each_call_that_can_fail_tells_what_failed() {
    let calls: [Call; 7] = [
        |collector| collector.update_policy_weights(&weights(1.0)).map(drop),
        |collector| collector.start(),
        |collector| collector.state_dict().map(drop),
        |collector| collector.pause().map(drop),
        |collector| Ok(collector.rollout().map(drop)?),
        |collector| Ok(collector.next().unwrap().map(drop)?),
        Collector::shutdown,
    ];
    for call in calls {
        let sink = Recorder::new();
        let builder = healthy(all().next().unwrap())
            .postproc(|_| -> Result<TensorDict, String> { Err("no good".into()) });
        let mut collector = writing(builder, &sink);
        collector.start().unwrap();
        sink.await_detached();
        let error = call(&mut collector).unwrap_err();
        assert!(
            error_chain(&error).contains("no good"),
            "expected the error of the background, got {error}"
        );
        collector.shutdown().unwrap();
    }
}

#[test]
fn panics_in_the_background_are_errors() {
    let sink = Recorder::new();
    let builder =
        healthy(all().next().unwrap()).post_collect_hook(|_| panic!("the hook has burst"));
    let mut collector = writing(builder, &sink);
    collector.start().unwrap();
    sink.await_detached();
    let error = collector.shutdown().unwrap_err();
    assert!(
        matches!(&error, ControlError::Next(NextError::Panic(said)) if said == "the hook has burst"),
        "{error}"
    );
    assert!(sink.errors()[0].contains("the hook has burst"));
}

#[test]
fn a_sink_that_refuses_a_batch_ends_the_collector() {
    for started in [false, true] {
        let sink = Recorder::failing_after(2);
        let mut collector = writing(healthy(all().next().unwrap()), &sink);
        let error = if started {
            collector.start().unwrap();
            sink.await_detached();
            collector.shutdown().unwrap_err()
        } else {
            let error = collector.by_ref().find_map(Result::err).unwrap();
            assert!(collector.next().is_none());
            error.into()
        };
        assert_eq!(
            error_chain(&error),
            "failed to write to the replay buffer: the disk is full"
        );
        assert_eq!(sink.batches().len(), 2);
        assert_eq!(sink.errors().len(), 1);
    }
}

#[test]
fn a_sink_that_waits_is_woken_by_a_shutdown() {
    for crew in all() {
        let sink = Recorder::blocking_after(2);
        let mut collector = writing(healthy(crew), &sink);
        collector.start().unwrap();
        sink.await_blocked();
        // Weights do not wait for it.
        assert_eq!(collector.update_policy_weights(&weights(1.0)).unwrap(), 1);
        let began = Instant::now();
        collector.shutdown().unwrap();
        assert!(began.elapsed() < BOUND);
        assert_eq!(sink.batches().len(), 2);
        assert_eq!(sink.errors(), Vec::<String>::new());

        let sink = Recorder::blocking_after(0);
        let mut collector = writing(healthy(crew), &sink);
        collector.start().unwrap();
        sink.await_blocked();
        drop(collector);
        assert!(!sink.is_attached());
    }
}

#[test]
fn a_sink_that_waits_is_woken_through_a_handle() {
    for crew in all() {
        let sink = Recorder::blocking_after(1);
        let mut collector = writing(healthy(crew), &sink);
        let handle = collector.handle();
        let seen = Arc::clone(&sink);
        let waker = std::thread::spawn(move || {
            seen.await_blocked();
            handle.shutdown();
        });
        assert!(collector.next().unwrap().is_ok());
        let error = collector.next().unwrap().unwrap_err();
        assert!(matches!(error, NextError::ShutDown), "{error}");
        waker.join().unwrap();
    }
}

#[test]
fn a_pause_does_not_wait_for_ever_for_a_sink_that_waits() {
    for crew in all() {
        let sink = Recorder::blocking_after(1);
        let mut collector = writing(healthy(crew), &sink);
        collector.start().unwrap();
        sink.await_blocked();
        let patience = Duration::from_millis(50);
        let error = collector.hold(patience).unwrap_err();
        assert!(matches!(error, ControlError::SinkWaits { .. }), "{error}");
        sink.unblock();
        sink.await_more();
        collector.shutdown().unwrap();
    }
}

#[test]
fn a_stuck_environment_holds_a_shutdown_up_for_a_bounded_time() {
    let inline = |crew: &Crew| crew.placement == Placement::Inline;
    let (inline, threads): (Vec<Crew>, Vec<Crew>) = all().partition(inline);
    for crew in [inline[0], threads[0]] {
        let (sink, gate) = (Recorder::new(), Gate::default());
        let fault = Fault::new(At::Step(13), How::Wait(gate.clone()), 1);
        let mut collector = writing(crew.builder([None, Some(fault)]), &sink);
        collector.start().unwrap();
        gate.await_somebody();
        let began = Instant::now();
        let error = collector.shutdown().unwrap_err();
        assert!(began.elapsed() < BOUND);
        assert!(
            matches!(
                error,
                ControlError::Stuck(Stuck {
                    stuck: 1,
                    threads: 3,
                    ..
                })
            ),
            "{error}"
        );
        gate.open();
        collector.shutdown().unwrap();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_process_that_stands_still_is_killed_as_a_started_collector_ends() {
    for crew in all().filter(|crew| crew.placement == Placement::Processes) {
        let (sink, gate) = (Recorder::new(), Gate::default());
        let fault = Fault::new(At::Step(13), How::Wait(gate.clone()), 1);
        let mut collector = writing(crew.builder([None, Some(fault)]), &sink);
        collector.start().unwrap();
        let process = gate.await_somebody().to_string();
        let patience = Duration::from_millis(200);
        collector.shutdown_within(patience).unwrap();
        assert!(!sink.is_attached());
        let process = std::path::Path::new("/proc").join(process);
        assert!(!process.exists(), "{} runs", process.display());
    }
}

#[test]
fn a_started_collector_ends_in_any_order() {
    for crew in all() {
        let sink = Recorder::new();
        let mut collector = writing(healthy(crew), &sink);
        collector.start().unwrap();
        drop(collector);
        assert!(!sink.is_attached());

        let mut collector = writing(healthy(crew), &sink);
        collector.start().unwrap();
        collector.handle().shutdown();
        collector.shutdown().unwrap();
        collector.shutdown().unwrap();

        let mut collector = writing(healthy(crew), &sink);
        assert!(collector.next().unwrap().is_ok());
        collector.start().unwrap();
        sink.await_more();
        std::mem::forget(collector.pause().unwrap());
        collector.shutdown().unwrap();
        assert_eq!(sink.errors(), Vec::<String>::new());
    }
}

#[test]
fn trajectories_of_one_write_need_trajectories_and_a_buffer() {
    let refused = |builder: CollectorBuilder| error_chain(&builder.build().unwrap_err());
    let plain = || healthy(all().next().unwrap());
    assert!(refused(plain().trajs_per_write(2)).contains("trajs_per_batch"));
    let formatted = plain().traj_format(TrajFormat::Cat);
    assert_eq!(refused(formatted), "traj_format needs trajs_per_batch");
    assert!(refused(plain().trajs_per_batch(2).trajs_per_write(2)).contains("replay_buffer"));
    let zero = plain()
        .replay_buffer(Recorder::new())
        .trajs_per_batch(2)
        .trajs_per_write(0);
    assert!(refused(zero).starts_with("trajs_per_write must be"));
}
