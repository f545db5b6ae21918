//! What the processes of these tests do.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use serde::{Deserialize, Serialize};
use windrow_peer::{ChildEnd, Frame, FrameReader, ProcessError, WorkerProgram, adopt, send};

use crate::{Event, Team, memory, nursery};

/// The variable that names a role.
pub(crate) const ROLE: &str = "WINDROW_TEST_ROLE";

/// What workers say.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Said {
    /// First: the number of a process.
    Ready(u32),
    Number(u32),
    Text(String),
    Bytes(Vec<u8>),
}

/// The arguments with which the harness runs `child_entry` alone.
pub(crate) const ARGUMENTS: [&str; 3] = ["--exact", "child_entry", "--nocapture"];

/// This binary, as a worker in this role.
pub(crate) fn program(role: &str) -> WorkerProgram {
    WorkerProgram {
        args: ARGUMENTS.map(Into::into).to_vec(),
        vars: vec![(ROLE.into(), role.into())],
        ..WorkerProgram::current()
    }
}

/// This binary in this role, not as a worker.
pub(crate) fn command(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(ARGUMENTS).env(ROLE, role);
    command
}

/// Starts a role that announces processes, one a line; the process and those.
pub(crate) fn announced(role: &str, count: usize) -> (process::Child, Vec<i32>) {
    let mut parent = command(role).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let pids = lines.filter_map(|line| line.unwrap().strip_prefix("pid ")?.parse().ok());
    (parent, pids.take(count).collect())
}

/// Plays the role of this process, if it has one.
pub(crate) fn play() {
    let Ok(role) = env::var(ROLE) else {
        return;
    };
    match adopt().unwrap() {
        Some(end) => worker(&role, &end),
        None => other(&role),
    }
    process::exit(0);
}

pub(crate) fn say(end: &ChildEnd, said: &Said) {
    send(end.socket(), &Frame::of(said).unwrap()).unwrap();
}

pub(crate) fn ready(end: &ChildEnd) {
    say(end, &Said::Ready(process::id()));
}

pub(crate) fn park() -> ! {
    loop {
        thread::park();
    }
}

/// A process that would outlive its parent, which does not wait for it.
#[allow(clippy::zombie_processes)]
fn helper() -> u32 {
    Command::new("sleep").arg("1000").spawn().unwrap().id()
}

fn worker(role: &str, end: &ChildEnd) {
    match role {
        "exit" | "abort" | "kill" => {
            for number in 0..2000 {
                say(end, &Said::Number(number));
                if number % 2 == 0 {
                    eprintln!("line {}", number / 2);
                }
            }
            eprint!("last words");
            match role {
                "exit" => process::exit(3),
                "abort" => process::abort(),
                _ => kill_process(getpid(), Signal::KILL).unwrap(),
            }
        }
        "stop" => {
            kill_process(getpid(), Signal::STOP).unwrap();
            park();
        }
        "echo" => {
            ready(end);
            let mut reader = FrameReader::default();
            while let Some(frame) = reader.read(end.socket()).unwrap() {
                send(end.socket(), &frame).unwrap();
            }
        }
        "deaf" => {
            say(end, &Said::Ready(helper()));
            park();
        }
        "silent" => {
            ready(end);
            park();
        }
        "leave" => {
            say(end, &Said::Ready(helper()));
        }
        "garbage" => {
            rustix::io::write(end.socket(), &[0xff; 64]).unwrap();
            park();
        }
        "folder" => {
            let folder = env::current_dir().unwrap();
            say(end, &Said::Text(folder.to_str().unwrap().to_owned()));
        }
        "half" => {
            rustix::io::write(end.socket(), b"\x64\0\0\0\0\0\0\0\x000123456789").unwrap();
            process::exit(5);
        }
        "nested" => {
            let output = command("inherits")
                .env("WINDROW_WORKER", variable())
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let line = text.lines().find(|line| line.ends_with("worker")).unwrap();
            say(end, &Said::Text(line.to_owned()));
        }
        other => memory::play(other, end),
    }
}

/// As the parent set it.
fn variable() -> String {
    let parent = rustix::process::getppid().unwrap();
    format!("2:{}", parent.as_raw_nonzero())
}

fn other(role: &str) {
    match role {
        "inherits" => println!("\nnot a worker"),
        "count descriptors" | "count descriptors of forked" => {
            let before = descriptors();
            let is_forked = role.ends_with("forked");
            let team = Team::new(if is_forked { "forked exit" } else { "exit" }, 4);
            while !matches!(team.next(), Event::Died(..)) {}
            team.supervisor.shutdown(Duration::ZERO).unwrap();
            assert!(descriptors() > before, "the supervisor is still there");
            drop(team);
            assert_eq!(descriptors(), before);
        }
        "few descriptors" => few_descriptors(),
        "parent of exit" => {
            let team = Team::new("exit", 1);
            while !matches!(team.next(), Event::Died(..)) {}
        }
        "parent of silent" | "parent of stop" | "parent of forked silent" => {
            let team = Team::new(role.strip_prefix("parent of ").unwrap(), 4);
            let mut out = std::io::stdout();
            let mut left = 4;
            while left > 0 {
                match (role, team.next()) {
                    ("parent of stop", Event::Started(_, pid)) => {
                        let pid = pid.unwrap();
                        let stat = format!("/proc/{pid}/stat");
                        while !fs::read_to_string(&stat).unwrap().contains(") T ") {
                            thread::yield_now();
                        }
                        writeln!(out, "\npid {pid}").unwrap();
                        left -= 1;
                    }
                    (_, Event::Started(_, pid)) => {
                        writeln!(out, "\npid {}", pid.unwrap()).unwrap();
                    }
                    (_, Event::Frame(..)) => left -= 1,
                    (_, event) => panic!("{event:?}"),
                }
            }
            park();
        }
        other => nursery::play(other),
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Starts workers until there are no descriptors; those that run do not mind.
fn few_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let most = descriptors() as u64 + 6;
    let current = Some(most);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let team = Team::new("echo", 4);
    let (mut left, mut running, mut failed) = (4, 0, 0);
    while left > 0 || running > 0 {
        match team.next() {
            Event::Started(_, Ok(_)) => (left, running) = (left - 1, running + 1),
            Event::Started(_, Err(error)) => {
                (left, failed) = (left - 1, failed + 1);
                assert!(
                    matches!(error, ProcessError::Descriptors { .. }),
                    "{error:?}"
                );
                let text = error.to_string();
                let expected = format!("all {most} file descriptors");
                assert!(
                    text.contains(&expected) && text.contains("ulimit -n"),
                    "{text}"
                );
            }
            Event::Frame(worker, frame) => {
                assert!(matches!(frame.parse(), Ok(Said::Ready(_))));
                team.supervisor.kill(worker).unwrap();
            }
            Event::Died(..) => running -= 1,
        }
    }
    assert!(failed > 0);
    // There is room again, for one worker at least.
    team.supervisor.spawn(0).unwrap();
    team.started();
    assert!(matches!(team.frame().parse(), Ok(Said::Ready(_))));
}
