//! Serialized forms of types that serde does not know, for `#[serde(with = "...")]`.

/// Keys: a name as a string, several as a list of strings, outermost first.
pub mod key {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tensordict::NestedKey;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum KeyRepr {
        Name(String),
        Path(Vec<String>),
    }

    /// Writes the value.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(key: &NestedKey, to: S) -> Result<S::Ok, S::Error> {
        write(key).serialize(to)
    }

    /// Reads the value.
    ///
    /// # Errors
    /// Errors of the deserializer, and input of another form.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<NestedKey, D::Error> {
        read(KeyRepr::deserialize(from)?)
    }

    fn write(key: &NestedKey) -> KeyRepr {
        match key.components() {
            [name] => KeyRepr::Name(name.to_string()),
            names => KeyRepr::Path(names.iter().map(ToString::to_string).collect()),
        }
    }

    fn read<E: serde::de::Error>(written: KeyRepr) -> Result<NestedKey, E> {
        match written {
            KeyRepr::Name(name) => Ok(name.into()),
            KeyRepr::Path(names) if names.is_empty() => {
                Err(E::invalid_length(0, &"a name or a list of names"))
            }
            KeyRepr::Path(names) => {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                Ok(names.as_slice().into())
            }
        }
    }

    /// A key, or none.
    pub mod optional {
        use super::*;

        /// Writes the value.
        ///
        /// # Errors
        /// Errors of the serializer.
        pub fn serialize<S: Serializer>(key: &Option<NestedKey>, to: S) -> Result<S::Ok, S::Error> {
            key.as_ref().map(write).serialize(to)
        }

        /// Reads the value.
        ///
        /// # Errors
        /// Errors of the deserializer, and input of another form.
        pub fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<NestedKey>, D::Error> {
            let written = Option::<KeyRepr>::deserialize(from)?;
            written.map(read).transpose()
        }
    }

    /// Several keys.
    pub mod several {
        use super::*;

        /// Writes the value.
        ///
        /// # Errors
        /// Errors of the serializer.
        pub fn serialize<S: Serializer>(keys: &[NestedKey], to: S) -> Result<S::Ok, S::Error> {
            to.collect_seq(keys.iter().map(write))
        }

        /// Reads the value.
        ///
        /// # Errors
        /// Errors of the deserializer, and input of another form.
        pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<NestedKey>, D::Error> {
            let written = Vec::<KeyRepr>::deserialize(from)?;
            written.into_iter().map(read).collect()
        }
    }

    /// Several keys, or none for all.
    pub mod list {
        use super::*;

        /// Writes the value.
        ///
        /// # Errors
        /// Errors of the serializer.
        pub fn serialize<S: Serializer>(
            keys: &Option<Vec<NestedKey>>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            let written = |keys: &Vec<_>| keys.iter().map(write).collect::<Vec<_>>();
            keys.as_ref().map(written).serialize(to)
        }

        /// Reads the value.
        ///
        /// # Errors
        /// Errors of the deserializer, and input of another form.
        pub fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<Vec<NestedKey>>, D::Error> {
            let written = Option::<Vec<KeyRepr>>::deserialize(from)?;
            let keys = written.map(|keys| keys.into_iter().map(read).collect());
            keys.transpose()
        }
    }
}

/// Numbers; those that JSON cannot hold become the strings `inf`, `-inf` and `NaN`.
pub mod float {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum FloatRepr<T> {
        Finite(T),
        Other(String),
    }

    /// Writes the value.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<T, S>(value: &T, to: S) -> Result<S::Ok, S::Error>
    where
        T: Copy + Into<f64> + Serialize + Display,
        S: Serializer,
    {
        match (*value).into().is_finite() {
            true => value.serialize(to),
            false => value.to_string().serialize(to),
        }
    }

    /// Reads the value.
    ///
    /// # Errors
    /// Errors of the deserializer, and input of another form.
    pub fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: Deserialize<'de> + FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        match FloatRepr::deserialize(from)? {
            FloatRepr::Finite(value) => Ok(value),
            FloatRepr::Other(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Lists of numbers, bit for bit. Numbers that JSON cannot hold become strings, and a run of equal
/// numbers a pair of number and length: `[0.5, "-inf", [255.0, 100800]]`
pub mod floats {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged, expecting = "a number, or a number and how often it comes")]
    enum RunRepr {
        One(DoubleRepr),
        Several(DoubleRepr, usize),
    }

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum DoubleRepr {
        Finite(f64),
        Other(String),
    }

    /// Prefix of the bits of an unusual NaN.
    const NAN: &str = "NaN:";

    /// Writes the value.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
        let runs = values.chunk_by(|a, b| a.to_bits() == b.to_bits());
        to.collect_seq(runs.map(|run| match run.len() {
            1 => RunRepr::One(write(run[0])),
            several => RunRepr::Several(write(run[0]), several),
        }))
    }

    /// Reads the value.
    ///
    /// # Errors
    /// Errors of the deserializer, and input of another form.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        let mut values = Vec::new();
        for run in Vec::<RunRepr>::deserialize(from)? {
            let (value, times) = match run {
                RunRepr::One(value) => (value, 1),
                RunRepr::Several(value, times) => (value, times),
            };
            let value = read(value)?;
            values
                .try_reserve(times)
                .map_err(|_| D::Error::custom(format!("no memory for {times} numbers")))?;
            values.extend(std::iter::repeat_n(value, times));
        }
        Ok(values)
    }

    fn write(value: f64) -> DoubleRepr {
        match value.to_bits() {
            _ if value.is_finite() => DoubleRepr::Finite(value),
            bits if value.is_nan() && bits != f64::NAN.to_bits() => {
                DoubleRepr::Other(format!("{NAN}{bits:016x}"))
            }
            _ => DoubleRepr::Other(value.to_string()),
        }
    }

    fn read<E: Error>(written: DoubleRepr) -> Result<f64, E> {
        let text = match written {
            DoubleRepr::Finite(value) => return Ok(value),
            DoubleRepr::Other(text) => text,
        };
        let value = match text.strip_prefix(NAN) {
            Some(bits) => u64::from_str_radix(bits, 16).ok().map(f64::from_bits),
            None => text.parse().ok(),
        };
        let value = value.filter(|value| !value.is_finite());
        value.ok_or_else(|| E::custom(format!("expected a number, inf, -inf or NaN, got {text:?}")))
    }
}
