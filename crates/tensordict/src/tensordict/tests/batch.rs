//! Batch sizes, names of dimensions, and operations on all tensors at once.

use super::{grid, names, sample};
use crate::{DType, Entry, Tensor, TensorDict, TensorError};

#[test]
fn names_follow_the_dimensions() {
    let dict = sample();
    assert_eq!(names(&dict), [None, Some("time")]);
    assert_eq!(
        names(dict.get_dict(("next", "extra")).unwrap()),
        [None, Some("time"), None]
    );
    assert_eq!(names(&dict.index(0).unwrap()), [Some("time")]);
    assert_eq!(names(&dict.transpose(0, 1).unwrap()), [Some("time"), None]);
    assert_eq!(
        names(&dict.unsqueeze(1).unwrap()),
        [None, None, Some("time")]
    );
    assert_eq!(names(&dict.flatten().unwrap()), [None]);
    assert_eq!(names(&dict.reshape([2, 3]).unwrap()), [None, Some("time")]);
    assert_eq!(names(&dict.narrow(1, 0, 2).unwrap()), [None, Some("time")]);
    let stacked = TensorDict::stack(&[&dict, &dict], 0).unwrap();
    assert_eq!(names(&stacked), [None, None, Some("time")]);
    let error = sample().with_names(&[Some("time")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "expected one name for each of 2 batch dimensions, got 1"
    );
}

#[test]
fn batch_size_can_change_while_entries_fit() {
    let mut dict = sample();
    dict.set_batch_size([2]).unwrap();
    assert_eq!(names(&dict), [None]);
    assert_eq!(dict.get_dict("next").unwrap().batch_size(), [2, 3]);
    dict.set_batch_size([2, 3]).unwrap();
    assert_eq!(names(&dict), [None, None]);
    let before = dict.clone();
    assert!(matches!(
        dict.set_batch_size([2, 3, 4]),
        Err(TensorError::Batch { .. })
    ));
    assert!(dict.set_batch_size([3]).is_err());
    assert_eq!(dict, before);
    let mut flat = TensorDict::new([]);
    flat.set(("a", "b"), grid(&[5, 2])).unwrap();
    flat.set_batch_size([5]).unwrap();
    assert_eq!(flat.get_dict("a").unwrap().batch_size(), [5]);
    assert_eq!(
        flat.set_batch_size([5, 3]).unwrap_err().to_string(),
        r#"entry ("a", "b"): shape [5, 2] does not start with batch size [5, 3]"#
    );
}

/// Checks that `op` on the dict equals the same operation on each tensor, and gives every dict a
/// batch size that fits.
fn check_leaves(dict: &TensorDict, got: &TensorDict, op: impl Fn(&Tensor) -> Tensor) {
    assert_eq!(got.leaves().count(), dict.leaves().count());
    for (key, tensor) in dict.leaves() {
        assert_eq!(got.get(&key).unwrap(), &op(tensor), "{key}");
    }
    check_batches(got);
}

fn check_batches(dict: &TensorDict) {
    assert_eq!(dict.names().len(), dict.ndim());
    for (name, entry) in dict.entries() {
        assert!(entry.shape().starts_with(dict.batch_size()), "{name}");
        if let Entry::Dict(inner) = entry {
            check_batches(inner);
        }
    }
}

#[test]
fn views_apply_to_every_tensor() {
    let dict = sample();
    check_leaves(&dict, &dict.select_index(1, 2).unwrap(), |x| {
        x.select(1, 2).unwrap()
    });
    check_leaves(&dict, &dict.slice(1, 1..).unwrap(), |x| {
        x.slice(1, 1..).unwrap()
    });
    check_leaves(&dict, &dict.index_select(0, &[1, 1, 0]).unwrap(), |x| {
        x.index_select(0, &[1, 1, 0]).unwrap()
    });
    check_leaves(&dict, &dict.transpose(0, 1).unwrap(), |x| {
        x.transpose(0, 1).unwrap()
    });
    check_leaves(&dict, &dict.unsqueeze(2).unwrap(), |x| {
        x.unsqueeze(2).unwrap()
    });
    check_leaves(
        &dict,
        &dict.unsqueeze(2).unwrap().squeeze(2).unwrap(),
        Tensor::clone,
    );
    check_leaves(&dict, &dict.contiguous(), Tensor::clone);
    check_leaves(&dict, &dict.detach(), Tensor::detach);
    check_leaves(&dict, &dict.flatten().unwrap(), |x| {
        x.reshape([&[6], &x.shape()[2..]].concat()).unwrap()
    });
    check_leaves(&dict, &dict.expand([5, 2, 3]).unwrap(), |x| {
        x.expand([&[5], x.shape()].concat()).unwrap()
    });
    let mask = Tensor::from_vec(vec![true, false, true, false, false, true], [2, 3]).unwrap();
    let masked = dict.masked_select(&mask).unwrap();
    assert_eq!(masked.batch_size(), [3]);
    assert_eq!(
        masked.get_dict(("next", "extra")).unwrap().batch_size(),
        [3, 2]
    );
    check_leaves(&dict, &masked, |x| x.masked_select(&mask).unwrap());
    let rows = Tensor::from_vec(vec![false, true], [2]).unwrap();
    check_leaves(&dict, &dict.masked_select(&rows).unwrap(), |x| {
        x.masked_select(&rows).unwrap()
    });
    assert_eq!(dict.split(1, 2).unwrap().len(), 2);
    assert_eq!(
        TensorDict::cat(&dict.chunk(1, 2).unwrap(), 1).unwrap(),
        dict
    );
    check_leaves(&dict, &dict.slice(1, 3..).unwrap(), |x| {
        x.slice(1, 3..).unwrap()
    });
}

#[test]
fn views_are_limited_to_batch_dimensions() {
    let dict = sample();
    for error in [
        dict.select_index(2, 0).unwrap_err(),
        dict.narrow(2, 0, 1).unwrap_err(),
        dict.transpose(0, 2).unwrap_err(),
        dict.unsqueeze(3).unwrap_err(),
        dict.squeeze(2).unwrap_err(),
        dict.index_select(2, &[0]).unwrap_err(),
        TensorDict::new([]).index(0).unwrap_err(),
        TensorDict::stack(&[&dict], 3).unwrap_err(),
        TensorDict::cat(&[&dict], 2).unwrap_err(),
    ] {
        assert!(matches!(error, TensorError::Dim { .. }), "{error}");
    }
    assert!(matches!(dict.reshape([5]), Err(TensorError::Shape { .. })));
    assert!(matches!(
        dict.expand([3, 3]),
        Err(TensorError::Shape { .. })
    ));
    assert!(matches!(dict.expand([3]), Err(TensorError::Shape { .. })));
    assert!(matches!(dict.index(2), Err(TensorError::Index { .. })));
    assert!(matches!(
        dict.masked_select(&grid(&[2])),
        Err(TensorError::DType { .. })
    ));
    let wrong = Tensor::full([2, 3, 4], true).unwrap();
    assert!(matches!(
        dict.masked_select(&wrong),
        Err(TensorError::Shape { .. })
    ));
}

#[test]
fn stack_and_cat() {
    let dict = sample();
    let stacked = TensorDict::stack(&[dict.clone(), dict.clone()], 1).unwrap();
    assert_eq!(stacked.batch_size(), [2, 2, 3]);
    assert_eq!(stacked.select_index(1, 1).unwrap(), dict);
    check_batches(&stacked);
    let joined = TensorDict::cat(&[&dict, &dict.narrow(0, 0, 1).unwrap()], 0).unwrap();
    assert_eq!(joined.batch_size(), [3, 3]);
    assert_eq!(joined.narrow(0, 0, 2).unwrap(), dict);
    check_batches(&joined);
}

#[test]
fn unlike_dicts_are_refused() {
    let dict = sample();
    let mut other = dict.clone();
    other.rename_key("obs", "image").unwrap();
    assert_eq!(
        TensorDict::stack(&[&dict, &dict, &other], 0)
            .unwrap_err()
            .to_string(),
        r#"stack: entries of dict 2 differ from those of the first, missing ["obs"], extra ["image"]"#
    );
    assert!(matches!(
        TensorDict::stack::<TensorDict>(&[], 0),
        Err(TensorError::Nothing { .. })
    ));
    assert!(matches!(
        TensorDict::cat::<&TensorDict>(&[], 0),
        Err(TensorError::Nothing { .. })
    ));
    let narrow = dict.narrow(1, 0, 1).unwrap();
    assert!(matches!(
        TensorDict::stack(&[&dict, &narrow], 0),
        Err(TensorError::Shape { .. })
    ));
    assert!(matches!(
        TensorDict::cat(&[&dict, &narrow], 0),
        Err(TensorError::Shape { .. })
    ));
    let mut floats = dict.clone();
    floats
        .set(
            ("next", "obs"),
            Tensor::zeros(DType::F32, [2, 3, 4]).unwrap(),
        )
        .unwrap();
    assert_eq!(
        TensorDict::cat(&[&dict, &floats], 0)
            .unwrap_err()
            .to_string(),
        r#"entry ("next", "obs"): expected dtype int64, got float32"#
    );
    let mut kinds = dict.clone();
    kinds.set("obs", TensorDict::new([2, 3])).unwrap();
    assert!(matches!(
        TensorDict::cat(&[&dict, &kinds], 0),
        Err(TensorError::NotATensor { .. })
    ));
    assert!(matches!(
        TensorDict::cat(&[&kinds, &dict], 0),
        Err(TensorError::NotADict { .. })
    ));
}

#[test]
fn map_sees_keys_and_checks_results() {
    let dict = sample();
    let floats = dict.map(|_, tensor| tensor.cast(DType::F32)).unwrap();
    assert!(
        floats
            .leaves()
            .all(|(_, tensor)| tensor.dtype() == DType::F32)
    );
    let mut seen = Vec::new();
    dict.map(|key, tensor| {
        seen.push(key.to_string());
        Ok(tensor.clone())
    })
    .unwrap();
    assert_eq!(seen.len(), 4);
    assert!(matches!(
        dict.map(|_, tensor| tensor.select(0, 0)),
        Err(TensorError::Batch { .. })
    ));
    let error = dict.map(|_, tensor| tensor.select(3, 0)).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(r#"entry ("next", "obs"): dimension 3"#),
        "{error}"
    );
}

#[test]
fn allclose_compares_every_tensor() {
    let dict = sample().map(|_, tensor| tensor.cast(DType::F64)).unwrap();
    let near = dict
        .map(|_, tensor| Tensor::from_array(&(&tensor.array::<f64>()? + 1e-9)))
        .unwrap();
    assert!(dict.allclose(&near, 0.0, 1e-6).unwrap());
    assert!(!dict.allclose(&near, 0.0, 1e-12).unwrap());
    assert!(matches!(
        dict.allclose(&dict.exclude(&["obs"]), 0.0, 0.0),
        Err(TensorError::Keys { .. })
    ));
    assert!(matches!(
        dict.allclose(&dict.index(0).unwrap(), 0.0, 0.0),
        Err(TensorError::Shape { .. })
    ));
}

#[test]
fn a_copy_takes_spare_memory_that_fits_and_nobody_sees() {
    let dict = sample().transpose(0, 1).unwrap();
    let addresses = |dict: &TensorDict| -> Vec<_> {
        dict.leaves()
            .map(|(_, tensor)| tensor.data_ptr().addr())
            .collect()
    };
    let spare = dict.detach();
    let its = addresses(&spare);
    let copy = dict.detach_into(spare);
    assert_eq!(copy, dict);
    assert_eq!(names(&copy), names(&dict));
    assert_eq!(addresses(&copy), its);

    let seen = copy.clone();
    let other = dict.map(|_, tensor| Ok(tensor.flip(0)?.contiguous()));
    let other = other.unwrap().detach_into(copy);
    assert_ne!(other, seen);
    assert_eq!(seen, dict);

    let empty = dict.detach_into(TensorDict::new([2]));
    assert_eq!(empty, dict);
}
