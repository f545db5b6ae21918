//! Running statistics that environments share.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};

use serde::{Deserialize, Serialize};
use windrow_sync::unpoisoned;

use super::elementwise::TransformedColumn;
use crate::{EnvError, SpecError, StateVisitor, serde_form};

/// A place for running statistics that several environments share.
///
/// Environments of this process change the numbers at each of their steps, one after the other,
/// unless a collector has several workers: then each environment adds what it gathers in a part to
/// the numbers from the part's beginning, and the collector [merges](crate::Gathers::merge) what
/// all have gathered.
///
/// In writing, it is its number and what was gathered so far. Read in the process that has the
/// place, that is the same place again; read in another process, it is a copy.
///
/// ```
/// use windrow_env::{Pendulum, Serial, Statistics, VecEnv, VecNorm};
///
/// let shared = Statistics::new();
/// let norm = VecNorm::new(["observation"]).sharing(&shared);
/// let one = Serial::from_fn(4, Pendulum::v1)?.transformed(norm.clone())?;
/// let other = Serial::from_fn(4, Pendulum::v1)?.transformed(norm)?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Statistics {
    place: Arc<Place>,
    section: u32,
    kept: Arc<Mutex<Kept>>,
}

/// The statistics of one number.
#[derive(Debug)]
struct Place {
    number: u64,
    sections: Mutex<BTreeMap<u32, Arc<Mutex<Kept>>>>,
}

/// Statistics as they are now.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// `None` as long as no environment has begun.
    pub(super) gathered: Option<Gathered>,
    pub(super) is_frozen: bool,
    /// How often the numbers were written from outside: what was gathered before then does not
    /// count.
    pub(super) writes: u64,
    /// How often somebody has added to what others have gathered.
    pub(super) merges: u64,
    /// Of a copy: how it stood when it was handed in, or taken up, last.
    pub(super) since: Option<Since>,
}

/// Running statistics at a time, and what has happened to them since.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Since {
    pub(super) numbers: Vec<f64>,
    /// What is left of their weight, for each column and group.
    pub(super) left: Vec<f64>,
    /// The [`Kept::merges`] of the original that are in it.
    pub(super) merges: f64,
}

impl Kept {
    /// Goes on from other numbers, which have so many `merges` in them.
    pub(super) fn go_on_from(&mut self, numbers: &[f64], merges: f64) {
        if let Some(gathered) = &mut self.gathered {
            gathered.numbers.copy_from_slice(numbers);
        }
        if let Some(since) = &mut self.since {
            since.numbers.copy_from_slice(numbers);
            since.left.fill(1.0);
            since.merges = merges;
        }
    }
}

/// Places of this process, by number.
static PLACES: LazyLock<Mutex<HashMap<u64, Weak<Place>>>> = LazyLock::new(Mutex::default);

/// Statistics in writing.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// Differs from that of any other place.
    number: u64,
    #[serde(default)]
    section: u32,
    #[serde(default)]
    frozen: bool,
    #[serde(default)]
    gathered: Option<Gathered>,
}

impl From<Written> for Statistics {
    fn from(of: Written) -> Self {
        let kept = Kept {
            gathered: of.gathered,
            is_frozen: of.frozen,
            ..Kept::default()
        };
        Place::numbered(of.number).section(of.section, kept)
    }
}

impl From<Statistics> for Written {
    fn from(of: Statistics) -> Self {
        let kept = of.lock();
        Self {
            number: of.place.number,
            section: of.section,
            frozen: kept.is_frozen,
            gathered: kept.gathered.clone(),
        }
    }
}

impl PartialEq for Statistics {
    fn eq(&self, other: &Self) -> bool {
        (self.place.number, self.section) == (other.place.number, other.section)
    }
}

impl Place {
    /// The place of this process with this number.
    fn numbered(number: u64) -> Arc<Self> {
        let mut places = unpoisoned(PLACES.lock());
        if let Some(place) = places.get(&number).and_then(Weak::upgrade) {
            return place;
        }
        places.retain(|_, place| place.strong_count() > 0);
        let sections = Mutex::default();
        let place = Arc::new(Self { number, sections });
        places.insert(number, Arc::downgrade(&place));
        place
    }

    /// Its statistics of number `section`, which are `first` where nothing was gathered yet.
    fn section(self: Arc<Self>, section: u32, first: Kept) -> Statistics {
        let mut sections = unpoisoned(self.sections.lock());
        let kept = Arc::clone(sections.entry(section).or_default());
        drop(sections);
        let mut now = unpoisoned(kept.lock());
        if now.gathered.is_none() {
            now.gathered = first.gathered;
            now.is_frozen |= first.is_frozen;
        }
        drop(now);
        Statistics {
            place: self,
            section,
            kept,
        }
    }
}

impl Default for Statistics {
    fn default() -> Self {
        Self::new()
    }
}

impl Statistics {
    /// A place of its own.
    #[must_use]
    pub fn new() -> Self {
        // Half of the range, which other languages have a signed integer for.
        let number = windrow_sync::entropy() >> 1;
        Place::numbered(number).section(0, Kept::default())
    }

    /// Number `section` of several statistics in this place, which share nothing else.
    #[must_use]
    pub fn section(&self, section: u32) -> Self {
        Arc::clone(&self.place).section(section, Kept::default())
    }

    /// A copy for environments of one worker, which nobody else finds. It takes whatever the
    /// collector sends first.
    #[must_use]
    pub fn copied(&self) -> Self {
        let kept = self.lock();
        let copy = Kept {
            gathered: kept.gathered.clone(),
            is_frozen: kept.is_frozen,
            writes: u64::MAX,
            ..Kept::default()
        };
        Self {
            place: Arc::clone(&self.place),
            section: self.section,
            kept: Arc::new(Mutex::new(copy)),
        }
    }

    /// Whether no environment changes the numbers.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.lock().is_frozen
    }

    /// Keeps environments from changing the numbers, or lets them again: at once, and in workers of
    /// a collector with their next parts.
    pub fn set_frozen(&self, is_frozen: bool) {
        self.lock().is_frozen = is_frozen;
    }

    /// What has been gathered; `None` as long as no environment has begun.
    #[must_use]
    pub fn read(&self) -> Option<Gathered> {
        self.lock().gathered.clone()
    }

    /// Puts `gathered` in the place of what was gathered.
    ///
    /// # Errors
    /// [`SpecError::Argument`] where environments have statistics of something else.
    pub fn write(&self, gathered: &Gathered) -> Result<(), EnvError> {
        self.settle(gathered)?;
        let mut kept = self.lock();
        kept.writes += 1;
        kept.gathered = Some(gathered.clone());
        Ok(())
    }

    /// Saves or loads the numbers, and what has happened to them.
    ///
    /// # Errors
    /// [`EnvError::State`] and [`SpecError::Argument`] for statistics of something else.
    pub fn visit_state(&self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let mut kept = self.lock();
        let mut gathered = kept.gathered.clone();
        let mut is_there = gathered.is_some();
        state.value(&mut is_there)?;
        if is_there {
            let Gathered {
                rule,
                columns,
                numbers,
            } = gathered.get_or_insert_with(Gathered::default);
            state.value(rule)?;
            state.value(columns)?;
            state.value(numbers)?;
        }
        if let (Some(own), Some(other)) = (&kept.gathered, &gathered) {
            own.check(&other.kind(), other.numbers.len())?;
        }
        kept.gathered = gathered.filter(|_| is_there);
        state.value(&mut kept.is_frozen)?;
        state.value(&mut kept.writes)?;
        state.value(&mut kept.merges)?;
        state.value(&mut kept.since)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Kept> {
        unpoisoned(self.kept.lock())
    }

    /// Where the numbers are, to be locked at each step.
    pub(super) fn kept(&self) -> &Arc<Mutex<Kept>> {
        &self.kept
    }

    /// Makes them statistics of the kind of `of`, which the first environments settle: they begin
    /// with its numbers.
    ///
    /// # Errors
    /// [`SpecError::Argument`] where others share statistics of something else.
    pub(super) fn settle(&self, of: &Gathered) -> Result<(), EnvError> {
        let mut kept = self.lock();
        let first = kept.gathered.get_or_insert_with(|| of.clone());
        first.check(&of.kind(), of.numbers.len())
    }
}

/// Running statistics, as they were at some time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gathered {
    /// Name of the transform.
    pub rule: String,
    /// The names of each column, its element type, and the shape of its statistics.
    pub columns: Vec<(Vec<String>, String, Vec<usize>)>,
    /// For each column two numbers for each element, then a count.
    #[serde(with = "serde_form::floats")]
    pub numbers: Vec<f64>,
}

impl Gathered {
    /// Nothing yet of `columns`, in `count` numbers: as many values of each as it has elements,
    /// where not as many as `each` environments have together.
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

    /// Checks that these are as many numbers as `count`, of the same `kind`.
    ///
    /// # Errors
    /// [`SpecError::Argument`].
    pub(super) fn check(&self, kind: &str, count: usize) -> Result<(), EnvError> {
        if self.kind() == kind && self.numbers.len() == count {
            return Ok(());
        }
        Err(SpecError::Argument {
            argument: "statistics",
            of: self.rule.clone(),
            expected: self.kind(),
            got: kind.to_owned(),
        }
        .into())
    }

    /// What the numbers are of, in words that errors have.
    pub(super) fn kind(&self) -> String {
        let columns: Vec<_> = (self.columns.iter())
            .map(|(names, dtype, shape)| format!("{names:?} {dtype} {shape:?}"))
            .collect();
        format!("{} of {}", self.rule, columns.join(", "))
    }
}
