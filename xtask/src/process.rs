//! Running a program while its lines are both shown and kept.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result};

/// Which lines of a program reach the terminal while it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Show {
    /// Each line, as it comes.
    All,
    /// Lines the function accepts; all of them, afterwards, when the program fails.
    Only(fn(&str) -> bool),
}

/// What became of a program.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Whether it ended with status zero.
    pub(crate) success: bool,
    /// How it ended, in words.
    pub(crate) status: String,
    /// Standard output and standard error together, in the order of arrival.
    pub(crate) lines: Vec<String>,
}

/// Runs `command` to its end.
///
/// # Errors
/// When the program cannot be started; that it failed is told by [`Finished::success`].
pub(crate) fn run(command: &mut Command, show: Show) -> Result<Finished> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start `{program}`"))?;
    let lines = Mutex::new(Vec::new());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| out.map(|pipe| forward(pipe, show, &lines)));
        scope.spawn(|| err.map(|pipe| forward(pipe, show, &lines)));
    });
    let status = child
        .wait()
        .with_context(|| format!("lost sight of `{program}`"))?;
    let lines = lines.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let (false, Show::Only(_)) = (status.success(), show) {
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

fn forward(pipe: impl Read, show: Show, lines: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(pipe);
    let mut bytes = Vec::new();
    while reader
        .read_until(b'\n', &mut bytes)
        .is_ok_and(|read| read > 0)
    {
        let line = String::from_utf8_lossy(&bytes)
            .trim_end_matches(['\n', '\r'])
            .to_owned();
        bytes.clear();
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        match show {
            Show::All => println!("{line}"),
            Show::Only(wanted) if wanted(&line) => println!("{line}"),
            Show::Only(_) => {}
        }
        lines.push(line);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Show, run, succeeds};

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&mut Command::new("no-such-program-anywhere"), Show::All)
            .expect_err("cannot start");
        assert!(error.to_string().contains("no-such-program-anywhere"));
        assert!(!succeeds(&mut Command::new("no-such-program-anywhere")));
    }

    #[test]
    #[cfg(unix)]
    fn both_streams_are_kept_and_the_status_told() {
        let finished = run(
            Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]),
            Show::Only(|_| false),
        )
        .expect("a shell");
        let mut lines = finished.lines;
        lines.sort();
        assert_eq!(lines, ["one", "two"]);
        assert!(!finished.success);
        assert!(finished.status.contains('3'), "{}", finished.status);
    }
}
