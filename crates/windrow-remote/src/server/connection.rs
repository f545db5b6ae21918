//! One connection, in a thread of its own: whoever evaluates a policy for it keeps nobody else
//! waiting.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::Socket;

use super::producer::Reply;
use super::session::Session;
use super::{Shared, count};
use crate::Token;
use crate::protocol::{Answer, LONGEST_HELLO, Parting, Piece, VERSION, bare, piece, pieces};
use windrow_peer::net::{Deadline, Frame, Secret, Stream, Wire};

/// Serves `socket` until one of both sides ends it.
pub(super) fn serve(shared: &Arc<Shared>, socket: &Arc<Socket>) {
    /// How long a connection that is to end may take to say so.
    const PARTING: Duration = Duration::from_secs(1);
    let greeting = Deadline::after(shared.choices.greeting);
    let Ok(stream) = Stream::server(Arc::clone(socket), shared.tls.as_ref()) else {
        count(&shared.counters.refused);
        return;
    };
    let mut wire = Wire::new(stream, VERSION);
    let mut session = Session::new(Arc::clone(shared), Arc::clone(socket));
    let token = shared.choices.token.as_ref().map(Token::secret);
    let greeted = greet(&mut wire, &mut session, token, greeting);
    let (parting, deadline) = match greeted {
        Ok(()) => {
            let parting = converse(shared, &mut wire, &mut session);
            drop(session);
            (parting, Deadline::after(PARTING))
        }
        Err(parting) => {
            drop(session);
            count(&shared.counters.refused);
            (parting, greeting)
        }
    };
    // A client that has gone needs no words.
    if parting != Parting::Silent {
        let _ = wire.send(deadline, &bare(0, &Answer::Closed(parting)));
    }
    wire.finish(deadline);
}

/// Lets a client in that shows, until `deadline`, that it may come.
fn greet(
    wire: &mut Wire,
    session: &mut Session,
    token: Option<&Secret>,
    deadline: Deadline,
) -> Result<(), Parting> {
    wire.greet_client(token, deadline)?;
    let hello = wire.receive(deadline, LONGEST_HELLO)?;
    let welcome = bare(0, &session.greet(&hello)?);
    wire.send(deadline, &welcome).map_err(|_| Parting::Silent)
}

/// Answers requests; why there are no more.
fn converse(shared: &Shared, wire: &mut Wire, session: &mut Session) -> Parting {
    let limits = &shared.choices.limits;
    // Once it has begun, a message may take a minute, and a second for each MiB that there may be.
    let through = Duration::from_secs(60 + (limits.message >> 20) as u64);
    loop {
        let asked = wire.receive(Deadline::OnceBegun(through), limits.message);
        // Where the server is to end, nothing is read any more.
        if shared.stopping.load(Ordering::Acquire) {
            return Parting::Ended;
        }
        let reply = match asked
            .map_err(Parting::from)
            .and_then(|frame| session.take(&frame))
        {
            Ok(reply) => reply,
            Err(parting) => return parting,
        };
        if send(wire, &reply, session.limit(), through).is_err() {
            return Parting::Silent;
        }
    }
}

fn send(wire: &mut Wire, reply: &Reply, limit: usize, through: Duration) -> io::Result<()> {
    match reply {
        Reply::Nothing => Ok(()),
        Reply::Frame(frame) => wire.send(Deadline::after(through), frame),
        Reply::Weights {
            seq,
            version,
            bytes,
        } => pieces(bytes.len(), piece(limit)).try_for_each(|range| {
            let piece = Piece {
                total: bytes.len() as u64,
                offset: range.start as u64,
            };
            let version = *version;
            let frame = Frame::of(*seq, &Answer::Piece { piece, version }, &bytes[range]);
            wire.send(Deadline::after(through), &frame)
        }),
    }
}
