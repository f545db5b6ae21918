//! Numbers of tests that passed, failed and were skipped, read from the output of the runners.

use std::{fmt, iter::Sum, ops::Add};

/// Numbers of tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    /// Sums the summary lines among `lines`; `None` when there is none.
    ///
    /// Where nextest wrote a summary, libtest's are not counted: they are the output of tests that failed.
    pub(crate) fn read(lines: &[String]) -> Option<Self> {
        let sum = |of_line: fn(&str) -> Option<Self>| {
            let lines = lines.iter().map(|line| without_colours(line));
            lines
                .filter_map(|line| of_line(line.trim()))
                .reduce(Add::add)
        };
        sum(Self::of_nextest)
            .or_else(|| sum(Self::of_libtest))
            .or_else(|| sum(Self::of_pytest))
    }

    /// `Summary [   1.2s] 9 tests run: 7 passed (1 slow), 1 failed, 1 timed out, 2 skipped`
    fn of_nextest(line: &str) -> Option<Self> {
        let (_, figures) = line.strip_prefix("Summary [")?.split_once(" run: ")?;
        Some(Self::of_figures(without_parentheses(figures).split(',')))
    }

    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`
    fn of_libtest(line: &str) -> Option<Self> {
        let (_, figures) = line.strip_prefix("test result: ")?.split_once(". ")?;
        Some(Self::of_figures(figures.split(';')))
    }

    /// `== 1 failed, 9 passed, 2 skipped, 1 xfailed, 1 error in 30.57s ==`, with or without the signs around it
    fn of_pytest(line: &str) -> Option<Self> {
        let (figures, time) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
        let is_time = time.starts_with(|first: char| first.is_ascii_digit()) && time.contains('s');
        let is_count = figures.starts_with(|first: char| first.is_ascii_digit());
        (is_time && is_count).then(|| Self::of_figures(figures.split(',')))
    }

    fn of_figures<'a>(figures: impl Iterator<Item = &'a str>) -> Self {
        let mut counts = Self::default();
        for figure in figures {
            let Some((number, word)) = figure.trim().split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match word.trim() {
                "passed" => counts.passed += number,
                "failed" | "timed out" | "exec failed" | "error" | "errors" => {
                    counts.failed += number
                }
                "skipped" | "ignored" | "xfailed" => counts.skipped += number,
                _ => {}
            }
        }
        counts
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// `text` without the escape sequences terminals understand as colours.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            characters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(character);
        }
    }
    plain
}

/// `text` without parentheses and their content.
fn without_parentheses(text: &str) -> String {
    let mut depth = 0_usize;
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(character),
            _ => {}
        }
    }
    plain
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
    fn colours_do_not_hide_a_summary() {
        let text = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.012s] \u{1b}[1m1\u{1b}[0m test run: \u{1b}[1m1\u{1b}[0m \
            \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m \u{1b}[33;1mskipped\u{1b}[0m";
        assert_eq!(
            read(text),
            Some(Counts {
                passed: 1,
                failed: 0,
                skipped: 0
            })
        );
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
