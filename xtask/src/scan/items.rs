//! Counts of statements, public items with their documentation, and variants of errors in a file of
//! Rust. They come from its tokens, so denser formatting does not change them.

use super::{Tokens, is_word};

/// Words that begin an item or a branch with a block. `for` is one of them in loops only, `fn` with
/// a name only.
const BLOCKS: [&str; 10] = [
    "enum", "fn", "for", "if", "impl", "loop", "match", "struct", "trait", "while",
];

/// Keywords of public items; modules and re-exports are none.
const ITEMS: [&str; 8] = [
    "const", "enum", "fn", "static", "struct", "trait", "type", "union",
];

/// Those of types.
const TYPES: [&str; 5] = ["enum", "struct", "trait", "type", "union"];

/// An item that is `pub`, whether or not its crate exports it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Public<'a> {
    keyword: &'a str,
    pub(crate) name: &'a str,
    /// Lines of its documentation.
    pub(crate) documentation: usize,
}

impl Public<'_> {
    pub(crate) fn is_type(&self) -> bool {
        TYPES.contains(&self.keyword)
    }
}

impl Tokens {
    /// The number of statements: semicolons outside of square brackets, arms of `match` and of
    /// macros, and words that begin an item or a branch. Fields, variants and expressions at the
    /// end of a block do not count.
    pub(crate) fn statements(&self) -> usize {
        let (mut count, mut brackets) = (0, Vec::new());
        for at in 0..self.0.len() {
            let counts = match self.text(at) {
                open @ ("(" | "[" | "{") => {
                    brackets.push(open);
                    false
                }
                ")" | "]" | "}" => {
                    brackets.pop();
                    false
                }
                ";" => brackets.last() != Some(&"["),
                "=" => self.text(at + 1) == ">",
                "fn" => is_word(self.text(at + 1)),
                "for" => self
                    .first(at + 1, &["in", "{", ";"])
                    .is_some_and(|end| self.text(end) == "in"),
                word => BLOCKS.contains(&word),
            };
            count += usize::from(counts);
        }
        count
    }

    /// The public items that have a name here.
    pub(crate) fn public(&self) -> Vec<Public<'_>> {
        let item = |at: usize| {
            let is_before = |at: &usize| match self.text(*at) {
                "async" | "extern" | "unsafe" => true,
                "const" => matches!(self.text(at + 1), "async" | "extern" | "fn" | "unsafe"),
                text => text.starts_with('"'),
            };
            let keyword = (at + 1..self.0.len()).find(|at| !is_before(at))?;
            let (keyword, name) = (self.text(keyword), self.text(keyword + 1));
            (ITEMS.contains(&keyword) && is_word(name)).then(|| Public {
                keyword,
                name,
                documentation: self
                    .attributes(at)
                    .filter(|open| self.follow(open + 1, &["doc", "="]))
                    .count(),
            })
        };
        self.find("pub").filter_map(item).collect()
    }

    /// The enums of errors, known by their names or because they derive `Error`, each with its
    /// number of variants.
    pub(crate) fn errors(&self) -> Vec<(&str, usize)> {
        let error = |at: usize| {
            let name = self.text(at + 1);
            let open = self.first(at + 2, &["{"])?;
            let start = (0..at)
                .rev()
                .find(|at| matches!(self.text(*at), ";" | "{" | "}"));
            let start = start.map_or(0, |start| start + 1);
            let visibility = (start..at).find(|at| self.text(*at) == "pub").unwrap_or(at);
            let derives = |open: usize| {
                let mut inside = open + 1..self.closing(open);
                self.text(open + 1) == "derive" && inside.any(|at| self.text(at) == "Error")
            };
            let is_error = name.ends_with("Error") || self.attributes(visibility).any(derives);
            (is_word(name) && is_error).then(|| (name, self.items(open).len()))
        };
        self.find("enum").filter_map(error).collect()
    }

    /// The opening brackets of the attributes that stand directly before `at`, the last one
    /// first.
    fn attributes(&self, mut at: usize) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || {
            let close = at.checked_sub(1).filter(|close| self.text(*close) == "]")?;
            let open = self.opening(close)?;
            at = open.checked_sub(1).filter(|sign| self.text(*sign) == "#")?;
            Some(open)
        })
    }

    /// The place of the bracket that opens what `close` closes.
    fn opening(&self, close: usize) -> Option<usize> {
        let mut depth = 0_usize;
        (0..=close).rev().find(|at| {
            match self.text(*at) {
                ")" | "]" | "}" => depth += 1,
                "(" | "[" | "{" => depth -= 1,
                _ => {}
            }
            depth == 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Tokens;

    fn read(text: &str) -> Tokens {
        Tokens::read(text).expect("tokens of Rust").0
    }

    #[test]
    fn denser_formatting_has_as_many_statements() {
        let wide = "\
impl A for B {
    fn f(
        &self,
        g: fn(u8),
    ) -> [u8; 3] {
        for x in [0; 3] {
            if x > 1 {
                g(x);
            }
        }
        match self.0 {
            0 => {
                [0; 3]
            }
            _ => [1; 3],
        }
    }
}
";
        let dense = "impl A for B { fn f(&self, g: fn(u8)) -> [u8; 3] { for x in [0; 3] { if x > 1 { g(x); } } match self.0 { 0 => [0; 3], _ => [1; 3] } } }";
        // impl, fn, for, if, the call, match and two arms.
        assert_eq!([wide, dense].map(|text| read(text).statements()), [8, 8]);
    }

    #[test]
    fn semicolons_of_arrays_and_words_in_prose_are_no_statements() {
        let text = "//! if x;\nconst A: [u8; 2] = [0; 2]; // match\nconst B: &str = \"if; for\";";
        assert_eq!(read(text).statements(), 2);
    }

    #[test]
    fn public_items_have_the_lines_directly_before_them() {
        let text = "\
//! Of the file.
/// One.
///
/// Three.
#[derive(Debug)]
pub struct A {
    /// Of a field.
    pub field: u8,
}
pub const unsafe extern \"C\" fn f() {}
/// Private.
pub(crate) enum B {}
pub use a::C;
pub mod d;
/// One.
pub const E: [u8; 1] = [0];
macro_rules! m { ($name:ident) => { pub struct $name; } }
";
        let code = read(text);
        let items = code.public();
        let items: Vec<_> = items
            .iter()
            .map(|item| (item.name, item.documentation, item.is_type()))
            .collect();
        assert_eq!(items, [("A", 3, true), ("f", 0, false), ("E", 1, false)]);
    }

    #[test]
    fn enums_of_errors_are_known_by_their_name_or_by_what_they_derive() {
        let text = "\
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Failure {
    #[error(\"a, {b}\")]
    A { b: u8, c: HashMap<u8, u8> },
    /// B.
    B(#[source] io::Error, u8),
    C,
}
enum ReadError { A, B }
#[derive(Debug, Error)]
struct D;
#[derive(Debug)]
enum Other { A, Error }
";
        assert_eq!(read(text).errors(), [("Failure", 3), ("ReadError", 2)]);
    }
}
