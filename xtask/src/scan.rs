//! The tokens of a file of Rust: enough to measure functions, to look for words and to see which
//! module knows which, within macros too. Files of Python are measured by Python itself, with
//! `scan.py`.

mod items;
pub(crate) mod modules;
pub(crate) mod package;
mod source;

use std::ops::{Range, RangeInclusive};

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, LexError, TokenStream, TokenTree};
use serde::Deserialize;

#[cfg(test)]
pub(crate) use source::tests::read as read_files;
pub(crate) use source::{PYTHON, Source, is_test, python, read_by_python, relative, rust};

/// A word, a literal, a bracket or one letter of an operator.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// From 1.
    pub(crate) line: usize,
}

/// Tokens in their order, without comments.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens(pub(crate) Vec<Token>);

/// The lines of each literal of several lines, without the first one.
pub(crate) type Strings = Vec<RangeInclusive<usize>>;

/// One function with a body, or the signature of one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Line of its first word, from 1.
    pub(crate) line: usize,
    /// Lines of the signature: from its first word to the bracket or colon that opens the body.
    pub(crate) signature: usize,
    /// Lines from its first word to the end of its body, signature and docstring included; `None`
    /// without a body.
    pub(crate) lines: Option<usize>,
    /// Parameters that callers may give by position, without `self` and `cls`.
    pub(crate) positional: usize,
    /// Parameters that callers may give by name only; 0 in Rust.
    pub(crate) by_name: usize,
}

impl Function {
    pub(crate) fn parameters(&self) -> usize {
        self.positional + self.by_name
    }
}

impl Tokens {
    /// Reads a file, and where it has literals of several lines.
    pub(crate) fn read(text: &str) -> Result<(Self, Strings)> {
        let failed = |error: LexError| anyhow!("{error} in line {}", error.span().start().line);
        let stream = text.parse().map_err(failed)?;
        let (mut tokens, mut strings) = (Self::default(), Strings::new());
        tokens.flatten(stream, &mut strings);
        Ok((tokens, strings))
    }

    fn flatten(&mut self, stream: TokenStream, strings: &mut Strings) {
        for tree in stream {
            let (line, end) = (tree.span().start().line, tree.span().end().line);
            let TokenTree::Group(group) = tree else {
                strings.extend((end > line).then_some(line + 1..=end));
                self.push(&tree.to_string(), line);
                continue;
            };
            let (open, close) = match group.delimiter() {
                Delimiter::Parenthesis => ("(", ")"),
                Delimiter::Bracket => ("[", "]"),
                Delimiter::Brace => ("{", "}"),
                Delimiter::None => ("", ""),
            };
            self.push(open, line);
            self.flatten(group.stream(), strings);
            self.push(close, group.span_close().end().line);
        }
    }

    fn push(&mut self, text: &str, line: usize) {
        let text = text.to_owned();
        self.0.push(Token { text, line });
    }

    /// The text of a token, empty beyond the end.
    pub(crate) fn text(&self, at: usize) -> &str {
        self.0.get(at).map_or("", |token| &token.text)
    }

    /// Whether these texts follow each other from `at` on.
    pub(crate) fn follow(&self, at: usize, texts: &[&str]) -> bool {
        let mut texts = texts.iter().enumerate();
        texts.all(|(index, text)| self.text(at + index) == *text)
    }

    /// The places of `text`.
    pub(crate) fn find(&self, text: &str) -> impl Iterator<Item = usize> {
        let tokens = self.0.iter().enumerate();
        tokens.filter_map(move |(at, token)| (token.text == text).then_some(at))
    }

    /// Where the bracket that stands at `open` is closed.
    fn closing(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for at in open..self.0.len() {
            match self.text(at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        self.0.len()
    }

    /// The first of `texts` from `at` on that stands in no bracket and in no generics, and its
    /// place.
    fn first(&self, mut at: usize, texts: &[&str]) -> Option<usize> {
        let mut generics = 0_usize;
        while at < self.0.len() {
            let text = self.text(at);
            if generics == 0 && texts.contains(&text) {
                return Some(at);
            }
            match text {
                "(" | "[" | "{" => at = self.closing(at),
                ")" | "]" | "}" => return None,
                "<" => generics += 1,
                // The arrow of `Fn() -> T` closes nothing.
                ">" if at > 0 && self.text(at - 1) != "-" => generics = generics.saturating_sub(1),
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// The parts between the commas of the list whose bracket stands at `open`; nested lists and
    /// generics stay whole.
    fn items(&self, open: usize) -> Vec<Range<usize>> {
        let (mut from, close, mut found) = (open + 1, self.closing(open), Vec::new());
        while from < close {
            let end = self.first(from, &[","]).unwrap_or(close);
            found.push(from..end);
            from = end + 1;
        }
        found
    }

    /// The functions, those within functions included.
    pub(crate) fn functions(&self) -> Vec<Function> {
        self.find("fn").filter_map(|at| self.function(at)).collect()
    }

    fn function(&self, at: usize) -> Option<Function> {
        // The type of a pointer has no name, and that of a macro's function is unknown.
        let name = Some(self.text(at + 1)).filter(|name| is_word(name))?;
        let open = self.first(at + 2, &["("])?;
        let mut parameters = self.items(open);
        let is_receiver = |part: &Range<usize>| {
            let texts = part.clone().map(|at| self.text(at));
            let mut name = texts.take_while(|text| *text != ":");
            name.any(|text| text == "self")
        };
        if parameters.first().is_some_and(is_receiver) {
            parameters.remove(0);
        }
        let end = self.first(self.closing(open) + 1, &["{", ";"])?;
        let line = self.0[at].line;
        let span = |end: usize| self.0[end].line - line + 1;
        Some(Function {
            name: name.to_owned(),
            line,
            signature: span(end),
            lines: (self.text(end) == "{").then(|| span(self.closing(end))),
            positional: parameters.len(),
            by_name: 0,
        })
    }

    /// The names of the types that are defined here.
    pub(crate) fn types(&self) -> impl Iterator<Item = &str> {
        let keywords = ["struct", "enum", "union", "trait"];
        let places = (0..self.0.len()).filter(move |&at| keywords.contains(&self.text(at)));
        let names = places.map(|at| self.text(at + 1));
        names.filter(|name| name.starts_with(char::is_uppercase))
    }

    /// Drops the modules of unit tests and returns their lines.
    pub(crate) fn without_tests(mut self) -> (Self, Vec<RangeInclusive<usize>>) {
        let (mut kept, mut lines, mut from) = (Vec::new(), Vec::new(), 0);
        for at in self.find("#").collect::<Vec<_>>() {
            let is_test = self.follow(at, &["#", "[", "cfg", "(", "test"])
                || self.follow(at, &["#", "[", "cfg", "(", "all", "(", "test"]);
            let end = self.first(at, &["{", ";"]);
            let is_module = |end: &usize| self.text(end - 2) == "mod";
            if let Some(end) = end.filter(|end| is_test && at >= from && is_module(end)) {
                let close = self.closing(end);
                kept.extend_from_slice(&self.0[from..at]);
                lines.push(self.0[at].line..=self.0[close].line);
                from = close + 1;
            }
        }
        kept.extend(self.0.drain(from..));
        (Self(kept), lines)
    }
}

/// Whether a token is a name or a keyword.
pub(crate) fn is_word(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}

#[cfg(test)]
mod tests {
    use super::{Function, Tokens};

    /// A function of these lines in all and of its signature, and of parameters by position and by
    /// name.
    fn of(
        name: &str,
        line: usize,
        signature: usize,
        lines: Option<usize>,
        takes: [usize; 2],
    ) -> Function {
        let [positional, by_name] = takes;
        Function {
            name: name.to_owned(),
            line,
            signature,
            lines,
            positional,
            by_name,
        }
    }

    fn read(text: &str) -> Tokens {
        Tokens::read(text).expect("tokens of Rust").0
    }

    #[test]
    fn functions_of_rust_are_measured_with_their_signature() {
        let text = "\
//! fn no() {}
pub(crate) fn long<F: Fn(u8, u8) -> u8>(
    &mut self,
    (a, b): (u8, HashMap<u8, u8>),
    each: F,
) -> [u8; 3]
where
    F: Send,
{
    let s = \"}\"; // }
    fn inner(self: &Arc<Self>) { f() }
}
trait T { fn given(&self, a: u8, b: u8); }
type P = fn(u8) -> u8;
";
        assert_eq!(
            read(text).functions(),
            [
                of("long", 2, 8, Some(11), [2, 0]),
                of("inner", 11, 1, Some(1), [0, 0]),
                of("given", 13, 1, None, [2, 0]),
            ]
        );
    }

    #[test]
    fn functions_in_macros_are_measured() {
        let text = "options! {\n    fn f(a: u8) {\n    }\n}\nmacro_rules! m { ($n:ident) => { fn $n(a: u8) {} } }";
        assert_eq!(read(text).functions(), [of("f", 2, 1, Some(2), [1, 0])]);
    }

    #[test]
    fn comments_and_strings_hold_no_words() {
        let places = |text: &str| read(text).find("unsafe").count();
        for text in [
            "let q = '\"'; unsafe {}",
            "let q = '\\''; unsafe {}",
            "fn f<'a>(x: &'a str) { unsafe {} }",
            "br\"x\"; unsafe {}",
            "let a = \"unsafe\"; // unsafe\n/* unsafe /* nested */ unsafe */ let b = r#\"un\"safe\"#;\nunsafe {}",
        ] {
            assert_eq!(places(text), 1, "{text}");
        }
        assert_eq!(places("/// unsafe\n#![forbid(unsafe_code)]"), 0);
    }

    #[test]
    fn modules_of_unit_tests_are_left_out_and_nothing_else() {
        let lines = |text: &str| read(text).without_tests().1;
        for text in [
            "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    mod b {}\n}\nfn c() {}",
            "mod a {\n\n#[cfg(all(test, unix))]\nmod tests {\n\n}}",
            "\n\n#[cfg(test)]\n#[path = \"a_tests.rs\"]\n\nmod tests;",
        ] {
            assert_eq!(lines(text), [3..=6], "{text}");
        }
        let helper =
            "#[cfg(test)]\nfn f() {}\n#[cfg(not(test))]\nmod b {}\n#[derive(Debug)]\nstruct A;";
        assert!(lines(helper).is_empty());
        let (code, _) =
            read("fn a() {}\n#[cfg(test)]\nmod tests { fn b() {} }\nfn c() {}").without_tests();
        let names: Vec<_> = code
            .functions()
            .into_iter()
            .map(|function| function.name)
            .collect();
        assert_eq!(names, ["a", "c"]);
    }

    #[test]
    fn a_file_that_is_not_rust_is_refused() {
        let error = Tokens::read("fn f() {\n}\n}").expect_err("a bracket too many");
        assert!(error.to_string().ends_with("in line 3"), "{error}");
    }
}
