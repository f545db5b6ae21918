use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(not(loom))]
use crate::mpsc::{Receiver, RecvTimeoutError};

/// A check that waits run every [tenth of a second](Self::SLICE), in the thread that waits: its
/// error ends the wait. Whatever may wait long gets one when it is built, for signals or for a flag
/// that another thread sets.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// use windrow_sync::Interrupt;
///
/// let cancelled = Arc::new(AtomicBool::new(false));
/// let seen = Arc::clone(&cancelled);
/// let interrupt = Interrupt::when(move || seen.load(Ordering::Relaxed));
/// assert!(interrupt.check().is_ok());
/// cancelled.store(true, Ordering::Relaxed);
/// assert!(interrupt.check().is_err());
/// ```
#[derive(Clone)]
pub struct Interrupt {
    check: Option<Arc<Check>>,
    /// Whether it ends every wait after one attempt.
    at_once: bool,
    /// The function that receives reports, and the time that a worker may be silent before.
    report: Option<(Duration, Arc<Report>)>,
}

type Check = dyn Fn() -> Result<(), Interrupted> + Send + Sync;
type Report = dyn Fn(&str) -> Result<(), Interrupted> + Send + Sync;

impl Interrupt {
    /// The time between two checks.
    pub const SLICE: Duration = Duration::from_millis(100);

    /// Ends waits with the error of `check`.
    pub fn new<E: Into<Box<dyn Error + Send + Sync>>>(
        check: impl Fn() -> Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        Self {
            check: Some(Arc::new(move || {
                check().map_err(|error| Interrupted(error.into()))
            })),
            at_once: false,
            report: None,
        }
    }

    /// Calls `report` with a line for each worker that a call has waited for, and that has not
    /// moved, for as long as `after`. An error of `report` ends the wait.
    #[must_use]
    pub fn reporting<E: Into<Box<dyn Error + Send + Sync>>>(
        self,
        after: Duration,
        report: impl Fn(&str) -> Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        let report: Arc<Report> =
            Arc::new(move |line| report(line).map_err(|error| Interrupted(error.into())));
        Self {
            report: Some((after, report)),
            ..self
        }
    }

    /// Reports as `other` does.
    #[must_use]
    pub fn reporting_as(self, other: &Self) -> Self {
        Self {
            report: other.report.clone(),
            ..self
        }
    }

    /// An interrupt that reports as this one does, and ends no wait.
    #[must_use]
    pub fn only_reports(&self) -> Self {
        match &self.report {
            None => Self::never(),
            Some((after, report)) => {
                let report = Arc::clone(report);
                Self::never().reporting(*after, move |line| {
                    // The error could only end a wait.
                    let _ = report(line);
                    Ok::<(), Interrupted>(())
                })
            }
        }
    }

    /// How long a worker may be silent before it is reported; `None` without reports.
    #[must_use]
    pub fn reports_after(&self) -> Option<Duration> {
        self.report.as_ref().map(|(after, _)| *after)
    }

    /// Passes `line`, which says what a call waits for, to the function of
    /// [`reporting`](Self::reporting).
    ///
    /// # Errors
    /// The error of that function.
    pub fn report(&self, line: &str) -> Result<(), Interrupted> {
        match &self.report {
            None => Ok(()),
            Some((_, report)) => report(line),
        }
    }

    /// Ends waits once `is_over` returns true.
    pub fn when(is_over: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self::new(move || match is_over() {
            true => Err("the wait was cancelled"),
            false => Ok(()),
        })
    }

    /// Ends no wait.
    #[must_use]
    pub const fn never() -> Self {
        Self {
            check: None,
            at_once: false,
            report: None,
        }
    }

    /// Ends every wait after one attempt, which must not wait itself. Its check passes.
    #[must_use]
    pub const fn at_once() -> Self {
        Self {
            check: None,
            at_once: true,
            report: None,
        }
    }

    /// Whether it neither ends nor reports waits, so that these need no clock.
    #[must_use]
    pub fn is_never(&self) -> bool {
        self.check.is_none() && !self.at_once && self.report.is_none()
    }

    /// Runs the check.
    ///
    /// # Errors
    /// That of the check.
    pub fn check(&self) -> Result<(), Interrupted> {
        self.check.as_ref().map_or(Ok(()), |check| check())
    }

    /// Calls `attempt` until it gives something. It may wait itself, for as long as the duration
    /// that it gets.
    ///
    /// # Errors
    /// That of the check, which runs after each attempt in vain.
    pub fn wait<T>(
        &self,
        mut attempt: impl FnMut(Duration) -> Option<T>,
    ) -> Result<T, Interrupted> {
        let slice = match self.at_once {
            true => Duration::ZERO,
            false => Self::SLICE,
        };
        loop {
            if let Some(out) = attempt(slice) {
                return Ok(out);
            }
            self.check()?;
            if self.at_once {
                return Err(Interrupted("it is not there yet".into()));
            }
        }
    }

    /// As [`wait`](Self::wait), for `timeout` at most: `None` then. There is one attempt at least.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_within<T>(
        &self,
        timeout: Duration,
        mut attempt: impl FnMut(Duration) -> Option<T>,
    ) -> Result<Option<T>, Interrupted> {
        let begin = Instant::now();
        self.wait(|slice| {
            let left = timeout.saturating_sub(begin.elapsed());
            match attempt(slice.min(left)) {
                None if left > slice => None,
                out => Some(out),
            }
        })
    }

    /// The next message; `None` when all senders are gone.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    #[cfg(not(loom))]
    pub fn receive<T>(&self, receiver: &Receiver<T>) -> Result<Option<T>, Interrupted> {
        self.wait(|slice| match receiver.recv_timeout(slice) {
            Ok(message) => Some(Some(message)),
            Err(RecvTimeoutError::Disconnected) => Some(None),
            Err(RecvTimeoutError::Timeout) => None,
        })
    }
}

impl Default for Interrupt {
    fn default() -> Self {
        Self::never()
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt")
            .field("is_never", &self.is_never())
            .finish()
    }
}

/// The error of an [`Interrupt`]'s check: it says what that says.
#[derive(Debug)]
pub struct Interrupted(Box<dyn Error + Send + Sync>);

impl Interrupted {
    /// The check's own error.
    #[must_use]
    pub fn reason(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Interrupted {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::Interrupt;
    use crate::mpsc::channel;

    #[test]
    fn a_wait_ends_with_what_it_waits_for_or_with_the_error_of_the_check() {
        let checks = AtomicUsize::new(0);
        let interrupt = Interrupt::new(move || match checks.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err("enough"),
        });
        let mut attempts = 0;
        let second = interrupt.wait(|_| {
            attempts += 1;
            (attempts == 2).then_some(attempts)
        });
        assert_eq!(second.unwrap(), 2);
        let ended = interrupt.wait(|_| None::<()>).unwrap_err();
        assert_eq!(ended.to_string(), "enough");
        assert!(Interrupt::never().check().is_ok());
    }

    #[test]
    fn a_report_is_made_after_its_time_and_its_error_ends_the_wait() {
        let quiet = Interrupt::never();
        assert_eq!(quiet.reports_after(), None);
        assert!(quiet.report("nobody hears it").is_ok());
        let minute = Duration::from_secs(60);
        let loud = Interrupt::when(|| false).reporting(minute, |line| Err(line.to_owned()));
        assert_eq!(loud.reports_after(), Some(minute));
        assert_eq!(loud.report("worker 3").unwrap_err().to_string(), "worker 3");
        assert!(!loud.is_never() && !loud.only_reports().is_never());
        assert!(loud.only_reports().report("worker 3").is_ok());
        assert!(quiet.reporting_as(&loud).report("worker 3").is_err());
    }

    #[test]
    fn a_wait_that_ends_at_once_attempts_once_and_does_not_wait() {
        let mut slices = Vec::new();
        let wait = Interrupt::at_once().wait(|slice| {
            slices.push(slice);
            None::<()>
        });
        assert!(wait.is_err());
        assert_eq!(slices, [Duration::ZERO]);
        assert_eq!(Interrupt::at_once().wait(|_| Some(3)).unwrap(), 3);
        assert!(Interrupt::at_once().check().is_ok());
    }

    #[test]
    fn a_timeout_ends_a_wait_after_one_attempt_at_least() {
        let never = Interrupt::never();
        let mut slices = Vec::new();
        let late = never.wait_within(Duration::ZERO, |slice| {
            slices.push(slice);
            None::<()>
        });
        assert!(late.unwrap().is_none());
        assert_eq!(slices, [Duration::ZERO]);
        let at_once = never.wait_within(Duration::ZERO, |_| Some(1));
        assert_eq!(at_once.unwrap(), Some(1));
    }

    #[test]
    fn a_receiver_tells_a_message_from_the_end_of_all_senders() {
        let (sender, receiver) = channel();
        sender.send(1).unwrap();
        drop(sender);
        let never = Interrupt::never();
        assert_eq!(never.receive(&receiver).unwrap(), Some(1));
        assert_eq!(never.receive(&receiver).unwrap(), None);
        let (_sender, silent) = channel::<()>();
        assert!(Interrupt::when(|| true).receive(&silent).is_err());
    }
}
