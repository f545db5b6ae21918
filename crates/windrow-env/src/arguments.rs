//! Arguments of environments and policies that are made by name: plain ones, and packed ones (ADR
//! 0029).

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::EnvError;

/// Arguments of an environment or a policy that is made by its name, as values that can be
/// serialized; none by default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Arguments(Form);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    #[default]
    None,
    Plain(Value),
    /// Written beside the JSON of a recipe, which cannot hold bytes.
    #[serde(skip)]
    Packed(Vec<u8>),
}

impl Arguments {
    /// The arguments `given`, for the entry `name` of a registry.
    ///
    /// # Errors
    /// [`EnvError::Unreadable`] for what JSON cannot hold, such as a map whose keys are no strings.
    pub fn new(name: &str, given: &impl Serialize) -> Result<Self, EnvError> {
        let given = serde_json::to_value(given);
        given
            .map(|given| Self(Form::Plain(given)))
            .map_err(|error| unreadable(name, &error))
    }

    /// As [`new`](Self::new), in a form that only this build of the program reads, which holds
    /// bytes as they are.
    ///
    /// # Errors
    /// [`EnvError::Unreadable`] for what this form cannot hold, such as a list of unknown length.
    pub fn packed(name: &str, given: &impl Serialize) -> Result<Self, EnvError> {
        let given = postcard::to_stdvec(given);
        given
            .map(|given| Self(Form::Packed(given)))
            .map_err(|error| unreadable(name, &error))
    }

    /// Those that [`take_packed`](Self::take_packed) took.
    #[must_use]
    pub fn of_packed(bytes: Vec<u8>) -> Self {
        Self(Form::Packed(bytes))
    }

    /// Takes the bytes of [packed](Self::packed) arguments, which are none then.
    pub fn take_packed(&mut self) -> Option<Vec<u8>> {
        match &mut self.0 {
            Form::Packed(bytes) => {
                let bytes = std::mem::take(bytes);
                self.0 = Form::None;
                Some(bytes)
            }
            _ => None,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0 == Form::None
    }

    /// The arguments of the entry `name` as an `A`; without arguments, read from an empty object.
    ///
    /// # Errors
    /// [`EnvError::Unreadable`] with the arguments and the reason.
    pub fn read<A: DeserializeOwned>(&self, name: &str) -> Result<A, EnvError> {
        self.read_over(name, &Value::Object(Map::new()))
    }

    /// As [`read`](Self::read), with the entries of the object `defaults` that these do not give.
    /// Packed arguments stay as they are.
    pub(crate) fn read_over<A: DeserializeOwned>(
        &self,
        name: &str,
        defaults: &Value,
    ) -> Result<A, EnvError> {
        let mut merged = defaults.clone();
        let given = match (&self.0, merged.as_object_mut()) {
            (Form::Packed(bytes), _) => {
                return postcard::from_bytes(bytes).map_err(|error| unreadable(name, &error));
            }
            (Form::Plain(Value::Object(given)), Some(all)) => {
                all.extend(given.clone());
                &merged
            }
            (Form::Plain(given), _) => given,
            (Form::None, _) => &merged,
        };
        A::deserialize(given).map_err(|error| EnvError::Unreadable {
            what: format!("the arguments {} of {name}", short(given)),
            reason: error.to_string(),
        })
    }

    /// Checks that there are none, for the entry `name`, which takes none.
    ///
    /// # Errors
    /// [`EnvError::NoArguments`] with the arguments.
    pub fn check_none(&self, name: &str) -> Result<(), EnvError> {
        let got = match &self.0 {
            Form::None => return Ok(()),
            Form::Plain(given) => short(given),
            Form::Packed(bytes) => format!("{} bytes", bytes.len()),
        };
        Err(EnvError::NoArguments {
            id: name.to_owned(),
            got,
        })
    }
}

#[cold]
fn unreadable(name: &str, reason: &dyn std::fmt::Display) -> EnvError {
    EnvError::Unreadable {
        what: format!("the arguments of {name}"),
        reason: reason.to_string(),
    }
}

/// `value` as JSON, its beginning where it is long.
fn short(value: &Value) -> String {
    const LONG: usize = 200;
    let mut json = value.to_string();
    if let Some((end, _)) = json.char_indices().nth(LONG) {
        json.truncate(end);
        json.push('…');
    }
    json
}
