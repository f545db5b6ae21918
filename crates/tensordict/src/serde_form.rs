//! Written forms of keys and element types, for every format of serde. Shapes are lists of numbers.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{DType, NestedKey};

/// The names of all element types, for the error that lists them.
const NAMES: [&str; DType::ALL.len()] = {
    let mut names = [""; DType::ALL.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = DType::ALL[i].name();
        i += 1;
    }
    names
};

/// By its [`name`](DType::name).
impl Serialize for DType {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for DType {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let named = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
        named.ok_or_else(|| D::Error::unknown_variant(&name, &NAMES))
    }
}

/// As the list of its names, outermost first.
impl Serialize for NestedKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.components().iter().map(|name| &**name))
    }
}

impl<'de> Deserialize<'de> for NestedKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        if names.is_empty() {
            return Err(D::Error::invalid_length(0, &"a key of at least one name"));
        }
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        Ok(names.as_slice().into())
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, LeafSpec, NestedKey};

    #[test]
    fn a_leaf_is_written_as_its_names_and_numbers_and_read_back() {
        let leaf = LeafSpec::new(("next", "0.pixels"), DType::U8, [3, 2]);
        let written = serde_json::to_string(&leaf).unwrap();
        let expected = r#"{"key":["next","0.pixels"],"dtype":"uint8","shape":[3,2]}"#;
        assert_eq!(written, expected);
        assert_eq!(serde_json::from_str::<LeafSpec>(&written).unwrap(), leaf);
    }

    #[test]
    fn every_element_type_is_read_back() {
        for dtype in DType::ALL {
            let written = serde_json::to_value(dtype).unwrap();
            assert_eq!(written, dtype.name());
            assert_eq!(serde_json::from_value::<DType>(written).unwrap(), dtype);
        }
    }

    #[test]
    fn another_element_type_is_an_error_that_lists_those_there_are() {
        let error = serde_json::from_str::<DType>(r#""float16""#).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("`float16`"), "{error}");
        for dtype in DType::ALL {
            assert!(error.contains(&format!("`{dtype}`")), "{error}");
        }
    }

    #[test]
    fn a_key_without_a_name_is_an_error() {
        let error = serde_json::from_str::<NestedKey>("[]").unwrap_err();
        assert!(error.to_string().contains("at least one name"), "{error}");
    }
}
