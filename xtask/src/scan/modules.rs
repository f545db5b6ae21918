//! Which module of a crate knows which: the files that a file names in paths from `crate`, `super`,
//! `self` or a child module.
//!
//! A path leads to the file with the definition: re-exports (`pub use`) are followed, and a
//! re-export itself does not count as knowledge. Unit tests are not counted.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::{Source, Tokens, is_test, is_word};

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
    /// Paths that it names, as written: they begin with `crate`, `self`, `super` or a name of the
    /// file.
    paths: Vec<Module>,
}

impl Graph {
    /// The graph of the files below the folder `src` that are no tests.
    pub(crate) fn read(sources: &[Source], src: &str) -> Self {
        let mut modules = BTreeMap::new();
        for source in sources.iter().filter(|source| !is_test(&source.path)) {
            let path = source.path.strip_prefix(src);
            if let Some(path) = path.and_then(|path| path.strip_suffix(".rs")) {
                let mut module: Module = path.split('/').map(str::to_owned).collect();
                module.pop_if(|last| matches!(last.as_str(), "lib" | "main" | "mod"));
                modules.insert(module, File::read(&source.code));
            }
        }
        Self { modules }
    }

    /// Every pair of modules of which the first knows the second.
    pub(crate) fn edges(&self) -> BTreeSet<(Module, Module)> {
        let mut edges = BTreeSet::new();
        for (from, file) in &self.modules {
            let known = file.paths.iter();
            let known = known.filter_map(|path| self.definition(from, path, 0));
            edges.extend(known.filter(|to| to != from).map(|to| (from.clone(), to)));
        }
        edges
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
            let file = self.modules.get(&module);
            if name == "super" {
                module.pop();
            } else if self.has_child(&module, name) {
                module.push(name.clone());
            } else if let Some(target) = file.and_then(|file| file.reexports.get(name))
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
}

/// Groups of nodes that lead to each other, directly or through others (strongly connected
/// components of more than one node), the largest first.
pub(crate) fn circles<N: Ord + Clone>(edges: &BTreeSet<(N, N)>) -> Vec<Vec<N>> {
    let reached = edges.iter().map(|(from, _)| (from, reach(edges, from)));
    let reached: BTreeMap<&N, BTreeSet<&N>> = reached.collect();
    let mut circles = BTreeSet::new();
    for (node, targets) in &reached {
        let leads_back = |target: &&N| reached.get(*target).is_some_and(|to| to.contains(node));
        let circle: Vec<&N> = targets.iter().copied().filter(leads_back).collect();
        circles.extend(Some(circle).filter(|circle| circle.len() > 1));
    }
    let owned = |circle: Vec<&N>| circle.into_iter().cloned().collect();
    let mut circles: Vec<Vec<N>> = circles.into_iter().map(owned).collect();
    circles.sort_by_key(|circle| Reverse(circle.len()));
    circles
}

/// The nodes that `from` leads to.
fn reach<'a, N: Ord>(edges: &'a BTreeSet<(N, N)>, from: &'a N) -> BTreeSet<&'a N> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(node) = open.pop() {
        let next = edges.iter().filter(|(from, _)| from == node);
        open.extend(next.map(|(_, to)| to).filter(|to| found.insert(*to)));
    }
    found
}

impl File {
    fn read(code: &Tokens) -> Self {
        let mut file = Self::default();
        let mut at = 0;
        while at < code.0.len() {
            let end = match code.text(at) {
                // Not the `use<…>` of a type.
                "use" if code.text(at + 1) != "<" => code.first(at, &[";"]),
                _ => None,
            };
            if let Some(end) = end {
                let mut paths = Vec::new();
                code.uses(at + 1..end, &[], &mut paths);
                // `pub`, or the end of `pub(crate)`.
                if at > 0 && matches!(code.text(at - 1), "pub" | ")") {
                    file.reexports.extend(paths);
                } else {
                    file.paths.extend(paths.into_iter().map(|(_, path)| path));
                }
            } else if is_word(code.text(at)) && code.follow(at + 1, &[":", ":"]) {
                // Not the middle of a path that was found by its beginning, or the end of a type.
                if at < 2 || !code.follow(at - 2, &[":", ":"]) {
                    file.paths.push(code.path(at));
                }
            }
            at = end.unwrap_or(at) + 1;
        }
        file
    }
}

impl Tokens {
    /// The path that begins at `at`, up to its generics.
    fn path(&self, mut at: usize) -> Module {
        let mut path = vec![self.text(at).to_owned()];
        while self.follow(at + 1, &[":", ":"]) && is_word(self.text(at + 3)) {
            at += 3;
            path.push(self.text(at).to_owned());
        }
        path
    }

    /// The paths of one `use`, each with the name that it introduces.
    fn uses(&self, range: Range<usize>, before: &[String], found: &mut Vec<(String, Module)>) {
        let (mut path, mut renamed) = (before.to_vec(), None);
        for at in range {
            match self.text(at) {
                "{" => {
                    for item in self.items(at) {
                        self.uses(item, &path, found);
                    }
                    return;
                }
                "as" => renamed = Some(self.text(at + 1).to_owned()),
                word if is_word(word) && renamed.is_none() => path.push(word.to_owned()),
                _ => {}
            }
        }
        // `a::{self}` is `a`.
        path.pop_if(|last| last == "self" && !before.is_empty());
        if let Some(name) = renamed.or_else(|| path.last().cloned()) {
            found.push((name, path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Graph, circles};
    use crate::scan::Source;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let source = |(path, text): &(&str, &str)| {
            Source::of_rust(format!("src/{path}"), (*text).to_owned()).expect("tokens of Rust")
        };
        Graph::read(&files.iter().map(source).collect::<Vec<_>>(), "src/")
    }

    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let name = |module: &[String]| match module {
            [] => "crate".to_owned(),
            module => module.join("/"),
        };
        let edges = graph(files).edges();
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
        let circles = circles(&graph(&files).edges());
        assert_eq!(
            circles,
            [[["a"], ["b"], ["c"]].map(|path| path.map(str::to_owned))]
        );
    }
}
