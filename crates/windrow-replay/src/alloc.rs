use crate::ReplayError;

/// Checks that the system has memory for `len` values of type `T`, which the caller allocates right
/// after: a failed allocation ends the process. `what` names the values in the error, as in "no
/// memory for the priorities of 1000 frames".
///
/// ```
/// use windrow_replay::{ReplayError, check_room};
///
/// let error = check_room::<f32>("the priorities", 1 << 60).unwrap_err();
/// assert!(matches!(error, ReplayError::NoMemory { what: "the priorities", .. }));
/// ```
///
/// # Errors
/// [`ReplayError::NoMemory`].
pub fn check_room<T>(what: &'static str, len: usize) -> Result<(), ReplayError> {
    let mut room = Vec::<T>::new();
    let given = room.try_reserve_exact(len);
    // The compiler would remove an allocation that is not used.
    std::hint::black_box(room.as_ptr());
    given.map_err(|_| ReplayError::NoMemory {
        what,
        frames: len,
        bytes: len.saturating_mul(size_of::<T>()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "its allocator ends the process")]
    fn what_there_is_no_room_for_is_named() {
        check_room::<u32>("the places", 1000).unwrap();
        let error = check_room::<f32>("the priorities", 1 << 50).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no memory for the priorities of 1125899906842624 frames: the system does not give 4503599627370496 bytes"
        );
        assert!(check_room::<u64>("the places", usize::MAX).is_err());
    }
}
