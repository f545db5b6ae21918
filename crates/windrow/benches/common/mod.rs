//! Two ways to do the same work, timed in turn.
//!
//! Arguments of a bench that are no options choose the lines whose names contain one of them.
#![allow(dead_code)]

use std::time::{Duration, Instant};

/// Pairs of runs whose median ratio is told, and how long each run lasts at least.
pub const PAIRS: usize = 15;
pub const RUN: Duration = Duration::from_millis(150);

/// Something that does work and says how many frames it did.
pub type Work<'a> = &'a mut dyn FnMut() -> u64;

/// Times `ours` and `theirs` in turn (A B A B …) and reports the ratio of their rates.
pub fn ratio(name: &str, target: f64, ours: Work<'_>, theirs: Work<'_>) {
    if is_chosen(name) {
        let _ = (rate(ours), rate(theirs));
        let pairs = (0..PAIRS).map(|_| (rate(ours), rate(theirs)));
        report(name, target, pairs.collect());
    }
}

/// Prints `name  value  target  ok|short` for the median of the ratios of pairs of rates, which is
/// to be `target` at least; what it is the median of goes to standard error.
pub fn report(name: &str, target: f64, mut pairs: Vec<(f64, f64)>) {
    pairs.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let ratios: Vec<f64> = pairs.iter().map(|(a, b)| a / b).collect();
    let middle = pairs.len() / 2;
    line(name, ratios[middle], target, ratios[middle] >= target);
    let (a, b) = pairs[middle];
    eprintln!(
        "    {} frames/s against {}; {} pairs, ratios from {:.3} to {:.3}",
        round(a),
        round(b),
        pairs.len(),
        ratios[0],
        ratios[pairs.len() - 1]
    );
}

/// Prints the same for the median of what `measure` gives, which is to be `limit` at most.
pub fn at_most(name: &str, limit: f64, measure: impl FnMut() -> f64) {
    const RUNS: usize = 9;
    if !is_chosen(name) {
        return;
    }
    let mut values: Vec<f64> = std::iter::repeat_with(measure).take(RUNS).collect();
    values.sort_by(f64::total_cmp);
    let value = values[RUNS / 2];
    line(name, value, limit, value <= limit);
    eprintln!(
        "    from {:.3} to {:.3} in {RUNS} runs",
        values[0],
        values[RUNS - 1]
    );
}

pub fn is_chosen(name: &str) -> bool {
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    chosen.is_empty() || chosen.iter().any(|part| name.contains(part.as_str()))
}

/// Frames a second of one run.
pub fn rate(work: Work<'_>) -> f64 {
    let start = Instant::now();
    let mut frames = 0;
    while start.elapsed() < RUN {
        frames += work();
    }
    frames as f64 / start.elapsed().as_secs_f64()
}

pub fn line(name: &str, value: f64, target: f64, reached: bool) {
    let verdict = if reached { "ok" } else { "short" };
    println!("{name}  {value:.3}  {target:.2}  {verdict}");
}

fn round(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate => format!("{rate:.0}"),
    }
}
