//! Two ways to do the same work, timed in turn.

use std::time::{Duration, Instant};

/// Pairs of runs whose median ratio is told, and how long each run lasts at least.
const PAIRS: usize = 15;
const RUN: Duration = Duration::from_millis(150);

/// Something that does work and says how many frames it did.
pub type Work<'a> = &'a mut dyn FnMut() -> u64;

/// Times `ours` and `theirs` in turn (A B A B …) and prints the median of the ratios of their rates, pair by pair.
///
/// One line, `name  value  target  ok|short`; rates of both sides go to standard error.
///
/// Arguments of the bench that are no options choose the ratios whose names contain one of them.
pub fn ratio(name: &str, target: f64, ours: Work<'_>, theirs: Work<'_>) {
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    if !chosen.is_empty() && !chosen.iter().any(|part| name.contains(part)) {
        return;
    }
    let _ = (rate(ours), rate(theirs));
    let mut pairs: Vec<(f64, f64)> = (0..PAIRS).map(|_| (rate(ours), rate(theirs))).collect();
    pairs.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let ratios: Vec<f64> = pairs.iter().map(|(a, b)| a / b).collect();
    let value = ratios[PAIRS / 2];
    let verdict = if value >= target { "ok" } else { "short" };
    println!("{name}  {value:.3}  {target:.2}  {verdict}");
    let (a, b) = pairs[PAIRS / 2];
    eprintln!(
        "    {:.2} M frames/s against {:.2} M; {PAIRS} pairs, ratios from {:.3} to {:.3}",
        a / 1e6,
        b / 1e6,
        ratios[0],
        ratios[PAIRS - 1]
    );
}

/// Frames a second of one run.
fn rate(work: Work<'_>) -> f64 {
    let start = Instant::now();
    let mut frames = 0;
    while start.elapsed() < RUN {
        frames += work();
    }
    frames as f64 / start.elapsed().as_secs_f64()
}
