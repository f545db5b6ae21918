//! Lanes and weights between processes.

use std::os::fd::AsFd;
use std::thread;

use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use windrow_peer::{
    ChildEnd, ControlBlock, ControlSpec, Episode, Exchange, ExchangeReader, Frame, FrameReader,
    Lane, Place, Target, WorkerLane,
};

use crate::roles::{Said, ready, say};
use crate::{Event, Team};

/// A message that asks for an answer, and one that asks for a death.
const ANSWER: u32 = 1;
const DIE: u32 = 2;

/// Words of weights.
const WORDS: usize = 700;

/// Versions that a worker reads at least while they are published.
const LEAST: usize = 1000;

const SPEC: ControlSpec = ControlSpec {
    fingerprint: 0xfeed,
    workers: 2,
    envs: 3,
};

/// What workers in these roles do.
pub(crate) fn play(role: &str, end: &ChildEnd) {
    ready(end);
    let mut frame = FrameReader::default().read(end.socket()).unwrap().unwrap();
    let worker: usize = frame.parse().unwrap();
    let fd = frame.fds.pop().unwrap();
    match role {
        "weights" => read_weights(end, ExchangeReader::open(fd, worker).unwrap()),
        "lane" => answer(&ControlBlock::open(fd, SPEC.fingerprint).unwrap(), worker),
        other => panic!("unknown role of a worker {other:?}"),
    }
}

/// Reads until version -1, and says so when it has read many.
fn read_weights(end: &ChildEnd, mut reader: ExchangeReader) {
    let (mut held, mut read) = (None, 0);
    while held != Some(-1) {
        let Some(pinned) = reader.newest(held).unwrap() else {
            thread::yield_now();
            continue;
        };
        let expected = pinned.version().to_ne_bytes();
        assert_eq!(pinned.bytes().len(), 8 * WORDS);
        for word in pinned.bytes().chunks_exact(8) {
            assert_eq!(word, expected, "torn");
        }
        assert!(pinned.version() == -1 || held.is_none_or(|held| held < pinned.version()));
        held = Some(pinned.version());
        read += 1;
        if read == LEAST {
            say(end, &Said::Number(read as u32));
        }
    }
}

/// Answers each message by its words in reverse, until it is told to die or to end.
fn answer(block: &ControlBlock, worker: usize) {
    let mut lane: WorkerLane<Message, Message> = block.worker_lane(worker, || ()).unwrap();
    let notes = block.live_writer(worker).unwrap();
    while let Some(mut message) = lane.receive() {
        notes.phase(message.kind);
        notes.step(message.words[0] as u32);
        notes.env(2);
        notes.episode(2, Episode { id: 70, began: 700 });
        if message.kind == DIE {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        message.words.reverse();
        lane.send(&message).unwrap();
    }
}

/// Sends a worker its number and a descriptor.
fn introduce(team: &Team, worker: usize, fd: impl AsFd) {
    let fd = fd.as_fd().try_clone_to_owned().unwrap();
    let mut frame = Frame::of(&worker).unwrap();
    frame.fds.push(fd);
    team.supervisor.send(worker, frame).unwrap();
}

/// Starts all workers and introduces them.
fn team(role: &str, workers: usize, fd: impl AsFd) -> Team {
    let team = Team::new(role, workers);
    let mut ready = 0;
    while ready < workers {
        match team.next() {
            Event::Started(worker, pid) => {
                pid.unwrap();
                introduce(&team, worker, &fd);
            }
            Event::Frame(_, frame) => {
                assert!(matches!(frame.parse(), Ok(Said::Ready(_))));
                ready += 1;
            }
            Event::Died(worker, death) => panic!("{worker}: {death:?}"),
        }
    }
    team
}

#[test]
fn weights_are_whole_in_other_processes_while_new_ones_are_published() {
    let exchange = Exchange::create(2, 8 * WORDS).unwrap();
    let team = team("weights", 2, exchange.as_fd());
    let publish = |to, version: i64| {
        let write = |bytes: &mut [u8]| {
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&version.to_ne_bytes());
            }
        };
        exchange.publish(to, version, write).unwrap();
    };
    let (mut version, mut reading) = (0, 2);
    while version < 100_000 || reading > 0 {
        version += 1;
        let to = match version % 4 {
            worker @ 0..2 => Target::Worker(worker as usize),
            _ => Target::All,
        };
        publish(to, version);
        if let Some(event) = team.try_next() {
            match event {
                Event::Frame(_, frame) => {
                    assert!(matches!(frame.parse(), Ok(Said::Number(_))));
                }
                other => panic!("expected a frame, got {other:?}"),
            }
            reading -= 1;
        }
    }
    publish(Target::All, -1);
    for _ in 0..2 {
        let death = team.death();
        assert_eq!(death.exit.to_string(), "exit status 0", "{death:?}");
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Message {
    kind: u32,
    words: [u64; 12],
}

type Lanes = Vec<Lane<Message, Message>>;

fn message(kind: u32, first: u64) -> Message {
    let words = std::array::from_fn(|at| first + at as u64);
    Message { kind, words }
}

fn exchange(lane: &mut Lane<Message, Message>, first: u64) {
    lane.send(&message(ANSWER, first)).unwrap();
    let answer = loop {
        match lane.try_receive() {
            Some(answer) => break answer.unwrap(),
            None => thread::yield_now(),
        }
    };
    let mut expected = message(ANSWER, first);
    expected.words.reverse();
    assert_eq!(answer, expected);
}

#[test]
fn a_lane_carries_messages_until_a_death_and_then_those_of_a_successor() {
    let (block, mut lanes): (_, Lanes) = ControlBlock::create(SPEC).unwrap();
    let team = team("lane", 2, block.as_fd());
    for round in 0..1000 {
        exchange(&mut lanes[round % 2], round as u64);
    }
    lanes[1].send(&message(DIE, 41)).unwrap();
    assert_eq!(team.death().exit.to_string(), "signal 9 (SIGKILL)");
    assert!(lanes[1].try_receive().is_none());
    // Where it was is known all the same.
    let place = block.place(1).unwrap();
    assert_eq!((place.phase, place.step, place.env), (DIE, 41, 2));
    let episode = Episode { id: 70, began: 700 };
    assert_eq!(block.episode(1, 2).unwrap(), episode);
    lanes[1].reset();
    assert_eq!(block.place(1).unwrap(), Place::default());

    team.supervisor.spawn(1).unwrap();
    team.started();
    introduce(&team, 1, block.as_fd());
    for round in 0..1000 {
        exchange(&mut lanes[round % 2], round as u64);
    }
    assert!(matches!(team.frame().parse(), Ok(Said::Ready(_))));
    block.close();
    for _ in 0..2 {
        assert_eq!(team.death().exit.to_string(), "exit status 0");
    }
}
