//! Wrappers of Gymnasium around a world, whose steps run here.
//!
//! `windrow.envs._gym_wrappers` takes the wrappers that it knows off an environment, from the
//! outside in. The engine then steps the environment inside, and changes actions, observations and
//! rewards as the wrappers would, in numpy's element types and in the same order of operations, so
//! that no bit differs.
//!
//! State stays in the wrappers' own attributes, which are read and written at each step: statistics
//! that a user saves, sets, shares or freezes there are true at any time. Resets, and values of
//! other types than the usual ones, go through the wrappers' own code.

mod numbers;
mod running;

use numpy::{PyArrayDyn, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyTuple};
use tensordict::DType;
use windrow::envs::EnvError;

use self::numbers::{Numbers, clip, clip_all, clip_between, float64, in_place};
use super::read::Reader;
use super::rows::Target;
use super::source::Held;
use crate::gc::GcRef;
use crate::gil;

/// The wrappers that were taken off an environment.
#[derive(Debug)]
pub(super) struct Wrappers {
    /// The outermost first.
    layers: Vec<Layer>,
    numbers: Numbers,
    /// The `step` of the environment inside.
    step: GcRef,
}

#[derive(Debug)]
struct Layer {
    work: Work,
    wrapper: GcRef,
    /// The wrapper's own code: it takes an observation, a reward, an action, or all values of a
    /// step.
    own: GcRef,
    /// The function in the wrapper that `work` stands for, as long as nobody puts another one
    /// there.
    func: Option<GcRef>,
}

#[derive(Debug)]
enum Work {
    /// The wrapper's own code, for observations.
    Observation,
    /// The wrapper's own code, for rewards.
    Reward,
    /// The wrapper's own code, for actions.
    Action,
    /// The wrapper's own code, for all that a step returns.
    Step,
    EpisodeStatistics,
    /// Numbers of this type and shape stay as they are.
    Flatten(DType, Vec<usize>),
    NormalizeObservation(Vec<usize>),
    NormalizeReward,
    ClipObservation([f64; 2]),
    ClipReward([f64; 2]),
    ClipAction([Vec<f32>; 2]),
    /// An intercept is subtracted, then a gradient divides.
    RescaleAction([Vec<f32>; 2]),
}

/// What a step returned.
pub(super) struct Returned<'py> {
    /// None where the wrappers have it.
    pub(super) observation: Option<Bound<'py, PyAny>>,
    pub(super) reward: Reward<'py>,
    pub(super) terminated: Bound<'py, PyAny>,
    pub(super) truncated: Bound<'py, PyAny>,
    pub(super) info: Bound<'py, PyAny>,
}

/// A reward as it came, or a number that stands for a `float64` of numpy.
pub(super) enum Reward<'py> {
    Object(Bound<'py, PyAny>),
    Number(f64),
}

impl Wrappers {
    /// Takes the known wrappers off the environment of `held`.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where it has no `step`.
    pub(super) fn of(py: Python<'_>, held: &Held) -> Result<Self, EnvError> {
        type Found<'py> = (
            String,
            Bound<'py, PyAny>,
            Bound<'py, PyAny>,
            Bound<'py, PyAny>,
        );
        let peel = || -> PyResult<Self> {
            let peeled = gil::call_method(&gil::ports(py)?, "peel", (held.object.bind(py),))?;
            let (inside, layers): (Bound<'_, PyAny>, Vec<Found<'_>>) = peeled.extract()?;
            let layers = layers.into_iter().map(|(name, wrapper, own, arguments)| {
                let work = Work::read(&name, &arguments)?;
                let func = (!std::ptr::eq(work.without_func(), &work))
                    .then(|| wrapper.getattr(intern!(py, "func")));
                Ok(Layer {
                    work,
                    wrapper: held.hold(&wrapper),
                    own: held.hold(&own),
                    func: func.transpose()?.map(|func| held.hold(&func)),
                })
            });
            Ok(Self {
                layers: layers.collect::<PyResult<_>>()?,
                numbers: Numbers::default(),
                step: held.hold(&inside.getattr("step")?),
            })
        };
        peel().map_err(EnvError::failed)
    }

    /// Steps the environment inside by `action` and returns what it returned. Where nothing else
    /// will read it, the action `is_ours` to change in place.
    ///
    /// # Errors
    /// What the environment or a wrapper raises.
    #[inline]
    pub(super) fn step<'py>(
        &mut self,
        action: &Bound<'py, PyAny>,
        mut is_ours: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = action.py();
        let mut action = action.clone();
        for layer in &self.layers {
            layer.act(&mut action, &mut is_ours)?;
        }
        let result = gil::call(self.step.bind(py), (action,), None)?;
        if self.layers.is_empty() || result.is_instance_of::<PyTuple>() {
            return Ok(result);
        }
        // A wrapper takes the values apart, whatever holds them.
        let values = result.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        Ok(PyTuple::new(py, values)?.into_any())
    }

    /// Changes what the environment inside returned.
    ///
    /// # Errors
    /// What a wrapper raises.
    #[inline]
    pub(super) fn change(&mut self, returned: &mut Returned<'_>) -> PyResult<()> {
        let mut layers = self.layers.iter().rev();
        layers.try_for_each(|layer| layer.change(&mut self.numbers, returned))
    }

    /// Writes the observation that the wrappers have.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub(super) fn write(
        &self,
        py: Python<'_>,
        reader: &Reader,
        target: &mut Target<'_>,
    ) -> Result<(), EnvError> {
        if let Reader::Array(leaf) = reader
            && self.numbers.dtype == Some(leaf.dtype)
            && self.numbers.shape == leaf.shape
        {
            match leaf.dtype {
                DType::F64 => {
                    let to = target.leaf::<f64>(leaf.index)?;
                    to.copy_from_slice(&self.numbers.double);
                }
                _ => {
                    let to = target.leaf::<f32>(leaf.index)?;
                    to.copy_from_slice(&self.numbers.single);
                }
            }
            return Ok(());
        }
        let object = self.numbers.object(py).map_err(EnvError::failed)?;
        reader.read(&object, target)
    }
}

impl Work {
    fn read(name: &str, arguments: &Bound<'_, PyAny>) -> PyResult<Self> {
        let floats = || -> PyResult<[Vec<f32>; 2]> {
            let [first, second]: [Bound<'_, PyArrayDyn<f32>>; 2] = arguments.extract()?;
            Ok([first.to_vec()?, second.to_vec()?])
        };
        Ok(match name {
            "observation" => Self::Observation,
            "reward" => Self::Reward,
            "action" => Self::Action,
            "step" => Self::Step,
            "RecordEpisodeStatistics" => Self::EpisodeStatistics,
            "FlattenObservation" => {
                let (dtype, shape): (String, _) = arguments.extract()?;
                let dtype = if dtype == "float64" {
                    DType::F64
                } else {
                    DType::F32
                };
                Self::Flatten(dtype, shape)
            }
            "NormalizeObservation" => Self::NormalizeObservation(arguments.extract()?),
            "NormalizeReward" => Self::NormalizeReward,
            "TransformObservation" => Self::ClipObservation(arguments.extract()?),
            "TransformReward" | "ClipReward" => Self::ClipReward(arguments.extract()?),
            "ClipAction" => Self::ClipAction(floats()?),
            "RescaleAction" => Self::RescaleAction(floats()?),
            other => {
                let message = format!("the engine runs no wrapper {other:?}");
                return Err(PyValueError::new_err(message));
            }
        })
    }

    /// The wrapper's own code instead of what its function is known to do.
    fn without_func(&self) -> &Self {
        match self {
            Self::Flatten(..) | Self::ClipObservation(_) => &Self::Observation,
            Self::ClipReward(_) => &Self::Reward,
            Self::ClipAction(_) | Self::RescaleAction(_) => &Self::Action,
            other => other,
        }
    }
}

impl Layer {
    /// What is to be done now.
    #[inline]
    fn work(&self, py: Python<'_>) -> PyResult<&Work> {
        let Some(func) = &self.func else {
            return Ok(&self.work);
        };
        let now = self.wrapper.bind(py).getattr(intern!(py, "func"))?;
        Ok(match now.is(func.bind(py)) {
            true => &self.work,
            false => self.work.without_func(),
        })
    }

    /// Changes an action on its way in; one that `is_ours` can be changed in place.
    #[inline]
    fn act(&self, action: &mut Bound<'_, PyAny>, is_ours: &mut bool) -> PyResult<()> {
        let changed = match self.work(action.py())? {
            Work::ClipAction([low, high]) => {
                *is_ours && in_place(action, [low, high], clip_between)
            }
            Work::RescaleAction([intercept, gradient]) => {
                *is_ours
                    && in_place(action, [intercept, gradient], |x, intercept, gradient| {
                        (x - intercept) / gradient
                    })
            }
            Work::Action => false,
            _ => return Ok(()),
        };
        if !changed {
            *action = gil::call(self.own.bind(action.py()), (&*action,), None)?;
            *is_ours = false;
        }
        Ok(())
    }

    /// Changes what a step returned on its way out.
    #[inline]
    fn change<'py>(&self, numbers: &mut Numbers, returned: &mut Returned<'py>) -> PyResult<()> {
        if matches!(
            self.work,
            Work::Action | Work::ClipAction(_) | Work::RescaleAction(_)
        ) {
            return Ok(());
        }
        let py = returned.info.py();
        match self.work(py)? {
            Work::Step => self.own_step(numbers, returned),
            Work::EpisodeStatistics => {
                if returned.terminated.is_truthy()? || returned.truncated.is_truthy()? {
                    return self.own_step(numbers, returned);
                }
                self.count(py, returned)
            }
            Work::NormalizeReward => match running::reward(self.wrapper.bind(py), returned)? {
                true => Ok(()),
                false => self.own_step(numbers, returned),
            },
            work @ (Work::Reward | Work::ClipReward(_)) => {
                returned.reward = match (work, returned.reward.number()) {
                    (Work::ClipReward([low, high]), Some(reward)) => {
                        Reward::Number(clip(reward, *low, *high))
                    }
                    _ => {
                        let reward = returned.reward.object(py)?;
                        Reward::Object(gil::call(self.own.bind(py), (reward,), None)?)
                    }
                };
                Ok(())
            }
            work => {
                if self.observe(py, work, numbers, returned.observation.as_ref())? {
                    returned.observation = None;
                } else {
                    let seen = returned.take(py, numbers)?;
                    returned.observation = Some(gil::call(self.own.bind(py), (seen,), None)?);
                }
                Ok(())
            }
        }
    }

    /// Changes an observation of numbers; false where it is none.
    #[inline]
    fn observe(
        &self,
        py: Python<'_>,
        work: &Work,
        numbers: &mut Numbers,
        observation: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        if matches!(work, Work::Observation) {
            return Ok(false);
        }
        if let Some(observation) = observation
            && !numbers.load(observation)
        {
            return Ok(false);
        }
        match work {
            Work::Flatten(dtype, shape) => {
                if numbers.dtype != Some(*dtype) || numbers.shape != *shape {
                    return Ok(false);
                }
                let elements = shape.iter().product();
                numbers.shape.clear();
                numbers.shape.push(elements);
                Ok(true)
            }
            Work::ClipObservation([low, high]) => {
                match numbers.dtype {
                    Some(DType::F64) => clip_all(&mut numbers.double, *low, *high),
                    _ => clip_all(&mut numbers.single, *low as f32, *high as f32),
                }
                Ok(true)
            }
            Work::NormalizeObservation(shape) if numbers.shape == *shape => {
                running::observation(self.wrapper.bind(py), numbers)
            }
            _ => Ok(false),
        }
    }

    /// The wrapper's own code, for all that a step returned.
    #[cold]
    fn own_step<'py>(&self, numbers: &Numbers, returned: &mut Returned<'py>) -> PyResult<()> {
        let py = returned.info.py();
        let values = (
            returned.take(py, numbers)?,
            returned.reward.object(py)?,
            &returned.terminated,
            &returned.truncated,
            &returned.info,
        );
        let changed = gil::call(self.own.bind(py), (values,), None)?;
        *returned = Returned::of(changed.cast()?)?;
        Ok(())
    }

    /// Adds to an episode's return and length, as long as it goes on.
    #[inline]
    fn count(&self, py: Python<'_>, returned: &Returned<'_>) -> PyResult<()> {
        let wrapper = self.wrapper.bind(py);
        let (sum, length) = (
            intern!(py, "episode_returns"),
            intern!(py, "episode_lengths"),
        );
        wrapper.setattr(sum, wrapper.getattr(sum)?.add(returned.reward.object(py)?)?)?;
        wrapper.setattr(length, wrapper.getattr(length)?.add(1)?)
    }
}

impl<'py> Returned<'py> {
    /// The five values of a step.
    ///
    /// # Errors
    /// `IndexError` where there are fewer.
    pub(super) fn of(values: &Bound<'py, PyTuple>) -> PyResult<Self> {
        Ok(Self {
            observation: Some(values.get_item(0)?),
            reward: Reward::Object(values.get_item(1)?),
            terminated: values.get_item(2)?,
            truncated: values.get_item(3)?,
            info: values.get_item(4)?,
        })
    }

    /// The observation as an object of Python's.
    fn take(&mut self, py: Python<'py>, numbers: &Numbers) -> PyResult<Bound<'py, PyAny>> {
        match self.observation.take() {
            Some(observation) => Ok(observation),
            None => numbers.object(py),
        }
    }
}

impl<'py> Reward<'py> {
    /// A number that is, or counts as, a `float64`.
    #[inline]
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(reward) => Some(*reward),
            Self::Object(object) => object.cast::<PyFloat>().ok().map(|reward| reward.value()),
        }
    }

    /// The object that came, or a `float64` of numpy.
    fn object(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Number(reward) => float64(py, *reward),
            Self::Object(object) => Ok(object.clone()),
        }
    }
}
