//! Running a program while its lines are both shown and kept, for as long as it may take.

use std::{
    fs,
    io::{self, BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

/// No step takes as long on any machine, a build from nothing included: a program that does hangs.
///
/// It is the last resort: nextest and pytest have limits of their own, which are much shorter and say which test it was.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

/// How long to wait for the output of processes that an ended program has left running.
const LEFT_BEHIND: Duration = Duration::from_secs(5);

/// How often to look whether a program has ended.
const TICK: Duration = Duration::from_millis(20);

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

/// Runs `command` to its end, and shows the lines that `shows` accepts; the others too, afterwards, when it fails. Ends a program that
/// hangs after [`LIMIT`], with all that it has started: it has failed.
pub(crate) fn run(command: &mut Command, shows: fn(&str) -> bool) -> Result<Finished> {
    run_within(LIMIT, command, shows)
}

fn run_within(limit: Duration, command: &mut Command, shows: fn(&str) -> bool) -> Result<Finished> {
    let program = command.get_program().to_string_lossy().into_owned();
    let lost = || format!("lost sight of `{program}`");
    let (reader, writer) = io::pipe().with_context(lost)?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().with_context(lost)?);
    let child = command.stderr(writer).spawn();
    let mut child = child.with_context(|| format!("failed to start `{program}`"))?;
    // The command's own ends of the pipe, which would never close.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (sender, receiver) = mpsc::channel();
    // This thread may outlive the call.
    thread::spawn(move || {
        let lines = BufReader::new(reader)
            .split(b'\n')
            .map_while(io::Result::ok);
        let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
        lines.try_for_each(|line| sender.send(line.trim_end_matches('\r').to_owned()))
    });
    let start = Instant::now();
    let (mut lines, mut ended, mut is_overdue) = (Vec::new(), None, false);
    // Others may hold the pipes longer than the program lives, and it may close them before it ends.
    while ended.is_none_or(|at: Instant| at.elapsed() < LEFT_BEHIND) {
        match receiver.recv_timeout(TICK) {
            Ok(line) => {
                if shows(&line) {
                    println!("{line}");
                }
                lines.push(line);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if ended.is_some() => break,
            Err(RecvTimeoutError::Disconnected) => thread::sleep(TICK),
        }
        if ended.is_none() && child.try_wait().with_context(lost)?.is_some() {
            ended = Some(Instant::now());
        }
        if ended.is_none() && !is_overdue && start.elapsed() > limit {
            is_overdue = true;
            end(&mut child);
        }
    }
    let status = child.wait().with_context(lost)?;
    let success = status.success() && !is_overdue;
    if !success && !lines.iter().all(|line| shows(line)) {
        lines.iter().for_each(|line| println!("{line}"));
    }
    let mut status = status.to_string();
    if is_overdue {
        status = format!("`{program}` was ended: it was not done after {limit:?}");
        println!("{status}");
    }
    Ok(Finished {
        success,
        status,
        lines,
    })
}

/// Ends `child` and its descendants, as far as the system lists them. Not its process group: runners give tests groups of
/// their own, which would spare the very test that hangs.
fn end(child: &mut Child) {
    let mut found = vec![child.id()];
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children(*process));
        next += 1;
    }
    // The program first, or it would go on with the next test.
    let _ = child.kill();
    // The shell's own: not every system has the program.
    let mut kill = Command::new("sh");
    kill.args(["-c", "kill -KILL \"$@\"", "sh"]);
    succeeds(kill.args(found[1..].iter().map(u32::to_string)));
}

/// The processes that a process has started: from /proc, or else from `pgrep`; none without either.
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")));
    let mut listed: Vec<_> = lists.flatten().collect();
    if listed.is_empty() {
        let found = Command::new("pgrep")
            .arg("-P")
            .arg(process.to_string())
            .output();
        listed.extend(found.map(|found| String::from_utf8_lossy(&found.stdout).into_owned()));
    }
    let ids = listed.iter().flat_map(|list| list.split_whitespace());
    ids.filter_map(|id| id.parse().ok()).collect()
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
        fs,
        process::Command,
        thread,
        time::{Duration, Instant},
    };

    use super::{children, run, run_within, succeeds};

    const SOON: Duration = Duration::from_millis(300);
    /// Of a program that would otherwise take an hour.
    const BY_FAR: Duration = Duration::from_secs(600);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    #[cfg(unix)]
    fn a_program_that_hangs_is_ended_with_what_it_has_started_and_has_failed() {
        let start = Instant::now();
        let mut hangs = shell("echo begun; sh -c 'sleep 3600 & echo $!; wait'; true");
        let finished = run_within(SOON, &mut hangs, |_| true).expect("a shell");
        assert!(start.elapsed() < BY_FAR);
        assert!(!finished.success);
        assert!(finished.status.contains("not done after 300ms"));
        assert_eq!(finished.lines[0], "begun");
        // The orphan may not have had the time to die of the signal, and the system not to reap it.
        let started = format!("/proc/{}/stat", finished.lines[1]);
        loop {
            let stat = fs::read_to_string(&started).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                break;
            }
            assert!(start.elapsed() < BY_FAR, "{stat}");
            thread::sleep(Duration::from_millis(1));
        }
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
    #[cfg(unix)]
    fn children_are_found_and_a_process_without_any_has_none() {
        let mut one = Command::new("sleep")
            .arg("3600")
            .spawn()
            .expect("a process");
        assert!(children(std::process::id()).contains(&one.id()));
        assert!(children(one.id()).is_empty());
        one.kill().expect("it runs");
        one.wait().expect("it has ended");
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
