//! Weights on their way to worker processes: bytes in shared memory, one parameter behind the
//! other.

use std::borrow::Cow;
use std::sync::Arc;

use tensordict::{DType, HeapBuffer, LeafSpec, Tensor, TensorDict, TensorError};
use windrow_peer::{Exchange, ExchangeReader, ProcessError, Target};
use windrow_policy::{
    Misfit, PolicyError, Published, Pushed, WeightUpdater, Weights, WeightsError,
};

/// Names, types and shapes of `weights`, in the order in which they are written.
pub(crate) fn leaves(weights: &Weights) -> Vec<LeafSpec> {
    weights
        .leaves()
        .map(|(key, tensor)| LeafSpec::new(key.clone(), tensor.dtype(), tensor.shape()))
        .collect()
}

/// Each of `leaves`, from which byte on it lies, and how many bytes it has: each begins at a cache
/// line.
fn places(leaves: &[LeafSpec]) -> impl Iterator<Item = (&LeafSpec, usize, usize)> {
    leaves.iter().scan(0, |end, leaf| {
        let (at, bytes) = (
            *end,
            leaf.shape.iter().product::<usize>() * leaf.dtype.size(),
        );
        *end = (at + bytes).next_multiple_of(HeapBuffer::ALIGN);
        Some((leaf, at, bytes))
    })
}

/// Copies publications to where worker processes read them; readers in this process see the same
/// memory.
#[derive(Clone)]
pub(crate) struct WeightSender {
    pub(super) exchange: Arc<Exchange>,
    leaves: Vec<LeafSpec>,
}

impl WeightSender {
    /// A way for weights such as `leaves` to `workers` workers.
    ///
    /// # Errors
    /// As [`Exchange::create`].
    pub(crate) fn new(workers: usize, leaves: Vec<LeafSpec>) -> Result<Arc<Self>, ProcessError> {
        let bytes = places(&leaves).map(|(_, at, bytes)| at + bytes).last();
        Ok(Arc::new(Self {
            exchange: Arc::new(Exchange::create(workers, bytes.unwrap_or(0))?),
            leaves,
        }))
    }

    /// The tensors of `weights` in the order of the leaves, numbers without gaps: as they are,
    /// where they have none. The publisher has checked what it was given, but an updater may bring
    /// something else.
    fn tensors<'a>(&self, weights: &'a Weights) -> Result<Vec<Cow<'a, Tensor>>, WeightsError> {
        let mut misfits = Vec::new();
        let mut tensors = Vec::with_capacity(self.leaves.len());
        for LeafSpec {
            key, dtype, shape, ..
        } in &self.leaves
        {
            let name = || key.components().join(".");
            if *dtype == DType::Bytes {
                let (expected, got) = (DType::F32, DType::Bytes);
                return Err(TensorError::DType { expected, got }.at(key).into());
            }
            match Misfit::check(name, *dtype, shape, weights.get(key).ok()) {
                Ok(tensor) if tensor.dtype() == *dtype && tensor.is_contiguous() => {
                    tensors.push(Cow::Borrowed(tensor));
                }
                Ok(tensor) => tensors.push(Cow::Owned(tensor.cast(*dtype)?.contiguous())),
                Err(misfit) => misfits.push(misfit),
            }
        }
        match misfits.is_empty() {
            true => Ok(tensors),
            false => Err(WeightsError::Misfits {
                path: None,
                misfits,
            }),
        }
    }
}

impl WeightUpdater for WeightSender {
    fn push(
        &mut self,
        worker: Option<usize>,
        version: i64,
        weights: &Weights,
    ) -> Result<Pushed, PolicyError> {
        let to = worker.map_or(Target::All, Target::Worker);
        let tensors = self.tensors(weights)?;
        let write = |to: &mut [u8]| {
            for ((_, at, bytes), tensor) in places(&self.leaves).zip(&tensors) {
                // They are contiguous.
                to[at..at + bytes].copy_from_slice(tensor.as_bytes().unwrap_or_default());
            }
        };
        let snapshot = self.exchange.publish(to, version, write);
        let snapshot = snapshot.map_err(PolicyError::failed)?;
        let mut copy = TensorDict::new([]);
        for (leaf, at, _) in places(&self.leaves) {
            let tensor = snapshot.tensor(at, leaf.dtype, &leaf.shape);
            let tensor = tensor.map_err(PolicyError::failed)?;
            copy.set(&leaf.key, tensor).map_err(WeightsError::from)?;
        }
        Ok(Pushed::Here(Arc::new(copy)))
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
        for (leaf, at, bytes) in places(&self.leaves) {
            let own = pinned.bytes().get(at..at + bytes).unwrap_or_default();
            let tensor = Tensor::from_bytes(leaf.dtype, &leaf.shape, own)?;
            weights.set(&leaf.key, tensor)?;
        }
        Ok(Some(Published {
            version: pinned.version(),
            weights: Arc::new(weights),
        }))
    }
}

/// The parameters of `weights` one behind the other, without gaps.
#[cfg(feature = "remote")]
pub(super) fn bytes_of(weights: &Weights) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (_, tensor) in weights.leaves() {
        let tensor = tensor.contiguous();
        bytes.extend_from_slice(tensor.as_bytes().expect("The tensor is contiguous."));
    }
    bytes
}

/// The weights of these leaves that [`bytes_of`] wrote.
///
/// # Errors
/// [`TensorError`] for another number of bytes.
#[cfg(feature = "remote")]
pub(super) fn weights_from(leaves: &[LeafSpec], bytes: &[u8]) -> Result<Weights, TensorError> {
    let mut weights = TensorDict::new([]);
    let mut rest = bytes;
    for LeafSpec {
        key, dtype, shape, ..
    } in leaves
    {
        let len = shape.iter().product::<usize>() * dtype.size();
        let (own, others) = rest.split_at_checked(len).unwrap_or((rest, &[]));
        weights.set(key, Tensor::from_bytes(*dtype, shape, own)?)?;
        rest = others;
    }
    Ok(weights)
}

/// Weights could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::thread;

    use windrow_policy::WeightStore;

    use super::*;

    /// Leaves of several types, some of which end within a cache line; two of them have no
    /// elements.
    fn weights(value: i64) -> Weights {
        let mut weights = TensorDict::new([]);
        let mut set = |key: &[&str], tensor: Tensor| {
            weights.set(key, tensor).unwrap();
        };
        set(&["mask"], Tensor::full([3], value % 2 == 0).unwrap());
        set(&["body", "bias"], Tensor::full([5], value as f64).unwrap());
        set(&["body", "none"], Tensor::full([0, 4], 0.0f32).unwrap());
        set(&["body", "weight"], Tensor::full([7, 9], value).unwrap());
        set(&["nothing"], Tensor::full([0], 0u8).unwrap());
        weights
    }

    struct Both {
        sender: Arc<WeightSender>,
        store: WeightStore,
    }

    impl Both {
        fn new() -> Self {
            let sender = WeightSender::new(2, leaves(&weights(0))).unwrap();
            let store = WeightStore::with_updater(2, WeightSender::clone(&sender));
            Self { sender, store }
        }

        /// What a worker process has.
        fn receiver(&self, worker: usize) -> WeightReceiver {
            let fd = self.sender.exchange.as_fd().try_clone_to_owned().unwrap();
            let reader = ExchangeReader::open(fd, worker).unwrap();
            WeightReceiver::new(reader, self.sender.leaves.clone())
        }
    }

    #[test]
    fn workers_and_readers_of_the_store_see_what_was_published() {
        let both = Both::new();
        let mut receivers = [both.receiver(0), both.receiver(1)];
        both.store.publish(&weights(1)).unwrap();
        both.store.publish_to(1, &weights(2)).unwrap();
        for (worker, receiver) in receivers.iter_mut().enumerate() {
            let expected = worker as i64 + 1;
            let got = receiver.newest(None).unwrap().unwrap();
            assert_eq!((got.version, &*got.weights), (expected, &weights(expected)));
            let here = both.store.newest(worker).unwrap();
            assert_eq!((here.version, here.weights), (expected, got.weights));
            assert!(receiver.newest(Some(expected)).unwrap().is_none());
        }
    }

    #[test]
    fn weights_in_any_order_of_memory_are_copied() {
        let both = Both::new();
        let mut turned = weights(1);
        let rows = Tensor::arange(0..63).unwrap().view([9, 7]).unwrap();
        let rows = rows.transpose(0, 1).unwrap();
        turned.set(["body", "weight"], rows).unwrap();
        both.store.publish(&turned).unwrap();
        let got = both.receiver(0).newest(None).unwrap().unwrap();
        assert_eq!(*got.weights, turned);
    }

    #[test]
    fn weights_that_are_others_are_refused_and_the_last_ones_stay() {
        let both = Both::new();
        both.store.publish(&weights(1)).unwrap();
        let mut others = weights(2);
        let narrow = Tensor::full([7, 8], 2i64).unwrap();
        others.set(["body", "weight"], narrow).unwrap();
        others.set("mask", Tensor::full([3], 1u8).unwrap()).unwrap();
        others.remove("nothing").unwrap();
        let error = both.store.publish(&others).unwrap_err().to_string();
        for misfit in [
            "\"mask\": expected dtype bool, got uint8",
            "\"body.weight\": expected shape [7, 9], got [7, 8]",
            "\"nothing\" is missing",
        ] {
            assert!(error.contains(misfit), "{error}");
        }
        let got = both.receiver(0).newest(None).unwrap().unwrap();
        assert_eq!((got.version, &*got.weights), (1, &weights(1)));
        assert_eq!(*both.store.newest(0).unwrap().weights, weights(1));
    }

    #[test]
    fn readers_here_and_elsewhere_see_whole_versions_that_only_grow() {
        const LAST: i64 = 3000;
        let both = Both::new();
        let versions = |look: &mut dyn FnMut(i64) -> Option<Published>| {
            let (mut seen, mut held) = (0, Vec::new());
            while seen < LAST {
                let Some(published) = look(seen) else {
                    thread::yield_now();
                    continue;
                };
                assert!(published.version > seen);
                seen = published.version;
                held.push(published);
                // What was taken earlier stays as it was.
                for earlier in &held {
                    assert_eq!(*earlier.weights, weights(earlier.version), "torn");
                }
                if held.len() == 3 {
                    held.remove(0);
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| versions(&mut |seen| both.store.other_than(seen, 0)));
            scope.spawn(|| {
                let mut receiver = both.receiver(1);
                versions(&mut |seen| receiver.newest(Some(seen)).unwrap());
            });
            for version in 1..=LAST {
                assert_eq!(both.store.publish(&weights(version)).unwrap(), version);
                // A publication is there when the call returns.
                assert_eq!(both.store.newest(1).unwrap().version, version);
            }
        });
    }
}
