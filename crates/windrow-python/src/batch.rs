//! Batches on their way to Python and back, without a copy where memory can be shared.
//!
//! A tensor of the engine becomes a tensor of torch by a DLPack capsule, which owns a view; the
//! view holds the lease of a slab, and so the slab stays as it is until the last tensor over it
//! goes. A tensor of torch becomes one of the engine the same way, and is then memory that other
//! code may write to at any time: callers read it at once, under the interpreter's lock, or copy
//! it.
//!
//! All functions here run with the interpreter's lock held, since they make or read Python objects.
//! What they return to the engine is plain memory: a view of torch's memory can be dropped in any
//! thread.

mod dlpack;
pub(crate) mod packed;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use tensordict::{DType, Tensor, TensorDict, TensorError};
use windrow::error_chain;
use windrow::tensordict::{Entry, NestedKey};

use crate::env::strings;
use crate::gil;

/// The functions and classes of torch and tensordict that are used here, looked up at first use:
/// importing windrow imports neither.
///
/// The garbage collector does not see them. They live as long as the interpreter, and refer to
/// nothing that a user made.
struct Torch {
    /// Makes a tensor of a capsule, and takes the capsule's structure out.
    from_dlpack: Py<PyAny>,
    /// Makes a capsule of a tensor.
    to_dlpack: Py<PyAny>,
    /// `torch.Tensor`.
    tensor: Py<PyAny>,
    /// `torch.Size`.
    size: Py<PyAny>,
    /// `tensordict.TensorDict`.
    tensordict: Py<PyAny>,
    /// Makes a `TensorDict` without checks, in an eighth of the constructor's time. A private
    /// function of tensordict's: without it, the constructor is called.
    unchecked: Option<Py<PyAny>>,
    /// `tensordict.TensorDictBase`, the class of everything that counts as a `TensorDict`.
    base: Py<PyAny>,
    /// `tensordict.NonTensorStack`.
    objects: Py<PyAny>,
    /// `tensordict.LazyStackedTensorDict`, the class of stacks of frames whose tensors may be of
    /// any shapes.
    stack: Py<PyAny>,
}

impl Torch {
    /// The functions and classes.
    ///
    /// # Errors
    /// `ImportError` where torch or tensordict is missing.
    fn get(py: Python<'_>) -> PyResult<&Self> {
        static FOUND: PyOnceLock<Torch> = PyOnceLock::new();
        FOUND.get_or_try_init(py, || {
            // Where torch is missing, this raises an error that says what to install.
            gil::ports(py)?.call_method1("needs_torch", ("windrow",))?;
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
                objects: module.getattr("NonTensorStack")?.unbind(),
                stack: module.getattr("LazyStackedTensorDict")?.unbind(),
            })
        })
    }
}

/// `tensor` as a `torch.Tensor` over the same memory, of the same shape, strides and element type.
/// The memory lives until the last tensor over it is dropped.
pub(crate) fn to_torch<'py>(py: Python<'py>, tensor: Tensor) -> PyResult<Bound<'py, PyAny>> {
    let capsule = dlpack::export(py, tensor)?;
    Torch::get(py)?.from_dlpack.bind(py).call1((capsule,))
}

/// `tensor` as a policy of Python gets it: as [`to_torch`] makes it, but values of bytes as a list
/// of them and the shape that they have.
pub(crate) fn as_input<'py>(py: Python<'py>, tensor: Tensor) -> PyResult<Bound<'py, PyAny>> {
    if tensor.dtype() != DType::Bytes {
        return to_torch(py, tensor);
    }
    let shape = PyTuple::new(py, tensor.shape())?;
    Ok((strings(py, tensor.strings())?, shape)
        .into_pyobject(py)?
        .into_any())
}

/// A `torch.Tensor` on the CPU as a view of its memory, which it keeps alive.
///
/// # Errors
/// `TypeError` for anything but a tensor, and for an element type that the engine does not have.
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
    // DLPack takes neither a tensor with a gradient nor one on a device. Asking costs less than a
    // `detach` or `cpu` that has nothing to do.
    if tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
        tensor = tensor.call_method0(intern!(py, "detach"))?;
    }
    if !tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
        tensor = tensor.call_method0(intern!(py, "cpu"))?;
    }
    dlpack::import(&torch.to_dlpack.bind(py).call1((tensor,))?)
}

/// A `tensordict.TensorDict` of tensors on the CPU as views of their memory, as whole numbers of
/// the width of their elements, and the types of these, in the order of the leaves.
///
/// # Errors
/// As [`from_torch`], naming the entry, but any type of 8, 16, 32 or 64 bits is taken; `TypeError`
/// for anything but a `TensorDict`.
pub(crate) fn bits_of(source: &Bound<'_, PyAny>) -> PyResult<(TensorDict, Vec<ElementKind>)> {
    let py = source.py();
    let size: Vec<usize> = source.getattr(intern!(py, "batch_size"))?.extract()?;
    let mut dict = TensorDict::new(&size);
    let mut kinds = Vec::new();
    let mut read = |names: &[&str], tensor: &Bound<'_, PyAny>| {
        let capsule = Torch::get(py)?.to_dlpack.bind(py).call1((tensor,))?;
        let (bits, kind) = dlpack::import_any(&capsule)?;
        kinds.push((NestedKey::from(names), ElementKind(kind)));
        Ok(bits)
    };
    fill_by(source, &[], &mut dict, Copied::No, &mut read)?;
    let kind_of = |(key, _): (NestedKey, _)| {
        let kind = kinds.iter().find(|(known, _)| *known == key);
        let kind = kind.map(|(_, kind)| *kind);
        kind.ok_or_else(|| PyTypeError::new_err(format!("expected one entry {key:?}")))
    };
    let kinds = dict.leaves().map(kind_of).collect::<PyResult<_>>()?;
    Ok((dict, kinds))
}

/// The type of a tensor's elements in torch, which the engine may not have.
#[derive(Clone, Copy)]
pub(crate) struct ElementKind(dlpack::DlDataType);

/// A `tensordict.TensorDict` over the memory of `dict`, whose tensors are of the types `kinds`, in
/// the order of its leaves, and on `device`.
pub(crate) fn of_kinds<'py>(
    py: Python<'py>,
    dict: &TensorDict,
    kinds: &[ElementKind],
    device: &Py<PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let take = Torch::get(py)?.from_dlpack.bind(py);
    let mut kinds = kinds.iter();
    let mut made = |tensor: &Tensor| {
        let kind = kinds
            .next()
            .ok_or_else(|| PyTypeError::new_err("expected a type for each tensor"))?;
        take.call1((dlpack::export_as(py, tensor.clone(), kind.0)?,))
    };
    dict_of(py, dict, Some(device), &mut made)
}

/// `dict` as a `tensordict.TensorDict` of tensors over the same memory, and of copies of values of
/// bytes.
pub(crate) fn to_python<'py>(py: Python<'py>, dict: &TensorDict) -> PyResult<Bound<'py, PyAny>> {
    named_after(py, dict, None)
}

/// As [`to_python`], for weights. They may come from anywhere, so only numbers are read.
///
/// # Errors
/// `ValueError` for values of bytes.
pub(crate) fn weights_to_python<'py>(
    py: Python<'py>,
    weights: &TensorDict,
) -> PyResult<Bound<'py, PyAny>> {
    let is_bytes = |(_, tensor): &(_, &Tensor)| tensor.dtype() == DType::Bytes;
    match weights.leaves().find(is_bytes) {
        None => numbers_of(py, weights, None),
        Some((key, _)) => Err(PyValueError::new_err(format!(
            "expected weights of numbers, got {key:?} with values of variable size"
        ))),
    }
}

/// As [`to_python`], with `device` as the device of the `TensorDict` and of those in it. It is a
/// name only: all tensors are on the CPU.
pub(crate) fn named_after<'py>(
    py: Python<'py>,
    dict: &TensorDict,
    device: Option<&Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let made = numbers_of(py, dict, device)?;
    let is_bytes = |(_, tensor): &(_, &Tensor)| tensor.dtype() == DType::Bytes;
    let values = dict.leaves().filter(is_bytes).map(|(key, tensor)| {
        let names = PyTuple::new(py, key.components().iter().map(|name| &**name))?;
        let shape = PyTuple::new(py, tensor.shape())?;
        Ok((names, shape, strings(py, tensor.strings())?))
    });
    let values = values.collect::<PyResult<Vec<_>>>()?;
    match values.is_empty() && dict.get_dict(MEMBERS).is_err() {
        true => Ok(made),
        false => gil::call_method(&gil::ports(py)?, "with_values", (made, values)),
    }
}

/// The first byte of a value that is a pickled object; see `windrow._objects`.
pub(crate) const OBJECT: u8 = b'o';

/// The entry with the actions of groups whose members differ from each other, one for each member:
/// `windrow._values` joins them.
pub(crate) const MEMBERS: &str = "(members)";

/// As [`named_after`], without values of bytes.
fn numbers_of<'py>(
    py: Python<'py>,
    dict: &TensorDict,
    device: Option<&Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    dict_of(py, dict, device, &mut |tensor| to_torch(py, tensor.clone()))
}

/// `dict` as a `tensordict.TensorDict` of what `made` makes of its tensors, in the order of its
/// leaves, without values of bytes.
fn dict_of<'py>(
    py: Python<'py>,
    dict: &TensorDict,
    device: Option<&Py<PyAny>>,
    made: &mut dyn FnMut(&Tensor) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let torch = Torch::get(py)?;
    let source = PyDict::new(py);
    for (name, entry) in dict.entries() {
        match entry {
            Entry::Tensor(tensor) if tensor.dtype() == DType::Bytes => {}
            Entry::Tensor(tensor) => source.set_item(&**name, made(tensor)?)?,
            Entry::Dict(inner) => source.set_item(&**name, dict_of(py, inner, device, made)?)?,
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

/// A copy of a `tensordict.TensorDict`, or of a dictionary of tensors and dictionaries. For weights
/// and states, which the engine keeps while the user's code goes on and may change the tensors.
///
/// # Errors
/// As [`from_torch`], naming the entry.
pub(crate) fn from_python(source: &Bound<'_, PyAny>) -> PyResult<TensorDict> {
    let py = source.py();
    let mut dict = TensorDict::new([]);
    fill_with(py, source, &[], &mut dict, Copied::Yes)?;
    Ok(dict)
}

/// As [`from_python`], but views of the tensors' memory: for weights that are copied before other
/// code of Python runs.
///
/// # Errors
/// As [`from_torch`], naming the entry.
pub(crate) fn views_by_name(source: &Bound<'_, PyAny>) -> PyResult<TensorDict> {
    let mut dict = TensorDict::new([]);
    fill_with(source.py(), source, &[], &mut dict, Copied::No)?;
    Ok(dict)
}

/// A `tensordict.TensorDict` as views of its tensors' memory, with its batch size. For batches that
/// are read at once. Entries that are no tensors, or tensors whose shapes differ, are values of
/// bytes.
///
/// # Errors
/// As [`from_torch`], naming the entry; `TypeError` for anything but a `TensorDict`.
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
    if !may_have_values(py, source)? {
        fill_with(py, source, &[], &mut dict, Copied::No)?;
        return Ok(dict);
    }
    let parted = gil::call_method(&gil::ports(py)?, "without_values", (source,))?;
    let (numbers, values): (Bound<'_, PyAny>, Vec<Values<'_>>) = parted.extract()?;
    fill_with(py, &numbers, &[], &mut dict, Copied::No)?;
    for (names, shape, values) in values {
        let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
        let tensor = Tensor::from_strings(&values, shape);
        let tensor = tensor.map_err(|error| PyValueError::new_err(error_chain(&error)))?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        set(&mut dict, &names, tensor)?;
    }
    Ok(dict)
}

/// Whether an entry of `source` may be of values of bytes: objects, tensors that were such values,
/// and stacks of frames, which may differ.
fn may_have_values(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<bool> {
    let torch = Torch::get(py)?;
    if source.is_instance(torch.stack.bind(py))? {
        return Ok(true);
    }
    for value in source.call_method0(intern!(py, "values"))?.try_iter()? {
        let value = value?;
        let found = if value.is_instance(torch.tensor.bind(py))? {
            value.hasattr(intern!(py, "_windrow_value"))?
        } else {
            !value.is_instance(torch.base.bind(py))? || may_have_values(py, &value)?
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Values of bytes that are the tensors in `numbers`: one for each element of the first `dims`
/// dimensions, in the form of `windrow._values`.
///
/// # Errors
/// [`TensorError`] for a tensor that is of bytes itself.
pub(crate) fn values_of(numbers: &Tensor, dims: usize) -> Result<Tensor, TensorError> {
    let (outer, own) = numbers.shape().split_at(dims);
    let name = numbers.dtype().name();
    let mut head = vec![b'r', name.len() as u8, own.len() as u8];
    head.extend(name.bytes());
    head.extend(own.iter().flat_map(|&size| (size as i64).to_le_bytes()));
    let numbers = numbers.contiguous();
    let elements = numbers.as_bytes()?;
    let len = own.iter().product::<usize>() * numbers.dtype().size();
    let values =
        (0..outer.iter().product()).map(|at: usize| [&head, &elements[at * len..][..len]].concat());
    Tensor::from_strings(&values.collect::<Vec<_>>(), outer)
}

/// The names of an entry, its shape, and its values one after the other.
type Values<'py> = (Vec<String>, Vec<usize>, Vec<Bound<'py, PyBytes>>);

/// Tensors of Python by name, and views of their memory: the parameters of a module that a
/// collector follows. A view is kept as long as its tensor has the same memory, since each batch
/// asks for all of them.
pub(crate) struct Named {
    tensors: Vec<Source>,
    views: TensorDict,
}

/// A tensor of Python. Its memory, shape, strides and element type may all change, as by
/// `module.to()` or an assignment to `.data`.
struct Source {
    name: String,
    tensor: Py<PyAny>,
}

impl Source {
    /// Whether [`from_torch`] would make the same view now. The same address means the same memory:
    /// the view keeps it alive, so that no other tensor can have got it meanwhile.
    fn is_seen_by(&self, view: &Tensor, py: Python<'_>) -> PyResult<bool> {
        // A boolean's view is a copy, since its memory may hold bytes that are neither 0 nor 1.
        if view.dtype() == DType::Bool {
            return Ok(false);
        }
        // A capsule costs less than to ask for address, shape, strides and element type. From what
        // has none, no view can be made either.
        match Torch::get(py)?.to_dlpack.bind(py).call1((&self.tensor,)) {
            Ok(capsule) => dlpack::is_same(&capsule, view),
            Err(_) => Ok(false),
        }
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
                tensor: tensor.unbind(),
            });
        }
        Ok(Self { tensors, views })
    }

    /// The views, made anew for each tensor whose memory, shape, strides or element type have
    /// changed.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn views(&mut self, py: Python<'_>) -> PyResult<&TensorDict> {
        for source in &self.tensors {
            let is_fresh = match self.views.get(source.name.as_str()) {
                Ok(view) => source.is_seen_by(view, py)?,
                Err(_) => false,
            };
            if !is_fresh {
                let tensor = source.tensor.bind(py);
                set(&mut self.views, &[&source.name], from_torch(tensor)?)?;
            }
        }
        Ok(&self.views)
    }
}

/// Whether tensors are copied. Views keep the batch sizes of the dictionaries that they are in;
/// copies have none, since weights and states are found by name alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    Yes,
    No,
}

impl Copied {
    /// The batch size of `dict` in the result.
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
    let mut read = |_: &[&str], value: &Bound<'_, PyAny>| {
        let tensor = tensor_of(py, value)?;
        Ok(match copied {
            Copied::Yes => tensor.detach(),
            Copied::No => tensor,
        })
    };
    fill_by(source, prefix, dict, copied, &mut read)
}

/// Makes a tensor of the entry with these names.
type ReadEntry<'a> = &'a mut dyn FnMut(&[&str], &Bound<'_, PyAny>) -> PyResult<Tensor>;

/// As [`fill_with`], by `read`.
fn fill_by(
    source: &Bound<'_, PyAny>,
    prefix: &[String],
    dict: &mut TensorDict,
    copied: Copied,
    read: ReadEntry<'_>,
) -> PyResult<()> {
    let torch = Torch::get(source.py())?;
    for item in source.call_method0("items")?.try_iter()? {
        let (name, value): (String, Bound<'_, PyAny>) = item?.extract()?;
        let path = [prefix, &[name]].concat();
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        let is_dict = value.is_instance(torch.base.bind(source.py()))?;
        // A stack of objects is a TensorDict too.
        let is_dict = is_dict && !value.is_instance(torch.objects.bind(source.py()))?;
        if value.is_instance_of::<PyDict>() || is_dict {
            // Setting a tensor makes the dictionaries above it, but with the outer one's batch
            // size; and an empty one has no tensor.
            if copied == Copied::No || is_empty(&value)? {
                set(dict, &names, TensorDict::new(copied.size_of(&value)?))?;
            }
            fill_by(&value, &path, dict, copied, read)?;
            continue;
        }
        let tensor = read(&names, &value)
            .map_err(|error| PyTypeError::new_err(format!("{}: {error}", path.join("."))))?;
        set(dict, &names, tensor)?;
    }
    Ok(())
}

/// Sets an entry.
///
/// # Errors
/// `ValueError` with the engine's reason, such as a shape that does not begin with the batch size.
fn set(dict: &mut TensorDict, names: &[&str], entry: impl Into<Entry>) -> PyResult<()> {
    dict.set(NestedKey::from(names), entry)
        .map(|_| ())
        .map_err(|error| PyValueError::new_err(error_chain(&error)))
}

/// Whether a dictionary has no entries, and so would be lost if only tensors were copied.
fn is_empty(dict: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(dict.call_method0("keys")?.try_iter()?.next().is_none())
}

/// A tensor, or a whole number of Python, such as a count in a state, as a scalar of `int64`.
fn tensor_of(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    if value.is_instance(Torch::get(py)?.tensor.bind(py))? {
        return from_torch(value);
    }
    value
        .extract::<i64>()
        .map(Tensor::scalar)
        .or_else(|_| from_torch(value))
}

/// The name of an action in messages, of which `key` may be the column of one agent.
pub(crate) fn shown(key: &NestedKey) -> String {
    match key.components() {
        [first, names @ .., agent] if &**first == MEMBERS => {
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            format!("{:?} of agent {agent}", NestedKey::from(names.as_slice()))
        }
        _ => format!("{key:?}"),
    }
}

/// `key` as tensordict spells it: a string, or a tuple of strings.
pub(crate) fn key_to_python<'py>(py: Python<'py>, key: &NestedKey) -> PyResult<Bound<'py, PyAny>> {
    match key.components() {
        [name] => Ok((&**name).into_pyobject(py)?.into_any()),
        names => Ok(PyTuple::new(py, names.iter().map(|name| &**name))?.into_any()),
    }
}
