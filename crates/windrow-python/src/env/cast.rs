//! Casts of numbers to another element type, and reports of what they lose.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::intern;
use pyo3::prelude::*;
use tensordict::DType;

use crate::gil;

/// Whole numbers up to this one are exact as `f64`. If `f32` rounds one of them, information is
/// lost, so it is reported.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// An array in another element type.
pub(super) enum Cast<'py> {
    /// The numbers are those of the original, except for digits after the decimal point.
    Kept(Bound<'py, PyAny>),
    /// Some whole number was rounded: the array, the first such number, and its rounded value.
    Rounded(Bound<'py, PyAny>, [Bound<'py, PyAny>; 2]),
    /// The type cannot hold this element.
    Lost(Bound<'py, PyAny>),
}

/// A new array of `dtype` in the order of C with the elements of `array`. Numbers may lose digits,
/// but no integer wraps and no finite number becomes infinite.
///
/// # Errors
/// What numpy raises.
pub(super) fn cast<'py>(
    array: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyAny>,
) -> PyResult<Cast<'py>> {
    let py = array.py();
    let numpy = py.import(intern!(py, "numpy"))?;
    let cast = array.call_method1(intern!(py, "astype"), (dtype, "C"))?;
    let own = array.getattr(intern!(py, "dtype"))?;
    if numpy.call_method1("can_cast", (own, dtype))?.is_truthy()? {
        return Ok(Cast::Kept(cast));
    }
    let differs = numpy.call_method1("not_equal", (&cast, array))?;
    if !differs.call_method0("any")?.is_truthy()? {
        return Ok(Cast::Kept(cast));
    }
    let first = |of: &Bound<'py, PyAny>, found: &Bound<'py, PyAny>| {
        of.get_item(found)?.call_method1("item", (0,))
    };
    if !dtype.getattr("kind")?.eq("f")? {
        return first(array, &differs).map(Cast::Lost);
    }
    let finite = numpy.call_method1("isfinite", (array,))?;
    let infinite = numpy.call_method1("isinf", (&cast,))?.bitand(&finite)?;
    if infinite.call_method0("any")?.is_truthy()? {
        return first(array, &infinite).map(Cast::Lost);
    }
    let whole = numpy.call_method1("rint", (array,))?;
    let whole = numpy.call_method1("equal", (whole, array))?;
    let small = numpy.call_method1("abs", (array,))?;
    let small = numpy.call_method1("less_equal", (small, EXACT))?;
    let rounded = differs.bitand(whole)?.bitand(small)?;
    if !rounded.call_method0("any")?.is_truthy()? {
        return Ok(Cast::Kept(cast));
    }
    let both = [first(array, &rounded)?, first(&cast, &rounded)?];
    Ok(Cast::Rounded(cast, both))
}

/// Reports the first number of a column that its element type cannot hold.
#[derive(Debug, Default)]
pub(super) struct Losses(AtomicBool);

impl Losses {
    /// `reward` in the element type of its column. Reports the first reward of `name` that becomes
    /// infinite, or another whole number.
    ///
    /// # Errors
    /// The warning, where the program's filters make it an exception.
    #[inline]
    pub(super) fn narrowed(
        &self,
        py: Python<'_>,
        reward: f64,
        name: impl FnOnce() -> String,
    ) -> PyResult<f32> {
        let kept = reward as f32;
        let differs = f64::from(kept) != reward && reward.is_finite();
        if differs && (kept.is_infinite() || (reward.fract() == 0.0 && reward.abs() <= EXACT)) {
            let given = match reward.abs() <= EXACT {
                true => reward.to_string(),
                false => format!("{reward:e}"),
            };
            self.report(py, &name(), given, kept, DType::F32)?;
        }
        Ok(kept)
    }

    /// Warns that `given` became `kept`, the first time that this is called.
    ///
    /// # Errors
    /// As [`narrowed`](Self::narrowed).
    #[cold]
    pub(super) fn report(
        &self,
        py: Python<'_>,
        name: &str,
        given: impl Display,
        kept: impl Display,
        dtype: DType,
    ) -> PyResult<()> {
        if self.0.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let text = format!(
            "{name}: {given} became {kept}, since {dtype} cannot hold it. Scale the values in the environment, for instance by \
             gymnasium.wrappers.TransformReward, or give the space of an observation another dtype. Later ones are not reported"
        );
        gil::warn(py, &text)
    }
}
