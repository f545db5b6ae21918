//! Transforms of names, shapes, frames and pictures, on an environment that shows what it is told
//! to.

use tensordict::{DType, Element, NestedKey, Tensor, for_dtype};
use windrow_slab::{Key, LeafSpec, Row, RowMut};

use super::vec_driver::VecDriver;
use super::*;
use crate::number::Number;
use crate::{Env, EnvSpec, Outcome, Serial, Spec};

/// Observes `100 * step + element` in each leaf, plus 1000 for each further leaf; another
/// environment is another one negative.
#[derive(Clone)]
struct Shown {
    spec: EnvSpec,
    step: i64,
    sign: f64,
}

impl Shown {
    fn show(&self, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        for (leaf, spec) in self.spec.observation_leaves().iter().enumerate() {
            for_dtype!(spec.dtype, T => {
                for (i, to) in obs.get_mut(Key::<T>::new(leaf))?.iter_mut().enumerate() {
                    let value = (1000 * leaf + i) as f64 + 100.0 * self.step as f64;
                    *to = T::nearest(self.sign * value);
                }
            });
        }
        Ok(())
    }
}

impl Env for Shown {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, _: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.step = 0;
        self.show(obs)
    }

    fn step(&mut self, _: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.step += 1;
        self.show(obs)?;
        Ok(Outcome::default())
    }
}

/// Two environments that observe `observation`, the second one with negative numbers.
fn shown(observation: Spec) -> Serial<Shown> {
    let spec = EnvSpec::new("Shown", observation, Spec::discrete(2));
    let one = |sign| Shown {
        spec: spec.clone(),
        step: 0,
        sign,
    };
    Serial::new(vec![one(1.0), one(-1.0)]).unwrap()
}

fn body() -> Spec {
    let limb = |n: usize| Spec::unbounded(DType::F32, [n]);
    let body = Spec::composite([("speed", limb(2)), ("angle", limb(1))]);
    Spec::composite([("body", body), ("count", Spec::unbounded(DType::I32, [1]))])
}

/// Transformed environments after a reset.
fn reset(
    envs: impl VecEnv + 'static,
    transform: impl Into<AnyTransform>,
) -> VecDriver<Box<dyn VecEnv>> {
    let transform = transform.into();
    let mut envs = VecDriver::new(transform.around(Box::new(envs)).unwrap());
    envs.reset(&[0, 1]).unwrap();
    envs
}

fn refused(envs: impl VecEnv + 'static, transform: impl Into<AnyTransform>) -> String {
    let made = transform.into().around(Box::new(envs));
    made.err().unwrap().to_string()
}

fn leaves(envs: &VecDriver<Box<dyn VecEnv>>) -> Vec<(String, Vec<usize>)> {
    let leaves = envs.envs.spec().observation_leaves().into_iter();
    leaves
        .map(|leaf: LeafSpec| (leaf.key.components().join("."), leaf.shape.to_vec()))
        .collect()
}

fn leaf(name: &str, shape: impl Into<Vec<usize>>) -> (String, Vec<usize>) {
    (name.to_owned(), shape.into())
}

/// What the environments observe as leaf `place`, as numbers.
fn seen<T: Element + Number>(envs: &VecDriver<Box<dyn VecEnv>>, place: usize) -> Vec<f64> {
    envs.seen_at::<T>(place)
        .into_iter()
        .map(T::number)
        .collect()
}

#[test]
fn several_become_one_in_the_order_of_their_names() {
    let mut envs = reset(
        shown(body()),
        CatTensors::new([("body", "speed"), ("body", "angle")]),
    );
    assert_eq!(
        leaves(&envs),
        [leaf("count", [1]), leaf("observation_vector", [3])]
    );
    assert_eq!(
        seen::<f32>(&envs, 1),
        [1000.0, 0.0, 1.0, -1000.0, 0.0, -1.0]
    );
    envs.step(0i64).unwrap();
    envs.reset(&[0]).unwrap();
    assert_eq!(
        seen::<f32>(&envs, 1),
        [1000.0, 0.0, 1.0, -1100.0, -100.0, -101.0]
    );
    assert_eq!(seen::<i32>(&envs, 0), [2000.0, -2100.0]);

    let mut given = CatTensors::new([("body", "speed"), ("body", "angle")]).named(("body", "all"));
    (given.sort, given.del_keys) = (false, false);
    let envs = reset(shown(body()), given);
    let expected = [
        leaf("body.speed", [2]),
        leaf("body.angle", [1]),
        leaf("body.all", [3]),
        leaf("count", [1]),
    ];
    assert_eq!(leaves(&envs), expected);
    assert_eq!(
        seen::<f32>(&envs, 2),
        [0.0, 1.0, 1000.0, 0.0, -1.0, -1000.0]
    );
}

#[test]
fn all_vectors_are_concatenated_unless_some_are_named() {
    let envs = reset(shown(body()), CatTensors::default());
    assert_eq!(leaves(&envs), [leaf("observation_vector", [4])]);
    // Whole numbers become real ones beside such.
    assert_eq!(seen::<f32>(&envs, 0)[..4], [1000.0, 0.0, 1.0, 2000.0]);
}

#[test]
fn leaves_are_concatenated_along_any_dimension() {
    let two = || {
        Spec::composite([
            ("a", Spec::unbounded(DType::I64, [2, 2])),
            ("b", Spec::unbounded(DType::I64, [2, 1])),
        ])
    };
    let envs = reset(shown(two()), CatTensors::new(["a", "b"]).named("c"));
    assert_eq!(leaves(&envs), [leaf("c", [2, 3])]);
    assert_eq!(
        seen::<i64>(&envs, 0)[..6],
        [0.0, 1.0, 1000.0, 2.0, 3.0, 1001.0]
    );
    let mut front = CatTensors::new(["a", "b"]);
    front.dim = 0;
    let error = refused(shown(two()), front);
    assert_eq!(
        error,
        "\"b\" of Shown: expected the shape of \"a\" but in dimension 0, got int64 of shape [2, 1]"
    );
    let flat = Spec::composite([
        ("a", Spec::unbounded(DType::U8, [2])),
        ("b", Spec::unbounded(DType::U8, [2])),
    ]);
    let mut stacked = CatTensors::new(["a", "b"]);
    (stacked.dim, stacked.unsqueeze_if_oor) = (-2, true);
    assert_eq!(
        leaves(&reset(shown(flat), stacked)),
        [leaf("observation_vector", [2, 2])]
    );
    let error = refused(shown(body()), CatTensors::new(["none"]));
    assert!(
        error.starts_with("Shown has no observation \"none\""),
        "{error}"
    );
}

#[test]
fn shapes_change_without_a_copy() {
    let picture = || Spec::unbounded(DType::I32, [2, 1, 2]);
    let keys = || Keys::of(["observation"]);
    let all: [(AnyTransform, &[usize]); 6] = [
        (FlattenObservation::new(-3, -1, keys()).into(), &[4]),
        (FlattenObservation::new(0, 1, keys()).into(), &[2, 2]),
        (SqueezeTransform::new(-2, keys()).into(), &[2, 2]),
        (SqueezeTransform::new(0, keys()).into(), &[2, 1, 2]),
        (UnsqueezeTransform::new(-1, keys()).into(), &[2, 1, 2, 1]),
        (UnsqueezeTransform::new(0, keys()).into(), &[1, 2, 1, 2]),
    ];
    for (transform, shape) in all {
        let mut envs = reset(shown(picture()), transform);
        assert_eq!(leaves(&envs), [leaf("observation", shape)]);
        envs.step(0i64).unwrap();
        let expected = [100.0, 101.0, 102.0, 103.0, -100.0, -101.0, -102.0, -103.0];
        assert_eq!(seen::<i32>(&envs, 0), expected);
    }
    assert_eq!(
        refused(shown(picture()), FlattenObservation::new(-4, -1, keys())),
        "\"observation\" of Shown: expected dimensions that it has, got the shape [2, 1, 2]"
    );
}

#[test]
fn results_may_have_names_of_their_own() {
    let keys = Keys::pairs([(("body", "speed"), ("body", "tall"))]);
    let envs = reset(shown(body()), UnsqueezeTransform::new(-1, keys));
    let expected = [
        leaf("body.speed", [2]),
        leaf("body.angle", [1]),
        leaf("body.tall", [2, 1]),
        leaf("count", [1]),
    ];
    assert_eq!(leaves(&envs), expected);
    assert_eq!(seen::<f32>(&envs, 2), [0.0, 1.0, 0.0, -1.0]);
    assert_eq!(seen::<i32>(&envs, 3), [2000.0, -2000.0]);
    let taken = UnsqueezeTransform::new(-1, Keys::pairs([("count", "body")]));
    assert_eq!(
        refused(shown(body()), taken),
        "frames of Shown have \"body\" already: a new observation needs another name"
    );
    for name in ["action", "reward", "next"] {
        let taken = UnsqueezeTransform::new(-1, Keys::pairs([("count", name)]));
        assert!(refused(shown(body()), taken).contains("already"), "{name}");
    }
}

#[test]
fn actions_have_another_shape_outside() {
    let mut unsqueeze = UnsqueezeTransform::new(-1, Keys::default());
    unsqueeze.keys_inv = Keys::pairs([("action", "choice")]);
    let mut envs = reset(shown(body()), unsqueeze);
    let action = &envs.envs.spec().action_leaves()[0];
    assert_eq!(action, &LeafSpec::new("choice", DType::I64, [1]));
    envs.step(1i64).unwrap();
    assert_eq!(seen::<i32>(&envs, 2), [2100.0, -2100.0]);
}

#[test]
fn dimensions_are_permuted() {
    let bounds: Vec<f64> = (0..6).map(f64::from).collect();
    let picture = Spec::Bounded {
        dtype: DType::I32,
        shape: [1, 2, 3].into_iter().collect(),
        low: bounds.iter().map(|x| -x).collect(),
        high: bounds,
    };
    let keys = Keys::of(["observation"]);
    let permuted = PermuteTransform::new([-1, -3, -2], keys.clone());
    let envs = reset(shown(picture.clone()), permuted);
    assert_eq!(leaves(&envs), [leaf("observation", [3, 1, 2])]);
    assert_eq!(seen::<i32>(&envs, 0)[..6], [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    let Spec::Bounded { high, .. } = &envs.envs.spec().observation else {
        panic!("bounds are lost");
    };
    assert_eq!(high, &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    for dims in [vec![-1, -1], vec![0, 1], vec![-4, -3, -2, -1]] {
        let error = refused(
            shown(picture.clone()),
            PermuteTransform::new(dims, keys.clone()),
        );
        assert!(error.contains("dimensions that can be ordered"), "{error}");
    }
}

#[test]
fn names_change_with_all_that_they_hold() {
    let renamed = RenameTransform::new(Keys::pairs([("body", "robot"), ("count", "n")]));
    let envs = reset(shown(body()), renamed);
    assert_eq!(
        leaves(&envs),
        [
            leaf("robot.speed", [2]),
            leaf("robot.angle", [1]),
            leaf("n", [1])
        ]
    );
    assert_eq!(seen::<f32>(&envs, 1), [1000.0, -1000.0]);
    let copied = RenameTransform::new(Keys::pairs([("count", ("body", "count"))])).with_copy();
    let envs = reset(shown(body()), copied);
    let names: Vec<_> = leaves(&envs).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["body.speed", "body.angle", "body.count", "count"]);
    assert_eq!(seen::<i32>(&envs, 2), [2000.0, -2000.0]);
    assert_eq!(seen::<i32>(&envs, 3), [2000.0, -2000.0]);
    let mut action = RenameTransform::new(Keys::default());
    action.keys_inv = Keys::pairs([("action", ("agent", "choice"))]);
    let envs = reset(shown(body()), action);
    assert_eq!(
        envs.envs.spec().action_leaves()[0].key,
        ("agent", "choice").into()
    );
}

#[test]
fn other_parts_of_the_spec_learn_of_new_names() {
    let mut envs = shown(body());
    let mut spec = envs.spec().clone();
    spec.rewards = vec![("body", "angle").into()];
    spec.masks = vec![("action".into(), "count".into())];
    spec.groups = vec![("body".into(), [1].into_iter().collect())];
    spec.examples = vec![("count".into(), vec![7])];
    envs = Serial::new(vec![
        Shown {
            spec,
            step: 0,
            sign: 1.0
        };
        2
    ])
    .unwrap();
    let copied = RenameTransform::new(Keys::pairs([("count", "twin")])).with_copy();
    let copies = envs.clone().transformed(copied).unwrap();
    let both = ["count", "twin"].map(|key| (key.into(), vec![7]));
    assert_eq!(copies.spec().examples, both);
    let renamed = RenameTransform::new(Keys::pairs([("count", "mask"), ("body", "robot")]));
    let envs = envs.transformed(renamed).unwrap();
    assert_eq!(envs.spec().examples, [("mask".into(), vec![7])]);
    assert_eq!(envs.spec().rewards, [("robot", "angle").into()]);
    assert_eq!(envs.spec().masks, [("action".into(), "mask".into())]);
    // One of its leaves lacks the dimension that the others share.
    assert!(envs.spec().groups.is_empty());
    let chosen = envs.transformed(SelectTransform::new([("robot", "speed"), ("no", "such")]));
    let chosen = chosen.unwrap();
    assert!(chosen.spec().examples.is_empty());
    let names: Vec<_> = chosen
        .spec()
        .observation_leaves()
        .into_iter()
        .map(|leaf| leaf.key)
        .collect();
    // Rewards stay.
    assert_eq!(
        names,
        [("robot", "speed").into(), ("robot", "angle").into()]
    );
    assert!(chosen.spec().masks.is_empty());
}

#[test]
fn observations_are_chosen_or_left_out() {
    let mut envs = reset(shown(body()), SelectTransform::new(["count"]));
    envs.step(0i64).unwrap();
    assert_eq!(leaves(&envs), [leaf("count", [1])]);
    assert_eq!(seen::<i32>(&envs, 0), [2100.0, -2100.0]);
    let envs = reset(
        shown(body()),
        ExcludeTransform::new([NestedKey::from("count"), ("body", "angle").into()]),
    );
    assert_eq!(leaves(&envs), [leaf("body.speed", [2])]);
    assert!(refused(shown(body()), ExcludeTransform::new(["none"])).contains("no observation"));
    assert_eq!(
        refused(shown(body()), ExcludeTransform::new(["body", "count"])),
        "observations of Shown: expected one at least to be left, got none"
    );
}

#[test]
fn frames_are_stacked() {
    let keys = || Keys::of(["observation"]);
    let frame = || Spec::unbounded(DType::I32, [2, 1]);
    let mut envs = reset(shown(frame()), CatFrames::new(3, -1, keys()));
    assert_eq!(leaves(&envs), [leaf("observation", [2, 3])]);
    assert_eq!(seen::<i32>(&envs, 0)[..6], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    for expected in [
        [0.0, 0.0, 100.0],
        [0.0, 100.0, 200.0],
        [100.0, 200.0, 300.0],
    ] {
        envs.step(0i64).unwrap();
        assert_eq!(seen::<i32>(&envs, 0)[..3], expected);
    }
    envs.reset(&[1]).unwrap();
    envs.step(0i64).unwrap();
    let expected = [
        200.0, 300.0, 400.0, 201.0, 301.0, 401.0, 0.0, 0.0, -100.0, -1.0, -1.0, -101.0,
    ];
    assert_eq!(seen::<i32>(&envs, 0), expected);

    let mut envs = reset(
        shown(frame()),
        CatFrames::new(2, -2, keys()).padded_with(-7.5),
    );
    assert_eq!(seen::<i32>(&envs, 0)[..4], [-7.0, -7.0, 0.0, 1.0]);
    envs.step(0i64).unwrap();
    assert_eq!(seen::<i32>(&envs, 0)[..4], [0.0, 1.0, 100.0, 101.0]);
    assert!(refused(shown(frame()), CatFrames::new(0, -1, keys())).starts_with("N of Shown"));
    assert!(refused(shown(frame()), CatFrames::new(2, 0, keys())).contains("from the end"));
}

#[test]
fn the_largest_of_several_steps_is_seen() {
    let keys = || Keys::of(["observation"]);
    let mut envs = reset(
        shown(Spec::unbounded(DType::F32, [2])),
        TimeMaxPool::new(2, keys()),
    );
    assert_eq!(seen::<f32>(&envs, 0), [0.0, 1.0, 0.0, 0.0]);
    envs.step(0i64).unwrap();
    assert_eq!(seen::<f32>(&envs, 0), [100.0, 101.0, 0.0, -1.0]);
    envs.step(0i64).unwrap();
    assert_eq!(seen::<f32>(&envs, 0), [200.0, 201.0, -100.0, -101.0]);
    envs.reset(&[1]).unwrap();
    envs.step(0i64).unwrap();
    assert_eq!(seen::<f32>(&envs, 0), [300.0, 301.0, 0.0, -1.0]);
    assert!(refused(shown(body()), TimeMaxPool::new(0, keys())).starts_with("T of Shown"));
}

#[test]
fn pictures_become_channels_of_real_numbers() {
    let picture = |dtype| Spec::unbounded(dtype, [2, 2, 3]);
    let keys = || Keys::of(["observation"]);
    let image = || ToTensorImage {
        keys: keys(),
        ..ToTensorImage::default()
    };
    for dtype in [DType::U8, DType::I32] {
        let envs = reset(shown(picture(dtype)), image());
        assert_eq!(leaves(&envs), [leaf("observation", [3, 2, 2])]);
        let expected = [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11].map(|x| x as f32 / 255.0);
        assert_eq!(envs.seen_at::<f32>(0)[..12], expected);
    }
    let plain = ToTensorImage {
        from_int: Some(false),
        unsqueeze: true,
        dtype: DType::F64,
        ..image()
    };
    let envs = reset(shown(picture(DType::U8)), plain);
    assert_eq!(leaves(&envs), [leaf("observation", [1, 3, 2, 2])]);
    assert_eq!(seen::<f64>(&envs, 0)[..4], [0.0, 3.0, 6.0, 9.0]);
    let tolerant = ToTensorImage {
        shape_tolerant: true,
        ..image()
    };
    let envs = reset(shown(Spec::unbounded(DType::U8, [3, 2, 2])), tolerant);
    assert_eq!(leaves(&envs), [leaf("observation", [3, 2, 2])]);
    assert_eq!(envs.seen_at::<f32>(0)[..2], [0.0, 1.0 / 255.0]);
}

#[test]
fn colours_become_grey() {
    let keys = || Keys::of(["observation"]);
    let envs = reset(
        shown(Spec::unbounded(DType::U8, [3, 1, 2])),
        GrayScale::new(keys()),
    );
    assert_eq!(leaves(&envs), [leaf("observation", [1, 1, 2])]);
    // 0.587 * 2 + 0.114 * 4 and 0.2989 * 1 + 0.587 * 3 + 0.114 * 5, cut off.
    assert_eq!(seen::<u8>(&envs, 0)[..2], [1.0, 2.0]);
    let error = refused(
        shown(Spec::unbounded(DType::U8, [2, 3])),
        GrayScale::new(keys()),
    );
    assert_eq!(
        error,
        "\"observation\" of Shown: expected three channels, before height and width, got uint8 of shape [2, 3]"
    );
}

#[test]
fn the_middle_is_cut_out() {
    let keys = || Keys::of(["observation"]);
    let picture = || Spec::unbounded(DType::I32, [4, 5]);
    let envs = reset(shown(picture()), CenterCrop::new(2, 3, keys()));
    assert_eq!(
        seen::<i32>(&envs, 0)[..6],
        [6.0, 7.0, 8.0, 11.0, 12.0, 13.0]
    );
    // Halves are rounded to even numbers: 1/2 to 0, 3/2 to 2.
    let envs = reset(shown(picture()), CenterCrop::new(3, 2, keys()));
    assert_eq!(seen::<i32>(&envs, 0)[..2], [2.0, 3.0]);
    let envs = reset(shown(picture()), CenterCrop::new(1, 8, keys()));
    assert_eq!(
        seen::<i32>(&envs, 0)[..8],
        [0.0, 10.0, 11.0, 12.0, 13.0, 14.0, 0.0, 0.0]
    );
}

#[test]
fn pictures_are_resized() {
    let keys = || Keys::of(["observation"]);
    let of = |interpolation| Resize {
        interpolation,
        ..Resize::new(2, 2, keys())
    };
    let picture = |dtype| Spec::unbounded(dtype, [4, 4]);
    let envs = reset(shown(picture(DType::F32)), of(Interpolation::Nearest));
    assert_eq!(seen::<f32>(&envs, 0)[..4], [0.0, 2.0, 8.0, 10.0]);
    let envs = reset(shown(picture(DType::F32)), of(Interpolation::NearestExact));
    assert_eq!(seen::<f32>(&envs, 0)[..4], [5.0, 7.0, 13.0, 15.0]);
    // Weights 3/7, 3/7 and 1/7 at the borders.
    let shift = 1.0 - 5.0 / 7.0;
    let [first, last] = [1.0 - shift, 2.0 + shift];
    let expected = [
        first + 4.0 * first,
        last + 4.0 * first,
        first + 4.0 * last,
        last + 4.0 * last,
    ];
    for (dtype, close) in [(DType::F32, 1e-5), (DType::F64, 1e-12)] {
        let envs = reset(shown(picture(dtype)), of(Interpolation::Bilinear));
        for (i, expected) in expected.iter().enumerate() {
            let seen = if dtype == DType::F64 {
                seen::<f64>(&envs, 0)[i]
            } else {
                seen::<f32>(&envs, 0)[i]
            };
            assert!((seen - expected).abs() < close, "{seen} {expected}");
        }
    }
    let envs = reset(shown(picture(DType::U8)), of(Interpolation::Bilinear));
    assert_eq!(
        seen::<u8>(&envs, 0)[..4],
        expected.map(f64::round_ties_even)
    );
    // A constant picture stays one, of any size.
    let mut larger = Resize::new(7, 9, keys());
    for interpolation in [Interpolation::Bilinear, Interpolation::Bicubic] {
        larger.interpolation = interpolation;
        let mut envs = reset(shown(Spec::unbounded(DType::F64, [1, 1])), larger.clone());
        envs.step(0i64).unwrap();
        assert!(
            seen::<f64>(&envs, 0)[..63]
                .iter()
                .all(|x| (x - 100.0).abs() < 1e-12)
        );
    }
    let error = refused(
        shown(Spec::unbounded(DType::Bool, [4, 4])),
        of(Interpolation::Bilinear),
    );
    assert!(
        error.contains("numbers that can be resized to [2, 2]"),
        "{error}"
    );
}

#[test]
fn pictures_in_a_tensor_become_what_environments_show() {
    let resize = Resize::new(3, 2, Keys::of(["observation"]));
    for dtype in [DType::F32, DType::F64, DType::U8] {
        let spec = Spec::unbounded(dtype, [2, 4, 4]);
        let envs = reset(shown(spec), resize.clone());
        for_dtype!(dtype, T => {
            let pictures = (0..32).map(|i| T::nearest(f64::from(i))).collect();
            let pictures = Tensor::from_vec(pictures, [2, 4, 4]).unwrap();
            let resized = resize.pictures(&pictures).unwrap();
            assert_eq!(resized.shape(), [2, 3, 2]);
            let resized = resized.to_vec::<T>().unwrap().into_iter().map(Number::number);
            assert_eq!(resized.collect::<Vec<_>>(), seen::<T>(&envs, 0)[..12]);
        });
    }
    for refused in [
        Tensor::zeros(DType::Bool, [4, 4]),
        Tensor::zeros(DType::F32, [4]),
    ] {
        let error = resize.pictures(&refused.unwrap()).unwrap_err();
        assert!(
            error.to_string().contains("[..., height, width]"),
            "{error}"
        );
    }
}

#[test]
fn bounds_follow_what_is_done_to_pictures() {
    let bounds = |dtype, low: f64, high: f64| Spec::Bounded {
        dtype,
        shape: [4, 4, 3].into_iter().collect(),
        low: vec![low; 48],
        high: vec![high; 48],
    };
    let keys = || Keys::of(["observation"]);
    let envs = shown(bounds(DType::U8, 0.0, 255.0));
    let envs = envs.transformed(TimeMaxPool::new(2, keys())).unwrap();
    let envs = envs
        .transformed(ToTensorImage {
            keys: keys(),
            ..ToTensorImage::default()
        })
        .unwrap();
    let envs = envs.transformed(GrayScale::new(keys())).unwrap();
    let envs = envs.transformed(Resize::new(2, 2, keys())).unwrap();
    let envs = envs.transformed(CatFrames::new(4, -3, keys())).unwrap();
    let Spec::Bounded {
        low,
        high,
        dtype,
        shape,
    } = &envs.spec().observation
    else {
        panic!("bounds are lost");
    };
    assert_eq!((*dtype, shape.as_slice()), (DType::F32, &[4, 2, 2][..]));
    assert!(low.iter().all(|&x| x == 0.0) && high.iter().all(|&x| (x - 0.9999).abs() < 1e-6));
    assert_eq!((low.len(), high.len()), (16, 16));
}
