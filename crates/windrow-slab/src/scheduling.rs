//! Scheduling hints for threads that compute more than they wait.

/// Sets `SCHED_BATCH` for the calling thread: when it is woken while all cores are busy, it does
/// not preempt other threads, least of all the one that woke it. Threads and processes that it
/// starts do not inherit this. Does nothing on systems other than Linux.
pub fn become_batch_thread() {
    #[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
    {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the call reads `parameters` and changes nothing but how the calling thread is
        // scheduled. Where the system refuses, that stays as it is.
        unsafe {
            let policy = libc::SCHED_BATCH | libc::SCHED_RESET_ON_FORK;
            libc::sched_setscheduler(0, policy, &raw const parameters);
        }
    }
}
