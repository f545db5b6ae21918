//! Round trips, files of other libraries, and broken files.

use std::collections::HashMap;
use std::fs;

use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::{DType, Entry, NestedKey, Tensor, TensorDict, TensorError};

fn sample() -> TensorDict {
    let mut dict = TensorDict::new([2, 3])
        .with_names(&[None, Some("time")])
        .unwrap();
    for dtype in DType::NUMBERS {
        let values = Tensor::arange(0..6)
            .unwrap()
            .view([2, 3])
            .unwrap()
            .cast(dtype)
            .unwrap();
        dict.set(dtype.name(), values).unwrap();
    }
    dict.set(("next", "reward"), Tensor::full([2, 3, 1], 0.5f32).unwrap())
        .unwrap();
    dict.set("empty", TensorDict::new([2, 3, 4])).unwrap();
    dict.set(
        ("next", "deep", "turned"),
        Tensor::arange(0..6)
            .unwrap()
            .view([3, 2])
            .unwrap()
            .transpose(0, 1)
            .unwrap(),
    )
    .unwrap();
    dict.set("nothing", Tensor::zeros(DType::F64, [2, 3, 0, 5]).unwrap())
        .unwrap();
    dict
}

#[test]
fn everything_comes_back() {
    let dict = sample();
    let back = TensorDict::from_bytes(&dict.to_bytes().unwrap()).unwrap();
    assert_eq!(back, dict);
    assert_eq!(back.get_dict("empty").unwrap().batch_size(), [2, 3, 4]);
    let empty = TensorDict::new([0, 4])
        .with_names(&[Some("time"), None])
        .unwrap();
    assert_eq!(
        TensorDict::from_bytes(&empty.to_bytes().unwrap()).unwrap(),
        empty
    );
}

#[test]
fn tensors_with_gaps_are_written_in_row_major_order() {
    let mut dict = TensorDict::new([]);
    let values = Tensor::arange(0..60_000).unwrap();
    for (name, shape) in [("many rows", [30_000, 2]), ("large rows", [3, 20_000])] {
        let turned = values.view(shape).unwrap().transpose(0, 1).unwrap();
        dict.set(name, turned).unwrap();
    }
    let turned = values.view([10, 6, 1_000]).unwrap();
    dict.set("rows without gaps", turned.transpose(0, 1).unwrap())
        .unwrap();
    let column = values.view([20_000, 3]).unwrap().select(1, 2).unwrap();
    dict.set("one dimension", column).unwrap();
    let back = TensorDict::from_bytes(&dict.to_bytes().unwrap()).unwrap();
    assert!(back.same_bits(&dict));
}

#[test]
fn equal_dicts_give_equal_bytes() {
    assert_eq!(sample().to_bytes().unwrap(), sample().to_bytes().unwrap());
}

#[test]
fn loaded_tensors_are_aligned_and_writable() {
    let mut back = TensorDict::from_bytes(&sample().to_bytes().unwrap()).unwrap();
    assert!(
        back.leaves()
            .all(|(_, tensor)| tensor.data_ptr().addr().get() % 64 == 0)
    );
    back.as_mut_slice::<f32>("float32").unwrap()[0] = 9.0;
}

/// The dict in `bytes` as views of a block that begins `offset` bytes behind an aligned place.
fn viewed(bytes: &[u8], offset: usize) -> (Tensor, Result<TensorDict, TensorError>) {
    let block = [&vec![0; offset][..], bytes].concat();
    let block = Tensor::from_slice(&block, [block.len()]).unwrap();
    let block = block.slice(0, offset..).unwrap();
    let read = TensorDict::views_of_bytes(&block);
    (block, read)
}

#[test]
fn a_block_is_read_as_views_where_its_numbers_are_aligned() {
    let bytes = sample().to_bytes().unwrap();
    for (offset, aligned) in [(0, 8), (8, 8), (4, 4), (1, 1)] {
        let (block, read) = viewed(&bytes, offset);
        let (read, start) = (read.unwrap(), block.data_ptr().addr().get());
        assert!(read.same_bits(&sample()), "{read}");
        assert_eq!(read.names(), sample().names());
        for (key, tensor) in read.leaves() {
            let at = tensor.data_ptr().addr().get();
            let is_view = (start..=start + block.byte_len()).contains(&at);
            assert_eq!(is_view, tensor.dtype().size() <= aligned, "{key}");
        }
    }
}

#[test]
fn a_block_that_is_damaged_is_an_error_or_another_dict_within_it() {
    let bytes = sample().to_bytes().unwrap();
    for at in 0..bytes.len() {
        assert!(viewed(&bytes[..at], 0).1.is_err(), "cut at {at}");
        let mut changed = bytes.clone();
        changed[at] ^= 3;
        if let (_, Ok(dict)) = viewed(&changed, 0) {
            dict.leaves().for_each(|(_, tensor)| drop(tensor.detach()));
        }
    }
    let file = plain(&[("b", Dtype::BOOL, &[3], &[1, 0, 2])], None);
    let error = viewed(&file, 0).1.unwrap_err();
    assert!(
        matches!(error.root(), TensorError::BoolByte { byte: 2, index: 2 }),
        "{error}"
    );
}

#[test]
fn names_that_look_alike_stay_apart() {
    let mut dict = TensorDict::new([]);
    dict.set(("a", "b"), Tensor::scalar(1i64)).unwrap();
    for (i, name) in ["a.b", "a.b#2", "__metadata__", "", ".", "\"q\"\n", "é"]
        .iter()
        .enumerate()
    {
        dict.set(*name, Tensor::scalar(i as i64)).unwrap();
    }
    dict.set(("", ""), Tensor::scalar(0i64)).unwrap_err();
    dict.set(("x", "", "y"), Tensor::scalar(7i64)).unwrap();
    assert_eq!(
        TensorDict::from_bytes(&dict.to_bytes().unwrap()).unwrap(),
        dict
    );
}

#[test]
fn other_libraries_read_the_plain_names() {
    let bytes = sample().to_bytes().unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let reward = file.tensor("next.reward").unwrap();
    assert_eq!(
        (reward.dtype(), reward.shape()),
        (Dtype::F32, &[2, 3, 1][..])
    );
    for (name, view) in file.iter() {
        let at = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
        assert_eq!(
            at % (view.dtype().bitsize() / 8),
            0,
            "{name} is aligned in the file"
        );
    }
}

fn plain(tensors: &[(&str, Dtype, &[usize], &[u8])], metadata: Option<&str>) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (
            *name,
            TensorView::new(*dtype, shape.to_vec(), data).unwrap(),
        )
    });
    let metadata =
        metadata.map(|text| HashMap::from([("windrow.tensordict".to_owned(), text.to_owned())]));
    safetensors::serialize(views, metadata).unwrap()
}

#[test]
fn dicts_that_lie_too_deep_are_neither_read_nor_written() {
    let file = |depth: usize| {
        let dicts = (0..=depth).map(|names| {
            let path = vec![r#""d""#; names].join(",");
            format!(r#"{{"path":[{path}],"batch_size":[],"names":[]}}"#)
        });
        let dicts = dicts.collect::<Vec<_>>().join(",");
        let text = format!(r#"{{"version":1,"tensors":{{}},"dicts":[{dicts}]}}"#);
        plain(&[], Some(&text))
    };
    let deep = |depth: usize| {
        (0..depth).fold(TensorDict::new([]), |inner, _| {
            let mut outer = TensorDict::new([]);
            outer.set("d", inner).unwrap();
            outer
        })
    };
    assert_eq!(TensorDict::from_bytes(&file(100)).unwrap(), deep(100));
    let errors = [
        TensorDict::from_bytes(&file(101)).unwrap_err(),
        deep(101).to_bytes().unwrap_err(),
    ];
    for error in errors {
        let error = error.to_string();
        assert!(error.contains("at most 100 deep"), "{error}");
    }
}

#[test]
fn files_of_other_libraries_are_flat() {
    let bytes = plain(
        &[
            ("0.weight", Dtype::F32, &[1, 2], &[0; 8]),
            ("0.bias", Dtype::I64, &[], &[0; 8]),
        ],
        None,
    );
    let dict = TensorDict::from_bytes(&bytes).unwrap();
    assert_eq!(dict.keys().collect::<Vec<_>>(), ["0.bias", "0.weight"]);
    assert_eq!(dict.batch_size(), [0usize; 0]);
    assert_eq!(
        dict.get("0.weight").unwrap(),
        &Tensor::zeros(DType::F32, [1, 2]).unwrap()
    );
}

#[test]
fn floats_of_two_bytes_are_read_as_float32_with_their_values() {
    let read = |dtype, bits: &[u16]| {
        let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let file = plain(&[("w", dtype, &[bits.len()], &bytes)], None);
        let dict = TensorDict::from_bytes(&file).unwrap();
        dict.get("w").unwrap().to_vec::<f32>().unwrap()
    };
    let bf16 = read(
        Dtype::BF16,
        &[0x3f80, 0xc020, 0x0000, 0x8000, 0x0001, 0x7f80],
    );
    let tiny = 2.0_f32.powi(-133);
    assert_eq!(bf16, [1.0, -2.5, 0.0, -0.0, tiny, f32::INFINITY]);
    assert!(bf16[3].is_sign_negative());
    let f16 = read(
        Dtype::F16,
        &[
            0x3c00, 0xc100, 0x8000, 0x3555, 0x7bff, 0x0400, 0x03ff, 0x8001, 0xfc00,
        ],
    );
    let (normal, small) = (2.0_f32.powi(-14), 2.0_f32.powi(-24));
    assert_eq!(
        f16,
        [
            1.0,
            -2.5,
            0.0,
            0.333_251_95,
            65504.0,
            normal,
            1023.0 * small,
            -small,
            f32::NEG_INFINITY
        ]
    );
    assert!(f16[2].is_sign_negative());
    assert!(read(Dtype::F16, &[0x7e00])[0].is_nan());
    assert!(read(Dtype::BF16, &[0x7fc0])[0].is_nan());
}

#[test]
fn a_hand_written_file_with_odd_offsets_loads() {
    let header = concat!(
        r#"{"b":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},"#,
        r#""x":{"dtype":"I32","shape":[1],"data_offsets":[1,5]}}"#
    );
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&[1, 7, 0, 0, 0]);
    let dict = TensorDict::from_bytes(&bytes).unwrap();
    assert!(dict.get("b").unwrap().item::<bool>().unwrap());
    assert_eq!(dict.get("x").unwrap().item::<i32>().unwrap(), 7);
}

#[test]
fn unsupported_types_and_bad_bools_name_the_tensor() {
    let error =
        TensorDict::from_bytes(&plain(&[("h", Dtype::U16, &[1], &[0; 2])], None)).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"entry "h": expected one of the supported dtypes, got U16"#
    );
    assert!(matches!(error.root(), TensorError::UnsupportedDType { .. }));
    let error =
        TensorDict::from_bytes(&plain(&[("b", Dtype::BOOL, &[3], &[1, 0, 2])], None)).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"entry "b": expected bool bytes of 0 or 1, got 2 at element 2"#
    );
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = sample().to_bytes().unwrap();
    for len in 0..bytes.len() {
        let error = TensorDict::from_bytes(&bytes[..len]).unwrap_err();
        assert!(
            matches!(error, TensorError::Corrupt { .. }),
            "{len}: {error}"
        );
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(
        TensorDict::from_bytes(&longer),
        Err(TensorError::Corrupt { .. })
    ));
}

#[test]
fn layouts_that_do_not_fit_the_file_are_refused() {
    let root = r#"{"path":[],"batch_size":[],"names":[]}"#;
    let cases = [
        "no json".to_owned(),
        r#"{"version":2,"dicts":[],"tensors":{}}"#.to_owned(),
        r#"{"version":1,"dicts":[],"tensors":{"x":["x"]}}"#.to_owned(),
        format!(r#"{{"version":1,"dicts":[{root}],"tensors":{{}}}}"#),
        format!(r#"{{"version":1,"dicts":[{root}],"tensors":{{"y":["x"]}}}}"#),
        format!(r#"{{"version":1,"dicts":[{root}],"tensors":{{"x":[]}}}}"#),
        format!(r#"{{"version":1,"dicts":[{root}],"tensors":{{"x":[1]}}}}"#),
        format!(r#"{{"version":1,"dicts":[{root}],"tensors":{{"x":["d","x"]}}}}"#),
        format!(r#"{{"version":1,"dicts":[{root},{root}],"tensors":{{"x":["x"]}}}}"#),
        r#"{"version":1,"dicts":[{"path":[],"batch_size":[-1],"names":[null]}],"tensors":{"x":["x"]}}"#.to_owned(),
        r#"{"version":1,"dicts":[{"path":[],"batch_size":[],"names":[3]}],"tensors":{"x":["x"]}}"#.to_owned(),
        format!(
            r#"{{"version":1,"dicts":[{root},{{"path":["a","b"],"batch_size":[],"names":[]}}],"tensors":{{"x":["x"]}}}}"#
        ),
    ];
    for text in cases {
        let bytes = plain(&[("x", Dtype::U8, &[1], &[0])], Some(&text));
        let error = TensorDict::from_bytes(&bytes).unwrap_err();
        assert!(
            matches!(error, TensorError::Corrupt { .. }),
            "{text}: {error}"
        );
    }
    let wrong_batch = r#"{"version":1,"dicts":[{"path":[],"batch_size":[9],"names":[null]}],"tensors":{"x":["x"]}}"#;
    let bytes = plain(&[("x", Dtype::U8, &[1], &[0])], Some(wrong_batch));
    assert!(matches!(
        TensorDict::from_bytes(&bytes),
        Err(TensorError::Batch { .. })
    ));
}

#[test]
fn saving_replaces_whole_files_and_leaves_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("batch.safetensors");
    fs::write(&path, b"old").unwrap();
    sample().save(&path).unwrap();
    assert_eq!(TensorDict::load(&path).unwrap(), sample());
    let names: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["batch.safetensors"]);
}

#[test]
fn failed_saves_leave_nothing_and_name_the_path() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("no/such/file");
    let error = sample().save(&missing).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&missing.display().to_string()),
        "{error}"
    );
    assert!(matches!(error.root(), TensorError::Io { .. }));
    // A directory cannot be replaced by a file: the rename fails after everything was written.
    let taken = directory.path().join("taken");
    fs::create_dir(&taken).unwrap();
    assert!(sample().save(&taken).is_err());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn loading_says_which_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bad");
    assert!(matches!(
        TensorDict::load(&path).unwrap_err().root(),
        TensorError::Io { .. }
    ));
    fs::write(&path, b"nonsense").unwrap();
    let error = TensorDict::load(&path).unwrap_err();
    assert!(matches!(&error, TensorError::File { path: at, .. } if *at == path));
    assert!(matches!(error.root(), TensorError::Corrupt { .. }));
}

fn any_tensor(batch: Vec<usize>) -> impl Strategy<Value = Tensor> {
    (
        0..DType::NUMBERS.len(),
        prop::collection::vec(0usize..3, 0..3),
        -9i64..9,
    )
        .prop_map(move |(dtype, rest, first)| {
            let shape = [batch.clone(), rest].concat();
            let count = shape.iter().product::<usize>() as i64;
            Tensor::arange(first..first + count)
                .unwrap()
                .view(shape)
                .unwrap()
                .cast(DType::NUMBERS[dtype])
                .unwrap()
        })
}

fn any_dict(depth: u32) -> BoxedStrategy<TensorDict> {
    prop::collection::vec(0usize..3, 0..3)
        .prop_flat_map(move |batch| dict_of(batch, depth))
        .boxed()
}

fn dict_of(batch: Vec<usize>, depth: u32) -> BoxedStrategy<TensorDict> {
    let leaf = any_tensor(batch.clone()).prop_map(Entry::from);
    let entry = if depth == 0 {
        leaf.boxed()
    } else {
        let inner = batch.clone();
        let nested = prop::collection::vec(0usize..3, 0..2)
            .prop_flat_map(move |more| dict_of([inner.clone(), more].concat(), depth - 1))
            .prop_map(Entry::from);
        prop_oneof![2 => leaf, 1 => nested].boxed()
    };
    let names = prop::collection::vec(prop::option::of("[a-z.]{0,3}"), batch.len());
    (prop::collection::vec(("[a-c.#]{0,3}", entry), 0..4), names)
        .prop_map(move |(entries, names)| {
            let mut dict = TensorDict::new(&batch);
            for (name, entry) in entries {
                dict.set(NestedKey::from(name), entry).unwrap();
            }
            let names: Vec<Option<&str>> = names.iter().map(Option::as_deref).collect();
            dict.with_names(&names).unwrap()
        })
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 128 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_dict_comes_back(dict in any_dict(2)) {
        prop_assert_eq!(TensorDict::from_bytes(&dict.to_bytes().unwrap()).unwrap(), dict);
    }

    #[test]
    fn damaged_bytes_never_panic(at in 0usize..2000, byte in any::<u8>()) {
        let mut bytes = sample().to_bytes().unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = TensorDict::from_bytes(&bytes);
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(TensorDict::from_bytes(&bytes).is_err());
    }
}
