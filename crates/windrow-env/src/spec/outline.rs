//! The outline of a spec, which needs no memory for bounds.

use std::fmt;

use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tensordict::{DType, Shape};
use windrow_slab::LeafSpec;

use super::Spec;

/// The leaves of a [`Spec`], read from its serialized form without allocating its bounds. In this
/// form a run of equal bounds is a pair of numbers, so a few bytes can describe any number of
/// bounds. A program that reads specs from a connection reads their outlines first, and refuses
/// what is too large.
///
/// ```
/// use windrow_env::SpecOutline;
///
/// let text = r#"{"Bounded": {"dtype": "uint8", "shape": [100000, 100000], "low": [[0.0, 10000000000]], "high": [[255.0, 10000000000]]}}"#;
/// let outline: SpecOutline = serde_json::from_str(text)?;
/// assert_eq!(outline.leaves("observation")[0].elements(), 10_000_000_000);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Outlined")]
pub struct SpecOutline(Spec);

impl SpecOutline {
    /// The leaves, as [`Spec::leaf_specs`] returns them. The number of elements of each fits into a
    /// `usize`.
    #[must_use]
    pub fn leaves(&self, name: &str) -> Vec<LeafSpec> {
        self.0.leaf_specs(name)
    }
}

/// The serialized form of a [`Spec`].
#[derive(Deserialize)]
#[serde(rename = "Spec", deny_unknown_fields)]
enum Outlined {
    Unbounded {
        dtype: DType,
        shape: Shape,
    },
    Bounded {
        dtype: DType,
        shape: Shape,
        low: Count,
        high: Count,
    },
    Discrete {
        n: usize,
    },
    Binary {
        shape: Shape,
    },
    MultiDiscrete {
        nvec: Vec<usize>,
    },
    OneHot {
        nvec: Vec<usize>,
    },
    Composite(Vec<(String, Outlined)>),
}

impl TryFrom<Outlined> for SpecOutline {
    type Error = String;

    fn try_from(outlined: Outlined) -> Result<Self, String> {
        outlined.spec().map(Self)
    }
}

impl Outlined {
    /// The spec without its bounds.
    fn spec(self) -> Result<Spec, String> {
        let mut bounds = None;
        let spec = match self {
            Self::Unbounded { dtype, shape } => Spec::Unbounded { dtype, shape },
            Self::Bounded {
                dtype,
                shape,
                low,
                high,
            } => {
                bounds = Some([low.0, high.0]);
                Spec::Unbounded { dtype, shape }
            }
            Self::Discrete { n } => Spec::Discrete { n },
            Self::Binary { shape } => Spec::Binary { shape },
            Self::MultiDiscrete { nvec } => Spec::MultiDiscrete { nvec },
            Self::OneHot { nvec } => Spec::OneHot { nvec },
            Self::Composite(entries) => {
                let entries = entries.into_iter();
                let entries = entries.map(|(name, inner)| Ok((name, inner.spec()?)));
                return Ok(Spec::Composite(entries.collect::<Result<_, String>>()?));
            }
        };
        let elements = spec
            .elements()
            .ok_or_else(|| format!("expected as many elements as can be counted, got {spec:?}"))?;
        match bounds {
            Some(bounds) if bounds != [elements; 2] => {
                let [low, high] = bounds;
                Err(format!(
                    "expected a lower and an upper bound for each of {elements} elements, got {low} lower and {high} upper ones"
                ))
            }
            _ => Ok(spec),
        }
    }
}

/// The number of bounds in a list of numbers and runs of equal numbers.
struct Count(usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        /// A number, or a number and how often it comes.
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number, or a number and how often it comes")]
        enum Run {
            Several(IgnoredAny, usize),
            One(IgnoredAny),
        }

        struct Counting;

        impl<'de> Visitor<'de> for Counting {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut runs: A) -> Result<Count, A::Error> {
                let mut all = 0usize;
                while let Some(run) = runs.next_element()? {
                    let more = match run {
                        Run::Several(_, times) => times,
                        Run::One(_) => 1,
                    };
                    all = all
                        .checked_add(more)
                        .ok_or_else(|| A::Error::custom("more bounds than can be counted"))?;
                }
                Ok(Count(all))
            }
        }

        from.deserialize_seq(Counting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EnvSpec, gym::ids, make};

    fn outlined(text: &str) -> Result<Vec<LeafSpec>, String> {
        let outline: Result<SpecOutline, _> = serde_json::from_str(text);
        let outline = outline.map_err(|error| error.to_string())?;
        Ok(outline.leaves("observation"))
    }

    #[test]
    fn the_outline_of_a_spec_has_its_leaves() {
        let nested = Spec::composite([
            (
                "one",
                Spec::bounded(&[0.0, f32::NEG_INFINITY, 0.0], &[1.0; 3]).unwrap(),
            ),
            (
                "two",
                Spec::composite([("hot", Spec::OneHot { nvec: vec![2, 3] })]),
            ),
        ]);
        let mut specs = vec![EnvSpec::new("Nested", nested, Spec::discrete(2))];
        specs.extend(ids().iter().map(|id| make(id).unwrap().spec().clone()));
        for spec in specs {
            let text = serde_json::to_string(&spec.observation).unwrap();
            assert_eq!(outlined(&text).unwrap(), spec.observation_leaves());
        }
    }

    #[test]
    fn bounds_and_elements_are_counted_and_not_made() {
        let bounded = |shape: &str, low: &str| {
            format!(
                r#"{{"Bounded": {{"dtype": "uint8", "shape": {shape}, "low": {low}, "high": [["inf", 1099511627776]]}}}}"#
            )
        };
        let vast = outlined(&bounded(
            "[1048576, 1048576]",
            "[[0.5, 1099511627775], 1.5]",
        ));
        assert_eq!(vast.unwrap()[0].elements(), 1 << 40);
        for (text, part) in [
            (
                bounded("[3]", "[0.0, 0.0, 0.0]"),
                "3 lower and 1099511627776 upper",
            ),
            (
                bounded("[3]", "[[0.0, 18446744073709551615], 1.0]"),
                "can be counted",
            ),
            (
                bounded("[4294967296, 4294967296]", "[0.0]"),
                "can be counted",
            ),
            (
                r#"{"OneHot": {"nvec": [18446744073709551615, 2]}}"#.to_owned(),
                "can be counted",
            ),
        ] {
            let error = outlined(&text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
