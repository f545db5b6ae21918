//! Workers that are processes: this test binary starts itself, and `child_entry` is what it then
//! runs.
#![cfg(all(target_os = "linux", not(loom)))]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod memory;
mod nursery;
mod roles;

use std::collections::HashSet;
use std::fs;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use roles::{Said, command, program};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use windrow_peer::{Child, Death, Frame, FrameReader, ProcessError, Supervisor, WorkerProgram};
use windrow_sync::error_chain;

/// What a supervisor said.
#[derive(Debug)]
pub(crate) enum Event {
    Started(usize, Result<u32, ProcessError>),
    Frame(usize, Frame),
    Died(usize, Death),
}

/// Passes on what a supervisor says.
fn record(events: Sender<Event>) -> impl FnMut(usize, windrow_peer::Event) + Send {
    use windrow_peer::Event as Said;
    move |worker, event| {
        let _ = events.send(match event {
            Said::Started(pid) => Event::Started(worker, Ok(pid)),
            Said::Failed(error) => Event::Started(worker, Err(error)),
            Said::Message(frame) => Event::Frame(worker, frame),
            Said::Died(death) => Event::Died(worker, death),
        });
    }
}

/// A supervisor of workers in one role, and what it says.
pub(crate) struct Team {
    pub(crate) supervisor: Supervisor,
    events: Receiver<Event>,
}

impl Team {
    /// Asks for all workers; a nursery, where the role is a forked one.
    pub(crate) fn new(role: &str, workers: usize) -> Self {
        let forked = role.strip_prefix("forked ").map(nursery::forked);
        Self::of(forked.unwrap_or_else(|| program(role)), workers)
    }

    pub(crate) fn of(program: WorkerProgram, workers: usize) -> Self {
        let (sender, events) = mpsc::channel();
        let supervisor = Supervisor::start(program, workers, record(sender)).unwrap();
        for worker in 0..workers {
            supervisor.spawn(worker).unwrap();
        }
        Self { supervisor, events }
    }

    /// The next event; a minute of silence is an error.
    pub(crate) fn next(&self) -> Event {
        match self.events.recv_timeout(Duration::from_secs(60)) {
            Ok(event) => event,
            Err(error) => panic!("no event within a minute: {error}"),
        }
    }

    /// An event that is there already.
    pub(crate) fn try_next(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    pub(crate) fn started(&self) -> u32 {
        match self.next() {
            Event::Started(_, pid) => pid.unwrap(),
            other => panic!("expected a start, got {other:?}"),
        }
    }

    /// The process of the next worker that has adopted its role.
    pub(crate) fn ready(&self) -> u32 {
        loop {
            match self.next() {
                Event::Started(_, pid) => drop(pid.unwrap()),
                Event::Frame(_, frame) => return ready(&frame),
                Event::Died(_, death) => panic!("{death:?}"),
            }
        }
    }

    pub(crate) fn frame(&self) -> Frame {
        match self.next() {
            Event::Frame(_, frame) => frame,
            other => panic!("expected a frame, got {other:?}"),
        }
    }

    pub(crate) fn death(&self) -> Death {
        match self.next() {
            Event::Died(_, death) => death,
            other => panic!("expected a death, got {other:?}"),
        }
    }

    /// What comes until a death, and the death.
    pub(crate) fn until_death(&self) -> (Vec<Frame>, Death) {
        let mut frames = Vec::new();
        loop {
            match self.next() {
                Event::Frame(_, frame) => frames.push(frame),
                Event::Died(_, death) => return (frames, death),
                Event::Started(_, pid) => drop(pid.unwrap()),
            }
        }
    }
}

/// The number in a worker's first frame.
fn ready(frame: &Frame) -> u32 {
    match frame.parse().unwrap() {
        Said::Ready(number) => number,
        other => panic!("expected a number, got {other:?}"),
    }
}

/// A worker without a supervisor, once it has adopted its role.
fn silent() -> Child {
    let child = program("silent").spawn().unwrap();
    let frame = FrameReader::default().read(child.socket.as_fd()).unwrap();
    ready(&frame.unwrap());
    child
}

/// A role of a worker that is spawned, and of one that a nursery starts.
pub(crate) fn both(role: &str) -> [String; 2] {
    [role.to_owned(), format!("forked {role}")]
}

/// Waits until a process, not necessarily a child, has ended.
pub(crate) fn wait_for_end(pid: u32) {
    let Ok(pidfd) = pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()) else {
        return;
    };
    let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut fds, None)).unwrap();
}

/// Not a test: what workers run.
#[test]
fn child_entry() {
    roles::play();
}

#[test]
fn a_death_is_told_with_its_status_and_the_last_words() {
    let ends = [
        ("exit", "exit status 3"),
        ("abort", "signal 6 (SIGABRT)"),
        ("kill", "signal 9 (SIGKILL)"),
    ];
    for (role, words) in ends
        .iter()
        .flat_map(|(role, words)| both(role).map(|role| (role, *words)))
    {
        let team = Team::new(&role, 1);
        let pid = team.started();
        let (frames, death) = team.until_death();
        let exit = death.exit.to_string();
        assert!(exit.starts_with(words), "{role}: {exit}");
        assert_eq!(death.pid, pid);
        assert_eq!(frames.len(), 2000, "no frame before the death is lost");
        assert!(
            (0..)
                .zip(&frames)
                .all(|(at, frame)| frame.parse::<Said>().unwrap() == Said::Number(at))
        );
        assert!(death.fault.is_none(), "{:?}", death.fault);
        let tail = &death.stderr_tail;
        assert!(tail.ends_with("line 999\nlast words"), "{tail}");
        assert!(tail.len() <= 8 << 10);
    }
}

#[test]
fn a_stopped_worker_is_killed_and_a_successor_is_started() {
    for role in both("stop") {
        let team = Team::new(&role, 1);
        let pid = team.started();
        let stat = format!("/proc/{pid}/stat");
        while !fs::read_to_string(&stat).unwrap().contains(") T ") {
            thread::yield_now();
        }
        team.supervisor.kill(0).unwrap();
        assert_eq!(team.death().exit.to_string(), "signal 9 (SIGKILL)");
        team.supervisor.spawn(0).unwrap();
        assert_ne!(team.started(), pid);
    }
}

#[test]
fn who_is_asked_for_its_stack_and_does_not_answer_ends_with_the_signal() {
    for role in both("silent") {
        let team = Team::new(&role, 1);
        team.started();
        team.supervisor.ask_for_stack(0).unwrap();
        let (_, death) = team.until_death();
        assert_eq!(death.exit.to_string(), "signal 12 (SIGUSR2)");
    }
}

#[test]
fn frames_and_their_answers_cross_and_workers_end_when_they_are_told_to() {
    for role in both("echo") {
        let team = Team::new(&role, 20);
        let mut pids = HashSet::new();
        let mut greeted = HashSet::new();
        while greeted.len() < 20 {
            match team.next() {
                Event::Started(_, pid) => assert!(pids.insert(pid.unwrap())),
                Event::Frame(worker, frame) => {
                    ready(&frame);
                    assert!(greeted.insert(worker));
                }
                Event::Died(worker, death) => panic!("{worker}: {death:?}"),
            }
        }
        assert_eq!(pids.len(), 20);
        let long = vec![7; 3 << 20];
        for worker in 0..20 {
            for body in [&long[..], b"short"] {
                let said = (worker, Said::Bytes(body.to_vec()));
                team.supervisor
                    .send(worker, Frame::of(&said).unwrap())
                    .unwrap();
            }
        }
        // Nothing waits for the answers: what was sent is read before the end of the socket is.
        team.supervisor.shutdown(Duration::from_secs(60)).unwrap();
        let (mut bytes, mut deaths) = ([0; 20], 0);
        for event in team.events.try_iter() {
            match event {
                Event::Frame(worker, frame) => {
                    let (from, said): (usize, Said) = frame.parse().unwrap();
                    let Said::Bytes(said) = said else {
                        panic!("expected bytes, got {said:?}");
                    };
                    assert_eq!(from, worker);
                    bytes[worker] += said.len();
                }
                Event::Died(_, death) => {
                    assert_eq!(death.exit.to_string(), "exit status 0");
                    deaths += 1;
                }
                Event::Started(..) => panic!("all were started before"),
            }
        }
        assert_eq!((bytes, deaths), ([long.len() + 5; 20], 20));
    }
}

#[test]
fn a_worker_that_does_not_end_is_killed_with_all_that_it_started() {
    for role in both("deaf") {
        let team = Team::new(&role, 2);
        let mut helpers = Vec::new();
        while helpers.len() < 2 {
            if let Event::Frame(_, frame) = team.next() {
                helpers.push(ready(&frame));
            }
        }
        thread::scope(|scope| {
            // From any thread, as often as one likes.
            scope.spawn(|| team.supervisor.shutdown(Duration::ZERO).unwrap());
            scope.spawn(|| team.supervisor.shutdown(Duration::from_secs(600)).unwrap());
        });
        for _ in 0..2 {
            assert_eq!(team.death().exit.to_string(), "signal 9 (SIGKILL)");
        }
        helpers.into_iter().for_each(wait_for_end);
        assert!(matches!(
            team.supervisor.spawn(0),
            Err(ProcessError::ShutDown)
        ));
        team.supervisor.shutdown(Duration::ZERO).unwrap();
    }
}

#[test]
fn what_a_worker_started_dies_with_it() {
    for role in both("leave") {
        let team = Team::new(&role, 1);
        team.started();
        let helper = ready(&team.frame());
        // The helper holds the pipe and is not waited for.
        assert_eq!(team.death().exit.to_string(), "exit status 0");
        wait_for_end(helper);
    }
}

#[test]
fn a_worker_that_sends_something_else_than_frames_is_killed() {
    for role in both("garbage") {
        let team = Team::new(&role, 1);
        team.started();
        let death = team.death();
        assert_eq!(death.exit.to_string(), "signal 9 (SIGKILL)");
        assert!(
            matches!(death.fault, Some(ProcessError::TooLong { .. })),
            "{death:?}"
        );
    }
}

#[test]
fn half_a_frame_before_a_death_is_told() {
    for role in both("half") {
        let team = Team::new(&role, 1);
        team.started();
        let death = team.death();
        assert_eq!(death.exit.to_string(), "exit status 5");
        assert!(
            matches!(
                death.fault,
                Some(ProcessError::CutShort {
                    expected: 109,
                    got: 19
                })
            ),
            "{death:?}"
        );
    }
}

#[test]
fn frames_that_are_sent_before_a_worker_runs_reach_it() {
    for role in both("echo") {
        let team = Team::new(&role, 1);
        for number in 1..4 {
            let frame = Frame::of(&Said::Number(number)).unwrap();
            team.supervisor.send(0, frame).unwrap();
        }
        team.started();
        ready(&team.frame());
        for number in 1..4 {
            let said: Said = team.frame().parse().unwrap();
            assert_eq!(said, Said::Number(number), "{role}");
        }
    }
}

#[test]
fn a_program_that_does_not_exist_is_named() {
    let (sender, events) = mpsc::channel();
    let mut program = program("echo");
    program.program = "/nowhere/at all".into();
    let supervisor = Supervisor::start(program, 1, record(sender)).unwrap();
    supervisor.spawn(0).unwrap();
    let Ok(Event::Started(0, Err(error))) = events.recv() else {
        panic!("expected a failure to start");
    };
    assert!(
        error_chain(&error).starts_with("failed to start /nowhere/at all: "),
        "{error}"
    );
    assert!(matches!(
        supervisor.kill(1),
        Err(ProcessError::NoSuch { .. })
    ));
}

#[test]
fn an_event_that_panics_leaves_no_worker() {
    let (sender, pids) = mpsc::channel();
    let panics = move |_, event| match event {
        windrow_peer::Event::Started(pid) => sender.send(pid).unwrap(),
        event => panic!("as the test wants: {event:?}"),
    };
    let supervisor = Supervisor::start(program("echo"), 1, panics).unwrap();
    supervisor.spawn(0).unwrap();
    let pid = pids.recv().unwrap();
    assert!(pids.recv().is_err(), "the thread has ended");
    let error = supervisor.shutdown(Duration::ZERO).unwrap_err();
    assert!(matches!(error, ProcessError::Panicked));
    assert!(
        !fs::exists(format!("/proc/{pid}")).unwrap(),
        "it was waited for"
    );
}

#[test]
fn workers_end_with_their_parent_even_if_they_are_stopped() {
    for role in [
        "parent of silent",
        "parent of stop",
        "parent of forked silent",
    ] {
        let (mut parent, pids) = roles::announced(role, 4);
        let pidfds: Vec<_> = pids
            .iter()
            .map(|pid| pidfd_open(Pid::from_raw(*pid).unwrap(), PidfdFlags::empty()).unwrap())
            .collect();
        kill_process(Pid::from_child(&parent), Signal::KILL).unwrap();
        parent.wait().unwrap();
        for pidfd in pidfds {
            let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut fds, None)).unwrap();
        }
    }
}

#[test]
fn a_parent_that_drops_its_side_ends_its_worker() {
    let mut child = silent();
    drop(child.socket);
    let exit = child.process.wait();
    assert_eq!(exit.to_string(), "signal 9 (SIGKILL)");
}

#[test]
fn a_worker_ends_with_the_thread_that_started_it() {
    // The socket stays open, so nothing but the system's signal tells the worker.
    let mut child = thread::spawn(silent).join().unwrap();
    let exit = child.process.wait();
    assert_eq!(exit.to_string(), "signal 9 (SIGKILL)");
}

#[test]
fn lines_of_workers_reach_the_parents_standard_error_whole() {
    let output = command("parent of exit").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let expected = (0..1000).map(|line| format!("line {line}"));
    let expected: Vec<_> = expected.chain(["last words".to_owned()]).collect();
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn no_descriptor_stays_after_a_shutdown_and_a_shortage_is_an_error_with_its_cause() {
    // In processes of their own: other tests of this one open and close descriptors, too.
    for role in [
        "count descriptors",
        "count descriptors of forked",
        "few descriptors",
    ] {
        let output = command(role).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{role}: {text}");
    }
}

#[test]
fn a_program_that_inherits_the_variable_is_no_worker() {
    let team = Team::new("nested", 1);
    team.started();
    let said: Said = team.frame().parse().unwrap();
    assert_eq!(said, Said::Text("not a worker".to_owned()));
}
