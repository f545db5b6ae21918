use std::error::Error;
use std::fmt::Write;

/// What `error` says, and after it what each of its sources says: `a: b: c`.
///
/// An error of windrow does not repeat its source. `anyhow` and others print sources by themselves;
/// this does where a program or a log has nothing but the error.
///
/// ```
/// # use windrow_sync as windrow;
/// use std::fmt;
///
/// #[derive(Debug)]
/// struct Lost(std::num::ParseIntError);
///
/// impl fmt::Display for Lost {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         f.write_str("lost the count")
///     }
/// }
///
/// impl std::error::Error for Lost {
///     fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
///         Some(&self.0)
///     }
/// }
///
/// let error = Lost("three".parse::<i32>().unwrap_err());
/// assert_eq!(windrow::error_chain(&error), "lost the count: invalid digit found in string");
/// ```
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(link) = source {
        // Writing to a string does not fail.
        let _ = write!(said, ": {link}");
        source = link.source();
    }
    said
}
