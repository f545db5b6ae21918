//! What is told of each worker, and from other threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use tensordict::TensorDict;
use windrow_collect::{Collector, ControlError, NextError, OnLoss, Placement, WorkerStats};
use windrow_slab::{Sink, SinkError, WriterId};

use crate::crew::{Crew, ENVS, STEPS, WORKERS, all};
use crate::faulty::{At, Fault, How, Notes};
use crate::stamp::weights;

fn healthy(crew: Crew) -> Collector {
    crew.builder([None, None]).build().unwrap()
}

#[test]
fn figures_of_workers_add_up_to_those_of_the_collector() {
    for crew in all() {
        let mut collector = healthy(crew);
        let unused = collector.worker_stats();
        assert!(unused.iter().all(|worker| {
            let none = (worker.frames, worker.parts, worker.policy_version) == (0, 0, 0);
            none && worker.alive && worker.waited.is_zero()
        }));
        for _ in 0..10 {
            collector.next().unwrap().unwrap();
        }
        // Who runs ahead may have collected for another, who is yet to begin.
        while collector
            .worker_stats()
            .iter()
            .any(|worker| worker.parts == 0)
        {
            collector.next().unwrap().unwrap();
        }
        collector.shutdown().unwrap();
        let (stats, workers) = (collector.stats(), collector.worker_stats());
        let numbers: Vec<usize> = workers.iter().map(|worker| worker.worker).collect();
        assert_eq!(numbers, [0, 1]);
        let sum = |count: fn(&WorkerStats) -> u64| workers.iter().map(count).sum::<u64>();
        let frames = sum(|worker| worker.frames);
        // Those that run ahead have collected more than was delivered.
        assert!(frames == stats.frames || (crew.runs_ahead() && frames > stats.frames));
        // The shutdown may have cut those short that were being filled.
        let whole = sum(|worker| worker.parts) * (STEPS * ENVS) as u64;
        assert!(frames == whole || (crew.runs_ahead() && frames < whole));
        let waited: Duration = workers.iter().map(|worker| worker.waited).sum();
        assert_eq!(waited, stats.workers_waited);
        let threads = crew.placement != Placement::Inline;
        assert!(
            workers
                .iter()
                .all(|worker| worker.waited.is_zero() != threads)
        );
    }
}

#[test]
fn each_worker_tells_which_weights_it_acts_with() {
    for crew in all().filter(|crew| !crew.runs_ahead() && crew.parts() == WORKERS) {
        let mut collector = healthy(crew);
        let versions = |collector: &Collector| {
            let workers = collector.worker_stats();
            [0, 1].map(|at| (workers[at].policy_version, workers[at].policy_lag))
        };
        collector.update_policy_weights(&weights(1.0)).unwrap();
        assert_eq!(versions(&collector), [(0, 1), (0, 1)]);
        collector.next().unwrap().unwrap();
        assert_eq!(versions(&collector), [(1, 0), (1, 0)]);
        collector.update_policy_weights(&weights(2.0)).unwrap();
        collector.update_policy_weights(&weights(3.0)).unwrap();
        assert_eq!(versions(&collector), [(1, 2), (1, 2)]);
    }
}

#[test]
fn restarts_and_losses_are_those_of_the_worker_that_had_them() {
    for crew in all() {
        for (on_loss, restarts, alive) in [
            (OnLoss::Restart { budget: 1 }, [0, 1], [true, true]),
            (OnLoss::Continue, [0, 0], [true, false]),
        ] {
            let fault = Fault::new(At::Step(3), How::Error, 1);
            let mut collector = crew
                .builder([None, Some(fault)])
                .on_loss(on_loss)
                .total_frames((crew.batches(40) * crew.frames_per_batch()) as u64)
                .build()
                .unwrap();
            collector.by_ref().for_each(|batch| drop(batch.unwrap()));
            let workers = collector.worker_stats();
            assert_eq!([0, 1].map(|at: usize| workers[at].restarts), restarts);
            assert_eq!([0, 1].map(|at: usize| workers[at].alive), alive);
            let stats = collector.stats();
            assert_eq!(stats.restarts, restarts.iter().sum::<u64>());
            assert_eq!(
                stats.workers_alive,
                alive.iter().filter(|&&alive| alive).count()
            );
        }
    }
}

#[cfg(all(target_os = "linux", not(shuttle)))]
#[test]
fn the_process_of_a_worker_is_the_one_that_runs_now() {
    for crew in all().filter(|crew| crew.placement == Placement::Processes) {
        for (how, on_loss) in [
            (How::Exit(3), OnLoss::Restart { budget: 1 }),
            (How::Abort, OnLoss::Restart { budget: 1 }),
            (How::Error, OnLoss::Restart { budget: 1 }),
            (How::Exit(3), OnLoss::Continue),
        ] {
            let ends = !matches!(how, How::Error);
            let mut world = crew.world([None, Some(Fault::new(At::Step(3), how, 1))], &[]);
            let made = [0, 1].map(|_| Notes::default());
            for (makes, made) in world.envs.iter_mut().zip(&made) {
                makes.made = Some(made.clone());
            }
            let builder = crew.builder_of(&world).on_loss(on_loss);
            let mut collector = builder.build().unwrap();
            // One for each environment that was made.
            let pids = |worker: usize| -> Vec<u32> {
                let lines = made[worker].lines();
                lines.iter().map(|line| line.parse().unwrap()).collect()
            };
            let (first, own) = (pids(1)[0], std::process::id());
            let told = |collector: &Collector| {
                let workers = collector.worker_stats();
                [0, 1].map(|at: usize| (workers[at].pid, workers[at].restarts))
            };
            assert_eq!(told(&collector), [(Some(pids(0)[0]), 0), (Some(first), 0)]);
            let lost = |collector: &Collector| {
                let worker = &collector.worker_stats()[1];
                // Who was replaced has collected since.
                !worker.alive || (worker.restarts > 0 && worker.parts > 0)
            };
            while !lost(&collector) {
                collector.next().unwrap().unwrap();
            }
            let expected = match on_loss {
                OnLoss::Continue => (None, 0),
                _ => (pids(1).last().copied(), 1),
            };
            assert_eq!(expected.0 != Some(first), ends);
            assert_ne!(expected.0, Some(own));
            assert_eq!(told(&collector), [(Some(pids(0)[0]), 0), expected]);
            collector.shutdown().unwrap();
            assert_eq!(told(&collector), [(None, 0), (None, expected.1)]);
        }
    }
}

/// Takes nothing in before it is opened, and says when it is asked to.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    asked: AtomicBool,
    changed: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Sink for Gate {
    fn attach(&self) -> WriterId {
        WriterId(0)
    }

    fn extend(&self, _: WriterId, _: &TensorDict) -> Result<(), SinkError> {
        self.asked.store(true, Ordering::Release);
        let open = self.open.lock().unwrap();
        drop(self.changed.wait_while(open, |open| !*open).unwrap());
        Ok(())
    }

    fn detach(&self, _: WriterId, _: Option<SinkError>) {}
}

#[test]
fn a_handle_is_answered_while_a_write_waits() {
    let gate = Arc::new(Gate::default());
    let crew = all().next().unwrap();
    let builder = crew.builder([None, None]).replay_buffer(Arc::clone(&gate));
    let mut collector = builder.build().unwrap();
    let handle = collector.handle();
    thread::scope(|scope| {
        let iterating = scope.spawn(|| collector.next().unwrap().map(|batch| batch.numel()));
        while !gate.asked.load(Ordering::Acquire) {
            thread::yield_now();
        }
        assert_eq!(handle.update_policy_weights(&weights(1.0)).unwrap(), 1);
        assert_eq!(handle.update_worker_weights(1, &weights(2.0)).unwrap(), 2);
        assert_eq!(handle.stats().frames as usize, crew.frames_per_batch());
        assert_eq!(handle.worker_stats()[1].policy_lag, 2);
        let published = handle.policy_weights();
        assert_eq!(published, weights(1.0));
        assert_eq!(handle.set_seed(7, false), 7 + (WORKERS * ENVS) as u64 - 1);
        handle.reset();
        let state = handle.state_dict().unwrap();
        assert_eq!(state.get("seed").unwrap().item::<i64>().unwrap(), 7);
        assert!(handle.take_losses().is_empty());
        gate.open();
        assert_eq!(iterating.join().unwrap().unwrap(), crew.frames_per_batch());
    });
    // Every environment begins the episode that belongs to its new seed.
    let again = collector.next().unwrap().unwrap().detach();
    let mut seeded = crew.builder([None, None]).seed(7).build().unwrap();
    seeded.update_policy_weights(&weights(1.0)).unwrap();
    seeded.update_worker_weights(1, &weights(2.0)).unwrap();
    let expected = seeded.next().unwrap().unwrap();
    assert_eq!(
        again.get("observation").unwrap(),
        expected.get("observation").unwrap()
    );
    collector.shutdown().unwrap();
    let refused = handle.update_policy_weights(&weights(3.0));
    assert!(matches!(
        refused,
        Err(ControlError::Next(NextError::ShutDown))
    ));
}

#[cfg(target_os = "linux")]
mod processes {
    use std::fs;

    use windrow_collect::{MultiSyncCollector, Placement};

    use crate::crew::world::{World, program};

    /// The parent of process `pid`, if there is such a process.
    fn parent(pid: u32) -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, behind_name) = stat.rsplit_once(')')?;
        behind_name.split_whitespace().nth(1)?.parse().ok()
    }

    #[test]
    fn a_worker_in_a_process_tells_its_number_as_long_as_that_runs() {
        let mut collector = MultiSyncCollector::builder("CartPole-v1")
            .num_workers(2)
            .frames_per_batch(8)
            .placement(Placement::Processes)
            .worker_program(program(&World::default()))
            .build()
            .unwrap();
        collector.next().unwrap().unwrap();
        let workers = collector.worker_stats();
        assert_ne!(workers[0].pid, workers[1].pid);
        for worker in &workers {
            let parent = worker.pid.and_then(parent);
            assert_eq!(parent, Some(std::process::id()), "{worker:?}");
        }
        collector.shutdown().unwrap();
        let after = collector.worker_stats();
        assert!(after.iter().all(|worker| worker.pid.is_none()));
    }

    #[test]
    fn a_worker_in_a_thread_has_no_process() {
        let mut collector = MultiSyncCollector::builder("CartPole-v1")
            .num_workers(2)
            .frames_per_batch(8)
            .build()
            .unwrap();
        collector.next().unwrap().unwrap();
        assert!(
            collector
                .worker_stats()
                .iter()
                .all(|worker| worker.pid.is_none())
        );
    }
}
