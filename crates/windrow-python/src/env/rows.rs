//! Rows whose element types are learnt at run time.
//!
//! Native environments know the types of their leaves when they are compiled; those of Python say
//! them when they are made. Each leaf looks its type up once for an access, by `for_dtype!`, and
//! what is behind is compiled for that type.

use tensordict::Element;
use windrow::envs::{EnvError, VecEnvError};
use windrow::{Key, Row, RowMut, Rows, RowsMut};

/// Where an observation is written: the row of one environment, or those of all.
#[derive(Debug)]
pub(super) enum Target<'a> {
    One(RowMut<'a>),
    All(RowsMut<'a>),
}

impl Target<'_> {
    /// The environments that values have a leading dimension for.
    pub(super) fn lead(&self) -> Option<usize> {
        match self {
            Self::One(_) => None,
            Self::All(rows) => Some(rows.envs()),
        }
    }

    /// The row of environment `env`.
    ///
    /// # Errors
    /// [`EnvError::Foreign`] where there is none.
    pub(super) fn row(&mut self, env: usize) -> Result<RowMut<'_>, EnvError> {
        let row = match self {
            Self::One(row) => Some(row.reborrow()),
            Self::All(rows) => rows.env_mut(env),
        };
        row.ok_or_else(super::gym::no_row)
    }

    /// The elements of one leaf.
    pub(super) fn leaf<T: Element>(&mut self, leaf: usize) -> Result<&mut [T], EnvError> {
        Ok(match self {
            Self::One(row) => row.get_mut(Key::new(leaf))?,
            Self::All(rows) => rows.get_mut(Key::new(leaf))?,
        })
    }

    /// Writes the values of one leaf of bytes: those of an environment, or of one after the other.
    ///
    /// # Errors
    /// [`EnvError::Foreign`] for another number of them.
    pub(super) fn write_strings(&mut self, leaf: usize, values: &[&[u8]]) -> Result<(), EnvError> {
        let (key, envs) = (Key::new(leaf), self.lead().unwrap_or(1));
        let each = match self {
            Self::One(row) => row.as_row().strings(key)?.len(),
            Self::All(rows) => match rows.as_rows().env(0) {
                Some(row) => row.strings(key)?.len(),
                None => 0,
            },
        };
        if values.len() != envs * each {
            let (expected, got) = (envs * each, values.len());
            return Err(EnvError::Foreign(format!(
                "leaf {leaf}: expected {expected} values of bytes, got {got}"
            )));
        }
        for (place, value) in values.iter().enumerate() {
            let row = match self {
                Self::One(row) => Some(row.reborrow()),
                Self::All(rows) => rows.env_mut(place / each),
            };
            if let Some(mut row) = row {
                row.write_string(key, place % each, value)?;
            }
        }
        Ok(())
    }
}

/// Where an action is read: the row of one environment, or those of all.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin<'a> {
    One(Row<'a>),
    All(Rows<'a>),
}

impl<'a> Origin<'a> {
    /// The environments that values have a leading dimension for.
    pub(super) fn lead(self) -> Option<usize> {
        match self {
            Self::One(_) => None,
            Self::All(rows) => Some(rows.envs()),
        }
    }

    /// The elements of one leaf.
    pub(super) fn leaf<T: Element>(self, leaf: usize) -> Result<&'a [T], EnvError> {
        Ok(match self {
            Self::One(row) => row.get(Key::new(leaf))?,
            Self::All(rows) => rows.get(Key::new(leaf))?,
        })
    }

    /// The values of one leaf of bytes: those of an environment, or of one after the other.
    pub(super) fn strings(self, leaf: usize) -> Result<Vec<&'a [u8]>, EnvError> {
        Ok(match self {
            Self::One(row) => row.strings(Key::new(leaf))?,
            Self::All(rows) => rows.strings(Key::new(leaf))?,
        })
    }
}

/// Copies the rows of `envs`. `to` may have other leaves behind those of `from`.
pub(super) fn copy_rows(
    envs: impl IntoIterator<Item = usize>,
    from: Rows<'_>,
    to: &mut RowsMut<'_>,
) -> Result<(), VecEnvError> {
    for env in envs {
        let (Some(row), Some(mut to)) = (from.env(env), to.env_mut(env)) else {
            return Err(super::gym::no_row().of(env));
        };
        (0..from.leaves())
            .try_for_each(|leaf| to.copy_leaf(leaf, row, leaf))
            .map_err(|error| EnvError::from(error).of(env))?;
    }
    Ok(())
}
