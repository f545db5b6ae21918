//! Arguments of environments and policies that are made by name.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::EnvError;

/// Arguments of an environment or a policy that is made by its name, as values that can be serialized; none by default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Arguments(Option<Value>);

impl Arguments {
    /// The arguments `given`, for the entry `name` of a registry.
    ///
    /// # Errors
    /// [`EnvError::Unreadable`] for what JSON cannot hold, such as a map whose keys are no strings.
    pub fn new(name: &str, given: &impl Serialize) -> Result<Self, EnvError> {
        match serde_json::to_value(given) {
            Ok(given) => Ok(Self(Some(given))),
            Err(error) => Err(EnvError::Unreadable {
                what: format!("the arguments of {name}"),
                reason: error.to_string(),
            }),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The arguments of the entry `name` as an `A`; without arguments, read from an empty object.
    ///
    /// # Errors
    /// [`EnvError::Unreadable`] with the arguments and the reason.
    pub fn read<A: DeserializeOwned>(&self, name: &str) -> Result<A, EnvError> {
        let nothing = Value::Object(serde_json::Map::new());
        let given = self.0.as_ref().unwrap_or(&nothing);
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
        match &self.0 {
            None => Ok(()),
            Some(got) => Err(EnvError::NoArguments {
                id: name.to_owned(),
                got: short(got),
            }),
        }
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
