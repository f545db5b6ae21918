//! A policy that a server evaluates.

use std::ops::Range;
use std::sync::Arc;

use windrow_slab::RowsMut;
use windrow_sync::lock;

use super::Hub;
use super::board::Request;
use crate::{Binding, Policy, PolicyError, PolicyIn, PolicySpec, Weights};

/// A client of an [`InferenceServer`](super::InferenceServer): a policy whose actions are the server's answers.
///
/// [`act`](Policy::act) waits until its rows are evaluated, together with those of others or not.
/// [`version`](Policy::version) is that of the weights behind the last answer.
#[derive(Debug)]
pub struct Served {
    hub: Arc<Hub>,
    seat: Option<Seat>,
    version: i64,
}

/// A client's place at the server.
#[derive(Debug)]
struct Seat {
    client: usize,
    /// Where the policy keeps states of its environments, one for each row.
    places: Range<usize>,
    /// Whether these may hold states of others, who had them before.
    is_new: bool,
    /// `None` while the server has it, and for good once the server has ended.
    request: Option<Request>,
}

impl Served {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        Self {
            hub,
            seat: None,
            version: 0,
        }
    }

    fn leave(&mut self) {
        if let Some(seat) = self.seat.take() {
            lock(&self.hub.board).leave(seat.client);
            self.hub.free_places(&seat.places);
            // It may be the one that was waited for.
            self.hub.wake_all();
        }
    }
}

impl Policy for Served {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        self.leave();
        let rows = binding.num_envs;
        let most = self.hub.config.max_batch_size;
        if rows > most {
            return Err(PolicyError::ServerConfig {
                name: "max_batch_size",
                expected: format!("at least {rows}, the environments of a client"),
                got: most,
            });
        }
        let joint = self.hub.joint(binding)?;
        let mut request = Request::new(0, rows, &joint.observed, &joint.spec.columns)?;
        let mut board = lock(&self.hub.board);
        board.check()?;
        request.client = board.join(rows);
        drop(board);
        self.seat = Some(Seat {
            client: request.client,
            places: self.hub.take_places(rows),
            is_new: true,
            request: Some(request),
        });
        Ok(joint.spec)
    }

    fn needs_first_rows(&self) -> bool {
        self.hub.needs_first_rows()
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        let Some(seat) = &mut self.seat else {
            return Err(PolicyError::NotBound {
                policy: "served policy",
            });
        };
        input.check_rows(out.envs())?;
        input.check_rows(seat.places.len())?;
        let hub = &self.hub;
        let Some(mut request) = seat.request.take() else {
            lock(&hub.board).check()?;
            return Err(PolicyError::ServerEnded {
                reason: "a request was lost".into(),
            });
        };
        if let Err(error) = request.fill(input) {
            seat.request = Some(request);
            return Err(error);
        }
        request.envs.set_places(seat.places.start);
        if seat.is_new {
            (0..request.rows()).for_each(|row| request.envs.begin(row));
        }
        let request = seat
            .request
            .insert(hub.attend(Some(seat.client), Some(request))?);
        if let Some(failure) = request.failure.take() {
            return Err(failure);
        }
        seat.is_new = false;
        self.version = request.version;
        Ok(out.copy_from(request.out.rows())?)
    }

    /// Has the server look for weights before its next batch, also where their version is the one that it has. They are those of
    /// its store.
    fn load(&mut self, _: &Weights) -> Result<(), PolicyError> {
        lock(&self.hub.board).look_again();
        Ok(())
    }

    fn version(&self) -> Option<i64> {
        Some(self.version)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.leave();
    }
}
