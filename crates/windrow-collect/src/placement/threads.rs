use std::sync::Arc;
use std::time::{Duration, Instant};

use windrow_sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use windrow_sync::thread::{Builder, JoinHandle};

use crate::error::{WorkerError, WorkerFault};
use crate::shared::ThreadLink;
use crate::shared::link::WorkerLink;
use crate::shared::service::Service;
use crate::worker::Worker;

/// Workers in threads of their own, which start with the first batch that is asked for.
#[derive(Debug)]
pub(crate) struct Threads {
    waiting: Vec<Worker<ThreadLink>>,
    running: Vec<JoinHandle<()>>,
    /// Receives a message from each thread that ends.
    ended: Option<Receiver<()>>,
    /// Threads that are known to have ended.
    gone: usize,
    /// What evaluates the policy, where workers do not: it has a thread too.
    service: Option<Arc<Service>>,
}

impl Threads {
    pub(crate) fn new(workers: Vec<Worker<ThreadLink>>, service: Option<Arc<Service>>) -> Self {
        Self {
            waiting: workers,
            running: Vec::new(),
            ended: None,
            gone: 0,
            service,
        }
    }

    /// Worker `worker`, before the threads start.
    pub(super) fn waiting(&mut self, worker: usize) -> Option<&mut Worker<ThreadLink>> {
        self.waiting.get_mut(worker)
    }

    pub(crate) fn begin(&mut self) {
        if !self.waiting.is_empty() {
            let (end, ended) = channel();
            self.ended = Some(ended);
            self.start(&end);
        }
    }

    fn start(&mut self, end: &Sender<()>) {
        for worker in self.waiting.drain(..) {
            let mut link = worker.link.clone();
            let name = format!("windrow-worker-{}", link.worker());
            let end = end.clone();
            let is_served = self.service.is_some();
            let run = move || {
                if is_served {
                    // Whoever answers wakes many workers at once, and has to begin the next batch
                    // before they step.
                    windrow_slab::become_batch_thread();
                }
                worker.contained(Worker::run);
                // The receiver may be gone.
                let _ = end.send(());
            };
            match Builder::new().name(name).spawn(run) {
                Ok(thread) => self.running.push(thread),
                // The collector would wait for ever for a worker without a thread.
                Err(error) => {
                    link.fail(WorkerError::new(
                        link.worker(),
                        None,
                        WorkerFault::Start(error),
                    ));
                }
            }
        }
    }

    /// Waits at most `timeout` until every thread has ended; returns how many have not.
    pub(crate) fn join(&mut self, timeout: Duration) -> usize {
        for worker in self.waiting.drain(..) {
            worker.contained(drop);
        }
        let deadline = Instant::now() + timeout;
        let running = self.join_workers(deadline);
        if running > 0 {
            return running;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let ended = self
            .service
            .as_ref()
            .is_none_or(|service| service.end(left));
        usize::from(!ended)
    }

    /// How many threads of workers run at `deadline`.
    fn join_workers(&mut self, deadline: Instant) -> usize {
        let Some(ended) = &self.ended else {
            return 0;
        };
        while self.gone < self.running.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match ended.recv_timeout(left) {
                Ok(()) => self.gone += 1,
                Err(RecvTimeoutError::Timeout) => return self.running.len() - self.gone,
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.gone = 0;
        for thread in self.running.drain(..) {
            // The worker has reported panics of users' code.
            let _ = thread.join();
        }
        0
    }
}
