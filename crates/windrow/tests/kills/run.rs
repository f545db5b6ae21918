//! As many runs as it takes for so many to die.

use std::collections::HashSet;
use std::fmt;

use crate::cell::{Cell, Rule};
use crate::life::life;
use crate::role::Actor;
use crate::room::Room;
use crate::{descriptors, memory, parents};

/// Most deaths in the life of a collector whose workers are replaced; fewer where there are not
/// enough for all cells.
const DEATHS: u64 = 6;
/// Most parents that die.
const PARENTS: u64 = 1000;
/// Violations that are shown.
const SHOWN: usize = 20;

/// What came of all runs.
#[derive(Debug, Default)]
struct Sum {
    deaths: u64,
    rows: u64,
    noticed: Vec<u64>,
    orphans: usize,
    segments: usize,
    collectors: u64,
    /// Cells that were met.
    met: HashSet<String>,
    /// Lives by their rule, and how many of them ended with the error of a worker.
    lives: [(u64, u64); Rule::ALL.len()],
    /// Newest version of weights that has acted in each life, over all.
    versions: i64,
    violations: Vec<String>,
}

/// Has about `kills` workers die, and a tenth as many of their parents, and lets memory and
/// descriptors run out; says what came of it. Whether all was well.
pub(crate) fn report(kills: u64) -> bool {
    let sum = run(kills);
    println!("{sum}");
    let parents = parents::run((kills / 10).clamp(1, PARENTS));
    println!("{parents}");
    let role = |role, limits| Actor::start(role, limits).finish();
    let roles = [
        (
            descriptors::ROLE,
            role(descriptors::ROLE, descriptors::LIMITS),
        ),
        (memory::FILES.0, role(memory::FILES.0, memory::FILES.1)),
        (
            memory::ADDRESSES.0,
            role(memory::ADDRESSES.0, memory::ADDRESSES.1),
        ),
        ("memory: workers", memory::cramped()),
    ];
    let mut violations = [sum.violations, parents.violations].concat();
    for (role, outcome) in roles {
        match outcome {
            Ok(said) => println!("{}", said.trim_end()),
            Err(violation) => violations.push(format!("{role}: {violation}")),
        }
    }
    for violation in violations.iter().take(SHOWN) {
        println!("violation: {violation}");
    }
    violations.is_empty()
}

/// Runs collectors of all cells in turn until `kills` of their workers have died. Where there are
/// deaths for all cells, each of them is met.
fn run(kills: u64) -> Sum {
    let mut sum = Sum::default();
    let cells = Cell::all(1).len() as u64;
    let each = (kills / cells).clamp(1, DEATHS) as usize;
    while sum.deaths < kills {
        for cell in Cell::all(each) {
            let met_all = sum.met.len() as u64 == cells;
            if sum.deaths >= kills && (met_all || kills < cells) {
                break;
            }
            sum.add(cell);
        }
    }
    sum.noticed.sort_unstable();
    sum
}

impl Sum {
    fn add(&mut self, cell: Cell) {
        let room = Room::now();
        let life = life(cell);
        self.collectors += 1;
        self.met.insert(cell.name());
        let (lives, failed) = &mut self.lives[cell.rule as usize];
        (*lives, *failed) = (*lives + 1, *failed + u64::from(life.failed));
        self.deaths += life.harvest.told.len() as u64;
        self.rows += life.ledger.rows;
        self.versions += life.ledger.newest;
        self.noticed.extend(life.harvest.noticed);
        let violations = life
            .harvest
            .violations
            .into_iter()
            .chain(life.ledger.violations);
        self.violations
            .extend(violations.map(|violation| format!("{cell:?}: {violation}")));
        let now = Room::back_to(room);
        if now != room {
            self.orphans += now.processes.saturating_sub(room.processes);
            self.segments += now.segments.saturating_sub(room.segments);
            self.violations
                .push(format!("{cell:?}: I6: {room:?} before, {now:?} after"));
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} kills, {} rows checked, {} violations, noticed within {:.2} ms (p50) and {:.2} ms (p99), {} orphaned processes, \
             {} segments left; {} collectors",
            self.deaths,
            self.rows,
            self.violations.len(),
            quantile(&self.noticed, 0.5),
            quantile(&self.noticed, 0.99),
            self.orphans,
            self.segments,
            self.collectors,
        )?;
        let [(restart, _), (raise, raised), (go_on, ended)] = self.lives;
        write!(
            f,
            "cells: {} kinds; {restart} collectors replaced workers, {raised} of {raise} ended with a loss, {ended} of {go_on} went on \
             and ended with their last worker's; {} versions of weights acted",
            self.met.len(),
            self.versions,
        )
    }
}

/// Milliseconds within which this share of sorted nanoseconds lies.
pub(crate) fn quantile(sorted: &[u64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (share * last as f64).ceil() as usize;
    sorted.get(at).map_or(0.0, |&ns| ns as f64 / 1e6)
}
