//! Streams of bytes with deadlines: TCP, Unix sockets, and TLS over either.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::SendFlags;
use rustls::pki_types::ServerName;
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, ServerConfig, ServerConnection, SideData,
    StreamOwned,
};
use socket2::{SockAddr, Socket, Type};

use super::Address;

/// When reading and writing end with [`io::ErrorKind::TimedOut`], however often a few bytes come or
/// go until then.
#[derive(Debug, Clone, Copy)]
pub enum Deadline {
    /// There is none.
    Never,
    /// At this time.
    At(Instant),
    /// This long after the first bytes that are read, or after the beginning of a write.
    OnceBegun(Duration),
}

impl Deadline {
    /// So long from now on.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Instant::now()
            .checked_add(time)
            .map_or(Self::Never, Self::At)
    }

    /// The time that is left; `None` for any.
    fn left(self) -> io::Result<Option<Duration>> {
        match self {
            Self::At(end) => match end.checked_duration_since(Instant::now()) {
                None | Some(Duration::ZERO) => Err(io::ErrorKind::TimedOut.into()),
                left => Ok(left),
            },
            Self::Never | Self::OnceBegun(_) => Ok(None),
        }
    }
}

/// A socket with a deadline.
pub(super) struct Timed {
    /// Others may shut it down, which ends a call that waits.
    socket: Arc<Socket>,
    deadline: Deadline,
}

/// On Apple's systems, sockets are made so that none sends a signal.
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: SendFlags = SendFlags::empty();
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;

impl Timed {
    fn new(socket: Arc<Socket>) -> Self {
        Self {
            socket,
            deadline: Deadline::Never,
        }
    }

    fn begin(&mut self) {
        if let Deadline::OnceBegun(time) = self.deadline {
            self.deadline = Deadline::after(time);
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        // A child of fork may have a copy, with which the other side would see no end.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Whether a call ended without a result before its deadline, and is to be repeated.
fn is_early(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
    )
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            self.socket.set_read_timeout(self.deadline.left()?)?;
            match (&*self.socket).read(bytes) {
                Err(error) if is_early(&error) => {}
                read => {
                    self.begin();
                    return read;
                }
            }
        }
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begin();
        loop {
            self.socket.set_write_timeout(self.deadline.left()?)?;
            match rustix::net::send(&*self.socket, bytes, NO_SIGNAL).map_err(io::Error::from) {
                Err(error) if is_early(&error) => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What carries bytes over a socket.
trait Layer: Read + Write + Send + Sync {
    fn socket(&mut self) -> &mut Timed;
}

impl Layer for Timed {
    fn socket(&mut self) -> &mut Timed {
        self
    }
}

impl<C, S> Layer for StreamOwned<C, Timed>
where
    C: std::ops::DerefMut<Target = ConnectionCommon<S>> + Send + Sync,
    S: SideData,
{
    fn socket(&mut self) -> &mut Timed {
        self.get_mut()
    }
}

/// What a client needs for TLS.
pub type ClientTls = (Arc<ClientConfig>, ServerName<'static>);

/// Bytes in both directions, each call of which ends at the deadline. With TLS, the first call
/// shakes hands.
pub struct Stream(Box<dyn Layer>);

impl Stream {
    /// The server's side of a connection.
    ///
    /// # Errors
    /// Those of rustls for a configuration that cannot be used.
    pub fn server(
        socket: Arc<Socket>,
        tls: Option<&Arc<ServerConfig>>,
    ) -> Result<Self, rustls::Error> {
        let socket = Timed::new(socket);
        Ok(Self(match tls {
            None => Box::new(socket),
            Some(tls) => {
                let tls = ServerConnection::new(Arc::clone(tls))?;
                Box::new(StreamOwned::new(tls, socket))
            }
        }))
    }

    /// The client's side of a connection.
    ///
    /// # Errors
    /// Those of rustls for a configuration that cannot be used.
    pub fn client(socket: Arc<Socket>, tls: Option<&ClientTls>) -> Result<Self, rustls::Error> {
        let socket = Timed::new(socket);
        Ok(Self(match tls {
            None => Box::new(socket),
            Some((tls, name)) => {
                let tls = ClientConnection::new(Arc::clone(tls), name.clone())?;
                Box::new(StreamOwned::new(tls, socket))
            }
        }))
    }

    pub(super) fn set_deadline(&mut self, deadline: Deadline) {
        self.0.socket().deadline = deadline;
    }

    /// Sends no more, and reads until the other side closes.
    pub(super) fn finish(&mut self) {
        let socket = self.0.socket();
        let mut rest = [0; 4096];
        if socket.socket.shutdown(Shutdown::Write).is_ok() {
            while socket.read(&mut rest).is_ok_and(|bytes| bytes > 0) {}
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(bytes)?;
        // TLS may have had them.
        self.0.socket().begin();
        Ok(read)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Connects to `address` until `end`.
///
/// # Errors
/// Those of the system, for the last target that was tried.
pub fn connect(address: &Address, end: Instant) -> io::Result<Socket> {
    let targets = match address {
        Address::Unix(path) => vec![SockAddr::unix(path)?],
        Address::Tcp { host, port } => {
            let found = Address::resolve(host, *port)?;
            found.into_iter().map(SockAddr::from).collect()
        }
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for (tried, target) in targets.iter().enumerate() {
        // One that does not answer leaves time for the others.
        let left = end.saturating_duration_since(Instant::now());
        let share = left / (targets.len() - tried) as u32;
        let socket = Socket::new(target.domain(), Type::STREAM, None)?;
        match socket.connect_timeout(target, share) {
            Ok(()) => {
                if !target.is_unix() {
                    socket.set_tcp_nodelay(true)?;
                }
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread::{sleep, spawn};

    use super::*;

    const SOON: Duration = Duration::from_millis(200);

    /// A client's stream, plain or with TLS, and the other side of its socket.
    fn pair(tls: bool) -> (Stream, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        let tls = tls.then(|| {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            let mut roots = rustls::RootCertStore::empty();
            let authority = params.self_signed(&key).unwrap();
            roots.add(authority.der().clone()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&rustls::version::TLS13])
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
            (Arc::new(config), ServerName::try_from("localhost").unwrap())
        });
        let socket = Arc::new(OwnedFd::from(here).into());
        (Stream::client(socket, tls.as_ref()).unwrap(), there)
    }

    /// Writes the beginning of a long record of TLS, and the rest a byte at a time.
    fn trickle(mut there: UnixStream) {
        let bytes = [22, 3, 3, 64, 0].into_iter().chain(std::iter::repeat(0));
        for byte in bytes {
            if there.write_all(&[byte]).is_err() {
                return;
            }
            sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_deadline_holds_however_slowly_bytes_come() {
        for tls in [false, true] {
            let (mut stream, there) = pair(tls);
            let trickling = spawn(|| trickle(there));
            let began = Instant::now();
            stream.set_deadline(Deadline::after(SOON));
            let error = stream.read_exact(&mut [0; 4096]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "TLS: {tls}");
            assert!((SOON..50 * SOON).contains(&began.elapsed()));
            drop(stream);
            trickling.join().unwrap();
        }
    }

    #[test]
    fn a_deadline_holds_however_slowly_bytes_are_taken() {
        let (mut stream, mut there) = pair(false);
        let taking = spawn(move || {
            while there.read(&mut [0]).is_ok_and(|bytes| bytes > 0) {
                sleep(Duration::from_millis(5));
            }
        });
        let began = Instant::now();
        stream.set_deadline(Deadline::after(SOON));
        let error = stream.write_all(&vec![0; 16 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!((SOON..50 * SOON).contains(&began.elapsed()));
        drop(stream);
        // What lies in the socket would take it long.
        drop(taking);
    }

    #[test]
    fn a_deadline_may_begin_with_the_first_bytes() {
        let (mut stream, mut there) = pair(false);
        let began = Instant::now();
        let writing = spawn(move || {
            sleep(2 * SOON);
            there.write_all(&[0]).unwrap();
            there
        });
        stream.set_deadline(Deadline::OnceBegun(SOON));
        let error = stream.read_exact(&mut [0; 2]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!((3 * SOON..50 * SOON).contains(&began.elapsed()));
        drop(writing.join().unwrap());
    }

    #[test]
    fn a_call_that_waits_ends_when_others_shut_the_socket_down() {
        let (here, _there) = UnixStream::pair().unwrap();
        let socket: Arc<Socket> = Arc::new(OwnedFd::from(here).into());
        let mut stream = Stream::client(Arc::clone(&socket), None).unwrap();
        let reading = spawn(move || stream.read(&mut [0]).unwrap());
        sleep(Duration::from_millis(20));
        socket.shutdown(Shutdown::Read).unwrap();
        assert_eq!(reading.join().unwrap(), 0);
    }

    #[test]
    fn a_listener_with_too_many_that_wait_is_an_error_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full.sock");
        let listener = Socket::new(socket2::Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        listener.listen(1).unwrap();
        let began = Instant::now();
        let connect = || connect(&Address::unix(&path), Instant::now() + SOON);
        let waiting: Vec<_> = (0..10).map_while(|_| connect().ok()).collect();
        assert!(waiting.len() < 10);
        assert!(began.elapsed() < 50 * SOON);
    }
}
