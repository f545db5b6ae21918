//! How large messages may be.

use crate::RemoteError;

/// Fewest bytes that a limit of messages allows.
pub(crate) const LEAST_MESSAGE: usize = 1024;

/// How large messages may be; both sides of a connection check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a message, 4 MiB by default: the observations of one client, or the answer to them. Weights travel in pieces.
    pub message: usize,
    /// Bytes of all weights, 1 GiB by default.
    pub weights: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message: 4 << 20,
            weights: 1 << 30,
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
