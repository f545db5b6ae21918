//! Environments that run free.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use windrow_env::testing::{FailAt, FailingEnv, Failure, LedgerEnv};
use windrow_env::{
    AsyncEnvPool, CartPole, Command, Env, EnvError, EnvSpec, Interrupt, Outcome, Outcomes,
    Pendulum, PoolError, PoolOutput, RecvOptions, Reset, Serial, VecEnv,
};
use windrow_slab::{Key, Row, RowBlock, RowMut};

const LONG: Duration = Duration::from_secs(60);

fn serial<E: Env + 'static>(envs: impl IntoIterator<Item = E>) -> Box<dyn VecEnv> {
    Box::new(Serial::new(envs.into_iter().collect()).unwrap())
}

/// A ledger of long episodes.
fn ledger(env: i64) -> LedgerEnv {
    LedgerEnv::new(env).with_max_length(10_000)
}

/// Ledgers numbered from 0 on, each a member of its own.
fn ledgers(count: i64) -> Vec<Box<dyn VecEnv>> {
    (0..count).map(|env| serial([ledger(env)])).collect()
}

fn cartpoles(count: usize, threads: usize) -> AsyncEnvPool {
    AsyncEnvPool::of(&vec!["CartPole-v1"; count], threads).unwrap()
}

fn resets(envs: impl IntoIterator<Item = usize>) -> Vec<Reset> {
    let seeded = |env| Reset {
        env,
        seed: Some(7 + env as u64),
    };
    envs.into_iter().map(seeded).collect()
}

fn envs(received: &PoolOutput<'_>) -> Vec<usize> {
    received.iter().map(|answer| answer.env()).collect()
}

/// Steps by hand: the action of environment `env` in step `step`.
fn action(env: usize, step: usize) -> i64 {
    ((env * 7 + step * 3) % 5 > 2).into()
}

fn send_steps(pool: &AsyncEnvPool, members: &[usize], step: usize) -> Result<(), PoolError> {
    let fill = |place: usize, mut rows: windrow_slab::RowsMut<'_>| {
        let rows = rows.get_mut(Key::<i64>::new(0))?;
        for (row, to) in rows.iter_mut().enumerate() {
            *to = action(members[place] + row, step);
        }
        Ok(())
    };
    pool.async_step_send_with(members, fill)
}

/// What was observed before a reset, what the next action is for, reward, terminated, truncated.
type Frame = (Vec<f32>, Vec<f32>, f32, bool, bool);

fn frames(received: &PoolOutput<'_>) -> Vec<(usize, Frame)> {
    let seen = |rows: windrow_slab::Rows<'_>| rows.get(Key::<f32>::new(0)).unwrap().to_vec();
    let frame = |answer: windrow_env::Answer<'_>| {
        let outcome = (
            answer.reward()[0],
            answer.terminated()[0],
            answer.truncated()[0],
        );
        let frame = (
            seen(answer.observation()),
            seen(answer.root()),
            outcome.0,
            outcome.1,
            outcome.2,
        );
        (answer.env(), frame)
    };
    received.iter().map(frame).collect()
}

/// The same frames from environments that are stepped directly.
fn directly(env: usize, steps: usize) -> Vec<Frame> {
    let mut envs = Serial::new(vec![CartPole::v1()]).unwrap();
    let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 1).unwrap();
    let mut actions = RowBlock::new(&envs.spec().action_leaves(), 1).unwrap();
    let seen = |obs: &RowBlock| obs.rows().get(Key::<f32>::new(0)).unwrap().to_vec();
    let reset = |seed| [Reset { env: 0, seed }];
    envs.reset(&reset(Some(7 + env as u64)), obs.rows_mut())
        .unwrap();
    let mut frames = vec![(seen(&obs), seen(&obs), 0.0, false, false)];
    for step in 0..steps {
        actions.rows_mut().get_mut(Key::<i64>::new(0)).unwrap()[0] = action(env, step);
        let (mut reward, mut terminated, mut truncated) = ([0.0], [false], [false]);
        let outcomes = Outcomes {
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
        };
        envs.step(actions.rows(), obs.rows_mut(), outcomes).unwrap();
        let next = seen(&obs);
        if terminated[0] || truncated[0] {
            envs.reset(&reset(None), obs.rows_mut()).unwrap();
        }
        frames.push((next, seen(&obs), reward[0], terminated[0], truncated[0]));
    }
    frames
}

#[test]
fn episodes_are_those_of_environments_stepped_directly() {
    const ENVS: usize = 5;
    const STEPS: usize = 120;
    let expected: Vec<_> = (0..ENVS).map(|env| directly(env, STEPS)).collect();
    assert!(
        expected.iter().flatten().any(|frame| frame.3),
        "episodes end"
    );
    for (threads, at_least) in [(1, 1), (2, 3), (ENVS, 1), (ENVS, ENVS)] {
        let pool = cartpoles(ENVS, threads);
        let mut got = vec![Vec::new(); ENVS];
        pool.async_reset_send(&resets(0..ENVS)).unwrap();
        let first = pool.async_reset_recv(RecvOptions::at_least(ENVS)).unwrap();
        frames(&first)
            .into_iter()
            .for_each(|(env, frame)| got[env].push(frame));
        drop(first);
        let mut ready: Vec<usize> = (0..ENVS).collect();
        let mut going = ENVS;
        while going > 0 {
            let fill = |place: usize, mut rows: windrow_slab::RowsMut<'_>| {
                let env: usize = ready[place];
                rows.get_mut(Key::<i64>::new(0))?[0] = action(env, got[env].len() - 1);
                Ok(())
            };
            pool.async_step_and_maybe_reset_send_with(&ready, fill)
                .unwrap();
            let want = RecvOptions::at_least(at_least.min(going));
            let received = pool.async_step_and_maybe_reset_recv(want).unwrap();
            frames(&received)
                .into_iter()
                .for_each(|(env, frame)| got[env].push(frame));
            ready = envs(&received);
            ready.retain(|&env| got[env].len() <= STEPS);
            going = got.iter().filter(|frames| frames.len() <= STEPS).count();
        }
        assert_eq!(got, expected, "{threads} threads, at least {at_least}");
    }
}

#[test]
fn all_can_be_reset_and_stepped_at_once() {
    let pool = AsyncEnvPool::new(ledgers(3), 2).unwrap();
    let actions = RowBlock::new(&pool.spec().action_leaves(), 3).unwrap();
    let seen = |received: PoolOutput<'_>| -> Vec<i64> {
        let rows = received
            .iter()
            .map(|answer| answer.root().get(Key::<i64>::new(0)).unwrap().to_vec());
        rows.collect::<Vec<_>>().concat()
    };
    let all = pool.reset(&resets(0..3)).unwrap();
    assert_eq!(seen(all), [0, 0, 0, 1, 0, 0, 2, 0, 0]);
    assert_eq!(
        seen(pool.step(actions.rows()).unwrap()),
        [0, 0, 1, 1, 0, 1, 2, 0, 1]
    );
    let again = [Reset { env: 1, seed: None }];
    assert_eq!(seen(pool.reset(&again).unwrap()), [1, 1, 0]);
    let after = pool.step_and_maybe_reset(actions.rows()).unwrap();
    assert_eq!(seen(after), [0, 0, 2, 1, 1, 1, 2, 0, 2]);
    let few = RowBlock::new(&pool.spec().action_leaves(), 2).unwrap();
    let error = pool.step(few.rows()).unwrap_err().to_string();
    assert_eq!(
        error,
        "expected a row of actions for each of 3 environments, got 2"
    );
}

#[test]
fn calls_out_of_order_say_which_was_expected() {
    let pool = cartpoles(3, 3);
    let told = |result: Result<(), PoolError>| result.unwrap_err().to_string();
    let received =
        |result: Result<PoolOutput<'_>, PoolError>| result.map(drop).unwrap_err().to_string();
    let one = RecvOptions::at_least(1);
    assert_eq!(
        told(send_steps(&pool, &[1], 0)),
        "environment 1: expected async_reset_send and async_reset_recv, since it was never reset, got async_step_send"
    );
    assert_eq!(
        received(pool.async_reset_recv(one)),
        "async_reset_recv waits for 1, expected as many told by async_reset_send, got 0"
    );
    pool.async_reset_send(&resets(0..2)).unwrap();
    assert_eq!(
        told(send_steps(&pool, &[0], 0)),
        "environment 0: expected async_reset_recv, since async_reset_send was called, got async_step_send"
    );
    assert_eq!(
        told(pool.async_reset_send(&resets([2, 1]))),
        "environment 1: expected async_reset_recv, since async_reset_send was called, got async_reset_send"
    );
    assert_eq!(
        received(pool.async_step_recv(one)),
        "async_step_recv waits for 1, expected as many told by async_step_send, got 0; environment 0 was told by async_reset_send"
    );
    assert_eq!(
        received(pool.async_reset_recv(RecvOptions::at_least(3))),
        "async_reset_recv waits for 3, expected as many told by async_reset_send, got 2"
    );
    assert_eq!(
        received(pool.async_step_and_maybe_reset_recv(RecvOptions::of(1))),
        "environment 1: expected async_reset_recv, since async_reset_send was called, got async_step_and_maybe_reset_recv"
    );
    assert_eq!(
        received(pool.async_reset_recv(RecvOptions::of(2))),
        "environment 2: expected a send first, since it was told nothing, got async_reset_recv"
    );
    assert_eq!(
        received(pool.async_reset_recv(RecvOptions::at_least(2).at_most(1))),
        "expected from 1 to max_get environments, got min_get=2 and max_get=1"
    );
    assert!(matches!(
        pool.async_reset_recv(RecvOptions::at_least(0)),
        Err(PoolError::Bounds { .. })
    ));
    let held = pool.async_reset_recv(RecvOptions::at_least(2)).unwrap();
    assert_eq!(
        told(send_steps(&pool, &[1], 0)),
        "environment 1: expected its results to be dropped before async_step_send"
    );
    drop(held);
    assert_eq!(
        told(send_steps(&pool, &[0, 1, 0], 0)),
        "environment 0 is named twice in one call"
    );
    assert_eq!(
        told(pool.async_reset_send(&resets([2, 2]))),
        "environment 2 is named twice in one call"
    );
    assert_eq!(
        told(send_steps(&pool, &[3], 0)),
        "expected an environment from 0 to 2, got 3"
    );
    assert!(matches!(
        pool.async_reset_recv(RecvOptions::of(3)),
        Err(PoolError::NoSuchEnv { .. })
    ));
    // Nothing of what was refused was sent.
    send_steps(&pool, &[1, 0], 0).unwrap();
    assert_eq!(
        envs(&pool.async_step_recv(RecvOptions::at_least(2)).unwrap()),
        [0, 1]
    );
}

/// Waits in each step for a message, and says that it has begun.
struct Gated {
    env: CartPole,
    begun: SyncSender<()>,
    gate: Receiver<()>,
}

impl Env for Gated {
    fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.env.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.begun.send(()).map_err(EnvError::failed)?;
        self.gate.recv().map_err(EnvError::failed)?;
        self.env.step(action, obs)
    }
}

/// CartPoles, the first of which waits in its steps; what opens its gate; what says that it has
/// begun a step.
fn gated(count: usize) -> (AsyncEnvPool, SyncSender<()>, Receiver<()>) {
    let ((open, gate), (begun, has_begun)) = (sync_channel(9), sync_channel(9));
    // Without the time limit, its spec is a bare CartPole's, as those of the others.
    let env = CartPole::new();
    let mut envs = vec![serial([Gated { env, begun, gate }])];
    envs.extend((1..count).map(|_| serial([CartPole::new()])));
    (AsyncEnvPool::new(envs, count).unwrap(), open, has_begun)
}

#[test]
fn the_first_that_are_done_are_received_first() {
    let (pool, open, has_begun) = gated(4);
    pool.reset(&resets(0..4)).unwrap();
    send_steps(&pool, &[0, 1, 2, 3], 0).unwrap();
    has_begun.recv().unwrap();
    // The others go on without it.
    for step in 1..5 {
        assert_eq!(
            envs(&pool.async_step_recv(RecvOptions::at_least(3)).unwrap()),
            [1, 2, 3]
        );
        send_steps(&pool, &[1, 2, 3], step).unwrap();
    }
    let late = RecvOptions::at_least(4).within(Duration::from_millis(1));
    let error = pool.async_step_recv(late).unwrap_err();
    assert!(
        matches!(error, PoolError::TimedOut { min: 4, timeout, .. } if timeout == Duration::from_millis(1))
    );
    assert!(matches!(
        pool.async_step_recv(RecvOptions::of(0).within(Duration::ZERO)),
        Err(PoolError::TimedOut { got: 0, .. })
    ));
    open.send(()).unwrap();
    let whole = pool
        .async_step_recv(RecvOptions::at_least(1).within(LONG))
        .unwrap();
    assert_eq!(
        envs(&whole),
        [0, 1, 2, 3],
        "it waits for more within its time, and nothing was lost"
    );
}

#[test]
fn nobody_starves() {
    // One thread does what it is told in this order.
    let pool = cartpoles(4, 1);
    pool.reset(&resets(0..4)).unwrap();
    send_steps(&pool, &[2, 0, 3, 1], 0).unwrap();
    let mut order = Vec::new();
    for step in 1..9 {
        let received = pool
            .async_step_recv(RecvOptions::at_least(1).at_most(1))
            .unwrap();
        order.extend(envs(&received));
        drop(received);
        send_steps(&pool, &order[order.len() - 1..], step).unwrap();
    }
    assert_eq!(order, [2, 0, 3, 1, 2, 0, 3, 1]);
}

#[test]
fn one_environment_can_be_received() {
    let pool = cartpoles(3, 2);
    pool.async_reset_send(&resets(0..3)).unwrap();
    assert_eq!(
        envs(&pool.async_reset_recv(RecvOptions::of(2)).unwrap()),
        [2]
    );
    send_steps(&pool, &[2], 0).unwrap();
    assert_eq!(
        envs(&pool.async_reset_recv(RecvOptions::at_least(2)).unwrap()),
        [0, 1]
    );
    assert_eq!(
        envs(&pool.async_step_recv(RecvOptions::of(2)).unwrap()),
        [2]
    );
}

/// Ledgers, of which number 1 fails in its second step.
fn failing(failure: Failure) -> AsyncEnvPool {
    let at = |env| FailAt::Step(if env == 1 { 2 } else { 99 });
    let made = |env| serial([FailingEnv::new(ledger(env), at(env), failure)]);
    AsyncEnvPool::new((0..3).map(made).collect(), 3).unwrap()
}

#[test]
fn a_failing_environment_is_named_and_the_others_go_on() {
    for failure in [Failure::Error, Failure::WrongDType] {
        let pool = failing(failure);
        let actions = RowBlock::new(&pool.spec().action_leaves(), 3).unwrap();
        pool.reset(&resets(0..3)).unwrap();
        pool.step(actions.rows()).unwrap();
        pool.async_step_send(&[0, 1, 2], actions.rows()).unwrap();
        let error = pool.async_step_recv(RecvOptions::at_least(3)).unwrap_err();
        assert!(error.to_string().starts_with("environment 1: "), "{error}");
        assert_eq!(
            envs(&pool.async_step_recv(RecvOptions::at_least(2)).unwrap()),
            [0, 2]
        );
        let one = RowBlock::new(&pool.spec().action_leaves(), 1).unwrap();
        let again = pool.async_step_send(&[1], one.rows()).unwrap_err();
        assert!(
            matches!(
                again,
                PoolError::NotReset {
                    env: 1,
                    has_failed: true,
                    ..
                }
            ),
            "{again}"
        );
        pool.reset(&resets([1])).unwrap();
        assert_eq!(pool.step(actions.rows()).unwrap().len(), 3);
    }
}

#[test]
fn a_fault_in_a_step_of_all_leaves_nothing_to_be_received() {
    let pool = failing(Failure::Error);
    let actions = RowBlock::new(&pool.spec().action_leaves(), 3).unwrap();
    pool.reset(&resets(0..3)).unwrap();
    pool.step_and_maybe_reset(actions.rows()).unwrap();
    let error = pool.step_and_maybe_reset(actions.rows()).unwrap_err();
    assert_eq!(error.to_string(), "environment 1: made to fail in Step(2)");
    assert_eq!(pool.reset(&resets(0..3)).unwrap().len(), 3);
}

#[test]
fn an_environment_that_panics_is_named_and_left_alone() {
    let pool = failing(Failure::Panic);
    let actions = RowBlock::new(&pool.spec().action_leaves(), 3).unwrap();
    pool.reset(&resets(0..3)).unwrap();
    pool.step(actions.rows()).unwrap();
    for _ in 0..2 {
        let error = pool.step(actions.rows()).unwrap_err();
        assert!(
            matches!(&error, PoolError::Panicked { env: 1, message } if message.contains("Step(2)")),
            "{error}"
        );
    }
    let error = pool.async_reset_send(&resets([1])).unwrap_err();
    assert!(matches!(error, PoolError::Panicked { env: 1, .. }));
    pool.async_reset_send(&resets([0, 2])).unwrap();
    assert_eq!(
        envs(&pool.async_reset_recv(RecvOptions::at_least(2)).unwrap()),
        [0, 2]
    );
}

#[test]
fn an_error_in_writing_actions_sends_nothing() {
    let pool = cartpoles(2, 1);
    pool.reset(&resets(0..2)).unwrap();
    let fill = |place: usize, _: windrow_slab::RowsMut<'_>| match place {
        1 => Err(EnvError::failed("no idea")),
        _ => Ok(()),
    };
    let error = pool.async_step_send_with(&[0, 1], fill).unwrap_err();
    assert_eq!(error.to_string(), "environment 1: no idea");
    send_steps(&pool, &[0, 1], 0).unwrap();
    // An action that is none is the environment's own error.
    drop(pool.async_step_recv(RecvOptions::at_least(2)).unwrap());
    let wrong = |_: usize, mut rows: windrow_slab::RowsMut<'_>| {
        rows.get_mut(Key::<i64>::new(0))?.fill(5);
        Ok(())
    };
    pool.async_step_send_with(&[1], wrong).unwrap();
    let error = pool
        .async_step_recv(RecvOptions::at_least(1))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("environment 1: action out of range"),
        "{error}"
    );
}

#[test]
fn a_pool_ends_whatever_is_unread() {
    let pool = cartpoles(4, 2);
    pool.async_reset_send(&resets(0..3)).unwrap();
    drop(pool);
    let pool = cartpoles(3, 3);
    pool.reset(&resets(0..3)).unwrap();
    send_steps(&pool, &[0, 1], 0).unwrap();
    let held = pool.async_step_recv(RecvOptions::of(0)).unwrap();
    pool.shutdown(LONG).unwrap();
    assert_eq!(frames(&held)[0].1.2, 1.0, "what was received stays");
    drop(held);
    pool.shutdown(LONG).unwrap();
    let closed = [
        pool.async_step_recv(RecvOptions::at_least(1)).map(drop),
        pool.async_reset_send(&resets([0])),
        send_steps(&pool, &[2], 0),
    ];
    for call in closed {
        assert_eq!(
            call.unwrap_err().to_string(),
            "the pool was shut down: make another one"
        );
    }
}

#[test]
fn who_waits_is_told_of_the_end() {
    let (pool, open, has_begun) = gated(2);
    pool.reset(&resets(0..2)).unwrap();
    send_steps(&pool, &[0], 0).unwrap();
    has_begun.recv().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.async_step_recv(RecvOptions::at_least(1)).map(drop));
        let stuck = pool.shutdown(Duration::from_millis(20)).unwrap_err();
        assert!(
            matches!(&stuck, PoolError::Stuck { envs, .. } if envs == &[0]),
            "{stuck}"
        );
        assert!(matches!(waiting.join().unwrap(), Err(PoolError::Closed)));
    });
    open.send(()).unwrap();
    pool.shutdown(LONG).unwrap();
}

/// `pool`, whose waits are interrupted while the flag is set.
fn with_lunch(pool: AsyncEnvPool) -> (AsyncEnvPool, Arc<AtomicBool>) {
    let is_lunch = Arc::new(AtomicBool::new(false));
    let time = Arc::clone(&is_lunch);
    let interrupt = Interrupt::new(move || match time.load(Ordering::Relaxed) {
        true => Err("lunch"),
        false => Ok(()),
    });
    (pool.interrupt(interrupt), is_lunch)
}

#[test]
fn a_wait_can_be_interrupted_and_taken_up_again() {
    let (pool, open, has_begun) = gated(1);
    let (pool, is_lunch) = with_lunch(pool);
    pool.reset(&resets([0])).unwrap();
    send_steps(&pool, &[0], 0).unwrap();
    has_begun.recv().unwrap();
    is_lunch.store(true, Ordering::Relaxed);
    let error = pool.async_step_recv(RecvOptions::at_least(1)).unwrap_err();
    assert!(matches!(&error, PoolError::Interrupted(_)) && error.to_string() == "lunch");
    is_lunch.store(false, Ordering::Relaxed);
    open.send(()).unwrap();
    assert_eq!(
        pool.async_step_recv(RecvOptions::at_least(1))
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn after_an_interruption_the_next_command_drops_what_was_not_received() {
    let (pool, open, has_begun) = gated(2);
    let (pool, is_lunch) = with_lunch(pool);
    pool.reset(&resets(0..2)).unwrap();
    let actions = RowBlock::new(&pool.spec().action_leaves(), 2).unwrap();
    is_lunch.store(true, Ordering::Relaxed);
    // Neither the step nor what comes after it waits for the other environment for ever.
    let is_interrupted = |error| assert!(matches!(error, PoolError::Interrupted(_)), "{error}");
    is_interrupted(pool.step(actions.rows()).unwrap_err());
    is_interrupted(pool.reset(&resets([1])).unwrap_err());
    is_interrupted(pool.step(actions.rows()).unwrap_err());
    is_lunch.store(false, Ordering::Relaxed);
    (0..2).for_each(|_| open.send(()).unwrap());
    assert_eq!(envs(&pool.step(actions.rows()).unwrap()), [0, 1]);
    assert_eq!(has_begun.try_iter().count(), 2);
    drop(pool.reset(&resets(0..2)).unwrap());
    // Unless it was received.
    is_lunch.store(true, Ordering::Relaxed);
    is_interrupted(pool.step(actions.rows()).unwrap_err());
    is_lunch.store(false, Ordering::Relaxed);
    open.send(()).unwrap();
    assert_eq!(envs(&pool.receive_all(Command::Step).unwrap()), [0, 1]);
    assert_eq!(pool.interrupted(), None);
}

#[test]
fn threads_may_share_a_pool() {
    let pool = cartpoles(4, 4);
    thread::scope(|scope| {
        for env in 0..4 {
            let pool = &pool;
            scope.spawn(move || {
                pool.async_reset_send(&resets([env])).unwrap();
                drop(pool.async_reset_recv(RecvOptions::of(env)).unwrap());
                for step in 0..50 {
                    send_steps(pool, &[env], step).unwrap();
                    assert_eq!(
                        envs(&pool.async_step_recv(RecvOptions::of(env)).unwrap()),
                        [env]
                    );
                }
            });
        }
    });
}

#[test]
fn members_may_be_vectors() {
    let pair = |first| serial([first, first + 1].map(|env| LedgerEnv::new(env).with_max_length(1)));
    let pool = AsyncEnvPool::new(vec![pair(0), pair(2)], 2).unwrap();
    assert_eq!((pool.members(), pool.num_envs()), (2, 4));
    let all = [0, 1, 2, 3].map(|env| Reset { env, seed: None });
    drop(pool.reset(&all).unwrap());
    drop(pool.reset(&all[3..]).unwrap());
    let actions = RowBlock::new(&pool.spec().action_leaves(), 2).unwrap();
    pool.async_step_and_maybe_reset_send(&[1], actions.rows())
        .unwrap();
    let received = pool
        .async_step_and_maybe_reset_recv(RecvOptions::at_least(1))
        .unwrap();
    let answer = received.iter().next().unwrap();
    let seen = |rows: windrow_slab::Rows<'_>| rows.get(Key::<i64>::new(0)).unwrap().to_vec();
    assert_eq!((answer.env(), received.len()), (1, 1));
    assert_eq!(seen(answer.observation()), [2, 0, 1, 3, 1, 1]);
    assert_eq!(seen(answer.root()), [2, 1, 0, 3, 2, 0]);
    let beyond = pool.async_reset_send(&[all[0], Reset { env: 10, ..all[0] }]);
    assert_eq!(
        beyond.unwrap_err().to_string(),
        "expected an environment from 0 to 3, got 10"
    );
    assert_eq!(
        pool.async_reset_send(&[all[0], all[0]])
            .unwrap_err()
            .to_string(),
        "environment 0 is named twice in one call"
    );
}

#[test]
fn unlike_environments_are_refused() {
    assert!(matches!(
        AsyncEnvPool::new(Vec::new(), 1),
        Err(PoolError::Unmade(EnvError::Empty))
    ));
    let unlike = vec![serial([CartPole::new()]), serial([Pendulum::new()])];
    let error = AsyncEnvPool::new(unlike, 1).unwrap_err().to_string();
    assert!(error.starts_with("environment 1: "), "{error}");
    let unequal = vec![
        serial([CartPole::new()]),
        serial([CartPole::new(), CartPole::new()]),
    ];
    let error = AsyncEnvPool::new(unequal, 1).unwrap_err();
    assert!(
        matches!(
            error,
            PoolError::Unequal {
                expected: 1,
                member: 1,
                got: 2
            }
        ),
        "{error}"
    );
    let error = AsyncEnvPool::of(&["CartPole-v1", "KartPole-v1"], 2)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("environment 1") && error.contains("KartPole-v1"),
        "{error}"
    );
}
