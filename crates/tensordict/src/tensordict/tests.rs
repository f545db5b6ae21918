//! Helpers of the tests of dicts.

use crate::{Tensor, TensorDict};

mod batch;
mod groups;
mod keys;
mod shapes;

/// Batch `[2, 3]`: the tensors count up; ("next", "extra") has one more batch dimension.
pub(super) fn sample() -> TensorDict {
    let mut dict = TensorDict::new([2, 3])
        .with_names(&[None, Some("time")])
        .unwrap();
    dict.set("obs", grid(&[2, 3, 4])).unwrap();
    dict.set("step", grid(&[2, 3])).unwrap();
    dict.set(("next", "obs"), grid(&[2, 3, 4])).unwrap();
    let mut extra = TensorDict::new([2, 3, 2]);
    extra.set("x", grid(&[2, 3, 2, 1])).unwrap();
    dict.set(("next", "extra"), extra).unwrap();
    dict
}

pub(super) fn grid(shape: &[usize]) -> Tensor {
    Tensor::arange(0..shape.iter().product::<usize>() as i64)
        .unwrap()
        .view(shape)
        .unwrap()
}

pub(super) fn names(dict: &TensorDict) -> Vec<Option<&str>> {
    dict.names().iter().map(Option::as_deref).collect()
}
