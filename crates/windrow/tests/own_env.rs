//! An environment of another crate, written and registered by what `windrow` exports: its id finds
//! it wherever a worker runs. A program installs one registry: so there is one test.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Command};
use std::sync::Arc;
use std::thread;

use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use windrow::envs::{EnvError, EnvSpec, Outcome, Spec, StateVisitor};
use windrow::{
    Collector, CollectorBuilder, DType, Env, Key, Nursery, Placement, Row, RowMut, WorkerProgram,
};
use windrow_peer::{Frame, FrameReader, FromNursery, send};

const ID: &str = "somebody/Corridor-v0";
const WORKERS: usize = 2;
const FRAMES: usize = 8;

/// Walks along a corridor of three steps.
///
/// Observation `int64 [2]`: steps since the reset, and the parent of the process that it runs in.
/// Action `int64`, 0 or 1, without meaning. Reward 1 for the last step, which terminates.
#[derive(Debug, Clone)]
struct Corridor {
    spec: EnvSpec,
    place: i64,
}

const SEEN: Key<i64> = Key::new(0);
const LENGTH: i64 = 3;

impl Corridor {
    fn new() -> Self {
        let seen = Spec::unbounded(DType::I64, [2]);
        Self {
            spec: EnvSpec::new(ID, seen, Spec::discrete(2)),
            place: 0,
        }
    }

    fn observe(&self, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
        Ok(obs.write(SEEN, &[self.place, i64::from(parent)])?)
    }
}

impl Env for Corridor {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, _: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.place = 0;
        self.observe(obs)
    }

    fn step(&mut self, _: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.place += 1;
        self.observe(obs)?;
        let terminated = self.place == LENGTH;
        Ok(Outcome {
            reward: f32::from(u8::from(terminated)),
            terminated,
            truncated: false,
        })
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.value(&mut self.place)
    }
}

/// Makes the id known here; in a worker process, works.
fn know_id() {
    windrow::worker_main(|registry| Ok(registry.env(ID, Corridor::new)?)).unwrap();
}

/// The arguments with which this program runs one of the entries below.
fn only(entry: &str) -> [&str; 3] {
    ["--exact", entry, "--nocapture"]
}

/// Not a test: what worker processes run.
#[test]
fn worker_entry() {
    if std::env::var_os("WINDROW_WORKER").is_some() {
        know_id();
    }
}

/// Set in a nursery.
const NURSERY: &str = "TEST_NURSERY";

/// Not a test: the nursery. It spawns workers where others fork them, which nobody notices.
#[test]
fn nursery_entry() {
    if std::env::var_os(NURSERY).is_none() {
        return;
    }
    let parent = getppid().unwrap().as_raw_nonzero();
    let mut births = Vec::new();
    while let Some(frame) = FrameReader::default()
        .read(std::io::stdin().as_fd())
        .unwrap()
    {
        let [socket, output, errors, folder, _, birth] =
            <[OwnedFd; 6]>::try_from(frame.fds).unwrap();
        let folder = fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        let mut worker = Command::new("/proc/self/exe")
            .args(only("worker_entry"))
            .env("WINDROW_WORKER", format!("2:{parent}:{}", process::id()))
            .current_dir(folder.unwrap())
            .stdin(socket)
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .unwrap();
        let (pid, birth) = (Pid::from_child(&worker), UnixStream::from(birth));
        let mut born = Frame::of(&FromNursery::Born(pid.as_raw_nonzero().get())).unwrap();
        born.fds.push(pidfd_open(pid, PidfdFlags::empty()).unwrap());
        send(birth.as_fd(), &born).unwrap();
        births.push(thread::spawn(move || {
            let status = worker.wait().unwrap().into_raw();
            // The parent may have ended.
            let _ = send(
                birth.as_fd(),
                &Frame::of(&FromNursery::Ended(status)).unwrap(),
            );
        }));
    }
    births.into_iter().for_each(|birth| birth.join().unwrap());
}

fn program() -> WorkerProgram {
    WorkerProgram {
        args: only("worker_entry").map(Into::into).to_vec(),
        ..WorkerProgram::current()
    }
}

fn by_nursery() -> WorkerProgram {
    let args = only("nursery_entry").map(Into::into).to_vec();
    let nursery = Nursery::new("/proc/self/exe", args, vec![(NURSERY.into(), "1".into())]);
    WorkerProgram {
        forked: Some((Arc::new(nursery), Arc::new([]))),
        ..program()
    }
}

/// The parents of the processes in which the two workers of a collector of the id have run, after
/// a look at what they have observed.
fn parents(set: impl FnOnce(CollectorBuilder) -> CollectorBuilder) -> [i64; WORKERS] {
    let builder = Collector::builder(ID)
        .num_workers(WORKERS)
        .frames_per_batch(FRAMES);
    let batch = set(builder).build().unwrap().next().unwrap().unwrap();
    let seen = batch.as_slice::<i64>("observation").unwrap();
    let (seen, _) = seen.as_chunks::<2>();
    let workers = seen.chunks(FRAMES / WORKERS).map(|seen| {
        let places: Vec<_> = seen.iter().map(|[place, _]| *place).collect();
        assert_eq!(places, [0, 1, 2, 0]);
        seen[0][1]
    });
    workers.collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn an_environment_of_another_crate_is_found_by_its_id_wherever_a_worker_runs() {
    know_id();
    let own = i64::from(process::id());
    let above = i64::from(getppid().unwrap().as_raw_nonzero().get());
    for placement in [Placement::Inline, Placement::Threads] {
        let parents = parents(|builder| builder.placement(placement));
        assert_eq!(parents, [above; WORKERS]);
    }
    let processes = |program| {
        parents(|builder| {
            let builder = builder.placement(Placement::Processes);
            builder.worker_program(program)
        })
    };
    assert_eq!(processes(program()), [own; WORKERS]);
    let [nursery, other] = processes(by_nursery());
    assert_eq!(nursery, other);
    assert!(nursery != own && nursery != above);
}
