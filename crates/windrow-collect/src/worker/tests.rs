//! A worker knows its collector through its link only: here is a link without a collector.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use windrow_env::{CartPole, Serial, make_vec};
use windrow_policy::{Binding, ExplorationType, PolicyError, PolicyRecipe, Published, policy_fn};
use windrow_slab::{
    Key, Layout, Order as RingOrder, Part, PartOrder, RecordSpec, Ring, RingSpec, Shares,
};
use windrow_sync::error_chain;

use super::actor::Actor;
use super::cursor::{Beginning, CursorOptions};
use super::{Worker, WorkerFactory};
use crate::error::WorkerError;
use crate::probe::Recorder;
use crate::shared::commands::{Commands, Restart, Resume};
use crate::shared::heartbeat::{Pulse, PulseProbe};
use crate::shared::link::{Assignment, OnFault, Order, Progress, WorkerLink};
use crate::shared::reentrancy::CollectorId;
use crate::shared::schedule::Share;

const STEPS: usize = 5;

/// The calls of a link.
#[derive(Debug, PartialEq)]
enum Entry {
    Weights { held: Option<i64> },
    Delivered(Progress),
    GaveBack,
    Lost(String),
}

#[derive(Clone)]
struct ScriptedDesk {
    ring: Arc<Ring>,
    commands: Arc<Mutex<Vec<Commands>>>,
    on_fault: fn(WorkerError) -> OnFault,
    log: Arc<Mutex<Vec<Entry>>>,
}

impl ScriptedDesk {
    fn note(&self, entry: Entry) {
        self.log.lock().unwrap().push(entry);
    }
}

impl WorkerLink for ScriptedDesk {
    type ProgressProbe = PulseProbe;

    fn worker(&self) -> usize {
        0
    }

    fn collector(&self) -> CollectorId {
        CollectorId::next()
    }

    fn claim(&mut self) -> Option<Order> {
        let commands = self.commands.lock().unwrap().pop()?;
        self.ring.request().unwrap();
        let share = Share {
            steps: STEPS,
            random: false,
        };
        let part = self.ring.try_claim(0).unwrap()?;
        Some(Order::Fill(Assignment {
            part,
            share,
            commands,
        }))
    }

    fn answer(&mut self, _: Vec<u8>) {}

    fn newer_weights(&self, held: Option<i64>) -> Option<Published> {
        self.note(Entry::Weights { held });
        None
    }

    fn progress_probe(&self) -> PulseProbe {
        Pulse::default().begin()
    }

    fn recorder(&mut self) -> Option<Box<Recorder>> {
        None
    }

    fn take_recorder(&mut self, _: Box<Recorder>, _: bool) {}

    fn deliver(&mut self, part: Part, progress: Progress) {
        part.commit();
        // The consumer takes the slab, so that the next one may be filled.
        assert!(self.ring.try_next().is_some());
        self.note(Entry::Delivered(progress));
    }

    fn give_back(&mut self, _: Part, _: Progress) {
        self.note(Entry::GaveBack);
    }

    fn lose(&mut self, error: WorkerError) -> OnFault {
        self.note(Entry::Lost(error_chain(error.fault())));
        (self.on_fault)(error)
    }

    fn fail(&mut self, error: WorkerError) {
        self.note(Entry::Lost(error_chain(&error)));
    }
}

/// A worker of two CartPoles whose policy returns what `act` returns, and how often it was made
/// anew.
fn worker(
    commands: Vec<Commands>,
    act: fn() -> Result<(), PolicyError>,
    on_fault: fn(WorkerError) -> OnFault,
) -> (Worker<ScriptedDesk>, Arc<AtomicUsize>) {
    let env = make_vec("CartPole-v1", 2).unwrap();
    let spec = env.spec().clone();
    let columns = spec.action_leaves();
    let policy = move || {
        policy_fn(columns.clone(), move |_, mut actions| {
            actions.get_mut(Key::<i64>::new(0))?.fill(0);
            act()
        })
    };
    let record = RecordSpec {
        observation: spec.observation_leaves(),
        policy: spec.action_leaves(),
        next_only: spec.rewards.clone(),
        groups: spec.groups.clone(),
        traj_ids: true,
        policy_version: false,
        notes: 0,
    };
    let shares = Shares {
        steps: vec![STEPS],
        envs: 2,
        batched: true,
        order: PartOrder::Sequential,
    };
    let ring = RingSpec {
        order: RingOrder::ByWorker,
        workers: 1,
        ahead: 0,
        max_slabs: 2,
        cut_after: None,
        max_age: None,
    };
    let seeded = Restart::Seeded {
        seed: 0,
        same: false,
    };
    let made = Arc::new(AtomicUsize::new(0));
    let remade = Arc::clone(&made);
    let beginning = Beginning {
        total_envs: 2,
        seed: 0,
        first_episodes: seeded,
        options: CursorOptions::default(),
    };
    let worker = Worker {
        cursor: beginning.cursor(&spec, 0, 2).unwrap(),
        actor: Actor::new(
            Box::new(policy()),
            &Binding::new(&spec, 2),
            ExplorationType::Random,
        )
        .unwrap(),
        link: ScriptedDesk {
            ring: Ring::new(Layout::new(&record, shares).unwrap(), ring).unwrap(),
            commands: Arc::new(Mutex::new(commands)),
            on_fault,
            log: Arc::default(),
        },
        env,
        maker: WorkerFactory {
            service: None,
            worker: 0,
            config: Arc::default(),
            env: Arc::new(move || {
                remade.fetch_add(1, Ordering::Relaxed);
                Serial::from_fn(2, CartPole::v1)
            }),
            policy: PolicyRecipe::opaque(move |_| policy()),
            is_interruption: |_| false,
        },
    };
    (worker, made)
}

fn failing() -> Result<(), PolicyError> {
    Err(PolicyError::failed("no idea"))
}

#[test]
fn a_worker_executes_the_commands_of_its_link_and_reports_its_progress() {
    let resumed = Commands {
        restart: None,
        resume: Some(Resume {
            frame: 100,
            traj_id: 40,
            seed: 7,
        }),
    };
    let (worker, _) = worker(
        vec![resumed, Commands::default()],
        || Ok(()),
        |_| OnFault::Stop,
    );
    let log = Arc::clone(&worker.link.log);
    worker.run();
    let delivered = |next_frame, next_traj_id| {
        Entry::Delivered(Progress {
            version: 0,
            next_frame,
            next_traj_id,
        })
    };
    let expected = [
        Entry::Weights { held: Some(0) },
        delivered(5, 2),
        // A resumed worker takes weights of whatever version.
        Entry::Weights { held: None },
        delivered(105, 42),
    ];
    assert_eq!(*log.lock().unwrap(), expected);
}

#[test]
fn a_worker_reports_a_fault_once_its_part_is_given_back_and_is_replaced_if_its_desk_says_so() {
    let (mut worker, made) = worker(vec![Commands::default()], failing, |_| OnFault::Replace);
    let Some(Order::Fill(assignment)) = worker.link.claim() else {
        panic!("no part");
    };
    worker.fill(assignment).unwrap();
    let expected = [
        Entry::Weights { held: Some(0) },
        Entry::GaveBack,
        Entry::Lost("the policy failed: no idea".to_owned()),
    ];
    assert_eq!(*worker.link.log.lock().unwrap(), expected);
    assert_eq!(made.load(Ordering::Relaxed), 1);
}

#[test]
fn a_worker_whose_policy_cannot_be_made_anew_says_so() {
    let (mut worker, _) = worker(vec![Commands::default()], failing, |_| OnFault::Replace);
    worker.maker.policy = PolicyRecipe::named("absent");
    let Some(Order::Fill(assignment)) = worker.link.claim() else {
        panic!("no part");
    };
    worker.fill(assignment).unwrap();
    let log = worker.link.log.lock().unwrap();
    let Some(Entry::Lost(last)) = log.last() else {
        panic!("nothing was lost: {log:?}");
    };
    let expected = "worker 0: failed to start over: failed to set up the policy of worker 0: no policy is called \"absent\"";
    assert!(last.starts_with(expected), "{last}");
}

#[test]
fn an_interrupted_worker_returns_the_interruption_and_keeps_its_environments() {
    let (mut worker, made) = worker(vec![Commands::default()], failing, OnFault::Interrupted);
    let Some(Order::Fill(assignment)) = worker.link.claim() else {
        panic!("no part");
    };
    let interruption = worker.fill(assignment).unwrap_err();
    assert_eq!(
        error_chain(interruption.fault()),
        "the policy failed: no idea"
    );
    assert_eq!(made.load(Ordering::Relaxed), 0);
}
