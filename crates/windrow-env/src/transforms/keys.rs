use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensordict::NestedKey;

use crate::serde_form;

/// Entries that a transform reads, each with the name of the result. A result with the name of its
/// entry replaces it, any other is added.
///
/// They are written down as a list of pairs,
/// `[["pixels", "small"], [["camera", "left"], ["camera", "left"]]]`.
///
/// ```
/// use windrow_env::Keys;
///
/// assert_eq!(Keys::of(["pixels"]), Keys::pairs([("pixels", "pixels")]));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys(Vec<(NestedKey, NestedKey)>);

impl Keys {
    /// Results replace the entries `keys`.
    #[must_use]
    pub fn of(keys: impl IntoIterator<Item = impl Into<NestedKey>>) -> Self {
        let keys = keys.into_iter().map(Into::into);
        Self(keys.map(|key: NestedKey| (key.clone(), key)).collect())
    }

    /// Entries and the names of their results.
    #[must_use]
    pub fn pairs(
        pairs: impl IntoIterator<Item = (impl Into<NestedKey>, impl Into<NestedKey>)>,
    ) -> Self {
        let pairs = pairs.into_iter();
        Self(pairs.map(|(from, to)| (from.into(), to.into())).collect())
    }

    /// The pairs, in order.
    pub fn iter(&self) -> impl Iterator<Item = &(NestedKey, NestedKey)> {
        self.0.iter()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The observation that environments with pictures have.
    pub(super) fn pixels() -> Self {
        Self::of(["pixels"])
    }
}

/// A key as it is written down.
#[derive(Serialize, Deserialize)]
struct KeyRepr(#[serde(with = "serde_form::key")] NestedKey);

impl Serialize for Keys {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let pairs = self.0.iter().cloned();
        let pairs = pairs.map(|(from, into)| (KeyRepr(from), KeyRepr(into)));
        to.collect_seq(pairs)
    }
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let pairs = Vec::<(KeyRepr, KeyRepr)>::deserialize(from)?;
        Ok(Self(pairs.into_iter().map(|(a, b)| (a.0, b.0)).collect()))
    }
}
