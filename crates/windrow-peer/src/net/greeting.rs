//! The greeting, in which both sides of a connection prove that they know one secret. Neither sends
//! it. Each sends a random number, and a code (HMAC-SHA256) of both numbers that only somebody with
//! the secret can compute. The server sends its code first.

use std::io;
use std::num::NonZeroU32;

use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac, pbkdf2};

use serde::{Deserialize, Serialize};

use super::frame::GREETING;
use super::{Deadline, Frame, FrameError, Message, Wire};

/// Bytes of a random number.
const NUMBER: usize = 32;

/// Most bytes of a frame from a client that has not proved who it is.
const LONGEST: usize = 1 << 10;

/// Most bytes of a server's frame, which may say why it ends the connection.
const LONGEST_ANSWER: usize = 8 << 10;

/// The messages of the greeting.
#[derive(Debug, Serialize, Deserialize)]
enum Greeting {
    /// The client's first: its random number.
    Challenge([u8; NUMBER]),
    /// The server's: its random number and, if it has a secret, its code.
    Shown([u8; NUMBER], Vec<u8>),
    /// The client's second: its code, if it has a secret.
    Proof(Vec<u8>),
}

impl Message for Greeting {
    const KIND: u32 = GREETING;
}

/// The side that sends a code. It is a part of the code, so that nobody can send a side its own
/// code back.
#[derive(Clone, Copy)]
enum Side {
    Server,
    Client,
}

/// A secret that both sides of a connection know. It is never printed.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl Secret {
    /// A secret of bytes that nobody can guess, such as 16 random ones.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// A secret of a text that people may have chosen. This takes tens of milliseconds, to slow
    /// down those who try guesses on a code that a server has sent.
    #[must_use]
    pub fn of_text(text: &str) -> Self {
        const TIMES: NonZeroU32 = NonZeroU32::new(100_000).expect("It is not 0.");
        let mut key = [0; digest::SHA256_OUTPUT_LEN];
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA256,
            TIMES,
            b"windrow",
            text.as_bytes(),
            &mut key,
        );
        Self::new(&key)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The reason why a greeting failed.
#[derive(Debug, thiserror::Error)]
pub enum GreetingError {
    /// The connection fails.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The sides speak different versions.
    #[error("expected version {expected} of the protocol, got version {got}")]
    Version {
        /// The version of this side.
        expected: u32,
        /// The version of the other side.
        got: u32,
    },
    /// The other side has not proved that it knows the secret.
    #[error("expected a proof of the token, got none or the proof of another token")]
    Unproved,
    /// This side has no secret, and the other side has one.
    #[error("the other side has a token, and this side has none: give both the same token")]
    Asked,
    /// A frame that is no part of the greeting.
    #[error("expected a greeting, got a frame of kind {}", .0.kind)]
    Other(Frame),
}

impl From<io::Error> for GreetingError {
    fn from(error: io::Error) -> Self {
        Self::Frame(error.into())
    }
}

impl Wire {
    /// Greets as the server. If there is a `secret`, first proves to the client that this side
    /// knows it, and then checks the client's proof.
    ///
    /// # Errors
    /// [`GreetingError`]. A client of another version has received the version of this side.
    pub fn greet_client(
        &mut self,
        secret: Option<&Secret>,
        deadline: Deadline,
    ) -> Result<(), GreetingError> {
        let got = self.receive_version(deadline)?;
        if got != self.version {
            // In all versions, it can tell from the opening what is spoken here.
            let _ = self.flush(deadline);
            return Err(self.differs(got));
        }
        let challenge = self.receive(deadline, LONGEST)?;
        let Ok(Greeting::Challenge(theirs)) = challenge.parse() else {
            return Err(GreetingError::Other(challenge));
        };
        let own = draw()?;
        let text = |side| self.text(side, &theirs, &own);
        let (shown, expected) = (text(Side::Server), text(Side::Client));
        let code = secret.map_or_else(Vec::new, |secret| secret.code(&shown));
        self.say(deadline, &Greeting::Shown(own, code))?;
        let proof = self.receive(deadline, LONGEST)?;
        let Ok(Greeting::Proof(code)) = proof.parse() else {
            return Err(GreetingError::Other(proof));
        };
        secret.map_or(Ok(()), |secret| secret.check(&expected, &code))
    }

    /// Greets as the client. If there is a `secret`, first checks the server's proof, and then
    /// proves that this side knows the secret.
    ///
    /// # Errors
    /// [`GreetingError`]. This side has not sent a proof then.
    pub fn greet_server(
        &mut self,
        secret: Option<&Secret>,
        deadline: Deadline,
    ) -> Result<(), GreetingError> {
        let own = draw()?;
        let sent = self.say(deadline, &Greeting::Challenge(own));
        // A server may refuse a client, and say so, before all of the greeting has arrived.
        let got = match (self.receive_version(deadline), sent) {
            (Err(_), Err(error)) => return Err(error.into()),
            (got, _) => got?,
        };
        if got != self.version {
            return Err(self.differs(got));
        }
        let proof = self.receive(deadline, LONGEST_ANSWER)?;
        let Ok(Greeting::Shown(theirs, shown)) = proof.parse() else {
            return Err(GreetingError::Other(proof));
        };
        let answer = match secret {
            Some(secret) => {
                secret.check(&self.text(Side::Server, &own, &theirs), &shown)?;
                secret.code(&self.text(Side::Client, &own, &theirs))
            }
            None if shown.is_empty() => Vec::new(),
            None => return Err(GreetingError::Asked),
        };
        Ok(self.say(deadline, &Greeting::Proof(answer))?)
    }

    fn say(&mut self, deadline: Deadline, greeting: &Greeting) -> io::Result<()> {
        self.send(deadline, &Frame::of(0, greeting, []))
    }

    fn differs(&self, got: u32) -> GreetingError {
        let expected = self.version;
        GreetingError::Version { expected, got }
    }

    /// The text whose code `side` sends.
    fn text(&self, side: Side, client: &[u8; NUMBER], server: &[u8; NUMBER]) -> Vec<u8> {
        let name: &[u8] = match side {
            Side::Server => b"windrow server",
            Side::Client => b"windrow client",
        };
        [name, &self.version.to_le_bytes(), client, server].concat()
    }
}

impl Secret {
    fn code(&self, text: &[u8]) -> Vec<u8> {
        hmac::sign(&self.0, text).as_ref().to_vec()
    }

    /// Compares `shown` with the code of `text`, in constant time.
    fn check(&self, text: &[u8], shown: &[u8]) -> Result<(), GreetingError> {
        hmac::verify(&self.0, text, shown).map_err(|_| GreetingError::Unproved)
    }
}

fn draw() -> io::Result<[u8; NUMBER]> {
    let mut number = [0; NUMBER];
    let drawn = SystemRandom::new().fill(&mut number);
    drawn.map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(number)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread::spawn;
    use std::time::Duration;

    use super::*;
    use crate::net::Stream;

    const SOON: Duration = Duration::from_secs(20);

    fn wires(versions: [u32; 2]) -> (Wire, Wire) {
        let (here, there) = UnixStream::pair().unwrap();
        let stream = |end| Stream::client(Arc::new(OwnedFd::from(end).into()), None).unwrap();
        (
            Wire::new(stream(here), versions[0]),
            Wire::new(stream(there), versions[1]),
        )
    }

    /// What server and client make of each other.
    fn greeted(
        server: Option<&str>,
        client: Option<&str>,
        versions: [u32; 2],
    ) -> [Result<(), GreetingError>; 2] {
        let secret = |text: Option<&str>| text.map(|text| Secret::new(text.as_bytes()));
        let (mut here, mut there) = wires(versions);
        let secrets = (secret(server), secret(client));
        let greeting = spawn(move || here.greet_client(secrets.0.as_ref(), Deadline::after(SOON)));
        let client = there.greet_server(secrets.1.as_ref(), Deadline::after(SOON));
        drop(there);
        [greeting.join().unwrap(), client]
    }

    #[test]
    fn both_sides_know_the_secret_or_there_is_none() {
        for known in [None, Some("a")] {
            let [server, client] = greeted(known, known, [1; 2]);
            server.unwrap();
            client.unwrap();
        }
        let closed = |error: &GreetingError| matches!(error, GreetingError::Frame(_));
        let [server, client] = greeted(None, Some("a"), [1; 2]).map(Result::unwrap_err);
        assert!(closed(&server) && matches!(client, GreetingError::Unproved));
        let [server, client] = greeted(Some("b"), Some("a"), [1; 2]).map(Result::unwrap_err);
        assert!(closed(&server) && matches!(client, GreetingError::Unproved));
        let [server, client] = greeted(Some("b"), None, [1; 2]).map(Result::unwrap_err);
        assert!(closed(&server) && matches!(client, GreetingError::Asked));
    }

    #[test]
    fn both_sides_learn_that_their_versions_differ() {
        let [server, client] = greeted(Some("a"), Some("a"), [2, 3]).map(Result::unwrap_err);
        assert!(matches!(
            server,
            GreetingError::Version {
                expected: 2,
                got: 3
            }
        ));
        assert!(matches!(
            client,
            GreetingError::Version {
                expected: 3,
                got: 2
            }
        ));
    }

    #[test]
    fn a_client_shows_nothing_to_a_server_that_has_proved_nothing() {
        for shown in [0, 31, 32, 64] {
            let (mut here, mut there) = wires([1; 2]);
            let greeting = spawn(move || {
                let secret = Secret::new(b"a");
                there.greet_server(Some(&secret), Deadline::after(SOON))
            });
            here.receive_version(Deadline::after(SOON)).unwrap();
            here.receive(Deadline::after(SOON), LONGEST).unwrap();
            let shown = Greeting::Shown([7; NUMBER], vec![7; shown]);
            here.say(Deadline::after(SOON), &shown).unwrap();
            let error = greeting.join().unwrap().unwrap_err();
            assert!(matches!(error, GreetingError::Unproved), "{error}");
            let more = here.receive(Deadline::after(SOON), LONGEST);
            assert!(matches!(more, Err(FrameError::Closed)));
        }
    }

    #[test]
    fn a_code_that_comes_back_or_comes_again_proves_nothing() {
        let secret = Secret::new(b"a");
        let (mut here, mut there) = wires([1; 2]);
        let greeting = spawn(move || here.greet_client(Some(&secret), Deadline::after(SOON)));
        let challenge = Greeting::Challenge([1; NUMBER]);
        there.say(Deadline::after(SOON), &challenge).unwrap();
        there.receive_version(Deadline::after(SOON)).unwrap();
        let proof = there.receive(Deadline::after(SOON), LONGEST).unwrap();
        let Ok(Greeting::Shown(_, back)) = proof.parse() else {
            panic!("expected the server's code, got {proof:?}");
        };
        there
            .say(Deadline::after(SOON), &Greeting::Proof(back))
            .unwrap();
        let error = greeting.join().unwrap().unwrap_err();
        assert!(matches!(error, GreetingError::Unproved), "{error}");
    }

    #[test]
    fn a_text_is_another_secret_than_its_bytes() {
        let text = "a-text-that-people-chose";
        let code = |secret: &Secret| secret.code(b"");
        let own = Secret::of_text(text);
        assert_eq!(code(&own), code(&Secret::of_text(text)));
        assert_ne!(code(&own), code(&Secret::new(text.as_bytes())));
        assert_eq!(format!("{own:?}"), "Secret(..)");
    }
}
