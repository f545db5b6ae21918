//! Child processes from their start on, and their events until somebody handles them.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::DeserializeOwned;
use windrow_sync::mpsc::{Receiver, Sender, channel};
use windrow_sync::{Interrupt, Interrupted, unpoisoned};

use crate::supervise::Handler;
use crate::{Event, Frame, ProcessError, Program, Supervisor};

/// Children of one program, each of which sends messages of type `M`.
///
/// Events wait in a queue, until [`EventQueue::handled_by`] gives them to a handler.
#[derive(Debug)]
pub struct Roster<M> {
    supervisor: Supervisor,
    events: EventQueue<M>,
    /// Processes of the children that run.
    pids: Vec<Option<u32>>,
    /// The process that started them.
    owner: u32,
}

impl<M: DeserializeOwned + Send + 'static> Roster<M> {
    /// `count` children of `program`, none of which was started yet.
    ///
    /// # Errors
    /// As [`Supervisor::start`].
    pub fn new(program: impl Into<Program>, count: usize) -> Result<Self, ProcessError> {
        let (sender, receiver) = channel();
        let sink = Arc::new(Mutex::new(Sink::Queue(sender, None)));
        let decoded = Arc::clone(&sink);
        let handler = move |child, event| unpoisoned(decoded.lock()).pass(child, decode(event));
        Ok(Self {
            supervisor: Supervisor::start(program, count, handler)?,
            events: EventQueue { sink, receiver },
            pids: vec![None; count],
            owner: std::process::id(),
        })
    }

    /// Asks for a process for `child`, which gets `first` before anything else.
    ///
    /// # Errors
    /// As [`Supervisor::spawn`] and [`Supervisor::send`].
    pub fn spawn(
        &self,
        child: usize,
        first: impl IntoIterator<Item = Frame>,
    ) -> Result<(), ProcessError> {
        self.supervisor.spawn(child)?;
        first
            .into_iter()
            .try_for_each(|frame| self.supervisor.send(child, frame))
    }

    /// Sends `frame` to `child`, without waiting for it.
    ///
    /// # Errors
    /// As [`Supervisor::send`].
    pub fn send(&self, child: usize, frame: Frame) -> Result<(), ProcessError> {
        self.supervisor.send(child, frame)
    }

    /// Waits until each child has given `pick` something, in the order of the children. Other
    /// events are left to `pick`, which returns `None` for them, or the error that ends the wait.
    ///
    /// # Errors
    /// That of `pick` or of `interrupt`; [`ProcessError::ShutDown`] when there is no more to wait
    /// for.
    pub fn gather<T, E>(
        &mut self,
        interrupt: &Interrupt,
        pick: impl FnMut(usize, Event<M>) -> Result<Option<T>, E>,
    ) -> Result<Vec<T>, E>
    where
        E: From<ProcessError> + From<Interrupted>,
    {
        self.gather_from(0..self.pids.len(), interrupt, pick)
    }

    /// As [`gather`](Self::gather), but only from `children`.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    pub fn gather_from<T, E>(
        &mut self,
        children: Range<usize>,
        interrupt: &Interrupt,
        mut pick: impl FnMut(usize, Event<M>) -> Result<Option<T>, E>,
    ) -> Result<Vec<T>, E>
    where
        E: From<ProcessError> + From<Interrupted>,
    {
        let mut all: Vec<Option<T>> = self.pids.iter().map(|_| None).collect();
        while all[children.clone()].iter().any(Option::is_none) {
            let received = interrupt.receive(&self.events.receiver)?;
            let (child, event) = received.ok_or(ProcessError::ShutDown)?;
            self.note(child, &event);
            if let Some(picked) = pick(child, event)? {
                all[child] = Some(picked);
            }
        }
        Ok(all.drain(children).flatten().collect())
    }

    /// Kills the process of `child`; see [`Supervisor::kill`].
    ///
    /// # Errors
    /// As [`Supervisor::kill`].
    pub fn kill(&self, child: usize) -> Result<(), ProcessError> {
        self.supervisor.kill(child)
    }

    /// Asks the process of `child` for its stack; see [`Supervisor::ask_for_stack`].
    ///
    /// # Errors
    /// As [`Supervisor::ask_for_stack`].
    pub fn ask_for_stack(&self, child: usize) -> Result<(), ProcessError> {
        self.supervisor.ask_for_stack(child)
    }

    /// An event that is there.
    pub fn try_next(&mut self) -> Option<(usize, Event<M>)> {
        let (child, event) = self.events.receiver.try_recv().ok()?;
        self.note(child, &event);
        Some((child, event))
    }

    fn note(&mut self, child: usize, event: &Event<M>) {
        match event {
            Event::Started(pid) => self.pids[child] = Some(*pid),
            Event::Died(_) => self.pids[child] = None,
            Event::Failed(_) | Event::Message(_) => {}
        }
    }

    /// The processes of the children; `None` where none runs.
    #[must_use]
    pub fn pids(&self) -> &[Option<u32>] {
        &self.pids
    }

    /// Calls `bell` behind each event from now on.
    pub fn ring(&self, bell: impl Fn() + Send + 'static) {
        if let Sink::Queue(_, place) = &mut *unpoisoned(self.events.sink.lock()) {
            *place = Some(Box::new(bell));
        }
    }

    /// The process that started the children; one that was forked from it must leave them alone.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Ends the children; see [`Supervisor::shutdown`]. In a process that was forked from their
    /// owner, does nothing.
    pub fn end(self, within: Duration) {
        if self.owner == std::process::id() {
            // Those that cannot be killed are left behind.
            let _ = self.supervisor.shutdown(within);
        } else {
            // The thread that watches over them is in the other process.
            std::mem::forget(self.supervisor);
        }
    }

    /// The supervisor, and the events that nobody has handled.
    #[must_use]
    pub fn into_parts(self) -> (Supervisor, EventQueue<M>) {
        (self.supervisor, self.events)
    }
}

/// Events of children that nobody has handled yet.
#[derive(Debug)]
pub struct EventQueue<M> {
    sink: Arc<Mutex<Sink<M>>>,
    receiver: Receiver<(usize, Event<M>)>,
}

impl<M> EventQueue<M> {
    /// Gives `handler` the events that wait, in this thread, and from then on each event in the
    /// supervisor's thread, which does nothing else meanwhile: the handler must not wait for
    /// children, nor for a thread that waits for the shutdown.
    pub fn handled_by(self, mut handler: impl FnMut(usize, Event<M>) + Send + 'static) {
        let mut sink = unpoisoned(self.sink.lock());
        self.receiver
            .try_iter()
            .for_each(|(child, event)| handler(child, event));
        *sink = Sink::Handler(Box::new(handler));
    }
}

/// Where events go.
enum Sink<M> {
    /// Into the queue, with a bell for whoever waits.
    Queue(Sender<(usize, Event<M>)>, Option<Box<dyn Fn() + Send>>),
    Handler(Handler<M>),
}

impl<M> std::fmt::Debug for Sink<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Queue(..) => "Queue",
            Self::Handler(_) => "Handler",
        })
    }
}

impl<M> Sink<M> {
    fn pass(&mut self, child: usize, event: Event<M>) {
        match self {
            Self::Queue(queue, bell) => {
                // The receiver is gone once the roster is.
                let _ = queue.send((child, event));
                bell.iter().for_each(|bell| bell());
            }
            Self::Handler(handler) => handler(child, event),
        }
    }
}

fn decode<M: DeserializeOwned>(event: Event) -> Event<M> {
    match event {
        Event::Started(pid) => Event::Started(pid),
        Event::Failed(error) => Event::Failed(error),
        Event::Message(frame) => frame.parse().map_or_else(Event::Failed, Event::Message),
        Event::Died(death) => Event::Died(death),
    }
}
