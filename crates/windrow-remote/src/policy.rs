//! A policy that a server evaluates.

use std::sync::Arc;

use tensordict::LeafSpec;
use windrow_env::{EnvError, StateVisitor};
use windrow_policy::{
    Binding, EnvRows, Policy, PolicyError, PolicyIn, PolicyRecipe, PolicySpec, States, Weights,
};
use windrow_slab::RowsMut;

use crate::RemoteError;
use crate::client::Link;
use crate::protocol::{Answer, Request};
use crate::rows::{self, BindRequest};
use crate::written;

/// A policy whose actions are the answers of a [server](crate::RemoteServer); made by
/// [`Remote::policy`](crate::Remote::policy).
///
/// One call of [`act`](Policy::act) is one round trip, whatever the number of rows; ids, frames and
/// noise travel with them, so actions are those that the policy would choose here. Each clone has a
/// connection of its own. [`version`](Policy::version) is that of the weights behind the last
/// answer. Weights are the server's: [`RemoteWeights`](crate::RemoteWeights) sends them, also as a
/// collector's updater, and [`load`](Policy::load) refuses them.
///
/// A lost connection is opened again, and what was asked is asked again and done once. Where the
/// server is lost, a call fails within the [time-out](crate::Remote::timeout).
#[derive(Debug)]
pub struct RemotePolicy {
    link: Link,
    seat: Option<Seat>,
    version: i64,
}

/// What was agreed on when the policy was bound.
#[derive(Debug)]
struct Seat {
    observed: Vec<LeafSpec>,
    columns: Vec<LeafSpec>,
    envs: usize,
    place: Arc<Place>,
    /// Whether the served policy remembers its environments.
    remembers: bool,
    /// The producer that the server knows by it.
    producer: u128,
}

/// A request for a place at the server, and first observations.
#[derive(Debug)]
struct Place {
    request: Request,
    first: Vec<u8>,
}

impl RemotePolicy {
    pub(crate) fn new(link: Link) -> Self {
        Self {
            link,
            seat: None,
            version: 0,
        }
    }

    /// Takes `place` at the server: what the policy says of itself there.
    fn sit(&mut self, place: &Place) -> Result<PolicySpec, RemoteError> {
        match self.link.call(&place.request, &place.first)?.0 {
            Answer::Bound(spec) => {
                let failed = |error| format!("what the policy writes cannot be read: {error}");
                serde_json::from_str(&spec).map_err(|error| self.link.failed(failed(error)))
            }
            answer => Err(self.link.unexpected(&answer)),
        }
    }

    /// The answer to observations of `envs`, by a server that knows this client.
    fn ask(
        &mut self,
        request: &Request,
        body: &[u8],
        envs: &EnvRows,
    ) -> Result<(Answer, Vec<u8>), RemoteError> {
        let place = match &self.seat {
            Some(seat) if seat.producer != self.link.producer() => Arc::clone(&seat.place),
            _ => return self.link.call(request, body),
        };
        let spec = self.sit(&place)?;
        let producer = self.link.producer();
        if let Some(seat) = &mut self.seat {
            if seat.columns != spec.columns {
                return Err(self.link.failed(format!(
                    "the policy wrote {:?} before, and {:?} now",
                    seat.columns, spec.columns
                )));
            }
            if spec.states == States::ByPlace && envs.is_first().contains(&false) {
                let reason =
                    "the server no longer has the states of these environments: reset them";
                return Err(self.link.failed(reason.to_owned()));
            }
            seat.producer = producer;
        }
        self.link.call(request, body)
    }
}

impl Clone for RemotePolicy {
    /// A policy of the same server, not yet bound, with a connection of its own.
    fn clone(&self) -> Self {
        Self::new(self.link.another())
    }
}

impl Policy for RemotePolicy {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        self.seat = None;
        let request = BindRequest {
            spec: binding.spec.clone(),
            num_envs: binding.num_envs,
            batched: binding.batched,
            worker: binding.worker,
            first_rows: binding.first_rows.is_some(),
        };
        let json = serde_json::to_string(&request).map_err(PolicyError::failed)?;
        let (observed, mut first) = (binding.spec.observation_leaves(), Vec::new());
        if let Some(rows) = binding.first_rows {
            let refused = self.link.remote.limits.refused_values;
            rows::write(&observed, rows, &mut first, refused).map_err(PolicyError::failed)?;
        }
        let request = Request::Bind(json);
        let place = Arc::new(Place { request, first });
        let spec = self.sit(&place)?;
        let most = self.link.remote.limits.message;
        rows::check_leaves("actions", &spec.columns, (binding.num_envs, 0), most)
            .map_err(|reason| self.link.failed(reason))?;
        self.seat = Some(Seat {
            observed,
            columns: spec.columns.clone(),
            envs: binding.num_envs,
            place,
            remembers: spec.states == States::ByPlace,
            producer: self.link.producer(),
        });
        // Here, each call has the same environments.
        Ok(spec.states(States::ByRow))
    }

    /// Always: whether the served policy needs them is known only when it is bound.
    fn needs_first_rows(&self) -> bool {
        true
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        let Some(seat) = &self.seat else {
            return Err(PolicyError::NotBound {
                policy: "remote policy",
            });
        };
        input.check_rows(out.envs())?;
        input.check_rows(seat.envs)?;
        let mut body = Vec::new();
        input.envs.write(&mut body);
        let refused = self.link.remote.limits.refused_values;
        rows::write(&seat.observed, input.obs, &mut body, refused).map_err(PolicyError::failed)?;
        let request = Request::Act {
            exploration: input.exploration,
            rows: input.envs.len() as u64,
        };
        let (answer, body) = self.ask(&request, &body, input.envs)?;
        let (Some(seat), Answer::Acted { version }) = (&self.seat, &answer) else {
            return Err(self.link.unexpected(&answer).into());
        };
        rows::read(&seat.columns, &body, out, refused).map_err(|reason| {
            PolicyError::failed(format!("actions of {}: {reason}", self.link.remote.address))
        })?;
        self.version = *version;
        Ok(())
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        if weights.is_empty() {
            return Ok(());
        }
        Err(PolicyError::failed(format!(
            "the weights of a remote policy are at {}: send them with Remote::weights, or give a collector that as its weight_updater",
            self.link.remote.address
        )))
    }

    fn version(&self) -> Option<i64> {
        Some(self.version)
    }

    /// Worker processes can have it where [`register`](crate::register) was called, and token and
    /// certificates come from files.
    fn recipe(&self) -> Option<PolicyRecipe> {
        let recipe = PolicyRecipe::served_elsewhere(self.clone());
        Some(match written::recipe(&self.link.remote) {
            Some(written) => recipe.written_as(written),
            None => recipe,
        })
    }

    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        match &self.seat {
            Some(seat) if seat.remembers => Err(EnvError::NotHeld(format!(
                "the state of the recurrent policy at {} cannot be saved: let workers evaluate it themselves",
                self.link.remote.address
            ))),
            _ => Ok(()),
        }
    }
}
