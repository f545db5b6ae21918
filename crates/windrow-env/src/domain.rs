//! Domains of specs: checking values, and drawing them.

use tensordict::{DType, NestedKey};
use windrow_slab::{Key, Row, RowMut};

use crate::number::{numbers, write_numbers};
use crate::{ChoiceCode, EnvError, Spec, SpecError};

impl Spec {
    /// Checks that `row`, laid out by this spec, holds values of its domain. NaN is in no domain.
    #[must_use]
    pub fn contains(&self, row: Row<'_>) -> bool {
        self.check("value", row).is_ok()
    }

    /// Whether `row`, laid out by this spec, holds values of its domain; a bare leaf is called
    /// `name` in errors.
    ///
    /// # Errors
    /// [`SpecError::Value`] or [`SpecError::Ones`] for the first value outside.
    /// [`EnvError::Row`] when the row is laid out by another spec.
    pub fn check(&self, name: &str, row: Row<'_>) -> Result<(), EnvError> {
        for (i, (key, leaf)) in self.leaves(name).into_iter().enumerate() {
            let Some(dtype) = leaf.number_type() else {
                continue;
            };
            let values = numbers(row, i, dtype)?;
            if let Some(element) = (0..values.len()).find(|&e| !leaf.admits(e, values[e])) {
                return Err(SpecError::Value {
                    leaf: key,
                    element,
                    value: values[element],
                    expected: leaf.domain_of(element),
                }
                .into());
            }
            leaf.check_ones(&key, &values)?;
        }
        Ok(())
    }

    /// Checks that each vector of a one-hot leaf, known to hold zeros and ones, has a single one.
    fn check_ones(&self, name: &NestedKey, values: &[f64]) -> Result<(), EnvError> {
        let Self::OneHot { nvec } = self else {
            return Ok(());
        };
        let mut first = 0;
        for &n in nvec {
            let ones = values[first..first + n]
                .iter()
                .filter(|&&x| x == 1.0)
                .count();
            if ones != 1 {
                return Err(SpecError::Ones {
                    leaf: name.clone(),
                    first,
                    last: first + n - 1,
                    ones,
                }
                .into());
            }
            first += n;
        }
        Ok(())
    }

    /// Writes random values of its domain into `row`, laid out by this spec; `unit` draws numbers
    /// from `[0, 1)`. Where a domain has no bounds, they lie within 1 of zero, or of the only
    /// bound. Leaves of bytes stay as they are.
    ///
    /// # Errors
    /// [`EnvError::Row`] when the row is laid out by another spec.
    pub fn sample(
        &self,
        row: &mut RowMut<'_>,
        mut unit: impl FnMut() -> f64,
    ) -> Result<(), EnvError> {
        for (i, (_, leaf)) in self.leaves("").into_iter().enumerate() {
            let Some(dtype) = leaf.number_type() else {
                continue;
            };
            if let Self::OneHot { nvec } = leaf {
                let mut vectors = row.get_mut(Key::<i64>::new(i))?;
                vectors.fill(0);
                for &n in nvec {
                    let (vector, others) = vectors.split_at_mut(n.min(vectors.len()));
                    ChoiceCode::OneHot.write(vector, 0, 0, (unit() * n as f64) as usize);
                    vectors = others;
                }
                continue;
            }
            write_numbers(row, i, dtype, |element| leaf.draw(element, unit()))?;
        }
        Ok(())
    }

    /// Element type of a leaf of numbers.
    pub(crate) fn number_type(&self) -> Option<DType> {
        self.dtype().filter(|dtype| *dtype != DType::Bytes)
    }

    /// A value of a leaf's domain for `unit` in `[0, 1)`.
    fn draw(&self, element: usize, unit: f64) -> f64 {
        let (low, high) = self.range_of(element).unwrap_or_default();
        match self {
            Self::Bounded { dtype, .. } if dtype.is_float() => between(low, high, unit),
            Self::Unbounded { .. } => between(low, high, unit),
            _ => (low + unit * (high - low + 1.0)).floor(),
        }
    }

    /// Whether a leaf's element may be `value`.
    fn admits(&self, element: usize, value: f64) -> bool {
        match self {
            Self::Unbounded { .. } => !value.is_nan(),
            Self::Composite(_) => true,
            leaf => leaf
                .range_of(element)
                .is_some_and(|(low, high)| low <= value && value <= high),
        }
    }

    /// Lowest and highest value of a leaf's element; `None` for an element that does not exist.
    pub(crate) fn range_of(&self, element: usize) -> Option<(f64, f64)> {
        let below = |n: usize| Some((0.0, n.checked_sub(1)? as f64));
        match self {
            Self::Unbounded { .. } => Some((f64::NEG_INFINITY, f64::INFINITY)),
            Self::Bounded { low, high, .. } => Some((*low.get(element)?, *high.get(element)?)),
            Self::Discrete { n } => below(*n),
            Self::Binary { .. } | Self::OneHot { .. } => below(2),
            Self::MultiDiscrete { nvec } => below(*nvec.get(element)?),
            Self::Composite(_) => None,
        }
    }

    fn domain_of(&self, element: usize) -> String {
        match (self, self.range_of(element)) {
            (Self::Binary { .. } | Self::OneHot { .. }, _) => "0 or 1".into(),
            (Self::Discrete { .. } | Self::MultiDiscrete { .. }, Some((low, high))) => {
                format!("an integer from {low} to {high}")
            }
            (Self::Bounded { .. }, Some((low, high))) => format!("a value from {low} to {high}"),
            (Self::Unbounded { .. }, _) => "a number".into(),
            (_, None) | (Self::Composite(_), _) => "nothing: the spec has no such element".into(),
        }
    }
}

fn between(low: f64, high: f64, unit: f64) -> f64 {
    match (low.is_finite(), high.is_finite()) {
        (true, true) => low + unit * (high - low),
        (true, false) => low + unit,
        (false, true) => high - unit,
        (false, false) => 2.0 * unit - 1.0,
    }
}

#[cfg(test)]
mod tests {
    use windrow_slab::{Key, RowBlock};

    use super::*;
    use crate::EnvSpec;

    fn block(spec: &Spec) -> RowBlock {
        let leaves = EnvSpec::new("test", spec.clone(), Spec::discrete(2)).observation_leaves();
        RowBlock::new(&leaves, 1).unwrap()
    }

    fn verdict<T: tensordict::Element>(spec: &Spec, values: &[T]) -> String {
        let mut block = block(spec);
        let mut rows = block.rows_mut();
        rows.env_mut(0).unwrap().write(Key::new(0), values).unwrap();
        let row = rows.as_rows().env(0).unwrap();
        let checked = spec.check("x", row);
        assert_eq!(spec.contains(row), checked.is_ok());
        checked.map_or_else(|error| error.to_string(), |()| "ok".into())
    }

    #[test]
    fn values_inside_are_accepted() {
        let interval = Spec::bounded(&[-1.0, 0.0], &[1.0, f32::INFINITY]).unwrap();
        assert_eq!(verdict(&interval, &[1.0f32, f32::INFINITY]), "ok");
        assert_eq!(verdict(&Spec::discrete(3), &[2i64]), "ok");
        assert_eq!(
            verdict(&Spec::MultiDiscrete { nvec: vec![2, 5] }, &[1i64, 4]),
            "ok"
        );
        let hot = Spec::OneHot { nvec: vec![2, 3] };
        assert_eq!(verdict(&hot, &[0i64, 1, 1, 0, 0]), "ok");
        assert_eq!(
            verdict(&Spec::unbounded(DType::F64, [2]), &[f64::INFINITY, 0.0]),
            "ok"
        );
        assert_eq!(verdict(&Spec::unbounded(DType::Bool, []), &[true]), "ok");
    }

    #[test]
    fn errors_name_the_element_and_its_domain() {
        let interval = Spec::bounded(&[-1.0, 0.0], &[1.0, 2.5]).unwrap();
        assert_eq!(
            verdict(&interval, &[0.0f32, 3.0]),
            "element 1 of \"x\" is 3, expected a value from 0 to 2.5"
        );
        assert_eq!(
            verdict(&Spec::discrete(3), &[-1i64]),
            "element 0 of \"x\" is -1, expected an integer from 0 to 2"
        );
        assert_eq!(
            verdict(&Spec::MultiDiscrete { nvec: vec![2, 5] }, &[2i64, 4]),
            "element 0 of \"x\" is 2, expected an integer from 0 to 1"
        );
        let hot = Spec::OneHot { nvec: vec![2, 3] };
        assert_eq!(
            verdict(&hot, &[0i64, 1, 2, 0, 0]),
            "element 2 of \"x\" is 2, expected 0 or 1"
        );
        assert_eq!(
            verdict(&hot, &[0i64, 1, 0, 0, 0]),
            "elements 2 to 4 of \"x\" hold 0 ones, expected exactly one"
        );
        assert_eq!(
            verdict(&Spec::one_hot(2), &[1i64, 1]),
            "elements 0 to 1 of \"x\" hold 2 ones, expected exactly one"
        );
        let binary = Spec::Binary {
            shape: [1].as_slice().into(),
        };
        assert_eq!(
            verdict(&binary, &[2i8]),
            "element 0 of \"x\" is 2, expected 0 or 1"
        );
        assert_eq!(
            verdict(&Spec::unbounded(DType::F32, [1]), &[f32::NAN]),
            "element 0 of \"x\" is NaN, expected a number"
        );
    }

    #[test]
    fn composites_are_checked_leaf_by_leaf() {
        let spec = Spec::composite([
            ("free", Spec::unbounded(DType::F32, [2])),
            ("nested", Spec::composite([("choice", Spec::discrete(2))])),
        ]);
        let mut block = block(&spec);
        let mut rows = block.rows_mut();
        rows.env_mut(0)
            .unwrap()
            .write(Key::new(1), &[2i64])
            .unwrap();
        let error = spec.check("x", rows.as_rows().env(0).unwrap()).unwrap_err();
        assert!(error.to_string().contains("choice"), "{error}");
        assert!(
            error
                .to_string()
                .ends_with("is 2, expected an integer from 0 to 1"),
            "{error}"
        );
    }

    #[test]
    fn samples_lie_in_the_domain() {
        let bounded = |dtype, low: f64, high: f64| Spec::Bounded {
            dtype,
            shape: [2].as_slice().into(),
            low: vec![low; 2],
            high: vec![high; 2],
        };
        let spec = Spec::composite([
            ("free", Spec::unbounded(DType::F64, [2])),
            ("whole", bounded(DType::I32, -3.0, 4.0)),
            ("half", bounded(DType::F32, -1.0, f64::INFINITY)),
            ("choice", Spec::discrete(3)),
            ("choices", Spec::MultiDiscrete { nvec: vec![2, 5] }),
            ("hot", Spec::OneHot { nvec: vec![1, 4] }),
            (
                "binary",
                Spec::Binary {
                    shape: [3].as_slice().into(),
                },
            ),
        ]);
        let mut block = block(&spec);
        for unit in [0.0, 0.3, 0.5, 1.0 - f64::EPSILON] {
            let mut rows = block.rows_mut();
            let mut row = rows.env_mut(0).unwrap();
            spec.sample(&mut row, || unit).unwrap();
            spec.check("x", row.as_row()).unwrap();
        }
    }
}
