//! From the start of worker processes to their end.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use windrow::{Collector, MultiAsyncCollector, MultiSyncCollector, Placement};

use crate::system::{busy, is_gone, kill};
use crate::timing;

/// The argument with which this program is a parent that will be killed.
pub const PARENT: &str = "--be-killed";

fn sync(workers: usize) -> Collector {
    MultiSyncCollector::builder("CartPole-v1")
        .num_workers(workers)
        .frames_per_batch(64 * workers)
        .placement(Placement::Processes)
        .build()
        .unwrap()
}

fn pids(collector: &Collector) -> Vec<u32> {
    let workers = collector.worker_stats();
    workers.iter().filter_map(|worker| worker.pid).collect()
}

/// From the call of `build` to the first batch of eight workers; seconds.
pub fn first_batch() {
    timing::at_most("first_batch_8_s", 0.3, || {
        let start = Instant::now();
        let mut collector = sync(8);
        drop(collector.next().unwrap().unwrap());
        start.elapsed().as_secs_f64()
    });
}

/// What a collector and its two workers take of a core while nobody asks for a batch; per cent.
pub fn idle() {
    const REST: Duration = Duration::from_secs(1);
    if !timing::is_chosen("idle_percent") {
        return;
    }
    let mut collector = MultiAsyncCollector::builder("CartPole-v1")
        .num_workers(2)
        .frames_per_batch(64)
        .placement(Placement::Processes)
        .build()
        .unwrap();
    drop(collector.next().unwrap().unwrap());
    let mut all = pids(&collector);
    all.push(std::process::id());
    // They fill what they may in advance.
    thread::sleep(REST);
    timing::at_most("idle_percent", 0.5, || {
        let (before, start) = (busy(&all), Instant::now());
        thread::sleep(REST);
        let share = (busy(&all) - before).as_secs_f64() / start.elapsed().as_secs_f64();
        100.0 * share
    });
}

/// From the kill of a worker to the error of the call that waits for its part; milliseconds, the
/// 99th of a hundred.
pub fn death() {
    timing::at_most("death_to_error_p99_ms", 50.0, || {
        let mut times: Vec<f64> = (0..100).map(death_ms).collect();
        times.sort_by(f64::total_cmp);
        times[98]
    });
}

fn death_ms(sample: u64) -> f64 {
    let mut collector = sync(2);
    drop(collector.next().unwrap().unwrap());
    let victim = pids(&collector)[0];
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_micros(50 * sample));
        let at = Instant::now();
        kill(victim);
        at
    });
    while collector.next().is_some_and(|batch| batch.is_ok()) {}
    let noticed = Instant::now();
    let killed = killer.join().unwrap();
    (noticed - killed).as_secs_f64() * 1e3
}

/// From the kill of a collecting process to the end of the last of its four workers; milliseconds.
pub fn children_gone() {
    timing::at_most("children_gone_ms", 100.0, || {
        let mut parent = Command::new(std::env::current_exe().unwrap())
            .arg(PARENT)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut lines = BufReader::new(parent.stdout.take().unwrap());
        lines.read_line(&mut line).unwrap();
        let words = line.split_whitespace();
        let children: Vec<u32> = words.map(|word| word.parse().unwrap()).collect();
        assert_eq!(children.len(), 4);
        let start = Instant::now();
        parent.kill().unwrap();
        while !children.iter().all(|&child| is_gone(child)) {
            thread::sleep(Duration::from_micros(100));
        }
        let gone = start.elapsed().as_secs_f64() * 1e3;
        parent.wait().unwrap();
        gone
    });
}

/// Collects until it is killed, and says which its workers are.
pub fn be_parent() {
    let mut collector = sync(4);
    drop(collector.next().unwrap().unwrap());
    let pids: Vec<String> = pids(&collector).iter().map(u32::to_string).collect();
    println!("{}", pids.join(" "));
    std::io::stdout().flush().unwrap();
    while collector.next().is_some_and(|batch| batch.is_ok()) {}
}
