//! States of environments, transforms and policies: how they are saved, and loaded again.

use std::any::type_name;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensordict::{DType, Tensor, TensorDict, for_dtype};
use windrow_slab::{Key, LeafSpec, RowBlock};

use crate::EnvError;

/// Saves or loads a state: an environment, a transform or a policy passes it everything that
/// changes from step to step.
///
/// One function serves both directions, so a state that was saved is read in the order in which it
/// was written.
///
/// ```
/// use windrow_env::{EnvError, StateVisitor};
///
/// struct Walk {
///     place: f64,
/// }
///
/// impl Walk {
///     fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
///         state.value(&mut self.place)
///     }
/// }
///
/// let mut saving = StateVisitor::saving();
/// Walk { place: 1.5 }.visit_state(&mut saving)?;
/// let bytes = saving.finish()?;
/// let (mut other, mut loading) = (Walk { place: 0.0 }, StateVisitor::loading(&bytes));
/// other.visit_state(&mut loading)?;
/// loading.finish()?;
/// assert_eq!(other.place, 1.5);
/// # Ok::<(), EnvError>(())
/// ```
#[derive(Debug)]
pub struct StateVisitor<'a> {
    direction: Direction<'a>,
    pickle: bool,
}

#[derive(Debug)]
enum Direction<'a> {
    Save(Vec<u8>),
    /// What is left to be read.
    Load(&'a [u8]),
}

impl<'a> StateVisitor<'a> {
    /// Saves.
    #[must_use]
    pub fn saving() -> Self {
        Self {
            direction: Direction::Save(Vec::new()),
            pickle: false,
        }
    }

    /// Loads what [`finish`](Self::finish) returned. Where loading fails, the state is partly that
    /// of before.
    #[must_use]
    pub fn loading(bytes: &'a [u8]) -> Self {
        Self {
            direction: Direction::Load(bytes),
            pickle: false,
        }
    }

    /// Lets environments of Python whose state cannot be saved otherwise be pickled, where
    /// `pickle`.
    #[doc(hidden)]
    #[must_use]
    pub fn with_pickle(self, pickle: bool) -> Self {
        Self { pickle, ..self }
    }

    /// Whether environments may be pickled.
    #[doc(hidden)]
    #[must_use]
    pub fn may_pickle(&self) -> bool {
        self.pickle
    }

    /// Whether values are written to the fields that are passed.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        matches!(self.direction, Direction::Load(_))
    }

    /// Saves `value`, or loads it.
    ///
    /// # Errors
    /// [`EnvError::State`] where something else was saved.
    pub fn value<T: Serialize + DeserializeOwned>(
        &mut self,
        value: &mut T,
    ) -> Result<(), EnvError> {
        self.checked(value, |_| Ok(()))
    }

    /// As [`value`](Self::value), but loads only a value that `check` accepts. Steps rely on
    /// properties that they keep themselves, and that bytes of a damaged file may not have.
    ///
    /// # Errors
    /// Those of `check`; [`EnvError::State`] where something else was saved.
    pub(crate) fn checked<T: Serialize + DeserializeOwned>(
        &mut self,
        value: &mut T,
        check: impl FnOnce(&T) -> Result<(), EnvError>,
    ) -> Result<(), EnvError> {
        let unfit = |error: postcard::Error| EnvError::State {
            expected: format!("a value of {}", short_name::<T>()),
            got: error.to_string(),
        };
        match &mut self.direction {
            Direction::Save(bytes) => {
                *bytes = postcard::to_extend(value, std::mem::take(bytes)).map_err(unfit)?;
            }
            Direction::Load(bytes) => {
                let (loaded, rest) = postcard::take_from_bytes(bytes).map_err(unfit)?;
                check(&loaded)?;
                (*value, *bytes) = (loaded, rest);
            }
        }
        Ok(())
    }

    /// As [`value`](Self::value), for the number of steps of an episode. It leaves room to count
    /// further steps.
    ///
    /// # Errors
    /// [`EnvError::State`] where something else was saved, or more than [`isize::MAX`] steps.
    pub(crate) fn steps(&mut self, steps: &mut usize) -> Result<(), EnvError> {
        self.checked(steps, |&loaded| match loaded > isize::MAX as usize {
            true => Err(EnvError::State {
                expected: "the number of steps of an episode".to_owned(),
                got: loaded.to_string(),
            }),
            false => Ok(()),
        })
    }

    /// As [`value`](Self::value) for values whose number does not change.
    ///
    /// # Errors
    /// [`EnvError::State`] where something else was saved, or another number of values.
    pub fn values<T: Serialize + DeserializeOwned>(
        &mut self,
        values: &mut [T],
    ) -> Result<(), EnvError> {
        self.check(format!("{} values", values.len()))?;
        values.iter_mut().try_for_each(|value| self.value(value))
    }

    /// Begins the state of `name`, which has to be that of the state that is loaded.
    ///
    /// # Errors
    /// [`EnvError::State`] where the state is something else's.
    pub fn section(&mut self, name: impl Into<String>) -> Result<(), EnvError> {
        self.check(format!("the state of {}", name.into()))
    }

    fn check(&mut self, expected: String) -> Result<(), EnvError> {
        let mut got = expected.clone();
        self.value(&mut got)?;
        match got == expected {
            true => Ok(()),
            false => Err(EnvError::State { expected, got }),
        }
    }

    /// As [`value`](Self::value) for rows of `leaves`.
    ///
    /// # Errors
    /// [`EnvError::State`] where other rows were saved; [`EnvError::Row`] for other leaves than
    /// those of `rows`.
    pub fn rows(&mut self, leaves: &[LeafSpec], rows: &mut RowBlock) -> Result<(), EnvError> {
        self.check(format!("{} rows", rows.rows().envs()))?;
        let mut bytes = match self.is_loading() {
            true => Vec::new(),
            false => written(leaves, rows)?,
        };
        self.value(&mut bytes)?;
        match self.is_loading() {
            true => read(leaves, &bytes, rows),
            false => Ok(()),
        }
    }

    /// The bytes that were saved; none where a state was loaded.
    ///
    /// # Errors
    /// [`EnvError::State`] where there is more in a state than was loaded.
    pub fn finish(self) -> Result<Vec<u8>, EnvError> {
        match self.direction {
            Direction::Save(bytes) => Ok(bytes),
            Direction::Load([]) => Ok(Vec::new()),
            Direction::Load(rest) => Err(EnvError::State {
                expected: "the end of the state".to_owned(),
                got: format!("{} bytes more", rest.len()),
            }),
        }
    }
}

/// The name of a type, without the modules that it is in.
pub(crate) fn short_name<T: ?Sized>() -> &'static str {
    let name = type_name::<T>();
    let own = name.split('<').next().unwrap_or(name);
    own.rsplit("::").next().unwrap_or(own)
}

fn written(leaves: &[LeafSpec], rows: &RowBlock) -> Result<Vec<u8>, EnvError> {
    let rows = rows.rows();
    let mut dict = TensorDict::new([]);
    for (index, leaf) in leaves.iter().enumerate() {
        let tensor = match leaf.dtype {
            DType::Bytes => {
                let values = rows.strings(Key::new(index))?;
                let len = values.len();
                Tensor::from_strings(&values, [len])
            }
            dtype => for_dtype!(dtype, T => {
                let values = rows.get::<T>(Key::new(index))?;
                Tensor::from_slice(values, [values.len()])
            }),
        };
        dict.set(index.to_string(), tensor.map_err(EnvError::failed)?)
            .map_err(EnvError::failed)?;
    }
    dict.to_bytes().map_err(EnvError::failed)
}

fn read(leaves: &[LeafSpec], bytes: &[u8], rows: &mut RowBlock) -> Result<(), EnvError> {
    let dict = TensorDict::from_bytes(bytes).map_err(EnvError::failed)?;
    let mut rows = rows.rows_mut();
    let envs = rows.envs();
    for (index, leaf) in leaves.iter().enumerate() {
        let tensor = dict.get(index.to_string()).map_err(EnvError::failed)?;
        let expected = envs * leaf.elements();
        if tensor.dtype() != leaf.dtype || tensor.shape() != [expected] {
            return Err(EnvError::State {
                expected: format!("{expected} elements of {}", leaf.dtype),
                got: format!("{:?} of {}", tensor.shape(), tensor.dtype()),
            });
        }
        if leaf.dtype == DType::Bytes {
            for (at, value) in tensor.strings().enumerate() {
                let each = leaf.elements().max(1);
                if let Some(mut row) = rows.env_mut(at / each) {
                    row.write_string(Key::new(index), at % each, value)?;
                }
            }
            continue;
        }
        for_dtype!(leaf.dtype, T => {
            let values = tensor.as_slice::<T>().map_err(EnvError::failed)?;
            rows.get_mut::<T>(Key::new(index))?.copy_from_slice(values);
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_all_types_are_saved_and_loaded() {
        let leaves = [
            LeafSpec::new("text", DType::Bytes, [2]),
            LeafSpec::new("flag", DType::Bool, []),
            LeafSpec::new("x", DType::F64, [3]),
        ];
        let fill = |rows: &mut RowBlock| {
            let mut rows = rows.rows_mut();
            for env in 0..2 {
                let mut row = rows.env_mut(env).unwrap();
                row.write_string(Key::new(0), 1, b"left").unwrap();
                row.write(Key::new(1), &[env == 1]).unwrap();
                row.write(Key::new(2), &[env as f64, f64::NAN, -0.0])
                    .unwrap();
            }
        };
        let mut from = RowBlock::new(&leaves, 2).unwrap();
        fill(&mut from);
        let mut saving = StateVisitor::saving();
        saving.rows(&leaves, &mut from).unwrap();
        let bytes = saving.finish().unwrap();
        let mut to = RowBlock::new(&leaves, 2).unwrap();
        let mut loading = StateVisitor::loading(&bytes);
        loading.rows(&leaves, &mut to).unwrap();
        loading.finish().unwrap();
        let bits = |rows: &RowBlock| -> Vec<u64> {
            let values = rows.rows().get(Key::<f64>::new(2)).unwrap();
            values.iter().map(|x| x.to_bits()).collect()
        };
        assert_eq!(bits(&from), bits(&to));
        assert_eq!(to.rows().get(Key::<bool>::new(1)).unwrap(), [false, true]);
        let text = to.rows().strings(Key::new(0)).unwrap();
        assert_eq!(text, [&b""[..], b"left", b"", b"left"]);
        let mut fewer = RowBlock::new(&leaves, 1).unwrap();
        let error = StateVisitor::loading(&bytes).rows(&leaves, &mut fewer);
        assert_eq!(
            error.unwrap_err().to_string(),
            "the state does not fit: expected 1 rows, got 2 rows"
        );
    }

    #[test]
    fn what_is_left_over_or_cut_off_is_an_error() {
        let mut saving = StateVisitor::saving();
        saving.value(&mut 7u64).unwrap();
        saving.value(&mut 300u64).unwrap();
        let bytes = saving.finish().unwrap();
        let (mut a, mut b) = (0u64, 0u64);
        let mut loading = StateVisitor::loading(&bytes);
        loading.value(&mut a).unwrap();
        let error = loading.finish().unwrap_err().to_string();
        assert!(error.contains("2 bytes more"), "{error}");
        let mut loading = StateVisitor::loading(&bytes[..2]);
        loading.value(&mut a).unwrap();
        loading.value(&mut b).unwrap_err();
    }
}
