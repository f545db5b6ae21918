//! The flags that mark where the slices of a batch begin and end.

use tensordict::{DType, NestedKey, Tensor, TensorDict, TensorError};

use crate::sampler::Slices;

/// The entry that is true at frames of a padded slice, and false at its padding.
pub(super) const MASK: (&str, &str) = ("collector", "mask");
/// The entry that is true at frames that only warm up a recurrent state.
pub(super) const BURN_IN: (&str, &str) = ("collector", "burn_in");

/// The flags of a `batch` that consists of `slices`, under their keys.
pub(super) fn slices(batch: &TensorDict, slices: &Slices) -> Result<TensorDict, TensorError> {
    let mut marks = TensorDict::new(batch.batch_size());
    let mut first = vec![false; batch.numel()];
    let mut last = first.clone();
    let mut real = first.clone();
    let mut warming = first.clone();
    let mut at = 0;
    for (slice, &len) in slices.lens.iter().enumerate() {
        let burn_in = slices.burn_in.get(slice).copied().unwrap_or(0);
        warming[at..at + burn_in].fill(true);
        first[at] = true;
        last[at + len - 1] = true;
        real[at..at + len].fill(true);
        at += slices.padded.unwrap_or(len);
    }
    if let Some(truncated) = &slices.truncated_key {
        let done = sibling(truncated, "done");
        marks.set(truncated, raised(batch, truncated, &last)?)?;
        marks.set(&done, raised(batch, &done, &last)?)?;
    }
    if batch.contains_key("is_init") {
        marks.set("is_init", raised(batch, &"is_init".into(), &first)?)?;
    }
    if slices.padded.is_some() {
        marks.set(MASK, Tensor::from_vec(real, batch.batch_size())?)?;
    }
    if !slices.burn_in.is_empty() {
        marks.set(BURN_IN, Tensor::from_vec(warming, batch.batch_size())?)?;
    }
    Ok(marks)
}

/// The flag `key` of the batch, set for the frames that `raised` names and as it is for others;
/// `[frames, 1]` where there is no such flag.
fn raised(batch: &TensorDict, key: &NestedKey, raised: &[bool]) -> Result<Tensor, TensorError> {
    if !batch.contains_key(key) {
        return Tensor::from_slice(raised, [raised.len(), 1]);
    }
    let tensor = batch.get(key)?;
    if tensor.dtype() != DType::Bool {
        let (expected, got) = (DType::Bool, tensor.dtype());
        return Err(TensorError::DType { expected, got }.at(key));
    }
    let shape = tensor.shape().to_vec();
    let mut flags = tensor.to_vec::<bool>()?;
    let each = flags.len() / raised.len().max(1);
    if each > 0 {
        for (flags, &raised) in flags.chunks_mut(each).zip(raised) {
            if raised {
                flags.fill(true);
            }
        }
    }
    Tensor::from_vec(flags, shape)
}

/// The entry `name` beside `key`.
fn sibling(key: &NestedKey, name: &str) -> NestedKey {
    let mut names: Vec<&str> = key.components().iter().map(AsRef::as_ref).collect();
    if let Some(last) = names.last_mut() {
        *last = name;
    }
    NestedKey::from(names.as_slice())
}
