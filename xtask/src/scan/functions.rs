//! The functions of a file: their places, lengths and parameters.

use super::{python, rust};

/// One function with a body, or the signature of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Line of its first word, from 1.
    pub(crate) line: usize,
    /// Lines of the signature: from its first word to the bracket or colon that opens the body.
    pub(crate) signature: usize,
    /// Lines from its first word to the end of its body, signature and docstring included; `None` without a body.
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

/// The functions of a file of Rust, those within functions included.
pub(crate) fn in_rust(text: &str) -> Vec<Function> {
    let blanked = rust::blank(text);
    let starts = words(&blanked, "fn");
    starts
        .filter_map(|at| rust_function(&blanked, at))
        .collect()
}

fn rust_function(text: &str, at: usize) -> Option<Function> {
    let rest = &text[at + "fn".len()..];
    // The type of a pointer has no name, and that of a macro's function is unknown.
    let name = word_at(rest.trim_start())?;
    let after_name = text.len() - rest.trim_start().len() + name.len();
    let open = after_generics(text, after_name)?;
    let close = closing(text, open)?;
    let mut parameters = items(&text[open + 1..close]);
    if parameters.first().is_some_and(|first| is_receiver(first)) {
        parameters.remove(0);
    }
    let (end_of_signature, has_body) = body(text, close + 1)?;
    let last = has_body.then(|| closing(text, end_of_signature));
    let line = rust::line_of(text, at);
    let span = |end: usize| rust::line_of(text, end) - line + 1;
    Some(Function {
        name: name.to_owned(),
        line,
        signature: span(end_of_signature),
        lines: last.flatten().map(span),
        positional: parameters.len(),
        by_name: 0,
    })
}

/// Where the list of parameters opens, after the generics.
fn after_generics(text: &str, from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (offset, letter) in text[from..].char_indices() {
        match letter {
            '<' => depth += 1,
            // The arrow of `Fn() -> T` closes nothing.
            '>' if before != '-' => depth = depth.saturating_sub(1),
            '(' if depth == 0 => return Some(from + offset),
            _ => {}
        }
        before = letter;
    }
    None
}

/// Where the body opens, or the semicolon in place of one.
fn body(text: &str, from: usize) -> Option<(usize, bool)> {
    let mut depth = 0_usize;
    for (offset, letter) in text[from..].char_indices() {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '{' if depth == 0 => return Some((from + offset, true)),
            ';' if depth == 0 => return Some((from + offset, false)),
            _ => {}
        }
    }
    None
}

fn is_receiver(parameter: &str) -> bool {
    let name = parameter.split(':').next().unwrap_or_default();
    name.split(|letter: char| !rust::is_of_word(letter))
        .any(|word| word == "self")
}

/// The functions of a file of Python, those within functions included.
pub(crate) fn in_python(text: &str) -> Vec<Function> {
    let source = python::Source::read(text);
    let starts = source.logical_lines();
    starts
        .filter_map(|line| python_function(&source, line))
        .collect()
}

fn python_function(source: &python::Source, line: usize) -> Option<Function> {
    let code = source.line(line).trim_start();
    let definition = code.strip_prefix("async ").unwrap_or(code).trim_start();
    let name = word_at(definition.strip_prefix("def ")?.trim_start())?;
    let from = source.start_of(line);
    let open = from + source.code[from..].find('(')?;
    let close = closing(&source.code, open)?;
    let colon = close + source.code[close..].find(':')?;
    let signature = rust::line_of(&source.code, colon) - line + 1;
    let (mut positional, mut by_name, mut only_names) = (0, 0, false);
    for (index, parameter) in items(&source.code[open + 1..close]).into_iter().enumerate() {
        match parameter.trim() {
            "/" => {}
            "*" => only_names = true,
            first if index == 0 && matches!(word_at(first), Some("self" | "cls")) => {}
            rest if rest.starts_with("**") => by_name += 1,
            rest if rest.starts_with('*') => (positional, only_names) = (positional + 1, true),
            _ if only_names => by_name += 1,
            _ => positional += 1,
        }
    }
    Some(Function {
        name: name.to_owned(),
        line,
        signature,
        lines: Some(source.end_of_block(line, signature) - line + 1),
        positional,
        by_name,
    })
}

/// Where `word` stands as a word of its own.
pub(super) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_edge = |letter: Option<char>| letter.is_none_or(|letter| !rust::is_of_word(letter));
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            is_edge(text[..at].chars().next_back())
                && is_edge(text[at + word.len()..].chars().next())
        })
}

/// The word that `text` begins with.
pub(super) fn word_at(text: &str) -> Option<&str> {
    let end = text
        .find(|letter: char| !rust::is_of_word(letter))
        .unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

/// Where the bracket that stands at `open` is closed.
pub(super) fn closing(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (offset, letter) in text[open..].char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(open + offset);
        }
    }
    None
}

/// The non-empty parts of a list between its own commas; nested lists and generics stay whole.
pub(super) fn items(list: &str) -> Vec<&str> {
    let (mut depth, mut from, mut before) = (0_i32, 0, ' ');
    let mut found = Vec::new();
    for (at, letter) in list.char_indices() {
        match letter {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
        before = letter;
    }
    found.push(&list[from..]);
    found.retain(|item| !item.trim().is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::{Function, in_python, in_rust};

    /// A function of these lines in all and of its signature, and of parameters by position and by name.
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
            in_rust(text),
            [
                of("long", 2, 8, Some(11), [2, 0]),
                of("inner", 11, 1, Some(1), [0, 0]),
                of("given", 13, 1, None, [2, 0]),
            ]
        );
    }

    #[test]
    fn functions_of_python_are_measured_with_their_docstring() {
        let text = "\
class A:
    def f(
        self,
        a: dict[str, int],
        b=(1, 2),
        /,
        *,
        c: str = \"a, b)\",
        **rest,
    ) -> int:
        '''Says
no def g(): here.
        '''
        return max(
    1, 2)

    # About the next.
    async def g(cls, *args): pass

    @property
    def h(self):
        if self:
            return 1

x = 1
";
        assert_eq!(
            in_python(text),
            [
                of("f", 2, 9, Some(14), [2, 2]),
                of("g", 18, 1, Some(1), [1, 0]),
                of("h", 21, 1, Some(3), [0, 0]),
            ]
        );
    }
}
