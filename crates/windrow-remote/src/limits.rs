//! How large messages may be, and what must not be in them.

use crate::RemoteError;

/// Fewest bytes that a limit of messages allows.
pub(crate) const LEAST_MESSAGE: usize = 1024;

/// How large messages may be, and what must not be in them; both sides of a connection check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a message, 4 MiB by default: the observations of one client, or the answer to them.
    /// Weights travel in pieces.
    pub message: usize,
    /// Bytes of all weights, 1 GiB by default.
    pub weights: usize,
    /// First byte of values of variable size that the other side may not send; none by default. A
    /// program that reads some values as more than data, such as objects of an interpreter, names
    /// theirs.
    pub refused_values: Option<u8>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message: 4 << 20,
            weights: 1 << 30,
            refused_values: None,
        }
    }
}

impl Limits {
    /// The default limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with messages of at most `bytes` bytes.
    #[must_use]
    pub fn message(mut self, bytes: usize) -> Self {
        self.message = bytes;
        self
    }

    /// The same with weights of at most `bytes` bytes.
    #[must_use]
    pub fn weights(mut self, bytes: usize) -> Self {
        self.weights = bytes;
        self
    }

    /// The same without values of variable size that begin with `first`.
    #[must_use]
    pub fn refused_values(mut self, first: u8) -> Self {
        self.refused_values = Some(first);
        self
    }

    pub(crate) fn check(&self) -> Result<(), RemoteError> {
        const RANGE: std::ops::RangeInclusive<usize> = LEAST_MESSAGE..=1 << 30;
        match RANGE.contains(&self.message) {
            true => Ok(()),
            false => Err(RemoteError::Setting {
                name: "limits.message",
                expected: "within 1 KiB to 1 GiB",
                got: self.message.to_string(),
            }),
        }
    }
}
