//! The collectors whose environments and policies the calling thread runs at the moment.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells collectors of this process apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CollectorId(u64);

impl CollectorId {
    /// An id that no other collector has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

thread_local! {
    /// Several where an environment has a collector of its own.
    static ENTERED: RefCell<Vec<CollectorId>> = const { RefCell::new(Vec::new()) };
}

/// Held while this thread runs environments or the policy of a collector: a call from there that
/// waits for the collector would wait for itself.
#[derive(Debug)]
pub(crate) struct ReentrancyGuard(CollectorId);

impl ReentrancyGuard {
    pub(crate) fn enter(collector: CollectorId) -> Self {
        ENTERED.with_borrow_mut(|entered| entered.push(collector));
        Self(collector)
    }

    /// Whether this thread runs environments or the policy of `collector`.
    pub(crate) fn is_within(collector: CollectorId) -> bool {
        ENTERED.with_borrow(|entered| entered.contains(&collector))
    }
}

impl Drop for ReentrancyGuard {
    fn drop(&mut self) {
        ENTERED.with_borrow_mut(|entered| {
            if let Some(last) = entered.iter().rposition(|&entered| entered == self.0) {
                entered.remove(last);
            }
        });
    }
}
