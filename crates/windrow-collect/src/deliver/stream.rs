//! Batches as a stream, which wakes whoever waits for several things.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use windrow_slab::Ring;
use windrow_sync::thread::Builder;
use windrow_sync::{Condvar, Mutex, lock, unpoisoned};

use crate::config::hooks::Hooks;
use crate::deliver::collector::Collector;
use crate::deliver::stage::LastStage;
use crate::error::NextError;

/// The batches of a [`Collector`] as a [`Stream`]: any executor can await them, and one task or
/// thread can wait for several collectors.
///
/// A thread of its own waits for the workers and wakes the task, from the first wait on. A
/// collector whose workers run in the calling thread blocks the executor while they collect: choose
/// another placement.
///
/// Without an executor, here are two collectors in one thread:
///
/// ```
/// use std::pin::Pin;
/// use std::sync::Arc;
/// use std::task::{Context, Poll, Wake};
/// use std::thread::{Thread, current, park};
///
/// use futures_core::Stream;
/// use windrow_collect::AsyncCollector;
///
/// struct Unpark(Thread);
///
/// impl Wake for Unpark {
///     fn wake(self: Arc<Self>) {
///         self.0.unpark();
///     }
/// }
///
/// let waker = Arc::new(Unpark(current())).into();
/// let mut context = Context::from_waker(&waker);
/// let mut running = Vec::new();
/// for env in ["CartPole-v1", "Pendulum-v1"] {
///     let collector = AsyncCollector::builder(env).frames_per_batch(100).total_frames(300).build()?;
///     running.push(collector.into_stream());
/// }
/// let mut frames = 0;
/// while !running.is_empty() {
///     let mut waits = true;
///     let mut index = 0;
///     while index < running.len() {
///         match Pin::new(&mut running[index]).poll_next(&mut context) {
///             Poll::Ready(Some(batch)) => {
///                 frames += batch?.numel();
///                 waits = false;
///             }
///             Poll::Ready(None) => {
///                 running.remove(index);
///                 waits = false;
///                 continue;
///             }
///             Poll::Pending => {}
///         }
///         index += 1;
///     }
///     if waits {
///         park();
///     }
/// }
/// assert_eq!(frames, 600);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BatchStream<S: LastStage = Hooks> {
    collector: Collector<S>,
    /// From the first wait on.
    watch: Option<Arc<Watch>>,
}

impl<S: LastStage> BatchStream<S> {
    pub(super) fn new(collector: Collector<S>) -> Self {
        Self {
            collector,
            watch: None,
        }
    }

    /// The collector, for its statistics.
    #[must_use]
    pub fn collector(&self) -> &Collector<S> {
        &self.collector
    }

    /// The collector, for weights, seeds and a shutdown.
    pub fn collector_mut(&mut self) -> &mut Collector<S> {
        &mut self.collector
    }
}

// Nothing in it is pinned.
impl<S: LastStage> Unpin for BatchStream<S> {}

impl<S: LastStage> Stream for BatchStream<S> {
    type Item = Result<S::Out, NextError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Poll::Ready(item) = this.collector.try_next() {
            return Poll::Ready(item);
        }
        let watch = match &this.watch {
            Some(watch) => watch,
            None => match Watch::start(Arc::clone(&this.collector.core.ring)) {
                Ok(watch) => this.watch.insert(watch),
                Err(error) => return Poll::Ready(Some(Err(error))),
            },
        };
        watch.wake_when_ready(context.waker());
        Poll::Pending
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.collector.size_hint()
    }
}

impl<S: LastStage> Drop for BatchStream<S> {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.end();
        }
        // The collector ends its ring now, and with it the present wait of the watching thread.
    }
}

/// State shared by a stream and the thread that wakes its task.
#[derive(Debug, Default)]
struct Watch {
    asked: Mutex<Asked>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Asked {
    /// Whoever polled last.
    waker: Option<Waker>,
    ended: bool,
}

impl Watch {
    fn start(ring: Arc<Ring>) -> Result<Arc<Self>, NextError> {
        let watch = Arc::new(Self::default());
        let own = Arc::clone(&watch);
        Builder::new()
            .name("windrow-stream".to_owned())
            .spawn(move || own.run(&ring))
            .map_err(NextError::Watch)?;
        Ok(watch)
    }

    fn wake_when_ready(&self, waker: &Waker) {
        lock(&self.asked).waker = Some(waker.clone());
        self.changed.notify_one();
    }

    fn end(&self) {
        lock(&self.asked).ended = true;
        self.changed.notify_one();
    }

    fn run(&self, ring: &Ring) {
        while self.is_asked() {
            ring.wait_until_ready();
            let waker = lock(&self.asked).waker.take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Waits for somebody who is to be woken; false at the end.
    fn is_asked(&self) -> bool {
        let mut asked = lock(&self.asked);
        while asked.waker.is_none() && !asked.ended {
            asked = unpoisoned(self.changed.wait(asked));
        }
        !asked.ended
    }
}
