//! Rows outside of a ring: what is written is read back, and what does not fit is refused.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use tensordict::DType;
use windrow_slab::{Key, LeafSpec, RowBlock, SlabError};

const POSITION: Key<f32> = Key::new(0);
const COUNT: Key<i64> = Key::new(1);

fn block(envs: usize) -> RowBlock {
    let leaves = [
        LeafSpec::new("position", DType::F32, [3]),
        LeafSpec::new("count", DType::I64, []),
    ];
    RowBlock::new(&leaves, envs).unwrap()
}

#[test]
fn each_environment_has_its_own_elements() {
    let mut block = block(2);
    let mut rows = block.rows_mut();
    rows.env_mut(1)
        .unwrap()
        .write(POSITION, &[1.0, 2.0, 3.0])
        .unwrap();
    rows.get_mut(COUNT).unwrap().copy_from_slice(&[7, 8]);
    let rows = block.rows();
    assert_eq!(rows.get(POSITION).unwrap(), [0.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
    let counts: Vec<i64> = rows.iter().map(|row| row.scalar(COUNT).unwrap()).collect();
    assert_eq!(counts, [7, 8]);
    assert!(rows.env(2).is_none());
}

#[test]
fn what_does_not_fit_is_named() {
    let mut block = block(2);
    let wrong = Key::<f64>::new(0);
    assert_eq!(
        block.rows().get(wrong).unwrap_err().to_string(),
        "leaf 0 holds float32, but was accessed as float64"
    );
    assert_eq!(
        block.rows().get(Key::<f32>::new(2)).unwrap_err(),
        SlabError::NoSuchLeaf { leaf: 2, leaves: 2 }
    );
    let mut rows = block.rows_mut();
    let short = rows
        .env_mut(0)
        .unwrap()
        .write(POSITION, &[1.0])
        .unwrap_err();
    assert_eq!(short.to_string(), "leaf 0 holds 3 elements a row, got 1");
    assert_eq!(
        rows.zero(2).unwrap_err(),
        SlabError::NoSuchLeaf { leaf: 2, leaves: 2 }
    );
}

#[test]
fn copies_go_between_equal_layouts_only() {
    let (mut to, mut from) = (block(2), block(2));
    from.rows_mut().get_mut(COUNT).unwrap().fill(4);
    to.rows_mut().copy_from(from.rows()).unwrap();
    assert_eq!(to.rows().get(COUNT).unwrap(), [4, 4]);
    let other = block(3);
    assert!(matches!(
        to.rows_mut().copy_from(other.rows()),
        Err(SlabError::Mismatch { leaf: 0, .. })
    ));
    let fewer = RowBlock::new(&[LeafSpec::new("position", DType::F32, [3])], 2).unwrap();
    assert!(matches!(
        to.rows_mut().copy_from(fewer.rows()),
        Err(SlabError::NoSuchLeaf { leaves: 1, .. })
    ));
}

#[test]
fn zeroing_touches_one_leaf() {
    let mut block = block(1);
    let mut rows = block.rows_mut();
    rows.get_mut(POSITION).unwrap().fill(1.0);
    rows.get_mut(COUNT).unwrap().fill(1);
    rows.zero(0).unwrap();
    assert_eq!(block.rows().get(POSITION).unwrap(), [0.0; 3]);
    assert_eq!(block.rows().get(COUNT).unwrap(), [1]);
}

#[test]
fn a_scalar_of_an_empty_leaf_is_refused() {
    let block = RowBlock::new(&[LeafSpec::new("nothing", DType::F32, [0])], 1).unwrap();
    assert!(block.rows().env(0).unwrap().scalar(POSITION).is_err());
}

#[test]
fn rows_too_large_for_memory_are_refused() {
    let leaf = LeafSpec::new("huge", DType::F64, [usize::MAX / 4]);
    assert!(matches!(
        RowBlock::new(&[leaf], 1),
        Err(SlabError::TooLarge { .. })
    ));
}
