//! Rows of observations and actions as bytes: names, types and shapes were agreed on when the
//! policy was bound.

use serde::{Deserialize, Serialize};
use tensordict::{DType, LeafSpec, for_dtype};
use windrow_env::{EnvSpec, SpecOutline};
use windrow_policy::EnvRows;
use windrow_slab::{Key, Rows, RowsMut, SlabError};

/// The JSON of the request that binds a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BindRequest {
    pub(crate) spec: EnvSpec,
    pub(crate) num_envs: usize,
    pub(crate) batched: bool,
    pub(crate) worker: usize,
    /// Whether first observations follow.
    pub(crate) first_rows: bool,
}

/// Most leaves of an observation, of an action, or of what a policy writes.
const MOST_LEAVES: usize = 4096;

/// Most names of a leaf, and most dimensions.
const MOST_NAMES: usize = 32;

/// Most environments of a client.
const MOST_ENVS: usize = 1 << 16;

/// Checks that `rows` rows of `leaves`, with `beside` more bytes for each row, fit into a message
/// of at most `most` bytes, and that no leaf has too many names or dimensions. Called before memory
/// is allocated for numbers that the other side has sent.
///
/// # Errors
/// The reason, in words that begin with `what`.
pub(crate) fn check_leaves(
    what: &str,
    leaves: &[LeafSpec],
    (rows, beside): (usize, usize),
    most: usize,
) -> Result<(), String> {
    let odd = |leaf: &&LeafSpec| {
        leaf.shape.len() > MOST_NAMES || leaf.key.components().len() > MOST_NAMES
    };
    if leaves.len() > MOST_LEAVES {
        let got = leaves.len();
        return Err(format!(
            "{what} have {got} leaves, more than the limit of {MOST_LEAVES}"
        ));
    }
    if let Some(leaf) = leaves.iter().find(odd) {
        let (dimensions, names) = (leaf.shape.len(), leaf.key.components().len());
        return Err(format!(
            "{what} have a leaf of {dimensions} dimensions and {names} names, more than the limit of {MOST_NAMES}"
        ));
    }
    let own = leaves
        .iter()
        .try_fold(beside, |sum, leaf| sum.checked_add(least(leaf)?));
    match own.and_then(|bytes| bytes.checked_mul(rows)) {
        Some(bytes) if bytes <= most => Ok(()),
        _ => Err(format!(
            "{what} of {rows} environments have more bytes than the limit of {most} for a message"
        )),
    }
}

/// Fewest bytes of a value of `leaf` in a message; `None` when their number overflows.
fn least(leaf: &LeafSpec) -> Option<usize> {
    let element = match leaf.dtype {
        DType::Bytes => size_of::<u32>(),
        number => number.size(),
    };
    let mut sizes = leaf.shape.iter();
    sizes.try_fold(element, |bytes, &size| bytes.checked_mul(size))
}

impl BindRequest {
    /// Reads a request. Its rows have to fit into a message of at most `most` bytes, and no example
    /// may begin with the byte `refused`.
    ///
    /// # Errors
    /// The reason, in words.
    pub(crate) fn read(json: &str, most: usize, refused: Option<u8>) -> Result<Self, String> {
        /// The part that is checked before memory is allocated for the spec.
        #[derive(Deserialize)]
        struct Outline {
            spec: Spaces,
            num_envs: usize,
        }

        #[derive(Deserialize)]
        struct Spaces {
            observation: SpecOutline,
            action: SpecOutline,
        }

        let wrong = |error: serde_json::Error| format!("the request to bind: {error}");
        let Outline { spec, num_envs } = serde_json::from_str(json).map_err(wrong)?;
        if !(1..=MOST_ENVS).contains(&num_envs) {
            return Err(format!(
                "expected 1 to {MOST_ENVS} environments of a client, got {num_envs}"
            ));
        }
        let observed = spec.observation.leaves("observation");
        check_leaves(
            "observations",
            &observed,
            (num_envs, EnvRows::ROW_BYTES),
            most,
        )?;
        check_leaves(
            "actions",
            &spec.action.leaves("action"),
            (num_envs, 0),
            most,
        )?;
        let place: Self = serde_json::from_str(json).map_err(wrong)?;
        for (key, example) in &place.spec.examples {
            check_kind(example, refused)
                .map_err(|reason| format!("the example of {key:?}: {reason}"))?;
        }
        Ok(place)
    }
}

/// An element as little-endian bytes.
trait Wire: Sized + Copy {
    fn put(values: &[Self], out: &mut [u8]);
    /// `None` where bytes are no such element.
    fn take(bytes: &[u8], out: &mut [Self]) -> Option<()>;
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            fn put(values: &[Self], out: &mut [u8]) {
                for (to, value) in out.chunks_exact_mut(size_of::<Self>()).zip(values) {
                    to.copy_from_slice(&value.to_le_bytes());
                }
            }

            fn take(bytes: &[u8], out: &mut [Self]) -> Option<()> {
                for (from, to) in bytes.chunks_exact(size_of::<Self>()).zip(out) {
                    *to = Self::from_le_bytes(from.try_into().ok()?);
                }
                Some(())
            }
        }
    )*};
}

number!(u8, i8, i16, i32, i64, f32, f64);

impl Wire for bool {
    fn put(values: &[Self], out: &mut [u8]) {
        out.iter_mut()
            .zip(values)
            .for_each(|(to, value)| *to = u8::from(*value));
    }

    fn take(bytes: &[u8], out: &mut [Self]) -> Option<()> {
        out.iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from != 0);
        bytes.iter().all(|byte| *byte <= 1).then_some(())
    }
}

/// Bytes of `rows` rows of `leaves`, without those of values of variable size; `None` when their
/// number overflows.
pub(crate) fn size(leaves: &[LeafSpec], rows: usize) -> Option<usize> {
    leaves.iter().try_fold(0usize, |sum, leaf| {
        sum.checked_add(leaf.checked_bytes()?.checked_mul(rows)?)
    })
}

/// Appends `rows`, whose leaves are `leaves`.
///
/// # Errors
/// A value of variable size begins with the byte `refused`, or the rows have other leaves.
pub(crate) fn write(
    leaves: &[LeafSpec],
    rows: Rows<'_>,
    out: &mut Vec<u8>,
    refused: Option<u8>,
) -> Result<(), String> {
    let told = |error: SlabError| error.to_string();
    for (leaf, spec) in leaves.iter().enumerate() {
        if spec.dtype == DType::Bytes {
            for value in rows.strings(Key::new(leaf)).map_err(told)? {
                check_kind(value, refused).map_err(|reason| format!("{:?}: {reason}", spec.key))?;
                // Rows have no longer ones.
                out.extend((value.len() as u32).to_le_bytes());
                out.extend(value);
            }
            continue;
        }
        for_dtype!(spec.dtype, T => {
            let values = rows.get::<T>(Key::new(leaf)).map_err(told)?;
            let start = out.len();
            out.resize(start + size_of_val(values), 0);
            <T as Wire>::put(values, &mut out[start..]);
        });
    }
    Ok(())
}

/// Fills `rows`, which are of `leaves`. No value of variable size may begin with the byte
/// `refused`.
///
/// # Errors
/// What does not fit.
pub(crate) fn read(
    leaves: &[LeafSpec],
    bytes: &[u8],
    mut rows: RowsMut<'_>,
    refused: Option<u8>,
) -> Result<(), String> {
    let is_fixed = leaves.iter().all(|leaf| leaf.dtype != DType::Bytes);
    let (expected, got) = (size(leaves, rows.envs()), bytes.len());
    if is_fixed && expected != Some(got) {
        let envs = rows.envs();
        return Err(format!(
            "expected {} bytes for {envs} rows, got {got}",
            expected.unwrap_or(usize::MAX)
        ));
    }
    let mut rest = bytes;
    for (leaf, spec) in leaves.iter().enumerate() {
        let short = || format!("{:?}: the rows are cut short", spec.key);
        if spec.dtype == DType::Bytes {
            let read = read_strings(leaf, rest, &mut rows, refused);
            let read = read.map_err(|reason| format!("{:?}: {reason}", spec.key))?;
            rest = read.ok_or_else(short)?;
            continue;
        }
        for_dtype!(spec.dtype, T => {
            let values = rows.get_mut::<T>(Key::new(leaf)).map_err(|error| error.to_string())?;
            let (bytes, behind) = rest.split_at_checked(size_of_val(values)).ok_or_else(short)?;
            rest = behind;
            <T as Wire>::take(bytes, values)
                .ok_or_else(|| format!("{:?}: expected flags of 0 and 1, got another byte", spec.key))?;
        });
    }
    match rest {
        [] => Ok(()),
        rest => Err(format!(
            "expected the end of the rows, got {} bytes more",
            rest.len()
        )),
    }
}

/// Refuses a `value` that begins with the byte `refused`.
fn check_kind(value: &[u8], refused: Option<u8>) -> Result<(), String> {
    match refused.is_some() && value.first().copied() == refused {
        true => Err("a value of a kind that must not travel here".to_owned()),
        false => Ok(()),
    }
}

/// Fills leaf `leaf`, of values of variable size; returns what comes behind it, and `None` where it
/// is cut short.
fn read_strings<'a>(
    leaf: usize,
    mut bytes: &'a [u8],
    rows: &mut RowsMut<'_>,
    refused: Option<u8>,
) -> Result<Option<&'a [u8]>, String> {
    let told = |error: SlabError| error.to_string();
    let key = Key::new(leaf);
    let count = rows.as_rows().strings(key).map_err(told)?.len();
    let envs = rows.envs();
    for place in 0..count {
        let elements = count / envs;
        let Some((len, behind)) = bytes.split_first_chunk() else {
            return Ok(None);
        };
        let Some((value, behind)) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)
        else {
            return Ok(None);
        };
        bytes = behind;
        check_kind(value, refused)?;
        if let Some(mut row) = rows.env_mut(place / elements) {
            row.write_string(key, place % elements, value)
                .map_err(told)?;
        }
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use windrow_slab::RowBlock;

    use super::*;

    #[test]
    fn values_of_variable_size_are_read_as_they_were_written() {
        let leaves = [
            LeafSpec::new("text", DType::Bytes, [2]),
            LeafSpec::new("action", DType::I64, []),
        ];
        let mut from = RowBlock::new(&leaves, 2).unwrap();
        let mut rows = from.rows_mut();
        let words = [&b"one"[..], b"", b"\xff", b"a longer one"];
        for (place, word) in words.into_iter().enumerate() {
            let mut row = rows.env_mut(place / 2).unwrap();
            row.write_string(Key::new(0), place % 2, word).unwrap();
        }
        rows.get_mut(Key::new(1))
            .unwrap()
            .copy_from_slice(&[7i64, 8]);
        let mut bytes = Vec::new();
        write(&leaves, from.rows(), &mut bytes, None).unwrap();
        let mut to = RowBlock::new(&leaves, 2).unwrap();
        read(&leaves, &bytes, to.rows_mut(), None).unwrap();
        assert_eq!(to.rows().strings(Key::new(0)).unwrap(), words);
        assert_eq!(to.rows().get::<i64>(Key::new(1)).unwrap(), [7, 8]);
        for end in 0..bytes.len() {
            read(&leaves, &bytes[..end], to.rows_mut(), None).unwrap_err();
        }
        bytes.push(0);
        let long = read(&leaves, &bytes, to.rows_mut(), None).unwrap_err();
        assert_eq!(long, "expected the end of the rows, got 1 bytes more");
    }

    #[test]
    fn a_value_of_a_refused_kind_is_an_error() {
        let leaves = [LeafSpec::new("thing", DType::Bytes, [])];
        let mut from = RowBlock::new(&leaves, 2).unwrap();
        for (env, word) in [&b"text"[..], b"object"].into_iter().enumerate() {
            let mut rows = from.rows_mut();
            let mut row = rows.env_mut(env).unwrap();
            row.write_string(Key::new(0), 0, word).unwrap();
        }
        let mut bytes = Vec::new();
        write(&leaves, from.rows(), &mut bytes, None).unwrap();
        let mut to = RowBlock::new(&leaves, 2).unwrap();
        read(&leaves, &bytes, to.rows_mut(), Some(b'p')).unwrap();
        let error = read(&leaves, &bytes, to.rows_mut(), Some(b'o')).unwrap_err();
        assert_eq!(
            error,
            "\"thing\": a value of a kind that must not travel here"
        );
    }

    #[test]
    fn rows_of_every_type_are_read_as_they_were_written() {
        let leaves: Vec<_> = DType::NUMBERS
            .into_iter()
            .map(|dtype| LeafSpec::new(dtype.name(), dtype, [3]))
            .collect();
        let mut from = RowBlock::new(&leaves, 2).unwrap();
        let flags = [true, false, true, true, false, false];
        from.rows_mut()
            .get_mut(Key::new(0))
            .unwrap()
            .copy_from_slice(&flags);
        let floats = [1.5f32, -2.0, f32::INFINITY, 0.0, -0.0, 7e-42];
        from.rows_mut()
            .get_mut(Key::new(6))
            .unwrap()
            .copy_from_slice(&floats);
        let long = [i64::MIN, -1, 0, 1, i64::MAX, 42];
        from.rows_mut()
            .get_mut(Key::new(5))
            .unwrap()
            .copy_from_slice(&long);
        let mut bytes = Vec::new();
        write(&leaves, from.rows(), &mut bytes, None).unwrap();
        assert_eq!(Some(bytes.len()), size(&leaves, 2));
        let mut to = RowBlock::new(&leaves, 2).unwrap();
        read(&leaves, &bytes, to.rows_mut(), None).unwrap();
        assert_eq!(to.rows().get::<bool>(Key::new(0)).unwrap(), flags);
        assert_eq!(to.rows().get::<f32>(Key::new(6)).unwrap(), floats);
        assert_eq!(to.rows().get::<i64>(Key::new(5)).unwrap(), long);
        let short = read(&leaves, &bytes[1..], to.rows_mut(), None).unwrap_err();
        assert!(
            short.contains("expected 174 bytes for 2 rows, got 173"),
            "{short}"
        );
        bytes[0] = 2;
        assert!(
            read(&leaves, &bytes, to.rows_mut(), None)
                .unwrap_err()
                .contains("flags of 0 and 1")
        );
    }
}
