//! Samplers choose the frames of a batch.
//!
//! A sampler draws a unit in an order, each from one of these parts:
//!
//! | | frames | slices: `SliceRules` |
//! |---|---|---|
//! | uniform | `RandomSampler` | `Eligible` trajectories |
//! | once in each pass | `RowList` | `Pass` over trajectories |
//! | by priority: `Priorities` | `SumTree` of frames | `SumTree` of frames where slices begin |
//! | until used up | `ConsumingSampler` | none: slices need a ring |
//!
//! The parts differ by unit because frames are independent, whereas trajectories grow and shrink.

use std::fmt::Debug;

use tensordict::{NestedKey, TensorDict};

use crate::{ReplayError, RowOrder, RowSet, RowSpan, RunKeys, Runs, SampleRng, Shortage};

mod consuming;
mod hindsight;
mod priorities;
mod prioritized;
mod prioritized_slice;
mod random;
mod slice;
mod slice_without_replacement;
mod sum_tree;
mod without_replacement;

/// The samplers, as the crate `windrow` exports them.
#[doc(hidden)]
pub mod samplers {
    pub use super::consuming::ConsumingSampler;
    pub use super::hindsight::{GoalStrategy, HindsightSampler};
    pub use super::prioritized::PrioritizedSampler;
    pub use super::prioritized_slice::PrioritizedSliceSampler;
    pub use super::random::RandomSampler;
    pub use super::slice::SliceSampler;
    pub use super::slice_without_replacement::SliceSamplerWithoutReplacement;
    pub use super::without_replacement::SamplerWithoutReplacement;
}

pub use priorities::Priorities;
pub use samplers::*;

/// Chooses rows. Its methods are never called concurrently: the buffer holds its lock.
///
/// Every row is announced before it can be chosen ([`written`](Sampler::written)) and before it is
/// overwritten ([`evicted`](Sampler::evicted)); in between, the row and its frame stay as they are.
pub trait Sampler: CloneSampler + Debug + Send {
    /// Called once, before anything else.
    ///
    /// # Errors
    /// [`ReplayError::Argument`] when an argument of the sampler is invalid.
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        let _ = capacity;
        Ok(())
    }

    /// The keys that separate episodes, if the sampler needs them: [`Frames::runs`] is then
    /// present.
    fn run_keys(&self) -> Option<&RunKeys> {
        None
    }

    /// The order in which rows must be filled; `None` when any will do. The buffer refuses writers
    /// of another order. With [`RowOrder::Ring`], [`Frames::row`] counts from the oldest frame.
    /// Only with [`RowOrder::Any`] may a draw [use frames up](Draw::spent).
    fn order(&self) -> Option<RowOrder> {
        self.run_keys().map(|_| RowOrder::Ring)
    }

    /// Most rows of a draw for a batch of `batch_size` frames. There may be more rows than frames
    /// if frames bring others with them, such as goals in hindsight.
    fn most_rows(&self, batch_size: usize) -> usize {
        batch_size
    }

    /// The arguments of priorities; `None` when frames have none. Where they have some,
    /// [`update_priority`](Self::update_priority) sets them.
    fn priorities(&mut self) -> Option<&mut Priorities> {
        None
    }

    /// These rows were filled; `frames` contains them already.
    fn written(&mut self, rows: RowSpan, frames: &Frames<'_>) {
        let _ = (rows, frames);
    }

    /// These rows will be overwritten; `frames` no longer contains them.
    fn evicted(&mut self, rows: RowSpan, frames: &Frames<'_>) {
        let _ = (rows, frames);
    }

    /// All rows were dropped.
    fn cleared(&mut self) {}

    /// Chooses rows for a batch of `batch_size` frames. Takes no numbers from `rng` when it fails.
    ///
    /// # Errors
    /// [`NoDraw::Shortage`] when frames are missing that may still be written, [`NoDraw::Error`]
    /// when waiting would not help.
    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Result<Draw, NoDraw>;

    /// Sets the priorities of rows: `priorities` has one for each of `rows`, finite and not
    /// negative. Rows without a frame are skipped, such as -1, which stands for a row whose frame
    /// was overwritten. Returns the number of priorities that were set. Called where there are
    /// [`priorities`](Self::priorities).
    ///
    /// # Errors
    /// [`ReplayError::NoPriorities`] when the sampler has none.
    fn update_priority(
        &mut self,
        rows: &[i64],
        priorities: &[f32],
        frames: &Frames<'_>,
    ) -> Result<usize, ReplayError> {
        let _ = (rows, priorities, frames);
        Err(ReplayError::NoPriorities)
    }

    /// The state from which another sampler continues the draws of this one. It holds no frames:
    /// they are announced again.
    ///
    /// # Errors
    /// When tensors cannot be made.
    fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        Ok(TensorDict::new([]))
    }

    /// Loads a state; [`written`](Sampler::written) has announced the frames before. The buffer
    /// calls this on a copy of the sampler, and drops the copy when it fails.
    ///
    /// # Errors
    /// [`ReplayError::State`] when the state is of another sampler or another capacity.
    fn load_state_dict(
        &mut self,
        state: &TensorDict,
        frames: &Frames<'_>,
    ) -> Result<(), ReplayError> {
        let _ = (state, frames);
        Ok(())
    }
}

impl<S: Sampler + 'static> From<S> for Box<dyn Sampler> {
    fn from(sampler: S) -> Self {
        Box::new(sampler)
    }
}

/// Copies a sampler behind a `Box`. Every sampler that is `Clone` has it.
pub trait CloneSampler {
    /// A copy.
    fn clone_box(&self) -> Box<dyn Sampler>;
}

impl<S: Sampler + Clone + 'static> CloneSampler for S {
    fn clone_box(&self) -> Box<dyn Sampler> {
        Box::new(self.clone())
    }
}

// So that a sampler that holds another one can be derived to be `Clone`.
impl Clone for Box<dyn Sampler> {
    fn clone(&self) -> Self {
        (**self).clone_box()
    }
}

/// The frames that can be drawn.
#[derive(Debug, Clone, Copy)]
pub struct Frames<'a> {
    rows: &'a RowSet,
    runs: Option<&'a Runs>,
}

impl<'a> Frames<'a> {
    /// The frames in `rows`; `runs` says which of them follow each other, where they are in order.
    #[must_use]
    pub fn new(rows: &'a RowSet, runs: Option<&'a Runs>) -> Self {
        Self { rows, runs }
    }

    /// Number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row of frame `at` of `len()`: counted from the oldest where the writer keeps frames in
    /// order.
    ///
    /// # Panics
    /// May panic when `at` is not below `len()`.
    #[inline]
    #[must_use]
    pub fn row(&self, at: usize) -> usize {
        self.rows.row(at)
    }

    /// Whether `row` holds one of them.
    #[must_use]
    pub fn contains(&self, row: usize) -> bool {
        self.rows.contains(row)
    }

    /// End of the rows that hold one of them, or held one.
    #[must_use]
    pub fn end(&self) -> usize {
        self.rows.end()
    }

    /// The frames that follow each other; present when the writer keeps frames in order.
    #[must_use]
    pub fn runs(&self) -> Option<&'a Runs> {
        self.runs
    }
}

/// Rows chosen for one batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draw {
    /// The rows, in the order of the batch: at most [`Sampler::most_rows`], each with a frame.
    pub rows: Vec<u32>,
    /// An importance weight for each of them.
    pub weights: Option<Vec<f32>>,
    /// The slices that the rows form, where they are not single frames.
    pub slices: Option<Slices>,
    /// The rows whose frames this draw uses up: the buffer drops them, and no later draw
    /// has their frames. Only for samplers whose [`order`](Sampler::order) is [`RowOrder::Any`].
    pub spent: Vec<u32>,
    /// Whether this draw ends a pass over the frames. The next draw begins another.
    pub ends_pass: bool,
}

impl Draw {
    /// These rows, as single frames without weights.
    #[must_use]
    pub fn of(rows: Vec<u32>) -> Self {
        Self {
            rows,
            ..Self::default()
        }
    }

    /// Checks the draw of a sampler, which may be of another crate.
    ///
    /// # Errors
    /// [`ReplayError::Draw`].
    pub(crate) fn check(&self, most: usize, frames: &Frames<'_>) -> Result<(), ReplayError> {
        let count = self.rows.len();
        let wrong = |expected: String, got: String| Err(ReplayError::Draw { expected, got });
        if count > most {
            return wrong(format!("at most {most}"), format!("{count} rows"));
        }
        let is_lost = |row: &&u32| !frames.contains(**row as usize);
        if let Some(row) = self.rows.iter().chain(&self.spent).find(is_lost) {
            return wrong("rows that hold frames".to_owned(), format!("row {row}"));
        }
        if let Some(weights) = self.weights.as_ref().filter(|it| it.len() != count) {
            let got = format!("{} weights", weights.len());
            return wrong(format!("one for each of {count} rows"), got);
        }
        if !self.spent.is_empty() && frames.rows.order() == RowOrder::Ring {
            let expected = "none where rows are filled in a ring".to_owned();
            return wrong(expected, format!("{} rows to use up", self.spent.len()));
        }
        self.slices
            .as_ref()
            .map_or(Ok(()), |slices| slices.check(count))
    }
}

/// The slices that a batch consists of, end to end.
#[derive(Debug, Clone, PartialEq)]
pub struct Slices {
    /// Number of frames of each slice, without padding: at least 1. With padding, the frames of all
    /// slices are the rows of the draw.
    pub lens: Vec<usize>,
    /// Number of frames that each slice begins with that only warm up a recurrent state; empty
    /// where none do. None is longer than its slice.
    pub burn_in: Vec<usize>,
    /// Number of frames of each slice with padding, where slices are padded: none is longer.
    pub padded: Option<usize>,
    /// The flag that marks the last frame of each slice; none where flags stay as they are.
    pub truncated_key: Option<NestedKey>,
}

impl Slices {
    fn check(&self, rows: usize) -> Result<(), ReplayError> {
        let lens = &self.lens;
        let wrong = |expected: String, got: String| Err(ReplayError::Draw { expected, got });
        let most = self.padded.unwrap_or(rows);
        if let Some(len) = lens.iter().find(|&&len| len == 0 || len > most) {
            let expected = format!("slices of 1 to {most} frames");
            return wrong(expected, format!("one of {len}"));
        }
        let with_padding = lens.iter().map(|&len| self.padded.unwrap_or(len));
        let sum = with_padding.fold(0, usize::saturating_add);
        if sum != rows {
            let got = format!("slices of {sum} frames in all");
            return wrong(format!("as many as rows, {rows}"), got);
        }
        if !self.burn_in.is_empty() && self.burn_in.len() != lens.len() {
            let got = format!("{} burn-ins", self.burn_in.len());
            return wrong(
                format!("none, or one for each of {} slices", lens.len()),
                got,
            );
        }
        let is_long = |(burn_in, len): &(&usize, &usize)| burn_in > len;
        if let Some((burn_in, len)) = self.burn_in.iter().zip(lens).find(is_long) {
            let got = format!("a burn-in of {burn_in} frames");
            return wrong(format!("at most the {len} of its slice"), got);
        }
        Ok(())
    }
}

/// The reason why a sampler drew nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum NoDraw {
    /// Frames are missing.
    Shortage(Shortage),
    /// The request cannot be met.
    Error(ReplayError),
}

impl From<ReplayError> for NoDraw {
    fn from(error: ReplayError) -> Self {
        Self::Error(error)
    }
}

impl From<Shortage> for NoDraw {
    fn from(shortage: Shortage) -> Self {
        Self::Shortage(shortage)
    }
}

/// Checks that a buffer of `capacity` frames can hold `needed` different ones.
fn check_batch(needed: usize, capacity: usize) -> Result<(), ReplayError> {
    if needed <= capacity {
        return Ok(());
    }
    Err(ReplayError::Argument {
        name: "drop_last",
        expected: format!(
            "batches of at most {capacity} frames or slices, which the buffer has room for"
        ),
        got: needed.to_string(),
    })
}
