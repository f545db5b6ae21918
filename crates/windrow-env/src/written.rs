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

    /// A key, or none.
    pub mod optional {
        use super::*;

        /// Writes the form.
        ///
        /// # Errors
        /// Those of the serializer.
        pub fn serialize<S: Serializer>(key: &Option<NestedKey>, to: S) -> Result<S::Ok, S::Error> {
            key.as_ref().map(write).serialize(to)
        }

        /// Reads the form.
        ///
        /// # Errors
        /// Those of the deserializer, and for another form.
        pub fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<NestedKey>, D::Error> {
            let written = Option::<Written>::deserialize(from)?;
            written.map(read).transpose()
        }
    }

    /// Several keys.
    pub mod several {
        use super::*;

        /// Writes the form.
        ///
        /// # Errors
        /// Those of the serializer.
        pub fn serialize<S: Serializer>(keys: &[NestedKey], to: S) -> Result<S::Ok, S::Error> {
            to.collect_seq(keys.iter().map(write))
        }

        /// Reads the form.
        ///
        /// # Errors
        /// Those of the deserializer, and for another form.
        pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<NestedKey>, D::Error> {
            let written = Vec::<Written>::deserialize(from)?;
            written.into_iter().map(read).collect()
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

/// Lists of numbers, bit for bit: numbers that JSON has no form for as strings, one that comes several times in a row as a pair of the
/// number and how often it comes. `[0.5, "-inf", [255.0, 100800]]`
pub mod floats {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged, expecting = "a number, or a number and how often it comes")]
    enum Run {
        One(Written),
        Several(Written, usize),
    }

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Written {
        Finite(f64),
        Other(String),
    }

    /// Before the bits of a number that is none, where they are not the usual ones.
    const NAN: &str = "NaN:";

    /// Writes the form.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
        let runs = values.chunk_by(|a, b| a.to_bits() == b.to_bits());
        to.collect_seq(runs.map(|run| match run.len() {
            1 => Run::One(write(run[0])),
            several => Run::Several(write(run[0]), several),
        }))
    }

    /// Reads the form.
    ///
    /// # Errors
    /// Those of the deserializer, and for another form.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        let mut values = Vec::new();
        for run in Vec::<Run>::deserialize(from)? {
            let (value, times) = match run {
                Run::One(value) => (value, 1),
                Run::Several(value, times) => (value, times),
            };
            let value = read(value)?;
            values
                .try_reserve(times)
                .map_err(|_| D::Error::custom(format!("no memory for {times} numbers")))?;
            values.extend(std::iter::repeat_n(value, times));
        }
        Ok(values)
    }

    fn write(value: f64) -> Written {
        match value.to_bits() {
            _ if value.is_finite() => Written::Finite(value),
            bits if value.is_nan() && bits != f64::NAN.to_bits() => {
                Written::Other(format!("{NAN}{bits:016x}"))
            }
            _ => Written::Other(value.to_string()),
        }
    }

    fn read<E: Error>(written: Written) -> Result<f64, E> {
        let text = match written {
            Written::Finite(value) => return Ok(value),
            Written::Other(text) => text,
        };
        let value = match text.strip_prefix(NAN) {
            Some(bits) => u64::from_str_radix(bits, 16).ok().map(f64::from_bits),
            None => text.parse().ok(),
        };
        let value = value.filter(|value| !value.is_finite());
        value.ok_or_else(|| E::custom(format!("expected a number, inf, -inf or NaN, got {text:?}")))
    }
}
