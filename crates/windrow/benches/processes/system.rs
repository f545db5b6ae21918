//! What the system tells of processes.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

pub fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

/// Whether a process has ended, be it that nobody has waited for it yet.
pub fn is_gone(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    let state = stat.rsplit_once(") ").map(|(_, behind)| behind);
    state.is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// How long all threads of these processes have run.
pub fn busy(pids: &[u32]) -> Duration {
    let threads = pids.iter().flat_map(|pid| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks.flatten().map(|task| task.path().join("schedstat"))
    });
    let ns = threads.map(|path| {
        let times = fs::read_to_string(path).unwrap_or_default();
        let on_cpu = times.split_whitespace().next();
        on_cpu.and_then(|ns| ns.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(ns.sum())
}
