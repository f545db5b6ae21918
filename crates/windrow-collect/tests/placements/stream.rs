//! Batches without waiting: `try_next`, and collectors as streams.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park_timeout};
use std::time::Duration;

use futures_core::Stream;
use tensordict::TensorDict;
use windrow_collect::{AsyncCollector, BatchStream, Collector, MultiAsyncCollector, NextError};
use windrow_env::testing::{FailAt, FailingEnv, Failure, LedgerEnv};
use windrow_env::{Env, EnvError, EnvSpec, Outcome};
use windrow_slab::{Row, RowMut};

use crate::program::{elsewhere, placed};

/// Steps once the gate is open.
struct Gated(LedgerEnv, Gate);

type Gate = Arc<(Mutex<bool>, Condvar)>;

impl Env for Gated {
    fn spec(&self) -> &EnvSpec {
        self.0.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.0.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let mut open = self.1.0.lock().unwrap();
        while !*open {
            open = self.1.1.wait(open).unwrap();
        }
        drop(open);
        self.0.step(action, obs)
    }
}

fn open(gate: &Gate) {
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
}

/// Unparks a thread, and counts.
struct Unpark(Thread, AtomicUsize);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

impl Unpark {
    fn woken(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }

    /// Sleeps until this was woken more often than `woken` times.
    fn wait_beyond(&self, woken: usize) {
        for _ in 0..600 {
            if self.woken() > woken {
                return;
            }
            park_timeout(Duration::from_millis(100));
        }
        panic!("nobody wakes the task");
    }
}

fn unpark() -> (Arc<Unpark>, Waker) {
    let unpark = Arc::new(Unpark(current(), AtomicUsize::new(0)));
    (Arc::clone(&unpark), unpark.into())
}

/// The next batch, for which this thread sleeps; `None` at the end. A wake-up that does not come is
/// a failure.
fn awaited(stream: &mut BatchStream) -> Option<Result<TensorDict, NextError>> {
    let (unpark, waker) = unpark();
    loop {
        let woken = unpark.woken();
        let polled = Pin::new(&mut *stream).poll_next(&mut Context::from_waker(&waker));
        match polled {
            Poll::Ready(item) => return item,
            Poll::Pending => unpark.wait_beyond(woken),
        }
    }
}

#[test]
fn a_batch_that_is_not_complete_is_not_waited_for_and_is_asked_for_once() {
    let gate = Gate::default();
    let (shut, asked) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&asked);
    let mut collector =
        AsyncCollector::builder(move || Gated(LedgerEnv::from_seed(), Arc::clone(&shut)))
            .frames_per_batch(8)
            .total_frames(16)
            .pre_collect_hook(move || {
                counted.fetch_add(1, Ordering::SeqCst);
            })
            .build()
            .unwrap();
    for _ in 0..5 {
        assert!(collector.try_next().is_pending());
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    open(&gate);
    let mut batches = 0;
    loop {
        match collector.try_next() {
            Poll::Ready(Some(batch)) => {
                assert_eq!(batch.unwrap().numel(), 8);
                batches += 1;
            }
            Poll::Ready(None) => break,
            Poll::Pending => std::thread::yield_now(),
        }
    }
    assert_eq!((batches, asked.load(Ordering::SeqCst)), (2, 2));
}

#[test]
fn workers_in_the_calling_thread_collect_when_they_are_asked() {
    let mut collector = Collector::builder(LedgerEnv::from_seed)
        .frames_per_batch(8)
        .total_frames(8)
        .build()
        .unwrap();
    assert!(matches!(collector.try_next(), Poll::Ready(Some(Ok(_)))));
    assert!(matches!(collector.try_next(), Poll::Ready(None)));
}

#[test]
fn a_stream_wakes_its_task_for_each_batch_and_for_the_end() {
    for placement in elsewhere() {
        let collector = placed!(MultiAsyncCollector::builder("Ledger"), placement)
            .num_workers(2)
            .frames_per_batch(20)
            .total_frames(200)
            .build()
            .unwrap();
        let mut stream = collector.into_stream();
        let mut frames = 0;
        while let Some(batch) = awaited(&mut stream) {
            frames += batch.unwrap().numel();
        }
        assert_eq!((frames, stream.collector().stats().frames), (200, 200));
    }
}

#[test]
fn a_stream_wakes_its_task_for_an_error_and_for_a_shutdown() {
    let failing = || FailingEnv::new(LedgerEnv::from_seed(), FailAt::Step(30), Failure::Error);
    let collector = AsyncCollector::builder(failing).frames_per_batch(20);
    let mut stream = collector.build().unwrap().into_stream();
    assert!(awaited(&mut stream).unwrap().is_ok());
    let error = awaited(&mut stream).unwrap().unwrap_err();
    assert!(matches!(error, NextError::Worker(_)), "{error}");
    assert!(awaited(&mut stream).is_none());

    let gate = Gate::default();
    let shut = Arc::clone(&gate);
    let mut stream =
        AsyncCollector::builder(move || Gated(LedgerEnv::from_seed(), Arc::clone(&shut)))
            .frames_per_batch(8)
            .build()
            .unwrap()
            .into_stream();
    let (unpark, waker) = unpark();
    let polled = Pin::new(&mut stream).poll_next(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    assert_eq!(unpark.woken(), 0);
    stream.collector().handle().shutdown();
    unpark.wait_beyond(0);
    let error = awaited(&mut stream).unwrap().unwrap_err();
    assert!(matches!(error, NextError::ShutDown), "{error}");
    open(&gate);
}
