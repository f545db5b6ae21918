//! From the values of a graph to actions and other columns.

use tensordict::DType;
use windrow_env::{ChoiceCode, Spec, largest};
use windrow_slab::{Key, LeafSpec, RowsMut};

use crate::fit::Fit;
use crate::gaussian::check;
use crate::{PolicyError, PolicyIn};

/// How the value of an action becomes the action.
#[derive(Debug, Clone)]
pub(super) enum Action {
    /// Its numbers are the action.
    Copy(DType),
    /// Choices, each with its number of options, in the form that the environment takes.
    Choices(ChoiceCode, Vec<usize>),
    /// A number for each option of each choice.
    Scores(ChoiceCode, Vec<usize>),
}

impl Action {
    /// The conversion from `own`, the graph's form of the action, to the environment's `leaf`.
    ///
    /// # Errors
    /// [`PolicyError::Fit`] if there is none.
    pub(super) fn new(
        fit: &Fit<'_>,
        spec: &Spec,
        leaf: &LeafSpec,
        own: &LeafSpec,
    ) -> Result<Self, PolicyError> {
        let wide = |leaf: &LeafSpec| {
            leaf.shape
                .iter()
                .copied()
                .filter(|&size| size != 1)
                .collect::<Vec<_>>()
        };
        let fits = own.key == leaf.key && wide(own) == wide(leaf);
        let code = ChoiceCode::of(spec);
        let options = spec.choices().map(<[usize]>::to_vec);
        match options {
            Some(options) if own.dtype.is_float() && own.key == leaf.key => {
                let all: usize = options.iter().sum();
                if own.shape.iter().product::<usize>() == all && !options.contains(&0) {
                    return Ok(Self::Scores(code, options));
                }
            }
            // The environment says what it makes of an index that names no choice.
            Some(_) if fits && code == ChoiceCode::Index && fit.env.any_integers => {
                return Ok(Self::Copy(leaf.dtype));
            }
            Some(options) if fits => return Ok(Self::Choices(code, options)),
            None if fits && own.dtype.is_float() == leaf.dtype.is_float() => {
                return Ok(Self::Copy(leaf.dtype));
            }
            _ => {}
        }
        Err(fit.error("action", &leaf.to_string(), &own.to_string()))
    }

    /// Writes the action of every row into column `index`.
    ///
    /// # Errors
    /// [`PolicyError::NotFinite`] for the first row without an action; [`PolicyError::Failed`] for
    /// a choice that does not exist.
    pub(super) fn write(
        &self,
        index: usize,
        values: &[f32],
        input: &PolicyIn<'_>,
        out: &mut RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        let rows = out.envs();
        let width = (values.len() / rows.max(1)).max(1);
        for (row, values) in values.chunks_exact(width).enumerate() {
            check(input, row, "output of the network", values)?;
        }
        match self {
            Self::Copy(dtype) => return write_column(*dtype, index, values, out),
            Self::Choices(code, options) => {
                let actions = out.get_mut::<i64>(Key::new(index))?;
                for (action, &value) in actions.iter_mut().zip(values) {
                    *action = value as i64;
                }
                for row in actions.chunks_exact_mut(width) {
                    settle(*code, options, row)?;
                }
            }
            Self::Scores(code, options) => {
                let actions = out.get_mut::<i64>(Key::new(index))?;
                actions.fill(0);
                let actions = actions.chunks_exact_mut(code.elements(options).max(1));
                for (action, scores) in actions.zip(values.chunks_exact(width)) {
                    let mut first = 0;
                    for (number, &options) in options.iter().enumerate() {
                        let best = largest(&scores[first..first + options]);
                        code.write(action, number, first, best);
                        first += options;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Checks that the choices of a row exist, and leaves one mark for each.
fn settle(code: ChoiceCode, options: &[usize], row: &mut [i64]) -> Result<(), PolicyError> {
    let exists = |(choice, &options): (&i64, &usize)| (0..options as i64).contains(choice);
    let wrong = match code {
        ChoiceCode::Index => row.iter().zip(options).position(|pair| !exists(pair)),
        ChoiceCode::OneHot => ChoiceCode::keep_first(row, options).err(),
    };
    let Some(number) = wrong else {
        return Ok(());
    };
    let expected = match code {
        ChoiceCode::Index => format!("a number below {}", options[number]),
        ChoiceCode::OneHot => format!("a 1 among {} numbers, else zeros,", options[number]),
    };
    Err(PolicyError::failed(format!(
        "expected {expected} for choice {number}, got {row:?}"
    )))
}

/// Writes values in the element type of column `index`.
///
/// # Errors
/// [`PolicyError::Failed`] for the first that an integer type cannot hold.
pub(crate) fn write_column(
    dtype: DType,
    index: usize,
    values: &[f32],
    out: &mut RowsMut<'_>,
) -> Result<(), PolicyError> {
    macro_rules! cast {
        ($type:ty) => {
            for (to, &from) in out
                .get_mut::<$type>(Key::new(index))?
                .iter_mut()
                .zip(values)
            {
                *to = from as $type;
                if *to as f64 != f64::from(from) {
                    return Err(PolicyError::failed(format!(
                        "expected values that {dtype} can hold, got {from}"
                    )));
                }
            }
        };
    }
    match dtype {
        DType::Bool => {
            for (to, &from) in out.get_mut::<bool>(Key::new(index))?.iter_mut().zip(values) {
                *to = from != 0.0;
            }
        }
        // As the rows say, bytes are no numbers.
        DType::U8 | DType::Bytes => cast!(u8),
        DType::I8 => cast!(i8),
        DType::I16 => cast!(i16),
        DType::I32 => cast!(i32),
        DType::I64 => cast!(i64),
        DType::F32 => out.get_mut::<f32>(Key::new(index))?.copy_from_slice(values),
        DType::F64 => {
            for (to, &from) in out.get_mut::<f64>(Key::new(index))?.iter_mut().zip(values) {
                *to = f64::from(from);
            }
        }
    }
    Ok(())
}
