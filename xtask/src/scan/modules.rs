//! Which module of a crate knows which: the files that a file names in paths from `crate`, `super`, `self` or a child
//! module.
//!
//! A path leads to the file with the definition: re-exports (`pub use`) are followed, and a re-export itself does not count
//! as knowledge. Unit tests are not counted.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    functions::{closing, items, word_at, words},
    rust,
};

/// A path of modules from the root of the crate, which is empty itself.
pub(crate) type Module = Vec<String>;

/// The files of one crate, and the paths that each of them names.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// Modules with a file of their own.
    modules: BTreeMap<Module, File>,
}

#[derive(Debug, Default)]
struct File {
    /// Names that it re-exports, and the paths that they stand for.
    reexports: BTreeMap<String, Module>,
    /// Paths that it names, as written: they begin with `crate`, `self`, `super` or a name of the file.
    paths: Vec<Module>,
}

impl Graph {
    /// The graph of the files of a `src` folder: paths relative to it, and texts.
    pub(crate) fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut modules = BTreeMap::new();
        for (path, text) in files {
            let Some(path) = path.strip_suffix(".rs") else {
                continue;
            };
            let mut module: Module = path.split('/').map(str::to_owned).collect();
            module.pop_if(|last| matches!(last.as_str(), "lib" | "main" | "mod"));
            modules.insert(module, File::read(text));
        }
        Self { modules }
    }

    /// Every pair of modules of which the first knows the second.
    pub(crate) fn edges(&self) -> BTreeSet<(Module, Module)> {
        let known = self.modules.iter().flat_map(|(module, file)| {
            file.paths.iter().map(move |path| {
                let target = self.definition(module, path, 0);
                (module.clone(), target)
            })
        });
        known
            .filter_map(|(from, to)| Some((from, to?)))
            .filter(|(from, to)| from != to)
            .collect()
    }

    /// The module with the definition of `path`, as written in `from`; `None` outside of the crate.
    fn definition(&self, from: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (first, mut rest) = path.split_first()?;
        let mut module = match first.as_str() {
            "crate" => Module::new(),
            "self" => from.clone(),
            "super" => from.split_last()?.1.to_vec(),
            child if self.has_child(from, child) => {
                rest = path;
                from.clone()
            }
            _ => return None,
        };
        for (index, name) in rest.iter().enumerate() {
            let reexports = self
                .modules
                .get(&module)
                .and_then(|file| file.reexports.get(name));
            if name == "super" {
                module.pop();
            } else if self.has_child(&module, name) {
                module.push(name.clone());
            } else if let Some(target) = reexports
                // Two modules that re-export a name from each other would never end.
                && depth < 8
            {
                let target: Module = target.iter().chain(&rest[index + 1..]).cloned().collect();
                let found = self.definition(&module, &target, depth + 1);
                return found.or(Some(module));
            } else {
                break;
            }
        }
        Some(module)
    }

    fn has_child(&self, module: &Module, name: &str) -> bool {
        let child: Module = module.iter().cloned().chain([name.to_owned()]).collect();
        self.modules.contains_key(&child)
    }

    /// Groups of modules that know each other, directly or through others (strongly connected components of more than one
    /// module), the largest first.
    pub(crate) fn circles(&self) -> Vec<Vec<Module>> {
        let edges = self.edges();
        let reach = |from: &Module| {
            let mut found = BTreeSet::new();
            let mut open = vec![from];
            while let Some(module) = open.pop() {
                for (_, to) in edges.iter().filter(|(from, _)| from == module) {
                    if found.insert(to) {
                        open.push(to);
                    }
                }
            }
            found
        };
        let reached: BTreeMap<&Module, BTreeSet<&Module>> = self
            .modules
            .keys()
            .map(|module| (module, reach(module)))
            .collect();
        let mut placed = BTreeSet::new();
        let mut circles = Vec::new();
        for (module, targets) in &reached {
            let circle: Vec<Module> = targets
                .iter()
                .filter(|target| {
                    reached
                        .get(*target)
                        .is_some_and(|back| back.contains(module))
                })
                .map(|target| (*target).clone())
                .collect();
            if circle.len() > 1 && placed.insert(circle.clone()) {
                circles.push(circle);
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

impl File {
    fn read(text: &str) -> Self {
        let code = rust::blank(rust::without_unit_tests(text));
        let mut file = Self::default();
        let mut rest = code.clone();
        let after = |at: usize| &code[at + "use".len()..];
        // Not the `use<…>` of a type.
        let statements =
            words(&code, "use").filter(|&at| after(at).starts_with(char::is_whitespace));
        for at in statements {
            let Some(length) = code[at..].find(';') else {
                continue;
            };
            let line = code[..at].rfind('\n').map_or(0, |end| end + 1);
            let is_public = code[line..at].trim_start().starts_with("pub");
            let mut paths = Vec::new();
            tree(&code[at + "use".len()..at + length], &[], &mut paths);
            for (path, name) in paths {
                if is_public {
                    file.reexports.insert(name, path);
                } else {
                    file.paths.push(path);
                }
            }
            rest.replace_range(at..at + length, &" ".repeat(length));
        }
        file.paths.extend(inline(&rest));
        file
    }
}

/// The paths of one `use`, each with the name that it introduces.
fn tree(text: &str, before: &[String], found: &mut Vec<(Module, String)>) {
    let text = text.trim();
    if let Some(open) = text.find('{') {
        let prefix: Module = before
            .iter()
            .cloned()
            .chain(segments(&text[..open]))
            .collect();
        let Some(close) = closing(text, open) else {
            return;
        };
        for item in items(&text[open + 1..close]) {
            tree(item, &prefix, found);
        }
        return;
    }
    let (path, renamed) = match text.split_once(" as ") {
        Some((path, name)) => (path, Some(name.trim().to_owned())),
        None => (text, None),
    };
    let mut path: Module = before.iter().cloned().chain(segments(path)).collect();
    // `a::{self}` is `a`.
    path.pop_if(|last| last == "self" && !before.is_empty());
    if let Some(name) = renamed.or_else(|| path.last().cloned()) {
        found.push((path, name));
    }
}

/// Paths that stand in code, outside of `use`.
fn inline(code: &str) -> impl Iterator<Item = Module> + '_ {
    code.match_indices("::").map(|(at, _)| at).filter_map(|at| {
        let start = code[..at]
            .rfind(|letter: char| !rust::is_of_word(letter))
            .map_or(0, |before| before + 1);
        // The middle of a path that was found by its beginning, or the end of a type.
        let is_first = start < at && !code[..start].ends_with("::");
        is_first.then(|| {
            let end = code[start..]
                .find(|letter: char| !rust::is_of_word(letter) && letter != ':')
                .map_or(code.len(), |length| start + length);
            segments(&code[start..end]).collect()
        })
    })
}

fn segments(path: &str) -> impl Iterator<Item = String> + '_ {
    path.split("::")
        .filter_map(|segment| word_at(segment.trim()))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::Graph;

    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let graph = Graph::read(files.iter().copied());
        let name = |module: &[String]| match module {
            [] => "crate".to_owned(),
            module => module.join("/"),
        };
        let edges = graph.edges();
        edges
            .iter()
            .map(|(from, to)| format!("{} > {}", name(from), name(to)))
            .collect()
    }

    #[test]
    fn paths_lead_to_the_files_that_they_name() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use a::A;"),
            (
                "a.rs",
                "mod deep;\nuse std::fmt;\nuse crate::b::{self, B, inner::{C as D}};",
            ),
            (
                "a/deep.rs",
                "fn f() { super::super::b::inner::g() } // crate::none::X\n",
            ),
            (
                "b.rs",
                "mod inner;\nfn f() -> impl A + use<'_> { inner::g(); other::h() }",
            ),
            ("b/inner.rs", ""),
        ];
        assert_eq!(
            edges(&files),
            ["a > b", "a > b/inner", "a/deep > b/inner", "b > b/inner"]
        );
    }

    #[test]
    fn a_reexported_name_leads_to_its_definition() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use a::A;"),
            ("a.rs", "mod inner;\npub(crate) use inner::A;\nfn own() {}"),
            ("a/inner.rs", ""),
            ("b.rs", "use crate::a::{A, own};\nfn f(_: crate::A) {}"),
        ];
        assert_eq!(edges(&files), ["b > a", "b > a/inner"]);
    }

    #[test]
    fn modules_that_know_each_other_are_a_circle_and_unit_tests_are_not() {
        let files = [
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C;"),
            ("c.rs", "use super::a::A;"),
            (
                "d.rs",
                "use crate::a::A;\n\n#[cfg(test)]\nmod tests {\n    use crate::e::E;\n}\n",
            ),
            ("e.rs", "use crate::d::D;"),
        ];
        let circles = Graph::read(files).circles();
        assert_eq!(
            circles,
            [[["a"], ["b"], ["c"]].map(|path| path.map(str::to_owned))]
        );
    }
}
