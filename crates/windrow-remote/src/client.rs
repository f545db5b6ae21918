//! A client's side of a connection: one request at a time, each done once.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::limits::LEAST_MESSAGE;
use crate::protocol::{self, Kind, Parting, Pieces, VERSION, WINDOW, piece, pieces};
use crate::remote::check_open;
use crate::security::distrust;
use crate::{Address, Remote, RemoteError, Token};
use windrow_peer::net::{
    self, ClientTls, Deadline, Frame, FrameError, GreetingError, Stream, Wire,
};

/// A producer of requests and its connection, which it opens again when it is lost.
pub(crate) struct Link {
    pub(crate) remote: Remote,
    tls: Option<ClientTls>,
    open: Option<Open>,
    /// By which the server knows its requests.
    producer: u128,
    /// The run of the server that knows it.
    instance: Option<u64>,
    /// Its last request that was answered.
    last: u64,
}

struct Open {
    wire: Wire,
    /// Most bytes of a message to the server.
    limit: usize,
}

/// Why an attempt gave no answer.
enum Fault {
    Retry(String),
    Final(RemoteError),
    /// The time of the call is over.
    Late,
}

impl Link {
    pub(crate) fn new(remote: &Remote) -> Result<Self, RemoteError> {
        check_open(&remote.address, remote.token.as_ref(), remote.tls.as_ref())?;
        remote.limits.check()?;
        for (name, time) in [("timeout", remote.timeout), ("silence", remote.silence)] {
            if time.is_zero() || time > Duration::from_secs(1 << 30) {
                return Err(RemoteError::Setting {
                    name,
                    expected: "more than none and less than 34 years",
                    got: format!("{time:?}"),
                });
            }
        }
        let tls = match (&remote.tls, &remote.address) {
            (None, _) => None,
            (Some(tls), Address::Tcp { host, .. }) => Some((tls.for_client()?, tls.name(host)?)),
            (Some(tls), _) => Some((tls.for_client()?, tls.name("localhost")?)),
        };
        Ok(Self::unconnected(remote.clone(), tls))
    }

    fn unconnected(remote: Remote, tls: Option<ClientTls>) -> Self {
        Self {
            remote,
            tls,
            open: None,
            producer: random(),
            instance: None,
            last: 0,
        }
    }

    /// A producer of its own at the same server.
    pub(crate) fn another(&self) -> Self {
        Self::unconnected(self.remote.clone(), self.tls.clone())
    }

    /// Which producer this is; another one after each error that leaves open whether a request was
    /// done.
    pub(crate) fn producer(&self) -> u128 {
        self.producer
    }

    /// Has the server do a request; the answer. The body of a [`Kind::Push`] travels in pieces.
    ///
    /// # Errors
    /// [`RemoteError`]; after all but [`RemoteError::Failed`] the next request begins anew.
    pub(crate) fn call(
        &mut self,
        kind: Kind,
        words: [u64; 3],
        body: &[u8],
    ) -> Result<Frame, RemoteError> {
        let request = kind.frame(self.last + 1, words, body);
        let answered = self.until_answered(&request);
        match answered {
            Ok(_) => self.last = request.seq,
            Err(_) => self.begin_anew(),
        }
        let frame = answered?;
        match Kind::of(&frame) {
            Some(Kind::Failed) => Err(self.failed(frame.text())),
            _ => Ok(frame),
        }
    }

    /// The error for an answer that is none to the request.
    pub(crate) fn unexpected(&self, answer: &Frame) -> RemoteError {
        self.failed(format!(
            "the answer is {}, which is none to the request",
            protocol::name(answer)
        ))
    }

    /// The error for a request that failed, and changed nothing.
    pub(crate) fn failed(&self, reason: String) -> RemoteError {
        let address = self.remote.address.to_string();
        RemoteError::Failed { address, reason }
    }

    fn begin_anew(&mut self) {
        self.open = None;
        (self.producer, self.instance, self.last) = (random(), None, 0);
    }

    fn until_answered(&mut self, request: &Frame<&[u8]>) -> Result<Frame, RemoteError> {
        const FIRST_PAUSE: Duration = Duration::from_millis(5);
        const LONGEST_PAUSE: Duration = Duration::from_millis(500);
        let end = Instant::now() + self.remote.timeout;
        let (mut pause, mut last) = (FIRST_PAUSE, "there was no answer".to_owned());
        loop {
            match self.attempt(request, end) {
                Ok(frame) => return Ok(frame),
                Err(Fault::Final(error)) => return Err(error),
                Err(Fault::Retry(reason)) => last = reason,
                Err(Fault::Late) => {}
            }
            // Clients that lost the same server do not all return at once.
            let jitter = 0.5 + (random() % 1024) as f64 / 1024.0;
            let left = end.saturating_duration_since(Instant::now());
            std::thread::sleep(pause.mul_f64(jitter).min(left));
            if Instant::now() >= end {
                return Err(RemoteError::Timeout {
                    address: self.remote.address.to_string(),
                    waited: self.remote.timeout,
                    last,
                });
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Sends the request over the connection that there is, or a new one, and waits for its answer.
    /// Where that fails, the connection is closed.
    fn attempt(&mut self, request: &Frame<&[u8]>, end: Instant) -> Result<Frame, Fault> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.connect(end)?,
        };
        let (seq, len) = (request.seq, request.body.len());
        let is_cut = Kind::of(request) == Some(Kind::Push);
        if !is_cut && request.len() > open.limit {
            return Err(too_long("a request", open.limit, request.len()));
        }
        let most = if is_cut {
            piece(open.limit)
        } else {
            len.max(1)
        };
        let mut parts = pieces(len, most);
        let (mut unanswered, mut received) = (0, Pieces::default());
        loop {
            while unanswered < WINDOW
                && let Some(part) = parts.next()
            {
                let mut frame = Frame { ..*request };
                if is_cut {
                    frame.words = [len as u64, part.start as u64, 0];
                    frame.body = &request.body[part];
                }
                self.send(&mut open, &frame, end)?;
                unanswered += 1;
            }
            let frame = self.receive(&mut open, end)?;
            let weights = self.remote.limits.weights;
            let answer = match Kind::of(&frame) {
                // Of a request before, which came twice.
                _ if frame.seq != seq => continue,
                Some(Kind::Progress) => {
                    unanswered = unanswered.saturating_sub(1);
                    continue;
                }
                Some(Kind::Piece) if frame.words[0] > weights as u64 => {
                    let got = usize::try_from(frame.words[0]).unwrap_or(usize::MAX);
                    return Err(too_long("a set of weights", weights, got));
                }
                Some(Kind::Piece) => match received.take(&frame) {
                    Ok(None) => continue,
                    Ok(Some(body)) => Frame { body, ..frame },
                    Err(reason) => return Err(Fault::Retry(reason)),
                },
                _ => frame,
            };
            self.open = Some(open);
            return Ok(answer);
        }
    }

    /// Until when the server may say nothing, in a call that ends at `end`.
    fn patience(&self, end: Instant) -> Instant {
        end.min(Instant::now() + self.remote.silence)
    }

    fn send(&self, open: &mut Open, frame: &Frame<&[u8]>, end: Instant) -> Result<(), Fault> {
        /// How long a connection that fails may take to say why.
        const LAST_WORDS: Duration = Duration::from_millis(300);
        let sent = open.wire.send(Deadline::At(self.patience(end)), frame);
        sent.or_else(|error| {
            let deadline = end.min(Instant::now() + LAST_WORDS);
            loop {
                match self.receive(open, deadline) {
                    Ok(_) => {}
                    Err(Fault::Final(error)) => return Err(Fault::Final(error)),
                    Err(_) => return Err(self.lost(FrameError::Io(error), end)),
                }
            }
        })
    }

    fn receive(&self, open: &mut Open, end: Instant) -> Result<Frame, Fault> {
        let deadline = Deadline::At(self.patience(end));
        let received = open.wire.receive(deadline, self.remote.limits.message);
        let frame = received.map_err(|error| self.lost(error, end))?;
        match Kind::of(&frame) {
            Some(Kind::Closed) => Err(self.parted(Parting::of(&frame))),
            _ => Ok(frame),
        }
    }

    fn connect(&mut self, end: Instant) -> Result<Open, Fault> {
        let patience = self.patience(end);
        let lost = |error| match &error {
            FrameError::Io(io) if is_late(io) && patience < end => {
                let silence = self.remote.silence;
                Fault::Retry(format!("no connection within {silence:?}"))
            }
            _ => self.lost(error, end),
        };
        let socket = net::connect(&self.remote.address, patience);
        let socket = socket.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => self.refused(error.to_string()),
            _ => lost(FrameError::Io(error)),
        })?;
        let stream = Stream::client(Arc::new(socket), self.tls.as_ref())
            .map_err(|error| self.refused(error.to_string()))?;
        let mut wire = Wire::new(stream, VERSION);
        let deadline = Deadline::At(patience);
        let token = self.remote.token.as_ref().map(Token::secret);
        wire.greet_server(token, deadline)
            .map_err(|error| match error {
                GreetingError::Frame(error) => lost(error),
                GreetingError::Other(frame) if Kind::of(&frame) == Some(Kind::Closed) => {
                    self.parted(Parting::of(&frame))
                }
                GreetingError::Other(frame) => {
                    let got = protocol::name(&frame);
                    Fault::Retry(format!("expected a greeting, got a frame {got}"))
                }
                error => self.refused(error.to_string()),
            })?;
        let sent = wire.send(deadline, &self.hello());
        sent.map_err(|error| lost(error.into()))?;
        let welcome = wire.receive(deadline, self.remote.limits.message);
        let welcome = welcome.map_err(lost)?;
        let limit = self.greeted(&welcome)?;
        Ok(Open { wire, limit })
    }

    /// Says which producer this is.
    fn hello(&self) -> Frame {
        let (low, high) = (self.producer as u64, (self.producer >> 64) as u64);
        let body = (self.remote.limits.message as u64).to_le_bytes().to_vec();
        Kind::Hello.frame(0, [low, high, u64::from(self.instance.is_some())], body)
    }

    /// Compares what the server knows of this producer; the most bytes of a message to it.
    fn greeted(&mut self, welcome: &Frame) -> Result<usize, Fault> {
        let [instance, last, limit] = welcome.words;
        match Kind::of(welcome) {
            Some(Kind::Welcome)
                if self.instance.is_none_or(|known| known == instance)
                    && (self.last..=self.last + 1).contains(&last) =>
            {
                self.instance = Some(instance);
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                Ok(self.remote.limits.message.min(limit).max(LEAST_MESSAGE))
            }
            Some(Kind::Welcome | Kind::Forgotten) => Err(Fault::Final(RemoteError::Forgotten {
                address: self.remote.address.to_string(),
            })),
            Some(Kind::Closed) => Err(self.parted(Parting::of(welcome))),
            _ => {
                let got = protocol::name(welcome);
                Err(Fault::Retry(format!("expected a welcome, got {got}")))
            }
        }
    }

    fn refused(&self, reason: String) -> Fault {
        let address = self.remote.address.to_string();
        Fault::Final(RemoteError::Refused { address, reason })
    }

    /// The server has ended the connection.
    fn parted(&self, parting: Parting) -> Fault {
        let address = self.remote.address.to_string();
        match parting {
            Parting::Refused(reason) => self.refused(reason),
            Parting::Misused(reason) => Fault::Final(self.failed(reason)),
            Parting::Again(reason) => Fault::Retry(reason),
            Parting::Ended | Parting::Silent => Fault::Final(RemoteError::Ended {
                address,
                reason: "it was shut down".to_owned(),
            }),
        }
    }

    /// The connection is of no use any more, in a call that ends at `end`.
    fn lost(&self, error: FrameError, end: Instant) -> Fault {
        match error {
            FrameError::Closed => Fault::Retry("the server closed the connection".to_owned()),
            FrameError::Io(error) if is_late(&error) && Instant::now() >= end => Fault::Late,
            FrameError::Io(error) if is_late(&error) => {
                let silence = self.remote.silence;
                Fault::Retry(format!("the server was silent for {silence:?}"))
            }
            FrameError::Io(error) => match distrust(&error) {
                Some(reason) => self.refused(reason),
                None => Fault::Retry(error.to_string()),
            },
            FrameError::Limit { limit, got } => too_long("an answer", limit, got),
            error @ FrameError::Flags(_) => Fault::Final(self.failed(error.to_string())),
            error @ (FrameError::Stranger | FrameError::Broken) => Fault::Retry(error.to_string()),
        }
    }
}

fn is_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

fn too_long(what: &'static str, limit: usize, got: usize) -> Fault {
    Fault::Final(RemoteError::Limit { what, limit, got })
}

impl Drop for Link {
    fn drop(&mut self) {
        const PARTING: Duration = Duration::from_millis(100);
        if let Some(mut open) = self.open.take() {
            // Whether it arrives or not: the server forgets the silent.
            let bye = Kind::Bye.bare(0, [0; 3]);
            let _ = open.wire.send(Deadline::after(PARTING), &bye);
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("address", &self.remote.address)
            .field("connected", &self.open.is_some())
            .finish_non_exhaustive()
    }
}

/// A number that nobody else has.
pub(crate) fn random() -> u128 {
    u128::from(windrow_sync::entropy()) << 64 | u128::from(windrow_sync::entropy())
}
