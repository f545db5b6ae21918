//! Chains of views against a model that looks every element up by its index.

use proptest::prelude::*;

use super::Tensor;
use crate::{DType, TensorError};

/// A tensor as a shape and its elements in row-major order, and nothing clever.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    shape: Vec<usize>,
    values: Vec<i64>,
}

impl Model {
    /// The model of `shape` whose element at each index is that of `self` at `source(index)`.
    fn gather(&self, shape: &[usize], source: impl Fn(&[usize]) -> Vec<usize>) -> Model {
        let count = shape.iter().product();
        let values = (0..count)
            .map(|at| self.at(&source(&unravel(at, shape))))
            .collect();
        Model {
            shape: shape.to_vec(),
            values,
        }
    }

    fn at(&self, index: &[usize]) -> i64 {
        assert_eq!(index.len(), self.shape.len());
        let place = index
            .iter()
            .zip(&self.shape)
            .fold(0, |place, (&i, &size)| place * size + i);
        self.values[place]
    }
}

fn unravel(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (i, &size) in index.iter_mut().zip(shape).rev() {
        *i = at % size;
        at /= size;
    }
    index
}

fn edited<T: Clone>(items: &[T], edit: impl FnOnce(&mut Vec<T>)) -> Vec<T> {
    let mut out = items.to_vec();
    edit(&mut out);
    out
}

/// Applies operation number `op` with arguments made from `a` and `b` to both; none when there
/// is no dimension for it.
fn apply(tensor: &Tensor, model: &Model, op: u8, a: usize, b: usize) -> Option<(Tensor, Model)> {
    match op {
        0..5 if !model.shape.is_empty() => along_dim(tensor, model, op, a, b),
        5..7 => swap_dims(tensor, model, op, a, b),
        7.. => other_dims(tensor, model, op, a, b),
        _ => None,
    }
}

/// Operations that pick indices along one dimension.
fn along_dim(
    tensor: &Tensor,
    model: &Model,
    op: u8,
    a: usize,
    b: usize,
) -> Option<(Tensor, Model)> {
    let shape = model.shape.clone();
    let dim = a % shape.len();
    let size = shape[dim];
    match op {
        0 if size > 0 => {
            let new = edited(&shape, |shape| _ = shape.remove(dim));
            let index = b % size;
            let expected = model.gather(&new, |i| edited(i, |i| i.insert(dim, index)));
            Some((tensor.select(dim, index).unwrap(), expected))
        }
        1 => {
            let start = b % (size + 1);
            let len = (b / 7) % (size - start + 1);
            let new = edited(&shape, |shape| shape[dim] = len);
            let expected = model.gather(&new, |i| edited(i, |i| i[dim] += start));
            Some((tensor.slice(dim, start..start + len).unwrap(), expected))
        }
        2 => {
            let expected = model.gather(&shape, |i| edited(i, |i| i[dim] = size - 1 - i[dim]));
            Some((tensor.flip(dim).unwrap(), expected))
        }
        3 => {
            let step = b % 3 + 1;
            let new = edited(&shape, |shape| shape[dim] = size.div_ceil(step));
            let expected = model.gather(&new, |i| edited(i, |i| i[dim] *= step));
            Some((tensor.step_by(dim, step).unwrap(), expected))
        }
        4 if size > 0 => {
            let indices: Vec<usize> = (0..b % 4).map(|i| (i * 5 + b) % size).collect();
            let new = edited(&shape, |shape| shape[dim] = indices.len());
            let expected = model.gather(&new, |i| edited(i, |i| i[dim] = indices[i[dim]]));
            Some((tensor.index_select(dim, &indices).unwrap(), expected))
        }
        _ => None,
    }
}

/// Operations that reorder dimensions.
fn swap_dims(
    tensor: &Tensor,
    model: &Model,
    op: u8,
    a: usize,
    b: usize,
) -> Option<(Tensor, Model)> {
    let shape = model.shape.clone();
    let ndim = shape.len();
    match op {
        5 if ndim > 0 => {
            let dim = a % ndim;
            let other = b % ndim;
            let new = edited(&shape, |shape| shape.swap(dim, other));
            let expected = model.gather(&new, |i| edited(i, |i| i.swap(dim, other)));
            Some((tensor.transpose(dim, other).unwrap(), expected))
        }
        6 if ndim > 0 => {
            let axes: Vec<usize> = (0..ndim).map(|i| (i + b) % ndim).collect();
            let new: Vec<usize> = axes.iter().map(|&axis| shape[axis]).collect();
            let expected = model.gather(&new, |i| {
                let mut old = vec![0; ndim];
                axes.iter().zip(i).for_each(|(&axis, &i)| old[axis] = i);
                old
            });
            Some((tensor.permute(&axes).unwrap(), expected))
        }
        _ => None,
    }
}

/// Operations that add, merge or split dimensions.
fn other_dims(
    tensor: &Tensor,
    model: &Model,
    op: u8,
    a: usize,
    b: usize,
) -> Option<(Tensor, Model)> {
    let shape = model.shape.clone();
    let ndim = shape.len();
    match op {
        7 if ndim < 5 => {
            let place = a % (ndim + 1);
            let new = edited(&shape, |shape| shape.insert(place, 1));
            let expected = model.gather(&new, |i| edited(i, |i| _ = i.remove(place)));
            Some((tensor.unsqueeze(place).unwrap(), expected))
        }
        8 if ndim < 5 => {
            let mut new = edited(&shape, |shape| shape.insert(0, b % 3));
            new.iter_mut()
                .skip(1)
                .filter(|size| **size == 1)
                .for_each(|size| *size = a % 3);
            let expected = model.gather(&new, |i| {
                i[1..]
                    .iter()
                    .zip(&shape)
                    .map(|(&i, &size)| if size == 1 { 0 } else { i })
                    .collect()
            });
            Some((tensor.expand(&new).unwrap(), expected))
        }
        9 => {
            let new = regroup(&shape, a, b);
            let expected = Model {
                shape: new.clone(),
                values: model.values.clone(),
            };
            Some((tensor.reshape(&new).unwrap(), expected))
        }
        10 => {
            let new = regroup(&shape, a, b);
            match tensor.view(&new) {
                Ok(view) => Some((
                    view,
                    Model {
                        shape: new,
                        values: model.values.clone(),
                    },
                )),
                Err(error) => {
                    assert!(
                        matches!(error, TensorError::NotViewable { .. }) && !tensor.is_contiguous()
                    );
                    None
                }
            }
        }
        _ => None,
    }
}

/// Another shape of as many elements: two neighbours merged, or one dimension split in two.
fn regroup(shape: &[usize], a: usize, b: usize) -> Vec<usize> {
    if shape.len() >= 2 && b.is_multiple_of(2) {
        let dim = a % (shape.len() - 1);
        return edited(shape, |shape| {
            let inner = shape.remove(dim + 1);
            shape[dim] *= inner;
        });
    }
    let Some(dim) = a.checked_rem(shape.len()) else {
        return vec![1, 1];
    };
    let factor = [2, 3, 1]
        .into_iter()
        .find(|&factor| shape[dim].is_multiple_of(factor))
        .unwrap_or(1);
    edited(shape, |shape| {
        shape[dim] /= factor;
        shape.insert(dim + 1, factor);
    })
}

fn check(tensor: &Tensor, model: &Model) {
    assert_eq!(tensor.shape(), model.shape);
    assert_eq!(tensor.len(), model.values.len());
    assert_eq!(tensor.to_vec::<i64>().unwrap(), model.values);
    let mut iter = tensor.iter::<i64>().unwrap();
    assert_eq!(iter.len(), model.values.len());
    assert!(iter.by_ref().eq(model.values.iter().copied()));
    assert_eq!(iter.next(), None);
    for at in 0..model.values.len() {
        let index = unravel(at, &model.shape);
        assert_eq!(tensor.get_at::<i64>(&index).unwrap(), model.values[at]);
    }
    let array = tensor.array::<i64>().unwrap();
    assert_eq!(array.shape(), model.shape);
    assert!(array.iter().eq(&model.values));
    let copy = tensor.contiguous();
    assert_eq!(copy.as_slice::<i64>().unwrap(), model.values);
    assert_eq!(&copy, tensor);
    assert_eq!(&tensor.detach(), tensor);
    let flat = tensor.flatten();
    assert_eq!(flat.to_vec::<i64>().unwrap(), model.values);
    if tensor.is_contiguous() {
        assert_eq!(flat.data_ptr(), tensor.data_ptr());
    }
    assert_eq!(tensor.as_slice::<i64>().is_ok(), tensor.is_contiguous());
}

fn cases() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn chains_of_views_agree_with_index_maths(
        shape in prop::collection::vec(0usize..5, 0..4),
        ops in prop::collection::vec((0u8..11, any::<u16>(), any::<u16>()), 0..8),
    ) {
        let count: usize = shape.iter().product();
        let mut tensor = Tensor::arange(0..count as i64).unwrap().view(&shape).unwrap();
        let mut model = Model { shape, values: (0..count as i64).collect() };
        for (op, a, b) in ops {
            if let Some(next) = apply(&tensor, &model, op, a.into(), b.into()) {
                (tensor, model) = next;
            }
            prop_assume!(model.values.len() < 4000);
            check(&tensor, &model);
        }
    }

    #[test]
    fn joining_undoes_splitting(
        shape in prop::collection::vec(1usize..5, 1..4),
        dim in any::<prop::sample::Index>(),
        size in 1usize..5,
        turn in any::<bool>(),
    ) {
        let count: usize = shape.iter().product();
        let mut tensor = Tensor::arange(0..count as i64).unwrap().view(&shape).unwrap();
        if turn {
            tensor = tensor.transpose(0, shape.len() - 1).unwrap();
        }
        let dim = dim.index(shape.len());
        prop_assert_eq!(&Tensor::cat(&tensor.split(dim, size).unwrap(), dim).unwrap(), &tensor);
        prop_assert_eq!(&Tensor::cat(&tensor.chunk(dim, size).unwrap(), dim).unwrap(), &tensor);
        let slices: Vec<Tensor> = (0..tensor.shape()[dim]).map(|i| tensor.select(dim, i).unwrap()).collect();
        prop_assert_eq!(&Tensor::stack(&slices, dim).unwrap(), &tensor);
    }

    #[test]
    fn masks_agree_with_filtering(rows in prop::collection::vec((any::<bool>(), any::<i32>()), 0..20)) {
        let mask: Vec<bool> = rows.iter().map(|row| row.0).collect();
        let values: Vec<i32> = rows.iter().map(|row| row.1).collect();
        let kept: Vec<i32> = rows.iter().filter(|row| row.0).map(|row| row.1).collect();
        let mask = Tensor::from_slice(&mask, [rows.len()]).unwrap();
        let values = Tensor::from_slice(&values, [rows.len()]).unwrap();
        prop_assert_eq!(values.masked_select(&mask).unwrap().to_vec::<i32>().unwrap(), kept);
    }
}

#[test]
fn ops_that_need_a_dimension_say_so_on_scalars() {
    let scalar = Tensor::scalar(1i64);
    for error in [
        scalar.select(0, 0).err(),
        scalar.flip(0).err(),
        scalar.step_by(0, 1).err(),
        scalar.slice(0, ..).err(),
        scalar.transpose(0, 0).err(),
        scalar.squeeze(0).err(),
        scalar.index_select(0, &[]).err(),
        scalar.split(0, 1).err(),
    ] {
        assert!(matches!(error, Some(TensorError::Dim { dim: 0, ndim: 0 })));
    }
    assert_eq!(scalar.permute([]).unwrap(), scalar);
    assert_eq!(scalar.cast(DType::F32).unwrap().item::<f32>().unwrap(), 1.0);
}
