//! Requests that workers answer between two parts: a program's own calls, in processes, and loads
//! and saves of their states.

use std::collections::VecDeque;

use windrow_sync::mpsc::{Receiver, Sender, channel};
use windrow_sync::{Mutex, MutexGuard, lock};

/// The calls to each worker.
#[derive(Debug)]
pub(crate) struct Calls(Vec<Mutex<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Call>,
    /// Sender for the call in progress.
    caller: Option<Sender<Vec<u8>>>,
    /// The worker answers no more calls.
    over: bool,
}

/// A request to a worker.
#[derive(Debug, PartialEq)]
pub(crate) enum Request {
    /// A call in the program's own form.
    Program(Vec<u8>),
    /// Its state. Environments of Python may be pickled, where `pickle`.
    Save { pickle: bool },
    /// To go on from a state.
    Load(Vec<u8>),
}

#[derive(Debug)]
struct Call {
    request: Request,
    caller: Sender<Vec<u8>>,
}

impl Calls {
    pub(crate) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Mutex::default()).collect())
    }

    fn queue(&self, worker: usize) -> MutexGuard<'_, Queue> {
        lock(&self.0[worker])
    }

    /// Puts a call to worker `worker` behind those that wait. The answer comes by the receiver; it
    /// is disconnected where none will.
    pub(crate) fn ask(&self, worker: usize, request: Request) -> Receiver<Vec<u8>> {
        let (caller, answer) = channel();
        let mut queue = self.queue(worker);
        if !queue.over {
            queue.waiting.push_back(Call { request, caller });
        }
        answer
    }

    /// The call that worker `worker` is to have now.
    pub(crate) fn next(&self, worker: usize) -> Option<Request> {
        let mut queue = self.queue(worker);
        if queue.caller.is_some() {
            return None;
        }
        let Call { request, caller } = queue.waiting.pop_front()?;
        queue.caller = Some(caller);
        Some(request)
    }

    /// Worker `worker` has answered the call that it had.
    pub(crate) fn answer(&self, worker: usize, answer: Vec<u8>) {
        if let Some(caller) = self.queue(worker).caller.take() {
            // A caller that was interrupted waits no more.
            let _ = caller.send(answer);
        }
    }

    /// Worker `worker` does not answer the call that it had, since its process has ended. Another
    /// one may take the calls that wait.
    pub(crate) fn lose(&self, worker: usize) {
        self.queue(worker).caller = None;
    }

    /// Worker `worker` answers no more calls.
    pub(crate) fn end(&self, worker: usize) {
        *self.queue(worker) = Queue {
            over: true,
            ..Queue::default()
        };
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use windrow_sync::mpsc::TryRecvError;

    fn program(number: u8) -> Request {
        Request::Program(vec![number])
    }

    #[test]
    fn calls_are_answered_in_order() {
        let calls = Calls::new(2);
        let (first, second) = (calls.ask(1, program(1)), calls.ask(1, program(2)));
        assert_eq!(calls.next(0), None);
        assert_eq!(calls.next(1), Some(program(1)));
        assert_eq!(calls.next(1), None, "the worker has one already");
        assert_eq!(first.try_recv(), Err(TryRecvError::Empty));
        calls.answer(1, vec![1, 0]);
        assert_eq!(calls.next(1), Some(program(2)));
        calls.answer(1, vec![]);
        assert_eq!(
            (first.try_recv(), second.try_recv()),
            (Ok(vec![1, 0]), Ok(vec![]))
        );
        calls.answer(1, vec![30]);
        assert_eq!(calls.next(1), None);
    }

    #[test]
    fn a_lost_worker_takes_one_call_with_it_and_one_that_ends_takes_all() {
        let calls = Calls::new(1);
        let (first, second, third) = (
            calls.ask(0, program(1)),
            calls.ask(0, program(2)),
            calls.ask(0, program(3)),
        );
        calls.next(0);
        calls.lose(0);
        assert_eq!(first.try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(second.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(calls.next(0), Some(program(2)));
        calls.answer(0, vec![20]);
        assert_eq!(second.try_recv(), Ok(vec![20]));
        calls.end(0);
        for answer in [third, calls.ask(0, program(4))] {
            assert_eq!(answer.try_recv(), Err(TryRecvError::Disconnected));
        }
        assert_eq!(calls.next(0), None);
    }
}
