//! The element types a tensor can hold.

use std::fmt;

use crate::{Result, TensorError};

/// Element type of a tensor.
///
/// The names are those of NumPy and PyTorch, so that a printed batch reads the same in Rust and in
/// Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// A string of bytes, of any length: text, a file's content, a pickled object. Elements are
    /// [cells](crate::Cell), which say where the bytes lie.
    Bytes,
}

impl DType {
    /// Every type of numbers, smallest first.
    pub const NUMBERS: [DType; 8] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F32,
        DType::F64,
    ];

    /// Every element type: [`NUMBERS`](Self::NUMBERS), then bytes.
    pub const ALL: [DType; 9] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F32,
        DType::F64,
        DType::Bytes,
    ];

    /// Alignment of one element in bytes.
    pub const fn align(self) -> usize {
        match self {
            DType::Bytes => align_of::<crate::Cell>(),
            number => number.size(),
        }
    }

    /// Size of one element in bytes; that of a cell for bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::I16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
            DType::Bytes => size_of::<crate::Cell>(),
        }
    }

    /// Checks `bytes` for what this element type cannot hold.
    ///
    /// # Errors
    /// [`TensorError::BoolByte`] when a bool is neither 0 nor 1.
    pub(crate) fn check(self, bytes: &[u8]) -> Result<()> {
        let index = match self {
            DType::Bool => bytes.iter().position(|&byte| byte > 1),
            _ => None,
        };
        match index {
            Some(index) => Err(TensorError::BoolByte {
                byte: bytes[index],
                index,
            }),
            None => Ok(()),
        }
    }

    /// Name as NumPy and PyTorch spell it, for example `"float32"`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "uint8",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::Bytes => "bytes",
        }
    }

    /// Whether elements are floating point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64)
    }

    /// Whether every value of `other` is one of this type, where neither has floating point
    /// numbers.
    pub const fn holds_integers_of(self, other: DType) -> bool {
        match (self, other) {
            (a, b) if a.is_float() || b.is_float() => false,
            (DType::Bytes, _) | (_, DType::Bytes) => false,
            (_, DType::Bool) => true,
            (DType::Bool, _) => false,
            (DType::U8, other) => matches!(other, DType::U8),
            (own, DType::U8) => own.size() > 1,
            (own, other) => own.size() >= other.size(),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

mod sealed {
    /// Closes [`Element`](super::Element): reading memory as `T` relies on size, alignment and
    /// valid bit patterns.
    pub trait Sealed {}
}

/// A Rust type that is the element of some [`DType`].
///
/// Sealed: implemented for `bool`, `u8`, `i8`, `i16`, `i32`, `i64`, `f32` and `f64` only.
pub trait Element:
    sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + fmt::Display + Send + Sync + 'static
{
    /// The element type that this Rust type reads and writes.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
        const _: () = assert!(size_of::<$rust>() == DType::$dtype.size());
        const _: () = assert!(align_of::<$rust>() <= DType::$dtype.size());
    )*};
}

element!(bool => Bool, u8 => U8, i8 => I8, i16 => I16, i32 => I32, i64 => I64, f32 => F32, f64 => F64);

/// Evaluates `$body` with `$T` naming the Rust type of a [`DType`] of numbers that is learnt at run
/// time.
///
/// # Panics
/// For [`DType::Bytes`], which no Rust type stands for: the caller has refused it, or copies values
/// in another way.
///
/// ```
/// use tensordict::{DType, for_dtype};
///
/// let size = for_dtype!(DType::I16, T => size_of::<T>());
/// assert_eq!(size, 2);
/// ```
#[macro_export]
macro_rules! for_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::Bool => {
                type $T = bool;
                $body
            }
            $crate::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::DType::I16 => {
                type $T = i16;
                $body
            }
            $crate::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::DType::Bytes => $crate::not_numbers(),
        }
    };
}

/// Ends a [`for_dtype`](crate::for_dtype) of bytes.
#[cold]
#[doc(hidden)]
pub fn not_numbers() -> ! {
    unreachable!(
        "Entries of bytes are refused or copied before their elements are taken for numbers."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_those_of_numpy() {
        let spelled: Vec<String> = DType::ALL.iter().map(DType::to_string).collect();
        let expected = [
            "bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64", "bytes",
        ];
        assert_eq!(spelled, expected);
        let sizes = DType::ALL.map(DType::size);
        assert_eq!(sizes, [1, 1, 1, 2, 4, 8, 4, 8, 16]);
    }

    #[test]
    fn integer_types_hold_those_whose_ends_they_keep() {
        let ends = |dtype| match dtype {
            DType::Bool => Some((0, 1)),
            DType::U8 => Some((0, 255)),
            DType::I8 => Some((i64::from(i8::MIN), i64::from(i8::MAX))),
            DType::I16 => Some((i64::from(i16::MIN), i64::from(i16::MAX))),
            DType::I32 => Some((i64::from(i32::MIN), i64::from(i32::MAX))),
            DType::I64 => Some((i64::MIN, i64::MAX)),
            DType::F32 | DType::F64 | DType::Bytes => None,
        };
        for (own, other) in DType::ALL.iter().flat_map(|a| DType::ALL.map(|b| (*a, b))) {
            let expected = match (ends(own), ends(other)) {
                (Some(own), Some(other)) => own.0 <= other.0 && other.1 <= own.1,
                _ => false,
            };
            assert_eq!(own.holds_integers_of(other), expected, "{own} {other}");
        }
    }

    #[test]
    fn rust_types_name_their_dtype() {
        for dtype in DType::NUMBERS {
            for_dtype!(dtype, T => {
                assert_eq!(T::DTYPE, dtype);
                assert_eq!(size_of::<T>(), dtype.size());
            });
        }
    }
}
