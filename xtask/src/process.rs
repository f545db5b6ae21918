//! Running a program while its lines are both shown and kept, for as long as it may take.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError, Sender},
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

/// Which lines of a program reach the terminal while it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Show {
    /// Each line, as it comes.
    All,
    /// Lines the function accepts; all of them, afterwards, when the program fails.
    Only(fn(&str) -> bool),
}

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

/// Runs `command` to its end. Ends a program that hangs after [`LIMIT`], with all that it has started: it has failed.
///
/// # Errors
/// When the program cannot be started; [`Finished::success`] says whether it succeeded.
pub(crate) fn run(command: &mut Command, show: Show) -> Result<Finished> {
    run_within(LIMIT, command, show)
}

fn run_within(limit: Duration, command: &mut Command, show: Show) -> Result<Finished> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start `{program}`"))?;
    let (sender, receiver) = mpsc::channel();
    if let Some(pipe) = child.stdout.take() {
        forward(pipe, sender.clone());
    }
    if let Some(pipe) = child.stderr.take() {
        forward(pipe, sender);
    }
    let start = Instant::now();
    let (mut lines, mut ended, mut is_overdue) = (Vec::new(), None, false);
    // Others may hold the pipes longer than the program lives, and it may close them before it ends.
    while ended.is_none_or(|at: Instant| at.elapsed() < LEFT_BEHIND) {
        match receiver.recv_timeout(TICK) {
            Ok(line) => {
                if show.shows(&line) {
                    println!("{line}");
                }
                lines.push(line);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if ended.is_some() => break,
            Err(RecvTimeoutError::Disconnected) => thread::sleep(TICK),
        }
        let lost = || format!("lost sight of `{program}`");
        if ended.is_none() && child.try_wait().with_context(lost)?.is_some() {
            ended = Some(Instant::now());
        }
        if ended.is_none() && !is_overdue && start.elapsed() > limit {
            is_overdue = true;
            end(&mut child);
        }
    }
    let status = child
        .wait()
        .with_context(|| format!("lost sight of `{program}`"))?;
    let success = status.success() && !is_overdue;
    if let (false, Show::Only(_)) = (success, show) {
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

impl Show {
    fn shows(self, line: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(wanted) => wanted(line),
        }
    }
}

/// Ends `child` and its descendants, as far as the system lists them. Not its process group: runners give tests groups of
/// their own, which would spare the very test that hangs.
fn end(child: &mut Child) {
    let below = descendants(child.id(), &processes());
    // The program first, or it would go on with the next test.
    let _ = child.kill();
    if !below.is_empty() {
        // The shell's own: not every system has the program.
        let ids = below.iter().map(u32::to_string);
        succeeds(
            Command::new("sh")
                .args(["-c", "kill -KILL \"$@\"", "sh"])
                .args(ids),
        );
    }
}

/// All processes and their parents: from /proc, or else from `ps`; none without either.
fn processes() -> Vec<(u32, u32)> {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found: Vec<_> = folders
        .filter_map(|folder| {
            let id = folder.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(folder.path().join("stat")).ok()?;
            Some((id, parent(&stat)?))
        })
        .collect();
    if !found.is_empty() {
        return found;
    }
    let mut ps = Command::new("ps");
    ps.args(["-A", "-o", "pid=,ppid="]).stdin(Stdio::null());
    let listed = ps.output().map_or(Vec::new(), |listed| listed.stdout);
    let listed = String::from_utf8_lossy(&listed);
    let pairs = listed.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    pairs.collect()
}

/// The parent in a line such as `7 (a name (of any kind)) S 5 …`.
fn parent(stat: &str) -> Option<u32> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(1)?.parse().ok()
}

/// The processes that `root` has started and those that these have, among processes and their parents.
fn descendants(root: u32, processes: &[(u32, u32)]) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let children = processes.iter().filter(|(_, of)| *of == parent);
        let new = children.map(|(child, _)| *child);
        let new: Vec<u32> = new.filter(|child| !found.contains(child)).collect();
        found.extend(new);
        next += 1;
    }
    found.split_off(1)
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

/// Sends the lines of `pipe`, from a thread that may outlive the call.
fn forward(pipe: impl Read + Send + 'static, lines: Sender<String>) {
    thread::spawn(move || {
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
            if lines.send(line).is_err() {
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        process::Command,
        time::{Duration, Instant},
    };

    use super::{Show, descendants, parent, run, run_within, succeeds};

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
        let mut hangs = shell("echo begun; sleep 3600 & echo $!; sleep 3600");
        let finished = run_within(SOON, &mut hangs, Show::All).expect("a shell");
        assert!(start.elapsed() < BY_FAR);
        assert!(!finished.success);
        assert!(finished.status.contains("not done after 300ms"));
        assert_eq!(finished.lines[0], "begun");
        // The system may not have reaped the orphans yet.
        let started = format!("/proc/{}/stat", finished.lines[1]);
        let stat = fs::read_to_string(started).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }

    #[test]
    #[cfg(unix)]
    fn what_a_program_leaves_behind_does_not_keep_the_run() {
        let start = Instant::now();
        let finished = run(&mut shell("sleep 3600 & echo $!"), Show::All).expect("a shell");
        assert!(start.elapsed() < BY_FAR);
        assert!(finished.success);
        assert!(succeeds(Command::new("kill").arg(&finished.lines[0])));
    }

    #[test]
    #[cfg(unix)]
    fn a_program_that_closes_its_pipes_is_waited_for() {
        let mut silent = shell("exec >&- 2>&-; sleep 0.2; exit 4");
        let finished = run(&mut silent, Show::All).expect("a shell");
        assert!(finished.status.contains('4'), "{}", finished.status);
    }

    #[test]
    fn descendants_are_found_whatever_their_order() {
        let processes = [(9, 7), (7, 5), (5, 1), (8, 1), (5, 9)];
        let mut found = descendants(5, &processes);
        found.sort_unstable();
        assert_eq!(found, [7, 9]);
        assert!(descendants(8, &processes).is_empty());
    }

    #[test]
    fn a_parent_is_found_whatever_its_child_is_called() {
        assert_eq!(parent("7 (cargo) S 5 5 0"), Some(5));
        assert_eq!(parent("7 (a) S 3 (name)) R 12 1"), Some(12));
        assert_eq!(parent("nothing"), None);
    }

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
