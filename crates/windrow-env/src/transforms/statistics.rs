//! Running statistics that environments share, also those in other processes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::elementwise::TransformedColumn;
use crate::{EnvError, SpecError};

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::SharedNumbers;
#[cfg(target_os = "linux")]
pub(super) use windrow_slab::SharedNumbers;

/// A place for running statistics that several environments share: memory that the environments of other threads and processes open
/// by a path, which is no file in any folder. It is free when nobody has it open.
///
/// Each environment takes the statistics, changes them and puts them back at each of its steps, while the others wait; one that dies
/// meanwhile leaves those from before. How workers take turns decides what each finds there.
///
/// ```
/// use windrow_env::{Pendulum, Serial, Statistics, VecEnv, VecNorm};
///
/// let shared = Statistics::new()?;
/// let norm = VecNorm::new(["observation"]).sharing(&shared);
/// let one = Serial::from_fn(4, Pendulum::v1)?.transformed(norm.clone())?;
/// let other = Serial::from_fn(4, Pendulum::v1)?.transformed(norm)?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Place", into = "Place")]
pub struct Statistics {
    place: Place,
    held: Option<Arc<SharedNumbers>>,
}

/// Where statistics are, in writing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    /// The memory, which others can open by this path for as long as a value that keeps it open lives.
    path: PathBuf,
    /// Tells it from any other.
    token: u64,
    /// The number of these statistics in it.
    #[serde(default)]
    section: u32,
}

impl From<Place> for Statistics {
    fn from(place: Place) -> Self {
        Self { place, held: None }
    }
}

impl From<Statistics> for Place {
    fn from(of: Statistics) -> Self {
        Self {
            path: of.path(),
            ..of.place
        }
    }
}

impl PartialEq for Statistics {
    fn eq(&self, other: &Self) -> bool {
        Place::from(self.clone()) == other.clone().into()
    }
}

impl Statistics {
    /// A place of its own, which stays until this value and all clones are dropped.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where the system gives none.
    pub fn new() -> Result<Self, EnvError> {
        let made = SharedNumbers::create();
        Ok(Self::holding(made.map_err(refused("cannot be made"))?, 0))
    }

    /// The same place, which stays until this value is dropped, too.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where it is gone.
    pub fn opened(&self) -> Result<Self, EnvError> {
        Ok(Self::holding(self.open()?, self.place.section))
    }

    fn holding(numbers: SharedNumbers, section: u32) -> Self {
        let place = Place {
            path: numbers.path(),
            token: numbers.token(),
            section,
        };
        Self {
            place,
            held: Some(Arc::new(numbers)),
        }
    }

    /// Number `section` of several statistics in this place, which share nothing else.
    #[must_use]
    pub fn section(&self, section: u32) -> Self {
        let mut other = self.clone();
        other.place.section = section;
        other
    }

    /// Where other processes find these: path, token and section.
    #[must_use]
    pub fn place(&self) -> (PathBuf, u64, u32) {
        (self.path(), self.place.token, self.place.section)
    }

    /// Whether no environment changes the numbers.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where they are gone.
    pub fn is_frozen(&self) -> Result<bool, EnvError> {
        Ok(self.open()?.flag() != 0)
    }

    /// Keeps environments from changing the numbers, or lets them again, also those that are stepped already.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where they are gone.
    pub fn set_frozen(&self, is_frozen: bool) -> Result<(), EnvError> {
        self.open()?.set_flag(is_frozen.into());
        Ok(())
    }

    /// What has been gathered; `None` as long as no environment has begun.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where it is gone.
    pub fn read(&self) -> Result<Option<Gathered>, EnvError> {
        let mut shared = self.open()?;
        let text = shared.text().map_err(refused("cannot be read"))?;
        if text.is_empty() {
            return Ok(None);
        }
        let mut of: Gathered = serde_json::from_slice(&text).map_err(EnvError::failed)?;
        of.numbers = vec![0.0; shared.count()];
        let read = shared.turn(|turn| turn.read(&mut of.numbers));
        read.map_err(refused("cannot be read"))?;
        Ok(Some(of))
    }

    /// Puts `gathered` in the place of what was gathered.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where it is gone, [`SpecError::Argument`] where environments have statistics of something else.
    pub fn write(&self, gathered: &Gathered) -> Result<(), EnvError> {
        let mut shared = self.settled(gathered)?;
        let written = shared.turn(|turn| turn.write(&gathered.numbers));
        written.map_err(refused("cannot be written"))
    }

    fn path(&self) -> PathBuf {
        let held = self.held.as_ref();
        held.map_or_else(|| self.place.path.clone(), |held| held.path())
    }

    fn open(&self) -> Result<SharedNumbers, EnvError> {
        let opened = SharedNumbers::open(&self.path(), self.place.token, self.place.section);
        opened.map_err(refused("are gone or cannot be opened"))
    }

    /// Opens them for statistics of the kind of `of`. Whoever opens them first settles that kind; numbers are 0 then.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where they are gone, [`SpecError::Argument`] where others share statistics of something else.
    pub(super) fn settled(&self, of: &Gathered) -> Result<SharedNumbers, EnvError> {
        let (mut shared, count) = (self.open()?, of.numbers.len());
        let own = serde_json::to_vec(of).map_err(EnvError::failed)?;
        let settled = shared.settle(&own, count).and_then(|()| shared.text());
        let first = settled.map_err(refused("cannot be used"))?;
        if first == own && shared.count() == count {
            return Ok(shared);
        }
        Err(SpecError::Argument {
            argument: "statistics",
            of: of.rule.clone(),
            expected: String::from_utf8_lossy(&first).into_owned(),
            got: String::from_utf8_lossy(&own).into_owned(),
        }
        .into())
    }
}

pub(super) fn refused(what: &str) -> impl Fn(io::Error) -> EnvError {
    move |error| EnvError::failed(format!("shared statistics {what}: {error}"))
}

/// Running statistics, as they were at some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gathered {
    /// Name of the transform.
    pub rule: String,
    /// The names of each column, its element type, and the shape of its statistics.
    pub columns: Vec<(Vec<String>, String, Vec<usize>)>,
    /// For each column two numbers for each element, then a count.
    #[serde(skip)]
    pub numbers: Vec<f64>,
}

impl Gathered {
    /// Nothing yet of `columns`, in `count` numbers: as many values of each as it has elements, where not as many as `each`
    /// environments have together.
    pub(super) fn nothing(
        rule: &str,
        columns: &[TransformedColumn],
        each: Option<usize>,
        count: usize,
    ) -> Self {
        let described = |column: &TransformedColumn| {
            let names = column.key.components().iter().map(ToString::to_string);
            let shape = each.into_iter().chain(column.shape.iter().copied());
            (
                names.collect(),
                column.dtype.name().to_owned(),
                shape.collect(),
            )
        };
        Self {
            rule: rule.to_owned(),
            columns: columns.iter().map(described).collect(),
            numbers: vec![0.0; count],
        }
    }
}

/// Memory is shared on Linux alone.
#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::io::{Error, ErrorKind, Result};
    use std::path::{Path, PathBuf};

    #[derive(Debug)]
    pub(in super::super) enum SharedNumbers {}

    impl SharedNumbers {
        pub(super) fn create() -> Result<Self> {
            Err(Error::from(ErrorKind::Unsupported))
        }

        pub(super) fn open(_: &Path, _: u64, _: u32) -> Result<Self> {
            Self::create()
        }

        pub(super) fn path(&self) -> PathBuf {
            match *self {}
        }

        pub(super) fn token(&self) -> u64 {
            match *self {}
        }

        pub(super) fn settle(&mut self, _: &[u8], _: usize) -> Result<()> {
            match *self {}
        }

        pub(super) fn text(&mut self) -> Result<Vec<u8>> {
            match *self {}
        }

        pub(super) fn count(&self) -> usize {
            match *self {}
        }

        pub(super) fn flag(&self) -> u32 {
            match *self {}
        }

        pub(super) fn set_flag(&self, _: u32) {
            match *self {}
        }

        pub(in super::super) fn turn<R>(&mut self, _: impl FnOnce(&mut Self) -> R) -> Result<R> {
            match *self {}
        }

        pub(in super::super) fn read(&self, _: &mut [f64]) {
            match *self {}
        }

        pub(in super::super) fn write(&mut self, _: &[f64]) {
            match *self {}
        }
    }
}
