use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use tensordict::TensorDict;
use windrow::{CollectError, Collector};

/// What a collector answers when it is asked for a batch.
pub(super) type Answer = Option<Result<TensorDict, CollectError>>;

/// Waits for batches in a thread of its own, so that whoever asked can handle signals meanwhile. A batch that nobody
/// waited for to the end is handed over at the next call.
#[derive(Debug)]
pub(super) struct Courier {
    ask: Sender<()>,
    answers: Receiver<Answer>,
    under_way: bool,
}

impl Courier {
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn new(collector: Arc<Mutex<Collector>>) -> std::io::Result<Self> {
        let (ask, asked) = channel();
        let (answer, answers) = channel();
        let run = move || {
            while asked.recv().is_ok() {
                let batch = collector
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .next();
                if answer.send(batch).is_err() {
                    return;
                }
            }
        };
        Builder::new()
            .name("windrow-courier".to_owned())
            .spawn(run)?;
        Ok(Self {
            ask,
            answers,
            under_way: false,
        })
    }

    /// The next batch, if it comes within `patience`.
    pub(super) fn next_within(&mut self, patience: Duration) -> Option<Answer> {
        if !self.under_way {
            // The thread ends only after this value does.
            self.ask.send(()).ok()?;
            self.under_way = true;
        }
        match self.answers.recv_timeout(patience) {
            Ok(answer) => {
                self.under_way = false;
                Some(answer)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(None),
        }
    }
}
