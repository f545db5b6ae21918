//! The headed steps of a run, the table at its end, and the closing line.

use std::{
    fmt::Write as _,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    counts::Counts,
    process::{self, Finished},
};

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A check without tests of its own passed.
    Passed,
    /// Tests ran and none failed.
    Tested(Counts),
    /// The check failed, or a test did; the text says why.
    Failed(Option<Counts>, String),
    /// Could not be tried; the text says why.
    NotRun(String),
}

#[derive(Debug)]
struct Step {
    name: String,
    verdict: Verdict,
    time: Duration,
}

/// Collects the results of the steps of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    steps: Vec<Step>,
}

impl Report {
    /// Runs some steps alone; `true` when nothing failed.
    pub(crate) fn alone(steps: impl FnOnce(&mut Self)) -> Result<bool> {
        let mut report = Self::default();
        steps(&mut report);
        Ok(report.close())
    }

    /// Runs one step under a heading and remembers how it went; an error is a failure of this step
    /// only.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce() -> Result<Verdict>) {
        println!("\n==> {name}");
        let start = Instant::now();
        let verdict = work().unwrap_or_else(|error| Verdict::Failed(None, format!("{error:#}")));
        let step = Step {
            name: name.to_owned(),
            verdict,
            time: start.elapsed(),
        };
        match &step.verdict {
            Verdict::Failed(_, why) => println!("    FAILED after {}: {why}", seconds(step.time)),
            Verdict::NotRun(why) => println!("    NOT RUN: {why}"),
            Verdict::Passed | Verdict::Tested(_) => println!("    ok in {}", seconds(step.time)),
        }
        self.steps.push(step);
    }

    /// Prints the table, the failures and the closing line; `true` when nothing failed.
    pub(crate) fn close(&self) -> bool {
        println!("\n{}{}", self.table(), self.closing());
        self.steps
            .iter()
            .all(|step| matches!(step.verdict, Verdict::Passed | Verdict::Tested(_)))
    }

    fn table(&self) -> String {
        let widths = self.steps.iter().map(|step| step.name.chars().count());
        let width = widths.max().unwrap_or(0).max(4);
        let mut table = format!(
            "{:width$}  {:>7}  {:>6}  {:>7}  {:>8}\n",
            "step", "passed", "failed", "skipped", "time"
        );
        for step in &self.steps {
            let word = match &step.verdict {
                Verdict::Passed | Verdict::Tested(_) => "ok",
                Verdict::Failed(..) => "FAILED",
                Verdict::NotRun(_) => "NOT RUN",
            };
            let cells = match &step.verdict {
                Verdict::Tested(counts) | Verdict::Failed(Some(counts), _) => counts.cells(),
                _ => ["-", "-", "-"].map(str::to_owned),
            };
            let [passed, failed, skipped] = cells;
            let (name, time) = (&step.name, seconds(step.time));
            let _ = writeln!(
                table,
                "{name:width$}  {passed:>7}  {failed:>6}  {skipped:>7}  {time:>8}  {word}"
            );
        }
        for step in &self.steps {
            if let Verdict::Failed(_, why) | Verdict::NotRun(why) = &step.verdict {
                let first = why.lines().next().unwrap_or_default();
                let _ = writeln!(table, "{}: {first}", step.name);
            }
        }
        table
    }

    /// Sums all runners. A step that failed without a failing test counts as one failure, one that
    /// could not run as one skipped: the line is never better than the truth.
    fn closing(&self) -> Counts {
        let mut sum = Counts::default();
        for step in &self.steps {
            match &step.verdict {
                Verdict::Passed => {}
                Verdict::Tested(counts) => sum = sum + *counts,
                Verdict::NotRun(_) => sum.skipped += 1,
                Verdict::Failed(counts, _) => {
                    let mut counts = counts.unwrap_or_default();
                    counts.failed = counts.failed.max(1);
                    sum = sum + counts;
                }
            }
        }
        sum
    }
}

impl Verdict {
    /// The result of a check without tests of its own; `why` it failed otherwise.
    pub(crate) fn of_check(passed: bool, why: &str) -> Self {
        match passed {
            true => Self::Passed,
            false => Self::Failed(None, why.to_owned()),
        }
    }

    /// Runs a program without tests of its own; `why` its check failed otherwise.
    pub(crate) fn of_program(command: &mut Command, why: &str) -> Result<Self> {
        let finished = process::run(command, |_| true)?;
        Ok(Self::of_check(finished.success, why))
    }

    /// Runs a runner of tests.
    pub(crate) fn of_runner(command: &mut Command) -> Result<Self> {
        let finished = process::run(command, |_| true)?;
        Ok(Self::of_finished(&finished))
    }

    /// The result of a runner of tests.
    pub(crate) fn of_finished(finished: &Finished) -> Self {
        let counts = Counts::read(&finished.lines);
        Self::of_tests(finished.success, counts, &finished.status)
    }

    /// Passed when the tests counted and none failed; otherwise failed, with `why`.
    pub(crate) fn of_tests(success: bool, counts: Option<Counts>, why: &str) -> Self {
        match counts {
            Some(counts) if success && counts.failed == 0 => Self::Tested(counts),
            Some(counts) if counts.failed > 0 => {
                let noun = if counts.failed == 1 { "test" } else { "tests" };
                Self::Failed(Some(counts), format!("{} {noun} failed", counts.failed))
            }
            Some(counts) => Self::Failed(Some(counts), why.to_owned()),
            None if success => Self::Failed(None, "the runner printed no summary line".to_owned()),
            None => Self::Failed(None, why.to_owned()),
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::{Report, Verdict};
    use crate::counts::Counts;

    fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts {
            passed,
            failed,
            skipped,
        }
    }

    #[test]
    fn runners_add_up_and_a_failed_check_counts_once() {
        let mut report = Report::default();
        report.step("tests", || {
            Ok(Verdict::of_tests(true, Some(counts(10, 0, 2)), ""))
        });
        report.step("doctests", || {
            Ok(Verdict::of_tests(true, Some(counts(3, 0, 0)), ""))
        });
        assert!(report.close());
        assert_eq!(report.closing(), counts(13, 0, 2));
        report.step("clippy", || bail!("a lint"));
        report.step("later", || Ok(Verdict::NotRun("no Python".into())));
        assert!(!report.close());
        assert_eq!(report.closing(), counts(13, 1, 3));
        assert!(
            report.table().contains("clippy: a lint"),
            "{}",
            report.table()
        );
    }

    #[test]
    fn a_runner_that_counts_nothing_has_failed() {
        assert!(matches!(
            Verdict::of_tests(true, None, ""),
            Verdict::Failed(None, _)
        ));
        assert!(matches!(
            Verdict::of_tests(false, Some(counts(5, 0, 0)), "exit"),
            Verdict::Failed(Some(_), _)
        ));
        assert_eq!(
            Verdict::of_tests(false, Some(counts(5, 2, 0)), ""),
            Verdict::Failed(Some(counts(5, 2, 0)), "2 tests failed".into())
        );
    }
}
