//! What a client asks, and the answers.

use std::collections::VecDeque;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tensordict::{LeafSpec, TensorDict};
use tokio_stream::Stream;
use tonic::server::StreamingService;
use tonic::{Request, Response, Status, Streaming};
use windrow_policy::{Binding, EnvRows, Policy, PolicyIn, Served};
use windrow_slab::RowBlock;

use super::listen::Caller;
use super::producer::{Done, Producer};
use super::{Shared, count, lock};
use crate::frame::{Frame, Kind, PROTOCOL, Pieces};
use crate::rows::{self, EXPLORATION, Place};
use crate::transport::{LEAST_MESSAGE, piece};

/// How long a request waits for an earlier one of the same client.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client's place at the inference server, with memory for its rows.
pub(super) struct Seat {
    served: Served,
    observed: Vec<LeafSpec>,
    columns: Vec<LeafSpec>,
    obs: RowBlock,
    out: RowBlock,
    envs: EnvRows,
    rows: usize,
}

/// The service.
pub(super) struct Talk {
    shared: Arc<Shared>,
    caller: Arc<Caller>,
}

impl Talk {
    pub(super) fn new(shared: Arc<Shared>, caller: Arc<Caller>) -> Self {
        Self { shared, caller }
    }
}

impl StreamingService<Frame> for Talk {
    type Response = Frame;
    type ResponseStream = Answers;
    type Future = Ready<Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Streaming<Frame>>) -> Self::Future {
        let mut stop = self.shared.stop.subscribe();
        let stop = async move {
            // An error is a server that is gone.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        ready(Ok(Response::new(Answers {
            shared: Arc::clone(&self.shared),
            caller: Arc::clone(&self.caller),
            asked: request.into_inner(),
            producer: None,
            pieces: Pieces::default(),
            reserved: 0,
            limit: self.shared.choices.limits.message,
            out: VecDeque::new(),
            stop: Box::pin(stop),
            over: false,
        })))
    }
}

/// The answers to a stream of requests. Each request is done where the stream is asked for the next answer: the connection has a thread
/// of its own.
pub(super) struct Answers {
    shared: Arc<Shared>,
    caller: Arc<Caller>,
    asked: Streaming<Frame>,
    producer: Option<(u128, Arc<Producer>)>,
    pieces: Pieces,
    /// Bytes of weights that are not complete, which this client has taken of those for all.
    reserved: usize,
    /// Most bytes of a message to this client.
    limit: usize,
    out: VecDeque<Frame>,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    over: bool,
}

impl Stream for Answers {
    type Item = Result<Frame, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(frame) = this.out.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if this.over {
                return Poll::Ready(None);
            }
            if this.stop.as_mut().poll(cx).is_ready() {
                this.over = true;
                return Poll::Ready(Some(Err(Status::aborted("it was shut down"))));
            }
            let asked = match Pin::new(&mut this.asked).poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(asked)) => asked,
            };
            if let Err(status) = asked.and_then(|frame| this.take(&frame)) {
                this.over = true;
                return Poll::Ready(Some(Err(status)));
            }
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if let Some((_, producer)) = self.producer.take() {
            self.shared.producers.leave(&producer);
        }
        self.shared.reserve(&mut self.reserved, 0);
    }
}

impl Answers {
    /// Does what `frame` asks for, and puts the answers out.
    fn take(&mut self, frame: &Frame) -> Result<(), Status> {
        if frame.kind == Kind::Hello {
            return self.greet(frame);
        }
        let Some((id, producer)) = &self.producer else {
            return Err(Status::invalid_argument("expected a greeting first"));
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
                Done::Once(done.unwrap_or_else(|reason| Frame::failed(seq, reason)))
            })
        };
        let (frames, was_done) = match frame.kind {
            Kind::Bind => once(&mut |seat| bind(shared, frame, limit, seat))?,
            Kind::Act => once(&mut |seat| act(frame, seat))?,
            Kind::Push if frame.words[0] > weights as u64 => {
                let got = frame.words[0];
                once(&mut |_| {
                    Err(format!(
                        "the weights have {got} bytes, more than the limit of {weights}"
                    ))
                })?
            }
            // What follows a piece that was refused, or comes again.
            Kind::Push if producer.has_done(seq) => once(&mut |_| Err("it was done".to_owned()))?,
            Kind::Push
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
            Kind::Push => match self.pieces.take(frame).map_err(Status::data_loss)? {
                None => (
                    vec![Frame::new(Kind::Progress, seq, [0; 3], Vec::new())],
                    false,
                ),
                Some(bytes) => once(&mut |_| push(shared, seq, &bytes))?,
            },
            Kind::Pull => producer.once(seq, PATIENCE, |_| pull(shared, frame, limit))?,
            Kind::Bye => {
                shared.producers.remove(*id);
                self.over = true;
                return Ok(());
            }
            other => return Err(Status::invalid_argument(format!("{other:?} is no request"))),
        };
        shared.reserve(&mut self.reserved, self.pieces.len());
        if was_done {
            count(&shared.counters.repeated);
        }
        self.out.extend(frames);
        Ok(())
    }

    fn greet(&mut self, frame: &Frame) -> Result<(), Status> {
        let (protocol, limit) = match *frame.body {
            [a, b, c, d, e, f, g, h, ref limit @ ..] => (
                u64::from_le_bytes([a, b, c, d, e, f, g, h]),
                limit.try_into().ok(),
            ),
            _ => (0, None),
        };
        let Some(limit) = limit.filter(|_| protocol == PROTOCOL) else {
            let reason = format!("expected protocol {PROTOCOL}, got {protocol} or something else");
            return Err(Status::permission_denied(reason));
        };
        let own = self.shared.choices.limits.message;
        let limit = usize::try_from(u64::from_le_bytes(limit)).unwrap_or(own);
        self.limit = limit.clamp(LEAST_MESSAGE, own);
        let [low, high, says_known] = frame.words;
        let id = u128::from(low) | u128::from(high) << 64;
        if self
            .producer
            .as_ref()
            .is_some_and(|(known, _)| *known == id)
        {
            // The same greeting, which came twice.
            return Ok(());
        }
        let connections = self.shared.choices.connections;
        lock(&self.shared.door).admit(&self.caller, id, connections)?;
        let answer = match self.shared.producers.enter(id, says_known != 0) {
            None => Frame::new(Kind::Forgotten, 0, [0; 3], Vec::new()),
            Some((producer, last)) => {
                self.producer = Some((id, producer));
                Frame::new(
                    Kind::Welcome,
                    0,
                    [self.shared.instance, last, own as u64],
                    Vec::new(),
                )
            }
        };
        count(&self.shared.counters.accepted);
        self.caller.greeted.notify_one();
        self.out.push_back(answer);
        Ok(())
    }
}

// In the form that `map_err` calls.
#[allow(clippy::needless_pass_by_value)]
fn told(error: impl ToString) -> String {
    error.to_string()
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
    let place: Place =
        serde_json::from_slice(json).map_err(|error| format!("the request to bind: {error}"))?;
    let (observed, rows) = (place.spec.observation_leaves(), place.num_envs);
    let memory = |what: &str, leaves: &[LeafSpec]| match rows::size(leaves, rows) {
        Some(bytes) if bytes <= most => Ok(()),
        _ => Err(format!(
            "{what} of {rows} environments have more bytes than the limit of {most} for a message"
        )),
    };
    memory("observations", &observed)?;
    let mut obs = RowBlock::new(&observed, rows).map_err(told)?;
    if place.first_rows {
        rows::read(&observed, first, obs.rows_mut())
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
    memory("actions", &columns)?;
    let out = RowBlock::new(&columns, rows).map_err(told)?;
    let body = serde_json::to_vec(&spec).map_err(told)?;
    *seat = Some(Seat {
        served,
        observed,
        columns,
        obs,
        out,
        envs: EnvRows::new(0, Vec::new()),
        rows,
    });
    Ok(Frame::new(Kind::Bound, frame.seq, [0; 3], body))
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
    rows::read(&seat.observed, obs, seat.obs.rows_mut())
        .map_err(|reason| format!("observations: {reason}"))?;
    let input = PolicyIn {
        obs: seat.obs.rows(),
        envs: &seat.envs,
        exploration,
    };
    seat.served.act(&input, seat.out.rows_mut()).map_err(told)?;
    let mut body = Vec::new();
    rows::write(&seat.columns, seat.out.rows(), &mut body).map_err(told)?;
    let version = seat.served.version().unwrap_or_default();
    Ok(Frame::new(
        Kind::Acted,
        frame.seq,
        [version as u64, 0, 0],
        body,
    ))
}

/// Publishes weights.
fn push(shared: &Shared, seq: u64, bytes: &[u8]) -> Result<Frame, String> {
    let weights = TensorDict::from_bytes(bytes).map_err(told)?;
    let version = shared
        .inference
        .update_policy_weights(&weights)
        .map_err(told)?;
    Ok(Frame::new(
        Kind::Pushed,
        seq,
        [version as u64, 0, 0],
        Vec::new(),
    ))
}

/// The newest weights, unless the client has them.
fn pull(shared: &Shared, frame: &Frame, limit: usize) -> Done {
    let known = frame.words[0] as i64;
    let newest = shared
        .store
        .newest(0)
        .filter(|newest| newest.version != known);
    let Some(newest) = newest else {
        let version = shared.store.version() as u64;
        return Done::Again(vec![Frame::new(
            Kind::Current,
            frame.seq,
            [version, 0, 0],
            Vec::new(),
        )]);
    };
    let mut snapshot = lock(&shared.snapshot);
    let bytes = match &*snapshot {
        Some((version, bytes)) if *version == newest.version => bytes.clone(),
        _ => match newest.weights.to_bytes() {
            Ok(bytes) => {
                let bytes = Bytes::from(bytes);
                *snapshot = Some((newest.version, bytes.clone()));
                bytes
            }
            Err(error) => return Done::Again(vec![Frame::failed(frame.seq, error.to_string())]),
        },
    };
    drop(snapshot);
    let most = piece(limit);
    Done::Again(Frame::pieces(
        Kind::Piece,
        frame.seq,
        &bytes,
        newest.version,
        most,
    ))
}

#[cfg(test)]
mod tests {
    use tensordict::DType;
    use tonic::body::Body;
    use windrow_env::{EnvSpec, Spec};
    use windrow_policy::{ExplorationType, Head, NetworkPolicy, PolicyRecipe, nn::Sequential};

    use super::*;
    use crate::frame::FrameCodec;
    use crate::{Limits, RemoteServer};

    fn server(limits: Limits) -> RemoteServer {
        let layers = Sequential::new().linear(4, 8).tanh().linear(8, 2).seed(1);
        let policy = NetworkPolicy::new(layers, Head::Categorical);
        let builder = RemoteServer::builder(PolicyRecipe::of(policy));
        builder.limits(limits).start().unwrap()
    }

    /// A connection without a network.
    struct Wire {
        answers: Answers,
        seq: u64,
    }

    impl Wire {
        fn new(server: &RemoteServer) -> Self {
            let shared = Arc::clone(&server.shared);
            let caller = lock(&shared.door).knock(256).unwrap();
            let asked = Streaming::new_empty(FrameCodec, Body::empty());
            let talk = Talk::new(shared, caller).call(Request::new(asked));
            let answers = talk.into_inner().unwrap().into_inner();
            Self { answers, seq: 0 }
        }

        fn greet(&mut self, id: u64) -> Result<Frame, Status> {
            let hello = [PROTOCOL.to_le_bytes(), (4u64 << 20).to_le_bytes()].concat();
            self.ask_as(0, Kind::Hello, [id, 0, 0], hello)
        }

        fn greeted(server: &RemoteServer, id: u64) -> Self {
            let mut wire = Self::new(server);
            assert_eq!(wire.greet(id).unwrap().kind, Kind::Welcome);
            wire
        }

        fn ask(&mut self, kind: Kind, words: [u64; 3], body: impl Into<Bytes>) -> Frame {
            self.seq += 1;
            self.ask_as(self.seq, kind, words, body).unwrap()
        }

        fn ask_as(
            &mut self,
            seq: u64,
            kind: Kind,
            words: [u64; 3],
            body: impl Into<Bytes>,
        ) -> Result<Frame, Status> {
            self.answers.take(&Frame::new(kind, seq, words, body))?;
            let answer = self.answers.out.pop_back();
            answer.ok_or_else(|| Status::internal("there is no answer"))
        }
    }

    impl Drop for Wire {
        fn drop(&mut self) {
            let Answers { shared, caller, .. } = &self.answers;
            lock(&shared.door).leave(caller);
        }
    }

    #[test]
    fn neither_greetings_nor_clients_that_have_gone_keep_others_out() {
        let server = server(Limits::new());
        let mut one = Wire::greeted(&server, 1);
        for id in 2..1100 {
            assert!(one.greet(id).is_err());
        }
        for id in 2..1100 {
            Wire::greeted(&server, id);
        }
        let mut newest = Wire::greeted(&server, 1100);
        for wire in [&mut one, &mut newest] {
            assert_eq!(wire.ask(Kind::Pull, [0; 3], "").kind, Kind::Current);
        }
    }

    #[test]
    fn weights_that_are_not_complete_have_a_limit_in_total() {
        let server = server(Limits::new().weights(10_000));
        let mut wires: Vec<_> = (0..4).map(|id| Wire::greeted(&server, id)).collect();
        let piece = |wire: &mut Wire| wire.ask(Kind::Push, [10_000, 0, 0], vec![0; 9_000]);
        for wire in &mut wires[..2] {
            assert_eq!(piece(wire).kind, Kind::Progress);
        }
        for wire in &mut wires[2..] {
            let refused = piece(wire);
            assert!(
                refused.text().contains("more than 20000 bytes"),
                "{refused:?}"
            );
            // What follows it changes nothing.
            let (seq, words) = (wire.seq, [10_000, 9_000, 0]);
            let again = wire.ask_as(seq, Kind::Push, words, vec![0; 1_000]).unwrap();
            assert_eq!(again.text(), refused.text());
        }
        // One that goes and one that is through make room.
        drop(wires.swap_remove(0));
        let (seq, words) = (wires[1].seq, [10_000, 9_000, 0]);
        let last = wires[1]
            .ask_as(seq, Kind::Push, words, vec![0; 1_000])
            .unwrap();
        assert_eq!(last.kind, Kind::Failed);
        assert_eq!(
            server
                .shared
                .sending
                .load(std::sync::atomic::Ordering::Relaxed),
            0
        );
        assert_eq!(piece(&mut wires[2]).kind, Kind::Progress);
    }

    #[test]
    fn requests_to_act_with_any_content_are_answered_and_change_nothing_for_others() {
        const ROWS: usize = 3;
        let server = server(Limits::new());
        let spec = EnvSpec::new("Pole", Spec::unbounded(DType::F32, [4]), Spec::discrete(2));
        let place = Place {
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
        let mut wires = [1, 2].map(|id| Wire::greeted(&server, id));
        for wire in &mut wires {
            assert_eq!(wire.ask(Kind::Bind, [0; 3], bind.clone()).kind, Kind::Bound);
        }
        let [odd, fair] = &mut wires;
        let expected = fair.ask(Kind::Act, words, body.clone());
        assert_eq!(expected.kind, Kind::Acted);
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
            acted += usize::from(answer.kind == Kind::Acted);
            assert!(!answer.text().contains("panicked"), "round {round}");
        }
        assert!(acted > 5_000, "{acted} requests were done");
        let again = fair.ask(Kind::Act, words, body);
        assert_eq!(again.body, expected.body);
    }
}
