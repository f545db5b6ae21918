//! A client's side of a connection: one request at a time, each done once.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::limits::LEAST_MESSAGE;
use crate::protocol::{
    Answer, Parting, Piece, Pieces, Request, VERSION, WINDOW, bare, piece, pieces, shown,
};
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

    /// Has the server do a request with the bytes `body`; the answer, and its bytes. Those of a
    /// [`Request::Push`] travel in pieces, which the request need not name.
    ///
    /// # Errors
    /// [`RemoteError`]; after all but [`RemoteError::Failed`] the next request begins anew.
    pub(crate) fn call(
        &mut self,
        request: &Request,
        body: &[u8],
    ) -> Result<(Answer, Vec<u8>), RemoteError> {
        let seq = self.last + 1;
        let answered = self.until_answered(request, &Frame::of(seq, request, body));
        match answered {
            Ok(_) => self.last = seq,
            Err(_) => self.begin_anew(),
        }
        match answered? {
            (Answer::Failed(reason), _) => Err(self.failed(reason)),
            answer => Ok(answer),
        }
    }

    /// The error for an answer that is none to the request.
    pub(crate) fn unexpected(&self, answer: &Answer) -> RemoteError {
        self.failed(format!(
            "the answer is {}, which is none to the request",
            shown(answer)
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

    fn until_answered(
        &mut self,
        request: &Request,
        asked: &Frame<&[u8]>,
    ) -> Result<(Answer, Vec<u8>), RemoteError> {
        const FIRST_PAUSE: Duration = Duration::from_millis(5);
        const LONGEST_PAUSE: Duration = Duration::from_millis(500);
        let end = Instant::now() + self.remote.timeout;
        let (mut pause, mut last) = (FIRST_PAUSE, "there was no answer".to_owned());
        loop {
            match self.attempt(request, asked, end) {
                Ok(answer) => return Ok(answer),
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

    /// Sends the request, whose frame is `asked`, over the connection that there is, or a new one,
    /// and waits for its answer. Where that fails, the connection is closed.
    fn attempt(
        &mut self,
        request: &Request,
        asked: &Frame<&[u8]>,
        end: Instant,
    ) -> Result<(Answer, Vec<u8>), Fault> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.connect(end)?,
        };
        let (seq, len) = (asked.seq, asked.body.len());
        let is_cut = matches!(request, Request::Push(_));
        if !is_cut && asked.len() > open.limit {
            return Err(too_long("a request", open.limit, asked.len()));
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
                if is_cut {
                    let (total, offset) = (len as u64, part.start as u64);
                    let push = Request::Push(Piece { total, offset });
                    self.send(&mut open, &Frame::of(seq, &push, &asked.body[part]), end)?;
                } else {
                    self.send(&mut open, asked, end)?;
                }
                unanswered += 1;
            }
            let (answer, frame) = self.receive(&mut open, end)?;
            let weights = self.remote.limits.weights;
            let body = match &answer {
                // Of a request before, which came twice.
                _ if frame.seq != seq => continue,
                Answer::Progress => {
                    unanswered = unanswered.saturating_sub(1);
                    continue;
                }
                Answer::Piece { piece, .. } if piece.total > weights as u64 => {
                    let got = usize::try_from(piece.total).unwrap_or(usize::MAX);
                    return Err(too_long("a set of weights", weights, got));
                }
                Answer::Piece { piece, version } => match received.take(&frame, *piece, *version) {
                    Ok(None) => continue,
                    Ok(Some(body)) => body,
                    Err(reason) => return Err(Fault::Retry(reason)),
                },
                _ => frame.body,
            };
            self.open = Some(open);
            return Ok((answer, body));
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

    fn receive(&self, open: &mut Open, end: Instant) -> Result<(Answer, Frame), Fault> {
        let deadline = Deadline::At(self.patience(end));
        let received = open.wire.receive(deadline, self.remote.limits.message);
        let frame = received.map_err(|error| self.lost(error, end))?;
        match self.read(&frame)? {
            Answer::Closed(parting) => Err(self.parted(parting)),
            answer => Ok((answer, frame)),
        }
    }

    /// The message of `frame`. One of the greeting comes where the network has repeated it.
    fn read(&self, frame: &Frame) -> Result<Answer, Fault> {
        frame.parse().map_err(|error| match frame.is_greeting() {
            true => Fault::Retry("expected an answer, got another greeting".to_owned()),
            false => Fault::Final(self.failed(error.to_string())),
        })
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
                GreetingError::Other(frame) => match frame.parse() {
                    Ok(Answer::Closed(parting)) => self.parted(parting),
                    _ => Fault::Retry("expected a greeting, got another frame".to_owned()),
                },
                error => self.refused(error.to_string()),
            })?;
        let sent = wire.send(deadline, &self.hello());
        sent.map_err(|error| lost(error.into()))?;
        let welcome = wire.receive(deadline, self.remote.limits.message);
        let welcome = welcome.map_err(lost)?;
        let limit = self.greeted(self.read(&welcome)?)?;
        Ok(Open { wire, limit })
    }

    /// Says which producer this is.
    fn hello(&self) -> Frame {
        let hello = Request::Hello {
            producer: self.producer,
            is_known: self.instance.is_some(),
            limit: self.remote.limits.message as u64,
        };
        bare(0, &hello)
    }

    /// Compares what the server knows of this producer; the most bytes of a message to it.
    fn greeted(&mut self, welcome: Answer) -> Result<usize, Fault> {
        match welcome {
            Answer::Welcome {
                instance,
                last,
                limit,
            } if self.instance.is_none_or(|known| known == instance)
                && (self.last..=self.last + 1).contains(&last) =>
            {
                self.instance = Some(instance);
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                Ok(self.remote.limits.message.min(limit).max(LEAST_MESSAGE))
            }
            Answer::Welcome { .. } | Answer::Forgotten => {
                Err(Fault::Final(RemoteError::Forgotten {
                    address: self.remote.address.to_string(),
                }))
            }
            Answer::Closed(parting) => Err(self.parted(parting)),
            got => {
                let got = shown(&got);
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
            let bye = bare(0, &Request::Bye);
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
