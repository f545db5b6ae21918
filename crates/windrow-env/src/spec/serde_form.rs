//! The serialized form of specs.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensordict::{Group, NestedKey};

use super::{EnvSpec, Spec};
use crate::Gathers;

/// The serialized form of a spec, which has the same fields.
#[derive(Serialize, Deserialize)]
#[serde(remote = "EnvSpec", deny_unknown_fields)]
struct EnvSpecRepr {
    id: String,
    observation: Spec,
    action: Spec,
    #[serde(default)]
    max_episode_steps: Option<usize>,
    #[serde(default)]
    rewards: Vec<NestedKey>,
    #[serde(default)]
    states: Vec<NestedKey>,
    #[serde(default)]
    masks: Vec<(NestedKey, NestedKey)>,
    #[serde(default)]
    flags: Vec<NestedKey>,
    #[serde(default)]
    info: Vec<NestedKey>,
    #[serde(default)]
    groups: Vec<Group>,
    #[serde(default)]
    dimensions: Vec<usize>,
    #[serde(default)]
    deltas: Vec<(NestedKey, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    examples: Vec<(NestedKey, Vec<u8>)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    statistics: Vec<Gathers>,
    #[serde(default)]
    keeps_seed: bool,
    #[serde(default)]
    any_integers: bool,
}

impl Serialize for EnvSpec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        EnvSpecRepr::serialize(self, to)
    }
}

/// Refuses a spec whose parts contradict each other; see [`EnvSpec::check`].
impl<'de> Deserialize<'de> for EnvSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let spec = EnvSpecRepr::deserialize(from)?;
        spec.check().map_err(serde::de::Error::custom)?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use tensordict::{DType, Shape};

    use super::*;
    use crate::gym::ids;
    use crate::{Pendulum, Serial, Statistics, VecEnv, VecNorm, make};

    fn bounded(dtype: DType, shape: &[usize], low: Vec<f64>, high: Vec<f64>) -> Spec {
        Spec::Bounded {
            dtype,
            shape: Shape::from_slice(shape),
            low,
            high,
        }
    }

    /// A spec of every kind, with parts that are easily lost.
    fn kinds() -> Vec<Spec> {
        let infinite = vec![f64::INFINITY; 4];
        let precise = vec![0.1, -0.0, 5e-324, f64::MAX];
        let below = precise.iter().map(|x| x - 1.0).collect();
        vec![
            Spec::unbounded(DType::F32, []),
            Spec::unbounded(DType::Bool, [3, 0, 2]),
            Spec::unbounded(DType::F64, [1, 2, 3, 4, 5, 6]),
            Spec::bounded(&[-1.0, f32::NEG_INFINITY], &[1.0 / 3.0, f32::INFINITY]).unwrap(),
            bounded(DType::F64, &[2, 2], vec![f64::NEG_INFINITY; 4], infinite),
            bounded(DType::F64, &[4], below, precise),
            bounded(DType::U8, &[2, 3], vec![0.0; 6], vec![255.0; 6]),
            bounded(DType::I64, &[], vec![-7.0], vec![9.007_199_254_740_993e15]),
            bounded(DType::F32, &[0], vec![], vec![]),
            Spec::discrete(1),
            Spec::discrete(usize::MAX),
            Spec::Binary {
                shape: Shape::from_slice(&[4]),
            },
            Spec::MultiDiscrete { nvec: vec![2, 5] },
            Spec::MultiDiscrete { nvec: vec![] },
            Spec::OneHot { nvec: vec![3, 1] },
            Spec::Composite(vec![]),
        ]
    }

    /// All kinds at once, below names in an order of their own.
    fn nested() -> Spec {
        let names = ["z", "0.weight", "", "a\"\\\u{1f}é", "next"];
        let names = names.map(str::to_owned).into_iter();
        let names = names.chain((0..).map(|n| format!("n{n}")));
        let all = Spec::Composite(names.zip(kinds()).collect());
        Spec::composite([
            ("outer", Spec::composite([("inner", all)])),
            ("b", Spec::discrete(2)),
        ])
    }

    /// As [`nested`], with what the notes of a spec are about.
    fn noted() -> Spec {
        let number = || Spec::unbounded(DType::F32, [3, 2]);
        let names = [
            "reward", "mask", "done", "lives", "position", "text", "x", "action",
        ];
        let agents = names.map(|name| (name, number()));
        Spec::composite([
            ("all", nested()),
            ("agents", Spec::composite(agents)),
            ("reward", number()),
            ("mask", number()),
            ("action", number()),
            (
                "a",
                Spec::composite([(
                    "b",
                    Spec::composite([("c", Spec::composite([("d", number())]))]),
                )]),
            ),
        ])
    }

    fn there_and_back(spec: &EnvSpec) -> EnvSpec {
        serde_json::from_str(&serde_json::to_string(spec).unwrap()).unwrap()
    }

    /// Statistics that environments share.
    static GATHERED: LazyLock<Vec<Gathers>> = LazyLock::new(|| {
        let norm = VecNorm::new(["observation"]).with_decay(1.0 / 3.0);
        let envs = Serial::from_fn(2, Pendulum::new).unwrap();
        let envs = envs.transformed(norm.sharing(&Statistics::new())).unwrap();
        envs.spec().statistics.clone()
    });

    /// An environment with every flag and note that a spec has room for.
    fn full() -> EnvSpec {
        let key = |name: &str| NestedKey::from(("agents", name));
        let mut spec = EnvSpec::new("mine/Full-v3", noted(), noted());
        spec.max_episode_steps = Some(1 << 40);
        spec.rewards = vec![key("reward"), "reward".into()];
        spec.states = vec![["a", "b", "c", "d"].into()];
        spec.masks = vec![
            (key("action"), key("mask")),
            ("action".into(), "mask".into()),
        ];
        spec.flags = vec![key("done")];
        spec.info = vec![key("lives")];
        spec.groups = vec![
            ("agents".into(), Shape::from_slice(&[3, 2])),
            (key("x"), Shape::new()),
        ];
        spec.dimensions = vec![2, 3];
        spec.deltas = vec![(key("position"), "float16".to_owned())];
        spec.examples = vec![(key("text"), vec![0, 255])];
        spec.statistics.clone_from(&GATHERED);
        spec.keeps_seed = true;
        spec.any_integers = true;
        spec
    }

    #[test]
    fn every_spec_that_was_written_is_read_again() {
        for kind in kinds() {
            let spec = EnvSpec::new("Kind", kind.clone(), kind.clone());
            assert_eq!(there_and_back(&spec), spec);
            let bare: Spec = serde_json::from_value(serde_json::to_value(&kind).unwrap()).unwrap();
            assert_eq!(bare, kind);
        }
        assert_eq!(there_and_back(&full()), full());
        for id in ids() {
            let env = make(id).unwrap();
            assert_eq!(there_and_back(env.spec()), *env.spec());
        }
    }

    #[test]
    fn every_part_of_a_spec_is_written() {
        let plain = EnvSpec::new("mine/Full-v3", noted(), noted());
        let changes: [fn(&mut EnvSpec, EnvSpec); 12] = [
            |spec, full| spec.max_episode_steps = full.max_episode_steps,
            |spec, full| spec.rewards = full.rewards,
            |spec, full| spec.states = full.states,
            |spec, full| spec.masks = full.masks,
            |spec, full| spec.flags = full.flags,
            |spec, full| spec.info = full.info,
            |spec, full| spec.groups = full.groups,
            |spec, full| spec.dimensions = full.dimensions,
            |spec, full| spec.deltas = full.deltas,
            |spec, full| spec.examples = full.examples,
            |spec, full| spec.keeps_seed = full.keeps_seed,
            |spec, full| spec.any_integers = full.any_integers,
        ];
        for change in changes {
            let mut spec = plain.clone();
            change(&mut spec, full());
            assert_ne!(spec, plain);
            assert_eq!(there_and_back(&spec), spec);
        }
    }

    #[test]
    fn bounds_come_back_bit_for_bit() {
        let strange = vec![
            f64::NAN,
            f64::from_bits(f64::NAN.to_bits() | 0x5a),
            -f64::NAN,
            f64::NEG_INFINITY,
            f64::NEG_INFINITY,
            -0.0,
            0.0,
            f64::from(f32::MIN_POSITIVE) / 3.0,
        ];
        let low = strange.clone();
        let spec = bounded(
            DType::F64,
            &[2, 4],
            low,
            strange.iter().rev().copied().collect(),
        );
        let read = there_and_back(&EnvSpec::new("x", spec, Spec::discrete(2)));
        let Spec::Bounded { low, high, .. } = read.observation else {
            panic!("{read:?}")
        };
        let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&low), bits(&strange));
        assert_eq!(
            bits(&high),
            bits(&strange).into_iter().rev().collect::<Vec<_>>()
        );
    }

    #[test]
    fn bounds_of_images_are_short() {
        let pixels = 210 * 160 * 3;
        let image = bounded(
            DType::U8,
            &[210, 160, 3],
            vec![0.0; pixels],
            vec![255.0; pixels],
        );
        let json = serde_json::to_string(&image).unwrap();
        assert_eq!(
            json,
            r#"{"Bounded":{"dtype":"uint8","shape":[210,160,3],"low":[[0.0,100800]],"high":[[255.0,100800]]}}"#
        );
        assert_eq!(serde_json::from_str::<Spec>(&json).unwrap(), image);
    }

    #[test]
    fn what_may_be_left_out_has_a_default() {
        let json = r#"{"id": "x", "observation": {"Unbounded": {"dtype": "float32", "shape": [2]}}, "action": {"Discrete": {"n": 2}}}"#;
        let expected = EnvSpec::new("x", Spec::unbounded(DType::F32, [2]), Spec::discrete(2));
        assert_eq!(serde_json::from_str::<EnvSpec>(json).unwrap(), expected);
    }

    #[test]
    fn what_is_no_spec_is_not_read() {
        let of = |observation: &str| {
            let json = format!(
                r#"{{"id": "x", "observation": {observation}, "action": {{"Discrete": {{"n": 2}}}}}}"#
            );
            serde_json::from_str::<EnvSpec>(&json)
                .unwrap_err()
                .to_string()
        };
        let bounds = |low: &str| {
            of(&format!(
                r#"{{"Bounded": {{"dtype": "float32", "shape": [2], "low": {low}, "high": [1.0, 1.0]}}}}"#
            ))
        };
        let vast = format!(r#"{{"Binary": {{"shape": [{}, 2]}}}}"#, usize::MAX);
        for (error, named) in [
            (
                bounds("[0.0]"),
                "\"observation\" of x: expected a lower and an upper bound for each of 2 elements, got 1 lower",
            ),
            (of(&vast), "as many elements as can be counted"),
            (
                bounds(r#"["low", 0.0]"#),
                "expected a number, inf, -inf or NaN, got \"low\"",
            ),
            (
                bounds(r#"["NaN:12", 0.0]"#),
                "expected a number, inf, -inf or NaN, got \"NaN:12\"",
            ),
            (
                bounds("[{}]"),
                "a number, or a number and how often it comes",
            ),
            (
                bounds(&format!("[[0.0, {}]]", usize::MAX)),
                "no memory for 18446744073709551615 numbers",
            ),
            (of(r#"{"Fuzzy": {}}"#), "unknown variant `Fuzzy`"),
            (
                of(r#"{"Discrete": {"n": 2, "start": 1}}"#),
                "unknown field `start`",
            ),
            (of(r#"{"Binary": {}}"#), "missing field `shape`"),
        ] {
            assert!(error.contains(named), "{error}");
        }
    }
}
