//! Frames with the same entries, copied out of batches, column by column.

use std::sync::Arc;

use tensordict::{DType, Entry, NestedKey, Tensor, TensorDict, TensorError};

use super::column::{Column, column};
use super::gather::Move;
use super::runs::{DONE, IDS, MASK, PADDING_ID};
use super::scratch::Scratch;

/// Copied frames, in the order in which they came.
#[derive(Debug)]
pub(super) struct CopiedFrames {
    /// A batch without frames and without a mask, of one dimension.
    template: TensorDict,
    /// In the order of the template's leaves.
    leaves: Vec<FrameLeaf>,
    len: usize,
}

/// The values of one key.
#[derive(Debug)]
struct FrameLeaf {
    key: NestedKey,
    dtype: DType,
    /// Shape of one frame.
    shape: Vec<usize>,
    values: Values,
}

/// Where the values of a leaf come from.
#[derive(Debug)]
enum Values {
    /// They were copied.
    Copied(Box<dyn Column>),
    /// All frames of a trajectory have its id.
    Ids(Scratch),
    /// The last frame of a trajectory, and no other, is done.
    Done(Scratch),
}

/// The place of one trajectory in a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) id: i64,
    pub(super) to: usize,
    pub(super) len: usize,
}

impl CopiedFrames {
    /// No frames yet, for frames with the entries of `batch`, whose last dimension is time.
    ///
    /// # Errors
    /// [`TensorError`] when an entry cannot be held.
    pub(super) fn like(batch: &TensorDict) -> Result<Self, TensorError> {
        let time = batch.ndim() - 1;
        let template = batch
            .exclude(&[MASK])
            .narrow(time, 0, 0)?
            .reshape([0])?
            .detach();
        let leaves = template
            .leaves()
            .map(|(key, tensor)| FrameLeaf::like(key, tensor))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            template,
            leaves,
            len: 0,
        })
    }

    /// Frames held.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a copy of all frames of `batch`, row-major; errors name it as batch `nth`.
    ///
    /// # Errors
    /// [`TensorError`] naming an entry that `batch` lacks or that the frames held lack, or that has
    /// another type or shape. Nothing is appended then.
    pub(super) fn append(&mut self, batch: &TensorDict, nth: usize) -> Result<(), TensorError> {
        let tensors = self.matching(batch, nth)?;
        for (leaf, tensor) in self.leaves.iter_mut().zip(tensors) {
            let Values::Copied(column) = &mut leaf.values else {
                continue;
            };
            if let Err(error) = column.append(tensor, batch.ndim()) {
                let error = error.at(&leaf.key);
                self.truncate();
                return Err(error);
            }
        }
        self.len += batch.numel();
        Ok(())
    }

    /// The tensors of `batch` in the order of the leaves.
    fn matching<'a>(
        &self,
        batch: &'a TensorDict,
        nth: usize,
    ) -> Result<Vec<&'a Tensor>, TensorError> {
        let (keys, tensors): (Vec<NestedKey>, Vec<&Tensor>) =
            batch.leaves().filter(|(key, _)| !is(key, MASK)).unzip();
        if !keys.iter().eq(self.leaves.iter().map(|leaf| &leaf.key)) {
            return Err(self.other_keys(&keys, nth));
        }
        for (leaf, tensor) in self.leaves.iter().zip(&tensors) {
            leaf.check(tensor, batch.batch_size())?;
        }
        Ok(tensors)
    }

    fn other_keys(&self, keys: &[NestedKey], nth: usize) -> TensorError {
        let known = |key: &NestedKey| self.leaves.iter().any(|leaf| leaf.key == *key);
        TensorError::Keys {
            op: "push",
            index: nth,
            missing: self
                .leaves
                .iter()
                .filter(|leaf| !keys.contains(&leaf.key))
                .map(|leaf| format!("{:?}", leaf.key))
                .collect(),
            extra: keys
                .iter()
                .filter(|key| !known(key))
                .map(|key| format!("{key:?}"))
                .collect(),
        }
    }

    /// Keeps only the frames of `moves`, and moves them to the front, in order and without gaps.
    pub(super) fn keep(&mut self, moves: &[Move]) {
        for column in self.columns() {
            column.keep(moves);
        }
        self.len = moves.last().map_or(0, |last| last.to + last.len);
    }

    /// A batch of size `size` with copies of the frames of `moves`, which are the trajectories of
    /// `spans`; zeros elsewhere.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`].
    pub(super) fn build(
        &mut self,
        size: &[usize],
        moves: &[Move],
        spans: &[Span],
    ) -> Result<TensorDict, TensorError> {
        let mut leaves = self.leaves.iter_mut();
        rebuilt(&self.template, 1, size, &mut |_| {
            let leaf = leaves.next();
            let leaf = leaf.expect("The leaves are those of the template, in its order.");
            match &mut leaf.values {
                Values::Copied(column) => column.copy(moves, size),
                Values::Ids(block) => ids(block, &[size, &leaf.shape].concat(), spans),
                Values::Done(block) => done(block, &[size, &leaf.shape].concat(), spans),
            }
        })
    }

    /// Undoes an append that has failed after some columns.
    fn truncate(&mut self) {
        let len = self.len;
        for column in self.columns() {
            column.truncate(len);
        }
    }

    fn columns(&mut self) -> impl Iterator<Item = &mut Box<dyn Column>> {
        self.leaves
            .iter_mut()
            .filter_map(|leaf| match &mut leaf.values {
                Values::Copied(column) => Some(column),
                Values::Ids(_) | Values::Done(_) => None,
            })
    }
}

/// The ids of all frames, `int64` of shape `shape`: the id of each of `spans` in its places, and
/// [`PADDING_ID`] elsewhere.
fn ids(block: &mut Scratch, shape: &[usize], spans: &[Span]) -> Result<Tensor, TensorError> {
    block.written(shape, |out| {
        out.fill(PADDING_ID);
        for &Span { id, to, len } in spans {
            out[to..to + len].fill(id);
        }
    })
}

/// `bool` of shape `shape`, one for each frame: true for the last of each of `spans`.
fn done(block: &mut Scratch, shape: &[usize], spans: &[Span]) -> Result<Tensor, TensorError> {
    block.written(shape, |out| {
        out.fill(false);
        for &Span { to, len, .. } in spans {
            if let Some(last) = out[to..to + len].last_mut() {
                *last = true;
            }
        }
    })
}

impl FrameLeaf {
    /// For frames like those of `tensor`, which has one dimension more.
    fn like(key: NestedKey, tensor: &Tensor) -> Result<Self, TensorError> {
        let shape = tensor.shape()[1..].to_vec();
        let values = if is(&key, IDS) {
            Values::Ids(Scratch::new())
        } else if is(&key, DONE) && shape.iter().product::<usize>() == 1 {
            Values::Done(Scratch::new())
        } else {
            Values::Copied(column(tensor.dtype(), &shape))
        };
        Ok(Self {
            values,
            dtype: tensor.dtype(),
            shape,
            key,
        })
    }

    /// Checks that `tensor`, of a batch of size `size`, has the type and shape of the leaf.
    fn check(&self, tensor: &Tensor, size: &[usize]) -> Result<(), TensorError> {
        if tensor.dtype() != self.dtype {
            let (expected, got) = (self.dtype, tensor.dtype());
            return Err(TensorError::DType { expected, got }.at(&self.key));
        }
        if tensor.shape()[size.len()..] != self.shape {
            let error = TensorError::Shape {
                op: "push",
                expected: [size, &self.shape].concat(),
                got: tensor.shape().to_vec(),
            };
            return Err(error.at(&self.key));
        }
        Ok(())
    }
}

fn is(key: &NestedKey, names: &[&str]) -> bool {
    key.components()
        .iter()
        .map(AsRef::as_ref)
        .eq(names.iter().copied())
}

/// The dict with the result of `leaf` in place of every tensor, and the dimensions `lead` in place
/// of the first `dims`.
///
/// # Errors
/// The errors of `leaf`, and [`TensorError::Batch`] when a result does not begin with `lead`.
pub(crate) fn rebuilt(
    dict: &TensorDict,
    dims: usize,
    lead: &[usize],
    leaf: &mut dyn FnMut(&Tensor) -> Result<Tensor, TensorError>,
) -> Result<TensorDict, TensorError> {
    let size = [lead, &dict.batch_size()[dims..]].concat();
    let mut names = vec![None; lead.len()];
    names.extend(dict.names()[dims..].iter().map(Option::as_deref));
    let mut out = TensorDict::new(size).with_names(&names)?;
    for (name, entry) in dict.entries() {
        let made = match entry {
            Entry::Tensor(tensor) => leaf(tensor).map(Entry::Tensor),
            Entry::Dict(inner) => rebuilt(inner, dims, lead, leaf).map(Entry::Dict),
        };
        // As a key, a name shares its text instead of copying it.
        let name = NestedKey::from_name(Arc::clone(name));
        out.set(&name, made.map_err(|error| error.at(&name))?)?;
    }
    Ok(out)
}
