//! What a profile records, and what its traces look like to a viewer.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[cfg(not(shuttle))]
#[path = "profile/beside.rs"]
mod beside;
#[path = "profile/end.rs"]
mod end;
#[path = "conformance/faulty.rs"]
mod faulty;
#[path = "conformance/frames.rs"]
mod frames;
#[cfg(all(target_os = "linux", not(shuttle)))]
#[path = "profile/processes.rs"]
mod processes;
#[path = "conformance/stamp.rs"]
mod stamp;
#[path = "profile/trace.rs"]
mod trace;
#[path = "conformance/world.rs"]
mod world;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tensordict::DType;
use windrow_collect::{
    Collector, CollectorBuilder, ControlError, MultiAsyncCollector, MultiSyncCollector, NextError,
    Phase, Placement, ProfileConfig, ProfileError, WorkerProfile,
};
use windrow_env::testing::CountingEnv;
use windrow_policy::{Policy, policy_fn};
use windrow_slab::{Key, LeafSpec};

use trace::{Span, Trace, by_rollout, check_phases};
use world::PLACEMENTS;

/// Has workers run there.
fn placed(builder: CollectorBuilder, placement: Placement) -> CollectorBuilder {
    #[cfg(all(target_os = "linux", not(shuttle)))]
    if placement == Placement::Processes {
        let program = world::program(&world::World::default());
        return builder.placement(placement).worker_program(program);
    }
    builder.placement(placement)
}

fn single(placement: Placement) -> CollectorBuilder {
    let builder = Collector::builder("CartPole-v1").frames_per_batch(20);
    placed(builder, placement)
}

fn multi_sync(placement: Placement, workers: usize) -> CollectorBuilder {
    let builder = MultiSyncCollector::builder("CartPole-v1")
        .num_workers(workers)
        .frames_per_batch(20 * workers);
    placed(builder, placement)
}

fn take(collector: &mut Collector, batches: usize) {
    for _ in 0..batches {
        collector.next().unwrap().unwrap();
    }
}

/// Always adds one to the counter, after `before`.
fn count_up(before: impl Fn() + Clone + Send + 'static) -> impl Policy + Clone {
    let columns = [LeafSpec::new("action", DType::I8, [1])];
    policy_fn(columns, move |_, mut out| {
        before();
        out.get_mut::<i8>(Key::new(0))?.fill(1);
        Ok(())
    })
}

fn config(folder: &TempDir) -> ProfileConfig {
    ProfileConfig::new().save_path(folder.path().join("trace_{worker_idx}.json"))
}

/// Waits until a worker beside this thread has written its trace.
fn await_file(path: &Path) {
    while !path.exists() {
        std::thread::yield_now();
    }
}

fn files(folder: &TempDir) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn two_workers_write_two_traces_of_one_track_each() {
    for &placement in PLACEMENTS {
        let folder = TempDir::new().unwrap();
        let config = config(&folder).workers([0, 2]).num_rollouts(4);
        let mut collector = multi_sync(placement, 3).build().unwrap();
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 6);
        collector.shutdown().unwrap();
        assert_eq!(files(&folder), ["trace_0.json", "trace_2.json"]);
        let traces = [0, 2].map(|worker| Trace::read(&config.path_of(worker)));
        for (trace, worker) in traces.iter().zip([0, 2]) {
            assert_eq!(trace.rollouts(), [1, 2, 3]);
            let (pid, (name, _)) = trace.tracks.first_key_value().unwrap();
            assert_eq!(
                (*pid, name.as_str()),
                (worker + 1, &*format!("worker {worker}"))
            );
        }
        assert_eq!(traces[0].base, traces[1].base, "times fit together");
    }
}

#[test]
fn every_rollout_has_all_phases_without_a_gap() {
    let check = |builder: CollectorBuilder, steps: u64| {
        let folder = TempDir::new().unwrap();
        let config = config(&folder).num_rollouts(3).warmup_rollouts(0);
        let mut collector = builder.build().unwrap();
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 6);
        collector.shutdown().unwrap();
        let trace = Trace::read(&config.path_of(0));
        assert_eq!(trace.rollouts(), [0, 1, 2]);
        for (rollout, phases) in by_rollout(trace.only()) {
            check_phases(rollout, phases, steps);
        }
    };
    for &placement in PLACEMENTS {
        check(single(placement), 20);
        check(single(placement).num_envs(4), 5);
        check(multi_sync(placement, 2), 20);
        if placement != Placement::Inline {
            let builder = MultiAsyncCollector::builder("CartPole-v1").frames_per_batch(20);
            check(placed(builder, placement), 20);
        }
    }
}

#[test]
fn a_rollout_that_is_cut_short_has_fewer_steps() {
    for &placement in PLACEMENTS {
        let folder = TempDir::new().unwrap();
        let config = config(&folder);
        let mut collector = single(placement).build().unwrap();
        collector.enable_profile(&config).unwrap();
        collector.handle().stop_collection();
        take(&mut collector, 3);
        collector.shutdown().unwrap();
        let trace = Trace::read(&config.path_of(0));
        for (rollout, phases) in by_rollout(trace.only()) {
            check_phases(rollout, phases, 1);
        }
    }
}

#[test]
fn the_trace_is_there_after_the_last_rollout_and_nothing_is_recorded_behind_it() {
    for &placement in PLACEMENTS {
        let folder = TempDir::new().unwrap();
        let config = config(&folder);
        let mut collector = single(placement).build().unwrap();
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 2);
        assert!(files(&folder).is_empty());
        take(&mut collector, 1);
        if placement != Placement::Inline {
            // The worker writes while the consumer has the batch.
            await_file(&config.path_of(0));
            collector.disable_profile().unwrap();
        }
        let before = (
            std::fs::read(config.path_of(0)).unwrap(),
            collector.profile_summary(),
        );
        take(&mut collector, 3);
        collector.shutdown().unwrap();
        assert_eq!(std::fs::read(config.path_of(0)).unwrap(), before.0);
        assert_eq!(collector.profile_summary(), before.1);
        assert_eq!(Trace::read(&config.path_of(0)).rollouts(), [1, 2]);
    }
}

#[test]
fn profiled_workers_collect_the_same() {
    let folder = TempDir::new().unwrap();
    let frames = |placement: Placement, profiled: bool| {
        let mut collector = multi_sync(placement, 2).seed(3).build().unwrap();
        if profiled {
            let config = config(&folder).workers([0, 1]).num_rollouts(2);
            collector.enable_profile(&config).unwrap();
        }
        let batches = collector.by_ref().take(4);
        batches
            .flat_map(|batch| {
                let batch = batch.unwrap();
                batch.get("observation").unwrap().to_vec::<f32>().unwrap()
            })
            .collect::<Vec<_>>()
    };
    for &placement in PLACEMENTS {
        assert_eq!(frames(placement, true), frames(placement, false));
    }
}

#[test]
fn the_number_of_the_worker_takes_the_place_of_its_name() {
    let default = ProfileConfig::new();
    assert_eq!(
        default.path_of(7),
        PathBuf::from("./collector_profile_7.json")
    );
    assert_eq!((default.num_rollouts, default.warmup_rollouts), (3, 1));
    assert!(default.profiles(0) && !default.profiles(1));
    let config = ProfileConfig::new().save_path("w{worker_idx}/{worker_idx}.json");
    assert_eq!(config.path_of(12), PathBuf::from("w12/12.json"));
    assert_eq!(
        ProfileConfig::new().save_path("one.json").path_of(3),
        PathBuf::from("one.json")
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    PLACEMENTS.iter().for_each(|&placement| refuses(placement));
}

fn refuses(placement: Placement) {
    let mut collector = multi_sync(placement, 2).build().unwrap();
    let mut refused = |config: ProfileConfig| {
        let error = collector.enable_profile(&config).unwrap_err();
        assert!(collector.profile_summary().workers.is_empty());
        error
    };
    let short = refused(ProfileConfig::new().num_rollouts(2).warmup_rollouts(2));
    assert!(matches!(
        short,
        ControlError::Profile(ProfileError::Rollouts {
            num_rollouts: 2,
            warmup_rollouts: 2
        })
    ));
    assert_eq!(
        short.to_string(),
        "num_rollouts=2 must be greater than warmup_rollouts=2, or nothing is recorded"
    );
    assert_eq!(
        refused(ProfileConfig::new().workers([0, 2])).to_string(),
        "there is no worker 2: the collector has 2"
    );
    assert_eq!(
        refused(ProfileConfig::new().workers([])).to_string(),
        "a profile needs a worker: expected at least one in workers, got none"
    );
    assert_eq!(
        refused(ProfileConfig::new().workers([0, 1]).save_path("one.json")).to_string(),
        "2 workers cannot write their profiles to one file: expected {worker_idx} in save_path, got one.json"
    );
    assert!(matches!(
        refused(ProfileConfig::new().num_rollouts(usize::MAX)),
        ControlError::Profile(ProfileError::Memory { worker: 0, .. })
    ));
}

#[test]
fn a_profile_comes_before_the_first_batch() {
    for &placement in PLACEMENTS {
        let mut collector = single(placement).build().unwrap();
        take(&mut collector, 1);
        let late = collector.enable_profile(&ProfileConfig::new()).unwrap_err();
        assert!(
            matches!(late, ControlError::Profile(ProfileError::TooLate)),
            "{late}"
        );
        collector.shutdown().unwrap();
        let over = collector.enable_profile(&ProfileConfig::new()).unwrap_err();
        assert!(
            matches!(over, ControlError::Next(NextError::ShutDown)),
            "{over}"
        );
    }
}

/// Sum of the spans of a phase.
fn total(spans: &[Span], phase: Phase) -> Duration {
    let spans = spans.iter().filter(|span| span.name == phase.name());
    Duration::from_nanos(spans.map(|span| span.end - span.start).sum())
}

#[test]
fn the_summary_adds_the_trace_up() {
    PLACEMENTS.iter().for_each(|&placement| adds_up(placement));
}

fn adds_up(placement: Placement) {
    let folder = TempDir::new().unwrap();
    let config = config(&folder).workers([0, 1]).num_rollouts(4);
    let mut collector = multi_sync(placement, 2).build().unwrap();
    assert_eq!(
        collector.profile_summary().to_string(),
        "no worker is profiled"
    );
    collector.enable_profile(&config).unwrap();
    take(&mut collector, 5);
    collector.shutdown().unwrap();
    let summary = collector.profile_summary();
    assert_eq!(summary.workers.len(), 2);
    for worker in &summary.workers {
        let trace = Trace::read(&config.path_of(worker.worker));
        let phases = worker.phases();
        for got in phases {
            assert_eq!(got.total, total(trace.only(), got.phase), "{}", got.phase);
            assert_eq!(
                got.mean,
                Duration::from_nanos(got.total.as_nanos() as u64 / got.count)
            );
        }
        let counts: Vec<_> = phases.iter().map(|phase| phase.count).collect();
        assert_eq!(counts, [3, 3, 3, 3, 60, 60, 60, 3]);
        let sum: Duration = phases[1..].iter().map(|phase| phase.total).sum();
        assert_eq!(sum, worker.phase(Phase::Rollout).total);
        let shares: f64 = phases[1..].iter().map(|phase| phase.share).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    }
    let table = summary.to_string();
    assert_eq!(table.lines().count(), 2 * (1 + Phase::ALL.len()), "{table}");
    assert!(table.starts_with("worker 0 "), "{table}");
    assert!(table.contains("\nworker 1 "), "{table}");
    for phase in Phase::ALL {
        let lines = table.lines().filter(|line| line.starts_with(phase.name()));
        assert_eq!(lines.count(), 2, "{table}");
    }
}

#[test]
fn time_is_told_to_whom_it_was_spent() {
    let folder = TempDir::new().unwrap();
    let slow = Duration::from_millis(2);
    let mut collector = Collector::builder(|| CountingEnv::new(100, 0))
        .policy(count_up(move || std::thread::sleep(slow)))
        .frames_per_batch(5)
        .build()
        .unwrap();
    collector.enable_profile(&config(&folder)).unwrap();
    take(&mut collector, 3);
    let summary = collector.profile_summary();
    let worker: &WorkerProfile = &summary.workers[0];
    let (policy, rollout) = (worker.phase(Phase::Policy), worker.phase(Phase::Rollout));
    assert!(policy.mean >= slow, "{summary}");
    let share = policy.total.as_secs_f64() / rollout.total.as_secs_f64();
    assert!((policy.share - share).abs() < 1e-9, "{summary}");
}

#[test]
fn the_second_answer_counts() {
    for &placement in PLACEMENTS {
        let folder = TempDir::new().unwrap();
        let config = config(&folder);
        let mut collector = multi_sync(placement, 2).build().unwrap();
        collector.enable_profile(&config).unwrap();
        collector
            .enable_profile(&config.clone().workers([1]))
            .unwrap();
        take(&mut collector, 3);
        collector.shutdown().unwrap();
        assert_eq!(files(&folder), ["trace_1.json"]);
        let summary = collector.profile_summary();
        assert_eq!(summary.workers.len(), 1);
        assert_eq!(summary.workers[0].worker, 1);
    }
}
