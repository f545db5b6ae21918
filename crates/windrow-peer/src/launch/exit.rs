//! How a process ended, in words.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Signal;

/// How a process ended, in words: `exit status 3`, `signal 9 (SIGKILL)`,
/// `signal 6 (SIGABRT), core dumped`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself or by a signal.
    Status(ExitStatus),
    /// The system does not report it: another part of this program waits for children that are not
    /// its own, or has it ignore their ends.
    Untold,
    /// The process that had forked it has ended as well, or does not answer.
    Orphaned,
    /// It ran elsewhere, and what is known of its end stands in its standard error.
    Elsewhere,
}

impl Exit {
    /// Its status, where that is known.
    #[must_use]
    pub fn status(self) -> Option<ExitStatus> {
        match self {
            Self::Status(status) => Some(status),
            Self::Untold | Self::Orphaned | Self::Elsewhere => None,
        }
    }

    /// Whether SIGKILL has ended it.
    #[must_use]
    pub fn is_kill(self) -> bool {
        let status = self.status();
        status.is_some_and(|status| status.signal() == Some(Signal::KILL.as_raw()))
    }

    /// How it ended, in words, where it was to go on: status 0 is then no success.
    #[must_use]
    pub fn unasked(self) -> String {
        match self.is_success() {
            true => format!(
                "{self}, though nobody asked it to end: its code has called exit, or closed the descriptors over which it receives requests"
            ),
            false => self.to_string(),
        }
    }

    /// Whether it ended by itself, with status 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self.status().is_some_and(|status| status.success())
    }
}

/// Signals that end a process, as Linux counts them.
const SIGNALS: [(i32, &str); 18] = [
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (31, "SIGSYS"),
];

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = match self {
            Self::Status(status) => status,
            Self::Untold => return f.write_str("unknown exit status"),
            Self::Elsewhere => return f.write_str("the loss of its connection"),
            Self::Orphaned => {
                return f.write_str(
                    "unknown exit status, since the process that forks workers was killed or stopped",
                );
            }
        };
        let Some(signal) = status.signal() else {
            return write!(f, "exit status {}", status.code().unwrap_or_default());
        };
        write!(f, "signal {signal}")?;
        if let Some((_, name)) = SIGNALS.iter().find(|(number, _)| *number == signal) {
            write!(f, " ({name})")?;
        }
        match status.core_dumped() {
            true => f.write_str(", core dumped"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_words() {
        for (raw, words) in [
            (0, "exit status 0"),
            (3 << 8, "exit status 3"),
            (9, "signal 9 (SIGKILL)"),
            (6 | 0x80, "signal 6 (SIGABRT), core dumped"),
            (34, "signal 34"),
        ] {
            let exit = Exit::Status(ExitStatus::from_raw(raw));
            assert_eq!(exit.to_string(), words);
            assert_eq!((exit.is_kill(), exit.is_success()), (raw == 9, raw == 0));
            let unasked = exit.unasked();
            assert!(unasked.starts_with(words) && unasked.contains("descriptors") == (raw == 0));
        }
        for exit in [Exit::Untold, Exit::Orphaned] {
            assert!(exit.to_string().starts_with("unknown exit status"));
            assert!(!exit.is_kill() && !exit.is_success());
        }
    }
}
