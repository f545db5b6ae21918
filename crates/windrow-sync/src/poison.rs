use std::sync::{LockResult, PoisonError};

use crate::{Mutex, MutexGuard};

/// Locks `mutex`, also after a panic of the thread that had it: see [`unpoisoned`].
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// The guard in `locked`, also after a panic of another thread that had the lock.
///
/// Right where no panic leaves what the lock guards half changed: no user code runs under it, or
/// each change is one assignment.
pub fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::lock;
    use crate::{Mutex, catch_panic};

    #[test]
    fn a_poisoned_lock_can_be_locked() {
        let mutex = Mutex::new(1);
        let panicked = catch_panic(|| {
            let mut value = lock(&mutex);
            *value = 2;
            panic!("under the lock");
        });
        assert_eq!(panicked, Err::<(), _>("under the lock".into()));
        assert!(mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
    }
}
