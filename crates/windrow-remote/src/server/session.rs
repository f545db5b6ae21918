//! What a client asks, and the answers.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;
use tensordict::{LeafSpec, TensorDict};
use windrow_policy::{Binding, EnvRows, Policy, PolicyIn, Served};
use windrow_slab::RowBlock;
use windrow_sync::error_chain;

use super::producer::{Done, Producer, Reply};
use super::{Shared, count, lock};
use crate::limits::LEAST_MESSAGE;
use crate::protocol::{Kind, Parting, Pieces};
use crate::rows::{self, BindRequest, EXPLORATION};
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
    pub(super) fn greet(&mut self, hello: &Frame) -> Result<Frame, Parting> {
        let limit = hello.body.first_chunk().copied();
        let Some(limit) = limit.filter(|_| Kind::of(hello) == Some(Kind::Hello)) else {
            return Err(Parting::unexpected("a greeting first", hello));
        };
        let choices = &self.shared.choices;
        let own = choices.limits.message;
        let limit = usize::try_from(u64::from_le_bytes(limit)).unwrap_or(own);
        self.limit = limit.clamp(LEAST_MESSAGE, own);
        let [low, high, says_known] = hello.words;
        let id = u128::from(low) | u128::from(high) << 64;
        lock(&self.shared.door).admit(&self.socket)?;
        count(&self.shared.counters.accepted);
        let Some((producer, last)) = self.shared.producers.enter(id, says_known != 0) else {
            return Ok(Kind::Forgotten.bare(0, [0; 3]));
        };
        self.producer = Some((id, producer));
        Ok(Kind::Welcome.bare(0, [self.shared.instance, last, own as u64]))
    }

    /// Does what `frame` asks for; the answer.
    pub(super) fn take(&mut self, frame: &Frame) -> Result<Reply, Parting> {
        let Some((id, producer)) = &self.producer else {
            return Err(Parting::Silent);
        };
        let (shared, seq, limit) = (&self.shared, frame.seq, self.limit);
        let weights = shared.choices.limits.weights;
        // What fails is the answer, too.
        let once = |work: &mut dyn FnMut(&mut Option<Seat>) -> Result<Frame, String>| {
            producer.once(seq, PATIENCE, |seat| {
                let done = work(seat).and_then(|frame| match frame.len() {
                    len if len > limit => Err(format!(
                        "the answer has {len} bytes, more than the limit of {limit}"
                    )),
                    _ => Ok(frame),
                });
                Done::Once(done.unwrap_or_else(|reason| failed(seq, reason)))
            })
        };
        let (reply, was_done) = match Kind::of(frame) {
            Some(Kind::Bind) => once(&mut |seat| bind(shared, frame, limit, seat))?,
            Some(Kind::Act) => once(&mut |seat| act(frame, seat))?,
            Some(Kind::Push) if frame.words[0] > weights as u64 => {
                let got = frame.words[0];
                once(&mut |_| {
                    Err(format!(
                        "the weights have {got} bytes, more than the limit of {weights}"
                    ))
                })?
            }
            // What follows a piece that was refused, or comes again.
            Some(Kind::Push) if producer.has_done(seq) => {
                once(&mut |_| Err("it was done".to_owned()))?
            }
            Some(Kind::Push)
                if !shared.reserve(&mut self.reserved, self.pieces.len() + frame.body.len()) =>
            {
                self.pieces = Pieces::default();
                once(&mut |_| {
                    Err(format!(
                        "the weights that all clients are sending have more than {} bytes: try again when others are through",
                        2 * weights
                    ))
                })?
            }
            Some(Kind::Push) => match self.pieces.take(frame).map_err(Parting::Again)? {
                None => (
                    Reply::Frame(Arc::new(Kind::Progress.bare(seq, [0; 3]))),
                    false,
                ),
                Some(bytes) => once(&mut |_| push(shared, seq, &bytes))?,
            },
            Some(Kind::Pull) => {
                producer.once(seq, PATIENCE, |_| Done::Again(pull(shared, frame)))?
            }
            Some(Kind::Bye) => {
                shared.producers.remove(*id);
                return Err(Parting::Silent);
            }
            _ => return Err(Parting::unexpected("a request", frame)),
        };
        shared.reserve(&mut self.reserved, self.pieces.len());
        if was_done {
            count(&shared.counters.repeated);
        }
        Ok(reply)
    }
}

fn failed(seq: u64, reason: String) -> Frame {
    Kind::Failed.frame(seq, [0; 3], reason.into_bytes())
}

fn told(error: impl Into<Box<dyn Error>>) -> String {
    error_chain(&*error.into())
}

/// Takes a place at the inference server.
fn bind(
    shared: &Shared,
    frame: &Frame,
    most: usize,
    seat: &mut Option<Seat>,
) -> Result<Frame, String> {
    *seat = None;
    let (len, rest) = frame
        .body
        .split_first_chunk()
        .ok_or("the request to bind is cut short")?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(told)?;
    let (json, first) = rest
        .split_at_checked(len)
        .ok_or("the request to bind is cut short")?;
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
    let body = serde_json::to_vec(&spec).map_err(told)?;
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
    Ok(Kind::Bound.frame(frame.seq, [0; 3], body))
}

/// Has the policy act.
fn act(frame: &Frame, seat: &mut Option<Seat>) -> Result<Frame, String> {
    let seat = seat
        .as_mut()
        .ok_or("the policy was asked to act before it was bound")?;
    let [exploration, rows, _] = frame.words;
    let exploration = usize::try_from(exploration)
        .ok()
        .and_then(|number| EXPLORATION.get(number));
    let exploration = *exploration.ok_or("the exploration type is unknown")?;
    if rows != seat.rows as u64 {
        return Err(format!(
            "expected observations of {} environments, got {rows}",
            seat.rows
        ));
    }
    let envs = frame.body.split_at_checked(seat.rows * EnvRows::ROW_BYTES);
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
    Ok(Kind::Acted.frame(frame.seq, [version as u64, 0, 0], body))
}

/// Publishes weights.
fn push(shared: &Shared, seq: u64, bytes: &[u8]) -> Result<Frame, String> {
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
    Ok(Kind::Pushed.bare(seq, [version as u64, 0, 0]))
}

/// The newest weights, unless the client has them.
fn pull(shared: &Shared, frame: &Frame) -> Reply {
    let (seq, known) = (frame.seq, frame.words[0] as i64);
    let reply = |frame| Reply::Frame(Arc::new(frame));
    let newest = shared.store.newest(0);
    let Some(newest) = newest.filter(|newest| newest.version != known) else {
        let version = shared.store.version() as u64;
        return reply(Kind::Current.bare(seq, [version, 0, 0]));
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

        fn greet(&mut self, id: u64) -> Result<Frame, Parting> {
            let limit = (4u64 << 20).to_le_bytes().to_vec();
            let hello = Kind::Hello.frame(0, [id, 0, 0], limit);
            self.session.greet(&hello)
        }

        fn greeted(server: &RemoteServer, id: u64) -> Self {
            let mut client = Self::new(server);
            let welcome = client.greet(id).unwrap();
            assert_eq!(Kind::of(&welcome), Some(Kind::Welcome));
            client
        }

        fn ask(&mut self, kind: Kind, words: [u64; 3], body: impl Into<Vec<u8>>) -> Frame {
            self.seq += 1;
            self.ask_as(self.seq, kind, words, body)
        }

        fn ask_as(
            &mut self,
            seq: u64,
            kind: Kind,
            words: [u64; 3],
            body: impl Into<Vec<u8>>,
        ) -> Frame {
            match self.session.take(&kind.frame(seq, words, body.into())) {
                Ok(Reply::Frame(frame)) => Frame::clone(&frame),
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
        let hello = Kind::Pull.bare(0, [0; 3]);
        let error = client.session.greet(&hello).unwrap_err();
        let expected = "expected a greeting first, got a frame Pull";
        assert_eq!(error, Parting::Misused(expected.to_owned()));
        client.greet(1).unwrap();
        let mut later = Kind::Pull.bare(1, [0; 3]);
        later.kind = 48;
        for (frame, part) in [
            (
                later,
                "of kind 48, which version 3 of the protocol does not know",
            ),
            (Kind::Welcome.bare(0, [0; 3]), "got a frame Welcome"),
        ] {
            match client.session.take(&frame) {
                Err(Parting::Misused(reason)) => assert!(reason.contains(part), "{reason}"),
                other => panic!("expected an error, got {other:?}"),
            }
        }
        assert_eq!(
            Kind::of(&client.ask(Kind::Pull, [0; 3], "")),
            Some(Kind::Current)
        );
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
            assert_eq!(
                Kind::of(&wire.ask(Kind::Pull, [0; 3], "")),
                Some(Kind::Current)
            );
        }
    }

    #[test]
    fn weights_that_are_not_complete_have_a_limit_in_total() {
        let server = server(Limits::new().weights(10_000));
        let mut wires: Vec<_> = (0..4).map(|id| Client::greeted(&server, id)).collect();
        let piece = |client: &mut Client| client.ask(Kind::Push, [10_000, 0, 0], vec![0; 9_000]);
        for wire in &mut wires[..2] {
            assert_eq!(Kind::of(&piece(wire)), Some(Kind::Progress));
        }
        for wire in &mut wires[2..] {
            let refused = piece(wire);
            assert!(
                refused.text().contains("more than 20000 bytes"),
                "{refused:?}"
            );
            // What follows it changes nothing.
            let (seq, words) = (wire.seq, [10_000, 9_000, 0]);
            let again = wire.ask_as(seq, Kind::Push, words, vec![0; 1_000]);
            assert_eq!(again.text(), refused.text());
        }
        // One that goes and one that is through make room.
        drop(wires.swap_remove(0));
        let (seq, words) = (wires[1].seq, [10_000, 9_000, 0]);
        let last = wires[1].ask_as(seq, Kind::Push, words, vec![0; 1_000]);
        assert_eq!(Kind::of(&last), Some(Kind::Failed));
        assert_eq!(
            server
                .shared
                .sending
                .load(std::sync::atomic::Ordering::Relaxed),
            0
        );
        assert_eq!(Kind::of(&piece(&mut wires[2])), Some(Kind::Progress));
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
        let json = serde_json::to_vec(&place).unwrap();
        let bind = [(json.len() as u64).to_le_bytes().to_vec(), json].concat();
        let mut envs = Vec::new();
        EnvRows::new(7, vec![0, 1, 2]).write(&mut envs);
        let obs = (0..4 * ROWS).flat_map(|place| (place as f32).sin().to_le_bytes());
        let body: Vec<u8> = envs.into_iter().chain(obs).collect();
        let exploration = EXPLORATION
            .iter()
            .position(|&known| known == ExplorationType::Random)
            .unwrap() as u64;
        let words = [exploration, ROWS as u64, 0];
        let mut wires = [1, 2].map(|id| Client::greeted(&server, id));
        for wire in &mut wires {
            assert_eq!(
                Kind::of(&wire.ask(Kind::Bind, [0; 3], bind.clone())),
                Some(Kind::Bound)
            );
        }
        let [odd, fair] = &mut wires;
        let expected = fair.ask(Kind::Act, words, body.clone());
        assert_eq!(Kind::of(&expected), Some(Kind::Acted));
        let (mut state, mut acted) = (1u64, 0);
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for round in 0..20_000 {
            let (mut body, mut words) = (body.clone(), words);
            for _ in 0..1 + random(4) {
                let at = random(body.len());
                match random(8) {
                    0 => body.truncate(at.max(1)),
                    1 => body.insert(at, random(256) as u8),
                    2 => words[random(3)] = [0, 1, 2, 4, u64::MAX][random(5)],
                    3 => body[at] = [0, 0x7f, 0x80, 0xff][random(4)],
                    _ => body[at] ^= 1 << random(8),
                }
            }
            let answer = odd.ask(Kind::Act, words, body);
            acted += usize::from(Kind::of(&answer) == Some(Kind::Acted));
            assert!(!answer.text().contains("panicked"), "round {round}");
        }
        assert!(acted > 5_000, "{acted} requests were done");
        let again = fair.ask(Kind::Act, words, body);
        assert_eq!(again.body, expected.body);
    }
}
