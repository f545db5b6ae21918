//! A collector from which nothing comes for too long fails the test.

use std::cell::Cell;
use std::time::{Duration, Instant};

use windrow::{Collector, Interrupt, NextError, TensorDict};

thread_local! {
    /// When the wait of this thread for a batch has taken too long.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Ends waits at the deadline of [`next`].
pub(crate) fn interrupt() -> Interrupt {
    Interrupt::when(|| {
        DEADLINE
            .get()
            .is_some_and(|deadline| Instant::now() > deadline)
    })
}

/// The next batch, or [`NextError::WaitInterrupted`] after `patience`, of a collector with this
/// [`interrupt`].
pub(crate) fn next(
    collector: &mut Collector,
    patience: Duration,
) -> Option<Result<TensorDict, NextError>> {
    DEADLINE.set(Some(Instant::now() + patience));
    let batch = collector.next();
    DEADLINE.set(None);
    batch
}
