//! From what Python says of a buffer's parts to a builder.

use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use windrow::replay::{
    LazyMemmapStorage, LazyTensorStorage, ListStorage, MaxRewardWriter, PrioritizedSampler,
    PrioritizedSliceSampler, RandomSampler, RateLimiter, Reduction, ReplayBuffer,
    ReplayBufferBuilder, Sampler, SamplerWithoutReplacement, SliceSampler,
    SliceSamplerWithoutReplacement,
};
use windrow::tensordict::NestedKey;

/// What the classes of `windrow.data` have made of their arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Parts {
    storage: StorageParts,
    sampler: SamplerParts,
    writer: Option<WriterParts>,
    limiter: Option<LimiterParts>,
    batch_size: Option<usize>,
    seed: Option<u64>,
    pub(super) sample_timeout: f64,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct StorageParts {
    kind: String,
    max_size: usize,
    directory: Option<PathBuf>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct SamplerParts {
    kind: String,
    drop_last: bool,
    shuffle: bool,
    priorities: Option<PriorityParts>,
    slices: Option<SliceParts>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct PriorityParts {
    exponents: (f64, f64, f64),
    key: Option<Vec<String>>,
    reduction: String,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct SliceParts {
    num_slices: Option<usize>,
    slice_len: Option<usize>,
    end_key: Option<Vec<String>>,
    traj_key: Option<Vec<String>>,
    truncated_key: Option<Vec<String>>,
    strict_length: bool,
    pad_output: bool,
    span: (Option<usize>, Option<usize>),
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct WriterParts {
    key: Vec<String>,
    reduction: String,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct LimiterParts {
    samples_per_insert: Option<f64>,
    min_size_to_sample: usize,
    error_buffer: f64,
}

impl Parts {
    /// The builder that does as these parts say.
    ///
    /// # Errors
    /// `ValueError` for a name that there is not and for a limiter that lets nothing through, those of the storage's directory.
    pub(super) fn builder(self, py: Python<'_>) -> PyResult<ReplayBufferBuilder> {
        let mut builder = self.storage.add_to(py)?.sampler(self.sampler.sampler()?);
        if let Some(writer) = self.writer {
            builder = builder.writer(writer.writer()?);
        }
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

impl StorageParts {
    fn add_to(self, py: Python<'_>) -> PyResult<ReplayBufferBuilder> {
        let builder = ReplayBuffer::builder();
        Ok(match self.kind.as_str() {
            "tensor" => builder.storage(LazyTensorStorage::new(self.max_size)),
            "list" => builder.storage(ListStorage::new(self.max_size)),
            "memmap" => {
                let storage = LazyMemmapStorage::new(self.max_size);
                builder.storage(match self.directory {
                    None => storage,
                    Some(directory) => py
                        .detach(|| storage.at(directory))
                        .map_err(|error| PyOSError::new_err(error.to_string()))?,
                })
            }
            other => {
                return Err(PyValueError::new_err(format!(
                    "expected a storage, got {other}"
                )));
            }
        })
    }
}

impl SamplerParts {
    /// The sampler that these parts describe.
    ///
    /// # Errors
    /// `ValueError` for a name that there is not.
    pub(super) fn sampler(self) -> PyResult<Box<dyn Sampler>> {
        Ok(match (self.slices, self.priorities) {
            (Some(slices), Some(priorities)) => priorities.slice_sampler(slices.sampler()?)?.into(),
            (Some(slices), None) => match self.kind.as_str() {
                "without_replacement" => SliceSamplerWithoutReplacement::new(slices.sampler()?)
                    .drop_last(self.drop_last)
                    .shuffle(self.shuffle)
                    .into(),
                _ => slices.sampler()?.into(),
            },
            (None, Some(priorities)) => priorities.sampler()?.into(),
            (None, None) => match self.kind.as_str() {
                "random" => RandomSampler::new().into(),
                "without_replacement" => SamplerWithoutReplacement::new()
                    .drop_last(self.drop_last)
                    .shuffle(self.shuffle)
                    .into(),
                other => {
                    return Err(PyValueError::new_err(format!(
                        "expected a sampler, got {other}"
                    )));
                }
            },
        })
    }
}

impl PriorityParts {
    fn sampler(&self) -> PyResult<PrioritizedSampler> {
        let (alpha, beta, eps) = self.exponents;
        let sampler = PrioritizedSampler::new(alpha, beta).eps(eps);
        Ok(match &self.key {
            Some(names) => sampler.priority_key(key(names), reduction(&self.reduction)?),
            None => sampler,
        })
    }

    fn slice_sampler(&self, slices: SliceSampler) -> PyResult<PrioritizedSliceSampler> {
        let (alpha, beta, eps) = self.exponents;
        let sampler = PrioritizedSliceSampler::new(slices, alpha, beta).eps(eps);
        Ok(match &self.key {
            Some(names) => sampler.priority_key(key(names), reduction(&self.reduction)?),
            None => sampler,
        })
    }
}

impl SliceParts {
    fn sampler(self) -> PyResult<SliceSampler> {
        let sampler = match (self.slice_len, self.num_slices) {
            (Some(len), None) => SliceSampler::slice_len(len),
            (None, Some(count)) => SliceSampler::num_slices(count),
            _ => {
                return Err(PyValueError::new_err(
                    "expected either slice_len or num_slices",
                ));
            }
        };
        let whole = |steps: Option<usize>| steps.unwrap_or(SliceSampler::WHOLE);
        let mut sampler = sampler
            .strict_length(self.strict_length)
            .pad_output(self.pad_output)
            .span(whole(self.span.0), whole(self.span.1))
            .truncated_key(self.truncated_key.as_deref().map(key));
        if let Some(end_key) = &self.end_key {
            sampler = sampler.end_key(key(end_key));
        }
        if let Some(traj_key) = &self.traj_key {
            sampler = sampler.traj_key(key(traj_key));
        }
        Ok(sampler)
    }
}

impl WriterParts {
    fn writer(&self) -> PyResult<MaxRewardWriter> {
        Ok(MaxRewardWriter::new(key(&self.key)).reduction(reduction(&self.reduction)?))
    }
}

impl LimiterParts {
    fn limiter(&self) -> PyResult<RateLimiter> {
        let Some(samples_per_insert) = self.samples_per_insert else {
            return Ok(RateLimiter::min_size(self.min_size_to_sample));
        };
        RateLimiter::sample_to_insert_ratio(
            samples_per_insert,
            self.min_size_to_sample,
            self.error_buffer,
        )
        .map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

fn reduction(name: &str) -> PyResult<Reduction> {
    Ok(match name {
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

fn key(names: &[String]) -> NestedKey {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    NestedKey::from(&names[..])
}
