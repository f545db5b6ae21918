//! Streams of bytes to and from a server, and what both sides of a connection share.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, Error as TlsError};

use crate::{Address, RemoteError};

/// Bytes in both directions.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Bytes that may be on their way without being asked for: of a stream, and of a connection.
pub(crate) const STREAM_WINDOW: u32 = 1 << 20;
pub(crate) const CONNECTION_WINDOW: u32 = 2 << 20;

/// Largest frame of HTTP/2.
pub(crate) const MAX_FRAME: u32 = 256 << 10;

/// Bytes of weights in a frame, of which `limit` bytes are allowed.
pub(crate) fn piece(limit: usize) -> usize {
    (limit - crate::frame::HEAD).min(512 << 10)
}

/// Fewest bytes that a limit of messages allows.
pub(crate) const LEAST_MESSAGE: usize = 1024;

/// How large messages may be; both sides of a connection check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a message, 4 MiB by default: the observations of one client, or the answer to them. Weights travel in pieces.
    pub message: usize,
    /// Bytes of all weights, 1 GiB by default.
    pub weights: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message: 4 << 20,
            weights: 1 << 30,
        }
    }
}

impl Limits {
    /// The default limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with messages of at most `bytes` bytes.
    #[must_use]
    pub fn message(mut self, bytes: usize) -> Self {
        self.message = bytes;
        self
    }

    /// The same with weights of at most `bytes` bytes.
    #[must_use]
    pub fn weights(mut self, bytes: usize) -> Self {
        self.weights = bytes;
        self
    }

    pub(crate) fn check(&self) -> Result<(), RemoteError> {
        const RANGE: std::ops::RangeInclusive<usize> = LEAST_MESSAGE..=1 << 30;
        match RANGE.contains(&self.message) {
            true => Ok(()),
            false => Err(RemoteError::Setting {
                name: "limits.message",
                expected: "within 1 KiB to 1 GiB",
                got: self.message.to_string(),
            }),
        }
    }
}

/// What a client needs for TLS.
pub(crate) type ClientTls = (Arc<ClientConfig>, ServerName<'static>);

/// Connects to `address`, with TLS where there is `tls`.
pub(crate) async fn connect(address: &Address, tls: Option<&ClientTls>) -> io::Result<Box<dyn Io>> {
    let stream: Box<dyn Io> = match address {
        Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
        Address::Tcp { host, port } => {
            let mut last = io::Error::from(io::ErrorKind::NotFound);
            let mut connected = None;
            for found in Address::resolve(host, *port)? {
                match TcpStream::connect(found).await {
                    Ok(stream) => {
                        connected = Some(stream);
                        break;
                    }
                    Err(error) => last = error,
                }
            }
            let stream = connected.ok_or(last)?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    };
    match tls {
        None => Ok(stream),
        Some((config, name)) => {
            let connector = TlsConnector::from(Arc::clone(config));
            Ok(Box::new(connector.connect(name.clone(), stream).await?))
        }
    }
}

/// Why one of the two sides does not trust the other, if `error` says so: to try again would not help.
pub(crate) fn distrust(error: &(dyn Error + 'static)) -> Option<String> {
    const ALERT: &str = "received fatal alert: ";
    const FINAL: [&str; 7] = [
        "AccessDenied",
        "BadCertificate",
        "CertificateExpired",
        "CertificateRequired",
        "CertificateUnknown",
        "DecryptError",
        "UnknownCA",
    ];
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        let tls = inner.and_then(|inner| inner.downcast_ref::<TlsError>());
        let text = error.to_string();
        // HTTP/2 keeps nothing but the text of an error.
        let alert = text
            .split_once(ALERT)
            .is_some_and(|(_, alert)| FINAL.contains(&alert));
        if alert || matches!(tls, Some(TlsError::InvalidCertificate(_))) {
            return Some(text);
        }
        cause = error.source();
    }
    None
}

/// `error` with what caused it.
pub(crate) fn told(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// The result of whichever of two comes first; of `a`, where both are there.
pub(crate) async fn first<A: Future, B: Future>(
    mut a: Pin<&mut A>,
    mut b: Pin<&mut B>,
) -> Result<A::Output, B::Output> {
    std::future::poll_fn(move |cx: &mut Context<'_>| match a.as_mut().poll(cx) {
        Poll::Ready(a) => Poll::Ready(Ok(a)),
        Poll::Pending => b.as_mut().poll(cx).map(Err),
    })
    .await
}
