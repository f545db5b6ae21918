//! What a client asks, and the answers.

use std::collections::VecDeque;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tensordict::{LeafSpec, TensorDict};
use tokio::sync::Notify;
use tokio_stream::Stream;
use tonic::server::StreamingService;
use tonic::{Request, Response, Status, Streaming};
use windrow_policy::{Binding, EnvRows, Policy, PolicyIn, Served};
use windrow_slab::RowBlock;

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
    greeted: Arc<Notify>,
}

impl Talk {
    pub(super) fn new(shared: Arc<Shared>, greeted: Arc<Notify>) -> Self {
        Self { shared, greeted }
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
            greeted: Arc::clone(&self.greeted),
            asked: request.into_inner(),
            producer: None,
            pieces: Pieces::default(),
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
    greeted: Arc<Notify>,
    asked: Streaming<Frame>,
    producer: Option<(u128, Arc<Producer>)>,
    pieces: Pieces,
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
            producer.leave();
        }
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
        let entered = self.shared.producers.enter(id, says_known != 0)?;
        let answer = match entered {
            None => Frame::new(Kind::Forgotten, 0, [0; 3], Vec::new()),
            Some((producer, last)) => {
                if let Some((_, before)) = self.producer.replace((id, producer)) {
                    before.leave();
                }
                Frame::new(
                    Kind::Welcome,
                    0,
                    [self.shared.instance, last, own as u64],
                    Vec::new(),
                )
            }
        };
        count(&self.shared.counters.accepted);
        self.greeted.notify_one();
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
