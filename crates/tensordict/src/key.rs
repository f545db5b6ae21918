//! Names of entries, flat (`"reward"`) or nested (`("next", "reward")`).

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

/// Path of an entry: one or more names, outermost first.
///
/// Cloning copies reference counts, not text. A name may hold any characters, dots included:
/// `"0.weight"` is one name, never a path.
///
/// ```
/// use tensordict::NestedKey;
///
/// let key = NestedKey::from(("next", "reward"));
/// assert_eq!(key.to_string(), r#"("next", "reward")"#);
/// assert_eq!(NestedKey::from("next").join(&NestedKey::from("reward")), key);
/// ```
#[derive(Clone)]
pub struct NestedKey {
    parts: SmallVec<[Arc<str>; 2]>,
}

impl NestedKey {
    /// Key of one name that shares the text of `name`.
    pub fn from_name(name: Arc<str>) -> Self {
        Self {
            parts: smallvec![name],
        }
    }

    /// The names, outermost first; never empty.
    pub fn components(&self) -> &[Arc<str>] {
        &self.parts
    }

    /// Number of names, at least 1.
    pub fn depth(&self) -> usize {
        self.parts.len()
    }

    /// The outermost name.
    pub fn first(&self) -> &str {
        &self.parts[0]
    }

    /// The innermost name.
    pub fn last(&self) -> &str {
        &self.parts[self.parts.len() - 1]
    }

    /// Whether this key and `other` cannot both be leaves of one dict: they are equal, or one lies
    /// below the other.
    pub fn overlaps(&self, other: &NestedKey) -> bool {
        let mut names = self.components().iter().zip(other.components());
        names.all(|(own, theirs)| own == theirs)
    }

    /// The key of `other` inside the dict that this key names.
    #[must_use]
    pub fn join(&self, other: &NestedKey) -> NestedKey {
        let mut parts = self.parts.clone();
        parts.extend(other.parts.iter().cloned());
        NestedKey { parts }
    }

    /// This key with `name` added as the innermost name.
    #[must_use]
    pub fn child(&self, name: Arc<str>) -> NestedKey {
        let mut parts = self.parts.clone();
        parts.push(name);
        NestedKey { parts }
    }

    fn from_parts(names: &[&str]) -> Self {
        let mut parts: SmallVec<_> = names.iter().map(|&name| Arc::from(name)).collect();
        if parts.is_empty() {
            parts.push(Arc::from(""));
        }
        Self { parts }
    }
}

/// A single name as it is, so that `key.to_string()` is a key again; several as
/// [`Debug`](fmt::Debug) shows them, in which names are quoted.
impl fmt::Display for NestedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts.as_slice() {
            [name] => f.write_str(name),
            _ => fmt::Debug::fmt(self, f),
        }
    }
}

impl fmt::Debug for NestedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [name] = self.parts.as_slice() {
            return write!(f, "{name:?}");
        }
        f.write_str("(")?;
        for (i, name) in self.parts.iter().enumerate() {
            let gap = if i == 0 { "" } else { ", " };
            write!(f, "{gap}{name:?}")?;
        }
        f.write_str(")")
    }
}

impl PartialEq for NestedKey {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl Eq for NestedKey {}

impl PartialOrd for NestedKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NestedKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts.cmp(&other.parts)
    }
}

impl Hash for NestedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts.hash(state);
    }
}

impl From<&str> for NestedKey {
    fn from(name: &str) -> Self {
        Self::from_name(Arc::from(name))
    }
}

impl From<String> for NestedKey {
    fn from(name: String) -> Self {
        Self::from_name(Arc::from(name))
    }
}

impl From<&String> for NestedKey {
    fn from(name: &String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<Arc<str>> for NestedKey {
    fn from(name: Arc<str>) -> Self {
        Self::from_name(name)
    }
}

impl From<&NestedKey> for NestedKey {
    fn from(key: &NestedKey) -> Self {
        key.clone()
    }
}

impl From<(&str, &str)> for NestedKey {
    fn from((a, b): (&str, &str)) -> Self {
        Self::from_parts(&[a, b])
    }
}

impl From<(&str, &str, &str)> for NestedKey {
    fn from((a, b, c): (&str, &str, &str)) -> Self {
        Self::from_parts(&[a, b, c])
    }
}

/// An array of no names does not compile.
impl<const N: usize> From<[&str; N]> for NestedKey {
    fn from(names: [&str; N]) -> Self {
        const { assert!(N > 0, "a key has at least one name") };
        Self::from_parts(&names)
    }
}

/// An empty slice gives the key of one empty name, because a key always has at least one.
impl From<&[&str]> for NestedKey {
    fn from(names: &[&str]) -> Self {
        Self::from_parts(names)
    }
}

/// Anything that can be looked up as a key, without allocating.
///
/// Implemented for `&str`, `String`, `Arc<str>`, tuples of two or three `&str`, arrays and slices
/// of `&str`, [`NestedKey`], and references to these.
pub trait AsKey {
    /// Number of names in the path.
    fn depth(&self) -> usize;

    /// The name at `level`, where 0 is the outermost and `level < depth()`.
    ///
    /// # Panics
    /// May panic when `level >= depth()`.
    fn part(&self, level: usize) -> &str;

    /// The name at `level` as shared text; free for a [`NestedKey`], one allocation otherwise.
    ///
    /// # Panics
    /// May panic when `level >= depth()`.
    fn shared_part(&self, level: usize) -> Arc<str> {
        Arc::from(self.part(level))
    }

    /// The whole path as an owned key.
    fn to_key(&self) -> NestedKey {
        let parts = (0..self.depth())
            .map(|level| self.shared_part(level))
            .collect::<SmallVec<_>>();
        if parts.is_empty() {
            NestedKey::from("")
        } else {
            NestedKey { parts }
        }
    }
}

impl<K: AsKey + ?Sized> AsKey for &K {
    fn depth(&self) -> usize {
        (**self).depth()
    }

    fn part(&self, level: usize) -> &str {
        (**self).part(level)
    }

    fn shared_part(&self, level: usize) -> Arc<str> {
        (**self).shared_part(level)
    }
}

impl AsKey for str {
    fn depth(&self) -> usize {
        1
    }

    fn part(&self, _level: usize) -> &str {
        self
    }
}

impl AsKey for String {
    fn depth(&self) -> usize {
        1
    }

    fn part(&self, _level: usize) -> &str {
        self
    }
}

impl AsKey for Arc<str> {
    fn depth(&self) -> usize {
        1
    }

    fn part(&self, _level: usize) -> &str {
        self
    }

    fn shared_part(&self, _level: usize) -> Arc<str> {
        Arc::clone(self)
    }
}

impl AsKey for (&str, &str) {
    fn depth(&self) -> usize {
        2
    }

    fn part(&self, level: usize) -> &str {
        if level == 0 { self.0 } else { self.1 }
    }
}

impl AsKey for (&str, &str, &str) {
    fn depth(&self) -> usize {
        3
    }

    fn part(&self, level: usize) -> &str {
        match level {
            0 => self.0,
            1 => self.1,
            _ => self.2,
        }
    }
}

impl AsKey for [&str] {
    fn depth(&self) -> usize {
        self.len()
    }

    fn part(&self, level: usize) -> &str {
        self[level]
    }
}

impl<const N: usize> AsKey for [&str; N] {
    fn depth(&self) -> usize {
        N
    }

    fn part(&self, level: usize) -> &str {
        self[level]
    }
}

impl AsKey for NestedKey {
    fn depth(&self) -> usize {
        self.parts.len()
    }

    fn part(&self, level: usize) -> &str {
        &self.parts[level]
    }

    fn shared_part(&self, level: usize) -> Arc<str> {
        Arc::clone(&self.parts[level])
    }

    fn to_key(&self) -> NestedKey {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(key: impl AsKey) -> Vec<String> {
        (0..key.depth())
            .map(|level| key.part(level).to_owned())
            .collect()
    }

    #[test]
    fn every_spelling_names_the_same_path() {
        let key = NestedKey::from(("a", "b"));
        let owned = String::from("a");
        assert_eq!(parts(("a", "b")), ["a", "b"]);
        assert_eq!(parts(["a", "b"]), ["a", "b"]);
        assert_eq!(parts(&["a", "b"][..]), ["a", "b"]);
        assert_eq!(parts(&key), ["a", "b"]);
        assert_eq!(parts(key.clone()), ["a", "b"]);
        assert_eq!(parts(("a", "b", "c")), ["a", "b", "c"]);
        assert_eq!(parts("a"), ["a"]);
        assert_eq!(parts(&owned), ["a"]);
        assert_eq!(parts(owned), ["a"]);
        assert_eq!(("a", "b").to_key(), key);
        assert_eq!(NestedKey::from(&["a", "b"][..]), key);
    }

    #[test]
    fn dots_do_not_split_names() {
        let key = NestedKey::from("0.weight");
        assert_eq!(key.depth(), 1);
        assert_ne!(key, NestedKey::from(("0", "weight")));
    }

    #[test]
    fn prints_as_name_or_tuple() {
        let name = NestedKey::from("0.weight");
        assert_eq!(NestedKey::from(name.to_string()), name);
        assert_eq!(format!("{name:?}"), r#""0.weight""#);
        assert_eq!(
            NestedKey::from(("next", "reward")).to_string(),
            r#"("next", "reward")"#
        );
        assert_eq!(
            format!("{:?}", NestedKey::from(["a", "b", "c"])),
            r#"("a", "b", "c")"#
        );
    }

    #[test]
    fn first_last_join_and_order() {
        let key = NestedKey::from(("next", "reward"));
        assert_eq!((key.first(), key.last()), ("next", "reward"));
        assert_eq!(NestedKey::from("a").join(&key).components().len(), 3);
        assert!(NestedKey::from("next") < key);
        assert!(NestedKey::from("a") < NestedKey::from("b"));
        assert!(key.overlaps(&key) && key.overlaps(&"next".into()));
        assert!(NestedKey::from("next").overlaps(&key) && !key.overlaps(&"reward".into()));
    }

    #[test]
    fn clone_shares_text() {
        let key = NestedKey::from("observation");
        assert!(Arc::ptr_eq(&key.components()[0], &key.shared_part(0)));
        assert_eq!(
            NestedKey::from(&[][..]).components(),
            [Arc::<str>::from("")]
        );
    }
}
