//! From the values that a policy of Python returns to the columns that it writes.
//!
//! Policies of torch return actions in several forms: indices, one-hot vectors, or scores of which
//! the largest is meant, in any element type, and with or without dimensions of size 1. The
//! engine's columns have one form each. What can be converted without a doubt is converted;
//! anything that would lose a value is an error that names the column.

use tensordict::{DType, Element, Tensor, TensorError, for_dtype};
use windrow::binding::largest;
use windrow::envs::ChoiceCode;
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

    /// Writes `value` for all rows into column `index`; `batch` are the dimensions before those of
    /// a row.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] for another shape, a float in the place of a choice, numbers that
    /// name no choice, or numbers that the column cannot hold.
    pub(super) fn write(
        &self,
        value: &Tensor,
        batch: &[usize],
        index: usize,
        out: &mut RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        let rows = out.envs();
        // One float for each option of each choice: scores, of which the largest is the choice.
        if value.dtype().is_float()
            && let Code::Choices(code, options) = &self.code
            && has_shape(value, batch, &[options.iter().sum()])
        {
            return self.choose(value, *code, options, index, out);
        }
        if let Code::Choices(ChoiceCode::OneHot, options) = &self.code
            && value.dtype() != DType::Bool
            && !value.dtype().is_float()
            && !has_shape(value, batch, &self.leaf.shape)
            && has_shape(value, batch, &[options.len()])
        {
            return self.mark(value, options, index, out);
        }
        let is_choice = matches!(self.code, Code::Choices(..));
        let is_float = value.dtype().is_float() && !self.leaf.dtype.is_float();
        if !has_shape(value, batch, &self.leaf.shape) || (is_choice && is_float) {
            return Err(self.misfit(value, rows));
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

    /// Writes the one-hot vectors of choices that are given as indices.
    fn mark(
        &self,
        value: &Tensor,
        options: &[usize],
        index: usize,
        out: &mut RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        let value = value
            .cast(DType::I64)
            .map_err(PolicyError::failed)?
            .contiguous();
        let indices = value.as_slice::<i64>().map_err(PolicyError::failed)?;
        let actions = out.get_mut::<i64>(Key::new(index))?;
        actions.fill(0);
        let width = options.iter().sum::<usize>().max(1);
        let rows = indices.chunks_exact(options.len().max(1));
        for (row, indices) in actions.chunks_exact_mut(width).zip(rows) {
            let mut first = 0;
            for (&options, &given) in options.iter().zip(indices) {
                let chosen = usize::try_from(given)
                    .ok()
                    .filter(|&chosen| chosen < options);
                let Some(chosen) = chosen else {
                    return Err(PolicyError::failed(format!(
                        "{}: expected the index of one of {options} choices, got {given}",
                        shown(&self.leaf.key)
                    )));
                };
                row[first + chosen] = 1;
                first += options;
            }
        }
        Ok(())
    }

    /// The error of a value that has another shape or kind than the column.
    fn misfit(&self, value: &Tensor, rows: usize) -> PolicyError {
        let expected = match &self.code {
            Code::Values => format!("{} {:?}", self.leaf.dtype, self.leaf.shape.as_slice()),
            Code::Choices(ChoiceCode::Index, n) => format!(
                "int64 {:?}, or a float for each of {n:?} choices",
                self.leaf.shape.as_slice()
            ),
            Code::Choices(ChoiceCode::OneHot, _) => format!(
                "one-hot int64 {:?}, an index, or a float for each choice",
                self.leaf.shape.as_slice()
            ),
        };
        PolicyError::failed(format!(
            "{}: expected {expected} for each of {rows} environments, got {} {:?} for all",
            shown(&self.leaf.key),
            value.dtype(),
            value.shape()
        ))
    }
}

/// Whether `value` has the dimensions `batch` and then `shape`; those of size 1 may be left out or
/// added.
fn has_shape(value: &Tensor, batch: &[usize], shape: &[usize]) -> bool {
    let wide = |size: &&usize| **size != 1;
    let expected = batch.iter().chain(shape);
    expected.filter(wide).eq(value.shape().iter().filter(wide))
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
