use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{EnvError, SpecError};

/// Arguments of an environment, by their names in Gymnasium.
pub type Settings = BTreeMap<String, Setting>;

/// An argument. Numbers that JSON cannot hold are text: `inf`, `-inf`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    /// Yes or no.
    Flag(bool),
    /// A whole number: Gymnasium returns some in `info` as such.
    Integer(i64),
    /// A number.
    Number(f64),
    /// Lowest and highest value.
    Range([Bound; 2]),
    /// A name or a path.
    Text(String),
    /// Names, such as those of entries of `info`.
    Names(Vec<String>),
}

/// A number of a range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Bound {
    /// Any but the infinite.
    Finite(f64),
    /// An infinite one.
    #[serde(deserialize_with = "read_infinite")]
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
            (None, Some(Default::Number(number))) => Some(*number),
            (Some(Setting::Text(text)), _) => infinite(text),
            (Some(got), _) => got.number(),
            _ => None,
        };
        number.ok_or_else(|| self.unfit(name, "a number", got))
    }

    /// Whether a number was given as a whole one.
    pub(super) fn is_integer(&self, name: &str) -> bool {
        matches!(self.settings.get(name), Some(Setting::Integer(_)))
    }

    /// Names; none by default.
    pub(super) fn names(&self, name: &'static str) -> Result<&[String], EnvError> {
        match self.settings.get(name) {
            None => Ok(&[]),
            Some(Setting::Names(names)) => Ok(names),
            got => Err(self.unfit(name, "a list of names", got)),
        }
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
        let body = match (got, self.default(name)) {
            (Some(Setting::Text(body)), _) => return Ok(Err(body)),
            (None, Some(&Default::Body(body))) => Some(body),
            (Some(got), _) => got.whole(0.0),
            _ => None,
        };
        body.map(Ok)
            .ok_or_else(|| self.unfit(name, "the number or the name of a body", got))
    }

    /// A number of steps, with a default that the table does not have as an argument.
    pub(super) fn steps(&self, name: &'static str, default: usize) -> Result<usize, EnvError> {
        let Some(got) = self.settings.get(name) else {
            return Ok(default);
        };
        let steps = got.whole(1.0);
        steps.ok_or_else(|| self.unfit(name, "1 step or more", Some(got)))
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

impl Setting {
    fn number(&self) -> Option<f64> {
        match *self {
            Self::Integer(number) => Some(number as f64),
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    /// A whole number of `least` or more.
    fn whole(&self, least: f64) -> Option<usize> {
        let number = self.number()?;
        (number >= least && number.fract() == 0.0).then_some(number as usize)
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

fn read_infinite<'de, D: Deserializer<'de>>(text: D) -> Result<String, D::Error> {
    let text = String::deserialize(text)?;
    match infinite(&text) {
        Some(_) => Ok(text),
        None => Err(D::Error::custom("expected inf or -inf")),
    }
}

fn infinite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_infinite())
}
