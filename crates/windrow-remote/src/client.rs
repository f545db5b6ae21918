//! A client's side of a connection: one request at a time, each done once.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::{Code, Request, Status, Streaming};
use tower_service::Service;

use crate::frame::{Frame, FrameCodec, Kind, PATH, PROTOCOL, Pieces};
use crate::remote::check_open;
use crate::transport::{self, ClientTls, LEAST_MESSAGE, distrust, told};
use crate::{Address, Remote, RemoteError};

/// A producer of requests and its connection, which it opens again when it is lost.
pub(crate) struct Link {
    pub(crate) remote: Remote,
    tls: Option<ClientTls>,
    runtime: Option<Runtime>,
    open: Option<Open>,
    /// By which the server knows its requests.
    producer: u128,
    /// The run of the server that knows it.
    instance: Option<u64>,
    /// Its last request that was answered.
    last: u64,
}

struct Open {
    talk: Talk,
    _driver: Driver,
}

/// The stream of requests and answers.
struct Talk {
    /// Ends the connection when it is dropped.
    _grpc: tonic::client::Grpc<Sender>,
    /// Most bytes of a message to the server.
    limit: usize,
    out: UnboundedSender<Frame>,
    answers: Streaming<Frame>,
}

/// What carries a connection, until it is dropped.
struct Driver(JoinHandle<Result<(), hyper::Error>>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How long a connection that fails may take to say why.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Why an attempt gave no answer.
enum Fault {
    Retry(String),
    Final(RemoteError),
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
            (Some(tls), Address::Unix(_)) => Some((tls.for_client()?, tls.name("localhost")?)),
        };
        Ok(Self {
            remote: remote.clone(),
            tls,
            runtime: None,
            open: None,
            producer: random(),
            instance: None,
            last: 0,
        })
    }

    /// A producer of its own at the same server.
    pub(crate) fn another(&self) -> Self {
        Self {
            remote: self.remote.clone(),
            tls: self.tls.clone(),
            runtime: None,
            open: None,
            producer: random(),
            instance: None,
            last: 0,
        }
    }

    /// Which producer this is; another one after each error that leaves open whether a request was done.
    pub(crate) fn producer(&self) -> u128 {
        self.producer
    }

    /// Has the server do the request whose frames `frames` gives by its number and the most bytes of each; the answer.
    ///
    /// # Errors
    /// [`RemoteError`]; after all but [`RemoteError::Failed`] the next request begins anew.
    pub(crate) fn call(
        &mut self,
        frames: impl Fn(u64, usize) -> Vec<Frame>,
    ) -> Result<Frame, RemoteError> {
        if Handle::try_current().is_ok() {
            return Err(RemoteError::WithinRuntime);
        }
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(RemoteError::Thread)?,
        };
        let seq = self.last + 1;
        let answered = runtime.block_on(self.until_answered(&frames, seq));
        match answered {
            Ok(_) => self.last = seq,
            Err(_) => self.begin_anew(),
        }
        self.runtime = Some(runtime);
        let frame = answered?;
        match frame.kind {
            Kind::Failed => Err(RemoteError::Failed {
                address: self.remote.address.to_string(),
                reason: frame.text(),
            }),
            _ => Ok(frame),
        }
    }

    /// The error for an answer that is none to the request.
    pub(crate) fn unexpected(&self, answer: &Frame) -> RemoteError {
        RemoteError::Failed {
            address: self.remote.address.to_string(),
            reason: format!(
                "the answer is {:?}, which is none to the request",
                answer.kind
            ),
        }
    }

    fn begin_anew(&mut self) {
        self.open = None;
        (self.producer, self.instance, self.last) = (random(), None, 0);
    }

    async fn until_answered(
        &mut self,
        frames: &impl Fn(u64, usize) -> Vec<Frame>,
        seq: u64,
    ) -> Result<Frame, RemoteError> {
        const FIRST_PAUSE: Duration = Duration::from_millis(5);
        const LONGEST_PAUSE: Duration = Duration::from_millis(500);
        let deadline = Instant::now() + self.remote.timeout;
        let (mut pause, mut last) = (FIRST_PAUSE, "there was no answer".to_owned());
        loop {
            match timeout_at(deadline, self.attempt(frames, seq)).await {
                Ok(Ok(frame)) => return Ok(frame),
                Ok(Err(Fault::Final(error))) => return Err(error),
                Ok(Err(Fault::Retry(reason))) => last = reason,
                Err(_) => {}
            }
            self.open = None;
            // Clients that lost the same server do not all return at once.
            let jitter = 0.5 + (random() % 1024) as f64 / 1024.0;
            sleep_until(deadline.min(Instant::now() + pause.mul_f64(jitter))).await;
            if Instant::now() >= deadline {
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
    async fn attempt(
        &mut self,
        frames: &impl Fn(u64, usize) -> Vec<Frame>,
        seq: u64,
    ) -> Result<Frame, Fault> {
        let silence = self.remote.silence;
        let mut open = match self.open.take() {
            Some(open) => open,
            None => match timeout(silence, self.connect()).await {
                Ok(open) => open?,
                Err(_) => return Err(Fault::Retry(format!("no connection within {silence:?}"))),
            },
        };
        let (frames, limit) = (frames(seq, open.talk.limit), open.talk.limit);
        if let Some(got) = frames.iter().map(Frame::len).find(|len| *len > limit) {
            return Err(Fault::Final(RemoteError::Limit {
                what: "a request",
                limit,
                got,
            }));
        }
        for frame in frames {
            let sent = open.talk.out.send(frame);
            sent.map_err(|_| Fault::Retry("the connection was lost".to_owned()))?;
        }
        let mut pieces = Pieces::default();
        loop {
            let frame = self.receive(&mut open.talk).await?;
            let answer = match frame.kind {
                // Of a request before, which came twice.
                _ if frame.seq != seq => continue,
                Kind::Progress => continue,
                Kind::Piece if frame.words[0] > self.remote.limits.weights as u64 => {
                    return Err(Fault::Final(RemoteError::Limit {
                        what: "a set of weights",
                        limit: self.remote.limits.weights,
                        got: usize::try_from(frame.words[0]).unwrap_or(usize::MAX),
                    }));
                }
                Kind::Piece => match pieces.take(&frame) {
                    Ok(None) => continue,
                    Ok(Some(bytes)) => Frame::new(Kind::Piece, seq, frame.words, bytes),
                    Err(reason) => return Err(Fault::Retry(reason)),
                },
                _ => frame,
            };
            self.open = Some(open);
            return Ok(answer);
        }
    }

    async fn receive(&self, talk: &mut Talk) -> Result<Frame, Fault> {
        let silence = self.remote.silence;
        match timeout(silence, talk.answers.message()).await {
            Ok(Ok(Some(frame))) => Ok(frame),
            Ok(Ok(None)) => Err(Fault::Retry("the server closed the connection".to_owned())),
            Ok(Err(status)) => Err(self.fault(&status)),
            Err(_) => Err(Fault::Retry(format!(
                "the server was silent for {silence:?}"
            ))),
        }
    }

    async fn connect(&mut self) -> Result<Open, Fault> {
        let remote = &self.remote;
        let stream = transport::connect(&remote.address, self.tls.as_ref())
            .await
            .map_err(|error| match distrust(&error) {
                Some(reason) => self.refused(reason),
                None if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    self.refused(error.to_string())
                }
                None => Fault::Retry(error.to_string()),
            })?;
        let lost = |error: hyper::Error| match distrust(&error) {
            Some(reason) => self.refused(reason),
            None => Fault::Retry(told(&error)),
        };
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(transport::STREAM_WINDOW)
            .initial_connection_window_size(transport::CONNECTION_WINDOW)
            .max_frame_size(transport::MAX_FRAME)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(lost)?;
        let mut driver = Driver(tokio::spawn(connection));
        let fault = match self.talk(Sender(sender)).await {
            Ok(talk) => {
                return Ok(Open {
                    talk,
                    _driver: driver,
                });
            }
            Err(fault) => fault,
        };
        // A server that wants another certificate says so after the handshake, to the connection.
        if let (Some(_), Fault::Retry(_)) = (&self.tls, &fault)
            && let Ok(Ok(Err(error))) = timeout(LAST_WORDS, &mut driver.0).await
            && let Some(reason) = distrust(&error)
        {
            return Err(self.refused(reason));
        }
        Err(fault)
    }

    /// Opens the stream of requests and answers.
    async fn talk(&mut self, sender: Sender) -> Result<Talk, Fault> {
        let (out, outbox) = unbounded_channel();
        let mut request = Request::new(Outbox(outbox));
        if let Some(token) = &self.remote.token {
            let header = token.header().parse();
            let header = header.map_err(|_| self.refused("the token is no header"))?;
            request.metadata_mut().insert("authorization", header);
        }
        let limit = self.remote.limits.message;
        let origin = http::Uri::from_static("http://windrow");
        let mut grpc = tonic::client::Grpc::with_origin(sender, origin)
            .max_decoding_message_size(limit)
            .max_encoding_message_size(limit);
        let path = http::uri::PathAndQuery::from_static(PATH);
        let answers = grpc.streaming(request, path, FrameCodec).await;
        let mut talk = Talk {
            answers: answers.map_err(|status| self.fault(&status))?.into_inner(),
            _grpc: grpc,
            limit,
            out,
        };
        self.greet(&mut talk).await?;
        Ok(talk)
    }

    /// Says which producer this is, and compares what the server knows of it.
    async fn greet(&mut self, talk: &mut Talk) -> Result<(), Fault> {
        let (low, high) = (self.producer as u64, (self.producer >> 64) as u64);
        let words = [low, high, u64::from(self.instance.is_some())];
        let limit = self.remote.limits.message as u64;
        let body = [PROTOCOL.to_le_bytes(), limit.to_le_bytes()].concat();
        let hello = Frame::new(Kind::Hello, 0, words, body);
        talk.out
            .send(hello)
            .map_err(|_| Fault::Retry("the connection was lost".to_owned()))?;
        let welcome = self.receive(talk).await?;
        let [instance, last, limit] = welcome.words;
        match welcome.kind {
            Kind::Welcome
                if self.instance.is_none_or(|known| known == instance)
                    && (self.last..=self.last + 1).contains(&last) =>
            {
                self.instance = Some(instance);
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                talk.limit = talk.limit.min(limit).max(LEAST_MESSAGE);
                Ok(())
            }
            Kind::Welcome | Kind::Forgotten => Err(Fault::Final(RemoteError::Forgotten {
                address: self.remote.address.to_string(),
            })),
            Kind::Failed => Err(self.refused(welcome.text())),
            other => Err(Fault::Retry(format!("expected a welcome, got {other:?}"))),
        }
    }

    fn refused(&self, reason: impl Into<String>) -> Fault {
        Fault::Final(RemoteError::Refused {
            address: self.remote.address.to_string(),
            reason: reason.into(),
        })
    }

    fn fault(&self, status: &Status) -> Fault {
        let address = || self.remote.address.to_string();
        let reason = status.message().to_owned();
        match status.code() {
            Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => {
                self.refused(reason)
            }
            Code::Aborted => Fault::Final(RemoteError::Ended {
                address: address(),
                reason,
            }),
            Code::FailedPrecondition | Code::InvalidArgument => Fault::Final(RemoteError::Failed {
                address: address(),
                reason,
            }),
            _ => match distrust(status) {
                Some(reason) => self.refused(reason),
                None => Fault::Retry(told(status)),
            },
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        const PARTING: Duration = Duration::from_millis(100);
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        if let Some(mut open) = self.open.take()
            && Handle::try_current().is_err()
            && open
                .talk
                .out
                .send(Frame::new(Kind::Bye, 0, [0; 3], Vec::new()))
                .is_ok()
        {
            // Whether it arrives or not: the server forgets the silent.
            let _ = runtime.block_on(async { timeout(PARTING, open.talk.answers.message()).await });
        }
        runtime.shutdown_background();
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

/// Frames on their way out.
struct Outbox(UnboundedReceiver<Frame>);

impl Stream for Outbox {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        self.0.poll_recv(cx)
    }
}

/// A connection as the service that the RPC library calls.
struct Sender(SendRequest<Body>);

impl Service<http::Request<Body>> for Sender {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A number that nobody else has: hashed with keys that the system draws for each thread.
pub(crate) fn random() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(std::time::SystemTime::now()));
    half() << 64 | half()
}
