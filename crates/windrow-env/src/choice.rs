//! Choices among several options, written as indices or one-hot vectors.

use crate::Spec;

/// Index of the largest of `values`, the first of equal ones; 0 when there are none. NaN is
/// never the largest.
///
/// ```
/// use windrow_env::largest;
///
/// assert_eq!(largest(&[1.0, 3.0, 3.0, 2.0]), 1);
/// ```
#[inline]
#[must_use]
pub fn largest<T: PartialOrd>(values: &[T]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = i;
        }
    }
    best
}

/// How an action encodes choices; element types and shapes are those of the action's [`Spec`].
///
/// ```
/// use windrow_env::{ChoiceCode, Spec};
///
/// let code = ChoiceCode::of(&Spec::OneHot { nvec: vec![2, 3] });
/// let mut row = [0; 5];
/// code.write(&mut row, 0, 0, 1);
/// code.write(&mut row, 1, 2, 0);
/// assert_eq!(row, [0, 1, 1, 0, 0]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChoiceCode {
    /// One element for each choice: its index.
    Index,
    /// One element for each option, side by side: 1 for the option that was chosen, 0 for the
    /// others.
    OneHot,
}

impl ChoiceCode {
    /// How actions of `spec` encode choices.
    #[must_use]
    pub fn of(spec: &Spec) -> Self {
        match spec {
            Spec::OneHot { .. } => Self::OneHot,
            _ => Self::Index,
        }
    }

    /// Elements of a row whose choices have these numbers of options.
    #[must_use]
    pub fn elements(self, options: &[usize]) -> usize {
        match self {
            Self::Index => options.len(),
            Self::OneHot => options.iter().sum(),
        }
    }

    /// Writes choice `number` of a row, whose options begin at option `first` among those of all
    /// choices. A one-hot row holds zeros before its first choice is written. A choice beyond the
    /// end of `row` is not written.
    #[inline]
    pub fn write(self, row: &mut [i64], number: usize, first: usize, choice: usize) {
        let (place, value) = match self {
            Self::Index => (number, choice as i64),
            Self::OneHot => (first + choice, 1),
        };
        if let Some(element) = row.get_mut(place) {
            *element = value;
        }
    }

    /// Leaves the first 1 of each choice of a one-hot row: a policy that marks the options with the
    /// largest score marks several where scores are equal, and the first of these is the choice, as
    /// for [`largest`].
    ///
    /// # Errors
    /// The number of the first choice that has no 1, or a number other than 0 and 1. The row is
    /// then as it was from there on.
    pub fn keep_first(mut row: &mut [i64], options: &[usize]) -> Result<(), usize> {
        for (number, &options) in options.iter().enumerate() {
            let (own, others) = row.split_at_mut_checked(options).ok_or(number)?;
            let first = own.iter().position(|&mark| mark == 1).ok_or(number)?;
            if own.iter().any(|&mark| mark != 0 && mark != 1) {
                return Err(number);
            }
            own[first + 1..].fill(0);
            row = others;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_ones_is_the_largest() {
        assert_eq!(largest(&[0, 7, 7, 3]), 1);
        assert_eq!(largest(&[f32::NEG_INFINITY; 3]), 0);
        assert_eq!(largest::<f64>(&[]), 0);
    }

    #[test]
    fn the_first_of_several_marks_is_the_choice() {
        let mut row = [0, 1, 1, 1, 1];
        assert_eq!(ChoiceCode::keep_first(&mut row, &[3, 2]), Ok(()));
        assert_eq!(row, [0, 1, 0, 1, 0]);
        for (mut row, wrong) in [([0, 1, 0, 0], 1), ([2, 1, 0, 1], 0), ([1, 0, -1, 1], 1)] {
            assert_eq!(ChoiceCode::keep_first(&mut row, &[2, 2]), Err(wrong));
        }
        assert_eq!(ChoiceCode::keep_first(&mut [1, 0], &[3]), Err(0));
    }

    #[test]
    fn choices_are_written_side_by_side() {
        let (options, choices) = ([2, 3], [(0, 0, 1), (1, 2, 0)]);
        for (code, expected) in [
            (ChoiceCode::Index, vec![1, 0]),
            (ChoiceCode::OneHot, vec![0, 1, 1, 0, 0]),
        ] {
            let mut row = vec![0; code.elements(&options)];
            for (number, first, choice) in choices {
                code.write(&mut row, number, first, choice);
            }
            assert_eq!(row, expected);
        }
    }

    #[test]
    fn a_choice_without_a_place_is_not_written() {
        let mut row = [0; 2];
        ChoiceCode::Index.write(&mut row, 2, 0, 1);
        ChoiceCode::OneHot.write(&mut row, 0, 0, 2);
        assert_eq!(row, [0, 0]);
    }
}
