//! Environments in processes: this very test program, run again.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use tensordict::TensorDict;
use windrow_collect::{
    AsyncBatchedCollector, Interrupt, MultiAsyncCollector, MultiSyncCollector, OnLoss, Parallel,
    ParallelEnvs, Placement, WorkerMain, WorkerProgram,
};
use windrow_env::testing::LedgerEnv;
use windrow_env::{
    AsyncEnvPool, CartPole, Env, EnvError, EnvFactory, EnvRecipe, EnvSpec, Outcome, Outcomes,
    PoolError, RecvOptions, Reset, VecEnv, VecEnvError,
};
use windrow_policy::{Head, NetworkPolicy, nn::Sequential};
use windrow_slab::{Key, Row, RowBlock, RowMut};

/// Not a test: what a process of the tests below runs.
#[test]
fn worker_entry() {
    prepare();
}

/// Has this program know the names that the tests use.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let main = WorkerMain::new().answer_calls(|call| match call {
            b"process" => std::process::id().to_string().into_bytes(),
            call => call.iter().rev().copied().collect(),
        });
        main.run(|registry| {
            registry.env("Text-v0", || LedgerEnv::from_seed().with_text())?;
            registry.env("Fails-v0", || {
                Fatal::new(|| Err(EnvError::failed("out of tea")))
            })?;
            registry.env("Panics-v0", || Fatal::new(|| panic!("out of coffee")))?;
            registry.env("Exits-v0", || Fatal::new(|| std::process::exit(3)))?;
            registry.env("Aborts-v0", || Fatal::new(|| std::process::abort()))?;
            registry.env("Freezes-v0", || {
                Fatal::new(|| {
                    loop {
                        thread::park();
                    }
                })
            })?;
            registry.env("Never-v0", || -> Result<CartPole, EnvError> {
                Err(EnvError::failed("no road"))
            })?;
            registry
                .envs
                .register_vec_with("Nested-v0", |of: String, num_envs| {
                    parallel([&of; 2]).build(num_envs)
                })?;
            Ok(())
        })
        .unwrap();
    });
}

/// A CartPole that does something bad in its third step.
struct Fatal {
    env: CartPole,
    steps: usize,
    act: fn() -> Result<(), EnvError>,
}

impl Fatal {
    fn new(act: fn() -> Result<(), EnvError>) -> Self {
        let (env, steps) = (CartPole::new(), 0);
        Self { env, steps, act }
    }
}

impl Env for Fatal {
    fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.env.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.steps += 1;
        if self.steps == 3 {
            eprintln!("the kettle is empty");
            (self.act)()?;
        }
        self.env.step(action, obs)
    }
}

fn program() -> WorkerProgram {
    let mut program = WorkerProgram::current();
    program.args = ["--exact", "worker_entry", "--nocapture"]
        .map(Into::into)
        .to_vec();
    program
}

fn parallel<'a>(ids: impl IntoIterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>) -> Parallel {
    let ids = ids.into_iter().map(|id| id.as_ref().to_owned());
    Parallel::of(ids.collect::<Vec<_>>())
        .unwrap()
        .worker_program(program())
        .shutdown_timeout(Duration::from_secs(5))
}

/// Environments, with rows to step them by hand.
struct Driver<V> {
    envs: V,
    actions: RowBlock,
    obs: RowBlock,
    reward: Vec<f32>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
}

impl<V: VecEnv> Driver<V> {
    fn new(envs: V) -> Self {
        let count = envs.num_envs();
        Self {
            actions: RowBlock::new(&envs.spec().action_leaves(), count).unwrap(),
            obs: RowBlock::new(&envs.spec().observation_leaves(), count).unwrap(),
            reward: vec![0.0; count],
            terminated: vec![false; count],
            truncated: vec![false; count],
            envs,
        }
    }

    fn reset(&mut self, resets: &[(usize, Option<u64>)]) -> Result<(), VecEnvError> {
        let resets = resets.iter().map(|&(env, seed)| Reset { env, seed });
        let resets: Vec<_> = resets.collect();
        self.envs.reset(&resets, self.obs.rows_mut())
    }

    fn step(&mut self, actions: &[i64]) -> Result<(), VecEnvError> {
        let all: Vec<_> = (0..actions.len()).collect();
        self.step_some(&all, actions)
    }

    fn step_some(&mut self, which: &[usize], actions: &[i64]) -> Result<(), VecEnvError> {
        let mut rows = self.actions.rows_mut();
        rows.get_mut(Key::new(0)).unwrap().copy_from_slice(actions);
        let outcomes = Outcomes {
            reward: &mut self.reward,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
        };
        let (actions, obs) = (self.actions.rows(), self.obs.rows_mut());
        match which.len() == self.envs.num_envs() {
            true => self.envs.step(actions, obs, outcomes),
            false => self.envs.step_some(which, actions, obs, outcomes),
        }
    }

    fn observed(&self) -> Vec<u32> {
        let observed = self.obs.rows().get::<f32>(Key::new(0)).unwrap();
        observed.iter().map(|value| value.to_bits()).collect()
    }
}

/// Observations, rewards and both flags.
type Seen = (Vec<u32>, Vec<f32>, Vec<bool>, Vec<bool>);

/// Everything that 300 steps show.
fn played(envs: impl VecEnv) -> Vec<Seen> {
    let mut driver = Driver::new(envs);
    let count = driver.reward.len();
    let all: Vec<_> = (0..count).map(|env| (env, Some(7 + env as u64))).collect();
    driver.reset(&all).unwrap();
    let mut seen = Vec::new();
    for step in 0..300 {
        let actions: Vec<_> = (0..count)
            .map(|env| ((step * 7 + env * 3) % 5 % 2) as i64)
            .collect();
        driver.step(&actions).unwrap();
        let flags = (driver.terminated.clone(), driver.truncated.clone());
        seen.push((driver.observed(), driver.reward.clone(), flags.0, flags.1));
        let ended = (0..count).filter(|&env| driver.terminated[env] || driver.truncated[env]);
        let ended: Vec<_> = ended.map(|env| (env, None)).collect();
        driver.reset(&ended).unwrap();
        seen.push((driver.observed(), Vec::new(), Vec::new(), Vec::new()));
    }
    seen
}

fn failure<T>(of: Result<T, EnvError>) -> String {
    of.err().unwrap().to_string()
}

/// Whether process `pid` is there and no zombie.
fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    Path::new(&format!("/proc/{pid}")).exists() && !status.contains("State:\tZ")
}

fn pids(envs: &ParallelEnvs) -> Vec<u32> {
    envs.handle()
        .pids()
        .unwrap()
        .into_iter()
        .flatten()
        .collect()
}

fn awaited(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn steps_are_those_of_environments_in_this_process() {
    let expected = played("CartPole-v1".build(3).unwrap());
    assert!(
        expected
            .iter()
            .any(|(_, _, terminated, _)| terminated.contains(&true))
    );
    assert_eq!(
        played(parallel(["CartPole-v1"; 3]).start().unwrap()),
        expected
    );
    // Vectors as members.
    let pair = EnvRecipe::of("CartPole-v1").with_num_envs(2);
    let pairs = Parallel::new(2, pair).unwrap().worker_program(program());
    assert_eq!(
        played(pairs.start().unwrap()),
        played("CartPole-v1".build(4).unwrap())
    );
}

#[test]
fn text_of_members_is_that_of_environments_in_this_process() {
    let mut driver = Driver::new(parallel(["Text-v0"; 2]).start().unwrap());
    let seen = |driver: &Driver<ParallelEnvs>| {
        let rows = driver.obs.rows();
        let numbers = rows.get::<i64>(Key::new(0)).unwrap();
        for (text, record) in rows
            .strings(Key::new(1))
            .unwrap()
            .iter()
            .zip(numbers.chunks(3))
        {
            let expected = LedgerEnv::text(record.try_into().unwrap());
            assert_eq!(String::from_utf8_lossy(text), expected);
        }
        numbers.to_vec()
    };
    driver.reset(&[(0, Some(5)), (1, Some(6))]).unwrap();
    let mut all = vec![seen(&driver)];
    for _ in 0..300 {
        driver.step(&[0; 2]).unwrap();
        all.push(seen(&driver));
        // The row of the other stays as it is.
        let ended = (0..2).filter(|&env| driver.terminated[env] || driver.truncated[env]);
        let ended: Vec<_> = ended.map(|env| (env, None)).collect();
        driver.reset(&ended).unwrap();
        all.push(seen(&driver));
    }
    let longest = all
        .iter()
        .map(|numbers| LedgerEnv::text(numbers[..3].try_into().unwrap()).len());
    assert!(longest.max().unwrap() > 10_000);
}

#[test]
fn some_step_without_the_others() {
    let mut driver = Driver::new(parallel(["CartPole-v1"; 3]).start().unwrap());
    let width = driver.observed().len() / 3;
    driver
        .reset(&[0, 1, 2].map(|env| (env, Some(env as u64))))
        .unwrap();
    let first = driver.observed();
    driver.step_some(&[1, 2], &[0; 3]).unwrap();
    let second = driver.observed();
    assert_eq!(second[..width], first[..width]);
    for env in [1, 2] {
        let own = env * width..(env + 1) * width;
        assert_ne!(second[own.clone()], first[own]);
    }
    driver.step_some(&[0], &[0; 3]).unwrap();
    assert_eq!(driver.observed()[width..], second[width..]);
    assert_ne!(driver.observed()[..width], first[..width]);
    driver.step(&[0; 3]).unwrap();
    assert_ne!(driver.observed()[width..], second[width..]);
}

#[test]
fn a_collector_takes_them_as_any_environments() {
    let batches = |builder: windrow_collect::CollectorBuilder| {
        let builder = builder
            .num_workers(2)
            .frames_per_batch(240)
            .total_frames(720);
        let mut collector = builder.seed(3).track_traj_ids(true).build().unwrap();
        let batches = collector.by_ref().map(|batch| batch.unwrap().detach());
        batches.collect::<Vec<_>>()
    };
    let expected = batches(MultiSyncCollector::builder("CartPole-v1").num_envs(3));
    let of = parallel(["CartPole-v1"; 3]);
    for placement in [Placement::Inline, Placement::Threads] {
        let got = batches(MultiSyncCollector::builder(of.clone()).placement(placement));
        assert_eq!(got.len(), 3);
        for (got, expected) in got.iter().zip(&expected) {
            assert!(got.same_bits(expected), "{placement:?}");
        }
    }
}

#[test]
fn a_server_acts_for_environments_in_processes_as_for_any_others() {
    let net = Sequential::new().linear(4, 16).tanh().linear(16, 2).seed(1);
    let policy = NetworkPolicy::new(net, Head::Categorical);
    let batches = |builder: windrow_collect::CollectorBuilder| {
        let builder = builder.num_workers(3).policy(policy.clone()).seed(3);
        let builder = builder.frames_per_batch(40).total_frames(1200);
        let mut collector = builder.build().unwrap();
        let batches = collector.by_ref().map(|batch| batch.unwrap().detach());
        let batches = batches.collect::<Vec<_>>();
        collector.shutdown().unwrap();
        batches
    };
    let served = batches(AsyncBatchedCollector::builder(parallel(["CartPole-v1"; 2])));
    let local = batches(MultiAsyncCollector::builder("CartPole-v1").num_envs(2));
    // Workers come in any order, and so often as they like; what each collects does not depend on
    // that.
    let mut common = 0;
    for worker in 0..3 {
        let of = |batches: &[TensorDict]| {
            let its = |batch: &&TensorDict| {
                let ids = batch.get(("collector", "traj_ids")).unwrap();
                ids.to_vec::<i64>().unwrap()[0] % 6 / 2 == worker
            };
            batches.iter().filter(its).cloned().collect::<Vec<_>>()
        };
        for (served, local) in of(&served).iter().zip(&of(&local)) {
            assert!(served.same_bits(local), "worker {worker}");
            common += 1;
        }
    }
    assert!(common > 0 && served.len() == 30, "{common}");
    // One that ends is a fault of its worker, and of no other.
    let ends = ["CartPole-v1", "Exits-v0", "CartPole-v1"].map(|id| parallel([id]));
    let mut collector = AsyncBatchedCollector::builder("CartPole-v1")
        .worker_envs(ends)
        .on_loss(OnLoss::Continue)
        .frames_per_batch(10)
        .total_frames(400)
        .build()
        .unwrap();
    let frames: usize = collector.by_ref().map(|batch| batch.unwrap().numel()).sum();
    assert_eq!((frames, collector.stats().workers_alive), (400, 2));
    let lost = collector.take_losses();
    assert_eq!((lost.len(), lost[0].worker()), (1, 1));
    collector.shutdown().unwrap();
}

#[test]
fn processes_of_a_worker_in_a_process_end_with_it() {
    let nested = EnvRecipe::of("Nested-v0")
        .with_arguments(&"CartPole-v1")
        .unwrap();
    let mut collector = MultiSyncCollector::builder(nested)
        .placement(Placement::Processes)
        .worker_program(program())
        .num_workers(2)
        .frames_per_batch(80)
        .build()
        .unwrap();
    let batch = collector.next().unwrap().unwrap();
    assert_eq!(batch.batch_size(), &[4, 20]);
    drop(batch);
    let workers: Vec<u32> = collector
        .worker_stats()
        .iter()
        .filter_map(|worker| worker.pid)
        .collect();
    let children = |pid: u32| -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        // A thread that has ended meanwhile has none.
        let lists = tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
        let lists: Vec<String> = lists.collect();
        lists
            .concat()
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect()
    };
    let members: Vec<u32> = workers.iter().flat_map(|&pid| children(pid)).collect();
    assert_eq!((workers.len(), members.len()), (2, 4));
    // One worker is killed, the other ends as it should.
    let kill = std::process::Command::new("kill")
        .args(["-9", &workers[0].to_string()])
        .status();
    assert!(kill.unwrap().success());
    assert!(collector.next().unwrap().is_err());
    drop(collector);
    awaited("members outlive their workers", || {
        !members.iter().any(|&pid| is_alive(pid))
    });
}

#[test]
fn a_member_that_fails_is_named_and_lives_on() {
    let mut driver = Driver::new(parallel(["CartPole-v1", "Fails-v0"]).start().unwrap());
    let before = pids(&driver.envs);
    driver.reset(&[(0, Some(1)), (1, Some(2))]).unwrap();
    driver.step(&[0, 1]).unwrap();
    driver.step(&[1, 0]).unwrap();
    let error = driver.step(&[0, 1]).unwrap_err();
    assert_eq!(
        (error.env, error.to_string().as_str()),
        (1, "environment 1: out of tea")
    );
    driver.reset(&[(0, None), (1, None)]).unwrap();
    driver.step(&[0, 0]).unwrap();
    assert_eq!(pids(&driver.envs), before);
}

#[test]
fn a_member_that_dies_is_named_with_its_end_and_its_last_words() {
    for (id, end) in [
        ("Exits-v0", "exit status 3"),
        ("Aborts-v0", "signal 6 (SIGABRT)"),
        ("Panics-v0", "panicked: out of coffee"),
    ] {
        let mut driver = Driver::new(
            parallel(["CartPole-v1", "CartPole-v1", id])
                .start()
                .unwrap(),
        );
        let members = pids(&driver.envs);
        driver.reset(&[(0, None), (1, None), (2, None)]).unwrap();
        driver.step(&[0, 1, 0]).unwrap();
        driver.step(&[0, 1, 0]).unwrap();
        let error = driver.step(&[0, 1, 0]).unwrap_err();
        assert_eq!(error.env, 2, "{error}");
        assert!(error.to_string().contains(end), "{error}");
        if id != "Panics-v0" {
            assert!(error.to_string().contains("it was in `step`"), "{error}");
            assert!(error.to_string().contains("the kettle is empty"), "{error}");
        }
        awaited("the member lives", || !is_alive(members[2]));
        let mut again = || driver.reset(&[(0, None)]);
        awaited("nobody tells of the death", || again().is_err());
        let error = again().unwrap_err();
        assert_eq!(error.env, 2);
        assert!(error.to_string().contains("make others"), "{error}");
        driver.envs.handle().close().unwrap();
        assert!(
            driver
                .step(&[0, 1, 0])
                .unwrap_err()
                .to_string()
                .contains("closed")
        );
        assert!(!members.iter().any(|&pid| is_alive(pid)));
    }
}

#[test]
fn what_cannot_start_is_refused_and_leaves_no_process() {
    prepare();
    assert_eq!(
        failure(parallel(["CartPole-v1", "Never-v0"]).start()),
        "environment 1: no road"
    );
    let unknown = failure(parallel(["CartPole-v1", "CartPole-v1", "Nowhere"]).start());
    assert!(
        unknown.starts_with("environment 2: no environment is called \"Nowhere\""),
        "{unknown}"
    );
    let unlike = failure(parallel(["CartPole-v1", "Pendulum-v1"]).start());
    assert!(unlike.starts_with("environment 1: "), "{unlike}");
    assert!(failure(Parallel::new(2, CartPole::v1)).contains("function or closure"));
    assert!(failure(Parallel::new(0, "CartPole-v1")).contains("at least one"));
    assert!(failure(parallel(["CartPole-v1"; 2]).build(3)).contains("already a vector of 2"));
    let pair = EnvRecipe::of("CartPole-v1").with_num_envs(2);
    let uneven = Parallel::of([EnvRecipe::of("CartPole-v1"), pair]).unwrap();
    let uneven = failure(uneven.worker_program(program()).start());
    assert!(
        uneven.contains("worker 0 has 1, worker 1 has 2"),
        "{uneven}"
    );
}

#[test]
fn members_answer_between_two_steps_and_close_once() {
    let mut driver = Driver::new(parallel(["CartPole-v1"; 2]).start().unwrap());
    let (handle, members) = (driver.envs.handle(), pids(&driver.envs));
    for (member, pid) in members.iter().enumerate() {
        let process = handle.call(member, b"process").unwrap();
        assert_eq!(process, pid.to_string().into_bytes());
    }
    driver.reset(&[(0, None), (1, None)]).unwrap();
    assert_eq!(handle.call(1, b"abc").unwrap(), b"cba");
    driver.step(&[0, 1]).unwrap();
    assert!(failure(handle.call(2, b"")).contains("member 2 does not exist: there are 2"));
    for _ in 0..2 {
        handle.close().unwrap();
        assert!(!members.iter().any(|&pid| is_alive(pid)));
    }
    assert!(failure(handle.call(0, b"")).contains("closed"));
    drop(driver);
    assert!(!handle.is_open());
    handle.close().unwrap();
}

#[test]
fn a_wait_can_be_interrupted_and_frozen_members_are_killed() {
    static CANCELLED: AtomicBool = AtomicBool::new(false);
    let cancelled = Interrupt::when(|| CANCELLED.load(Ordering::Relaxed));
    let frozen = parallel(["CartPole-v1", "Freezes-v0"]).interrupt(cancelled);
    let mut driver = Driver::new(frozen.start().unwrap());
    let members = pids(&driver.envs);
    driver.reset(&[(0, None), (1, None)]).unwrap();
    driver.step(&[0, 1]).unwrap();
    driver.step(&[0, 1]).unwrap();
    let begun = Arc::new(Barrier::new(2));
    let there = Arc::clone(&begun);
    let cancelling = thread::spawn(move || {
        there.wait();
        CANCELLED.store(true, Ordering::Relaxed);
    });
    begun.wait();
    let error = driver.step(&[0, 1]).unwrap_err().to_string();
    assert!(error.contains("cancelled"), "{error}");
    cancelling.join().unwrap();
    drop(driver);
    assert!(!members.iter().any(|&pid| is_alive(pid)));
}

/// Two members, of which the second fails in its third step, after the steps before.
fn before_a_loss(bad: &str, parallel: impl FnOnce(Parallel) -> Parallel) -> Driver<ParallelEnvs> {
    let envs = parallel(self::parallel(["CartPole-v1", bad]));
    let mut driver = Driver::new(envs.start().unwrap());
    driver.reset(&[(0, Some(1)), (1, Some(2))]).unwrap();
    driver.step(&[0, 1]).unwrap();
    driver.step(&[0, 1]).unwrap();
    driver
}

#[test]
fn environments_outlive_members_that_die_or_freeze_and_others_take_their_places() {
    for (bad, end) in [
        ("Exits-v0", "its process ended with exit status 3"),
        ("Freezes-v0", "step_timeout=0.3 s"),
    ] {
        let timeout = Duration::from_millis(300);
        let mut driver = before_a_loss(bad, |envs| envs.step_timeout(timeout).outlives());
        let handle = driver.envs.handle();
        assert!(handle.take_losses().unwrap().is_empty());
        driver.step(&[0, 1]).unwrap();
        assert_eq!(driver.reward, [1.0, 0.0]);
        assert_eq!(driver.truncated, [false, true]);
        let losses = handle.take_losses().unwrap();
        let [(1, error)] = &losses[..] else {
            panic!("{losses:?}");
        };
        assert!(error.to_string().contains(end), "{error}");
        assert!(driver.step(&[0, 1]).is_err(), "nothing is in its place yet");
        handle.replace(1).unwrap();
        driver.reset(&[(1, Some(3))]).unwrap();
        driver.step(&[0, 1]).unwrap();
        assert_eq!(driver.truncated, [false, false]);
        assert!(handle.take_losses().unwrap().is_empty());
    }
}

#[test]
fn a_member_that_is_silent_is_reported_once_by_its_number() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&lines);
    let report = move |line: &str| {
        kept.lock().unwrap().push(line.to_owned());
        Ok::<(), String>(())
    };
    let mut driver = before_a_loss("Freezes-v0", |envs| {
        envs.step_timeout(Duration::from_millis(600))
            .counted_from(4)
            .interrupt(Interrupt::never().reporting(Duration::from_millis(50), report))
    });
    assert!(driver.step(&[0, 1]).is_err());
    let lines = lines.lock().unwrap();
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    let begin = "worker 5, environment 5: no call of its environment or policy has returned for";
    assert!(line.starts_with(begin), "{line}");
}

/// A pool of one member each, and the processes. The flag cancels waits.
fn pool(ids: &[&str], cancelled: &Arc<AtomicBool>) -> (AsyncEnvPool, Vec<u32>) {
    let start = |id: &&str| {
        let cancelled = Arc::clone(cancelled);
        let interrupt = Interrupt::when(move || cancelled.load(Ordering::Relaxed));
        parallel([id]).interrupt(interrupt).start().unwrap()
    };
    let started: Vec<_> = ids.iter().map(start).collect();
    let pids = started.iter().flat_map(pids).collect();
    let boxed = |envs: ParallelEnvs| Box::new(envs) as Box<dyn VecEnv>;
    let envs = started.into_iter().map(boxed).collect();
    (AsyncEnvPool::new(envs, ids.len()).unwrap(), pids)
}

#[test]
fn a_pool_steps_processes_as_any_environments() {
    let all = [0, 1, 2].map(|env| Reset {
        env,
        seed: Some(9 + env as u64),
    });
    let play = |pool: &AsyncEnvPool| {
        drop(pool.reset(&all).unwrap());
        let mut seen: Vec<Vec<u32>> = vec![Vec::new(); 3];
        let mut ready = vec![0, 1, 2];
        for step in 0..100 {
            let fill = |_: usize, mut rows: windrow_slab::RowsMut<'_>| {
                rows.get_mut(Key::<i64>::new(0))?[0] = i64::from(step % 3 == 0);
                Ok(())
            };
            pool.async_step_and_maybe_reset_send_with(&ready, fill)
                .unwrap();
            ready.clear();
            // The first one, and then the others, so that each takes as many steps.
            for want in [
                RecvOptions::at_least(1).at_most(1),
                RecvOptions::at_least(2),
            ] {
                for answer in pool.async_step_and_maybe_reset_recv(want).unwrap().iter() {
                    let rows = answer.root().get::<f32>(Key::new(0)).unwrap();
                    seen[answer.env()].extend(rows.iter().map(|value| value.to_bits()));
                    ready.push(answer.env());
                }
            }
        }
        seen
    };
    let (processes, pids) = pool(&["CartPole-v1"; 3], &Arc::default());
    let expected = play(&AsyncEnvPool::of(&["CartPole-v1"; 3], 1).unwrap());
    assert_eq!(play(&processes), expected);
    processes.async_reset_send(&all).unwrap();
    drop(processes);
    assert!(!pids.iter().any(|&pid| is_alive(pid)));
}

#[test]
fn a_pool_names_the_process_that_fails_dies_or_freezes() {
    let cancelled = Arc::<AtomicBool>::default();
    let (pool, pids) = pool(
        &["CartPole-v1", "Exits-v0", "Freezes-v0", "Fails-v0"],
        &cancelled,
    );
    let all = [0, 1, 2, 3].map(|env| Reset { env, seed: None });
    drop(pool.reset(&all).unwrap());
    let actions = RowBlock::new(&pool.spec().action_leaves(), 4).unwrap();
    for _ in 0..2 {
        assert_eq!(pool.step(actions.rows()).unwrap().len(), 4);
    }
    pool.async_step_send(&[0, 1, 2, 3], actions.rows()).unwrap();
    let mut faults = [1, 3].map(|env| {
        pool.async_step_recv(RecvOptions::of(env))
            .unwrap_err()
            .to_string()
    });
    faults.sort();
    assert!(
        faults[0].starts_with("environment 1: its process ended with exit status 3"),
        "{faults:?}"
    );
    assert_eq!(faults[1], "environment 3: out of tea");
    assert_eq!(
        pool.async_step_recv(RecvOptions::at_least(1))
            .unwrap()
            .len(),
        1
    );
    // The one that raised goes on; the death is told again.
    pool.async_reset_send(&[all[1], all[3]]).unwrap();
    assert_eq!(pool.async_reset_recv(RecvOptions::of(3)).unwrap().len(), 1);
    let error = pool
        .async_reset_recv(RecvOptions::of(1))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("environment 1: its process ended"),
        "{error}"
    );
    let stuck = pool.shutdown(Duration::from_millis(50)).unwrap_err();
    assert!(
        matches!(&stuck, PoolError::Stuck { envs, .. } if envs == &[2]),
        "{stuck}"
    );
    cancelled.store(true, Ordering::Relaxed);
    pool.shutdown(Duration::from_secs(60)).unwrap();
    assert!(!pids.iter().any(|&pid| is_alive(pid)));
}
