//! Running statistics in the attributes of a wrapper.
//!
//! `NormalizeObservation` and `NormalizeReward` of Gymnasium keep mean, variance and count as
//! attributes of an object, `obs_rms` or `return_rms`. They stay there: a script that prints, saves
//! or replaces them finds what Gymnasium would have left, and a wrapper of a class that we do not
//! know can be stepped in Python again at any time. Only the arithmetic runs here, in Gymnasium's
//! order of operations and in its element type, so that results are equal to the last bit.
//!
//! Each function returns false, before it has changed anything, for values whose type it does not
//! know, such as statistics of the user's own class. The caller then steps the wrapper in Python.

use numpy::{PyArray1, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyType};
use tensordict::DType;

use super::numbers::{Numbers, Real, elements, exact, float64, new_array, only};
use super::{Returned, Reward};
use crate::env::gym::flag;

/// Normalises `numbers` by the statistics of `wrapper`, which they change first; false where these
/// are of another type.
#[inline]
pub(super) fn observation(wrapper: &Bound<'_, PyAny>, numbers: &mut Numbers) -> PyResult<bool> {
    let py = wrapper.py();
    let Some(epsilon) = exact(&wrapper.getattr(intern!(py, "epsilon"))?) else {
        return Ok(false);
    };
    let updates = wrapper.getattr(intern!(py, "_update_running_mean"))?;
    let rms = wrapper.getattr(intern!(py, "obs_rms"))?;
    if !is_gymnasiums(&rms)? {
        return Ok(false);
    }
    let (updates, shape) = (updates.is_truthy()?, &numbers.shape);
    match numbers.dtype {
        Some(DType::F64) => {
            if !normalise(&rms, &mut numbers.double, shape, epsilon, updates)? {
                return Ok(false);
            }
            numbers.single.clear();
            let narrow = numbers.double.iter().map(|&x| x as f32);
            numbers.single.extend(narrow);
            numbers.dtype = Some(DType::F32);
            Ok(true)
        }
        _ => normalise(&rms, &mut numbers.single, shape, epsilon, updates),
    }
}

/// Divides the reward by the deviation of discounted sums of rewards; false where values are of
/// another type.
#[inline]
pub(super) fn reward(wrapper: &Bound<'_, PyAny>, returned: &mut Returned<'_>) -> PyResult<bool> {
    let py = wrapper.py();
    let discounted = intern!(py, "discounted_reward");
    // Read anew at each step, since a script may set them on the wrapper between two steps.
    let (Some(reward), Ok(terminated), Some(gamma), Some(epsilon), Some(sum)) = (
        returned.reward.number(),
        flag("terminated", &returned.terminated),
        exact(&wrapper.getattr(intern!(py, "gamma"))?),
        exact(&wrapper.getattr(intern!(py, "epsilon"))?),
        only(&wrapper.getattr(discounted)?),
    ) else {
        return Ok(false);
    };
    let rms = wrapper.getattr(intern!(py, "return_rms"))?;
    if !is_gymnasiums(&rms)? {
        return Ok(false);
    }
    let updates = wrapper.getattr(intern!(py, "_update_running_mean"))?;
    let (mean, var) = (intern!(py, "mean"), intern!(py, "var"));
    let number = |of: &Bound<'_, PyAny>| of.cast::<PyFloat>().ok().map(|number| number.value());
    let (Some(old_mean), Some(old_var)) = (number(&rms.getattr(mean)?), number(&rms.getattr(var)?))
    else {
        return Ok(false);
    };
    let (mut moments, count) = ((old_mean, old_var), rms.getattr(intern!(py, "count"))?);
    let Some(count) = exact(&count) else {
        return Ok(false);
    };
    // As Gymnasium does: the sum begins anew with the last reward of an episode that was
    // terminated, and goes on into the next episode after one that was truncated.
    let sum = sum * gamma * f64::from(u8::from(!terminated)) + reward;
    wrapper.setattr(discounted, PyArray1::from_slice(py, &[sum]))?;
    if updates.is_truthy()? {
        moments = updated(moments, sum, count, count + 1.0);
        rms.setattr(mean, float64(py, moments.0)?)?;
        rms.setattr(var, float64(py, moments.1)?)?;
        rms.setattr(intern!(py, "count"), count + 1.0)?;
    }
    returned.reward = Reward::Number(reward / (moments.1 + epsilon).sqrt());
    Ok(true)
}

/// Whether statistics are of Gymnasium's own class.
fn is_gymnasiums(rms: &Bound<'_, PyAny>) -> PyResult<bool> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.import(rms.py(), "gymnasium.wrappers.utils", "RunningMeanStd")?;
    Ok(rms.get_type().is(class))
}

/// Mean and variance with one more value, after which there are `total`: Gymnasium's operations in
/// its order.
#[inline(always)]
#[expect(clippy::eq_op, reason = "an infinity differs from itself by NaN")]
fn updated<T: Real>((mean, var): (T, T), x: T, count: T, total: T) -> (T, T) {
    let (delta, own) = (x - mean, x - x);
    let squares = var * count + own * own + delta * delta * count / total;
    (mean + delta / total, squares / total)
}

/// Normalises `values` by the statistics `rms`, which are changed first where `updates`; false
/// where they are of another type.
fn normalise<T: Real>(
    rms: &Bound<'_, PyAny>,
    values: &mut [T],
    shape: &[usize],
    epsilon: f64,
    updates: bool,
) -> PyResult<bool> {
    let py = rms.py();
    let (mean, var, count) = (
        rms.getattr(intern!(py, "mean"))?,
        rms.getattr(intern!(py, "var"))?,
        rms.getattr(intern!(py, "count"))?,
    );
    let (Ok(mean), Ok(var), Some(count)) = (
        mean.cast::<PyArrayDyn<T>>(),
        var.cast::<PyArrayDyn<T>>(),
        exact(&count),
    ) else {
        return Ok(false);
    };
    // SAFETY: the interpreter's lock is held and no Python code runs before the elements are copied
    // or used.
    let (Some(means), Some(vars)) = (unsafe { (elements(mean), elements(var)) }) else {
        return Ok(false);
    };
    if mean.shape() != shape || var.shape() != shape {
        return Ok(false);
    }
    let epsilon = T::of(epsilon);
    if !updates {
        for ((x, &mean), &var) in values.iter_mut().zip(means).zip(vars) {
            *x = (*x - mean) / (var + epsilon).sqrt();
        }
        return Ok(true);
    }
    // New arrays, as a user may hold the old ones.
    let new_mean = new_array(py, means, shape)?;
    let new_var = new_array(py, vars, shape)?;
    let (means, vars) = (
        new_mean.cast::<PyArrayDyn<T>>()?,
        new_var.cast::<PyArrayDyn<T>>()?,
    );
    // SAFETY: both were just made, and nothing else refers to them.
    let (means, vars) = unsafe { (means.as_slice_mut()?, vars.as_slice_mut()?) };
    let (before, total) = (T::of(count), T::of(count + 1.0));
    for ((x, mean), var) in values.iter_mut().zip(means).zip(vars) {
        (*mean, *var) = updated((*mean, *var), *x, before, total);
        *x = (*x - *mean) / (*var + epsilon).sqrt();
    }
    rms.setattr(intern!(py, "mean"), new_mean)?;
    rms.setattr(intern!(py, "var"), new_var)?;
    rms.setattr(intern!(py, "count"), count + 1.0)?;
    Ok(true)
}
