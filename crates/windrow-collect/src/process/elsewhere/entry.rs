//! A program that was started as a worker elsewhere.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use windrow_peer::end_at_once;
use windrow_peer::net::{
    Address, ClientTls, Deadline, FrameError, GreetingError, OwnCertificate, Stream,
    connect as connect_to, wait_for_end,
};

use super::stream::StreamEnd;
use crate::config::launcher::Invitation;
use crate::process::serve_error::ServeError;

/// How long the collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// The one argument with which a program is started as a worker.
const ARGUMENT: &str = "windrow-worker";

/// Whether this program was started as a worker elsewhere.
pub(in crate::process) fn is_invited() -> bool {
    let mut arguments = env::args_os().skip(1);
    arguments
        .next()
        .is_some_and(|argument| argument == ARGUMENT)
        && arguments.next().is_none()
}

/// How long this process may go on once its work is over and the collector has closed the
/// connection.
const FAREWELL: Duration = Duration::from_secs(5);

/// Connects to the collector that has sent `invitation`. This process is killed once the collector
/// has closed the connection.
pub(in crate::process) fn connect(invitation: &Invitation) -> Result<StreamEnd, ServeError> {
    let end = Instant::now() + PATIENCE;
    let address = invitation.address.parse();
    let address = address.map_err(|error| ServeError::Launch(Box::new(error)))?;
    let certificate = invitation.certificate.as_deref();
    let tls = certificate.map(OwnCertificate::client).transpose();
    let tls = tls.map_err(failed)?;
    loop {
        match attempt(&address, tls.as_ref(), &invitation.token, end) {
            // The collector closes the oldest unknown connection when there are too many of them.
            Err(ServeError::Greeting(GreetingError::Frame(error)))
                if is_cut(&error) && Instant::now() < end =>
            {
                sleep(PAUSE);
            }
            connected => return connected,
        }
    }
}

fn attempt(
    address: &Address,
    tls: Option<&ClientTls>,
    token: &str,
    end: Instant,
) -> Result<StreamEnd, ServeError> {
    let socket = connect_to(address, end).map_err(failed)?;
    let socket = Arc::new(socket);
    let stream = Stream::client(Arc::clone(&socket), tls);
    let stream = stream.map_err(|error| ServeError::Launch(Box::new(error)))?;
    let is_over = Arc::<AtomicBool>::default();
    let over = Arc::clone(&is_over);
    // It runs what the collector sends, once that has proved who it is.
    let greeted = StreamEnd::new(stream, Arc::clone(&socket), usize::MAX).marks_end(is_over);
    greeted.greet_collector(token, Deadline::At(end))?;
    thread::Builder::new()
        .name("windrow-parent".to_owned())
        .spawn(move || {
            wait_for_end(&socket, None);
            if over.load(Ordering::Acquire) {
                // It ends by itself, after what its program still has to do.
                sleep(FAREWELL);
            }
            // It may be in a call that never returns.
            end_at_once()
        })
        .map_err(failed)?;
    Ok(greeted)
}

/// Whether the other side has closed the connection.
fn is_cut(error: &FrameError) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    match error {
        FrameError::Closed => true,
        FrameError::Io(error) => {
            matches!(
                error.kind(),
                BrokenPipe | ConnectionAborted | ConnectionReset
            )
        }
        _ => false,
    }
}

fn failed(error: std::io::Error) -> ServeError {
    ServeError::Launch(Box::new(error))
}
