use tensordict::{HeapBuffer, Shape};

use super::*;

fn record() -> RecordSpec {
    RecordSpec {
        observation: vec![LeafSpec::new("observation", DType::F32, [4])],
        policy: vec![LeafSpec::new("action", DType::I64, [])],
        next_only: Vec::new(),
        groups: Vec::new(),
        traj_ids: true,
        policy_version: false,
        notes: 0,
    }
}

fn shares(steps: &[usize], envs: usize) -> Shares {
    Shares {
        steps: steps.to_vec(),
        envs,
        batched: true,
        order: PartOrder::Sequential,
    }
}

#[test]
fn columns_are_aligned_disjoint_and_parts_follow_each_other() {
    let layout = Layout::new(&record(), shares(&[3, 2], 5)).unwrap();
    let mut end = 0;
    for column in layout.parts[0].columns.iter() {
        assert_eq!(column.offset % HeapBuffer::ALIGN, 0);
        assert!(column.offset >= end);
        end = column.offset + 5 * column.stride;
    }
    assert!(end <= layout.bytes());
    let [first, second] = &layout.parts[..] else {
        panic!("two parts")
    };
    assert_eq!(
        second.columns.obs[0].offset,
        first.columns.obs[0].offset + 3 * first.columns.obs[0].stride
    );
    assert_eq!((first.steps, second.steps), (3, 2));
}

#[test]
fn interleaved_parts_lie_side_by_side_in_each_row() {
    let mut shares = shares(&[3, 3], 5);
    shares.order = PartOrder::Interleaved;
    let layout = Layout::new(&record(), shares.clone()).unwrap();
    let [first, second] = &layout.parts[..] else {
        panic!("two parts")
    };
    let mut end = 0;
    for (a, b) in first.columns.iter().zip(second.columns.iter()) {
        assert_eq!((a.offset % HeapBuffer::ALIGN, a.bytes), (0, b.bytes));
        assert_eq!((a.stride, b.stride), (2 * a.bytes, 2 * a.bytes));
        assert_eq!(b.offset, a.offset + a.bytes);
        assert!(a.offset >= end);
        end = a.offset + 3 * a.stride;
    }
    assert!(end <= layout.bytes());
    shares.steps[1] = 2;
    let error = Layout::new(&record(), shares).unwrap_err();
    assert_eq!(
        error.to_string(),
        "interleaved parts need equally many steps, got 2 and 3"
    );
}

#[test]
fn a_name_used_twice_is_refused() {
    let mut record = record();
    let reward = NestedKey::from(("next", "reward"));
    record
        .policy
        .push(LeafSpec::new(reward.clone(), DType::F32, [1]));
    assert_eq!(
        Layout::new(&record, shares(&[1], 1)).unwrap_err(),
        SlabError::DuplicateColumn { key: reward }
    );
    record.policy[1] = LeafSpec::new("next", DType::F32, []);
    assert!(matches!(
        Layout::new(&record, shares(&[1], 1)),
        Err(SlabError::DuplicateColumn { .. })
    ));
}

#[test]
fn what_the_policy_writes_too_is_delivered_once() {
    let mut record = record();
    let written = |key: NestedKey| LeafSpec::new(key, DType::F32, [4]);
    let delivered = |record: &RecordSpec| {
        let layout = Layout::new(record, shares(&[2], 3)).unwrap();
        let delivered: Vec<_> = layout.delivered.iter().map(|entry| entry.column).collect();
        let part = &layout.parts[0].columns;
        assert!(part.policy.iter().all(|column| delivered.contains(column)));
        [part.obs[0], part.next_obs[0], part.root_flags[0]].map(|own| delivered.contains(&own))
    };
    record.policy.push(written("observation".into()));
    assert_eq!(delivered(&record), [false, true, true]);
    record.policy.push(written(("next", "observation").into()));
    assert_eq!(delivered(&record), [false, false, true]);
    record.policy.push(LeafSpec::new("done", DType::F32, [1]));
    assert_eq!(
        Layout::new(&record, shares(&[1], 1)).unwrap_err(),
        SlabError::DuplicateColumn { key: "done".into() }
    );
    record.policy[3].dtype = DType::Bool;
    assert_eq!(delivered(&record), [false, false, false]);
}

#[test]
fn what_follows_a_step_is_not_delivered_at_the_root() {
    let mut record = record();
    let reward = NestedKey::from(("agents", "reward"));
    record
        .observation
        .push(LeafSpec::new(reward.clone(), DType::F32, [2, 1]));
    record.next_only.push(reward.clone());
    let layout = Layout::new(&record, shares(&[2], 3)).unwrap();
    let delivered: Vec<_> = layout.columns().map(|leaf| &leaf.key).collect();
    assert!(delivered.contains(&&NestedKey::from("next").join(&reward)));
    assert!(!delivered.contains(&&reward));
    let engines = NestedKey::from(("next", "reward"));
    assert!(delivered.contains(&&engines));
    let wide = LeafSpec::new("reward", DType::F64, [1]);
    record.observation.push(wide);
    record.next_only.push("reward".into());
    let layout = Layout::new(&record, shares(&[2], 3)).unwrap();
    let rewards = layout.columns().filter(|leaf| leaf.key == engines);
    let rewards: Vec<_> = rewards.map(|leaf| leaf.dtype).collect();
    assert_eq!(rewards, [DType::F64]);
}

#[test]
fn the_version_under_next_is_a_view_of_the_one_at_the_root() {
    let mut record = record();
    let without = Layout::new(&record, shares(&[2, 3], 3)).unwrap();
    record.policy_version = true;
    let layout = Layout::new(&record, shares(&[2, 3], 3)).unwrap();
    let [.., root, next] = &layout.delivered[..] else {
        panic!("two entries")
    };
    assert_eq!(root.leaf.key, "policy_version".into());
    assert_eq!(next.leaf.key, ("next", "policy_version").into());
    assert_eq!(root.column, next.column);
    assert_eq!(layout.parts[0].columns.version, Some(root.column));
    assert!(layout.bytes() - without.bytes() < 2 * 15 * 8);
    let key = NestedKey::from(("next", "policy_version"));
    record
        .policy
        .push(LeafSpec::new(key.clone(), DType::I64, []));
    assert_eq!(
        Layout::new(&record, shares(&[1], 1)).unwrap_err(),
        SlabError::DuplicateColumn { key }
    );
}

#[test]
fn groups_are_those_whose_columns_have_their_dimensions() {
    let mut record = record();
    let action = LeafSpec::new(("agents", "action"), DType::F32, [2, 1]);
    let observed = LeafSpec::new(("agents", "observation"), DType::F32, [2, 3]);
    record.policy = vec![action];
    record.observation.push(observed);
    record.groups = vec![("agents".into(), Shape::from_slice(&[2]))];
    let groups = |record: &RecordSpec| {
        let layout = Layout::new(record, shares(&[2], 3)).unwrap();
        let keys = layout.groups().iter().map(|(key, _)| key.to_string());
        keys.collect::<Vec<_>>()
    };
    assert_eq!(groups(&record), ["agents", "(\"next\", \"agents\")"]);
    let other = LeafSpec::new(("agents", "choice"), DType::I64, []);
    record.policy.push(other);
    assert_eq!(groups(&record), ["(\"next\", \"agents\")"]);
}

#[test]
fn empty_and_oversized_slabs_are_refused() {
    assert!(matches!(
        Layout::new(&record(), shares(&[], 1)),
        Err(SlabError::Empty { parts: 0, .. })
    ));
    assert!(matches!(
        Layout::new(&record(), shares(&[4, 0], 1)),
        Err(SlabError::Empty { steps: 0, .. })
    ));
    assert!(matches!(
        Layout::new(&record(), shares(&[usize::MAX / 64], 1)),
        Err(SlabError::TooLarge { .. })
    ));
}

#[test]
fn a_layout_that_is_built_again_from_its_written_specs_has_the_same_fingerprint_and_others_have_not()
 {
    let mut record = record();
    record.groups = vec![(("agents", "blue").into(), Shape::from_slice(&[2, 3]))];
    record.next_only = vec!["reward".into()];
    let fingerprint = |record: &RecordSpec, shares: &Shares| {
        let written = serde_json::to_string(&(record, shares)).unwrap();
        let (again, other): (RecordSpec, Shares) = serde_json::from_str(&written).unwrap();
        assert_eq!((&again, &other), (record, shares));
        let layout = Layout::new(record, shares.clone()).unwrap();
        let again = Layout::new(&again, other).unwrap();
        assert_eq!(layout.fingerprint(), again.fingerprint());
        layout.fingerprint()
    };
    let shares = shares(&[3, 2], 5);
    let mut seen = vec![fingerprint(&record, &shares)];
    let flat = Shares {
        batched: false,
        ..shares.clone()
    };
    let longer = Shares {
        steps: vec![2, 3],
        ..shares.clone()
    };
    let equal = Shares {
        steps: vec![3, 3],
        ..shares.clone()
    };
    let interleaved = Shares {
        order: PartOrder::Interleaved,
        ..equal.clone()
    };
    seen.extend([flat, longer, equal, interleaved].map(|shares| fingerprint(&record, &shares)));
    record.policy[0].dtype = DType::I32;
    seen.push(fingerprint(&record, &shares));
    record.policy[0].key = "choice".into();
    seen.push(fingerprint(&record, &shares));
    record.traj_ids = false;
    seen.push(fingerprint(&record, &shares));
    let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len());
}
