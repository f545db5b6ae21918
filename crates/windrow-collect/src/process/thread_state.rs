//! What is known of a worker that does not move.

use std::fs::read_to_string;
use std::time::Duration;

use windrow_peer::Exit;

/// A worker that did not move, as it was seen before its end.
#[derive(Debug)]
pub(super) struct Hang {
    pub(super) patience: Duration,
    /// What the system showed of it, in words that follow "its thread".
    pub(super) seen: String,
}

impl Hang {
    /// How its process ended, in words that follow "its process".
    pub(super) fn end(&self, exit: Exit) -> String {
        let end = match exit.is_kill() {
            true => "was killed".to_owned(),
            false => format!("was asked for its stack, and ended with {exit}"),
        };
        let seconds = self.patience.as_secs_f64();
        let seen = match &*self.seen {
            "" => String::new(),
            seen => format!("; its thread {seen}"),
        };
        format!(
            "{end}: no call of its environment or policy returned for step_timeout={seconds} s{seen}"
        )
    }
}

/// A thread, as the system shows it.
#[derive(Debug)]
pub(super) struct ThreadState {
    status: String,
    /// The number of the system call that it is in, or other words.
    call: String,
    /// The function of the system in which it sleeps, where there is one and the system tells.
    sleeps_in: String,
}

impl ThreadState {
    /// Reads the state of thread `thread` of process `pid`. What cannot be read is empty.
    pub(super) fn read(pid: u32, thread: u32) -> Self {
        let read =
            |file| read_to_string(format!("/proc/{pid}/task/{thread}/{file}")).unwrap_or_default();
        Self {
            status: read("status"),
            call: read("syscall"),
            sleeps_in: read("wchan"),
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let value = self.status.lines().find_map(|line| line.strip_prefix(name));
        value.map(str::trim)
    }

    /// Whether a debugger holds it.
    pub(super) fn is_traced(&self) -> bool {
        self.field("TracerPid:").is_some_and(|tracer| tracer != "0")
    }

    /// Whether a signal has stopped its process: then it answers nothing.
    pub(super) fn is_stopped(&self) -> bool {
        self.state() == Some('T')
    }

    fn state(&self) -> Option<char> {
        self.field("State:")?.chars().next()
    }

    /// What it does, in words that follow "its thread"; empty where the system does not tell.
    pub(super) fn describe(&self) -> String {
        let state = match self.state() {
            None => return String::new(),
            Some('R') => return "was running".to_owned(),
            Some('T') => return "was stopped by a signal (T)".to_owned(),
            Some('S') => "was asleep",
            Some('D') => "was in a wait that no signal ends (D)",
            Some(other) => return format!("was in state {other}"),
        };
        let call = self.call.split_whitespace().next();
        let call = call.filter(|call| call.parse::<u32>().is_ok());
        let call = call.map_or_else(String::new, |call| format!(" in system call {call}"));
        match self.sleeps_in.trim() {
            "" | "0" => format!("{state}{call}"),
            function => format!("{state}{call} ({function})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(state: &str, tracer: u32, call: &str, sleeps_in: &str) -> ThreadState {
        ThreadState {
            status: format!(
                "Name:\tsome State:\nState:\t{state}\nTgid:\t7\nTracerPid:\t{tracer}\n"
            ),
            call: call.to_owned(),
            sleeps_in: sleeps_in.to_owned(),
        }
    }

    #[test]
    fn a_thread_is_described_as_far_as_the_system_tells() {
        for (state, call, function, words) in [
            ("R (running)", "running\n", "0", "was running"),
            (
                "T (stopped)",
                "230 0x0 0x0",
                "do_signal_stop",
                "was stopped by a signal (T)",
            ),
            (
                "S (sleeping)",
                "202 0x7f 0x0 0x1\n",
                "futex_do_wait",
                "was asleep in system call 202 (futex_do_wait)",
            ),
            ("S (sleeping)", "", "0", "was asleep"),
            ("S (sleeping)", "running", "", "was asleep"),
            (
                "D (disk sleep)",
                "-1 0x7f 0x0",
                "nfs_wait",
                "was in a wait that no signal ends (D) (nfs_wait)",
            ),
            ("Z (zombie)", "", "0", "was in state Z"),
        ] {
            let thread = thread(state, 0, call, function);
            assert_eq!(thread.describe(), words);
            assert_eq!(thread.is_stopped(), state.starts_with('T'));
        }
        let gone = ThreadState::read(u32::MAX, u32::MAX);
        assert_eq!(gone.describe(), "");
        assert!(!gone.is_stopped() && !gone.is_traced());
    }

    #[test]
    fn who_is_debugged_is_known_by_the_tracer() {
        assert!(thread("t (tracing stop)", 4, "", "").is_traced());
        assert!(!thread("S (sleeping)", 0, "", "").is_traced());
    }
}
