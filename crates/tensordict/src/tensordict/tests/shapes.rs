//! Whatever is done to a dict, its entries start with its batch size.

use proptest::prelude::*;

use super::{grid, sample};
use crate::{Entry, NestedKey, Result, Shape, TensorDict};

/// Checks `dict` and the dicts in it; `path` says which.
fn check(dict: &TensorDict, path: &str) -> std::result::Result<(), TestCaseError> {
    prop_assert_eq!(dict.names().len(), dict.ndim());
    for (name, entry) in dict.entries() {
        let place = format!("{path}/{name}");
        prop_assert!(
            entry.shape().starts_with(dict.batch_size()),
            "{}: {:?} in a batch of {:?}",
            place,
            entry.shape(),
            dict.batch_size()
        );
        if let Entry::Dict(inner) = entry {
            check(inner, &place)?;
        }
    }
    Ok(())
}

const KEYS: [&[&str]; 6] = [
    &["obs"],
    &["next"],
    &["next", "obs"],
    &["next", "extra"],
    &["next", "extra", "x"],
    &["new", "deep"],
];

/// A size of up to three dimensions, which more often than not fits the sample.
fn size(seed: usize) -> Vec<usize> {
    let sizes: [&[usize]; 10] = [
        &[],
        &[2],
        &[2, 3],
        &[2, 3, 2],
        &[2, 3, 4],
        &[3, 2],
        &[6],
        &[1, 2, 3],
        &[0],
        &[2, 1],
    ];
    sizes[seed % sizes.len()].to_vec()
}

/// One thing that can be done to a dict from outside; it may well be refused.
fn change(dict: &mut TensorDict, op: usize, a: usize, b: usize) -> Result<()> {
    let (key, other) = (KEYS[a % KEYS.len()], KEYS[b % KEYS.len()]);
    let dim = b % 3;
    *dict = match op % 19 {
        0 => return dict.set(key, grid(&size(b))).map(|_| ()),
        1 => return dict.set(key, TensorDict::new(size(b))).map(|_| ()),
        2 => {
            let inner = dict.get_dict(key)?.clone();
            return dict.set(other, inner).map(|_| ());
        }
        3 => return dict.remove(key).map(|_| ()),
        4 => return dict.rename_key(key, other).map(|_| ()),
        5 => return dict.set_batch_size(size(a)).map(|_| ()),
        6 => {
            let group = |key: &[&str], seed| (NestedKey::from(key), Shape::from_vec(size(seed)));
            let groups = [group(key, b), group(other, a)];
            return dict.set_groups(&groups).map(|_| ());
        }
        7 => {
            let mut theirs = sample();
            theirs.set_batch_size(size(a))?;
            return dict.update(&theirs).map(|_| ());
        }
        8 => dict.select(&[key, other])?,
        9 => dict.flatten_keys(".")?,
        10 => dict.unflatten_keys(".")?,
        11 => TensorDict::stack(&[&*dict, &*dict], dim)?,
        12 => TensorDict::cat(&[&*dict, &*dict], dim)?,
        13 => dict.narrow(dim, 0, 1)?,
        14 => dict.transpose(dim, a % 3)?,
        15 => dict.unsqueeze(dim)?,
        16 => dict.reshape(size(a))?,
        17 => dict.detach_into(sample()),
        _ => TensorDict::from_bytes(&dict.to_bytes()?)?,
    };
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn entries_start_with_the_batch_size_whatever_was_done(
        changes in prop::collection::vec((0usize..19, 0usize..60, 0usize..60), 1..12),
    ) {
        let mut dict = sample();
        for (op, a, b) in changes {
            // Refused or not, the dict stays one.
            let _ = change(&mut dict, op, a, b);
            check(&dict, "")?;
            prop_assume!(dict.leaves().all(|(_, tensor)| tensor.len() < 4000));
        }
    }
}
