//! Elements of any type as numbers, for code that learns the types of rows at run time.

use tensordict::{DType, Element, for_dtype};
use windrow_slab::{Key, Row, RowMut};

use crate::EnvError;

/// An element that can be read as a number and compared bit by bit.
pub trait Number: Element + PartialOrd {
    /// The value; whole numbers beyond 2^53 are rounded.
    fn number(self) -> f64;

    /// The value nearest to `number`.
    fn nearest(number: f64) -> Self;

    /// The bits, one to one.
    fn bits(self) -> u64;

    /// A value that an environment hardly ever writes; another one for `other`.
    fn unlikely(other: bool) -> Self;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Number for $int {
            fn number(self) -> f64 {
                self as f64
            }

            fn nearest(number: f64) -> Self {
                number.round() as $int
            }

            fn bits(self) -> u64 {
                self as u64
            }

            fn unlikely(other: bool) -> Self {
                if other { 0xa5a5_a5a5_a5a5_a5a5_u64 as $int } else { 0x5a5a_5a5a_5a5a_5a5a_u64 as $int }
            }
        }
    )*};
}

integers!(u8, i8, i16, i32, i64);

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {
            fn number(self) -> f64 {
                f64::from(self)
            }

            fn nearest(number: f64) -> Self {
                number as $float
            }

            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }

            /// Not a number, with a payload of its own.
            fn unlikely(other: bool) -> Self {
                <$float>::from_bits(<$float>::NAN.to_bits() | if other { 0xa5 } else { 0x5a })
            }
        }
    )*};
}

floats!(f32, f64);

impl Number for bool {
    fn number(self) -> f64 {
        f64::from(u8::from(self))
    }

    fn nearest(number: f64) -> Self {
        number >= 0.5
    }

    fn bits(self) -> u64 {
        u64::from(self)
    }

    fn unlikely(other: bool) -> Self {
        other
    }
}

/// The values of one leaf.
pub(crate) fn numbers(row: Row<'_>, leaf: usize, dtype: DType) -> Result<Vec<f64>, EnvError> {
    for_dtype!(dtype, T => {
        let values = row.get(Key::<T>::new(leaf))?;
        Ok(values.iter().map(|&value| value.number()).collect())
    })
}

/// Writes `value(i)` to element `i` of one leaf, for each element.
pub(crate) fn write_numbers(
    row: &mut RowMut<'_>,
    leaf: usize,
    dtype: DType,
    mut value: impl FnMut(usize) -> f64,
) -> Result<(), EnvError> {
    for_dtype!(dtype, T => {
        let places = row.get_mut(Key::<T>::new(leaf))?;
        for (i, place) in places.iter_mut().enumerate() {
            *place = T::nearest(value(i));
        }
        Ok(())
    })
}
