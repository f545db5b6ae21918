//! Just enough of Rust's grammar to look for words in code and not in comments or strings.

/// `text` with comments and the contents of strings turned into spaces; lines stay where they are.
pub(crate) fn blank(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < characters.len() {
        let end = match characters[at] {
            '/' if next_is(&characters, at, '/') => end_of_line(&characters, at),
            '/' if next_is(&characters, at, '*') => end_of_block(&characters, at),
            '"' => end_of_string(&characters, at),
            'r' if !continues_word(&characters, at) => {
                end_of_raw_string(&characters, at).unwrap_or(at)
            }
            '\'' => end_of_character(&characters, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            out.push(characters[at]);
            at += 1;
        } else {
            out.extend(
                characters[at..end]
                    .iter()
                    .map(|character| if *character == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    out
}

/// Numbers of the lines (from 1) that contain `word` as a word of its own.
pub(crate) fn lines_with(text: &str, word: &str) -> Vec<usize> {
    let has = |line: &str| {
        line.split(|letter: char| !is_of_word(letter))
            .any(|found| found == word)
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| has(line))
        .map(|(index, _)| index + 1)
        .collect()
}

/// The part before the module of unit tests: up to a `#[cfg(test)]` at the start of a line that `mod` follows.
pub(crate) fn without_unit_tests(text: &str) -> &str {
    let mut from = 0;
    while let Some(found) = text[from..].find("\n#[cfg(test)]\n") {
        let attribute = from + found + 1;
        let after = &text[attribute + "#[cfg(test)]\n".len()..];
        if after.starts_with("mod ")
            && !after.lines().next().is_some_and(|line| line.ends_with(';'))
        {
            return &text[..attribute];
        }
        from = attribute;
    }
    text
}

/// Numbers of the lines (from 1) that call `.step(` on something named like an environment: `env`, `envs`, `…_env`,
/// `…_envs`, with or without `as_mut()` and the like in between.
pub(crate) fn environment_steps(blanked: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    for (at, _) in blanked.match_indices(".step") {
        let is_call = blanked[at + ".step".len()..].trim_start().starts_with('(');
        if is_call && is_environment(receiver(&blanked[..at])) {
            lines.push(line_of(blanked, at));
        }
    }
    for (at, _) in blanked.match_indices("Env::step") {
        if blanked[at + "Env::step".len()..]
            .trim_start()
            .starts_with('(')
        {
            lines.push(line_of(blanked, at));
        }
    }
    lines.sort_unstable();
    lines
}

fn is_environment(name: &str) -> bool {
    matches!(name, "env" | "envs") || name.ends_with("_env") || name.ends_with("_envs")
}

/// The last name in an expression, without calls such as `as_mut()` that only borrow it.
fn receiver(before: &str) -> &str {
    let mut rest = before.trim_end();
    while let Some(call) = rest.strip_suffix("()") {
        let start = start_of_word(call);
        match (&call[start..], call[..start].trim_end().strip_suffix('.')) {
            ("as_mut" | "deref_mut" | "borrow_mut" | "get_mut", Some(inner)) => {
                rest = inner.trim_end()
            }
            _ => return "",
        }
    }
    &rest[start_of_word(rest)..]
}

fn start_of_word(text: &str) -> usize {
    text.char_indices()
        .rev()
        .take_while(|(_, letter)| is_of_word(*letter))
        .last()
        .map_or(text.len(), |(at, _)| at)
}

pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

pub(crate) fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn next_is(characters: &[char], at: usize, wanted: char) -> bool {
    characters.get(at + 1) == Some(&wanted)
}

fn continues_word(characters: &[char], at: usize) -> bool {
    // `br"…"` and `cr"…"` are strings too.
    let is_prefix = |at: usize| {
        matches!(characters[at], 'b' | 'c') && (at == 0 || !is_of_word(characters[at - 1]))
    };
    at > 0 && is_of_word(characters[at - 1]) && !is_prefix(at - 1)
}

fn end_of_line(characters: &[char], at: usize) -> usize {
    characters[at..]
        .iter()
        .position(|character| *character == '\n')
        .map_or(characters.len(), |length| at + length)
}

fn end_of_block(characters: &[char], at: usize) -> usize {
    let (mut depth, mut now) = (0_usize, at);
    while now < characters.len() {
        match (characters[now], characters.get(now + 1)) {
            ('/', Some('*')) => (depth, now) = (depth + 1, now + 2),
            ('*', Some('/')) => (depth, now) = (depth - 1, now + 2),
            _ => now += 1,
        }
        if depth == 0 {
            return now;
        }
    }
    characters.len()
}

fn end_of_string(characters: &[char], at: usize) -> usize {
    let mut now = at + 1;
    while now < characters.len() {
        match characters[now] {
            '\\' => now += 2,
            '"' => return now + 1,
            _ => now += 1,
        }
    }
    characters.len()
}

fn end_of_raw_string(characters: &[char], at: usize) -> Option<usize> {
    let hashes = characters[at + 1..]
        .iter()
        .take_while(|character| **character == '#')
        .count();
    let open = at + 1 + hashes;
    if characters.get(open) != Some(&'"') {
        return None;
    }
    let closes = |now: &usize| {
        characters[*now] == '"'
            && characters[now + 1..]
                .iter()
                .take_while(|character| **character == '#')
                .count()
                >= hashes
    };
    Some(
        (open + 1..characters.len())
            .find(closes)
            .map_or(characters.len(), |quote| quote + 1 + hashes),
    )
}

/// A character such as `'"'`, as opposed to a lifetime.
fn end_of_character(characters: &[char], at: usize) -> Option<usize> {
    if next_is(characters, at, '\\') {
        let close = characters
            .get(at + 3..)?
            .iter()
            .position(|character| *character == '\'')?;
        return Some(at + 3 + close + 1);
    }
    (characters.get(at + 2) == Some(&'\'')).then_some(at + 3)
}

#[cfg(test)]
mod tests {
    use super::{blank, environment_steps, lines_with, without_unit_tests};

    #[test]
    fn comments_and_strings_are_blanked() {
        let text = "let a = \"unsafe\"; // unsafe\n/* unsafe /* nested */ unsafe */ let b = r#\"un\"safe\"#;\nunsafe {}";
        let blanked = blank(text);
        assert_eq!(lines_with(&blanked, "unsafe"), [3]);
        assert_eq!(blanked.lines().count(), text.lines().count());
        assert!(blanked.contains("let b = "));
    }

    #[test]
    fn quotes_in_characters_open_no_string() {
        for text in [
            "let q = '\"'; unsafe {}",
            "let q = '\\''; unsafe {}",
            "fn f<'a>(x: &'a str) { unsafe {} }",
            "br\"x\"; unsafe {}",
        ] {
            assert_eq!(lines_with(&blank(text), "unsafe"), [1], "{text}");
        }
    }

    #[test]
    fn words_are_whole() {
        assert!(lines_with("#![forbid(unsafe_code)]", "unsafe").is_empty());
        assert_eq!(lines_with("a\nunsafe fn", "unsafe"), [2]);
    }

    #[test]
    fn unit_tests_do_not_count() {
        assert_eq!(
            without_unit_tests("fn a() {}\n\n#[cfg(test)]\nmod tests {\n}\n"),
            "fn a() {}\n\n"
        );
        let helper = "fn a() {}\n#[cfg(test)]\nmod tests;\nfn b() {}\n";
        assert_eq!(without_unit_tests(helper), helper);
    }

    #[test]
    fn steps_of_environments_are_told_from_other_steps() {
        let steps = |text: &str| environment_steps(&blank(text)).len();
        for text in [
            "env.step(a)",
            "self.env.as_mut().step(a)",
            "vec_env\n    .step(a)",
            "VecEnv::step(env, a)",
            "envs.step (a)",
        ] {
            assert_eq!(steps(text), 1, "{text}");
        }
        for text in [
            "part.step(t)",
            "cursor.step(1)",
            "env.stepper(a)",
            "// env.step(a)",
            "make().step(a)",
            "environment_count.step(a)",
        ] {
            assert_eq!(steps(text), 0, "{text}");
        }
    }
}
