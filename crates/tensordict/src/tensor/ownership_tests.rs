//! Reading, writing and releasing shared memory.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::smallvec;

use super::{Owner, Tensor};
use crate::{DType, TensorError};

/// Memory of someone else that counts how often it was given back.
struct Lease {
    values: Vec<f32>,
    returned: Arc<AtomicUsize>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.returned.fetch_add(1, Ordering::SeqCst);
    }
}

/// A tensor over `values` of a lease, and the count of returns.
fn leased(values: Vec<f32>) -> (Tensor, Arc<AtomicUsize>) {
    let returned = Arc::new(AtomicUsize::new(0));
    let count = values.len();
    let lease = Arc::new(Lease {
        values,
        returned: Arc::clone(&returned),
    });
    let ptr = NonNull::from(lease.values.as_slice()).cast::<u8>();
    let owner: Owner = lease;
    // SAFETY: the owner keeps the vector alive and nothing writes to it; it holds `count` aligned
    // floats.
    let tensor =
        unsafe { Tensor::from_raw(ptr, DType::F32, smallvec![count], smallvec![1], owner) };
    (tensor, returned)
}

#[test]
fn memory_goes_back_with_the_last_view() {
    let (tensor, returned) = leased(vec![1.0, 2.0, 3.0]);
    let view = tensor.slice(0, 1..).unwrap();
    let copy = view.detach();
    drop(tensor);
    assert_eq!(returned.load(Ordering::SeqCst), 0);
    assert_eq!(view.as_slice::<f32>().unwrap(), [2.0, 3.0]);
    drop(view);
    assert_eq!(returned.load(Ordering::SeqCst), 1);
    assert_eq!(copy.as_slice::<f32>().unwrap(), [2.0, 3.0]);
}

#[test]
fn reversed_foreign_memory_reads_backwards() {
    let (tensor, _) = leased(vec![1.0, 2.0, 3.0]);
    let owner = Arc::clone(tensor.owner());
    // SAFETY: the last of three floats, walked backwards, stays inside the lease.
    let last = unsafe { tensor.data_ptr().cast::<f32>().add(2).cast::<u8>() };
    // SAFETY: as above; the owner is the lease itself.
    let reversed =
        unsafe { Tensor::from_raw(last, DType::F32, smallvec![3], smallvec![-1], owner) };
    assert_eq!(reversed.to_vec::<f32>().unwrap(), [3.0, 2.0, 1.0]);
    assert_eq!(reversed, tensor.flip(0).unwrap());
    assert!(matches!(
        reversed.as_slice::<f32>(),
        Err(TensorError::NotContiguous { .. })
    ));
}

#[test]
fn only_heap_memory_held_alone_can_be_written() {
    let mut tensor = Tensor::zeros(DType::F32, [2, 2]).unwrap();
    tensor
        .as_mut_slice::<f32>()
        .unwrap()
        .copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(tensor.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert!(matches!(
        tensor.as_mut_slice::<i32>(),
        Err(TensorError::DType { .. })
    ));

    let other = tensor.clone();
    let error = tensor.as_mut_slice::<f32>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "memory of tensor [2, 2] is shared or borrowed and cannot be written, call detach() first"
    );
    drop(other);
    assert!(tensor.as_mut_slice::<f32>().is_ok());

    let weak = Arc::downgrade(tensor.owner());
    assert!(matches!(
        tensor.as_mut_slice::<f32>(),
        Err(TensorError::Shared { .. })
    ));
    drop(weak);

    let mut row = tensor.select(0, 1).unwrap();
    drop(tensor);
    row.as_mut_slice::<f32>().unwrap()[0] = 7.0;
    assert_eq!(row.to_vec::<f32>().unwrap(), [7.0, 4.0]);

    let mut turned = Tensor::zeros(DType::F32, [2, 3])
        .unwrap()
        .transpose(0, 1)
        .unwrap();
    assert!(matches!(
        turned.as_mut_slice::<f32>(),
        Err(TensorError::NotContiguous { .. })
    ));
    let mut wide = Tensor::scalar(1.0f32).expand([3]).unwrap();
    assert!(matches!(
        wide.as_mut_slice::<f32>(),
        Err(TensorError::NotContiguous { .. })
    ));

    let (mut foreign, _) = leased(vec![1.0]);
    assert!(matches!(
        foreign.as_mut_slice::<f32>(),
        Err(TensorError::Shared { .. })
    ));
}

#[test]
fn a_heap_owner_does_not_lend_other_memory_for_writing() {
    static OTHER: [i64; 1] = [5];
    let heap = Tensor::scalar(1i64);
    let owner = Arc::clone(heap.owner());
    drop(heap);
    let ptr = NonNull::from(&OTHER).cast::<u8>();
    // SAFETY: a static lives forever and is never written.
    let mut tensor = unsafe { Tensor::from_raw(ptr, DType::I64, smallvec![], smallvec![], owner) };
    assert!(matches!(
        tensor.as_mut_slice::<i64>(),
        Err(TensorError::Shared { .. })
    ));
}

#[test]
fn a_copy_into_spare_memory_is_one_whatever_the_layout_of_the_spare() {
    let source = Tensor::arange(10..16).unwrap().view([2, 3]).unwrap();
    let spare = |shape: &[usize]| Tensor::zeros(DType::I64, shape).unwrap();
    let spares = [
        ("row-major", spare(&[2, 3])),
        ("turned", spare(&[3, 2]).transpose(0, 1).unwrap()),
        ("with gaps", spare(&[2, 6]).step_by(1, 2).unwrap()),
        (
            "the middle of rows",
            spare(&[2, 5]).narrow(1, 1, 3).unwrap(),
        ),
        ("reversed", spare(&[2, 3]).flip(0).unwrap()),
        ("one row for all", spare(&[1, 3]).expand([2, 3]).unwrap()),
    ];
    for (layout, spare) in spares {
        assert_eq!(source.detach_into(spare), source, "{layout}");
    }
}

#[test]
fn spare_memory_that_somebody_sees_is_left_alone() {
    let source = Tensor::arange(10..13).unwrap();
    let spare = Tensor::arange(0..3).unwrap();
    let seen = spare.clone();
    assert_eq!(source.detach_into(spare), source);
    assert_eq!(seen.as_slice::<i64>().unwrap(), [0, 1, 2]);
    let alone = seen.data_ptr();
    assert_eq!(source.detach_into(seen).data_ptr(), alone);
}

#[test]
fn slices_check_dtype_and_layout() {
    let x = Tensor::arange(0..6).unwrap().view([2, 3]).unwrap();
    assert_eq!(x.as_slice::<i64>().unwrap(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(
        x.as_slice::<f32>().unwrap_err().to_string(),
        "expected dtype float32, got int64"
    );
    let column = x.select(1, 0).unwrap();
    assert_eq!(
        column.as_slice::<i64>().unwrap_err().to_string(),
        "tensor of shape [2] and strides [3] is not contiguous, call contiguous() first"
    );
    assert!(
        x.slice(1, 0..1)
            .unwrap()
            .slice(0, 0..1)
            .unwrap()
            .as_slice::<i64>()
            .is_ok()
    );
    assert!(
        Tensor::zeros(DType::F64, [0, 3])
            .unwrap()
            .as_slice::<f64>()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn single_elements() {
    let x = Tensor::arange(0..6).unwrap().view([2, 3]).unwrap();
    assert_eq!(x.get_at::<i64>(&[1, 2]).unwrap(), 5);
    assert!(matches!(
        x.get_at::<i64>(&[1]),
        Err(TensorError::IndexCount {
            expected: 2,
            got: 1
        })
    ));
    assert!(matches!(
        x.get_at::<i64>(&[0, 3]),
        Err(TensorError::Index {
            index: 3,
            dim: 1,
            size: 3
        })
    ));
    assert!(matches!(
        x.item::<i64>(),
        Err(TensorError::Count { got: 6, .. })
    ));
    assert_eq!(
        x.slice(0, 1..)
            .unwrap()
            .slice(1, 2..)
            .unwrap()
            .item::<i64>()
            .unwrap(),
        5
    );
}

#[test]
fn tensors_cross_threads() {
    fn check<T: Send + Sync + 'static>(_: &T) {}
    let (tensor, returned) = leased(vec![1.0, 2.0]);
    check(&tensor);
    let sum: f32 = std::thread::spawn(move || tensor.iter::<f32>().unwrap().sum())
        .join()
        .unwrap();
    assert_eq!(sum, 3.0);
    assert_eq!(returned.load(Ordering::SeqCst), 1);
}
