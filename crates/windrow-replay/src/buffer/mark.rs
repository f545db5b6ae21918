//! Flags that tell the slices of a batch apart.

use tensordict::{DType, NestedKey, Tensor, TensorDict, TensorError};

use crate::sampler::Slices;

/// Sets them in a batch that consists of `slices`.
pub(super) fn slices(batch: &mut TensorDict, slices: &Slices) -> Result<(), TensorError> {
    let mut first = vec![false; batch.numel()];
    let mut last = first.clone();
    let mut real = first.clone();
    let mut at = 0;
    for &len in &slices.lens {
        first[at] = true;
        last[at + len - 1] = true;
        real[at..at + len].fill(true);
        at += slices.padded.unwrap_or(len);
    }
    if let Some(truncated) = &slices.truncated_key {
        raise(batch, truncated, &last)?;
        raise(batch, &sibling(truncated, "done"), &last)?;
    }
    if batch.contains_key("is_init") {
        raise(batch, &"is_init".into(), &first)?;
    }
    if slices.padded.is_some() {
        batch.set(
            ("collector", "mask"),
            Tensor::from_vec(real, batch.batch_size())?,
        )?;
    }
    Ok(())
}

/// Sets the flag `key` of the frames that `raised` names, and leaves others as they are; where there is no such flag, it is
/// made, `[frames, 1]`.
fn raise(batch: &mut TensorDict, key: &NestedKey, raised: &[bool]) -> Result<(), TensorError> {
    if !batch.contains_key(key) {
        batch.set(key, Tensor::from_slice(raised, [raised.len(), 1])?)?;
        return Ok(());
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
    batch.set(key, Tensor::from_vec(flags, shape)?)?;
    Ok(())
}

/// The entry `name` beside `key`.
fn sibling(key: &NestedKey, name: &str) -> NestedKey {
    let mut names: Vec<&str> = key.components().iter().map(AsRef::as_ref).collect();
    if let Some(last) = names.last_mut() {
        *last = name;
    }
    NestedKey::from(names.as_slice())
}
