//! How messages are written: [postcard](https://docs.rs/postcard), the same by sockets, by lanes
//! and by connections.

use std::any::type_name;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ProcessError;

/// Most bytes of a message that travels by a lane.
#[cfg(target_os = "linux")]
pub const LANE_BYTES: usize = 128;

/// `message` as bytes, without a limit.
///
/// # Errors
/// [`ProcessError::Message`] for what cannot be written.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, ProcessError> {
    postcard::to_stdvec(message).map_err(|error| wrong::<T>("written", &error))
}

/// The message that [`encode`] wrote.
///
/// # Errors
/// [`ProcessError::Message`] for other bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ProcessError> {
    postcard::from_bytes(bytes).map_err(|error| wrong::<T>("read", &error))
}

/// Writes `message` to the beginning of `place`, and gives its length; allocates nothing.
#[cfg(target_os = "linux")]
pub(crate) fn encode_into<T: Serialize>(
    message: &T,
    place: &mut [u8; LANE_BYTES],
) -> Result<usize, ProcessError> {
    match postcard::to_slice(message, place) {
        Ok(written) => Ok(written.len()),
        Err(error) => Err(wrong::<T>("written", &error)),
    }
}

#[cold]
fn wrong<T>(verb: &'static str, reason: &postcard::Error) -> ProcessError {
    ProcessError::Message {
        message: type_name::<T>(),
        verb,
        reason: reason.to_string(),
    }
}

/// Fields that only a self-describing form can hold, such as recipes: as JSON, for
/// `#[serde(with = "windrow_peer::json")]`.
pub mod json {
    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes the form.
    ///
    /// # Errors
    /// Those of the serializer, and for what JSON cannot hold.
    pub fn serialize<T: Serialize, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        let text = serde_json::to_string(value).map_err(S::Error::custom)?;
        text.serialize(to)
    }

    /// Reads the form.
    ///
    /// # Errors
    /// Those of the deserializer, and for other JSON.
    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        let text = String::deserialize(from)?;
        // As bytes, like all other JSON: the code that reads a type exists once.
        serde_json::from_slice(text.as_bytes()).map_err(D::Error::custom)
    }
}

#[cfg(all(test, target_os = "linux", not(loom)))]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Message {
        Nothing,
        Numbers { small: u8, signed: i64, large: u64 },
        Plain(#[serde(with = "json")] serde_json::Value),
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let plain = serde_json::json!({"gravity": 9.81, "names": [null, "a"]});
        for message in [
            Message::Nothing,
            Message::Numbers {
                small: 0,
                signed: i64::MIN,
                large: u64::MAX,
            },
            Message::Plain(plain),
        ] {
            let bytes = encode(&message).unwrap();
            assert_eq!(decode::<Message>(&bytes).unwrap(), message);
            let mut place = [0; LANE_BYTES];
            let len = encode_into(&message, &mut place).unwrap();
            assert_eq!(place[..len], bytes);
        }
    }

    #[test]
    fn other_bytes_and_a_message_too_long_for_a_lane_are_errors_that_name_it() {
        let error = decode::<Message>(&[9]).unwrap_err().to_string();
        assert!(error.contains("Message cannot be read"), "{error}");
        let long = Message::Plain("long".repeat(40).into());
        let error = encode_into(&long, &mut [0; LANE_BYTES]).unwrap_err();
        assert!(error.to_string().contains("cannot be written"), "{error}");
    }
}
