//! The thread that stands in for a worker elsewhere: to its collector it is a worker process, with
//! a lane, a control socket, and memory in common; to the worker it is the collector.

use std::io::{ErrorKind, PipeWriter, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use windrow_peer::net::{
    Address, Deadline, Listener, OwnCertificate, ServerConfig, Socket, Strangers, Stream,
    wait_for_end,
};
use windrow_peer::{
    ChildEnd, ControlBlock, ExchangeReader, Frame, FrameReader, LiveWriter, Program, Relay,
    RelayEnd, WorkerLane, decode, send,
};
use windrow_slab::{Layout, Part, RemoteRing};
use windrow_sync::{catch_panic, entropy, error_chain, unpoisoned};

use super::stream::{Beat, MOST, SILENCE, Said, StreamEnd};
use crate::config::launcher::{Invitation, Launched, Launcher};
use crate::process::messages::{
    Answer, Command, Fill, FromWorker, MOST_ELEMENTS, MOST_ENVS, Ready, ToWorker,
};
use crate::process::serve_error::ServeError;
use crate::process::weights::{WeightReceiver, bytes_of};

/// How long a connection may take to prove that it is the invited worker's, TLS included.
const GREETING: Duration = Duration::from_secs(10);

/// Most connections at once that have not proved it yet.
const STRANGERS: usize = 64;

/// How often a worker is looked after that has not connected yet.
const TICK: Duration = Duration::from_millis(50);

/// The same while a connection is being greeted.
const SHORT_TICK: Duration = Duration::from_millis(5);

/// How long a worker may take to end by itself, once it has said that it ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the launcher may take to learn how a worker has ended whose connection is lost.
const NEWS: Duration = Duration::from_secs(1);

/// Workers that `launcher` starts, and that may send no values that begin with the byte `refused`.
pub(crate) fn program(launcher: Arc<dyn Launcher>, refused: Option<u8>) -> Program {
    Program::Relay(Relay::new(move |end| {
        let mut stderr = end.stderr.try_clone().ok();
        match relay(&*launcher, refused, end) {
            // Somebody else has ended it, and knows why.
            Ok(()) | Err(ServeError::Ended) => {}
            Err(error) => {
                if let Some(stderr) = &mut stderr {
                    let _ = writeln!(stderr, "windrow: {}", error_chain(&error));
                }
            }
        }
    }))
}

/// Starts a worker and passes on what both sides say, until one of them ends.
fn relay(launcher: &dyn Launcher, refused: Option<u8>, end: RelayEnd) -> Result<(), ServeError> {
    let RelayEnd {
        end: parent,
        stderr,
        stop,
    } = end;
    let hello = next(&parent)?;
    let ToWorker::Hello(parsed) = hello.parse()? else {
        return Err(ServeError::Order);
    };
    let (mut launched, (socket, stream)) = launch(launcher, parsed.worker, &stderr, &stop)?;
    let parent = Arc::new(parent);
    let watch = Watch::begin(socket, stop, Arc::clone(&parent))?;
    let link = Link {
        worker: parsed.worker,
        parent: &parent,
        stream: &stream,
        refused,
    };
    let passed = link.pass(hello, &watch);
    let is_killed = watch.end();
    let how = match passed {
        _ if is_killed => None,
        Ok(()) => end_of(&mut *launched, PATIENCE),
        Err(_) => end_of(&mut *launched, NEWS),
    };
    launched.kill();
    match (passed, how) {
        (Err(ServeError::Connection(source)), Some(how)) => Err(ServeError::Lost { how, source }),
        (passed, _) => passed,
    }
}

/// How `launched` has ended, if it ends within `patience`.
fn end_of(launched: &mut dyn Launched, patience: Duration) -> Option<String> {
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_millis(1);
    loop {
        let how = launched.ended();
        if how.is_some() || Instant::now() >= deadline {
            return how;
        }
        sleep(pause);
        pause = TICK.min(2 * pause);
    }
}

/// The next message of the collector.
fn next(parent: &ChildEnd) -> Result<Frame, ServeError> {
    let frame = FrameReader::default().read(parent.socket())?;
    frame.ok_or(ServeError::Ended)
}

/// A worker's connection, and its socket.
type Connection = (Arc<Socket>, StreamEnd);

/// Starts worker `worker`, and waits until it has connected.
fn launch(
    launcher: &dyn Launcher,
    worker: usize,
    stderr: &PipeWriter,
    stop: &UnixStream,
) -> Result<(Box<dyn Launched>, Connection), ServeError> {
    let refused = |error: std::io::Error| ServeError::Launch(Box::new(error));
    let asked = match launcher.address() {
        Address::Tcp { host, port } if port != 0 => Address::Tcp {
            host,
            port: port.saturating_add(worker.try_into().unwrap_or(u16::MAX)),
        },
        address => address,
    };
    let listener = Listener::open(&asked).map_err(refused)?;
    let address = listener.address(&asked).map_err(refused)?;
    let certificate = match address.is_local() {
        true => None,
        false => Some(OwnCertificate::new().map_err(refused)?),
    };
    let invitation = Invitation {
        worker,
        address: address.to_string(),
        token: token(),
        certificate: certificate.as_ref().map(|own| own.pem().to_owned()),
    };
    let stderr = stderr.try_clone().map_err(refused)?;
    let started = launcher.start(&invitation, stderr);
    let mut launched = started.map_err(ServeError::Launch)?;
    let door = Door {
        listener,
        invitation,
        certificate,
    };
    match door.connected(launcher.patience(), stop, &mut *launched) {
        Ok(connection) => Ok((launched, connection)),
        Err(error) => {
            launched.kill();
            Err(error)
        }
    }
}

/// Where one worker is waited for.
struct Door {
    listener: Listener,
    invitation: Invitation,
    /// That of the collector, by which the worker knows it, where others could read along.
    certificate: Option<OwnCertificate>,
}

impl Door {
    /// Waits for the connection of the invited worker. Greets each connection in a thread of its
    /// own, so that strangers do not keep the worker waiting, and closes those that are left.
    fn connected(
        self,
        patience: Duration,
        stop: &UnixStream,
        launched: &mut dyn Launched,
    ) -> Result<Connection, ServeError> {
        let begin = Instant::now();
        let hall = Arc::new(Hall {
            tls: self.certificate.map(|own| Arc::clone(own.server())),
            token: self.invitation.token,
            strangers: Mutex::new(Strangers::new(STRANGERS)),
        });
        let _closing = Closing(Arc::clone(&hall));
        let (greeted, come) = mpsc::channel();
        loop {
            let tick = match unpoisoned(hall.strangers.lock()).is_empty() {
                true => TICK,
                false => SHORT_TICK,
            };
            match self.listener.accept_within(stop, Some(tick)) {
                Ok(None) => return Err(ServeError::Ended),
                Ok(Some(socket)) => hall.greet(socket, greeted.clone()),
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                // The next connection may come to more, such as one of another user.
                Err(_) => sleep(TICK),
            }
            if let Ok(connection) = come.try_recv() {
                return Ok(connection);
            }
            if let Some(how) = launched.ended() {
                return Err(ServeError::NeverCame { how });
            }
            if begin.elapsed() >= patience {
                let how = format!(
                    "it did not connect to {} within {patience:?}",
                    self.invitation.address
                );
                return Err(ServeError::NeverCame { how });
            }
        }
    }
}

/// The connections that have not yet proved that they are the invited worker's.
struct Hall {
    tls: Option<Arc<ServerConfig>>,
    token: String,
    strangers: Mutex<Strangers>,
}

/// Closes the connections in the hall when it is dropped.
struct Closing(Arc<Hall>);

impl Drop for Closing {
    fn drop(&mut self) {
        unpoisoned(self.0.strangers.lock()).end();
    }
}

impl Hall {
    /// Greets `socket` in a thread, which sends it to `greeted` if it is the worker's.
    fn greet(self: &Arc<Self>, socket: Socket, greeted: Sender<Connection>) {
        let (hall, socket) = (Arc::clone(self), Arc::new(socket));
        if !unpoisoned(self.strangers.lock()).enter(&socket) {
            return;
        }
        let watched = Arc::clone(&socket);
        let greeting = move || {
            // A panic ends only this connection.
            let end = catch_panic(|| hall.greeting(&socket));
            let had_place = unpoisoned(hall.strangers.lock()).leave(&socket);
            if let (Ok(Ok(end)), true) = (end, had_place) {
                // Nobody receives it if another connection was accepted first.
                let _ = greeted.send((socket, end));
            }
        };
        let thread = thread::Builder::new().name("windrow-door".to_owned());
        if thread.spawn(greeting).is_err() {
            // The connection is closed, and the worker tries again.
            unpoisoned(self.strangers.lock()).leave(&watched);
        }
    }

    fn greeting(&self, socket: &Arc<Socket>) -> Result<StreamEnd, ServeError> {
        let deadline = Deadline::after(GREETING);
        let stream = Stream::server(Arc::clone(socket), self.tls.as_ref());
        let stream = stream.map_err(|error| ServeError::Launch(Box::new(error)))?;
        let end = StreamEnd::new(stream, Arc::clone(socket), MOST);
        end.greet_worker(&self.token, deadline)?;
        Ok(end)
    }
}

/// A secret that nobody can guess.
fn token() -> String {
    format!("{:016x}{:016x}", entropy(), entropy())
}

/// A thread that ends the relay's waits once the worker has closed its connection, or is to be
/// killed.
struct Watch {
    socket: Arc<Socket>,
    waits: Arc<Mutex<Waits>>,
    /// Whether the worker was to be killed.
    thread: JoinHandle<bool>,
}

/// The wait for a command.
#[derive(Default)]
struct Waits {
    close_lane: Option<Box<dyn Fn() + Send>>,
    are_over: bool,
}

impl Waits {
    /// Closes the lane, if there is nothing more to wait for.
    fn check(&self) {
        if let Some(close) = self.close_lane.as_ref().filter(|_| self.are_over) {
            close();
        }
    }
}

impl Watch {
    fn begin(
        socket: Arc<Socket>,
        stop: UnixStream,
        parent: Arc<ChildEnd>,
    ) -> Result<Self, ServeError> {
        let waits = Arc::<Mutex<Waits>>::default();
        let (watched, ended) = (Arc::clone(&socket), Arc::clone(&waits));
        let watch = move || {
            let is_killed = wait_for_end(&watched, Some(&stop));
            if is_killed {
                let _ = watched.shutdown(Shutdown::Both);
                parent.shut_down();
            }
            let mut waits = unpoisoned(ended.lock());
            waits.are_over = true;
            waits.check();
            is_killed
        };
        let thread = thread::Builder::new()
            .name("windrow-relay".to_owned())
            .spawn(watch)
            .map_err(|error| ServeError::Launch(Box::new(error)))?;
        Ok(Self {
            socket,
            waits,
            thread,
        })
    }

    /// Calls `close` once there is nothing more to wait for.
    fn closes(&self, close: impl Fn() + Send + 'static) {
        let mut waits = unpoisoned(self.waits.lock());
        waits.close_lane = Some(Box::new(close));
        waits.check();
    }

    /// Closes the connection; whether the worker was to be killed.
    fn end(self) -> bool {
        let _ = self.socket.shutdown(Shutdown::Both);
        self.thread.join().unwrap_or(false)
    }
}

/// Both sides of a relay.
struct Link<'a> {
    worker: usize,
    parent: &'a ChildEnd,
    stream: &'a StreamEnd,
    /// First byte of values that the worker may not send.
    refused: Option<u8>,
}

/// What a worker process has in common with its collector.
struct Shared {
    ring: Arc<RemoteRing>,
    lane: WorkerLane<Command, Answer>,
    weights: WeightReceiver,
    /// Version that the worker has.
    held: Option<i64>,
    live: LiveWriter,
    beat: Beat,
}

impl Link<'_> {
    fn pass(&self, hello: Frame, watch: &Watch) -> Result<(), ServeError> {
        self.stream.send_with(&Said::Message, hello.body)?;
        let mut shared = loop {
            let frame = next(self.parent)?;
            match frame.parse()? {
                ToWorker::Policy(_) | ToWorker::Bind(_) => {
                    self.stream.send_with(&Said::Message, frame.body)?;
                    self.pass_message(Deadline::Never)?;
                }
                ToWorker::Ready(ready) => {
                    let shared = self.shared(*ready, frame.fds)?;
                    self.stream.send_with(&Said::Message, frame.body)?;
                    break shared;
                }
                _ => return Err(ServeError::Order),
            }
        };
        watch.closes(shared.lane.closer());
        while let Some(command) = shared.lane.receive() {
            self.obey(&mut shared, command)?;
        }
        // It fails where the worker has ended before.
        let _ = self.stream.send(&Said::End);
        loop {
            match self.stream.receive(Deadline::after(PATIENCE))? {
                (Said::End, _) => return Ok(()),
                (Said::Message, message) => self.report(message)?,
                _ => {}
            }
        }
    }

    fn shared(&self, ready: Ready, files: Vec<OwnedFd>) -> Result<Shared, ServeError> {
        let Ok([ring, control, weights]) = <[OwnedFd; 3]>::try_from(files) else {
            return Err(ServeError::Order);
        };
        let layout = Layout::new(&ready.record, ready.shares)?;
        self.stream.allow(layout.bytes());
        let fingerprint = layout.fingerprint();
        let ring = RemoteRing::open(layout, self.parent.shared_file(ring)?)?;
        let control = ControlBlock::open(control, fingerprint)?;
        let bell = Arc::clone(&ring);
        let reader = ExchangeReader::open(weights, self.worker)?;
        Ok(Shared {
            lane: control.worker_lane(self.worker, move || bell.ring_bell())?,
            live: control.live_writer(self.worker)?,
            ring,
            weights: WeightReceiver::new(reader, ready.weights),
            held: None,
            beat: Beat::default(),
        })
    }

    /// Passes `command` on, and then the answer.
    fn obey(&self, shared: &mut Shared, command: Command) -> Result<(), ServeError> {
        let part = match command {
            Command::Fill(Fill {
                slot, part, seq, ..
            }) => {
                self.pass_weights(shared)?;
                Some(shared.ring.part(slot, part, seq)?)
            }
            _ => None,
        };
        self.stream.send(&Said::Command(command))?;
        if command.has_message() {
            let message = next(self.parent)?;
            self.stream.send_with(&Said::Message, message.body)?;
        }
        self.pass_answer(shared, part)
    }

    fn pass_weights(&self, shared: &mut Shared) -> Result<(), ServeError> {
        if let Some(newer) = shared.weights.newest(shared.held)? {
            let bytes = bytes_of(&newer.weights);
            self.stream
                .send_with(&Said::Weights(newer.version), bytes)?;
            shared.held = Some(newer.version);
        }
        Ok(())
    }

    /// Waits for the answer, to which `part` has to be filled, and for the messages behind it.
    fn pass_answer(&self, shared: &mut Shared, mut part: Option<Part>) -> Result<(), ServeError> {
        let mut is_cut = false;
        loop {
            if !is_cut && part.as_ref().is_some_and(Part::is_cut) {
                self.stream.send(&Said::Cut)?;
                is_cut = true;
            }
            match self.stream.receive(Deadline::after(SILENCE))? {
                (Said::Beat(beat), _) => shared.mirror(beat),
                (Said::Message, message) => self.report(message)?,
                (Said::Answer { answer, follow }, rows) => {
                    if let (Answer::Filled { steps, .. }, Some(mut part)) = (&answer, part.take()) {
                        part.shorten(*steps);
                        part.read_from(&rows)?;
                        if self
                            .refused
                            .is_some_and(|first| part.has_value_of(first, &rows))
                        {
                            return Err(ServeError::Refused { what: "a value" });
                        }
                        part.commit();
                    }
                    shared.lane.send(&answer)?;
                    for _ in 0..follow {
                        self.pass_message(Deadline::after(SILENCE))?;
                    }
                    return Ok(());
                }
                _ => return Err(ServeError::Order),
            }
        }
    }

    /// Passes the worker's next message on.
    fn pass_message(&self, deadline: Deadline) -> Result<(), ServeError> {
        loop {
            match self.stream.receive(deadline)? {
                (Said::Message, message) => return self.report(message),
                (Said::Beat(_), _) => {}
                _ => return Err(ServeError::Order),
            }
        }
    }

    fn report(&self, message: Vec<u8>) -> Result<(), ServeError> {
        if FromWorker::is_vast(&message)? {
            let (elements, envs) = (MOST_ELEMENTS, MOST_ENVS);
            return Err(ServeError::Vast { elements, envs });
        }
        if let Some(first) = self.refused {
            let parsed: FromWorker = decode(&message)?;
            if let Some(what) = parsed.value_of(first) {
                return Err(ServeError::Refused { what });
            }
        }
        send(self.parent.socket(), &Frame::from(message))?;
        Ok(())
    }
}

impl Shared {
    /// Notes where the worker is, as a worker process does itself.
    fn mirror(&mut self, beat: Beat) {
        if beat != self.beat {
            let ([phase, step, env], episodes) = beat.parts();
            episodes
                .enumerate()
                .for_each(|(env, episode)| self.live.episode(env, episode));
            self.live.step(step);
            self.live.env(env);
            self.live.phase(phase);
            self.beat = beat;
        }
    }
}
