//! The public API of the crate `windrow` as text, so that reviews see each change of it.
//!
//! It is read from rustdoc's pages, which show every item under the names that users write, with
//! those of other crates that `windrow` exports. The toolchain is pinned, and the pages with it.

use std::{collections::HashMap, fmt::Write, fs, path::Path};

use anyhow::{Context, Result};

use super::pages;

/// The sections of a page that say nothing about the item alone: implementations that every type
/// has, and types that implement a trait, whose own pages say so.
const LEFT_OUT: [&str; 5] = [
    "id=\"synthetic-implementations\"",
    "id=\"blanket-implementations\"",
    "id=\"foreign-impls\"",
    "id=\"implementors\"",
    "id=\"synthetic-implementors\"",
];

/// One item after the other, each with its declaration, methods and traits, from the pages
/// in `docs`.
pub(super) fn text(docs: &Path) -> Result<String> {
    let mut found = Vec::new();
    for path in pages(docs)? {
        let failed = || format!("failed to read {path:?}");
        let page = fs::read_to_string(&path).with_context(failed)?;
        if let Some(item) = item(&page) {
            let name = path.strip_prefix(docs)?.with_extension("");
            found.push((name.to_string_lossy().replace('/', "::"), item));
        }
    }
    found.sort();
    // The shortest name is the one under which an item is shown; others refer to it.
    found.sort_by_key(|(name, _)| name.matches("::").count());
    let (mut text, mut known) = (String::new(), HashMap::new());
    for (name, item) in &found {
        match known.get(item) {
            Some(first) => writeln!(text, "{name} is {first}")?,
            None => {
                known.insert(item, name);
                writeln!(text, "{name}\n{item}")?;
            }
        }
    }
    Ok(text)
}

/// The item that a page describes, a line for each part; `None` for lists of items.
fn item(page: &str) -> Option<String> {
    let ends = LEFT_OUT.iter().filter_map(|section| page.find(section));
    let page = &page[..ends.min().unwrap_or(page.len())];
    let (_, rest) = page.split_once("<pre class=\"rust item-decl\"><code>")?;
    let (declaration, rest) = rest.split_once("</code></pre>")?;
    let mut text = String::new();
    let broken = declaration
        .replace("</div>", "\n")
        .replace("</summary>", "\n");
    for line in without_tags(&broken).lines() {
        // Where a page folds a long list, it says how long it is.
        let line = line.split_once("Show ").map_or(line, |(line, _)| line);
        if !line.trim().is_empty() {
            text.push_str("    ");
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    let mut is_trait = false;
    for part in rest.split(" class=\"code-header\">").skip(1) {
        let (part, _) = part.split_once("</h")?;
        let part = plain(part);
        // Methods of traits are known; types are chosen by who implements them.
        let is_header = part.starts_with("impl") || part.starts_with("unsafe impl");
        if is_header {
            is_trait = part.contains(" for ");
        }
        if is_header || part.starts_with("pub ") || (is_trait && part.starts_with("type ")) {
            text.push_str(if is_header { "    " } else { "        " });
            text.push_str(&part);
            text.push('\n');
        }
    }
    Some(text)
}

/// Text without tags, in one line.
fn plain(html: &str) -> String {
    let text = without_tags(&html.replace("<div", " <div"));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn without_tags(html: &str) -> String {
    let parts = html.split('<').enumerate();
    let text: String = parts
        .map(|(at, part)| match (at, part.split_once('>')) {
            (0, _) | (_, None) => part,
            (_, Some((_, after))) => after,
        })
        .collect();
    let text = text.replace("&lt;", "<").replace("&gt;", ">");
    let text = text.replace("&#39;", "'").replace("&quot;", "\"");
    text.replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::{item, plain};

    #[test]
    fn tags_and_line_breaks_are_left_out() {
        let html = "fn <a href=\"x.html\">get</a>(\n    &amp;self,\n) -&gt; <b>Vec</b>&lt;&amp;&#39;a u8&gt;";
        assert_eq!(plain(html), "fn get( &self, ) -> Vec<&'a u8>");
    }

    #[test]
    fn an_item_has_its_methods_and_the_names_of_its_traits() {
        let header = |text: &str| format!("<h4 class=\"code-header\">{text}</h4>");
        let page = [
            "<pre class=\"rust item-decl\"><code><div>#[must_use]</div>pub struct A {\n    pub b: u8,\n}</code></pre>",
            &header("impl A"),
            &header("pub fn a(&amp;self)"),
            &header("impl Iterator for A"),
            &header("type Item = u8"),
            &header("fn next(&amp;mut self) -&gt; Option&lt;u8&gt;"),
            "<h2 id=\"blanket-implementations\"></h2>",
            &header("impl&lt;T&gt; Any for T"),
        ];
        let text = "    #[must_use]\n    pub struct A {\n        pub b: u8,\n    }\n    impl A\n        pub fn a(&self)\n    \
            impl Iterator for A\n        type Item = u8\n";
        assert_eq!(item(&page.concat()).as_deref(), Some(text));
        assert_eq!(item("<h1>List of all items</h1>"), None);
    }
}
