//! How frames are chosen.

use std::fmt::Debug;

use tensordict::{NestedKey, TensorDict};

use crate::{Reduction, ReplayError, RowSet, RowSpan, RunKeys, Runs, SampleRng, Shortage};

mod prioritized;
mod prioritized_slice;
mod random;
mod slice;
mod slice_without_replacement;
mod sum_tree;
mod without_replacement;

pub use prioritized::PrioritizedSampler;
pub use prioritized_slice::PrioritizedSliceSampler;
pub use random::RandomSampler;
pub use slice::SliceSampler;
pub use slice_without_replacement::SliceSamplerWithoutReplacement;
pub use without_replacement::SamplerWithoutReplacement;

/// Chooses rows. Its methods are never called concurrently: the buffer holds its lock.
///
/// Every row is announced before it can be chosen ([`written`](Sampler::written)) and before it is overwritten
/// ([`evicted`](Sampler::evicted)); in between, the row and its frame stay as they are.
pub trait Sampler: CloneSampler + Debug + Send {
    /// Called once, before anything else.
    ///
    /// # Errors
    /// [`ReplayError::Argument`] when what the sampler was built with makes no sense.
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        let _ = capacity;
        Ok(())
    }

    /// The keys that tell episodes apart, if the sampler needs to know: [`Frames::runs`] is then there.
    fn run_keys(&self) -> Option<&RunKeys> {
        None
    }

    /// Whether the sampler needs to know which frames are older than others: [`Frames::row`] then counts from the oldest. The
    /// buffer refuses writers that do not keep frames in order.
    fn needs_order(&self) -> bool {
        self.run_keys().is_some()
    }

    /// The entry that priorities of new frames are taken from, where they have it, and how several values make one.
    fn priority_key(&self) -> Option<(&NestedKey, Reduction)> {
        None
    }

    /// These rows were filled; `frames` has them already.
    fn written(&mut self, rows: RowSpan, frames: &Frames<'_>) {
        let _ = (rows, frames);
    }

    /// These rows will be overwritten; `frames` no longer has them.
    fn evicted(&mut self, rows: RowSpan, frames: &Frames<'_>) {
        let _ = (rows, frames);
    }

    /// All rows were given up.
    fn cleared(&mut self) {}

    /// Chooses rows for a batch of `batch_size` frames. Draws nothing from `rng` when it fails.
    ///
    /// # Errors
    /// [`NoDraw::Shortage`] when there are not the frames for it yet, [`NoDraw::Error`] when there never will be.
    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Result<Draw, NoDraw>;

    /// Whether the last draw was the last of a pass over the frames, after which the next pass begins.
    fn ran_out(&self) -> bool {
        false
    }

    /// Takes priorities of rows over: `priorities` has one for each of `rows`. A row without frame is passed over. Returns
    /// how many were not.
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

    /// Changes the exponent of importance weights.
    ///
    /// # Errors
    /// [`ReplayError::NoPriorities`] when the sampler has none.
    fn set_beta(&mut self, beta: f64) -> Result<(), ReplayError> {
        let _ = beta;
        Err(ReplayError::NoPriorities)
    }

    /// What the sampler must be given to go on as it would: nothing that can be told from the frames.
    ///
    /// # Errors
    /// When tensors cannot be made.
    fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        Ok(TensorDict::new([]))
    }

    /// Goes on from a state; the frames have been announced by [`written`](Sampler::written) before.
    ///
    /// # Errors
    /// When the state is of another sampler or another capacity.
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

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row of frame `at` of `len()`, in an order of the buffer's own.
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

    /// Behind the last row that holds one of them, or held one.
    #[must_use]
    pub fn end(&self) -> usize {
        self.rows.end()
    }

    /// Which of them follow each other; there when the writer keeps frames in order.
    #[must_use]
    pub fn runs(&self) -> Option<&'a Runs> {
        self.runs
    }
}

/// Rows chosen for one batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draw {
    /// The rows, in the order of the batch.
    pub rows: Vec<u32>,
    /// An importance weight for each of them.
    pub weights: Option<Vec<f32>>,
    /// What they are pieces of, when they are not single frames.
    pub slices: Option<Slices>,
}

/// The slices that a batch consists of, end to end.
#[derive(Debug, Clone, PartialEq)]
pub struct Slices {
    /// Frames of each, without padding.
    pub lens: Vec<usize>,
    /// Frames of each with padding, when they are padded.
    pub padded: Option<usize>,
    /// The flag that marks the last frame of each, unless none is wanted.
    pub truncated_key: Option<NestedKey>,
}

/// Why nothing was drawn.
#[derive(Debug)]
pub enum NoDraw {
    /// More frames are needed.
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

/// Whether a buffer of `capacity` frames can ever hold a batch of so many, none of them twice.
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
