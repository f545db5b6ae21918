//! A program that was started as a worker elsewhere.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use windrow_peer::end_at_once;
use windrow_peer::net::{OwnCertificate, Stream, connect as connect_to, wait_for_end};

use super::stream::{Said, StreamEnd};
use crate::config::launcher::Invitation;
use crate::process::serve_error::ServeError;

/// How long the collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

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
    let failed = |error: std::io::Error| ServeError::Launch(Box::new(error));
    let address = invitation.address.parse();
    let address = address.map_err(|error| ServeError::Launch(Box::new(error)))?;
    let certificate = invitation.certificate.as_deref();
    let tls = certificate.map(OwnCertificate::client).transpose();
    let tls = tls.map_err(failed)?;
    let socket = connect_to(&address, Instant::now() + PATIENCE).map_err(failed)?;
    let socket = Arc::new(socket);
    let watched = Arc::clone(&socket);
    let is_over = Arc::<AtomicBool>::default();
    let over = Arc::clone(&is_over);
    thread::Builder::new()
        .name("windrow-parent".to_owned())
        .spawn(move || {
            wait_for_end(&watched, None);
            if over.load(Ordering::Acquire) {
                // It ends by itself, after what its program still has to do.
                sleep(FAREWELL);
            }
            // It may be in a call that never returns.
            end_at_once()
        })
        .map_err(failed)?;
    let stream = Stream::client(Arc::clone(&socket), tls.as_ref());
    let stream = stream.map_err(|error| ServeError::Launch(Box::new(error)))?;
    let end = StreamEnd::new(stream, socket).marks_end(is_over);
    end.greet(PATIENCE)?;
    end.send(Said::Token(invitation.token.clone().into_bytes()))?;
    Ok(end)
}
