//! The written form of a recipe (ADR 0029): an object of JSON, and bytes that JSON cannot hold,
//! such as parameters or what was packed.

use serde::Serialize;

/// The length of `object` as JSON (`u64`, little-endian), the JSON, and `bytes`.
///
/// # Errors
/// Those of `object`.
pub fn join(object: &impl Serialize, bytes: &[u8]) -> serde_json::Result<Vec<u8>> {
    let json = serde_json::to_vec(object)?;
    Ok([&(json.len() as u64).to_le_bytes(), &*json, bytes].concat())
}

/// The JSON and the bytes of what [`join`] wrote; `None` for what was cut short.
#[must_use]
pub fn split(written: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = written.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
}
