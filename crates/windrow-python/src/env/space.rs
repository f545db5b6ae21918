//! Spaces of Gymnasium as specs, with what reads and writes their values.
//!
//! A space is parsed once, when an environment is made. The parse gives a spec, which has names,
//! and a codec, which has none: it follows the nesting of Python's values, dictionaries and tuples,
//! and its leaves come in the order of the spec's leaves. Reader and writer are codecs with the
//! numbers of their leaves.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;
use tensordict::{DType, Shape};
use windrow::envs::{EnvSpec, Spec};

use super::cast::Losses;
use super::read::{Choices, Leaf, Reader};
use super::write::Writer;
use crate::gil;

/// A space of Gymnasium.
pub(super) struct Space<'a, 'py> {
    space: &'a Bound<'py, PyAny>,
    /// Whether choices are one-hot vectors, not indices.
    one_hot: bool,
    /// `observation` or `action`.
    role: &'static str,
    /// The id of the environment, for messages.
    env: &'a str,
    /// The names under which this space lies in another, outermost first.
    entry: Vec<String>,
}

/// A parsed space: its spec and its codec.
struct Parsed {
    spec: Spec,
    codec: Codec,
    /// Of leaves of bytes, in their order: what a policy is given where there is nothing.
    examples: Vec<Vec<u8>>,
}

/// The structure of a space's values, with the leaves in the order of the spec's.
enum Codec {
    /// Numbers as an array.
    Array {
        /// The element type of the rows.
        dtype: DType,
        /// For one environment.
        shape: Vec<usize>,
        /// The type that Python has, where the rows hold a wider one.
        cast: Option<Py<PyAny>>,
    },
    /// One choice or several; the shape is empty for one.
    Choices {
        choices: Choices,
        shape: Vec<usize>,
    },
    /// Any object, as bytes.
    Object,
    Dict(Vec<(Py<PyString>, Codec)>),
    Items(Vec<Codec>),
}

impl Parsed {
    fn new(spec: Spec, codec: Codec) -> Self {
        Self {
            spec,
            codec,
            examples: Vec::new(),
        }
    }
}

impl<'a, 'py> Space<'a, 'py> {
    /// The observation space of `env`.
    pub(super) fn observed(space: &'a Bound<'py, PyAny>, env: &'a str, one_hot: bool) -> Self {
        Self {
            space,
            one_hot,
            role: "observation",
            env,
            entry: Vec::new(),
        }
    }

    /// The action space of `env`.
    pub(super) fn acted(space: &'a Bound<'py, PyAny>, env: &'a str, one_hot: bool) -> Self {
        Self {
            role: "action",
            ..Self::observed(space, env, one_hot)
        }
    }

    /// The spec of environments with these actions, and what reads observations. Those that are no
    /// numbers are values of bytes; as entries of `info`, a policy that is called with tensors gets
    /// them where it names them.
    ///
    /// # Errors
    /// `TypeError` for a space that has no spec.
    pub(super) fn reader(&self, action: Spec) -> PyResult<(EnvSpec, Reader)> {
        let Parsed {
            spec,
            codec,
            examples,
        } = self.parse()?;
        let (observation, names) = self.named(spec);
        let mut names = names.into_iter().enumerate();
        let reader = self.read_with(codec, &mut names);
        let mut spec = EnvSpec::new(self.env, observation, action);
        let leaves = spec.observation_leaves().into_iter();
        let held = leaves.filter(|leaf| leaf.dtype == DType::Bytes);
        spec.info = held.map(|leaf| leaf.key).collect();
        let examples = spec.info.iter().cloned().zip(examples);
        spec.examples = examples
            .filter(|(_, example)| !example.is_empty())
            .collect();
        Ok((spec, reader))
    }

    /// The spec, and what makes actions.
    ///
    /// # Errors
    /// As [`reader`](Self::reader).
    pub(super) fn writer(&self) -> PyResult<(Spec, Writer)> {
        let Parsed { spec, codec, .. } = self.parse()?;
        let (spec, names) = self.named(spec);
        let mut leaves = 0..names.len();
        let writer = self.write_with(codec, &mut leaves)?;
        Ok((spec, writer))
    }

    /// The spec as it is delivered, and the names of its leaves. A dictionary of observations
    /// stands for itself; any other composite is found under the name of its role, and a picture as
    /// `"pixels"`.
    fn named(&self, spec: Spec) -> (Spec, Vec<String>) {
        let is_observed = self.role == "observation";
        let spec = match spec {
            composite @ Spec::Composite(_) if !(is_observed && is_instance(self.space, "Dict")) => {
                Spec::composite([(self.role, composite)])
            }
            picture if is_observed && is_picture(&picture) => {
                Spec::composite([("pixels", picture)])
            }
            other => other,
        };
        let names = spec.leaves(self.role);
        let names = names
            .into_iter()
            .map(|(key, _)| format!("{} {key:?} of {}", self.role, self.env));
        let names = names.collect();
        (spec, names)
    }

    /// A reader of the codec's structure, whose leaves are numbered in order.
    fn read_with(&self, codec: Codec, names: &mut impl Iterator<Item = (usize, String)>) -> Reader {
        let mut leaf = |dtype, shape| {
            let (index, name) = names.next().unwrap_or_default();
            Leaf {
                name,
                index,
                dtype,
                shape,
                losses: Losses::default(),
            }
        };
        match codec {
            Codec::Array { dtype, shape, .. } => Reader::Array(leaf(dtype, shape)),
            Codec::Choices { choices, shape } => Reader::Choices {
                leaf: leaf(DType::I64, shape),
                choices,
                one_hot: self.one_hot,
            },
            Codec::Object => Reader::Object(leaf(DType::Bytes, Vec::new())),
            Codec::Dict(entries) => Reader::Dict(
                entries
                    .into_iter()
                    .map(|(key, codec)| (key, self.read_with(codec, names)))
                    .collect(),
            ),
            Codec::Items(codecs) => Reader::Items(
                codecs
                    .into_iter()
                    .map(|codec| self.read_with(codec, names))
                    .collect(),
            ),
        }
    }

    /// As [`read_with`](Self::read_with), a writer.
    fn write_with(
        &self,
        codec: Codec,
        leaves: &mut impl Iterator<Item = usize>,
    ) -> PyResult<Writer> {
        Ok(match codec {
            Codec::Array { dtype, shape, cast } => Writer::Array {
                leaf: leaves.next().unwrap_or_default(),
                dtype,
                shape,
                cast,
            },
            Codec::Choices { choices, shape } => {
                let leaf = leaves.next().unwrap_or_default();
                Writer::choices(self.space.py(), leaf, choices, self.one_hot, shape)?
            }
            Codec::Object => return Err(self.unsupported()),
            Codec::Dict(entries) => Writer::Dict(
                entries
                    .into_iter()
                    .map(|(key, codec)| Ok((key, self.write_with(codec, leaves)?)))
                    .collect::<PyResult<_>>()?,
            ),
            Codec::Items(codecs) => Writer::Items(
                codecs
                    .into_iter()
                    .map(|codec| self.write_with(codec, leaves))
                    .collect::<PyResult<_>>()?,
            ),
        })
    }

    /// The spec and the codec of this space, and of those in it.
    fn parse(&self) -> PyResult<Parsed> {
        let space = self.space;
        let py = space.py();
        if is_instance(space, "Box") {
            self.parse_box()
        } else if is_instance(space, "Discrete") {
            let n = space.getattr(intern!(py, "n"))?.extract()?;
            let start = space.getattr(intern!(py, "start"))?.extract()?;
            Ok(self.choices(vec![n], vec![start], Vec::new()))
        } else if is_instance(space, "MultiDiscrete") {
            let flat = |name: &str| -> PyResult<Vec<i64>> {
                let values = space.getattr(name)?.call_method0("ravel")?;
                values.call_method0("tolist")?.extract()
            };
            let nvec = flat("nvec")?.into_iter().map(|n| n as usize).collect();
            Ok(self.choices(nvec, flat("start")?, shape_of(space)?))
        } else if is_instance(space, "MultiBinary") {
            let shape = shape_of(space)?;
            let spec = Spec::Binary {
                shape: Shape::from_slice(&shape),
            };
            let codec = Codec::Array {
                dtype: DType::I8,
                shape,
                cast: None,
            };
            Ok(Parsed::new(spec, codec))
        } else if is_instance(space, "Dict") {
            let (mut keys, mut spaces) = (Vec::new(), Vec::new());
            for item in space.getattr("spaces")?.call_method0("items")?.try_iter()? {
                let (key, space): (Bound<'_, PyString>, Bound<'_, PyAny>) = item?.extract()?;
                spaces.push((key.to_string(), space));
                keys.push(key.unbind());
            }
            let codec = |codecs| Codec::Dict(keys.into_iter().zip::<Vec<_>>(codecs).collect());
            self.parse_entries(spaces, codec)
        } else if is_instance(space, "Tuple") {
            let spaces = space.getattr("spaces")?.try_iter()?.enumerate();
            let spaces = spaces.map(|(i, space)| Ok((i.to_string(), space?)));
            self.parse_entries(spaces.collect::<PyResult<_>>()?, Codec::Items)
        } else if self.role == "observation" {
            let example = gil::call_method(&gil::ports(py)?, "example_of", (space,))?;
            Ok(Parsed {
                spec: Spec::unbounded(DType::Bytes, []),
                codec: Codec::Object,
                examples: vec![example.extract()?],
            })
        } else {
            Err(self.unsupported())
        }
    }

    /// The spec and the codec of several named spaces.
    fn parse_entries(
        &self,
        spaces: Vec<(String, Bound<'py, PyAny>)>,
        codec: impl FnOnce(Vec<Codec>) -> Codec,
    ) -> PyResult<Parsed> {
        let (mut specs, mut codecs, mut examples) = (Vec::new(), Vec::new(), Vec::new());
        for (name, space) in spaces {
            let parsed = self.inner(&space, name.clone()).parse()?;
            specs.push((name, parsed.spec));
            codecs.push(parsed.codec);
            examples.extend(parsed.examples);
        }
        Ok(Parsed {
            spec: Spec::Composite(specs),
            codec: codec(codecs),
            examples,
        })
    }

    /// The error of a space that has no spec, with a way out.
    #[cold]
    fn unsupported(&self) -> PyErr {
        let entry = match &self.entry[..] {
            [] => String::new(),
            names => format!(", entry {:?},", names.join(".")),
        };
        PyTypeError::new_err(format!(
            "the {} space of {}{entry} is not supported: expected Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these, got {}. A wrapper of Gymnasium, such as TransformAction, can make it of numbers",
            self.role, self.env, self.space
        ))
    }

    /// `space`, which lies in this one under `name`.
    fn inner<'b>(&'b self, space: &'b Bound<'py, PyAny>, name: String) -> Space<'b, 'py> {
        let mut entry = self.entry.clone();
        entry.push(name);
        Space {
            space,
            entry,
            ..*self
        }
    }

    /// A choice, or several: one-hot vectors where these were asked for. A single choice as an
    /// index is a scalar.
    fn choices(&self, nvec: Vec<usize>, start: Vec<i64>, shape: Vec<usize>) -> Parsed {
        let spec = match &nvec[..] {
            _ if self.one_hot => Spec::OneHot { nvec: nvec.clone() },
            [n] if shape.is_empty() => Spec::discrete(*n),
            _ => Spec::MultiDiscrete { nvec: nvec.clone() },
        };
        let choices = Choices { nvec, start };
        Parsed::new(spec, Codec::Choices { choices, shape })
    }

    /// A box of numbers. One without bounds in any element is unbounded; another keeps both bounds
    /// of each element.
    fn parse_box(&self) -> PyResult<Parsed> {
        let space = self.space;
        let shape = shape_of(space)?;
        let own = space.getattr("dtype")?;
        let name: String = own.getattr("name")?.extract()?;
        // Types that the engine has not: rows hold them in the next wider one, without loss but for
        // the upper half of uint64.
        let (dtype, is_wider) = match name.as_str() {
            "float16" => (DType::F32, true),
            "uint16" => (DType::I32, true),
            "uint32" | "uint64" => (DType::I64, true),
            name => {
                let same = DType::NUMBERS
                    .into_iter()
                    .find(|dtype| dtype.name() == name);
                let same = same.ok_or_else(|| {
                    PyTypeError::new_err(format!(
                        "the {} space of {} holds {name}, which is not supported",
                        self.role, self.env
                    ))
                })?;
                (same, false)
            }
        };
        let bound = |name: &str| -> PyResult<Vec<f64>> {
            let values = space.getattr(name)?.call_method0("ravel")?;
            values
                .call_method1("astype", ("float64",))?
                .call_method0("tolist")?
                .extract()
        };
        let (low, high) = (bound("low")?, bound("high")?);
        let is_free =
            low.iter().all(|x| *x == f64::NEG_INFINITY) && high.iter().all(|x| *x == f64::INFINITY);
        // A number alone is a vector of one.
        let size = match shape.is_empty() {
            true => Shape::from_slice(&[1]),
            false => Shape::from_slice(&shape),
        };
        let spec = match is_free {
            true => Spec::unbounded(dtype, size),
            false => Spec::Bounded {
                dtype,
                shape: size,
                low,
                high,
            },
        };
        let cast = is_wider.then(|| own.unbind());
        Ok(Parsed::new(spec, Codec::Array { dtype, shape, cast }))
    }
}

/// The shape of a space's values, for one environment.
fn shape_of(space: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    space.getattr("shape")?.extract()
}

/// Whether `space` is one of Gymnasium's spaces called `name`.
fn is_instance(space: &Bound<'_, PyAny>, name: &str) -> bool {
    let class = || space.py().import("gymnasium.spaces")?.getattr(name);
    class().is_ok_and(|class| space.is_instance(&class).unwrap_or(false))
}

/// Whether this is a picture in colours from 0 to 255, `[height, width, 3]`.
fn is_picture(spec: &Spec) -> bool {
    matches!(
        spec,
        Spec::Bounded { shape, low, high, .. }
            if shape.len() == 3
                && shape[2] == 3
                && low.iter().all(|&bound| bound == 0.0)
                && high.iter().all(|&bound| bound == 255.0)
    )
}
