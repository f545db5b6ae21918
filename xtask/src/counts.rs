//! Numbers of tests that passed, failed and were skipped, read from the output of the runners.

use std::{fmt, ops::Add};

/// Numbers of tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    /// The numbers, to be printed.
    pub(crate) fn cells(&self) -> [String; 3] {
        [self.passed, self.failed, self.skipped].map(|number| number.to_string())
    }

    /// Sums the summary lines among `lines`; `None` when there is none.
    ///
    /// Where nextest wrote a summary, libtest's are not counted: they are the output of tests that
    /// failed.
    pub(crate) fn read(lines: &[String]) -> Option<Self> {
        let sum = |of_line: fn(&str) -> Option<Self>| {
            let counts = lines.iter().filter_map(|line| of_line(line.trim()));
            counts.reduce(Add::add)
        };
        let of_libtest = || sum(Self::of_libtest).or_else(|| sum(Self::of_pytest));
        sum(Self::of_nextest).or_else(of_libtest)
    }

    /// `Summary [   1.2s] 9 tests run: 7 passed (1 slow), 1 failed, 1 timed out, 2 skipped`
    fn of_nextest(line: &str) -> Option<Self> {
        let (_, figures) = line.strip_prefix("Summary [")?.split_once(" run: ")?;
        Some(Self::of_figures(&without_parentheses(figures)))
    }

    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in
    /// 0.01s`
    fn of_libtest(line: &str) -> Option<Self> {
        let (_, figures) = line.strip_prefix("test result: ")?.split_once(". ")?;
        Some(Self::of_figures(figures))
    }

    /// `== 1 failed, 9 passed, 2 skipped, 1 xfailed, 1 error in 30.57s ==`, with or without the
    /// signs around it
    fn of_pytest(line: &str) -> Option<Self> {
        let (figures, time) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
        let is_number = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
        let is_summary = is_number(time) && time.contains('s') && is_number(figures);
        is_summary.then(|| Self::of_figures(figures))
    }

    fn of_figures(figures: &str) -> Self {
        let mut counts = Self::default();
        for figure in figures.split([',', ';']) {
            let (number, word) = figure.trim().split_once(' ').unwrap_or_default();
            let count = match word.trim() {
                "passed" => &mut counts.passed,
                "failed" | "timed out" | "exec failed" | "error" | "errors" => &mut counts.failed,
                "skipped" | "ignored" | "xfailed" => &mut counts.skipped,
                _ => continue,
            };
            *count += number.parse().unwrap_or(0);
        }
        counts
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [passed, failed, skipped] = self.cells();
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// `text` without parentheses and their content.
fn without_parentheses(text: &str) -> String {
    let outside = text
        .split('(')
        .map(|part| part.split_once(')').map_or(part, |(_, rest)| rest));
    outside.collect()
}

#[cfg(test)]
mod tests {
    use super::Counts;

    fn read(text: &str) -> Option<Counts> {
        Counts::read(&text.lines().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn libtest_summaries_add_up() {
        let text = "running 2 tests\n..\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: FAILED. 4 passed; 3 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s";
        assert_eq!(
            read(text),
            Some(Counts {
                passed: 6,
                failed: 3,
                skipped: 1
            })
        );
    }

    #[test]
    fn nextest_counts_every_way_to_fail() {
        let text = "     Summary [  61.2s] 12/20 tests run: 8 passed (1 slow, 2 leaky), 2 failed, \
            1 timed out, 1 exec failed, 3 skipped";
        assert_eq!(
            read(text),
            Some(Counts {
                passed: 8,
                failed: 4,
                skipped: 3
            })
        );
    }

    #[test]
    fn pytest_says_it_in_one_line() {
        let expected = Counts {
            passed: 235,
            failed: 2,
            skipped: 4,
        };
        let text =
            "1 failed, 235 passed, 3 skipped, 7 deselected, 1 xfailed, 1 error in 90.57s (0:01:30)";
        assert_eq!(read(text), Some(expected));
        assert_eq!(read(&format!("===== {text} =====")), Some(expected));
        assert_eq!(read("collected 12 items in 3 files"), None);
    }

    #[test]
    fn output_of_a_failed_test_is_not_counted_again() {
        let text = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 7 filtered out\n\
            Summary [   1.5s] 8 tests run: 7 passed, 1 failed, 0 skipped";
        let expected = Counts {
            passed: 7,
            failed: 1,
            skipped: 0,
        };
        assert_eq!(read(text), Some(expected));
    }

    #[test]
    fn other_lines_count_for_nothing() {
        assert_eq!(read("3 passed, 4 failed\ntest a ... ok"), None);
    }

    #[test]
    fn the_closing_line_has_its_form() {
        let counts = Counts {
            passed: 12,
            failed: 0,
            skipped: 3,
        };
        assert_eq!(counts.to_string(), "12 passed, 0 failed, 3 skipped");
    }
}
