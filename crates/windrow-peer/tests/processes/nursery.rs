//! Nurseries. The one of these tests spawns workers where others fork them, which its parent does
//! not notice.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, kill_process, kill_process_group, pidfd_open,
};
use windrow_peer::{Frame, FrameReader, FromNursery, Nursery, ProcessError, WorkerProgram, send};

use crate::roles::{ARGUMENTS, ROLE, Said, command, park, program};
use crate::{Event, Team, both, wait_for_end};

/// This binary as a worker in this role, for which a nursery in a role of its own is asked.
fn forked_by(nursery: &str, role: &str) -> WorkerProgram {
    let vars = vec![(ROLE.into(), nursery.into())];
    let nursery = Nursery::new("/proc/self/exe", ARGUMENTS.map(Into::into).to_vec(), vars);
    WorkerProgram {
        forked: Some((Arc::new(nursery), role.as_bytes().into())),
        ..program(role)
    }
}

/// As [`program`], by way of a nursery.
pub(crate) fn forked(role: &str) -> WorkerProgram {
    forked_by("nursery", role)
}

/// What nurseries do.
pub(crate) fn play(role: &str) {
    match role {
        "nursery" => fork(),
        "nursery that refuses" => while next().is_some() {},
        "nursery that ends" => process::exit(3),
        "nursery that sleeps" => park(),
        other => panic!("unknown role {other:?}"),
    }
}

fn next() -> Option<Frame> {
    let frame = FrameReader::default().read(std::io::stdin().as_fd());
    frame.unwrap()
}

fn fork() {
    let mut watching = Vec::new();
    let parent = getppid().unwrap().as_raw_nonzero();
    while let Some(frame) = next() {
        let [socket, output, errors, folder, request, birth] =
            <[OwnedFd; 6]>::try_from(frame.fds).unwrap();
        let mut role = String::new();
        // Read from its beginning, wherever the writer has left off.
        let path = format!("/proc/self/fd/{}", request.as_raw_fd());
        fs::File::open(path)
            .unwrap()
            .read_to_string(&mut role)
            .unwrap();
        let folder = fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        let mut child = command(&role)
            .env("WINDROW_WORKER", format!("2:{parent}:{}", process::id()))
            .current_dir(folder.unwrap())
            .stdin(socket)
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let birth = UnixStream::from(birth);
        let mut told = Frame::of(&FromNursery::Born(pid.as_raw_nonzero().get())).unwrap();
        told.fds.push(pidfd_open(pid, PidfdFlags::empty()).unwrap());
        send(birth.as_fd(), &told).unwrap();
        watching.push(thread::spawn(move || {
            let ended = FrameReader::default().read(birth.as_fd());
            assert!(
                ended.unwrap().is_none(),
                "nothing is said to a nursery here"
            );
            let _ = kill_process_group(pid, Signal::KILL);
            let status = child.wait().unwrap().into_raw();
            let told = Frame::of(&FromNursery::Ended(status)).unwrap();
            // The parent may have ended.
            let _ = send(birth.as_fd(), &told);
        }));
    }
    watching
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

fn parent_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Whether every thread of a process is stopped.
fn stands_still(pid: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    tasks.map(|task| task.unwrap().path()).all(|task| {
        let stat = fs::read_to_string(task.join("stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    })
}

#[test]
fn all_workers_come_from_one_process_also_those_that_take_the_place_of_others() {
    let team = Team::new("forked silent", 2);
    let pids = [team.ready(), team.ready()];
    let nursery = parent_of(pids[0]);
    assert!(nursery != process::id() && nursery == parent_of(pids[1]));
    team.supervisor.kill(0).unwrap();
    assert_eq!(team.death().exit.to_string(), "signal 9 (SIGKILL)");
    team.supervisor.spawn(0).unwrap();
    assert_eq!(parent_of(team.ready()), nursery);
}

#[test]
fn workers_die_with_their_nursery_and_the_next_one_is_started_when_it_is_needed() {
    let team = Team::new("forked deaf", 1);
    let (pid, helper) = (team.started(), team.ready());
    let nursery = parent_of(pid);
    kill_process(Pid::from_raw(nursery as i32).unwrap(), Signal::KILL).unwrap();
    let exit = team.death().exit.to_string();
    assert!(exit.starts_with("unknown exit status, since"), "{exit}");
    wait_for_end(pid);
    wait_for_end(helper);
    // Before its last thread has ended, it may still seem to take requests.
    wait_for_end(nursery);
    team.supervisor.spawn(0).unwrap();
    let second = parent_of(team.started());
    assert!(second != nursery && second != process::id());
}

#[test]
fn workers_that_a_nursery_does_not_fork_are_spawned() {
    for nursery in ["nursery that refuses", "nursery that ends"] {
        let team = Team::of(forked_by(nursery, "silent"), 2);
        for _ in 0..2 {
            assert_eq!(parent_of(team.ready()), process::id());
        }
    }
}

#[test]
fn a_shutdown_does_not_wait_for_a_nursery() {
    let team = Team::of(forked_by("nursery that sleeps", "silent"), 2);
    team.supervisor.shutdown(Duration::from_secs(600)).unwrap();
    // Nothing is said, or that it was too late.
    while let Some(said) = team.try_next() {
        let is_late = matches!(said, Event::Started(_, Err(ProcessError::ShutDown)));
        assert!(is_late, "{said:?}");
    }
}

#[test]
fn a_folder_and_a_request_reach_the_worker() {
    for role in both("folder") {
        let team = Team::new(&role, 1);
        let (frames, death) = team.until_death();
        assert!(death.exit.is_success());
        let here = std::env::current_dir().unwrap();
        let said: Said = frames[0].parse().unwrap();
        assert_eq!(said, Said::Text(here.to_str().unwrap().to_owned()));
    }
}

#[test]
fn a_nursery_that_stands_still_keeps_nobody_waiting() {
    let team = Team::new("forked silent", 1);
    let pid = team.ready();
    let nursery = Pid::from_raw(parent_of(pid) as i32).unwrap();
    kill_process(nursery, Signal::STOP).unwrap();
    // One thread takes the signal and stops the others: until then, the one that watches the worker
    // would tell of its end.
    while !stands_still(nursery) {
        thread::sleep(Duration::from_millis(1));
    }
    team.supervisor.kill(0).unwrap();
    let exit = team.death().exit.to_string();
    assert!(exit.starts_with("unknown exit status, since"), "{exit}");
    team.supervisor.spawn(0).unwrap();
    assert_eq!(parent_of(team.ready()), process::id());
    kill_process(nursery, Signal::KILL).unwrap();
}
