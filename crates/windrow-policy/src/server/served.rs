//! A policy that a server evaluates.

use std::ops::Range;
use std::sync::Arc;

use windrow_env::{EnvError, StateVisitor};
use windrow_slab::RowsMut;
use windrow_sync::lock;

use super::ServerState;
use super::queue::Request;
use crate::{Binding, Policy, PolicyError, PolicyIn, PolicySpec, States, Weights};

/// A client of an [`InferenceServer`](super::InferenceServer): a policy whose actions are the
/// server's answers.
///
/// [`act`](Policy::act) waits until the server has evaluated its rows, alone or in a batch with
/// those of other clients. [`version`](Policy::version) is the version of the weights that gave the
/// last answer.
#[derive(Debug)]
pub struct Served {
    state: Arc<ServerState>,
    registration: Option<Registration>,
    version: i64,
}

/// What a bound client has at its server.
#[derive(Debug)]
struct Registration {
    client: usize,
    /// The rows of the policy's recurrent states that belong to its environments, one for each.
    state_rows: Range<usize>,
    /// Whether those rows may still hold states of an earlier client.
    is_new: bool,
    /// Whether the policy remembers its environments, at the server.
    remembers: bool,
    /// `None` while the server has it. It is not returned once the server has ended.
    request: Option<Request>,
}

impl Served {
    pub(super) fn new(state: Arc<ServerState>) -> Self {
        Self {
            state,
            registration: None,
            version: 0,
        }
    }

    fn leave(&mut self) {
        if let Some(registration) = self.registration.take() {
            lock(&self.state.queue).leave(registration.client);
            self.state.release_state_rows(&registration.state_rows);
            // A batch may be waiting for this client.
            self.state.wake_all();
        }
    }
}

impl Policy for Served {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        self.leave();
        let rows = binding.num_envs;
        let most = self.state.config.max_batch_size;
        if rows > most {
            return Err(PolicyError::ServerConfig {
                name: "max_batch_size",
                expected: format!("at least {rows}, the environments of a client"),
                got: most,
            });
        }
        let shared = self.state.shared_spec(binding)?;
        let mut request = Request::new(0, rows, &shared.observed, &shared.spec.columns)?;
        let mut queue = lock(&self.state.queue);
        queue.check()?;
        request.client = queue.join(rows);
        drop(queue);
        self.registration = Some(Registration {
            client: request.client,
            state_rows: self.state.reserve_state_rows(rows),
            is_new: true,
            remembers: shared.spec.states == States::ByPlace,
            request: Some(request),
        });
        Ok(shared.spec)
    }

    fn needs_first_rows(&self) -> bool {
        self.state.needs_first_rows()
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        let Some(registration) = &mut self.registration else {
            return Err(PolicyError::NotBound {
                policy: "served policy",
            });
        };
        input.check_rows(out.envs())?;
        input.check_rows(registration.state_rows.len())?;
        let state = &self.state;
        let Some(mut request) = registration.request.take() else {
            lock(&state.queue).check()?;
            return Err(PolicyError::ServerEnded {
                reason: "a request was lost".into(),
            });
        };
        if let Err(error) = request.fill(input) {
            registration.request = Some(request);
            return Err(error);
        }
        request.envs.set_places(registration.state_rows.start);
        if registration.is_new {
            (0..request.rows()).for_each(|row| request.envs.begin(row));
        }
        let request = registration
            .request
            .insert(state.wait_and_evaluate(Some(registration.client), Some(request))?);
        if let Some(failure) = request.failure.take() {
            return Err(failure);
        }
        registration.is_new = false;
        self.version = request.version;
        Ok(out.copy_from(request.out.rows())?)
    }

    /// Makes the server reload weights from its store before the next batch, even if their version
    /// is unchanged.
    fn load(&mut self, _: &Weights) -> Result<(), PolicyError> {
        lock(&self.state.queue).reload_weights();
        Ok(())
    }

    fn version(&self) -> Option<i64> {
        Some(self.version)
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let _ = state;
        match &self.registration {
            Some(Registration {
                remembers: true, ..
            }) => Err(EnvError::NotHeld(
                "the state of a recurrent policy that a server evaluates cannot be saved: let workers evaluate it themselves"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.leave();
    }
}
