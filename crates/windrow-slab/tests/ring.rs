//! The ring from outside: who gets what, when, and that nothing is seen too early or overwritten
//! too soon.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tensordict::{DType, TensorDict};
use windrow_slab::{
    Key, Layout, LeafSpec, Order, Part, PartOrder, RecordSpec, Ring, RingSpec, Shares, SlabError,
};

const VALUE: Key<i64> = Key::new(0);

fn ring(order: Order, workers: usize, parts: usize, ahead: usize, max_slabs: usize) -> Arc<Ring> {
    let spec = RingSpec {
        order,
        workers,
        ahead,
        max_slabs,
        cut_after: None,
        max_age: None,
    };
    of_parts(parts, PartOrder::Sequential, spec)
}

fn of_parts(parts: usize, order: PartOrder, spec: RingSpec) -> Arc<Ring> {
    let record = RecordSpec {
        observation: vec![LeafSpec::new("observation", DType::I64, [])],
        policy: vec![LeafSpec::new("action", DType::I64, [])],
        traj_ids: true,
        ..RecordSpec::default()
    };
    let shares = Shares {
        steps: vec![4; parts],
        envs: 2,
        batched: true,
        order,
    };
    Ring::new(Layout::new(&record, shares).unwrap(), spec).unwrap()
}

/// Writes `value` to every action of a part.
fn fill(mut part: Part, value: i64) {
    let mut rows = part.rows();
    while let Some(mut step) = rows.next_step() {
        step.policy.get_mut(VALUE).unwrap().fill(value);
    }
    part.commit();
}

fn actions(batch: &TensorDict) -> Vec<i64> {
    batch.get("action").unwrap().to_vec::<i64>().unwrap()
}

#[test]
fn a_slab_is_whole_with_its_last_part() {
    let ring = ring(Order::ByWorker, 2, 2, 0, 4);
    ring.request().unwrap();
    fill(ring.claim(1).unwrap(), 1);
    assert!(ring.try_next().is_none());
    fill(ring.claim(0).unwrap(), 0);
    let lease = ring.try_next().unwrap();
    assert_eq!((lease.seq(), lease.frames()), (0, 16));
    assert_eq!(actions(&lease.part(0).unwrap()), [0; 8]);
    assert_eq!(actions(&lease.part(1).unwrap()), [1; 8]);
}

#[test]
fn whole_parts_lie_side_by_side_and_parts_cut_short_do_not() {
    let ring = ring(Order::ByWorker, 2, 2, 0, 4);
    ring.request().unwrap();
    fill(ring.claim(0).unwrap(), 3);
    fill(ring.claim(1).unwrap(), 5);
    let stacked = ring.try_next().unwrap().stacked().unwrap().unwrap();
    assert_eq!(stacked.batch_size(), [2, 2, 4]);
    assert_eq!(
        actions(&stacked),
        [[3; 8], [5; 8]].concat(),
        "each part in its place"
    );
    ring.request().unwrap();
    let mut short = ring.claim(0).unwrap();
    short.shorten(3);
    fill(short, 3);
    fill(ring.claim(1).unwrap(), 5);
    assert!(ring.try_next().unwrap().stacked().unwrap().is_none());
}

/// Two workers write a step each in turn: where it is, by part, step and environment.
fn write_in_turn(ring: &Arc<Ring>, steps: usize) {
    ring.request().unwrap();
    let mut parts = [1, 0].map(|worker| ring.claim(worker).unwrap());
    parts.iter_mut().for_each(|part| part.shorten(steps));
    let indices = parts.each_ref().map(Part::index);
    let mut rows = parts.each_mut().map(Part::rows);
    for t in 0..steps {
        for (rows, part) in rows.iter_mut().zip(indices) {
            let value = |env: usize| (100 * part + 10 * t + env) as i64;
            let mut step = rows.next_step().unwrap();
            let numbers = [value(0), value(1)];
            step.next_obs
                .get_mut(VALUE)
                .unwrap()
                .copy_from_slice(&numbers);
            step.policy
                .get_mut(VALUE)
                .unwrap()
                .copy_from_slice(&numbers);
            step.traj_ids.copy_from_slice(&numbers);
            step.done.fill(part == 1 && t == 0);
            step.reward.fill(part as f32);
            if let Some(mut following) = step.following {
                following.copy_from(step.next_obs.as_rows()).unwrap();
            }
        }
    }
    assert_eq!(rows[0].last_flags().unwrap().1, [false; 2]);
    parts.into_iter().for_each(Part::commit);
}

#[test]
fn both_orders_of_parts_show_the_same_frames_and_each_has_a_flat_view() {
    let spec = RingSpec {
        order: Order::ByWorker,
        workers: 2,
        ahead: 0,
        max_slabs: 4,
        cut_after: None,
        max_age: None,
    };
    for order in [PartOrder::Sequential, PartOrder::Interleaved] {
        let ring = of_parts(2, order, spec);
        for steps in [4, 4, 3] {
            write_in_turn(&ring, steps);
            let lease = ring.try_next().unwrap();
            let frames =
                |part: i64, env: i64| (0..steps as i64).map(move |t| 100 * part + 10 * t + env);
            for part in 0..2i64 {
                let expected: Vec<i64> = (0..2).flat_map(|env| frames(part, env)).collect();
                let batch = lease.part(part as usize).unwrap();
                assert_eq!(actions(&batch), expected);
                let observed = batch.get(("next", "observation")).unwrap();
                assert_eq!(observed.to_vec::<i64>().unwrap(), expected);
                let ids = batch.get(("collector", "traj_ids")).unwrap();
                assert_eq!(ids.to_vec::<i64>().unwrap(), expected);
                let done = batch
                    .get(("next", "done"))
                    .unwrap()
                    .to_vec::<bool>()
                    .unwrap();
                let first = |place: usize| part == 1 && place.is_multiple_of(steps);
                assert_eq!(done, (0..2 * steps).map(first).collect::<Vec<_>>());
                let reward = batch.get(("next", "reward")).unwrap().to_vec::<f32>();
                assert_eq!(reward.unwrap(), vec![part as f32; 2 * steps]);
            }
            let envs = [(0, 0), (0, 1), (1, 0), (1, 1)];
            let along_envs = envs.iter().flat_map(|&(part, env)| frames(part, env));
            if steps == 4 {
                assert_eq!(
                    actions(&lease.stacked().unwrap().unwrap()),
                    along_envs.clone().collect::<Vec<_>>()
                );
            }
            let (time, env) = (lease.along_time().unwrap(), lease.along_envs().unwrap());
            match order {
                PartOrder::Interleaved => {
                    let flat = env.unwrap();
                    assert_eq!((flat.batch_size(), time.is_none()), (&[4, steps][..], true));
                    assert_eq!(actions(&flat), along_envs.collect::<Vec<_>>());
                }
                PartOrder::Sequential if steps == 4 => {
                    let flat = time.unwrap();
                    assert_eq!((flat.batch_size(), env.is_none()), (&[2, 8][..], true));
                    let expected = (0..2).flat_map(|env| frames(0, env).chain(frames(1, env)));
                    assert_eq!(actions(&flat), expected.collect::<Vec<_>>());
                }
                PartOrder::Sequential => assert!(time.is_none() && env.is_none()),
            }
        }
    }
}

#[test]
fn a_part_that_a_slab_does_not_have_is_an_error() {
    let ring = ring(Order::ByWorker, 1, 1, 0, 1);
    ring.request().unwrap();
    fill(ring.claim(0).unwrap(), 0);
    let error = ring.try_next().unwrap().part(1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "index 1 is out of range for dimension 0 of size 1"
    );
}

#[test]
fn no_worker_runs_further_ahead_than_it_may() {
    let ring = ring(Order::ByWorker, 1, 1, 1, 8);
    fill(ring.claim(0).unwrap(), 0);
    assert!(ring.try_claim(0).unwrap().is_none());
    ring.request().unwrap();
    fill(ring.claim(0).unwrap(), 1);
    assert!(ring.try_claim(0).unwrap().is_none());
    // Asking again before taking is asking for the same slab.
    ring.request().unwrap();
    assert!(ring.try_claim(0).unwrap().is_none());
    assert_eq!(ring.try_next().unwrap().seq(), 0);
}

#[test]
fn by_arrival_whoever_asks_gets_the_next_part_and_the_first_whole_slab_comes_first() {
    let ring = ring(Order::ByArrival, 3, 1, 3, 8);
    let slow = ring.claim(2).unwrap();
    fill(ring.claim(0).unwrap(), 10);
    fill(ring.claim(1).unwrap(), 11);
    assert_eq!(slow.seq(), 0);
    assert_eq!(actions(&ring.next().unwrap().part(0).unwrap())[0], 10);
    fill(slow, 12);
    assert_eq!(actions(&ring.next().unwrap().part(0).unwrap())[0], 11);
    assert_eq!(actions(&ring.next().unwrap().part(0).unwrap())[0], 12);
}

#[test]
fn by_arrival_a_quick_worker_leaves_room_for_the_others() {
    let ring = ring(Order::ByArrival, 3, 1, 4, 8);
    ring.request().unwrap();
    // Of five slabs that may be started, two are for those who have none under way.
    for _ in 0..3 {
        fill(ring.claim(0).unwrap(), 0);
    }
    assert!(ring.try_claim(0).unwrap().is_none());
    fill(ring.claim(1).unwrap(), 1);
    assert!(ring.try_claim(0).unwrap().is_none());
    assert!(ring.try_claim(1).unwrap().is_none());
    fill(ring.claim(2).unwrap(), 2);
    // Whoever is first gets what a delivery gives, as long as nobody is without.
    drop(ring.next().unwrap());
    ring.request().unwrap();
    let given_back = ring.claim(0).unwrap();
    assert!(ring.try_claim(1).unwrap().is_none());
    drop(given_back);
    fill(ring.claim(0).unwrap(), 0);
}

#[test]
fn by_arrival_nobody_is_starved_however_quick_the_others_are() {
    for workers in 2..=4 {
        // What collectors choose: as many slabs ahead as there are workers.
        let ring = ring(Order::ByArrival, workers, 1, workers, 16);
        let mut delivered = Vec::new();
        for _ in 0..200 {
            ring.request().unwrap();
            // Each fills whatever it gets before the next one is awake.
            for worker in 0..workers {
                while let Some(part) = ring.try_claim(worker).unwrap() {
                    fill(part, worker as i64);
                }
            }
            let batch = ring.try_next().unwrap().part(0).unwrap();
            delivered.push(actions(&batch)[0]);
        }
        for window in delivered[2 * workers..].windows(2 * workers) {
            for worker in 0..workers as i64 {
                assert!(window.contains(&worker), "{worker} not in {window:?}");
            }
        }
    }
}

#[test]
fn by_arrival_several_workers_share_a_slab() {
    let ring = ring(Order::ByArrival, 3, 2, 3, 8);
    let parts: Vec<Part> = [2, 0, 1]
        .map(|worker| ring.claim(worker).unwrap())
        .into_iter()
        .collect();
    let places: Vec<_> = parts
        .iter()
        .map(|part| (part.seq(), part.index()))
        .collect();
    assert_eq!(places, [(0, 0), (0, 1), (1, 0)]);
}

#[test]
fn a_dropped_part_is_claimed_again_by_the_worker_whose_it_is() {
    let ring = ring(Order::ByWorker, 2, 2, 0, 4);
    ring.request().unwrap();
    drop(ring.claim(0).unwrap());
    fill(ring.claim(1).unwrap(), 5);
    assert!(ring.try_claim(1).unwrap().is_none());
    assert!(ring.try_next().is_none());
    let again = ring.claim(0).unwrap();
    assert_eq!((again.seq(), again.index()), (0, 0));
    fill(again, 6);
    assert_eq!(actions(&ring.try_next().unwrap().part(0).unwrap()), [6; 8]);
}

#[test]
fn a_part_cut_short_shows_only_what_was_written() {
    let ring = ring(Order::ByWorker, 1, 1, 0, 4);
    ring.request().unwrap();
    let mut part = ring.claim(0).unwrap();
    part.shorten(3);
    fill(part, 9);
    let lease = ring.try_next().unwrap();
    assert_eq!((lease.frames(), lease.commits()[0].steps), (6, 3));
    let batch = lease.part(0).unwrap();
    assert_eq!(batch.batch_size(), &[2, 3]);
    assert_eq!(actions(&batch), [9; 6]);
}

#[test]
fn kept_batches_never_change_and_the_ring_says_when_it_is_full() {
    let ring = ring(Order::ByWorker, 1, 1, 0, 3);
    let mut kept = Vec::new();
    for value in 0..3 {
        ring.request().unwrap();
        fill(ring.claim(0).unwrap(), value);
        kept.push(ring.try_next().unwrap().part(0).unwrap());
    }
    let bytes = ring.layout().bytes();
    let full = SlabError::Exhausted { slabs: 3, bytes };
    assert_eq!(ring.request().unwrap_err(), full);
    assert_eq!(ring.next().unwrap_err(), full);
    assert_eq!(ring.try_claim(0).unwrap_err(), full);
    for (value, batch) in kept.iter().enumerate() {
        assert_eq!(actions(batch), [value as i64; 8]);
    }
    // A single tensor of a batch keeps its slab.
    let action = kept[1].get("action").unwrap().clone();
    kept.clear();
    for value in 10..30 {
        ring.request().unwrap();
        fill(ring.claim(0).unwrap(), value);
        assert_eq!(
            actions(&ring.try_next().unwrap().part(0).unwrap())[0],
            value
        );
    }
    assert_eq!(action.to_vec::<i64>().unwrap(), [1; 8]);
    assert_eq!(ring.slabs(), 3);
}

#[test]
#[cfg_attr(miri, ignore = "its allocator ends the process")]
fn a_slab_that_there_is_no_memory_for_is_an_error() {
    let record = RecordSpec {
        observation: vec![LeafSpec::new("observation", DType::F32, [1 << 20])],
        ..RecordSpec::default()
    };
    let shares = Shares {
        steps: vec![1 << 28],
        envs: 2,
        batched: true,
        order: PartOrder::Sequential,
    };
    let layout = Layout::new(&record, shares).unwrap();
    let bytes = layout.bytes();
    let spec = RingSpec {
        order: Order::ByWorker,
        workers: 1,
        ahead: 0,
        max_slabs: 2,
        cut_after: None,
        max_age: None,
    };
    let error = Ring::new(layout, spec).unwrap_err();
    let frames = 2 << 28;
    assert_eq!(error, SlabError::NoMemory { frames, bytes });
    // Two observations, six flags and a reward.
    let frame = 2 * (4 << 20) + 6 + 4;
    assert_eq!(
        error.to_string(),
        format!(
            "no memory for {frames} frames of {frame} bytes each: the system does not give {bytes} bytes"
        )
    );
}

#[test]
fn dropping_each_batch_takes_one_slab_only() {
    let ring = ring(Order::ByWorker, 1, 1, 0, 64);
    for _ in 0..100 {
        ring.request().unwrap();
        fill(ring.claim(0).unwrap(), 0);
        drop(ring.try_next().unwrap());
    }
    assert_eq!(ring.slabs(), 1);
}

#[test]
fn asking_again_while_a_slab_is_being_filled_makes_no_other() {
    let ring = ring(Order::ByWorker, 1, 1, 0, 4);
    ring.request().unwrap();
    let part = ring.claim(0).unwrap();
    ring.request().unwrap();
    assert_eq!(ring.slabs(), 1);
    fill(part, 1);
    ring.request().unwrap();
    assert_eq!(ring.slabs(), 1);
}

#[test]
fn root_flags_are_clean_whatever_was_in_the_memory() {
    let ring = ring(Order::ByWorker, 1, 1, 0, 1);
    for _ in 0..2 {
        ring.request().unwrap();
        fill(ring.claim(0).unwrap(), 0);
        let batch = ring.try_next().unwrap().part(0).unwrap();
        for flag in ["done", "terminated", "truncated"] {
            let flags = batch.get(flag).unwrap().to_vec::<bool>().unwrap();
            assert_eq!(flags, [false; 8], "{flag}");
        }
    }
}

#[test]
fn after_a_stop_whole_slabs_can_be_taken_and_nothing_be_claimed() {
    let ring = ring(Order::ByWorker, 1, 1, 1, 4);
    fill(ring.claim(0).unwrap(), 3);
    ring.stop();
    assert!(ring.claim(0).is_none());
    assert_eq!(actions(&ring.next().unwrap().part(0).unwrap())[0], 3);
    assert_eq!(ring.next().unwrap_err(), SlabError::Stopped);
}

#[test]
fn a_stop_wakes_whoever_waits() {
    let ring = ring(Order::ByWorker, 1, 1, 0, 4);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| ring.claim(0).is_none());
        let stopper = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            ring.stop();
        });
        assert!(worker.join().unwrap());
        stopper.join().unwrap();
    });
    assert_eq!(ring.next().unwrap_err(), SlabError::Stopped);
}

#[test]
fn many_workers_and_a_consumer_agree_on_every_frame() {
    for (order, parts, ahead) in [
        (Order::ByWorker, 3, 0),
        (Order::ByWorker, 3, 2),
        (Order::ByArrival, 1, 3),
        (Order::ByArrival, 2, 2),
    ] {
        let ring = ring(order, 3, parts, ahead, 16);
        let stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (ring, stopped) = (&ring, &stopped);
                scope.spawn(move || {
                    let mut lost = false;
                    while let Some(part) = ring.claim(worker) {
                        // Every seventh part is lost once.
                        if !lost && part.seq() % 7 == 3 {
                            lost = true;
                            continue;
                        }
                        lost = false;
                        let value = part.seq() as i64 * 10 + part.index() as i64;
                        fill(part, value);
                    }
                    assert!(stopped.load(Ordering::Acquire));
                });
            }
            let mut kept = Vec::new();
            for _ in 0..200 {
                let lease = ring.next().unwrap();
                let seq = lease.seq() as i64;
                let batch: Vec<_> = (0..parts).map(|part| lease.part(part).unwrap()).collect();
                kept.push((seq, batch));
                if kept.len() > 5 {
                    kept.remove(0);
                }
                for (seq, batch) in &kept {
                    for (part, batch) in batch.iter().enumerate() {
                        assert_eq!(actions(batch), [seq * 10 + part as i64; 8]);
                    }
                }
            }
            stopped.store(true, Ordering::Release);
            ring.stop();
        });
    }
}

#[test]
fn parts_and_workers_must_go_together() {
    let layout = || {
        let shares = Shares {
            steps: vec![1; 2],
            envs: 1,
            batched: false,
            order: PartOrder::Sequential,
        };
        Layout::new(&RecordSpec::default(), shares).unwrap()
    };
    let spec = RingSpec {
        order: Order::ByWorker,
        workers: 3,
        ahead: 0,
        max_slabs: 1,
        cut_after: None,
        max_age: None,
    };
    assert!(matches!(
        Ring::new(layout(), spec),
        Err(SlabError::Workers {
            parts: 2,
            workers: 3,
            ..
        })
    ));
    let none = RingSpec {
        max_slabs: 0,
        order: Order::ByArrival,
        ..spec
    };
    assert!(matches!(
        Ring::new(layout(), none),
        Err(SlabError::Workers { slabs: 0, .. })
    ));
    let more_than_memory = 1 << 60;
    let spec = RingSpec {
        workers: more_than_memory,
        max_slabs: 1,
        order: Order::ByArrival,
        ..spec
    };
    assert_eq!(
        Ring::new(layout(), spec).unwrap_err(),
        SlabError::ManyWorkers {
            workers: more_than_memory
        }
    );
}

/// A ring of two workers whose parts of two steps are cut once one of them is committed.
fn cutting() -> Arc<Ring> {
    let shares = Shares {
        steps: vec![2; 2],
        envs: 1,
        batched: false,
        order: PartOrder::Sequential,
    };
    let spec = RingSpec {
        order: Order::ByWorker,
        workers: 2,
        ahead: 0,
        max_slabs: 2,
        cut_after: Some(1),
        max_age: None,
    };
    Ring::new(Layout::new(&RecordSpec::default(), shares).unwrap(), spec).unwrap()
}

#[test]
fn parts_are_told_to_end_early_once_enough_others_are_committed_and_no_longer_in_the_next_slab() {
    let ring = cutting();
    for _ in 0..2 {
        ring.request().unwrap();
        let (whole, mut cut) = (ring.claim(0).unwrap(), ring.claim(1).unwrap());
        assert!(!cut.rows().is_cut());
        whole.commit();
        assert!(cut.rows().is_cut());
        cut.shorten(1);
        cut.commit();
        assert_eq!(ring.try_next().unwrap().frames(), 3);
    }
    ring.cut_all(true);
    ring.request().unwrap();
    let mut part = ring.claim(0).unwrap();
    assert!(part.rows().is_cut());
    ring.cut_all(false);
    assert!(!part.rows().is_cut());
}

#[test]
fn a_wait_that_was_given_up_goes_on_with_the_same_slab() {
    let ring = ring(Order::ByWorker, 1, 1, 0, 2);
    assert!(ring.next_within(Duration::ZERO).unwrap().is_none());
    assert!(
        ring.next_within(Duration::from_millis(1))
            .unwrap()
            .is_none()
    );
    fill(ring.claim(0).unwrap(), 7);
    assert!(
        ring.try_claim(0).unwrap().is_none(),
        "one slab was asked for"
    );
    let lease = ring.next_within(Duration::ZERO).unwrap().unwrap();
    assert_eq!((lease.seq(), actions(&lease.part(0).unwrap())[0]), (0, 7));
}

#[test]
fn a_hold_says_whether_parts_came_back_in_time() {
    let ring = ring(Order::ByWorker, 1, 1, 0, 2);
    ring.request().unwrap();
    let part = ring.claim(0).unwrap();
    assert!(!ring.hold_within(Duration::from_millis(1)));
    fill(part, 1);
    assert!(ring.hold_within(Duration::ZERO));
}

#[test]
fn a_pause_waits_for_parts_that_are_out_and_nothing_is_lent_until_it_is_over() {
    let ring = ring(Order::ByArrival, 1, 1, 2, 4);
    let out = ring.claim(0).unwrap();
    std::thread::scope(|scope| {
        let pausing = scope.spawn(|| ring.pause());
        std::thread::sleep(Duration::from_millis(10));
        assert!(!pausing.is_finished());
        fill(out, 1);
        pausing.join().unwrap();
    });
    assert!(ring.try_claim(0).unwrap().is_none());
    // What was whole can be taken meanwhile.
    assert!(ring.try_next().is_some());
    ring.resume();
    assert!(ring.try_claim(0).unwrap().is_some());
}

#[test]
fn at_the_end_the_consumer_is_told_and_workers_wait_until_it_is_moved() {
    let ring = ring(Order::ByWorker, 1, 1, 1, 4);
    ring.end_at(1);
    fill(ring.claim(0).unwrap(), 0);
    assert!(ring.try_claim(0).unwrap().is_none());
    assert!(!ring.is_at_end());
    assert_eq!(ring.next().unwrap().seq(), 0);
    assert!(ring.is_at_end());
    assert_eq!(ring.next().unwrap_err(), SlabError::Stopped);
    ring.end_at(2);
    assert!(!ring.is_at_end());
    fill(ring.claim(0).unwrap(), 1);
    assert_eq!(ring.next().unwrap().seq(), 1);
    assert!(ring.try_claim(0).unwrap().is_none());
}

#[test]
fn a_worker_that_is_retired_again_makes_no_slab_whole() {
    let cases = [
        (Order::ByWorker, true, 16),
        (Order::ByWorker, false, 16),
        (Order::ByArrival, true, 16),
        (Order::ByArrival, false, 24),
    ];
    for (order, gives_back, frames) in cases {
        let case = format!("{order:?}, with a part given back: {gives_back}");
        let ring = ring(order, 3, 3, 0, 2);
        ring.request().unwrap();
        let part = ring.claim(0).unwrap();
        if gives_back {
            drop(ring.claim(1).unwrap());
        }
        for _ in 0..3 {
            ring.retire(1);
        }
        assert!(ring.try_next().is_none(), "{case}");
        fill(ring.claim(2).unwrap(), 2);
        ring.retire(1);
        assert!(ring.try_next().is_none(), "{case}");
        // By arrival, others fill what the worker never had.
        while let Some(part) = ring.try_claim(2).unwrap() {
            fill(part, 2);
        }
        assert!(ring.try_next().is_none(), "{case}");
        fill(part, 0);
        assert_eq!(ring.try_next().unwrap().frames(), frames, "{case}");
    }
}

#[test]
fn a_part_that_its_worker_gives_back_after_it_was_retired_stays_empty() {
    for order in [Order::ByWorker, Order::ByArrival] {
        let ring = ring(order, 2, 2, 0, 2);
        ring.request().unwrap();
        let (kept, lost) = (ring.claim(0).unwrap(), ring.claim(1).unwrap());
        ring.retire(1);
        fill(kept, 0);
        assert!(ring.try_next().is_none(), "{order:?}");
        drop(lost);
        assert_eq!(ring.try_next().unwrap().frames(), 8, "{order:?}");
    }
}

#[test]
fn a_part_that_its_worker_commits_after_it_was_retired_counts() {
    for order in [Order::ByWorker, Order::ByArrival] {
        let ring = ring(order, 2, 2, 0, 2);
        ring.request().unwrap();
        let (part, other) = (ring.claim(0).unwrap(), ring.claim(1).unwrap());
        ring.retire(1);
        fill(other, 1);
        fill(part, 0);
        assert_eq!(ring.try_next().unwrap().frames(), 16, "{order:?}");
        assert!(ring.claim(1).is_none());
    }
}

#[test]
fn a_retired_worker_leaves_its_part_empty_and_by_arrival_the_later_ones_to_others() {
    let by_worker = ring(Order::ByWorker, 2, 2, 1, 4);
    drop(by_worker.claim(0).unwrap());
    assert!(by_worker.retire(0));
    for _ in 0..2 {
        by_worker.request().unwrap();
        fill(by_worker.claim(1).unwrap(), 1);
        let lease = by_worker.try_next().unwrap();
        assert_eq!((lease.commits()[0].steps, lease.frames()), (0, 8));
    }
    assert!(by_worker.claim(0).is_none());

    let by_arrival = ring(Order::ByArrival, 2, 2, 1, 4);
    drop(by_arrival.claim(0).unwrap());
    assert!(!by_arrival.retire(0));
    for frames in [8, 16] {
        by_arrival.request().unwrap();
        while let Some(part) = by_arrival.try_claim(1).unwrap() {
            fill(part, 1);
        }
        assert_eq!(by_arrival.try_next().unwrap().frames(), frames);
    }
}

/// What `worker` may fill now: number of the slab and part. Writes there how often it has done so.
fn fill_next(ring: &Arc<Ring>, worker: usize, turn: &mut i64) -> Option<(u64, usize)> {
    let part = ring.try_claim(worker).unwrap()?;
    let place = (part.seq(), part.index());
    fill(part, *turn);
    *turn += 1;
    Some(place)
}

/// The first action of each part of a slab, in the order of the lease.
fn turns(lease: &windrow_slab::Lease) -> Vec<i64> {
    let first = |&part: &usize| actions(&lease.part(part).unwrap())[0];
    lease.order().unwrap().iter().map(first).collect()
}

#[test]
fn others_fill_the_parts_of_a_reassigned_worker_in_turn_and_each_slab_is_whole() {
    let ring = ring(Order::ByWorker, 4, 4, 0, 2);
    ring.request().unwrap();
    drop(ring.claim(1).unwrap());
    ring.reassign(1);
    assert!(ring.claim(1).is_none());
    let mut turn = 0;
    for seq in 0..6 {
        ring.request().unwrap();
        let substitute = [0, 2, 3][seq % 3];
        for worker in [3, 0, 2] {
            let claims = std::iter::from_fn(|| fill_next(&ring, worker, &mut turn));
            let claimed: Vec<_> = claims.map(|(of, part)| (of as usize, part)).collect();
            let mut expected = vec![(seq, worker)];
            if worker == substitute {
                expected.push((seq, 1));
            }
            // It was begun in the first slab; whether it was lost before or after a worker's own
            // part must not matter.
            if seq > 0 {
                expected.sort_unstable();
            }
            assert_eq!(claimed, expected);
        }
        let lease = ring.try_next().unwrap();
        assert_eq!(lease.frames(), 32);
        assert_eq!(lease.order(), Some(&[0, 1, 2, 3][..]));
    }
}

#[test]
fn parts_are_put_in_the_order_of_time_where_the_worker_of_the_first_was_lost() {
    let ring = ring(Order::ByWorker, 3, 3, 0, 2);
    ring.request().unwrap();
    let lost = ring.claim(0).unwrap();
    let mut turn = 0;
    for worker in [2, 1] {
        fill_next(&ring, worker, &mut turn).unwrap();
    }
    // As a worker that somebody else retires.
    ring.reassign(0);
    assert_eq!(fill_next(&ring, 1, &mut turn), None);
    drop(lost);
    assert_eq!(fill_next(&ring, 2, &mut turn), None);
    assert_eq!(fill_next(&ring, 1, &mut turn), Some((0, 0)));
    let lease = ring.try_next().unwrap();
    assert_eq!(lease.order(), Some(&[1, 2, 0][..]));
    assert_eq!(turns(&lease), [1, 0, 2]);
    // The substitute of the next slab begins with the part that lies first.
    drop(lease);
    ring.request().unwrap();
    let places: Vec<_> = [2, 2, 1, 1]
        .map(|worker| fill_next(&ring, worker, &mut turn))
        .into();
    assert_eq!(places, [Some((1, 0)), Some((1, 2)), Some((1, 1)), None]);
    assert_eq!(ring.try_next().unwrap().order(), Some(&[0, 1, 2][..]));
}

#[test]
fn the_parts_of_all_workers_that_are_lost_are_shared_evenly_also_those_that_a_substitute_drops() {
    let ring = ring(Order::ByWorker, 4, 4, 0, 2);
    ring.request().unwrap();
    ring.reassign(0);
    // Worker 1 is the first in whose turn the part is, and is lost with it.
    let part = ring.claim(1).unwrap();
    assert_eq!(part.index(), 0);
    drop(part);
    ring.reassign(1);
    ring.reassign(1);
    assert!(!ring.retire(0));
    let mut turn = 0;
    for seq in 0..4 {
        ring.request().unwrap();
        for (worker, of) in [(2, seq % 2), (3, 1 - seq % 2)] {
            let claims = std::iter::from_fn(|| fill_next(&ring, worker, &mut turn));
            let mut parts: Vec<usize> = claims.map(|(_, part)| part).collect();
            parts.sort_unstable();
            assert_eq!(parts, [of as usize, worker]);
        }
        assert_eq!(ring.try_next().unwrap().frames(), 32);
    }
    // A worker without others has nobody to fill its part.
    ring.reassign(2);
    ring.reassign(3);
    ring.request().unwrap();
    assert!((0..4).all(|worker| ring.try_claim(worker).unwrap().is_none()));
}

#[test]
fn a_worker_that_waits_gets_the_part_of_one_that_is_reassigned() {
    for drops_later in [false, true] {
        let ring = ring(Order::ByWorker, 2, 2, 0, 2);
        ring.request().unwrap();
        let lost = ring.claim(1).unwrap();
        fill(ring.claim(0).unwrap(), 0);
        let waiting = {
            let ring = Arc::clone(&ring);
            std::thread::spawn(move || fill(ring.claim(0).unwrap(), 1))
        };
        let mut lost = Some(lost);
        if !drops_later {
            lost.take();
        }
        ring.reassign(1);
        drop(lost);
        waiting.join().unwrap();
        assert_eq!(ring.next().unwrap().frames(), 16);
    }
}

#[test]
fn by_arrival_the_others_fill_slabs_without_a_reassigned_worker_as_without_a_retired_one() {
    let ring = ring(Order::ByArrival, 2, 1, 1, 4);
    drop(ring.claim(0).unwrap());
    ring.reassign(0);
    for frames in [0, 8] {
        ring.request().unwrap();
        while let Some(part) = ring.try_claim(1).unwrap() {
            fill(part, 1);
        }
        let lease = ring.try_next().unwrap();
        assert_eq!((lease.frames(), lease.order()), (frames, None));
    }
}

#[test]
fn each_part_has_notes_of_its_own_from_its_owner_to_its_worker_and_back() {
    for order in [PartOrder::Sequential, PartOrder::Interleaved] {
        let record = RecordSpec {
            observation: vec![LeafSpec::new("observation", DType::I64, [])],
            notes: 9,
            ..RecordSpec::default()
        };
        let shares = Shares {
            steps: vec![4; 3],
            envs: 1,
            batched: true,
            order,
        };
        let spec = RingSpec {
            order: Order::ByWorker,
            workers: 3,
            ahead: 0,
            max_slabs: 1,
            cut_after: None,
            max_age: None,
        };
        let ring = Ring::new(Layout::new(&record, shares).unwrap(), spec).unwrap();
        for round in 0..2 {
            ring.request().unwrap();
            let mut parts = [0, 1, 2].map(|worker| ring.claim(worker).unwrap());
            for (worker, part) in parts.iter_mut().enumerate() {
                assert_eq!(part.notes().len(), 16, "whole cache lines");
                part.notes().fill((10 * round + worker) as f64);
            }
            parts.into_iter().for_each(|part| part.commit());
            let lease = ring.try_next().unwrap();
            for worker in 0..3 {
                assert_eq!(lease.notes(worker), [(10 * round + worker) as f64; 16]);
            }
            assert!(lease.notes(3).is_empty());
            let batch = lease.part(0).unwrap();
            assert!(!batch.contains_key("notes"));
        }
    }
}
