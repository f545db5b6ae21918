//! Arrays of numpy in another element type.

use pyo3::intern;
use pyo3::prelude::*;

/// An array in another element type, or the first of its elements that this type cannot hold.
pub(super) type Cast<'py> = Result<Bound<'py, PyAny>, Bound<'py, PyAny>>;

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
        return Ok(Ok(cast));
    }
    let is_float = dtype.getattr("kind")?.eq("f")?;
    let lost = match is_float {
        true => {
            let finite = numpy.call_method1("isfinite", (array,))?;
            numpy.call_method1("isinf", (&cast,))?.bitand(finite)?
        }
        false => numpy.call_method1("not_equal", (&cast, array))?,
    };
    if !lost.call_method0("any")?.is_truthy()? {
        return Ok(Ok(cast));
    }
    array.get_item(lost)?.call_method1("item", (0,)).map(Err)
}
