//! Python dicts of plain values (`str`, `int`, `float`, `bool`, `list`, `dict`) as configurations
//! of the engine, and as its transforms.
//!
//! A configuration of the engine implements serde's `Deserialize`, field by field under the names
//! that the arguments have in Python. So a dict is read here as any other serde format is, and a
//! new argument needs no code in this crate: the engine's struct declares it. Defaults are the
//! engine's too, since an argument that is `None` counts as not given.
//!
//! Errors are written for Python's users: they name the argument, what was expected in Python's
//! words, and the value that came. Everything here runs in the calling thread, with the
//! interpreter's lock held.

use std::fmt::{self, Display};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyList, PyString, PyTuple};
use serde::de::value::{MapAccessDeserializer, SeqDeserializer, StringDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, Error, Expected, IntoDeserializer, MapAccess, Unexpected,
    Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};

/// The configuration that `given` describes. `None` stands for an argument that is not given, and
/// leaves the default in place.
///
/// # Errors
/// `TypeError` for a value of another type or an unknown argument, `ValueError` for a value out of
/// range: both name the argument, what was expected and what came.
pub(crate) fn read<'de, T: Deserialize<'de>>(given: &Bound<'_, PyDict>) -> PyResult<T> {
    let arguments = given.iter().filter(|(_, value)| !value.is_none());
    let arguments = Arguments {
        left: arguments.collect::<Vec<_>>().into_iter(),
        value: None,
    };
    T::deserialize(arguments).map_err(PyErr::from)
}

/// The variant `name` of an enum of the engine, with the fields that `given` describes, in which
/// `None` is a value.
///
/// # Errors
/// As [`read`], and `ValueError` where there is no such variant.
pub(crate) fn read_variant<'de, T: Deserialize<'de>>(
    name: &Bound<'_, PyString>,
    given: &Bound<'_, PyDict>,
) -> PyResult<T> {
    let whole = PyDict::new(given.py());
    whole.set_item(name, given)?;
    T::deserialize(Plain(whole.into_any())).map_err(PyErr::from)
}

/// The arguments that are given, as a map for serde.
struct Arguments<'py> {
    /// The arguments that serde has not asked for yet.
    left: std::vec::IntoIter<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    /// Name and value of the argument that is being read: serde asks for the two one after the
    /// other.
    value: Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
}

impl<'de> Deserializer<'de> for Arguments<'_> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_map(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for Arguments<'_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        self.value = self.left.next();
        let Some((name, _)) = &self.value else {
            return Ok(None);
        };
        seed.deserialize(Plain(name.clone())).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let Some((name, value)) = self.value.take() else {
            return Err(Refused::custom("a value without a name"));
        };
        // The error of a value does not know the argument's name; it is added here.
        seed.deserialize(Plain(value.clone()))
            .map_err(|refused| refused.of(&name, &value))
    }
}

impl<'py> From<&Bound<'py, PyDict>> for Arguments<'py> {
    fn from(given: &Bound<'py, PyDict>) -> Self {
        Self {
            left: given.iter().collect::<Vec<_>>().into_iter(),
            value: None,
        }
    }
}

/// A plain value of Python, which serde reads by its type.
struct Plain<'py>(Bound<'py, PyAny>);

impl<'de> Deserializer<'de> for Plain<'_> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match given(&self.0)? {
            Given::Nothing => visitor.visit_none(),
            Given::Flag(flag) => visitor.visit_bool(flag),
            Given::Real(number) => visitor.visit_f64(number),
            Given::Text(text) => visitor.visit_string(text),
            Given::Entries(entries) => visitor.visit_map(entries),
            Given::Items(items) => {
                visitor.visit_seq(SeqDeserializer::new(items.into_iter().map(Plain)))
            }
            Given::Natural(number) => visitor.visit_u64(number),
            Given::Whole(number) => visitor.visit_i64(number),
            Given::Large => Err(Refused::invalid_value(
                Unexpected::Other("a large number"),
                &visitor,
            )),
            Given::Object => Err(of_no_type(&visitor)),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match flag(&self.0) {
            Some(flag) => visitor.visit_bool(flag),
            None => Err(of_no_type(&visitor)),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match real(&self.0) {
            Some(number) => visitor.visit_f64(number),
            None => Err(of_no_type(&visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.0.is_none() {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
    }

    /// A type that is another one under a name of its own, such as a list of keys.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_newtype_struct(self)
    }

    /// A choice among names, such as `"threads"`: the variants of an enum of the engine that have
    /// no fields. One with fields is a dict of its name and them.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        if let Ok(given) = self.0.cast::<PyDict>() {
            return visitor.visit_enum(MapAccessDeserializer::new(Arguments::from(given)));
        }
        match self.0.cast::<PyString>() {
            Ok(name) => visitor.visit_enum(StringDeserializer::new(name.to_string())),
            Err(_) => Err(of_no_type(&"a name")),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 u8 u16 u32 u64 f32 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// What a value of Python is to serde.
enum Given<'py> {
    Nothing,
    Flag(bool),
    Real(f64),
    Text(String),
    Entries(Arguments<'py>),
    Items(Vec<Bound<'py, PyAny>>),
    Natural(u64),
    Whole(i64),
    /// A whole number that serde has no type for.
    Large,
    Object,
}

/// Looks at `value` once for all visitors: the code of each type that is read, of which there are
/// hundreds, stays small.
#[inline(never)]
fn given<'py>(value: &Bound<'py, PyAny>) -> Result<Given<'py>, Refused> {
    if value.is_none() {
        return Ok(Given::Nothing);
    }
    // Before numbers: Python's `bool` is an `int` too.
    if value.is_instance_of::<PyBool>() {
        return Ok(flag(value).map_or(Given::Object, Given::Flag));
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(real(value).map_or(Given::Object, Given::Real));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Given::Text(text.to_string()));
    }
    if let Ok(entries) = value.cast::<PyDict>() {
        return Ok(Given::Entries(Arguments::from(entries)));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value
            .try_iter()
            .and_then(Iterator::collect::<PyResult<Vec<_>>>);
        return items.map(Given::Items).map_err(Refused::custom);
    }
    // Whole numbers of numpy and torch too, which `operator.index` takes and `PyInt` does not.
    let index = value
        .py()
        .import("operator")
        .and_then(|operator| operator.call_method1("index", (value,)));
    let Ok(index) = index else {
        return Ok(Given::Object);
    };
    // As large a type as serde has; the field's own type refuses what does not fit it.
    Ok(match (index.extract::<u64>(), index.extract::<i64>()) {
        (Ok(number), _) => Given::Natural(number),
        (_, Ok(number)) => Given::Whole(number),
        _ => Given::Large,
    })
}

#[inline(never)]
fn flag(value: &Bound<'_, PyAny>) -> Option<bool> {
    value.extract().ok()
}

#[inline(never)]
fn real(value: &Bound<'_, PyAny>) -> Option<f64> {
    value.extract().ok()
}

/// The error of a value that serde has no type for.
#[cold]
fn of_no_type(expected: &dyn Expected) -> Refused {
    Refused::invalid_type(Unexpected::Other("an object"), expected)
}

impl<'de> IntoDeserializer<'de, Refused> for Plain<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// The reason why a configuration refuses a value.
#[derive(Debug)]
struct Refused {
    /// `TypeError`, not `ValueError`.
    is_type: bool,
    /// What was expected in its place, or the whole message.
    expected: String,
    /// Whether the message names the argument already.
    named: bool,
}

impl Refused {
    /// An error that does not name its argument yet.
    fn new(is_type: bool, expected: String) -> Self {
        Self {
            is_type,
            expected,
            named: false,
        }
    }

    /// This error as one of the argument `name`, which has the value `value`, unless it names one
    /// within that already.
    #[cold]
    fn of(self, name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Self {
        if self.named {
            return self;
        }
        let got = match name.eq(SECRET) {
            // Only the type is shown, since any value may be secret.
            Ok(true) => format!("{:?}", value.get_type()),
            _ => format!("{value:?}"),
        };
        Self {
            expected: format!("{name} must be {}, got {got}", self.expected),
            named: true,
            ..self
        }
    }
}

impl Error for Refused {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(false, message.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(true, in_python(&expected.to_string()).to_owned())
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected.to_string();
        Self::new(
            false,
            // A whole number is refused for its range alone, such as -1.
            match in_python(&expected) {
                WHOLE_NUMBER => format!("{WHOLE_NUMBER} from 0 to {}", u64::MAX),
                other => other.to_owned(),
            },
        )
    }

    fn unknown_variant(_: &str, names: &'static [&'static str]) -> Self {
        let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        Self::new(false, names.join(" or "))
    }

    fn unknown_field(name: &str, _: &'static [&'static str]) -> Self {
        Self {
            named: true,
            ..Self::new(true, format!("unexpected argument {name}"))
        }
    }
}

/// The name of the argument whose value no error shows.
const SECRET: &str = "token";

/// What users read for integers of any size.
const WHOLE_NUMBER: &str = "a whole number";

/// A type in Python's words. serde names Rust's types, which a user of Python does not know.
fn in_python(expected: &str) -> &str {
    match expected {
        "usize" | "u64" => WHOLE_NUMBER,
        "f64" => "a number",
        "a boolean" => "True or False",
        "a sequence" => "a list",
        other => other,
    }
}

impl Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.named {
            true => f.write_str(&self.expected),
            false => write!(f, "expected {}", self.expected),
        }
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for PyErr {
    fn from(refused: Refused) -> Self {
        match refused.is_type {
            true => PyTypeError::new_err(refused.to_string()),
            false => PyValueError::new_err(refused.to_string()),
        }
    }
}
