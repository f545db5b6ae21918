//! What the system refuses, as errors.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::ProcessError;

/// For `map_err`: the system did not do `what`, for want of descriptors or for another reason.
pub(crate) fn refused<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> ProcessError {
    move |source| {
        let source = source.into();
        match Errno::from_io_error(&source) {
            Some(Errno::MFILE) => no_descriptors(what),
            _ => ProcessError::System { what, source },
        }
    }
}

/// All descriptors of this process are in use.
pub(crate) fn no_descriptors(what: &'static str) -> ProcessError {
    ProcessError::Descriptors {
        what,
        limit: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
    }
}
