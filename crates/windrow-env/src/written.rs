//! Written forms of types that serde cannot write by itself, for `#[serde(with = "...")]`.

/// Keys: a name as a string, several as a list of strings, outermost first.
pub mod key {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tensordict::NestedKey;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Written {
        Name(String),
        Path(Vec<String>),
    }

    /// Writes the form.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(key: &NestedKey, to: S) -> Result<S::Ok, S::Error> {
        write(key).serialize(to)
    }

    /// Reads the form.
    ///
    /// # Errors
    /// Those of the deserializer, and for another form.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<NestedKey, D::Error> {
        read(Written::deserialize(from)?)
    }

    fn write(key: &NestedKey) -> Written {
        match key.components() {
            [name] => Written::Name(name.to_string()),
            names => Written::Path(names.iter().map(ToString::to_string).collect()),
        }
    }

    fn read<E: serde::de::Error>(written: Written) -> Result<NestedKey, E> {
        match written {
            Written::Name(name) => Ok(name.into()),
            Written::Path(names) if names.is_empty() => {
                Err(E::invalid_length(0, &"a name or a list of names"))
            }
            Written::Path(names) => {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                Ok(names.as_slice().into())
            }
        }
    }

    /// Several keys, or none for all.
    pub mod list {
        use super::*;

        /// Writes the form.
        ///
        /// # Errors
        /// Those of the serializer.
        pub fn serialize<S: Serializer>(
            keys: &Option<Vec<NestedKey>>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            let written = |keys: &Vec<_>| keys.iter().map(write).collect::<Vec<_>>();
            keys.as_ref().map(written).serialize(to)
        }

        /// Reads the form.
        ///
        /// # Errors
        /// Those of the deserializer, and for another form.
        pub fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<Vec<NestedKey>>, D::Error> {
            let written = Option::<Vec<Written>>::deserialize(from)?;
            let keys = written.map(|keys| keys.into_iter().map(read).collect());
            keys.transpose()
        }
    }
}

/// Numbers: those that JSON has no form for as the strings `inf`, `-inf` and `NaN`.
pub mod float {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Finite(f32),
        Other(String),
    }

    /// Writes the form.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &f32, to: S) -> Result<S::Ok, S::Error> {
        match value.is_finite() {
            true => value.serialize(to),
            false => value.to_string().serialize(to),
        }
    }

    /// Reads the form.
    ///
    /// # Errors
    /// Those of the deserializer, and for another form.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
        match Written::deserialize(from)? {
            Written::Finite(value) => Ok(value),
            Written::Other(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}
