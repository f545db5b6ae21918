use windrow_env::Spec;

/// How an action holds choices: element types and shapes are those of the action's [`Spec`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChoiceCode {
    /// One element for each choice: its index.
    Index,
    /// One element for each option, side by side: 1 for the option that was chosen, 0 for the others.
    OneHot,
}

impl ChoiceCode {
    /// How actions of `spec` hold choices.
    #[must_use]
    pub fn of(spec: &Spec) -> Self {
        match spec {
            Spec::OneHot { .. } => Self::OneHot,
            _ => Self::Index,
        }
    }

    /// Elements of a row, where each choice has so many options.
    #[must_use]
    pub fn elements(self, options: &[usize]) -> usize {
        match self {
            Self::Index => options.len(),
            Self::OneHot => options.iter().sum(),
        }
    }

    /// Writes choice `number` of a row, whose options begin at option `first` among those of all choices. A one-hot row holds
    /// zeros before its first choice is written.
    #[inline]
    pub fn write(self, row: &mut [i64], number: usize, first: usize, choice: usize) {
        match self {
            Self::Index => row[number] = choice as i64,
            Self::OneHot => row[first + choice] = 1,
        }
    }
}

/// Index of the largest value, the first of equal ones.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_ones_is_the_largest() {
        assert_eq!(largest(&[1.0, 3.0, 3.0, 2.0]), 1);
        assert_eq!(largest(&[f32::NEG_INFINITY, -5.0]), 1);
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
}
