//! What a client asks, and the answers.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;
use tensordict::{LeafSpec, TensorDict};
use windrow_policy::{Binding, EnvRows, ExplorationType, Policy, PolicyIn, Served};
use windrow_slab::RowBlock;
use windrow_sync::error_chain;

use super::producer::{Done, Producer, Reply};
use super::{Shared, count, lock};
use crate::limits::LEAST_MESSAGE;
use crate::protocol::{Answer, Parting, Pieces, Request, bare};
use crate::rows::{self, BindRequest};
use windrow_peer::net::Frame;

/// How long a request waits for an earlier one of the same client.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client's place at the inference server, with memory for its rows.
pub(super) struct Seat {
    served: Served,
    /// First byte of values that the client may not send.
    refused: Option<u8>,
    observed: Vec<LeafSpec>,
    columns: Vec<LeafSpec>,
    obs: RowBlock,
    out: RowBlock,
    envs: EnvRows,
    rows: usize,
}

/// What is known of the client of a connection.
pub(super) struct Session {
    shared: Arc<Shared>,
    socket: Arc<Socket>,
    producer: Option<(u128, Arc<Producer>)>,
    pieces: Pieces,
    /// Bytes of weights that are not complete, which this client has taken of those for all.
    reserved: usize,
    /// Most bytes of a message to this client.
    limit: usize,
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some((_, producer)) = self.producer.take() {
            self.shared.producers.leave(&producer);
        }
        self.shared.reserve(&mut self.reserved, 0);
    }
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, socket: Arc<Socket>) -> Self {
        Self {
            socket,
            producer: None,
            pieces: Pieces::default(),
            reserved: 0,
            limit: shared.choices.limits.message,
            shared,
        }
    }

    /// Most bytes of a message to this client.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Lets in a client that has proved that it knows the token. Called once; returns the answer to
    /// the client's `hello`.
    pub(super) fn greet(&mut self, hello: &Frame) -> Result<Answer, Parting> {
        let (id, is_known, limit) = match hello.parse() {
            Ok(Request::Hello {
                producer,
                is_known,
                limit,
            }) => (producer, is_known, limit),
            _ => return Err(Parting::unexpected("a greeting first", hello)),
        };
        let choices = &self.shared.choices;
        let own = choices.limits.message;
        let limit = usize::try_from(limit).unwrap_or(own);
        self.limit = limit.clamp(LEAST_MESSAGE, own);
        lock(&self.shared.door).admit(&self.socket)?;
        count(&self.shared.counters.accepted);
        let Some((producer, last)) = self.shared.producers.enter(id, is_known) else {
            return Ok(Answer::Forgotten);
        };
        self.producer = Some((id, producer));
        Ok(Answer::Welcome {
            instance: self.shared.instance,
            last,
            limit: own as u64,
        })
    }

    /// Does what `asked` asks for; the answer.
    pub(super) fn take(&mut self, asked: &Frame) -> Result<Reply, Parting> {
        let Some((id, producer)) = &self.producer else {
            return Err(Parting::Silent);
        };
        let (shared, seq, limit) = (&self.shared, asked.seq, self.limit);
        let weights = shared.choices.limits.weights;
        // What fails is the answer, too.
        let once = |work: &mut dyn FnMut(&mut Option<Seat>) -> Answered| {
            producer.once(seq, PATIENCE, |seat| {
                let done = work(seat).map(|(answer, body)| Frame::of(seq, &answer, body));
                let done = done.and_then(|frame| match frame.len() {
                    len if len > limit => Err(format!(
                        "the answer has {len} bytes, more than the limit of {limit}"
                    )),
                    _ => Ok(frame),
                });
                Done::Once(done.unwrap_or_else(|reason| failed(seq, reason)))
            })
        };
        let (reply, was_done) = match asked.parse() {
            Ok(Request::Bind(json)) => {
                once(&mut |seat| bind(shared, &json, &asked.body, limit, seat))?
            }
            Ok(Request::Act { exploration, rows }) => {
                once(&mut |seat| act(exploration, rows, &asked.body, seat))?
            }
            Ok(Request::Push(piece)) if piece.total > weights as u64 => {
                let got = piece.total;
                once(&mut |_| {
                    Err(format!(
                        "the weights have {got} bytes, more than the limit of {weights}"
                    ))
                })?
            }
            // What follows a piece that was refused, or comes again.
            Ok(Request::Push(_)) if producer.has_done(seq) => {
                once(&mut |_| Err("it was done".to_owned()))?
            }
            Ok(Request::Push(_))
                if !shared.reserve(&mut self.reserved, self.pieces.len() + asked.body.len()) =>
            {
                self.pieces = Pieces::default();
                once(&mut |_| {
                    Err(format!(
                        "the weights that all clients are sending have more than {} bytes: try again when others are through",
                        2 * weights
                    ))
                })?
            }
            Ok(Request::Push(piece)) => {
                match self.pieces.take(asked, piece, 0).map_err(Parting::Again)? {
                    None => (Reply::Frame(Arc::new(bare(seq, &Answer::Progress))), false),
                    Some(bytes) => once(&mut |_| push(shared, &bytes))?,
                }
            }
            Ok(Request::Pull { known }) => {
                producer.once(seq, PATIENCE, |_| Done::Again(pull(shared, seq, known)))?
            }
            Ok(Request::Bye) => {
                shared.producers.remove(*id);
                return Err(Parting::Silent);
            }
            Ok(Request::Hello { .. }) | Err(_) => {
                return Err(Parting::unexpected("a request", asked));
            }
        };
        shared.reserve(&mut self.reserved, self.pieces.len());
        if was_done {
            count(&shared.counters.repeated);
        }
        Ok(reply)
    }
}

/// An answer with its bytes, or why a request failed.
type Answered = Result<(Answer, Vec<u8>), String>;

fn failed(seq: u64, reason: String) -> Frame {
    bare(seq, &Answer::Failed(reason))
}

fn told(error: impl Into<Box<dyn Error>>) -> String {
    error_chain(&*error.into())
}

/// Takes a place at the inference server, which the request `json` describes.
fn bind(
    shared: &Shared,
    json: &str,
    first: &[u8],
    most: usize,
    seat: &mut Option<Seat>,
) -> Answered {
    *seat = None;
    let refused = shared.choices.limits.refused_values;
    let place = BindRequest::read(json, most, refused)?;
    let (observed, rows) = (place.spec.observation_leaves(), place.num_envs);
    let mut obs = RowBlock::new(&observed, rows).map_err(told)?;
    if place.first_rows {
        rows::read(&observed, first, obs.rows_mut(), refused)
            .map_err(|reason| format!("first observations: {reason}"))?;
    }
    let mut served = shared.inference.client();
    let binding = Binding::new(&place.spec, rows)
        .batched(place.batched)
        .worker(place.worker)
        .first_rows(place.first_rows.then(|| obs.rows()));
    let mut spec = served.bind(&binding).map_err(told)?;
    spec.backend = windrow_policy::Backend::Native;
    let columns = spec.columns.clone();
    rows::check_leaves("actions", &columns, (rows, 0), most)?;
    let out = RowBlock::new(&columns, rows).map_err(told)?;
    let spec = serde_json::to_string(&spec).map_err(told)?;
    *seat = Some(Seat {
        served,
        refused,
        observed,
        columns,
        obs,
        out,
        envs: EnvRows::new(0, Vec::new()),
        rows,
    });
    Ok((Answer::Bound(spec), Vec::new()))
}

/// Has the policy act.
fn act(exploration: ExplorationType, rows: u64, body: &[u8], seat: &mut Option<Seat>) -> Answered {
    let seat = seat
        .as_mut()
        .ok_or("the policy was asked to act before it was bound")?;
    if rows != seat.rows as u64 {
        return Err(format!(
            "expected observations of {} environments, got {rows}",
            seat.rows
        ));
    }
    let envs = body.split_at_checked(seat.rows * EnvRows::ROW_BYTES);
    let (envs, obs) = envs.ok_or("the request to act is cut short")?;
    seat.envs
        .read(envs)
        .ok_or("the environments of the request cannot be read")?;
    rows::read(&seat.observed, obs, seat.obs.rows_mut(), seat.refused)
        .map_err(|reason| format!("observations: {reason}"))?;
    let input = PolicyIn::new(seat.obs.rows(), &seat.envs, exploration);
    seat.served.act(&input, seat.out.rows_mut()).map_err(told)?;
    let mut body = Vec::new();
    rows::write(&seat.columns, seat.out.rows(), &mut body, seat.refused)?;
    let version = seat.served.version().unwrap_or_default();
    Ok((Answer::Acted { version }, body))
}

/// Publishes weights.
fn push(shared: &Shared, bytes: &[u8]) -> Answered {
    let weights = TensorDict::from_bytes(bytes).map_err(told)?;
    if let Some(reserved) = &shared.choices.reserved
        && weights.get(reserved.as_str()).is_ok()
    {
        return Err(format!(
            "the weights have an entry {reserved:?}, which clients may not send"
        ));
    }
    let version = shared
        .inference
        .update_policy_weights(&weights)
        .map_err(told)?;
    Ok((Answer::Pushed { version }, Vec::new()))
}

/// The newest weights, unless the client has them.
fn pull(shared: &Shared, seq: u64, known: i64) -> Reply {
    let reply = |frame| Reply::Frame(Arc::new(frame));
    let newest = shared.store.newest(0);
    let Some(newest) = newest.filter(|newest| newest.version != known) else {
        let version = shared.store.version();
        return reply(bare(seq, &Answer::Current { version }));
    };
    let version = newest.version;
    let mut snapshot = lock(&shared.snapshot);
    let bytes = match &*snapshot {
        Some((kept, bytes)) if *kept == version => Arc::clone(bytes),
        _ => match newest.weights.to_bytes() {
            Ok(bytes) => {
                let bytes = Arc::new(bytes);
                *snapshot = Some((version, Arc::clone(&bytes)));
                bytes
            }
            Err(error) => return reply(failed(seq, error.to_string())),
        },
    };
    Reply::Weights {
        seq,
        version,
        bytes,
    }
}

#[cfg(test)]
mod tests {
    use tensordict::DType;
    use windrow_env::{EnvSpec, Spec};
    use windrow_policy::{ExplorationType, Head, NetworkPolicy, PolicyRecipe, nn::Sequential};

    use super::*;
    use crate::protocol::Piece;
    use crate::{Limits, RemoteServer};

    fn server(limits: Limits) -> RemoteServer {
        let layers = Sequential::new().linear(4, 8).tanh().linear(8, 2).seed(1);
        let policy = NetworkPolicy::new(layers, Head::Categorical);
        let builder = RemoteServer::builder(PolicyRecipe::of(policy));
        builder.limits(limits).start().unwrap()
    }

    /// A connection without a network.
    struct Client {
        session: Session,
        seq: u64,
    }

    impl Client {
        fn new(server: &RemoteServer) -> Self {
            let shared = Arc::clone(&server.shared);
            let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
            let socket = Arc::new(Socket::from(std::os::fd::OwnedFd::from(socket)));
            assert!(lock(&shared.door).knock(&socket));
            let session = Session::new(shared, socket);
            Self { session, seq: 0 }
        }

        fn greet(&mut self, id: u128) -> Result<Answer, Parting> {
            let hello = Request::Hello {
                producer: id,
                is_known: false,
                limit: 4 << 20,
            };
            self.session.greet(&bare(0, &hello))
        }

        fn greeted(server: &RemoteServer, id: u128) -> Self {
            let mut client = Self::new(server);
            let welcome = client.greet(id).unwrap();
            assert!(matches!(welcome, Answer::Welcome { .. }));
            client
        }

        fn ask(&mut self, request: &Request, body: impl Into<Vec<u8>>) -> (Answer, Vec<u8>) {
            self.seq += 1;
            self.ask_as(self.seq, request, body)
        }

        fn ask_as(
            &mut self,
            seq: u64,
            request: &Request,
            body: impl Into<Vec<u8>>,
        ) -> (Answer, Vec<u8>) {
            match self.session.take(&Frame::of(seq, request, body.into())) {
                Ok(Reply::Frame(frame)) => (frame.parse().unwrap(), frame.body.clone()),
                other => panic!("expected an answer, got {other:?}"),
            }
        }
    }

    impl Drop for Client {
        fn drop(&mut self) {
            let Session { shared, socket, .. } = &self.session;
            lock(&shared.door).leave(socket);
        }
    }

    #[test]
    fn what_is_no_request_is_refused_by_name() {
        let server = server(Limits::new());
        let mut client = Client::new(&server);
        let pull = Request::Pull { known: 0 };
        let error = client.session.greet(&bare(0, &pull)).unwrap_err();
        let expected = "expected a greeting first, got another frame: Pull { known: 0 }";
        assert_eq!(error, Parting::Misused(expected.to_owned()));
        client.greet(1).unwrap();
        let mut later = bare(1, &pull);
        later.message[0] = 48;
        for (frame, part) in [
            (later, "Request cannot be read"),
            (bare(0, &Answer::Forgotten), "expected kind 1, got kind 2"),
        ] {
            match client.session.take(&frame) {
                Err(Parting::Misused(reason)) => assert!(reason.contains(part), "{reason}"),
                other => panic!("expected an error, got {other:?}"),
            }
        }
        let current = client.ask(&pull, "").0;
        assert_eq!(current, Answer::Current { version: 0 });
    }

    #[test]
    fn neither_greetings_nor_clients_that_have_gone_keep_others_out() {
        let server = server(Limits::new());
        let mut one = Client::greeted(&server, 1);
        for id in 2..1100 {
            assert!(one.greet(id).is_err());
        }
        for id in 2..1100 {
            Client::greeted(&server, id);
        }
        let mut newest = Client::greeted(&server, 1100);
        for wire in [&mut one, &mut newest] {
            let current = wire.ask(&Request::Pull { known: 0 }, "").0;
            assert_eq!(current, Answer::Current { version: 0 });
        }
    }

    #[test]
    fn weights_that_are_not_complete_have_a_limit_in_total() {
        let server = server(Limits::new().weights(10_000));
        let mut wires: Vec<_> = (0..4).map(|id| Client::greeted(&server, id)).collect();
        let push = |offset| {
            let total = 10_000;
            Request::Push(Piece { total, offset })
        };
        let piece = |client: &mut Client| client.ask(&push(0), vec![0; 9_000]).0;
        for wire in &mut wires[..2] {
            assert_eq!(piece(wire), Answer::Progress);
        }
        for wire in &mut wires[2..] {
            let refused = piece(wire);
            match &refused {
                Answer::Failed(reason) if reason.contains("more than 20000 bytes") => {}
                other => panic!("expected a refusal, got {other:?}"),
            }
            // What follows it changes nothing.
            let again = wire.ask_as(wire.seq, &push(9_000), vec![0; 1_000]).0;
            assert_eq!(again, refused);
        }
        // One that goes and one that is through make room.
        drop(wires.swap_remove(0));
        let seq = wires[1].seq;
        let last = wires[1].ask_as(seq, &push(9_000), vec![0; 1_000]).0;
        assert!(matches!(last, Answer::Failed(_)));
        assert_eq!(
            server
                .shared
                .sending
                .load(std::sync::atomic::Ordering::Relaxed),
            0
        );
        assert_eq!(piece(&mut wires[2]), Answer::Progress);
    }

    #[test]
    fn requests_to_act_with_any_content_are_answered_and_change_nothing_for_others() {
        const ROWS: usize = 3;
        let server = server(Limits::new());
        let spec = EnvSpec::new("Pole", Spec::unbounded(DType::F32, [4]), Spec::discrete(2));
        let place = BindRequest {
            spec: spec.clone(),
            num_envs: ROWS,
            batched: false,
            worker: 0,
            first_rows: false,
        };
        let bind = Request::Bind(serde_json::to_string(&place).unwrap());
        let mut envs = Vec::new();
        EnvRows::new(7, vec![0, 1, 2]).write(&mut envs);
        let obs = (0..4 * ROWS).flat_map(|place| (place as f32).sin().to_le_bytes());
        let body: Vec<u8> = envs.into_iter().chain(obs).collect();
        let act = Request::Act {
            exploration: ExplorationType::Random,
            rows: ROWS as u64,
        };
        let mut wires = [1, 2].map(|id| Client::greeted(&server, id));
        for wire in &mut wires {
            let bound = wire.ask(&bind, "").0;
            assert!(matches!(bound, Answer::Bound(_)), "{bound:?}");
        }
        let [odd, fair] = &mut wires;
        let expected = fair.ask(&act, body.clone());
        assert!(matches!(expected.0, Answer::Acted { .. }));
        let (mut state, mut acted) = (1u64, 0);
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for round in 0..20_000 {
            let (mut body, mut act) = (body.clone(), act.clone());
            for _ in 0..1 + random(4) {
                let at = random(body.len());
                match random(8) {
                    0 => body.truncate(at.max(1)),
                    1 => body.insert(at, random(256) as u8),
                    2 => {
                        act = Request::Act {
                            exploration: [ExplorationType::Random, ExplorationType::Mean]
                                [random(2)],
                            rows: [0, 1, 2, ROWS as u64, u64::MAX][random(5)],
                        }
                    }
                    3 => body[at] = [0, 0x7f, 0x80, 0xff][random(4)],
                    _ => body[at] ^= 1 << random(8),
                }
            }
            match odd.ask(&act, body).0 {
                Answer::Acted { .. } => acted += 1,
                Answer::Failed(reason) => {
                    assert!(!reason.contains("panicked"), "round {round}: {reason}");
                }
                other => panic!("round {round}: expected an answer, got {other:?}"),
            }
        }
        assert!(acted > 5_000, "{acted} requests were done");
        assert_eq!(fair.ask(&act, body), expected);
    }
}
