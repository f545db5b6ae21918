//! Just enough of Python's grammar to see where code is, and which lines belong together.

/// A file, with comments and the contents of strings turned into spaces.
#[derive(Debug)]
pub(crate) struct Source {
    /// As long as the text, line by line; quotation marks stay.
    pub(crate) code: String,
    /// Where each line starts in `code`.
    starts: Vec<usize>,
    /// Whether each line begins inside a string or a bracket.
    continues: Vec<bool>,
    /// Whether each line holds nothing but a comment, or a part of a docstring.
    prose: Vec<bool>,
}

impl Source {
    pub(crate) fn read(text: &str) -> Self {
        let letters: Vec<char> = text.chars().collect();
        let mut source = Self {
            code: String::with_capacity(text.len()),
            starts: vec![0],
            continues: vec![false],
            prose: vec![false],
        };
        let (mut at, mut depth) = (0, 0_usize);
        while at < letters.len() {
            match letters[at] {
                '#' => {
                    let end = end_of_line(&letters, at);
                    let alone = source.line(source.starts.len()).trim().is_empty();
                    source.mark_prose(alone);
                    source.blank(&letters[at..end]);
                    at = end;
                }
                quote @ ('"' | '\'') => {
                    let end = end_of_string(&letters, at, quote);
                    let is_docstring =
                        depth == 0 && source.line(source.starts.len()).trim().is_empty();
                    source.mark_prose(is_docstring);
                    source.string(&letters[at..end], is_docstring);
                    at = end;
                }
                letter => {
                    match letter {
                        '(' | '[' | '{' => depth += 1,
                        ')' | ']' | '}' => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    source.code.push(letter);
                    at += 1;
                    if letter == '\n' {
                        source.begin_line(depth > 0, false);
                    }
                }
            }
        }
        source
    }

    /// Numbers of the lines, from 1, that begin a statement.
    pub(crate) fn logical_lines(&self) -> impl Iterator<Item = usize> + '_ {
        (1..=self.starts.len())
            .filter(|&line| !self.continues[line - 1] && !self.line(line).trim().is_empty())
    }

    /// The code of a line.
    pub(crate) fn line(&self, line: usize) -> &str {
        self.code[self.start_of(line)..]
            .lines()
            .next()
            .unwrap_or("")
    }

    /// Where a line starts.
    pub(crate) fn start_of(&self, line: usize) -> usize {
        self.starts[line - 1]
    }

    /// The last line of the block that a statement of `signature` lines at `line` opens.
    pub(crate) fn end_of_block(&self, line: usize, signature: usize) -> usize {
        let own = indent(self.line(line));
        let body = line + signature;
        let next = self
            .logical_lines()
            .find(|&other| other >= body && indent(self.line(other)) <= own);
        let mut end = next.unwrap_or(self.starts.len() + 1) - 1;
        // Blank lines and comments after the last statement belong to the next block.
        while end >= body && !self.continues[end - 1] && self.line(end).trim().is_empty() {
            end -= 1;
        }
        end
    }

    /// Lines of comments and docstrings.
    pub(crate) fn prose(&self) -> usize {
        self.prose.iter().filter(|prose| **prose).count()
    }

    fn begin_line(&mut self, continues: bool, prose: bool) {
        self.starts.push(self.code.len());
        self.continues.push(continues);
        self.prose.push(prose);
    }

    fn mark_prose(&mut self, is_prose: bool) {
        if let Some(last) = self.prose.last_mut() {
            *last |= is_prose;
        }
    }

    fn blank(&mut self, letters: &[char]) {
        self.code.extend(letters.iter().map(|_| ' '));
    }

    fn string(&mut self, letters: &[char], is_docstring: bool) {
        let last = letters.len().saturating_sub(1);
        for (index, letter) in letters.iter().enumerate() {
            match letter {
                '\n' => {
                    self.code.push('\n');
                    self.begin_line(true, is_docstring);
                }
                quote if index == 0 || index == last => self.code.push(*quote),
                _ => self.code.push(' '),
            }
        }
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn end_of_line(letters: &[char], at: usize) -> usize {
    let length = letters[at..].iter().position(|letter| *letter == '\n');
    length.map_or(letters.len(), |length| at + length)
}

fn end_of_string(letters: &[char], at: usize, quote: char) -> usize {
    let is_triple = |at: usize| letters[at..].starts_with(&[quote; 3]);
    let triple = is_triple(at);
    let mut now = at + if triple { 3 } else { 1 };
    while now < letters.len() {
        match letters[now] {
            '\\' => now += 2,
            _ if triple && is_triple(now) => return now + 3,
            letter if !triple && letter == quote => return now + 1,
            // An unclosed string ends with its line.
            '\n' if !triple => return now,
            _ => now += 1,
        }
    }
    letters.len()
}

#[cfg(test)]
mod tests {
    use super::Source;

    #[test]
    fn strings_and_comments_are_no_code() {
        let source = Source::read("a = 'def \\' #'  # def\nb = '''\ndef c():\n'''\nd = 1\n");
        assert!(!source.code.contains("def"));
        assert_eq!(source.logical_lines().collect::<Vec<_>>(), [1, 2, 5]);
    }

    #[test]
    fn lines_of_comments_and_docstrings_are_counted() {
        let text = "'''Module.\n\nMore.'''\n# why\nx = '''no\ndocs'''  # beside code\n\ndef f():\n    'Says.'\n";
        assert_eq!(Source::read(text).prose(), 5);
    }
}
