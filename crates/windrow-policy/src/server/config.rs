//! The options of an inference server.

use std::time::Duration;

use crate::PolicyError;

/// How an [`InferenceServer`](crate::InferenceServer) joins requests into batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Most rows of a batch, 64 by default. No client may have more environments.
    pub max_batch_size: usize,
    /// Rows that a batch waits for, within the [time-out](Self::timeout); 1 by default.
    pub min_batch_size: usize,
    /// The longest that a request waits for other requests, 10 ms by default.
    pub timeout: Duration,
    /// Whether there is one client, false by default. Its thread then evaluates any policy, even
    /// one of a framework, and wakes no other.
    pub sole_client: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            max_batch_size: 64,
            min_batch_size: 1,
            timeout: Duration::from_millis(10),
            sole_client: false,
        }
    }
}

impl ServerConfig {
    /// The default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with batches of at most `rows` rows.
    #[must_use]
    pub fn max_batch_size(mut self, rows: usize) -> Self {
        self.max_batch_size = rows;
        self
    }

    /// The same with batches that wait for `rows` rows, as long as the [time-out](Self::timeout)
    /// allows.
    #[must_use]
    pub fn min_batch_size(mut self, rows: usize) -> Self {
        self.min_batch_size = rows;
        self
    }

    /// The same with requests that wait for others up to `timeout`.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same for [one client](Self::sole_client).
    #[must_use]
    pub fn sole_client(mut self, sole: bool) -> Self {
        self.sole_client = sole;
        self
    }

    pub(super) fn check(&self) -> Result<(), PolicyError> {
        let error = |name, expected: &str, got| {
            let expected = expected.to_owned();
            Err(PolicyError::ServerConfig {
                name,
                expected,
                got,
            })
        };
        if self.max_batch_size == 0 {
            return error("max_batch_size", "a positive number", 0);
        }
        if !(1..=self.max_batch_size).contains(&self.min_batch_size) {
            let expected = format!("within 1 to max_batch_size={}", self.max_batch_size);
            return error("min_batch_size", &expected, self.min_batch_size);
        }
        Ok(())
    }
}
