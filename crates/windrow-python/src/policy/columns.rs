//! What a policy returned, in the columns that it is to write.

use tensordict::{DType, Element, Tensor, for_dtype};
use windrow::Spec;
use windrow::policy::PolicyError;
use windrow::slab::{Key, LeafSpec, RowsMut};

/// One column, and how it is encoded.
pub(super) struct Column {
    pub(super) leaf: LeafSpec,
    code: Code,
}

/// How a column is encoded.
enum Code {
    /// Its elements are the values.
    Values,
    /// Each element is the number of a choice.
    Index(Vec<usize>),
    /// Ones at the choices, side by side.
    OneHot(Vec<usize>),
}

impl Column {
    /// A column of an action.
    pub(super) fn of_action(leaf: LeafSpec, spec: &Spec) -> Self {
        let choices = spec.choices().map(<[usize]>::to_vec);
        let code = match (spec, choices) {
            (Spec::OneHot { .. }, Some(choices)) => Code::OneHot(choices),
            (_, Some(choices)) => Code::Index(choices),
            (_, None) => Code::Values,
        };
        Self { leaf, code }
    }

    /// A column of the policy's own.
    pub(super) fn extra(leaf: LeafSpec) -> Self {
        Self {
            leaf,
            code: Code::Values,
        }
    }

    /// Writes `value` for all rows into column `index`.
    ///
    /// # Errors
    /// When it has another number of elements, or numbers that name no choice.
    pub(super) fn write(
        &self,
        value: &Tensor,
        index: usize,
        out: &mut RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        let rows = out.envs();
        if value.dtype().is_float()
            && let Code::Index(choices) | Code::OneHot(choices) = &self.code
            && value.len() == rows * choices.iter().sum::<usize>()
        {
            return self.choose(value, choices, index, out);
        }
        let expected = rows * self.leaf.elements();
        let narrowing = value.dtype().is_float() && !self.leaf.dtype.is_float();
        if value.len() != expected || narrowing {
            return Err(self.misfit(value, rows));
        }
        let value = value
            .cast(self.leaf.dtype)
            .map_err(PolicyError::failed)?
            .contiguous();
        for_dtype!(self.leaf.dtype, T => copy::<T>(&value, index, out))
    }

    /// The largest of the numbers of each choice.
    fn choose(
        &self,
        value: &Tensor,
        choices: &[usize],
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
                self.leaf.key
            )));
        }
        let actions = out.get_mut::<i64>(Key::new(index))?;
        let mut at = 0;
        for (row, &choice) in (0..)
            .zip(choices.iter().cycle())
            .take(actions_in(scores, choices))
        {
            let best = largest(&scores[at..at + choice]);
            match self.code {
                Code::OneHot(_) => {
                    actions[at..at + choice].fill(0);
                    actions[at + best] = 1;
                }
                _ => actions[row] = best as i64,
            }
            at += choice;
        }
        Ok(())
    }

    fn misfit(&self, value: &Tensor, rows: usize) -> PolicyError {
        let expected = match &self.code {
            Code::Values => format!("{} {:?}", self.leaf.dtype, self.leaf.shape.as_slice()),
            Code::Index(n) => format!(
                "int64 {:?}, or a float for each of {n:?} choices",
                self.leaf.shape.as_slice()
            ),
            Code::OneHot(_) => format!(
                "one-hot int64 {:?}, or a float for each choice (indices need an environment with \
                 categorical_action_encoding=True)",
                self.leaf.shape.as_slice()
            ),
        };
        PolicyError::failed(format!(
            "{}: expected {expected} for each of {rows} environments, got {} {:?} for all",
            self.leaf.key,
            value.dtype(),
            value.shape()
        ))
    }
}

fn actions_in(scores: &[f64], choices: &[usize]) -> usize {
    scores.len() / choices.iter().sum::<usize>().max(1) * choices.len()
}

/// Index of the first of the largest numbers.
fn largest(scores: &[f64]) -> usize {
    let mut best = 0;
    for (i, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = i;
        }
    }
    best
}

fn copy<T: Element>(
    value: &Tensor,
    index: usize,
    out: &mut RowsMut<'_>,
) -> Result<(), PolicyError> {
    let values = value.as_slice::<T>().map_err(PolicyError::failed)?;
    out.get_mut::<T>(Key::new(index))?.copy_from_slice(values);
    Ok(())
}
