//! How a recording ends, as it should and otherwise.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use windrow_collect::{
    Collector, ControlError, MultiAsyncCollector, NextError, OnLoss, Placement, ProfileConfig,
    ProfileError,
};
use windrow_env::testing::CountingEnv;
use windrow_sync::error_chain;

use super::trace::{Trace, by_rollout, check_phases};
use super::world::{PLACEMENTS, elsewhere};
use super::{config, count_up, files, multi_sync, single, take};

#[test]
fn disabling_writes_what_there_is() {
    for &placement in PLACEMENTS {
        let folder = TempDir::new().unwrap();
        let config = config(&folder).num_rollouts(100);
        let mut collector = single(placement).build().unwrap();
        collector.enable_profile(&config).unwrap();
        collector.disable_profile().unwrap();
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 1);
        collector.disable_profile().unwrap();
        assert!(files(&folder).is_empty(), "there is nothing yet");

        let mut collector = single(placement).build().unwrap();
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 3);
        collector.disable_profile().unwrap();
        if placement == Placement::Threads {
            // The worker may be on its way to the next part.
            super::await_file(&config.path_of(0));
        }
        assert_eq!(Trace::read(&config.path_of(0)).rollouts(), [1, 2]);
        take(&mut collector, 2);
        collector.disable_profile().unwrap();
        collector.shutdown().unwrap();
        assert_eq!(Trace::read(&config.path_of(0)).rollouts(), [1, 2]);
        assert_eq!(collector.profile_summary().workers[0].phases()[0].count, 2);
    }
}

#[test]
fn a_collector_that_ends_writes_what_there_is() {
    for &placement in PLACEMENTS {
        let folder = TempDir::new().unwrap();
        let config = config(&folder).num_rollouts(100).workers([0, 1]);
        let mut collector = multi_sync(placement, 2).build().unwrap();
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 3);
        drop(collector);
        for worker in [0, 1] {
            assert_eq!(Trace::read(&config.path_of(worker)).rollouts(), [1, 2]);
        }
    }
}

#[test]
fn disabling_does_not_wait_for_a_worker_in_the_middle_of_a_part() {
    let folder = TempDir::new().unwrap();
    let config = config(&folder).num_rollouts(100).warmup_rollouts(0);
    let (arrive, arrived): (Sender<()>, Receiver<()>) = channel();
    let (go, gate): (Sender<()>, Receiver<()>) = channel();
    let gate = Arc::new(Mutex::new(gate));
    let mut collector = MultiAsyncCollector::builder(|| CountingEnv::new(100, 0))
        .policy(count_up(move || {
            let _ = arrive.send(());
            let _ = gate.lock().unwrap().recv();
        }))
        .frames_per_batch(2)
        .build()
        .unwrap();
    collector.enable_profile(&config).unwrap();
    // Three steps: one part, and the second one until its last step.
    for _ in 0..3 {
        go.send(()).unwrap();
    }
    take(&mut collector, 1);
    for _ in 0..4 {
        arrived.recv().unwrap();
    }
    collector.disable_profile().unwrap();
    assert!(files(&folder).is_empty());
    drop(go);
    collector.shutdown().unwrap();
    assert_eq!(Trace::read(&config.path_of(0)).rollouts(), [0, 1]);
}

#[test]
fn a_lost_part_is_not_recorded() {
    let folder = TempDir::new().unwrap();
    let config = config(&folder).warmup_rollouts(0);
    let calls = Arc::new(Mutex::new(0));
    let mut collector = Collector::builder(|| CountingEnv::new(100, 0))
        .policy(count_up(move || {
            let call = {
                let mut calls = calls.lock().unwrap();
                *calls += 1;
                *calls
            };
            assert_ne!(call, 8, "the third step of the second part");
        }))
        .on_loss(OnLoss::Restart { budget: 1 })
        .frames_per_batch(5)
        .build()
        .unwrap();
    collector.enable_profile(&config).unwrap();
    take(&mut collector, 3);
    let trace = Trace::read(&config.path_of(0));
    assert_eq!(trace.rollouts(), [0, 1, 2]);
    for (rollout, phases) in by_rollout(trace.only()) {
        check_phases(rollout, phases, 5);
    }
    assert_eq!(collector.profile_summary().workers[0].phases()[0].count, 3);
}

#[test]
fn a_trace_that_cannot_be_written_is_told_at_the_next_call() {
    let folder = TempDir::new().unwrap();
    let nowhere = folder.path().join("missing").join("{worker_idx}.json");
    let config = ProfileConfig::new().save_path(&nowhere);
    let failed = |error: ControlError| {
        let (ControlError::Profile(error) | ControlError::Next(NextError::Profile(error))) = error
        else {
            panic!("{error}");
        };
        let ProfileError::File {
            worker: 0, path, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(*path, config.path_of(0));
        let path = path.display();
        let start = format!("failed to write the profile of worker 0 to {path}: ");
        assert!(error_chain(&error).starts_with(&start), "{error}");
    };

    let mut collector = single(Placement::Inline).total_frames(80).build().unwrap();
    collector.enable_profile(&config).unwrap();
    take(&mut collector, 3);
    failed(collector.next().unwrap().unwrap_err().into());
    // It is told once, and no batch is lost over it.
    take(&mut collector, 1);
    assert!(collector.next().is_none());
    collector.shutdown().unwrap();

    let mut collector = single(Placement::Inline).total_frames(60).build().unwrap();
    collector.enable_profile(&config).unwrap();
    take(&mut collector, 3);
    failed(collector.next().unwrap().unwrap_err().into());
    assert!(collector.next().is_none());

    for placement in elsewhere() {
        let mut collector = multi_sync(placement, 2).build().unwrap();
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 2);
        failed(collector.shutdown().unwrap_err());
        collector.shutdown().unwrap();

        let mut collector = multi_sync(placement, 2).build().unwrap();
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 2);
        if let Err(error) = collector.disable_profile() {
            failed(error.into());
            collector.shutdown().unwrap();
        } else {
            // A worker may not have been through with its part: it writes its trace once it is.
            failed(collector.shutdown().unwrap_err());
        }
    }
}

#[test]
fn a_file_is_replaced_whole() {
    for &placement in PLACEMENTS {
        let folder = TempDir::new().unwrap();
        let config = config(&folder);
        std::fs::write(config.path_of(0), "something else").unwrap();
        let mut collector = single(placement).build().unwrap();
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 3);
        collector.shutdown().unwrap();
        assert_eq!(Trace::read(&config.path_of(0)).rollouts(), [1, 2]);
        assert_eq!(files(&folder), ["trace_0.json"]);

        // A folder is not replaced by a file, and nothing is left beside it.
        let folder = TempDir::new().unwrap();
        std::fs::create_dir(folder.path().join("trace_0.json")).unwrap();
        let mut collector = single(placement).build().unwrap();
        collector.enable_profile(&super::config(&folder)).unwrap();
        take(&mut collector, 3);
        collector.shutdown().unwrap_err();
        assert_eq!(files(&folder), ["trace_0.json"]);
    }
}
