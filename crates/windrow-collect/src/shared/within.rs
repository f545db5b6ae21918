//! Which collectors' environments and policies the calling thread is at.

use std::cell::RefCell;
use std::sync::Arc;

use crate::worker::Shared;

thread_local! {
    /// By address: one lies within another where an environment has a collector of its own.
    static ENTERED: RefCell<Vec<*const Shared>> = const { RefCell::new(Vec::new()) };
}

/// This thread is at environments or the policy of a collector until this is dropped.
#[derive(Debug)]
pub(crate) struct Within(*const Shared);

impl Within {
    pub(crate) fn enter(shared: &Arc<Shared>) -> Self {
        let entered = Arc::as_ptr(shared);
        ENTERED.with_borrow_mut(|all| all.push(entered));
        Self(entered)
    }

    /// Whether this thread is at environments or the policy of the collector of `shared`.
    pub(crate) fn is_at(shared: &Arc<Shared>) -> bool {
        ENTERED.with_borrow(|all| all.contains(&Arc::as_ptr(shared)))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        ENTERED.with_borrow_mut(|all| {
            if let Some(last) = all.iter().rposition(|&entered| entered == self.0) {
                all.remove(last);
            }
        });
    }
}
