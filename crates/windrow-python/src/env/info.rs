//! Entries of `info`, which environments of Gymnasium return beside observations.
//!
//! Batches have fixed columns, and `info` has no fixed entries: those that a user names are
//! observed, as further leaves behind the observation's own, with zeros where there is none; of the
//! others a warning says once that they are left out.

use std::cell::Cell;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use tensordict::{DType, NestedKey, for_dtype};
use windrow::envs::{EnvError, EnvSpec, Spec};
use windrow::{RowMut, RowsMut};

use super::cast::Losses;
use super::describe::{self, Key, Type};
use super::read::Leaf;
use super::rows::Target;
use crate::gil;

/// An entry that is observed: its key, its element type and its shape for one environment.
#[derive(Debug, Clone, FromPyObject)]
pub(crate) struct Entry(Key, Type, Vec<usize>);

/// The name of an entry, and that of the mask beside it in what a vector returns.
#[derive(Debug)]
struct Name {
    entry: Py<PyString>,
    mask: Py<PyString>,
}

/// Writes entries of `info` into rows: zeros where there is none.
#[derive(Debug)]
pub(super) struct InfoReader {
    /// The names of each entry, outermost first, and the leaf that it is written to.
    entries: Vec<(Vec<Name>, Leaf)>,
    /// Number of entries at the last warning of what is left out: a dictionary with more of them is
    /// warned of again.
    told: Cell<usize>,
    /// The environment, for the warning.
    id: String,
}

impl InfoReader {
    /// What reads `entries`, which join what `spec` observes.
    ///
    /// # Errors
    /// [`EnvError::Foreign`] when there is an observation of that name already.
    pub(super) fn new(
        py: Python<'_>,
        entries: &[Entry],
        spec: &mut EnvSpec,
    ) -> Result<Self, EnvError> {
        let own = spec.observation_leaves();
        let mut joined = match &spec.observation {
            Spec::Composite(observed) => observed.clone(),
            bare => vec![("observation".to_owned(), bare.clone())],
        };
        let (first, mut added) = (own.len(), Vec::new());
        for Entry(Key(key), Type(dtype), shape) in entries {
            let first = key.components().first();
            let taken = first.is_some_and(|first| joined.iter().any(|(name, _)| **name == **first));
            if taken || !describe::add(&mut added, key, Spec::unbounded(*dtype, shape)) {
                return Err(EnvError::Foreign(format!(
                    "the entry {key:?} of info: {} has an observation of this name already",
                    spec.id
                )));
            }
        }
        if !entries.is_empty() {
            joined.append(&mut added.clone());
            spec.observation = Spec::Composite(joined);
            spec.info
                .extend(entries.iter().map(|entry| entry.0.0.clone()));
            limit_actions(spec, entries);
        }
        // Leaves of one group stand side by side in the spec, in any order of asking.
        let places = Spec::Composite(added).leaf_specs("info");
        let read = entries.iter().map(|Entry(Key(key), Type(dtype), shape)| {
            let place = places.iter().position(|leaf| leaf.key == *key);
            let leaf = Leaf {
                name: format!("the entry {key:?} of info of {}", spec.id),
                index: first + place.unwrap_or_default(),
                dtype: *dtype,
                shape: shape.clone(),
                losses: Losses::default(),
            };
            let names = key.components().iter();
            let names = names.map(|name| Name {
                entry: PyString::new(py, name).unbind(),
                mask: PyString::new(py, &format!("_{name}")).unbind(),
            });
            (names.collect(), leaf)
        });
        Ok(Self {
            entries: read.collect(),
            told: Cell::new(0),
            id: spec.id.clone(),
        })
    }

    /// Writes the entries of one environment's `info`, or says what is left out of it where none
    /// was asked for.
    ///
    /// # Errors
    /// [`EnvError::Foreign`] for an entry of another shape or element type than it was declared
    /// with.
    #[inline]
    pub(super) fn read(&self, info: &Bound<'_, PyAny>, row: RowMut<'_>) -> Result<(), EnvError> {
        if self.entries.is_empty() {
            return self.tell(info);
        }
        self.write(row, |names| find(info, names))
    }

    /// As [`read_one_of_all`](Self::read_one_of_all), of as many environments as there are `rows`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn read_all(
        &self,
        info: &Bound<'_, PyAny>,
        rows: RowsMut<'_>,
    ) -> Result<(), EnvError> {
        let mut rows = Target::All(rows);
        for entry in &self.entries {
            let (names, leaf) = entry;
            let copied = match self.of_all(info, names) {
                Some(values) => leaf.copy_all(&values, &mut rows)?,
                None => false,
            };
            if copied {
                continue;
            }
            for env in 0..rows.lead().unwrap_or_default() {
                let found = self.one_of_all(info, env, names);
                Self::write_one(entry, found, &mut Target::One(rows.row(env)?))?;
            }
        }
        Ok(())
    }

    /// As [`read`](Self::read), of environment `env` in what a vector returns for all: arrays, and
    /// beside each a mask of the environments that it is about.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn read_one_of_all(
        &self,
        info: &Bound<'_, PyAny>,
        env: usize,
        row: RowMut<'_>,
    ) -> Result<(), EnvError> {
        self.write(row, |names| self.one_of_all(info, env, names))
    }

    /// As [`read_one_of_all`](Self::read_one_of_all), of an environment that has ended and begun
    /// anew in the same step.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn read_final(
        &self,
        info: &Bound<'_, PyAny>,
        env: usize,
        row: RowMut<'_>,
    ) -> Result<(), EnvError> {
        let py = info.py();
        let last = get(info, intern!(py, "final_info"));
        self.write(row, |names| {
            let found = last.as_ref().and_then(|last| match last.cast::<PyDict>() {
                Ok(_) => self.one_of_all(last, env, names),
                // A dictionary for each environment.
                Err(_) => names
                    .iter()
                    .try_fold(last.get_item(env).ok()?, |level, name| {
                        get(&level, name.entry.bind(py))
                    }),
            });
            // Gymnasium's statistics of episodes around a vector know of no final info.
            let by_wrapper = || {
                let is_statistic = *names.first()?.entry.bind(py) == *"episode";
                is_statistic.then(|| self.one_of_all(info, env, names))?
            };
            found.or_else(by_wrapper)
        })
    }

    /// Whether any entry is read.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Says once what is left out of `info`.
    ///
    /// # Errors
    /// The warning itself, where warnings are errors.
    #[inline]
    pub(super) fn tell(&self, info: &Bound<'_, PyAny>) -> Result<(), EnvError> {
        match info.cast::<PyDict>() {
            Ok(info) if info.len() > self.told.get() => self.tell_more(info),
            _ => Ok(()),
        }
    }

    /// Warns, in Python, of the entries in `info`.
    #[cold]
    fn tell_more(&self, info: &Bound<'_, PyDict>) -> Result<(), EnvError> {
        self.told.set(info.len());
        let py = info.py();
        let tell = || gil::call_method(&gil::ports(py)?, "tell_of_the_rest", (&self.id, info));
        tell().map(drop).map_err(EnvError::failed)
    }

    /// Writes each entry that `find` finds by its names, and zeros for the others.
    fn write<'py>(
        &self,
        row: RowMut<'_>,
        find: impl Fn(&[Name]) -> Option<Bound<'py, PyAny>>,
    ) -> Result<(), EnvError> {
        let mut target = Target::One(row);
        let mut entries = self.entries.iter();
        entries.try_for_each(|entry| Self::write_one(entry, find(&entry.0), &mut target))
    }

    /// Writes an entry, or zeros where nothing was found.
    fn write_one(
        (_, leaf): &(Vec<Name>, Leaf),
        found: Option<Bound<'_, PyAny>>,
        target: &mut Target<'_>,
    ) -> Result<(), EnvError> {
        match found {
            Some(value) => leaf.read(&value, target).map_err(with_way_out),
            None if leaf.dtype == DType::Bytes => {
                target.write_strings(leaf.index, &vec![&[][..]; leaf.shape.iter().product()])
            }
            None => for_dtype!(leaf.dtype, T => {
                target.leaf::<T>(leaf.index)?.fill(T::default());
                Ok(())
            }),
        }
    }

    /// The values of all environments under `names`, if no mask stands beside them.
    fn of_all<'py>(&self, info: &Bound<'py, PyAny>, names: &[Name]) -> Option<Bound<'py, PyAny>> {
        let py = info.py();
        names.iter().try_fold(info.clone(), |level, name| {
            match get(&level, name.mask.bind(py)) {
                Some(_) => None,
                None => get(&level, name.entry.bind(py)),
            }
        })
    }

    /// The value of environment `env` under `names`, unless a mask says that the entry is not about
    /// it.
    fn one_of_all<'py>(
        &self,
        info: &Bound<'py, PyAny>,
        env: usize,
        names: &[Name],
    ) -> Option<Bound<'py, PyAny>> {
        let py = info.py();
        let mut level = info.clone();
        for name in names {
            let mask = get(&level, name.mask.bind(py));
            let is_absent = mask.is_some_and(|mask| {
                let flag = mask.get_item(env).and_then(|flag| flag.is_truthy());
                !flag.unwrap_or(true)
            });
            if is_absent {
                return None;
            }
            level = get(&level, name.entry.bind(py))?;
        }
        level.get_item(env).ok().filter(|value| !value.is_none())
    }
}

/// Lets `"action_mask"`, under which environments of Gymnasium tell legal choices, say which of the
/// action's are, where the entry has an element for each of them.
fn limit_actions(spec: &mut EnvSpec, entries: &[Entry]) {
    let is_mask = |Entry(Key(key), Type(dtype), _): &&Entry| {
        *key == NestedKey::from("action_mask")
            && matches!(dtype, DType::Bool | DType::I8 | DType::U8)
    };
    let Some(Entry(Key(mask), _, shape)) = entries.iter().find(is_mask) else {
        return;
    };
    if let [(action, leaf)] = &spec.action.leaves("action")[..]
        && let Some(options) = leaf.choices()
        && options.iter().sum::<usize>() == shape.iter().product::<usize>()
    {
        let limited = (action.clone(), mask.clone());
        spec.masks.push(limited);
    }
}

/// The entry under `names`, outermost first.
#[inline]
fn find<'py>(info: &Bound<'py, PyAny>, names: &[Name]) -> Option<Bound<'py, PyAny>> {
    let enter = |level, name: &Name| get(&level, name.entry.bind(info.py()));
    names.iter().try_fold(info.clone(), enter)
}

/// The entry `name`, if `level` is a dictionary that has one.
fn get<'py>(level: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> Option<Bound<'py, PyAny>> {
    let found = level.cast::<PyDict>().ok()?.get_item(name).ok()??;
    (!found.is_none()).then_some(found)
}

/// Adds what a user can do where an entry is not what its first value was taken for.
#[cold]
fn with_way_out(error: EnvError) -> EnvError {
    match error {
        EnvError::Foreign(what) => EnvError::Foreign(format!(
            "{what}: give info_keys as a dictionary, with something that has the shape and dtype of each entry"
        )),
        other => other,
    }
}
