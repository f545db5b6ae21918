//! Who does not know the secret.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use windrow_policy::PolicyRecipe;
use windrow_remote::{Address, Remote, RemoteServer, Token};

/// What became of them.
pub(crate) struct Outcome {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    /// Memory that the process has more than before.
    pub(crate) mebibytes: usize,
}

/// `count` connections without the token, with another, or with bytes that mean nothing.
pub(crate) fn knock(count: usize, seed: u64) -> Outcome {
    let token = |text: &str| Token::new(format!("{text}-0123456789abcdef")).unwrap();
    let builder = RemoteServer::builder(PolicyRecipe::random())
        .token(token("right"))
        .address(Address::loopback(0))
        .greeting(Duration::from_secs(2));
    let server = builder.max_connections(64).start().unwrap();
    let Address::Tcp { port, .. } = *server.address() else {
        panic!("expected a port");
    };
    let remote = Remote::new(server.address().clone()).timeout(Duration::from_secs(20));
    let before = memory();
    let mut random = seed;
    let mut noise = |len: usize| -> Vec<u8> {
        let mut next = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as u8
        };
        (0..len).map(|_| next()).collect()
    };
    for stranger in 0..count {
        let call = |remote: &Remote| assert!(remote.weights().unwrap().newest(0).is_err());
        let bytes = match stranger % 8 {
            // A greeting with a wrong code.
            0 => {
                let (challenge, code) = ([&[0][..], &[7; 32]], [&[2, 32][..], &[0; 32]]);
                let [challenge, proof] =
                    [challenge.concat(), code.concat()].map(|message| greeting(&message));
                [opening(), challenge, proof].concat()
            }
            1 => {
                call(&remote.clone().token(token("wrong")));
                continue;
            }
            2 => noise(512),
            // The opening of a client, and then nothing that makes sense.
            3 => [opening(), noise(256)].concat(),
            // A frame that says it is longer than any may be.
            4 => [opening(), endless(), noise(64)].concat(),
            5 => b"POST / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
            6 => [
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
                noise(200),
            ]
            .concat(),
            _ => Vec::new(),
        };
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // The server may have closed it already.
        let _ = stream.write_all(&bytes);
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.stats().refused < count as u64 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let stats = server.stats();
    // The door is where it was.
    remote
        .token(token("right"))
        .weights()
        .unwrap()
        .newest(0)
        .unwrap();
    Outcome {
        accepted: stats.accepted,
        refused: stats.refused,
        mebibytes: memory().saturating_sub(before),
    }
}

/// What a client sends first.
fn opening() -> Vec<u8> {
    let mut bytes = [&b"windrow\n"[..], &4u32.to_le_bytes()].concat();
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

/// A frame of the greeting.
fn greeting(message: &[u8]) -> Vec<u8> {
    let mut head = [0; 24];
    head[..4].copy_from_slice(&crc32fast::hash(message).to_le_bytes());
    head[4] = message.len() as u8;
    [&crc32fast::hash(&head).to_le_bytes()[..], &head, message].concat()
}

/// The header of a greeting whose message has four gigabytes.
fn endless() -> Vec<u8> {
    let mut head = [0; 24];
    head[4..8].fill(0xff);
    [&crc32fast::hash(&head).to_le_bytes()[..], &head].concat()
}

/// Resident memory of this process in MiB; 0 where the system does not tell.
fn memory() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let resident = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<usize>().ok());
    resident.unwrap_or_default() * 4096 / (1 << 20)
}
