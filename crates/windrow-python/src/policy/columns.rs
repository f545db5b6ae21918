//! From the values that a policy of Python returns to the columns that it writes.
//!
//! Policies of torch return actions in any element type, with or without dimensions of size 1, and
//! choices as scores of which the largest is meant. The engine's columns have one form each. What
//! can be converted without a doubt is converted; anything that would lose a value is an error that
//! names the column. So is a choice in the encoding that the environment does not have, an index in
//! the place of a one-hot vector or the reverse: what the policy computes beside it, such as
//! log-probabilities, would not fit the recorded action.

use pyo3::prelude::*;
use tensordict::{DType, Element, Tensor, TensorError, for_dtype};
use windrow::envs::ChoiceCode;
use windrow::envs::largest;
use windrow::policy::PolicyError;
use windrow::{Key, LeafSpec, RowsMut, Spec};

use crate::batch::shown;

/// One column, and how it is encoded.
pub(super) struct Column {
    /// Key, element type and shape of a row.
    pub(super) leaf: LeafSpec,
    code: Code,
}

/// How a column is encoded.
enum Code {
    /// Its elements are the values.
    Values,
    /// Choices of so many options each.
    Choices(ChoiceCode, Vec<usize>),
}

impl Column {
    /// A column of an action.
    pub(super) fn of_action(leaf: LeafSpec, spec: &Spec) -> Self {
        let code = match spec.choices() {
            Some(options) => Code::Choices(ChoiceCode::of(spec), options.to_vec()),
            None => Code::Values,
        };
        Self { leaf, code }
    }

    /// A column of the policy's own, such as a log-probability: written as it is.
    pub(super) fn extra(leaf: LeafSpec) -> Self {
        Self {
            leaf,
            code: Code::Values,
        }
    }

    /// Checks that `value` has a form that [`write`](Self::write) takes, for all rows; `batch` are
    /// the dimensions before those of a row.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] for another shape, another encoding of choices, or a float in the
    /// place of a choice.
    pub(super) fn check(&self, value: &Tensor, batch: &[usize]) -> Result<(), PolicyError> {
        let fits = has_shape(value.shape(), batch, &self.leaf.shape);
        let is_float_choice = matches!(self.code, Code::Choices(..)) && value.dtype().is_float();
        match fits && !is_float_choice || self.are_scores(value, batch) {
            true => Ok(()),
            false => Err(self.misfit(value, batch)),
        }
    }

    /// Writes `value` for all rows into column `index`; `batch` as for [`check`](Self::check).
    ///
    /// # Errors
    /// Those of [`check`](Self::check); [`PolicyError::Failed`] for numbers that name no choice, or
    /// that the column cannot hold.
    pub(super) fn write(
        &self,
        value: &Tensor,
        batch: &[usize],
        index: usize,
        out: &mut RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        self.check(value, batch)?;
        if let Code::Choices(code, options) = &self.code
            && self.are_scores(value, batch)
        {
            return self.choose(value, *code, options, index, out);
        }
        let value = self.cast(value)?.contiguous();
        for_dtype!(self.leaf.dtype, T => copy::<T>(&value, index, out))?;
        match &self.code {
            Code::Choices(ChoiceCode::OneHot, options) => {
                self.settle(out.get_mut::<i64>(Key::new(index))?, options)
            }
            _ => Ok(()),
        }
    }

    /// Whether `value` has a float for each option of each choice: scores, of which the largest is
    /// the choice.
    fn are_scores(&self, value: &Tensor, batch: &[usize]) -> bool {
        match &self.code {
            Code::Choices(_, options) => {
                value.dtype().is_float() && has_shape(value.shape(), batch, &[options.iter().sum()])
            }
            Code::Values => false,
        }
    }

    /// Whether values of this type are floats in the place of integers, which they have to be whole
    /// for.
    pub(super) fn needs_whole(&self, dtype: DType) -> bool {
        matches!(self.code, Code::Values) && dtype.is_float() && !self.leaf.dtype.is_float()
    }

    /// `value` in the column's type. Digits may be lost between floats, but no finite number
    /// becomes infinite, and no integer, or float in the place of one, another number.
    fn cast(&self, value: &Tensor) -> Result<Tensor, PolicyError> {
        let (from, to) = (value.dtype(), self.leaf.dtype);
        if from == to {
            return Ok(value.clone());
        }
        let cast = value.cast(to).map_err(PolicyError::failed)?;
        let lost = match (from.is_float(), to.is_float()) {
            (false, true) => None,
            (true, true) => overflown(value, &cast).map_err(PolicyError::failed)?,
            (true, false) => changed::<f64>(value, &cast).map_err(PolicyError::failed)?,
            (false, false) => changed::<i64>(value, &cast).map_err(PolicyError::failed)?,
        };
        match lost {
            None => Ok(cast),
            Some(lost) => Err(PolicyError::failed(format!(
                "{}: expected values that {to} can hold, got {lost}",
                shown(&self.leaf.key)
            ))),
        }
    }

    /// Checks that each choice is marked by a 1 among zeros, and leaves one mark for each.
    fn settle(&self, marks: &mut [i64], options: &[usize]) -> Result<(), PolicyError> {
        for row in marks.chunks_exact_mut(options.iter().sum::<usize>().max(1)) {
            if let Err(number) = ChoiceCode::keep_first(row, options) {
                let first = options[..number].iter().sum::<usize>();
                return Err(PolicyError::failed(format!(
                    "{}: expected a 1 among zeros for each choice, got {:?}",
                    shown(&self.leaf.key),
                    &row[first..first + options[number]]
                )));
            }
        }
        Ok(())
    }

    /// Writes the option with the largest score for each choice. A score that is NaN has no order,
    /// so it is an error.
    fn choose(
        &self,
        value: &Tensor,
        code: ChoiceCode,
        options: &[usize],
        index: usize,
        out: &mut RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        let scores = value
            .cast(DType::F64)
            .map_err(PolicyError::failed)?
            .contiguous();
        let scores = scores.as_slice::<f64>().map_err(PolicyError::failed)?;
        if let Some(bad) = scores.iter().find(|score| score.is_nan()) {
            return Err(PolicyError::failed(format!(
                "{}: expected a number for each choice, got {bad}",
                shown(&self.leaf.key)
            )));
        }
        let actions = out.get_mut::<i64>(Key::new(index))?;
        actions.fill(0);
        let rows = scores.chunks_exact(options.iter().sum::<usize>().max(1));
        for (row, scores) in actions
            .chunks_exact_mut(code.elements(options).max(1))
            .zip(rows)
        {
            let mut first = 0;
            for (number, &options) in options.iter().enumerate() {
                let best = largest(&scores[first..first + options]);
                code.write(row, number, first, best);
                first += options;
            }
        }
        Ok(())
    }

    /// The error of a value that has another shape or kind than the column.
    fn misfit(&self, value: &Tensor, batch: &[usize]) -> PolicyError {
        let shape = self.leaf.shape.as_slice();
        let (expected, other) = match &self.code {
            Code::Values => (format!("{} {shape:?}", self.leaf.dtype), None),
            Code::Choices(code, options) => {
                let other = other_code(*code, options, value.dtype(), value.shape(), batch);
                let scores = format!("or a float for each of {options:?} choices");
                let expected = match code {
                    ChoiceCode::Index => format!("int64 {shape:?}, {scores},"),
                    ChoiceCode::OneHot => format!("one-hot int64 {shape:?}, {scores},"),
                };
                (expected, other)
            }
        };
        PolicyError::failed(format!(
            "{}: expected {expected} for each of {} environments, got {} {:?} for all{}",
            shown(&self.leaf.key),
            batch.iter().product::<usize>(),
            value.dtype(),
            value.shape(),
            other.unwrap_or_default()
        ))
    }
}

/// Says how an environment takes choices in the encoding that values of `dtype` and `shape` have,
/// where that is the other one than its `code`.
pub(super) fn other_code(
    code: ChoiceCode,
    options: &[usize],
    dtype: DType,
    shape: &[usize],
    batch: &[usize],
) -> Option<&'static str> {
    let (size, way) = match code {
        ChoiceCode::OneHot => (
            options.len(),
            "; indices are for GymEnv and GymWrapper with categorical_action_encoding=True",
        ),
        ChoiceCode::Index => (
            options.iter().sum(),
            "; one-hot vectors are for GymEnv and GymWrapper with categorical_action_encoding=False",
        ),
    };
    (!dtype.is_float() && has_shape(shape, batch, &[size])).then_some(way)
}

/// As [`other_code`], of the whole numbers of an action that Python steps environments by.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python's sequences")]
pub(super) fn other_encoding(
    one_hot: bool,
    options: Vec<usize>,
    shape: Vec<usize>,
    batch: Vec<usize>,
) -> Option<&'static str> {
    let code = match one_hot {
        true => ChoiceCode::OneHot,
        false => ChoiceCode::Index,
    };
    other_code(code, &options, DType::I64, &shape, &batch)
}

/// Whether `shape` is that of `batch` and then of a `row`; dimensions of size 1 may be left out or
/// added.
fn has_shape(shape: &[usize], batch: &[usize], row: &[usize]) -> bool {
    let wide = |size: &&usize| **size != 1;
    let expected = batch.iter().chain(row);
    expected.filter(wide).eq(shape.iter().filter(wide))
}

/// The first number that is another one in `cast`; `T` can hold those of both.
fn changed<T: Element>(value: &Tensor, cast: &Tensor) -> Result<Option<String>, TensorError> {
    let (value, cast) = (value.cast(T::DTYPE)?, cast.cast(T::DTYPE)?);
    let mut pairs = value.iter::<T>()?.zip(cast.iter::<T>()?);
    let lost = pairs.find(|(value, cast)| value != cast);
    Ok(lost.map(|(value, _)| value.to_string()))
}

/// The first finite number that is infinite in `cast`.
fn overflown(value: &Tensor, cast: &Tensor) -> Result<Option<String>, TensorError> {
    let (value, cast) = (value.cast(DType::F64)?, cast.cast(DType::F64)?);
    let mut pairs = value.iter::<f64>()?.zip(cast.iter::<f64>()?);
    let lost = pairs.find(|(value, cast)| value.is_finite() && !cast.is_finite());
    Ok(lost.map(|(value, _)| format!("{value:e}")))
}

/// Copies the elements of a contiguous `value` into column `index`.
fn copy<T: Element>(
    value: &Tensor,
    index: usize,
    out: &mut RowsMut<'_>,
) -> Result<(), PolicyError> {
    let values = value.as_slice::<T>().map_err(PolicyError::failed)?;
    out.get_mut::<T>(Key::new(index))?.copy_from_slice(values);
    Ok(())
}
