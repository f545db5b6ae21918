//! Rows whose element types are learnt at run time.

use tensordict::{DType, Element};
use windrow::env::{EnvError, VecEnvError};
use windrow::slab::{Key, Row, RowMut, Rows, RowsMut};

/// Evaluates `$body`, a `Result` with [`EnvError`], with `$T` naming the Rust type of `$dtype`.
macro_rules! for_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {{
        macro_rules! with {
            ($type:ty) => {{
                type $T = $type;
                $body
            }};
        }
        match $dtype {
            tensordict::DType::Bool => with!(bool),
            tensordict::DType::U8 => with!(u8),
            tensordict::DType::I8 => with!(i8),
            tensordict::DType::I16 => with!(i16),
            tensordict::DType::I32 => with!(i32),
            tensordict::DType::I64 => with!(i64),
            tensordict::DType::F32 => with!(f32),
            tensordict::DType::F64 => with!(f64),
            other => Err(windrow::env::EnvError::Spec(format!(
                "elements of type {other} are not supported"
            ))),
        }
    }};
}
pub(super) use for_dtype;

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

    /// The elements of one leaf.
    pub(super) fn leaf<T: Element>(&mut self, leaf: usize) -> Result<&mut [T], EnvError> {
        Ok(match self {
            Self::One(row) => row.get_mut(Key::new(leaf))?,
            Self::All(rows) => rows.get_mut(Key::new(leaf))?,
        })
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
}

/// Copies the rows of `envs`, leaf by leaf of type `dtypes`.
pub(super) fn copy_rows(
    dtypes: &[DType],
    envs: impl IntoIterator<Item = usize>,
    from: Rows<'_>,
    to: &mut RowsMut<'_>,
) -> Result<(), VecEnvError> {
    for env in envs {
        copy_row(dtypes, from.env(env), to.env_mut(env))
            .map_err(|source| VecEnvError { env, source })?;
    }
    Ok(())
}

/// Copies a row, leaf by leaf of type `dtypes`.
pub(super) fn copy_row(
    dtypes: &[DType],
    from: Option<Row<'_>>,
    to: Option<RowMut<'_>>,
) -> Result<(), EnvError> {
    let (Some(from), Some(mut to)) = (from, to) else {
        return Err(EnvError::Spec("there is no row for it".into()));
    };
    for (leaf, &dtype) in dtypes.iter().enumerate() {
        for_dtype!(dtype, T => {
            let values = from.get(Key::<T>::new(leaf))?;
            Ok(to.write(Key::<T>::new(leaf), values)?)
        })?;
    }
    Ok(())
}
