//! Running a program while its lines are both shown and kept, for as long as it may take.
//!
//! Nothing here ends a program that hangs: nextest and pytest have limits of their own, which say
//! which test it was.

use std::{
    io::{self, BufRead, BufReader},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

/// How long to wait for the output of processes that an ended program has left running.
const LEFT_BEHIND: Duration = Duration::from_secs(5);

/// The end of a program: its status and its output.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Whether it ended with status zero.
    pub(crate) success: bool,
    /// How it ended, in words.
    pub(crate) status: String,
    /// Standard output and standard error together, in the order of arrival.
    pub(crate) lines: Vec<String>,
}

/// Runs `command` to its end, and shows the lines that `shows` accepts; all others too, afterwards,
/// when it fails.
pub(crate) fn run(command: &mut Command, shows: fn(&str) -> bool) -> Result<Finished> {
    let program = command.get_program().to_string_lossy().into_owned();
    let lost = || format!("lost sight of `{program}`");
    let (reader, writer) = io::pipe().with_context(lost)?;
    command
        // Without compiled modules each of the hundreds of Python programs would compile PyTorch
        // anew, for some seven seconds.
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .stdin(Stdio::null())
        .stdout(writer.try_clone().with_context(lost)?);
    let child = command.stderr(writer).spawn();
    let mut child = child.with_context(|| format!("failed to start `{program}`"))?;
    // The command's own ends of the pipe, which would never close.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (sender, receiver) = mpsc::channel();
    // This thread may outlive the call: others may hold the pipe longer than the program lives.
    thread::spawn(move || {
        let lines = BufReader::new(reader)
            .split(b'\n')
            .map_while(io::Result::ok);
        for line in lines {
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches('\r');
            if shows(line) {
                println!("{line}");
            }
            if sender.send(line.to_owned()).is_err() {
                break;
            }
        }
    });
    let status = child.wait().with_context(lost)?;
    let deadline = Instant::now() + LEFT_BEHIND;
    let next = || receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    let lines: Vec<_> = std::iter::from_fn(|| next().ok()).collect();
    if !status.success() && !lines.iter().all(|line| shows(line)) {
        lines.iter().for_each(|line| println!("{line}"));
    }
    Ok(Finished {
        success: status.success(),
        status: status.to_string(),
        lines,
    })
}

/// Whether `command` can be started and succeeds; it prints nothing.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use std::{
        process::Command,
        time::{Duration, Instant},
    };

    use super::{run, succeeds};

    /// Of a program that would otherwise take an hour.
    const BY_FAR: Duration = Duration::from_secs(600);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    #[cfg(unix)]
    fn what_a_program_leaves_behind_does_not_keep_the_run() {
        let start = Instant::now();
        let finished = run(&mut shell("sleep 3600 & echo $!"), |_| true).expect("a shell");
        assert!(start.elapsed() < BY_FAR);
        assert!(finished.success);
        assert!(succeeds(Command::new("kill").arg(&finished.lines[0])));
    }

    #[test]
    #[cfg(unix)]
    fn a_program_that_closes_its_pipes_is_waited_for() {
        let mut silent = shell("exec >&- 2>&-; sleep 0.2; exit 4");
        let finished = run(&mut silent, |_| true).expect("a shell");
        assert!(finished.status.contains('4'), "{}", finished.status);
    }

    #[test]
    fn a_missing_program_is_named() {
        let error =
            run(&mut Command::new("no-such-program-anywhere"), |_| true).expect_err("cannot start");
        assert!(error.to_string().contains("no-such-program-anywhere"));
        assert!(!succeeds(&mut Command::new("no-such-program-anywhere")));
    }

    #[test]
    #[cfg(unix)]
    fn both_streams_are_kept_and_the_status_told() {
        let finished = run(
            Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]),
            |_| false,
        )
        .expect("a shell");
        let mut lines = finished.lines;
        lines.sort();
        assert_eq!(lines, ["one", "two"]);
        assert!(!finished.success);
        assert!(finished.status.contains('3'), "{}", finished.status);
    }
}
