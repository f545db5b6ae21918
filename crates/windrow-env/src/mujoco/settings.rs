use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{EnvError, SpecError};

/// Arguments of an environment, by their names in Gymnasium.
pub type Settings = BTreeMap<String, Setting>;

/// An argument. Numbers that JSON cannot hold are text: `inf`, `-inf`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    /// Yes or no.
    Flag(bool),
    /// A number.
    Number(f64),
    /// Lowest and highest value.
    Range([Bound; 2]),
    /// A name or a path.
    Text(String),
}

/// A number of a range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Bound {
    /// Any but the infinite.
    Finite(f64),
    /// An infinite one.
    Other(String),
}

/// Arguments as a table has them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Default {
    Flag(bool),
    Number(f64),
    Range(f64, f64),
    /// A body, by its number or its name.
    Body(usize),
}

/// Arguments that were given, and the defaults of others.
#[derive(Debug)]
pub(super) struct Given<'a> {
    pub(super) id: &'a str,
    pub(super) defaults: &'a [(&'static str, Default)],
    pub(super) settings: &'a Settings,
}

impl Given<'_> {
    /// Checks that there is no argument but those with a default, and the `others`.
    ///
    /// # Errors
    /// [`SpecError::Argument`] with the arguments that there are.
    pub(super) fn check(&self, others: &[&str]) -> Result<(), EnvError> {
        let known: Vec<&str> = self.defaults.iter().map(|(name, _)| *name).collect();
        let is_known = |name: &str| known.contains(&name) || others.contains(&name);
        match self.settings.keys().find(|name| !is_known(name)) {
            None => Ok(()),
            Some(unknown) => Err(SpecError::Argument {
                argument: "arguments",
                of: self.id.to_owned(),
                expected: format!("some of {}", [known.as_slice(), others].concat().join(", ")),
                got: unknown.clone(),
            }
            .into()),
        }
    }

    pub(super) fn flag(&self, name: &'static str) -> Result<bool, EnvError> {
        match (self.settings.get(name), self.default(name)) {
            (Some(Setting::Flag(flag)), _) | (None, Some(Default::Flag(flag))) => Ok(*flag),
            (got, _) => Err(self.unfit(name, "true or false", got)),
        }
    }

    pub(super) fn number(&self, name: &'static str) -> Result<f64, EnvError> {
        let got = self.settings.get(name);
        let number = match (got, self.default(name)) {
            (Some(Setting::Number(number)), _) | (None, Some(Default::Number(number))) => {
                Some(*number)
            }
            (Some(Setting::Text(text)), _) => infinite(text),
            _ => None,
        };
        number.ok_or_else(|| self.unfit(name, "a number", got))
    }

    pub(super) fn range(&self, name: &'static str) -> Result<[f64; 2], EnvError> {
        let got = self.settings.get(name);
        let range = match (got, self.default(name)) {
            (Some(Setting::Range([low, high])), _) => low.value().zip(high.value()),
            (None, Some(&Default::Range(low, high))) => Some((low, high)),
            _ => None,
        };
        let range = range.map(|(low, high)| [low, high]);
        range.ok_or_else(|| self.unfit(name, "a lowest and a highest number", got))
    }

    /// A body: its number, or its name.
    pub(super) fn body(&self, name: &'static str) -> Result<Result<usize, &str>, EnvError> {
        let got = self.settings.get(name);
        match (got, self.default(name)) {
            (Some(Setting::Text(body)), _) => Ok(Err(body)),
            (None, Some(&Default::Body(body))) => Ok(Ok(body)),
            (Some(&Setting::Number(body)), _) if body >= 0.0 && body.fract() == 0.0 => {
                Ok(Ok(body as usize))
            }
            _ => Err(self.unfit(name, "the number or the name of a body", got)),
        }
    }

    /// A number of steps, with a default that the table does not have as an argument.
    pub(super) fn steps(&self, name: &'static str, default: usize) -> Result<usize, EnvError> {
        match self.settings.get(name) {
            None => Ok(default),
            Some(&Setting::Number(steps)) if steps >= 1.0 && steps.fract() == 0.0 => {
                Ok(steps as usize)
            }
            got => Err(self.unfit(name, "1 step or more", got)),
        }
    }

    pub(super) fn text(&self, name: &'static str) -> Result<Option<&str>, EnvError> {
        match self.settings.get(name) {
            None => Ok(None),
            Some(Setting::Text(text)) => Ok(Some(text)),
            got => Err(self.unfit(name, "text", got)),
        }
    }

    fn default(&self, name: &str) -> Option<&Default> {
        let mut defaults = self.defaults.iter();
        defaults
            .find(|(known, _)| *known == name)
            .map(|(_, default)| default)
    }

    #[cold]
    fn unfit(&self, name: &'static str, expected: &str, got: Option<&Setting>) -> EnvError {
        SpecError::Argument {
            argument: name,
            of: self.id.to_owned(),
            expected: expected.to_owned(),
            got: got.map_or_else(|| "nothing".to_owned(), |got| format!("{got:?}")),
        }
        .into()
    }
}

impl Bound {
    fn value(&self) -> Option<f64> {
        match self {
            Self::Finite(value) => Some(*value),
            Self::Other(text) => infinite(text),
        }
    }
}

fn infinite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_infinite())
}
