//! Finding, setting, choosing and merging by key.

use proptest::prelude::*;

use super::{grid, names, sample};
use crate::{Entry, NestedKey, Tensor, TensorDict, TensorError};

#[test]
fn keys_of_every_spelling_find_entries() {
    let dict = sample();
    let key = NestedKey::from(("next", "obs"));
    for found in [
        dict.get(("next", "obs")),
        dict.get(["next", "obs"]),
        dict.get(&["next", "obs"][..]),
        dict.get(&key),
        dict.get(key.clone()),
    ] {
        assert_eq!(found.unwrap().shape(), [2, 3, 4]);
    }
    assert_eq!(
        dict.get(("next", "extra", "x")).unwrap().shape(),
        [2, 3, 2, 1]
    );
    assert_eq!(dict.get(String::from("obs")).unwrap().len(), 24);
    assert_eq!(dict.as_slice::<i64>("step").unwrap(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(
        dict.as_slice::<f32>(("next", "obs"))
            .unwrap_err()
            .to_string(),
        r#"entry ("next", "obs"): expected dtype float32, got int64"#
    );
    assert!(
        dict.contains_key("next")
            && !dict.contains_key("reward")
            && !dict.contains_key(("obs", "x"))
    );
}

#[test]
fn keys_and_leaves_are_sorted_depth_first() {
    let dict = sample();
    assert_eq!(dict.keys().collect::<Vec<_>>(), ["next", "obs", "step"]);
    let leaves: Vec<String> = dict.leaves().map(|(key, _)| key.to_string()).collect();
    assert_eq!(
        leaves,
        [
            r#"("next", "extra", "x")"#,
            r#"("next", "obs")"#,
            "obs",
            "step"
        ]
    );
    assert_eq!((dict.len(), dict.ndim(), dict.numel()), (3, 2, 6));
    assert!(TensorDict::new([]).is_empty());
    assert_eq!(TensorDict::new([]).numel(), 1);
    assert_eq!(TensorDict::new([usize::MAX, 3]).numel(), usize::MAX);
    assert_eq!(TensorDict::new([usize::MAX, 3, 0]).numel(), 0);
}

#[test]
fn missing_keys_suggest_what_there_is() {
    let dict = sample();
    assert_eq!(
        dict.get("stpe").unwrap_err().to_string(),
        r#"no entry "stpe", did you mean "step"? available: ["next", "obs", "step"]"#
    );
    assert_eq!(
        dict.get(("next", "obz")).unwrap_err().to_string(),
        r#"no entry ("next", "obz"), did you mean ("next", "obs")? available: ["extra", "obs"]"#
    );
    assert_eq!(
        dict.get("x").unwrap_err().to_string(),
        r#"no entry "x", did you mean ("next", "extra", "x")? available: ["next", "obs", "step"]"#
    );
    assert_eq!(
        TensorDict::new([]).get("a").unwrap_err().to_string(),
        r#"no entry "a", the dict is empty"#
    );
}

#[test]
fn tensors_and_dicts_are_told_apart() {
    let mut dict = sample();
    assert_eq!(
        dict.get("next").unwrap_err().to_string(),
        r#"entry "next" is a dict, expected a tensor"#
    );
    assert_eq!(
        dict.get_dict("obs").unwrap_err().to_string(),
        r#"entry "obs" is a tensor, expected a dict"#
    );
    assert!(matches!(
        dict.get(("obs", "x")),
        Err(TensorError::NotADict { .. })
    ));
    assert!(matches!(
        dict.as_mut_slice::<i64>(("obs", "x")),
        Err(TensorError::NotADict { .. })
    ));
    assert!(matches!(
        dict.as_mut_slice::<i64>("next"),
        Err(TensorError::NotATensor { .. })
    ));
    assert!(matches!(
        dict.set(("obs", "x"), grid(&[2, 3])),
        Err(TensorError::NotADict { .. })
    ));
    assert!(matches!(dict.get(&[][..]), Err(TensorError::EmptyKey)));
    assert!(matches!(
        dict.set(&[][..], grid(&[2, 3])),
        Err(TensorError::EmptyKey)
    ));
    assert!(matches!(dict.remove(&[][..]), Err(TensorError::EmptyKey)));
    assert!(matches!(
        dict.select(&[&[][..]]),
        Err(TensorError::EmptyKey)
    ));
}

#[test]
fn shapes_must_start_with_the_batch_size() {
    let mut dict = sample();
    let before = dict.clone();
    assert_eq!(
        dict.set(("next", "new", "bad"), grid(&[3, 2]))
            .unwrap_err()
            .to_string(),
        r#"entry ("next", "new", "bad"): shape [3, 2] does not start with batch size [2, 3]"#
    );
    assert!(dict.set("bad", TensorDict::new([2])).is_err());
    assert_eq!(dict, before, "a refused entry leaves no dicts behind");
    dict.set(("next", "new", "good"), grid(&[2, 3])).unwrap();
    assert_eq!(dict.get_dict(("next", "new")).unwrap().batch_size(), [2, 3]);
    assert_eq!(
        names(dict.get_dict(("next", "new")).unwrap()),
        [None, Some("time")]
    );
}

#[test]
fn set_replaces_and_chains() {
    let mut dict = TensorDict::new([]);
    dict.set("a", Tensor::scalar(1i64))
        .unwrap()
        .set("a", Tensor::scalar(2i64))
        .unwrap();
    assert_eq!(dict.len(), 1);
    assert_eq!(dict.get("a").unwrap().item::<i64>().unwrap(), 2);
    dict.as_mut_slice::<i64>("a").unwrap()[0] = 3;
    assert_eq!(dict.get("a").unwrap().item::<i64>().unwrap(), 3);
    let seen_elsewhere = dict.clone();
    assert_eq!(
        dict.as_mut_slice::<i64>("a").unwrap_err().to_string(),
        r#"entry "a": memory of tensor [] is shared or borrowed and cannot be written, call detach() first"#
    );
    drop(seen_elsewhere);
}

#[test]
fn remove_and_rename() {
    let mut dict = sample();
    assert!(matches!(
        dict.remove(("next", "obs")).unwrap(),
        Entry::Tensor(_)
    ));
    assert!(matches!(
        dict.remove(("next", "obs")),
        Err(TensorError::Missing { .. })
    ));
    dict.rename_key("step", ("next", "count")).unwrap();
    assert_eq!(dict.get(("next", "count")).unwrap().shape(), [2, 3]);
    assert!(matches!(
        dict.rename_key("obs", "next"),
        Err(TensorError::Exists { .. })
    ));
    assert!(matches!(
        dict.rename_key("next", ("next", "inner")),
        Err(TensorError::Exists { .. })
    ));
    assert!(matches!(
        dict.rename_key("gone", "x"),
        Err(TensorError::Missing { .. })
    ));
    assert!(dict.get_dict("next").is_ok());
}

#[test]
fn select_and_exclude() {
    let dict = sample();
    let chosen = dict
        .select(&[
            NestedKey::from("step"),
            NestedKey::from(("next", "extra", "x")),
        ])
        .unwrap();
    let leaves: Vec<String> = chosen.leaves().map(|(key, _)| key.to_string()).collect();
    assert_eq!(leaves, [r#"("next", "extra", "x")"#, "step"]);
    assert_eq!(
        chosen.get_dict(("next", "extra")).unwrap().batch_size(),
        [2, 3, 2]
    );
    assert_eq!(
        dict.select(&["next"]).unwrap().get_dict("next").unwrap(),
        dict.get_dict("next").unwrap()
    );
    assert!(matches!(
        dict.select(&["gone"]),
        Err(TensorError::Missing { .. })
    ));
    assert_eq!(
        dict.select(&[("next", "obs", "x")])
            .unwrap_err()
            .to_string(),
        r#"entry ("next", "obs") is a tensor, expected a dict"#
    );
    let rest = dict.exclude(&[("next", "extra"), ("no", "such")]);
    assert!(!rest.contains_key(("next", "extra")) && rest.contains_key(("next", "obs")));
}

#[test]
fn flatten_and_unflatten_keys() {
    let dict = sample();
    let flat = dict.flatten_keys(".").unwrap();
    assert_eq!(
        flat.keys().collect::<Vec<_>>(),
        ["next.extra.x", "next.obs", "obs", "step"]
    );
    let nested = flat.unflatten_keys(".").unwrap();
    assert_eq!(
        nested.get(("next", "extra", "x")).unwrap(),
        dict.get(("next", "extra", "x")).unwrap()
    );
    assert!(flat.unflatten_keys("").is_err());

    let mut clash = TensorDict::new([]);
    clash
        .set("a.b", Tensor::scalar(1u8))
        .unwrap()
        .set(("a", "b"), Tensor::scalar(2u8))
        .unwrap();
    assert!(matches!(
        clash.flatten_keys("."),
        Err(TensorError::Exists { .. })
    ));
    assert!(matches!(
        clash.unflatten_keys("."),
        Err(TensorError::Exists { .. })
    ));
}

#[test]
fn update_merges_dicts() {
    let mut dict = sample();
    let mut other = TensorDict::new([2, 3]);
    other.set(("next", "reward"), grid(&[2, 3, 1])).unwrap();
    other.set("step", grid(&[2, 3, 7])).unwrap();
    dict.update(&other).unwrap();
    assert!(dict.contains_key(("next", "obs")) && dict.contains_key(("next", "reward")));
    assert_eq!(dict.get("step").unwrap().shape(), [2, 3, 7]);
    let before = dict.clone();
    let mut bad = TensorDict::new([]);
    bad.set("a", grid(&[2, 3]))
        .unwrap()
        .set("b", grid(&[4]))
        .unwrap();
    assert!(dict.update(&bad).is_err());
    assert_eq!(dict, before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn entries_behave_like_a_sorted_map(sets in prop::collection::vec(("[a-d]{0,2}", any::<i64>(), any::<bool>()), 0..40)) {
        let mut dict = TensorDict::new([]);
        let mut model = std::collections::BTreeMap::new();
        for (name, value, keep) in sets {
            if keep {
                dict.set(&name, Tensor::scalar(value)).unwrap();
                model.insert(name, value);
            } else {
                prop_assert_eq!(dict.remove(&name).is_ok(), model.remove(&name).is_some());
            }
        }
        let found: Vec<(String, i64)> =
            dict.leaves().map(|(key, tensor)| (key.last().to_owned(), tensor.item().unwrap())).collect();
        prop_assert_eq!(found, model.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn the_same_bits_stand_under_the_same_names() {
    let dict = sample();
    assert!(dict.same_bits(&dict.detach()));
    let mut renamed = dict.detach();
    let step = renamed.remove("step").unwrap();
    assert!(!dict.same_bits(&renamed));
    renamed.set("steps", step).unwrap();
    assert!(!dict.same_bits(&renamed));
    let mut other = dict.detach();
    let zeros = Tensor::zeros(crate::DType::F32, [2, 3, 4]).unwrap();
    other.set(("next", "obs"), zeros).unwrap();
    assert!(!dict.same_bits(&other));
}
