//! Numbers that several processes change, of which some are killed: this test's own program, started again.
#![cfg(all(target_os = "linux", not(any(loom, shuttle))))]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use windrow_slab::{SharedNumbers, Turn};

/// Variables that tell the started program what to do, and where the numbers are.
const ROLE: &str = "WINDROW_TEST_ROLE";
const PLACE: &str = "WINDROW_TEST_PLACE";

/// So many that a turn is spent on them: a process that is killed at any moment is most likely in one.
const MANY: usize = 20_000;

fn numbers(count: usize) -> SharedNumbers {
    let mut made = SharedNumbers::create().unwrap();
    made.settle(b"numbers", count).unwrap();
    made
}

fn read(of: &mut SharedNumbers) -> Vec<f64> {
    let mut read = vec![0.0; of.count()];
    of.turn(|turn| turn.read(&mut read)).unwrap();
    read
}

/// Adds 1 to all numbers, which are equal.
fn add(turn: &mut Turn<'_>, scratch: &mut [f64]) {
    turn.read(scratch);
    assert!(scratch.iter().all(|number| *number == scratch[0]));
    scratch.iter_mut().for_each(|number| *number += 1.0);
    turn.write(scratch);
}

/// A program that does `role` with `numbers`, once it has said that it is at it.
fn start(role: &str, numbers: &SharedNumbers) -> Child {
    let place = format!("{} {}", numbers.path().display(), numbers.token());
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["child_entry", "--exact", "--nocapture"]);
    command.env(ROLE, role).env(PLACE, place);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = said.map_while(Result::ok);
    // The harness leaves its own line open.
    assert!(said.any(|line| line.ends_with("at it")), "it has ended");
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// What a started program does; nothing in an ordinary run.
#[test]
fn child_entry() {
    let Ok(role) = env::var(ROLE) else { return };
    let place = env::var(PLACE).unwrap();
    let (path, token) = place.split_once(' ').unwrap();
    let mut own = SharedNumbers::open(path.as_ref(), token.parse().unwrap(), 0).unwrap();
    // Numbers in shared memory are known to be settled by what reads them.
    own.text().unwrap();
    let mut scratch = vec![0.0; own.count()];
    match &*role {
        "add" => {
            println!("at it");
            loop {
                own.turn(|turn| add(turn, &mut scratch)).unwrap();
            }
        }
        _ => own.turn(|turn| {
            if role == "write and wait" {
                add(turn, &mut scratch);
            }
            println!("at it");
            loop {
                std::thread::park();
            }
        }),
    }
    .unwrap();
}

#[test]
fn a_process_that_is_killed_in_its_turn_has_changed_all_or_nothing() {
    for (role, value) in [("wait", 0.0), ("write and wait", 1.0)] {
        let mut shared = numbers(3);
        let child = start(role, &shared);
        std::thread::scope(|scope| {
            // Waits for its turn, which only the other's end can give it.
            let waiting = scope.spawn(|| read(&mut shared));
            kill(child);
            assert_eq!(waiting.join().unwrap(), [value; 3], "{role}");
        });
        shared.turn(|turn| add(turn, &mut [0.0; 3])).unwrap();
        assert_eq!(read(&mut shared), [value + 1.0; 3], "{role}");
    }
}

#[test]
fn others_go_on_where_processes_are_killed_at_any_moment() {
    let mut shared = numbers(MANY);
    let (mut own, done) = (opened(&shared), AtomicBool::new(false));
    let added = std::thread::scope(|scope| {
        let adding = scope.spawn(|| {
            let (mut scratch, mut turns) = (vec![0.0; MANY], 0);
            while !done.load(Ordering::Relaxed) {
                own.turn(|turn| add(turn, &mut scratch)).unwrap();
                turns += 1;
            }
            turns
        });
        for _ in 0..20 {
            let children = [start("add", &shared), start("add", &shared)];
            children.into_iter().for_each(kill);
        }
        done.store(true, Ordering::Relaxed);
        adding.join().unwrap()
    });
    let all = read(&mut shared);
    assert!(all.iter().all(|number| *number == all[0]));
    assert!(all[0] >= f64::from(added), "{} of {added}", all[0]);
}

fn opened(of: &SharedNumbers) -> SharedNumbers {
    SharedNumbers::open(&of.path(), of.token(), 0).unwrap()
}
