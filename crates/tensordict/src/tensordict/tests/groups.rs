use crate::{NestedKey, Shape, Tensor, TensorDict, TensorError};

fn agents() -> TensorDict {
    let mut dict = TensorDict::new([4]).with_names(&[Some("time")]).unwrap();
    for key in [("agents", "observation"), ("next", "other")] {
        dict.set(key, Tensor::zeros(crate::DType::F32, [4, 2, 3]).unwrap())
            .unwrap();
    }
    dict
}

#[test]
fn groups_have_dimensions_of_their_own_which_views_keep() {
    let mut dict = agents();
    assert!(dict.groups().is_empty());
    let groups = [
        (NestedKey::from("agents"), Shape::from_slice(&[2])),
        (NestedKey::from("absent"), Shape::from_slice(&[7])),
    ];
    dict.set_groups(&groups).unwrap();
    assert_eq!(dict.groups(), groups[..1]);
    let inner = dict.get_dict("agents").unwrap();
    assert_eq!(inner.batch_size(), [4, 2]);
    assert_eq!(inner.names(), [Some("time".into()), None]);
    assert_eq!(dict.reshape([2, 2]).unwrap().groups(), groups[..1]);
    assert_eq!(dict.index(0).unwrap().groups(), groups[..1]);
}

#[test]
fn a_group_within_another_keeps_the_dimensions_of_the_one_around_it() {
    let mut dict = TensorDict::new([4]);
    dict.set(
        ("agents", "arm", "angle"),
        Tensor::zeros(crate::DType::F32, [4, 2, 3]).unwrap(),
    )
    .unwrap();
    let group = |key: &[&str], own: &[usize]| (NestedKey::from(key), Shape::from_slice(own));
    let error = dict
        .set_groups(&[group(&["agents"], &[2]), group(&["agents", "arm"], &[])])
        .map(|_| ())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"entry "arm": shape [4] does not start with batch size [4, 2]"#
    );
}

#[test]
fn entries_have_the_dimensions_of_their_group() {
    let error = agents()
        .set_groups(&[("agents".into(), Shape::from_slice(&[3]))])
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, TensorError::Batch { .. }), "{error:?}");
}
