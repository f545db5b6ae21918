//! Weights on their way to worker processes: bytes in shared memory, one parameter behind the other.

use std::sync::Arc;

use tensordict::{LeafSpec, Tensor, TensorDict, TensorError};
use windrow_policy::{PolicyError, Published, WeightRelay, Weights};
use windrow_process::{Exchange, ExchangeReader, ProcessError, Target};

/// Names, types and shapes of `weights`, in the order in which they are written.
pub(crate) fn leaves(weights: &Weights) -> Vec<LeafSpec> {
    weights
        .leaves()
        .map(|(key, tensor)| LeafSpec::new(key.clone(), tensor.dtype(), tensor.shape()))
        .collect()
}

/// Bytes of all `leaves`.
fn bytes(leaves: &[LeafSpec]) -> usize {
    leaves.iter().map(size).sum()
}

fn size(leaf: &LeafSpec) -> usize {
    leaf.shape.iter().product::<usize>() * leaf.dtype.size()
}

/// Passes publications on to worker processes.
pub(crate) struct WeightSender {
    pub(super) exchange: Exchange,
    leaves: Vec<LeafSpec>,
}

impl WeightSender {
    /// A way for weights such as `leaves` to `workers` workers.
    ///
    /// # Errors
    /// As [`Exchange::create`].
    pub(crate) fn new(workers: usize, leaves: Vec<LeafSpec>) -> Result<Arc<Self>, ProcessError> {
        Ok(Arc::new(Self {
            // Some policies have no parameters, but no memory is empty.
            exchange: Exchange::create(workers, bytes(&leaves).max(1))?,
            leaves,
        }))
    }

    fn write(&self, weights: &Weights, mut to: &mut [u8]) {
        for leaf in &self.leaves {
            let (own, rest) = std::mem::take(&mut to).split_at_mut(size(leaf));
            to = rest;
            // The publisher has checked names, types and shapes, and what is published is contiguous.
            let tensor = weights.get(&leaf.key).ok();
            if let Some(tensor) = tensor.and_then(|tensor| tensor.as_bytes().ok())
                && tensor.len() == own.len()
            {
                own.copy_from_slice(tensor);
            }
        }
    }
}

impl WeightRelay for WeightSender {
    fn pass(&self, worker: Option<usize>, published: &Published) -> Result<(), PolicyError> {
        let to = worker.map_or(Target::All, Target::Worker);
        let write = |bytes: &mut [u8]| self.write(&published.weights, bytes);
        let passed = self.exchange.publish(to, published.version, write);
        passed.map_err(PolicyError::failed)
    }
}

/// Reads what a [`WeightSender`] passes on.
#[derive(Debug)]
pub(super) struct WeightReceiver {
    reader: ExchangeReader,
    leaves: Vec<LeafSpec>,
}

impl WeightReceiver {
    pub(super) fn new(reader: ExchangeReader, leaves: Vec<LeafSpec>) -> Self {
        Self { reader, leaves }
    }

    /// A copy of the newest weights, unless they have the version `held`.
    pub(super) fn newest(&mut self, held: Option<i64>) -> Result<Option<Published>, ReceiveError> {
        let Some(pinned) = self.reader.newest(held)? else {
            return Ok(None);
        };
        let mut weights = TensorDict::new([]);
        let mut from = pinned.bytes();
        for leaf in &self.leaves {
            let Some((own, rest)) = from.split_at_checked(size(leaf)) else {
                break;
            };
            from = rest;
            let tensor = Tensor::from_bytes(leaf.dtype, &leaf.shape, own)?;
            weights.set(&leaf.key, tensor)?;
        }
        Ok(Some(Published {
            version: pinned.version(),
            weights: Arc::new(weights),
        }))
    }
}

/// Weights could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
