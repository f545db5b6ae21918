//! Durations as they are written down: a number of seconds.

use std::time::Duration;

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

// In the form that `serde(with)` calls.
#[allow(clippy::ref_option)]
pub(super) fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Duration>, D::Error> {
    let time = |seconds| {
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| D::Error::invalid_value(Unexpected::Float(seconds), &"0 or more seconds"))
    };
    Option::<f64>::deserialize(from)?.map(time).transpose()
}
