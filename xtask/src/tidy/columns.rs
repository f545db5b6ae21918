//! Comments and documentation of Rust and Python have at most 100 columns.
//!
//! A line is too long if it has more characters and its text could go on in the next line: if there
//! is a space before that column which stands after the first word and outside of a code span.
//! Tables, definitions of links, what stands in fences, doctests with what they print, literal
//! blocks of docstrings and comments for tools are left as they are.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Findings;
use crate::scan::{Source, read_by_python};

/// Most characters of a line.
const COLUMNS: usize = 100;

/// Folders with Python.
const FOLDERS: [&str; 6] = ["crates", "docs", "examples", "python", "tests", "xtask"];

/// Beginnings of comments that tools read.
const PRAGMAS: [&str; 6] = ["fmt:", "mypy:", "noqa", "pyright:", "ruff:", "type:"];

/// The lines of one comment or docstring: their numbers, from 1, and the columns, from 0, at which
/// their texts begin.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    kind: Kind,
    lines: Vec<(usize, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rust,
    PythonComment,
    Docstring,
}

/// The places of prose in a file of Python.
#[derive(Debug, Deserialize)]
struct Python {
    path: String,
    /// Lines from 1 and columns from 0.
    comments: Vec<(usize, usize)>,
    /// First and last lines.
    docstrings: Vec<(usize, usize)>,
}

/// Checks `sources` of Rust, and all files of Python of the tree at `root`; tests included.
pub(super) fn check(root: &Path, sources: &[Source], findings: &mut Findings) -> Result<()> {
    let mut too_long = |path: &str, text: &str, blocks: &[Block]| {
        let lines = too_long(text, blocks).into_iter();
        let problems = lines.map(|(line, length)| {
            format!("{path}:{line}: expected at most {COLUMNS} columns of prose, got {length}")
        });
        findings.problems.extend(problems);
    };
    for source in sources.iter().filter(|source| !source.is_python()) {
        too_long(&source.path, &source.text, &of_rust(source));
    }
    let folders: Vec<_> = FOLDERS
        .into_iter()
        .filter(|folder| root.join(folder).is_dir())
        .collect();
    let python: Vec<Python> = read_by_python(root, "prose.py", &folders)?;
    for file in python {
        let text = std::fs::read_to_string(root.join(&file.path));
        let text = text.with_context(|| format!("failed to read {}", file.path))?;
        too_long(&file.path, &text, &of_python(&file));
    }
    Ok(())
}

/// The comments of a file of Rust that have lines of their own, those within macros included.
fn of_rust(source: &Source) -> Vec<Block> {
    let (mut blocks, mut before) = (Vec::<Block>::new(), (0, ""));
    for (at, line) in source.text.lines().enumerate() {
        let number = at + 1;
        let text = line.trim_start();
        if !text.starts_with("//") || source.strings.iter().any(|lines| lines.contains(&number)) {
            continue;
        }
        let rest = text.trim_start_matches(['/', '!']);
        let marker = &text[..text.len() - rest.len()];
        let place = (number, line.chars().count() - rest.chars().count());
        match blocks.last_mut() {
            Some(block) if before == (at, marker) => block.lines.push(place),
            _ => blocks.push(Block {
                kind: Kind::Rust,
                lines: vec![place],
            }),
        }
        before = (number, marker);
    }
    blocks
}

fn of_python(file: &Python) -> Vec<Block> {
    let mut blocks = Vec::<Block>::new();
    for &(line, column) in &file.comments {
        let place = (line, column + 1);
        match blocks.last_mut() {
            Some(block) if block.lines.last() == Some(&(line - 1, column + 1)) => {
                block.lines.push(place);
            }
            _ => blocks.push(Block {
                kind: Kind::PythonComment,
                lines: vec![place],
            }),
        }
    }
    blocks.extend(file.docstrings.iter().map(|(first, last)| Block {
        kind: Kind::Docstring,
        lines: (*first..=*last).map(|line| (line, 0)).collect(),
    }));
    blocks
}

/// The lines of `text` that are too long, and their lengths.
fn too_long(text: &str, blocks: &[Block]) -> Vec<(usize, usize)> {
    let all: Vec<Vec<char>> = text
        .lines()
        .map(|line| line.trim_end().chars().collect())
        .collect();
    let mut found = Vec::new();
    for block in blocks {
        let mut as_it_is = AsItIs::default();
        for &(number, from) in &block.lines {
            let line = &all[number - 1];
            let text: String = line.iter().skip(from).collect();
            let may_be = !as_it_is.covers(block.kind, &text);
            if may_be && line.len() > COLUMNS && breaks(line, from) {
                found.push((number, line.len()));
            }
        }
    }
    found.sort_unstable();
    found
}

/// Whether the text of a line, which begins at `from`, has a space at which it may be broken.
fn breaks(line: &[char], from: usize) -> bool {
    let (mut has_word, mut in_code) = (false, false);
    let Some(text) = line.get(from..=COLUMNS) else {
        return false;
    };
    // The mark of an item of a list stays with its first word.
    let indent = text
        .iter()
        .take_while(|letter| letter.is_whitespace())
        .count();
    let mark = text[indent..]
        .iter()
        .take_while(|letter| !letter.is_whitespace())
        .count();
    let is_mark = match &text[indent..indent + mark] {
        ['-' | '*' | '+' | '>'] => true,
        [number @ .., '.' | ')'] => number.iter().all(char::is_ascii_digit),
        _ => false,
    };
    let start = if is_mark { indent + mark } else { indent };
    text[start..].iter().any(|letter| {
        in_code ^= *letter == '`';
        has_word |= !letter.is_whitespace();
        has_word && !in_code && letter.is_whitespace()
    })
}

/// The state of a block before a line, which says whether the line is to be left as it is.
#[derive(Debug, Default)]
struct AsItIs {
    in_fence: bool,
    /// In a doctest or in what it prints, up to an empty line.
    is_printed: bool,
    /// The indent of the line that ended with `::`; lines that are indented more are as they are.
    literal: Option<usize>,
}

impl AsItIs {
    /// Whether the next line of a block of `kind` is to be left as it is.
    fn covers(&mut self, kind: Kind, line: &str) -> bool {
        let text = line.trim();
        let is_fence = text.starts_with("```") || text.starts_with("~~~");
        if is_fence || self.in_fence {
            self.in_fence ^= is_fence;
            return true;
        }
        if kind == Kind::Docstring && self.covers_docstring(line, text) {
            return true;
        }
        let is_pragma = || PRAGMAS.iter().any(|pragma| text.starts_with(pragma));
        let is_link = text.starts_with('[') && text.contains("]: ");
        text.starts_with('|') || is_link || kind == Kind::PythonComment && is_pragma()
    }

    fn covers_docstring(&mut self, line: &str, text: &str) -> bool {
        let indent = line.len() - line.trim_start().len();
        self.is_printed = !text.is_empty() && (self.is_printed || text.starts_with(">>>"));
        if self.is_printed || text.is_empty() || self.literal.is_some_and(|at| indent > at) {
            return true;
        }
        self.literal = text.ends_with("::").then_some(indent);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{Block, Kind, Python, of_python, of_rust, too_long};
    use crate::scan::Source;

    /// Words of one letter, the last one of one or two.
    fn words(columns: usize) -> String {
        "a ".repeat((columns - 1) / 2) + &"a".repeat(2 - columns % 2)
    }

    fn rust(text: &str) -> Vec<usize> {
        let source = Source::of_rust("a.rs".to_owned(), text.to_owned()).expect("tokens of Rust");
        numbers(text, &of_rust(&source))
    }

    fn docstring(text: &str) -> Vec<usize> {
        let lines = (1..=text.lines().count()).map(|line| (line, 0)).collect();
        numbers(
            text,
            &[Block {
                kind: Kind::Docstring,
                lines,
            }],
        )
    }

    fn numbers(text: &str, blocks: &[Block]) -> Vec<usize> {
        too_long(text, blocks)
            .into_iter()
            .map(|(line, _)| line)
            .collect()
    }

    #[test]
    fn a_hundred_columns_are_fine_and_one_more_is_not() {
        for marker in ["// ", "/// ", "//! "] {
            let text = |columns: usize| format!("{marker}{}", words(columns - marker.len()));
            assert!(rust(&text(100)).is_empty(), "{marker}");
            assert_eq!(rust(&text(101)), [1], "{marker}");
        }
        let macros = format!("m! {{\n    /// {}\n    A,\n}}", words(95));
        assert_eq!(rust(&macros), [2]);
    }

    #[test]
    fn characters_are_counted_and_not_bytes() {
        let text = |count: usize| format!("// … {}", "é ".repeat(count).trim_end());
        assert!(rust(&text(48)).is_empty());
        assert_eq!(rust(&text(49)), [1]);
    }

    #[test]
    fn a_line_that_is_one_word_stays() {
        let word = "a".repeat(100);
        for text in [
            format!("// {word}"),
            format!("/// - {word}"),
            format!("/// 12. {word} and more"),
            format!("/// `{} b`", "a ".repeat(50)),
            format!("/// [`A b`]: {word}"),
            format!("fn f() {{}} // {}", words(101)),
        ] {
            assert!(rust(&text).is_empty(), "{text}");
        }
        assert_eq!(rust(&format!("/// See {word}")), [1]);
        assert_eq!(rust(&format!("/// - see {word}")), [1]);
    }

    #[test]
    fn fences_tables_and_strings_stay() {
        let long = words(101);
        let text = format!(
            "/// ```\n/// {long}\n/// ```\n/// | {long} |\n/// {long}\nconst A: &str = \"\\\n// {long}\n\";\n// ```\n/// {long}"
        );
        assert_eq!(rust(&text), [5, 10]);
    }

    #[test]
    fn doctests_and_literal_blocks_of_a_docstring_stay() {
        let long = words(101);
        let text = format!(
            "\"\"\"A.\n\n    >>> a\n    {long}\n\n    {long}\n\nB::\n\n    {long}\n\n    {long}\n\n{long}\n\"\"\""
        );
        assert_eq!(docstring(&text), [6, 14]);
        assert_eq!(docstring(&format!("\"\"\"{long}\"\"\"")), [1]);
    }

    #[test]
    fn comments_of_python_that_tools_read_stay() {
        let long = words(101);
        let text = format!("# {long}\n# noqa: {long}\nx = 1  # {long}\n#: {long}");
        let file = Python {
            path: String::new(),
            comments: vec![(1, 0), (2, 0), (3, 7), (4, 0)],
            docstrings: Vec::new(),
        };
        assert_eq!(numbers(&text, &of_python(&file)), [1, 3, 4]);
    }
}
