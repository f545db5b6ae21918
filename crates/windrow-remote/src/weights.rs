//! Weights on their way to and from a server.

use std::sync::Arc;

use tensordict::TensorDict;
use windrow_policy::{PolicyError, Published, Pushed, WeightUpdater, Weights};

use crate::RemoteError;
use crate::client::Link;
use crate::protocol::{Answer, Piece, Request};

/// Sends weights to a [server](crate::RemoteServer), and fetches the newest; made by
/// [`Remote::weights`](crate::Remote::weights).
///
/// A collector takes it as its `weight_updater`. They travel as safetensors, in pieces that no
/// message limit cuts.
#[derive(Debug)]
pub struct RemoteWeights {
    link: Link,
}

impl RemoteWeights {
    pub(crate) fn new(link: Link) -> Self {
        Self { link }
    }

    /// Has the server's policy act with `weights` from its next batch on, and returns their
    /// version. They are published once, however often the connection is lost.
    ///
    /// # Errors
    /// [`RemoteError::Failed`] naming a tensor that is missing, unknown or misshapen; the old
    /// weights then stay. [`RemoteError::Limit`], and those of the connection.
    pub fn publish(&mut self, weights: &Weights) -> Result<i64, RemoteError> {
        let bytes = weights.to_bytes()?;
        let limits = self.link.remote.limits;
        if bytes.len() > limits.weights {
            return Err(RemoteError::Limit {
                what: "a set of weights",
                limit: limits.weights,
                got: bytes.len(),
            });
        }
        let (total, offset) = (bytes.len() as u64, 0);
        let push = Request::Push(Piece { total, offset });
        match self.link.call(&push, &bytes)?.0 {
            Answer::Pushed { version } => Ok(version),
            answer => Err(self.link.unexpected(&answer)),
        }
    }

    /// The weights that were published last, if their version is not `known`; `None` also where
    /// none were published yet.
    ///
    /// # Errors
    /// [`RemoteError::Weights`] for bytes that are no weights, and those of the connection.
    pub fn newest(&mut self, known: i64) -> Result<Option<Published>, RemoteError> {
        match self.link.call(&Request::Pull { known }, &[])? {
            (Answer::Current { .. }, _) => Ok(None),
            (Answer::Piece { version, .. }, bytes) => Ok(Some(Published {
                version,
                weights: Arc::new(TensorDict::from_bytes(&bytes)?),
            })),
            (answer, _) => Err(self.link.unexpected(&answer)),
        }
    }
}

impl WeightUpdater for RemoteWeights {
    /// Publishes them at the server: the collector's workers, which ask it for their actions, get
    /// none.
    fn push(
        &mut self,
        worker: Option<usize>,
        _: i64,
        weights: &Weights,
    ) -> Result<Pushed, PolicyError> {
        if let Some(worker) = worker {
            return Err(PolicyError::failed(format!(
                "expected weights for all workers, which act with one policy at {}, got some for worker {worker}",
                self.link.remote.address
            )));
        }
        let version = self.publish(weights)?;
        Ok(Pushed::Elsewhere { version })
    }
}
