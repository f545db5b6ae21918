//! Where trajectories begin and end in a batch.

use tensordict::{DType, Element, Tensor, TensorDict, TensorError};

/// The id of padding, which no trajectory has.
pub(crate) const PADDING_ID: i64 = -1;
/// The id of each frame's trajectory.
pub(crate) const IDS: &[&str] = &["collector", "traj_ids"];
/// Whether an episode ended with a frame.
pub(crate) const DONE: &[&str] = &["next", "done"];
/// Which entries are frames; the others are padding.
pub(crate) const MASK: &[&str] = &["collector", "mask"];

/// The frames of a batch: `rows` environments of `steps` frames each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchRows {
    pub(crate) rows: usize,
    pub(crate) steps: usize,
}

impl BatchRows {
    /// # Errors
    /// [`TensorError::Dim`] when the batch has no dimension that could be time.
    pub(crate) fn of(batch: &TensorDict) -> Result<Self, TensorError> {
        let Some((&steps, envs)) = batch.batch_size().split_last() else {
            return Err(TensorError::Dim { dim: 0, ndim: 0 });
        };
        let rows = envs.iter().product();
        Ok(Self { rows, steps })
    }
}

/// Frames of one trajectory that follow each other in one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TrajectoryRun {
    pub(crate) id: i64,
    /// Index of the first frame, row-major.
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Whether the last frame is `done`.
    pub(crate) done: bool,
}

/// The ids and flags of a batch: one value for each frame, step by step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks<'a> {
    pub(crate) ids: &'a [i64],
    pub(crate) done: &'a [bool],
    /// `None` when all entries are frames.
    pub(crate) mask: Option<&'a [bool]>,
}

impl<'a> Marks<'a> {
    pub(crate) fn of(
        ids: &'a Tensor,
        done: &'a Tensor,
        mask: Option<&'a Tensor>,
    ) -> Result<Self, TensorError> {
        Ok(Self {
            ids: ids.as_slice()?,
            done: done.as_slice()?,
            mask: mask.map(Tensor::as_slice).transpose()?,
        })
    }

    /// Calls `found` for every run, in the order of their last steps; for those that end in the
    /// same step, in the order of rows.
    ///
    /// A run ends with its row, with a frame that is done, before another id, and before a frame
    /// that the mask excludes.
    pub(crate) fn runs(
        &self,
        BatchRows { rows, steps }: BatchRows,
        mut found: impl FnMut(TrajectoryRun),
    ) {
        // The step at which the present run of each row begins.
        let mut starts = vec![0; rows];
        let mut end_of = |row: usize, step: usize| {
            let at = step * rows + row;
            let start = std::mem::replace(&mut starts[row], step + 1);
            if self.mask.is_none_or(|mask| mask[at]) {
                found(TrajectoryRun {
                    id: self.ids[at],
                    start: row * steps + start,
                    len: step + 1 - start,
                    done: self.done[at],
                });
            }
        };
        for step in 0..steps {
            if step + 1 == steps {
                (0..rows).for_each(|row| end_of(row, step));
            } else if self.only_done(rows, step) {
                let done = &self.done[step * rows..][..rows];
                each_set(done, |row| end_of(row, step));
            } else {
                let ending = (0..rows).filter(|&row| self.ends(rows, step * rows + row));
                ending.for_each(|row| end_of(row, step));
            }
        }
    }

    /// Whether runs end with `step`, which is not the last, only where a frame is done. Most steps
    /// are like this, and many environments are checked at once.
    fn only_done(&self, rows: usize, step: usize) -> bool {
        if self.mask.is_some() {
            return false;
        }
        let now = step * rows..(step + 1) * rows;
        let next = (step + 1) * rows..(step + 2) * rows;
        let ids = self.ids[now.clone()].iter().zip(&self.ids[next]);
        let changes = ids.zip(&self.done[now]).fold(0, |changes, ((a, b), done)| {
            // All bits of the last term are set unless the frame is done.
            changes | ((a ^ b) & (i64::from(*done) - 1))
        });
        changes == 0
    }

    /// Whether a run ends with the frame at index `at`, which is not in the last step.
    fn ends(&self, rows: usize, at: usize) -> bool {
        let next = at + rows;
        self.done[at]
            || self.ids[at] != self.ids[next]
            || self.mask.is_some_and(|mask| mask[at] != mask[next])
    }
}

/// Calls `found` with the index of each flag that is set; few are.
fn each_set(flags: &[bool], mut found: impl FnMut(usize)) {
    let (words, rest) = flags.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let mut bits = u64::from_le_bytes(word.map(u8::from));
        while bits != 0 {
            found(8 * i + bits.trailing_zeros() as usize / 8);
            bits &= bits - 1;
        }
    }
    for (i, _) in rest.iter().enumerate().filter(|(_, flag)| **flag) {
        found(8 * words.len() + i);
    }
}

/// The entry `key` of `batch`, with one element of type `T` for every frame, `[…, time]` or
/// `[…, time, 1]`: step by step, and flat.
///
/// # Errors
/// [`TensorError`] naming the key when it is missing, or of another type or shape.
pub(crate) fn one_each<T: Element>(
    batch: &TensorDict,
    key: &[&str],
) -> Result<Tensor, TensorError> {
    let tensor = of_type(batch, key, T::DTYPE)?;
    let size = batch.batch_size();
    if tensor.shape() != size && tensor.shape().strip_suffix(&[1]) != Some(size) {
        let error = TensorError::Shape {
            op: "trajectories",
            expected: batch.batch_size().to_vec(),
            got: tensor.shape().to_vec(),
        };
        return Err(error.at(key));
    }
    step_by_step(tensor, batch.ndim())?.view([batch.numel()])
}

/// The mask `key` of `batch`, step by step; `None` when there is no such entry.
///
/// # Errors
/// [`TensorError`] naming the key when it is not `bool` or not of the batch's shape.
pub(crate) fn mask_of(batch: &TensorDict, key: &[&str]) -> Result<Option<Tensor>, TensorError> {
    if !batch.contains_key(key) {
        return Ok(None);
    }
    one_each::<bool>(batch, key).map(Some)
}

/// Whether each frame is the last of its episode, step by step. An environment of several agents
/// may have a flag for each; any of them then ends the episode.
///
/// # Errors
/// [`TensorError`] naming `("next", "done")` when it is missing or not `bool`.
pub(crate) fn done_of(batch: &TensorDict) -> Result<Tensor, TensorError> {
    let frames = batch.numel();
    let done = step_by_step(of_type(batch, DONE, DType::Bool)?, batch.ndim())?;
    match done.len().checked_div(frames) {
        None | Some(1) => done.view([frames]),
        Some(0) => Tensor::zeros(DType::Bool, [frames]),
        Some(flags) => {
            let any = |flags: &[bool]| flags.contains(&true);
            let done: Vec<bool> = done.as_slice()?.chunks(flags).map(any).collect();
            Tensor::from_vec(done, [frames])
        }
    }
}

/// The entry `key` of `batch`, with elements of type `dtype`.
fn of_type<'a>(
    batch: &'a TensorDict,
    key: &[&str],
    dtype: DType,
) -> Result<&'a Tensor, TensorError> {
    let tensor = batch.get(key)?;
    if tensor.dtype() != dtype {
        let (expected, got) = (dtype, tensor.dtype());
        return Err(TensorError::DType { expected, got }.at(key));
    }
    Ok(tensor)
}

/// The tensor with time, the last of its first `dims` dimensions, moved to the front; contiguous,
/// as it is in a slab.
fn step_by_step(tensor: &Tensor, dims: usize) -> Result<Tensor, TensorError> {
    let mut axes: Vec<usize> = (0..tensor.ndim()).collect();
    axes[..dims].rotate_right(1);
    Ok(tensor.permute(axes)?.contiguous())
}
