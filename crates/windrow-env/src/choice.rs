//! Choices among several: found, and written as indices or one-hot vectors.

/// Index of the largest of `values`, the first of equal ones; 0 when there are none. What cannot be compared, such as NaN,
/// is larger than nothing.
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

/// Writes a choice as the only element of `action`, or as a one among zeros. A choice that `action` has no place for
/// leaves it all zeros.
///
/// ```
/// use windrow_env::write_choice;
///
/// let (mut index, mut vector) = ([0], [0; 4]);
/// write_choice(2, false, &mut index);
/// write_choice(2, true, &mut vector);
/// assert_eq!((index, vector), ([2], [0, 0, 1, 0]));
/// ```
#[inline]
pub fn write_choice(choice: usize, one_hot: bool, action: &mut [i64]) {
    action.fill(0);
    let (place, value) = match one_hot {
        true => (choice, 1),
        false => (0, choice as i64),
    };
    if let Some(element) = action.get_mut(place) {
        *element = value;
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
}
