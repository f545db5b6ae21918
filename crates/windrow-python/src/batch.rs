//! Batches on their way to Python and back, without a copy where memory can be shared.
//!
//! A tensor of the engine becomes a tensor of torch by a DLPack capsule, which owns a view; the view holds the lease of a slab, and so
//! the slab stays as it is until the last tensor over it goes. A tensor of torch becomes one of the engine the same way, and is then
//! memory that other code may write to at any time: callers read it at once, under the interpreter's lock, or copy it.

mod dlpack;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple};
use tensordict::{DType, Tensor, TensorDict};
use windrow::tensordict::{Entry, NestedKey};

/// The functions and classes of torch and tensordict that are used here, looked up at first use: importing windrow imports neither.
///
/// The garbage collector does not see them. They live as long as the interpreter, and refer to nothing that a user made.
struct Torch {
    from_dlpack: Py<PyAny>,
    to_dlpack: Py<PyAny>,
    tensor: Py<PyAny>,
    size: Py<PyAny>,
    tensordict: Py<PyAny>,
    /// Makes a `TensorDict` without looking at what it is made of, in an eighth of the time; the constructor where tensordict
    /// has nothing of the kind.
    unchecked: Option<Py<PyAny>>,
    base: Py<PyAny>,
}

impl Torch {
    fn get(py: Python<'_>) -> PyResult<&Self> {
        static FOUND: PyOnceLock<Torch> = PyOnceLock::new();
        FOUND.get_or_try_init(py, || {
            // Raises an error that says what to install, where torch is missing.
            py.import("windrow._needs")?
                .call_method1("torch", ("windrow",))?;
            let exchange = py.import("torch.utils.dlpack")?;
            let torch = py.import("torch")?;
            // The private function behind the public one takes a capsule in half of the time.
            let take = torch.getattr("_C")?.getattr("_from_dlpack");
            let module = py.import("tensordict")?;
            let tensordict = module.getattr("TensorDict")?;
            Ok(Self {
                from_dlpack: take.or_else(|_| exchange.getattr("from_dlpack"))?.unbind(),
                to_dlpack: exchange.getattr("to_dlpack")?.unbind(),
                tensor: torch.getattr("Tensor")?.unbind(),
                size: torch.getattr("Size")?.unbind(),
                unchecked: tensordict.getattr("_new_unsafe").ok().map(Bound::unbind),
                tensordict: tensordict.unbind(),
                base: module.getattr("TensorDictBase")?.unbind(),
            })
        })
    }
}

/// `tensor` as a `torch.Tensor` over the same memory, which stays alive as long as it does.
pub(crate) fn to_torch<'py>(py: Python<'py>, tensor: Tensor) -> PyResult<Bound<'py, PyAny>> {
    let capsule = dlpack::export(py, tensor)?;
    Torch::get(py)?.from_dlpack.bind(py).call1((capsule,))
}

/// A `torch.Tensor` on the CPU as a view of its memory, which it keeps alive.
///
/// # Errors
/// `TypeError` for something that is no tensor, or of an element type that the engine has not.
pub(crate) fn from_torch(tensor: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let py = tensor.py();
    let torch = Torch::get(py)?;
    if !tensor.is_instance(torch.tensor.bind(py))? {
        return Err(PyTypeError::new_err(format!(
            "expected a tensor, got {}",
            tensor.get_type().name()?
        )));
    }
    let mut tensor = tensor.clone();
    // DLPack takes neither a tensor with a gradient nor one on a device. Asking costs less than a `detach` or `cpu` that has
    // nothing to do.
    if tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
        tensor = tensor.call_method0(intern!(py, "detach"))?;
    }
    if !tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
        tensor = tensor.call_method0(intern!(py, "cpu"))?;
    }
    dlpack::import(&torch.to_dlpack.bind(py).call1((tensor,))?)
}

/// `dict` as a `tensordict.TensorDict` of tensors over the same memory.
pub(crate) fn to_python<'py>(py: Python<'py>, dict: &TensorDict) -> PyResult<Bound<'py, PyAny>> {
    named_after(py, dict, None)
}

/// As [`to_python`], with the name of the device that all tensors are on, if it is to have one: the CPU, as torch calls it.
pub(crate) fn named_after<'py>(
    py: Python<'py>,
    dict: &TensorDict,
    device: Option<&Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let torch = Torch::get(py)?;
    let source = PyDict::new(py);
    for (name, entry) in dict.entries() {
        match entry {
            Entry::Tensor(tensor) => source.set_item(&**name, to_torch(py, tensor.clone())?)?,
            Entry::Dict(inner) => source.set_item(&**name, named_after(py, inner, device)?)?,
        }
    }
    let shape = PyTuple::new(py, dict.batch_size())?;
    let size = torch.size.bind(py).call1((shape,))?;
    let names = match dict.names().iter().any(Option::is_some) {
        true => Some(PyList::new(py, dict.names().iter().map(Option::as_deref))?),
        false => None,
    };
    let options = PyDict::new(py);
    options.set_item(intern!(py, "batch_size"), size)?;
    options.set_item(intern!(py, "names"), names)?;
    if let Some(device) = device {
        options.set_item(intern!(py, "device"), device)?;
    }
    // The engine has checked the shapes of these tensors already.
    let make = torch.unchecked.as_ref().unwrap_or(&torch.tensordict);
    make.bind(py).call((source,), Some(&options))
}

/// A copy of a `tensordict.TensorDict`, or of a dictionary of tensors and dictionaries.
///
/// # Errors
/// As [`from_torch`], naming the entry.
pub(crate) fn from_python(source: &Bound<'_, PyAny>) -> PyResult<TensorDict> {
    let py = source.py();
    let mut dict = TensorDict::new([]);
    fill_with(py, source, &[], &mut dict, Copied::Yes)?;
    Ok(dict)
}

/// A `tensordict.TensorDict` as views of its tensors' memory, with its batch size.
///
/// # Errors
/// As [`from_torch`], naming the entry; `TypeError` for something that is no `TensorDict`.
pub(crate) fn views_of(source: &Bound<'_, PyAny>) -> PyResult<TensorDict> {
    let py = source.py();
    if !source.is_instance(Torch::get(py)?.base.bind(py))? {
        return Err(PyTypeError::new_err(format!(
            "expected a TensorDict, got {}",
            source.get_type().name()?
        )));
    }
    let size: Vec<usize> = source.getattr(intern!(py, "batch_size"))?.extract()?;
    let mut dict = TensorDict::new(&size);
    fill_with(py, source, &[], &mut dict, Copied::No)?;
    Ok(dict)
}

/// Tensors of Python by name, and views of their memory.
pub(crate) struct Named {
    tensors: Vec<Source>,
    views: TensorDict,
}

/// A tensor of Python, whose memory, shape, strides and element type may all become others.
struct Source {
    name: String,
    tensor: Py<PyAny>,
    /// The element type that it had when its view was made.
    dtype: Py<PyAny>,
}

impl Source {
    /// Whether `view` is what [`from_torch`] would make of the tensor now. A view keeps its memory alive, so that no other
    /// tensor can have been given the same address.
    fn is_seen_by(&self, view: &Tensor, py: Python<'_>) -> PyResult<bool> {
        let tensor = self.tensor.bind(py);
        let address: usize = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
        // A boolean's view is a copy, since its memory may hold bytes that are neither 0 nor 1.
        if view.data_ptr().addr().get() != address || view.dtype() == DType::Bool {
            return Ok(false);
        }
        let shape: Vec<usize> = tensor.getattr(intern!(py, "shape"))?.extract()?;
        let strides: Vec<isize> = tensor.call_method0(intern!(py, "stride"))?.extract()?;
        // The stride of a dimension of size 1 has no meaning, and may be any number.
        let steps = shape.iter().zip(view.strides().iter().zip(&strides));
        Ok(view.shape() == shape
            && steps
                .into_iter()
                .all(|(&size, (own, its))| size <= 1 || own == its)
            && tensor.getattr(intern!(py, "dtype"))?.is(&self.dtype))
    }
}

impl Named {
    /// Views of the tensors of a dictionary.
    ///
    /// # Errors
    /// As [`from_python`].
    pub(crate) fn new(source: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut tensors = Vec::new();
        let mut views = TensorDict::new([]);
        for (name, tensor) in source.iter() {
            let name: String = name.extract()?;
            set(&mut views, &[&name], from_torch(&tensor)?)?;
            tensors.push(Source {
                name,
                dtype: tensor.getattr(intern!(tensor.py(), "dtype"))?.unbind(),
                tensor: tensor.unbind(),
            });
        }
        Ok(Self { tensors, views })
    }

    /// The views, which are made anew where a tensor has other memory by now, or lies in it otherwise.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn views(&mut self, py: Python<'_>) -> PyResult<&TensorDict> {
        for source in &mut self.tensors {
            let is_fresh = match self.views.get(source.name.as_str()) {
                Ok(view) => source.is_seen_by(view, py)?,
                Err(_) => false,
            };
            if !is_fresh {
                let tensor = source.tensor.bind(py);
                source.dtype = tensor.getattr(intern!(py, "dtype"))?.unbind();
                set(&mut self.views, &[&source.name], from_torch(tensor)?)?;
            }
        }
        Ok(&self.views)
    }
}

/// Whether tensors are copied; those that are not keep the batch sizes of the dictionaries that they are in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    Yes,
    No,
}

impl Copied {
    fn size_of(self, dict: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
        match self {
            Self::No if !dict.is_instance_of::<PyDict>() => {
                dict.getattr(intern!(dict.py(), "batch_size"))?.extract()
            }
            Self::Yes | Self::No => Ok(Vec::new()),
        }
    }
}

/// Adds the entries of `source`, and those of dictionaries in it, to `dict` below `prefix`.
fn fill_with(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    prefix: &[String],
    dict: &mut TensorDict,
    copied: Copied,
) -> PyResult<()> {
    for item in source.call_method0("items")?.try_iter()? {
        let (name, value): (String, Bound<'_, PyAny>) = item?.extract()?;
        let path = [prefix, &[name]].concat();
        if value.is_instance_of::<PyDict>() || value.is_instance(Torch::get(py)?.base.bind(py))? {
            if copied == Copied::No || is_empty(&value)? {
                let names: Vec<&str> = path.iter().map(String::as_str).collect();
                set(dict, &names, TensorDict::new(copied.size_of(&value)?))?;
            }
            fill_with(py, &value, &path, dict, copied)?;
            continue;
        }
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        let tensor = tensor_of(py, &value)
            .map_err(|error| PyTypeError::new_err(format!("{}: {error}", path.join("."))))?;
        let tensor = match copied {
            Copied::Yes => tensor.detach(),
            Copied::No => tensor,
        };
        set(dict, &names, tensor)?;
    }
    Ok(())
}

/// Sets an entry; an error says what is in its way.
fn set(dict: &mut TensorDict, names: &[&str], entry: impl Into<Entry>) -> PyResult<()> {
    dict.set(NestedKey::from(names), entry)
        .map(|_| ())
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Whether a dictionary has no entries, and so would be lost if only tensors were copied.
fn is_empty(dict: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(dict.call_method0("keys")?.try_iter()?.next().is_none())
}

/// A tensor, or a Python number.
fn tensor_of(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    if value.is_instance(Torch::get(py)?.tensor.bind(py))? {
        return from_torch(value);
    }
    value
        .extract::<i64>()
        .map(Tensor::scalar)
        .or_else(|_| from_torch(value))
}

/// `key` as tensordict spells it: a string, or a tuple of strings.
pub(crate) fn key_to_python<'py>(py: Python<'py>, key: &NestedKey) -> PyResult<Bound<'py, PyAny>> {
    match key.components() {
        [name] => Ok((&**name).into_pyobject(py)?.into_any()),
        names => Ok(PyTuple::new(py, names.iter().map(|name| &**name))?.into_any()),
    }
}
