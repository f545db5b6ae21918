//! Entries that are numbers in some frames, and values of bytes in others.
//!
//! An entry whose shape changes from frame to frame is of values. Frames that happen to be of one
//! shape may come as numbers all the same: they become values, and so do those that the buffer has,
//! as soon as the others come.

use std::borrow::Cow;

use tensordict::{DType, NestedKey, Tensor, TensorDict, TensorError};
use windrow_store::StoreError;

use super::BufferInner;
use super::saved::{KnownRuns, write};
use crate::ReplayError;
use crate::saved::SavedState;

/// Makes values of bytes of numbers: one for each element of the first so many dimensions.
pub type ValuesOf = fn(&Tensor, usize) -> Result<Tensor, TensorError>;

impl BufferInner {
    /// Prepares the storage for `frames`, which are flat; returns them as it keeps them.
    pub(super) fn fitted<'a>(
        &self,
        mut frames: Cow<'a, TensorDict>,
    ) -> Result<Cow<'a, TensorDict>, ReplayError> {
        loop {
            let Err(refused) = self.storage.prepare(&frames) else {
                return Ok(frames);
            };
            let Some(values_of) = self.values_of else {
                return Err(refused);
            };
            match &refused {
                ReplayError::Store(StoreError::Entry {
                    key,
                    expected_dtype: DType::Bytes,
                    expected,
                    got_dtype,
                    got,
                }) if *got_dtype != DType::Bytes && got.starts_with(expected) => {
                    let values = values_of(frames.get(key)?, 1 + expected.len())?;
                    frames.to_mut().set(key.clone(), values)?;
                }
                ReplayError::Store(StoreError::Entry {
                    key,
                    expected_dtype,
                    expected,
                    got_dtype: DType::Bytes,
                    got,
                }) if *expected_dtype != DType::Bytes && expected.starts_with(got) => {
                    self.widen(key, |numbers| values_of(numbers, 1 + got.len()))?;
                }
                _ => return Err(refused),
            }
        }
    }

    /// Whether another thread has changed the form of an entry since the storage was prepared for
    /// `frames`.
    pub(super) fn has_changed(&self, frames: &TensorDict) -> bool {
        self.values_of.is_some() && self.storage.prepare(frames).is_err()
    }

    /// Writes the frames of the buffer anew, with values in the place of the numbers of the entry
    /// `key`. Rows stay where they are.
    ///
    /// # Errors
    /// Those of the storage, which may have no room for the new form: the buffer is empty then.
    fn widen(
        &self,
        key: &NestedKey,
        values: impl Fn(&Tensor) -> Result<Tensor, TensorError>,
    ) -> Result<(), ReplayError> {
        let turn = self.turn_after_saving();
        // Held to the end: no sample chooses rows meanwhile.
        let mut state = self.lock();
        let saved = SavedState::of(&state)?;
        let mut frames = self.storage.read().gather(&saved.rows)?;
        if !saved.rows.is_empty() {
            let numbers = frames.get(key)?;
            if numbers.dtype() == DType::Bytes {
                return Ok(());
            }
            let values = values(numbers)?;
            frames.set(key.clone(), values)?;
        }
        self.storage.clear();
        let runs = KnownRuns::of(&saved, state.keys.fingerprint);
        let written = write(&*self.storage, &saved.rows, &frames, runs.as_ref());
        if written.is_err() {
            state.clear();
        }
        drop(state);
        drop(turn);
        written
    }
}

/// Frames of which each has values of bytes in an entry that is of values in any of them.
pub(crate) fn alike<D: std::borrow::Borrow<TensorDict>>(
    frames: &[D],
    values_of: ValuesOf,
) -> Result<Vec<TensorDict>, TensorError> {
    let mut widened: Vec<(NestedKey, usize)> = Vec::new();
    for (key, tensor) in frames.iter().flat_map(|frame| frame.borrow().leaves()) {
        if tensor.dtype() == DType::Bytes && !widened.iter().any(|(known, _)| *known == key) {
            widened.push((key, tensor.shape().len()));
        }
    }
    let one = |frame: &D| {
        let mut frame = frame.borrow().clone();
        for (key, dims) in &widened {
            if let Ok(numbers) = frame.get(key)
                && numbers.dtype() != DType::Bytes
                && numbers.shape().len() >= *dims
            {
                let values = values_of(numbers, *dims)?;
                frame.set(key.clone(), values)?;
            }
        }
        Ok(frame)
    };
    frames.iter().map(one).collect()
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use tensordict::{DType, Tensor, TensorDict, TensorError};

    use crate::{
        LazyMemmapStorage, LazyTensorStorage, ListStorage, PrioritizedSampler, ReplayBuffer,
        ReplayBufferBuilder, ReplayError,
    };

    /// The numbers of each value, as text.
    fn values_of(numbers: &Tensor, dims: usize) -> Result<Tensor, TensorError> {
        let outer = &numbers.shape()[..dims];
        let numbers = numbers.contiguous();
        let numbers = numbers.as_slice::<i64>()?;
        let count: usize = outer.iter().product();
        let texts = numbers.chunks(numbers.len() / count);
        let texts: Vec<String> = texts.map(|row| format!("{row:?}")).collect();
        Tensor::from_strings(&texts, outer)
    }

    fn builders() -> [ReplayBufferBuilder; 3] {
        [
            ReplayBuffer::builder().storage(LazyTensorStorage::new(6)),
            ReplayBuffer::builder().storage(LazyMemmapStorage::new(6)),
            ReplayBuffer::builder().storage(ListStorage::new(6).values_of(values_of)),
        ]
    }

    fn frames(entry: Tensor) -> TensorDict {
        let mut frames = TensorDict::new(&entry.shape()[..1]);
        frames.set("entry", entry).unwrap();
        frames
    }

    fn numbers(from: i64, count: usize) -> TensorDict {
        frames(Tensor::arange(from..from + 2 * count as i64).unwrap())
    }

    fn pairs(from: i64, count: usize) -> TensorDict {
        let numbers = numbers(from, count);
        frames(numbers.get("entry").unwrap().view([count, 2]).unwrap())
    }

    fn texts(values: &[&str]) -> TensorDict {
        frames(Tensor::from_strings(values, [values.len()]).unwrap())
    }

    fn held(buffer: &ReplayBuffer) -> Vec<String> {
        let frames = buffer.all().unwrap();
        let entry = frames.get("entry").unwrap();
        let values = entry
            .strings()
            .map(|value| String::from_utf8(value.to_vec()));
        values.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn numbers_and_values_of_one_entry_go_into_one_buffer_in_any_order() {
        for builder in builders() {
            let buffer = builder.values_of(values_of).seed(1).build().unwrap();
            buffer.extend(&pairs(0, 2)).unwrap();
            buffer.extend(&texts(&["a", "bc"])).unwrap();
            buffer.extend(&pairs(4, 1)).unwrap();
            buffer.add(&pairs(6, 1).index(0).unwrap()).unwrap();
            assert_eq!(
                held(&buffer),
                ["[0, 1]", "[2, 3]", "a", "bc", "[4, 5]", "[6, 7]"]
            );
            buffer.set(&[1], &pairs(8, 1)).unwrap();
            buffer.extend(&pairs(10, 1)).unwrap();
            assert_eq!(held(&buffer)[..2], ["[10, 11]", "[8, 9]"]);
            assert_eq!(buffer.sample(4).unwrap().numel(), 4);
        }
    }

    #[test]
    fn an_emptied_buffer_takes_either() {
        let [builder, ..] = builders();
        let buffer = builder.values_of(values_of).build().unwrap();
        buffer.extend(&pairs(0, 2)).unwrap();
        buffer.empty();
        buffer.extend(&texts(&["a"])).unwrap();
        assert_eq!(held(&buffer), ["a"]);
    }

    #[test]
    fn rows_keep_their_priorities_when_their_entry_becomes_values() {
        let [builder, ..] = builders();
        let builder = builder.sampler(PrioritizedSampler::new(1.0, 1.0));
        let buffer = builder.values_of(values_of).seed(3).build().unwrap();
        buffer.extend(&pairs(0, 4)).unwrap();
        buffer
            .update_priority(&[0, 1, 2, 3], &[0.0, 0.0, 1e9, 0.0])
            .unwrap();
        buffer.extend(&texts(&["a"])).unwrap();
        buffer.update_priority(&[4], &[0.0]).unwrap();
        let sample = buffer.sample(20).unwrap();
        let drawn = sample.as_slice::<i64>("index").unwrap();
        assert!(
            drawn.iter().filter(|&&row| row == 2).count() >= 19,
            "{drawn:?}"
        );
    }

    #[test]
    fn numbers_that_cannot_be_the_values_are_refused() {
        let [builder, ..] = builders();
        let buffer = builder.values_of(values_of).build().unwrap();
        // Two values for each frame.
        let entry = Tensor::from_strings(&["a", "b", "c", "d"], [2, 2]).unwrap();
        buffer.extend(&frames(entry)).unwrap();
        for wrong in [
            numbers(0, 2),
            frames(Tensor::zeros(DType::I64, [2, 3, 2]).unwrap()),
        ] {
            let refused = buffer.extend(&wrong);
            assert!(matches!(refused, Err(ReplayError::Store(_))), "{refused:?}");
        }
        assert_eq!(held(&buffer), ["a", "b", "c", "d"]);
    }

    #[test]
    fn without_the_function_they_are_refused() {
        let buffer = ReplayBuffer::builder()
            .storage(LazyTensorStorage::new(6))
            .build()
            .unwrap();
        buffer.extend(&pairs(0, 2)).unwrap();
        assert!(buffer.extend(&texts(&["a"])).is_err());
        assert_eq!(buffer.len(), 2);
    }
}
