//! Threads that compute more than they wait.

/// Tells the system that the calling thread computes: woken while all cores are busy, it lets the others go on, first of all the one that
/// woke it. Threads and processes that it starts are not told so. On systems other than Linux, nothing changes.
pub fn become_batch_thread() {
    #[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
    {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the call reads `parameters` and changes nothing but how the calling thread is scheduled. Where the system refuses, that
        // stays as it is.
        unsafe {
            let policy = libc::SCHED_BATCH | libc::SCHED_RESET_ON_FORK;
            libc::sched_setscheduler(0, policy, &raw const parameters);
        }
    }
}
