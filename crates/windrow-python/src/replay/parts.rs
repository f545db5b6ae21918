//! Storages, samplers, writers and limiters of `windrow.data`, made into those of the engine.
//!
//! Python hands over each part as a dictionary: its arguments by name and, as `kind`, the name of
//! its class. Tables here have an entry for each class. A new sampler needs one more entry in
//! [`SAMPLERS`], which reads the arguments that its class declares.

use std::path::PathBuf;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use windrow::error_chain;
use windrow::replay::{
    ConsumingSampler, GoalStrategy, HindsightSampler, LazyMemmapStorage, LazyTensorStorage,
    ListStorage, MaxRewardWriter, Priorities, PrioritizedSampler, PrioritizedSliceSampler,
    RandomSampler, RateLimiter, Reduction, ReplayBuffer, ReplayBufferBuilder, ReuseWriter,
    RoundRobinWriter, RunKeys, Sampler, SamplerWithoutReplacement, SliceSampler,
    SliceSamplerWithoutReplacement, Writer,
};
use windrow::tensordict::NestedKey;

use crate::batch;
use crate::env::Key;

/// The arguments of a buffer.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Parts<'py> {
    storage: Arguments<'py>,
    sampler: Arguments<'py>,
    writer: Arguments<'py>,
    limiter: Option<LimiterArguments>,
    /// Frames of a sample that names no number.
    batch_size: Option<usize>,
    seed: Option<u64>,
    /// In seconds; writes wait as long for a limiter.
    pub(super) sample_timeout: f64,
    /// The device that batches name, `torch.device("cpu")` or none.
    pub(super) device: Option<Py<PyAny>>,
}

/// The arguments of a limiter.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct LimiterArguments {
    /// Frames sampled for each frame written; none for a limiter that only waits for a first number
    /// of frames.
    samples_per_insert: Option<f64>,
    /// Frames in the buffer before the first sample.
    min_size_to_sample: usize,
    /// Sampled frames by which writes and samples may be off the ratio, to either side.
    error_buffer: f64,
}

/// The arguments of one part, by name.
pub(super) struct Arguments<'py>(Bound<'py, PyAny>);

impl<'py> FromPyObject<'_, 'py> for Arguments<'py> {
    type Error = PyErr;

    fn extract(part: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(part.to_owned()))
    }
}

/// How a part of some class is made of its arguments.
type Make<T> = fn(&Arguments<'_>) -> PyResult<T>;

/// Samplers by their classes in Python.
const SAMPLERS: &[(&str, Make<Box<dyn Sampler>>)] = &[
    ("RandomSampler", |_| Ok(RandomSampler::new().into())),
    ("SamplerWithoutReplacement", |of| {
        let sampler = SamplerWithoutReplacement::new().drop_last(of.get("drop_last")?);
        Ok(sampler.shuffle(of.get("shuffle")?).into())
    }),
    ("ConsumingSampler", |of| {
        Ok(ConsumingSampler::new(of.get("max_sample_count")?).into())
    }),
    ("HERSampler", |of| {
        let sampler = HindsightSampler::new(of.get("her_ratio")?);
        Ok(sampler.strategy(strategy(of)?).keys(run_keys(of)?).into())
    }),
    ("SliceSampler", |of| Ok(slices(of)?.into())),
    ("SliceSamplerWithoutReplacement", |of| {
        let sampler = SliceSamplerWithoutReplacement::new(slices(of)?);
        let sampler = sampler.drop_last(of.get("drop_last")?);
        Ok(sampler.shuffle(of.get("shuffle")?).into())
    }),
    ("PrioritizedSampler", |of| {
        Ok(PrioritizedSampler::of(priorities(of)?).into())
    }),
    ("PrioritizedSliceSampler", |of| {
        Ok(PrioritizedSliceSampler::of(slices(of)?, priorities(of)?).into())
    }),
];

/// Writers by their classes in Python.
const WRITERS: &[(&str, Make<Box<dyn Writer>>)] = &[
    ("RoundRobinWriter", |_| Ok(RoundRobinWriter::new().into())),
    ("ReuseWriter", |_| Ok(ReuseWriter::new().into())),
    ("TensorDictMaxValueWriter", |of| {
        let key = of.key("rank_key")?;
        let key = key.unwrap_or_else(|| ("next", "reward").into());
        Ok(MaxRewardWriter::new(key).reduction(reduction(of)?).into())
    }),
];

/// Buffers of a storage, by its class in Python.
const STORAGES: &[(&str, Make<ReplayBufferBuilder>)] = &[
    ("LazyTensorStorage", |of| {
        Ok(ReplayBuffer::builder().storage(LazyTensorStorage::new(of.get("max_size")?)))
    }),
    ("ListStorage", |of| {
        let storage = ListStorage::new(of.get("max_size")?).values_of(batch::values_of);
        Ok(ReplayBuffer::builder().storage(storage))
    }),
    ("LazyMemmapStorage", |of| {
        let storage = LazyMemmapStorage::new(of.get("max_size")?);
        let storage = match of.get::<Option<PathBuf>>("scratch_dir")? {
            None => storage,
            // Without the interpreter's lock: making a directory may wait for a slow disk.
            Some(directory) => (of.0.py())
                .detach(|| storage.at(directory))
                .map_err(|error| PyOSError::new_err(error_chain(&error)))?,
        };
        Ok(ReplayBuffer::builder().storage(storage))
    }),
];

impl Parts<'_> {
    /// The builder that does as these parts say.
    ///
    /// # Errors
    /// `TypeError` for an argument of another type, `ValueError` for an unknown class or reduction
    /// and for a limiter that lets nothing through, those of the storage's directory.
    pub(super) fn builder(self) -> PyResult<ReplayBufferBuilder> {
        let mut builder = (self.storage.made_by("storage", STORAGES)?)
            .sampler(self.sampler.sampler()?)
            .writer(self.writer.made_by("writer", WRITERS)?);
        if let Some(limiter) = self.limiter {
            builder = builder.limiter(limiter.limiter()?);
        }
        if let Some(batch_size) = self.batch_size {
            builder = builder.batch_size(batch_size);
        }
        if let Some(seed) = self.seed {
            builder = builder.seed(seed);
        }
        Ok(builder)
    }
}

impl Arguments<'_> {
    /// The sampler of these arguments.
    ///
    /// # Errors
    /// `TypeError` for an argument of another type, `ValueError` for an unknown class or reduction.
    pub(super) fn sampler(&self) -> PyResult<Box<dyn Sampler>> {
        self.made_by("sampler", SAMPLERS)
    }

    /// The part that `table` makes of these arguments.
    ///
    /// # Errors
    /// `ValueError` for a class that the table does not have.
    fn made_by<T>(&self, part: &str, table: &[(&str, Make<T>)]) -> PyResult<T> {
        let kind: String = self.get("kind")?;
        match table.iter().find(|(class, _)| *class == kind) {
            Some((_, make)) => make(self),
            None => Err(PyValueError::new_err(format!(
                "expected a {part}, got {kind}"
            ))),
        }
    }

    /// The argument `name`.
    ///
    /// # Errors
    /// `TypeError` naming the argument when it is of another type.
    fn get<T: for<'py> FromPyObjectOwned<'py>>(&self, name: &str) -> PyResult<T> {
        let py = self.0.py();
        let read = extracted::<T>(&self.0.get_item(name)?);
        read.map_err(|error| {
            if error.is_instance_of::<PyTypeError>(py) {
                PyTypeError::new_err(format!("{name}: {}", error.value(py)))
            } else {
                error
            }
        })
    }

    /// The argument `name`, the key of an entry: a name, or several of them.
    fn key(&self, name: &str) -> PyResult<Option<NestedKey>> {
        Ok(self.get::<Option<Key>>(name)?.map(|key| key.0))
    }
}

/// `value` as a `T`, with the error of any extraction as an exception.
fn extracted<'py, T: FromPyObjectOwned<'py>>(value: &Bound<'py, PyAny>) -> PyResult<T> {
    value.extract().map_err(Into::into)
}

/// How priorities become probabilities and weights.
fn priorities(of: &Arguments<'_>) -> PyResult<Priorities> {
    let priorities = Priorities::new(of.get("alpha")?, of.get("beta")?).eps(of.get("eps")?);
    let reduction = reduction(of)?;
    Ok(match of.key("priority_key")? {
        Some(key) => priorities.key(key, reduction),
        None => priorities,
    })
}

/// The slices of these arguments.
fn slices(of: &Arguments<'_>) -> PyResult<SliceSampler> {
    let sampler = match (of.get("slice_len")?, of.get("num_slices")?) {
        (Some(len), None) => SliceSampler::slice_len(len),
        (None, Some(count)) => SliceSampler::num_slices(count),
        _ => {
            return Err(PyValueError::new_err(
                "expected either slice_len or num_slices, got both or neither",
            ));
        }
    };
    let whole = |steps: Option<usize>| steps.unwrap_or(SliceSampler::WHOLE);
    let (left, right) = of.get("span")?;
    let mut sampler = sampler
        .strict_length(of.get("strict_length")?)
        .pad_output(of.get("pad_output")?)
        .span(whole(left), whole(right))
        .stride(of.get("stride")?)
        .burn_in(of.get("burn_in")?)
        .truncated_key(of.key("truncated_key")?);
    if let Some(end_key) = of.key("end_key")? {
        sampler = sampler.end_key(end_key);
    }
    if let Some(traj_key) = of.key("traj_key")? {
        sampler = sampler.traj_key(traj_key);
    }
    Ok(sampler)
}

impl LimiterArguments {
    /// The limiter of these arguments.
    ///
    /// # Errors
    /// `ValueError` for arguments that would let nothing through.
    fn limiter(&self) -> PyResult<RateLimiter> {
        let Some(samples_per_insert) = self.samples_per_insert else {
            return Ok(RateLimiter::min_size(self.min_size_to_sample));
        };
        RateLimiter::sample_to_insert_ratio(
            samples_per_insert,
            self.min_size_to_sample,
            self.error_buffer,
        )
        .map_err(|error| PyValueError::new_err(error_chain(&error)))
    }
}

/// The argument `strategy`: where goals are taken from.
fn strategy(of: &Arguments<'_>) -> PyResult<GoalStrategy> {
    let name: String = of.get("strategy")?;
    Ok(match name.as_str() {
        "future" => GoalStrategy::Future,
        "final" => GoalStrategy::Final,
        "episode" => GoalStrategy::Episode,
        "random" => GoalStrategy::Random,
        other => {
            return Err(PyValueError::new_err(format!(
                "strategy must be \"future\", \"final\", \"episode\" or \"random\", got {other:?}"
            )));
        }
    })
}

/// The keys that separate trajectories.
fn run_keys(of: &Arguments<'_>) -> PyResult<RunKeys> {
    Ok(RunKeys {
        end_key: of.key("end_key")?,
        traj_key: of.key("traj_key")?,
    })
}

/// The argument `reduction`: how the several values of a row make the one that rows are compared
/// by.
fn reduction(of: &Arguments<'_>) -> PyResult<Reduction> {
    let name: String = of.get("reduction")?;
    Ok(match name.as_str() {
        "sum" => Reduction::Sum,
        "mean" => Reduction::Mean,
        "max" => Reduction::Max,
        "min" => Reduction::Min,
        "median" => Reduction::Median,
        other => {
            return Err(PyValueError::new_err(format!(
                "reduction must be \"sum\", \"mean\", \"max\", \"min\" or \"median\", got {other:?}"
            )));
        }
    })
}
