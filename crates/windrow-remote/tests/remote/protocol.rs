//! The bytes that travel, as the README has them, and peers that do not keep to it.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tensordict::{Tensor, TensorDict};
use windrow_policy::{Head, NetworkPolicy, Policy, PolicyRecipe, RandomPolicy, nn::Sequential};
use windrow_remote::{Address, Remote, RemoteError, RemoteServer, Token};

use crate::tools::{Seat, by_ids, net, patiently, pole, serve};

/// Longer than anything takes here.
const SOON: Duration = Duration::from_secs(10);

/// The vocabularies.
const GREETING: u32 = 0;
const REQUEST: u32 = 1;
const ANSWER: u32 = 2;

/// The places of messages in theirs.
const CHALLENGE: u8 = 0;
const SHOWN: u8 = 1;
const PROOF: u8 = 2;
const HELLO: u8 = 0;
const BIND: u8 = 2;
const PULL: u8 = 5;
const WELCOME: u8 = 0;
const CLOSED: u8 = 2;
const FAILED: u8 = 3;
const PIECE: u8 = 8;
const CURRENT: u8 = 9;

/// Place of a [`CLOSED`] for a client that has sent what no client may send.
const MISUSED: u8 = 2;

fn opening(version: u32) -> Vec<u8> {
    let mut bytes = b"windrow\n".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

/// `number` in groups of seven bits, the lowest first.
fn varint(mut number: u128) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A message: its place in the vocabulary, and its numbers.
fn message(place: u8, numbers: &[u128]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|&number| varint(number));
    [place].into_iter().chain(numbers).collect()
}

/// `bytes` behind their number.
fn counted(bytes: &[u8]) -> Vec<u8> {
    [&varint(bytes.len() as u128)[..], bytes].concat()
}

fn frame(kind: u32, seq: u64, message: &[u8], body: &[u8]) -> Vec<u8> {
    let content = [message, body].concat();
    let mut head = crc32fast::hash(&content).to_le_bytes().to_vec();
    for number in [message.len() as u32, body.len() as u32, kind] {
        head.extend(number.to_le_bytes());
    }
    head.extend(seq.to_le_bytes());
    [&crc32fast::hash(&head).to_le_bytes()[..], &head, &content].concat()
}

fn pull(seq: u64) -> Vec<u8> {
    frame(REQUEST, seq, &message(PULL, &[0]), &[])
}

/// The first bytes of a client without a token, up to its `Hello`.
fn hello() -> Vec<u8> {
    let hello = message(HELLO, &[7 | 8 << 64, 0, 1 << 20]);
    [unproved(), frame(REQUEST, 0, &hello, &[])].concat()
}

/// The greeting of a client without a token.
fn unproved() -> Vec<u8> {
    let challenge = [&[CHALLENGE][..], &[7; 32]].concat();
    let challenge = frame(GREETING, 0, &challenge, &[]);
    let proof = frame(GREETING, 0, &[PROOF, 0], &[]);
    [opening(4), challenge, proof].concat()
}

/// The greeting of a server without a token.
fn greeting() -> Vec<u8> {
    let shown = [&[SHOWN][..], &[7; 32], &[0]].concat();
    [opening(4), frame(GREETING, 0, &shown, &[])].concat()
}

/// The welcome of a server that takes messages of `limit` bytes.
fn welcome(limit: u128) -> Vec<u8> {
    frame(ANSWER, 0, &message(WELCOME, &[1, 0, limit]), &[])
}

fn connect(server: &RemoteServer) -> UnixStream {
    let Address::Unix(path) = server.address() else {
        panic!("expected a socket, got {}", server.address());
    };
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// The next frame: its vocabulary, its number, the message and the bytes behind it.
fn read(stream: &mut UnixStream) -> (u32, u64, Vec<u8>, Vec<u8>) {
    let mut head = [0; 28];
    stream.read_exact(&mut head).unwrap();
    let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
    let [mut message, mut body] = [8, 12].map(|at| vec![0; number(at) as usize]);
    stream.read_exact(&mut message).unwrap();
    stream.read_exact(&mut body).unwrap();
    let (kind, seq) = (
        number(16),
        u64::from_le_bytes(head[20..].try_into().unwrap()),
    );
    assert_eq!(
        frame(kind, seq, &message, &body),
        [&head[..], &message, &body].concat()
    );
    (kind, seq, message, body)
}

/// The next answer: its place, and the text behind it.
fn read_text(stream: &mut UnixStream) -> (u8, String) {
    let (kind, _, message, _) = read(stream);
    assert_eq!(kind, ANSWER);
    let text = String::from_utf8_lossy(&message[1..]).into_owned();
    (message[0], text)
}

fn welcomed(server: &RemoteServer) -> UnixStream {
    let mut stream = connect(server);
    stream.write_all(&hello()).unwrap();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer.to_vec(), opening(4));
    let (kind, _, shown, _) = read(&mut stream);
    assert_eq!((kind, shown[0], shown.len()), (GREETING, SHOWN, 34));
    let (kind, _, welcome, _) = read(&mut stream);
    assert_eq!((kind, welcome[0]), (ANSWER, WELCOME));
    // Behind the number of the server's run: no request was done, and the limit.
    assert!(welcome.ends_with(&[&[0][..], &varint(4 << 20)].concat()));
    stream
}

/// What comes until the server closes.
fn rest(mut stream: &UnixStream) -> Vec<u8> {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    rest
}

#[test]
fn a_conversation_has_the_bytes_of_the_readme() {
    let server = serve(net(1));
    let mut stream = welcomed(&server);
    stream.write_all(&pull(1)).unwrap();
    let current = (ANSWER, 1, vec![CURRENT, 0], Vec::new());
    assert_eq!(read(&mut stream), current);
    let newer = net(2).weights();
    server.update_policy_weights(&newer).unwrap();
    stream.write_all(&pull(2)).unwrap();
    let bytes = newer.to_bytes().unwrap();
    // A version is signed, so that 1 travels as 2.
    let piece = message(PIECE, &[bytes.len() as u128, 0, 2]);
    assert_eq!(read(&mut stream), (ANSWER, 2, piece, bytes));
}

#[test]
fn a_server_refuses_what_it_does_not_know_and_says_so() {
    let server = serve(net(1));
    // Another version: the opening tells which one is spoken here, and then there is the end.
    let mut stream = connect(&server);
    stream.write_all(&opening(3)).unwrap();
    assert_eq!(rest(&stream), opening(4));
    // A message, and a vocabulary, of a later version.
    for (request, part) in [
        (frame(REQUEST, 1, &[48], &[]), "Request cannot be read"),
        (frame(9, 1, &[PULL, 0], &[]), "expected kind 1, got kind 9"),
    ] {
        let mut stream = welcomed(&server);
        stream.write_all(&request).unwrap();
        let (place, reason) = read_text(&mut stream);
        assert_eq!((place, reason.as_bytes()[0]), (CLOSED, MISUSED), "{reason}");
        assert!(reason.contains(part), "{reason}");
        assert_eq!(rest(&stream), b"");
    }
    // Neither of them did harm.
    patiently(&server).weights().unwrap().newest(0).unwrap();
}

#[test]
fn a_length_beyond_the_limit_ends_the_connection_before_its_bytes_come() {
    let server = serve(net(1));
    for at in [8, 12] {
        let mut long = pull(1);
        long[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let sum = crc32fast::hash(&long[4..28]).to_le_bytes();
        long[..4].copy_from_slice(&sum);
        let mut stream = welcomed(&server);
        stream.write_all(&long[..28]).unwrap();
        let (place, reason) = read_text(&mut stream);
        assert_eq!(place, CLOSED);
        assert!(
            reason.contains("more than the limit of 4194304"),
            "{reason}"
        );
    }
    // Whoever has not been let in yet may send less.
    let mut stream = connect(&server);
    let greeting = frame(REQUEST, 0, &message(HELLO, &[7, 0, 0]), &[0; 9000]);
    stream.write_all(&[unproved(), greeting].concat()).unwrap();
    stream.read_exact(&mut [0; 16]).unwrap();
    assert_eq!(read(&mut stream).2[0], SHOWN);
    assert_eq!(read_text(&mut stream).0, CLOSED);
}

/// What is too much: a part of the spec, its value, the number of environments, and what the error
/// says.
fn too_much() -> Vec<(&'static str, Value, u64, &'static str)> {
    let (vast, many) = (1u64 << 40, 1u64 << 16);
    let floats = |shape: Value| json!({"Unbounded": {"dtype": "float32", "shape": shape}});
    let run = json!([[0.5, vast]]);
    let bounded = json!({"Bounded": {"dtype": "uint8", "shape": [vast], "low": run, "high": run}});
    let nested = (0..36).fold(
        json!({"Discrete": {"n": 2}}),
        |inner, _| json!({"Composite": [["d", inner]]}),
    );
    let leaves: Vec<_> = (0..5000)
        .map(|leaf| json!([leaf.to_string(), floats(json!([]))]))
        .collect();
    let bytes = json!({"Unbounded": {"dtype": "bytes", "shape": [vast]}});
    vec![
        (
            "action",
            floats(json!([vast])),
            1,
            "actions of 1 environments have more bytes",
        ),
        ("action", floats(json!([vast, vast])), 1, "can be counted"),
        (
            "action",
            bounded.clone(),
            1,
            "actions of 1 environments have more bytes",
        ),
        (
            "action",
            json!({"OneHot": {"nvec": [vast]}}),
            1,
            "have more bytes",
        ),
        (
            "observation",
            bounded,
            1,
            "observations of 1 environments have more bytes",
        ),
        (
            "observation",
            bytes,
            1,
            "observations of 1 environments have more bytes",
        ),
        (
            "observation",
            floats(json!(vec![0; 33])),
            1,
            "a leaf of 33 dimensions",
        ),
        (
            "observation",
            floats(json!([0])),
            vast,
            "expected 1 to 65536 environments",
        ),
        (
            "observation",
            floats(json!([0])),
            0,
            "expected 1 to 65536 environments",
        ),
        ("observation", floats(json!([16])), many, "have more bytes"),
        (
            "observation",
            json!({"Composite": leaves}),
            1,
            "5000 leaves",
        ),
        ("observation", nested, 1, "36 names"),
    ]
}

#[test]
fn what_a_request_to_bind_describes_has_limits_before_it_has_memory() {
    let server = serve(RandomPolicy::new());
    let (mut stream, mut number) = (welcomed(&server), 0);
    let pole = serde_json::to_value(pole()).unwrap();
    for (key, value, envs, part) in too_much() {
        let mut spec = pole.clone();
        spec[key] = value;
        let request = json!({
            "spec": spec, "num_envs": envs, "batched": true, "worker": 0, "first_rows": false
        });
        let bind = [&[BIND], &counted(request.to_string().as_bytes())[..]].concat();
        number += 1;
        stream
            .write_all(&frame(REQUEST, number, &bind, &[]))
            .unwrap();
        let (place, reason) = read_text(&mut stream);
        assert!(place == FAILED && reason.contains(part), "{reason}");
    }
    assert_eq!(server.stats().panicked, 0);
}

#[test]
fn a_stranger_that_sends_a_byte_at_a_time_is_not_waited_for() {
    let token = Token::new("a-secret-that-clients-know").unwrap();
    let builder = RemoteServer::builder(PolicyRecipe::of(net(1))).token(token);
    let server = builder
        .greeting(Duration::from_millis(300))
        .start()
        .unwrap();
    let mut stream = connect(&server);
    let began = Instant::now();
    for byte in hello() {
        if stream.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(rest(&stream), b"");
    assert!(began.elapsed() < SOON);
    assert_eq!(server.stats().accepted, 0);
}

#[test]
fn a_server_ends_although_a_client_does_not_read_what_it_asked_for() {
    let layers = Sequential::new().linear(4, 1 << 16).linear(1 << 16, 2);
    let large = NetworkPolicy::new(layers, Head::Categorical);
    let weights = large.weights();
    let mut server = serve(large);
    server.update_policy_weights(&weights).unwrap();
    let mut stream = welcomed(&server);
    stream.write_all(&pull(1)).unwrap();
    assert_eq!(read(&mut stream).2[0], PIECE);
    let began = Instant::now();
    server.shutdown();
    assert!(began.elapsed() < SOON);
    // All threads have gone, not only been left behind: those would be given a second to say that
    // it ends, and another.
    let began = Instant::now();
    drop(server);
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_client_that_goes_while_the_policy_acts_for_it_leaves_its_place() {
    let (inside, asked) = std::sync::mpsc::channel();
    let (free, until) = std::sync::mpsc::channel::<()>();
    let until = std::sync::Arc::new(std::sync::Mutex::new(until));
    let recipe = PolicyRecipe::of(by_ids(move |_, _| {
        inside.send(()).unwrap();
        let _ = until.lock().unwrap().recv();
        Ok(())
    }));
    let server = RemoteServer::builder(recipe)
        .max_connections(1)
        .start()
        .unwrap();
    let remote = patiently(&server).timeout(Duration::from_secs(2));
    let gone = std::thread::spawn(move || {
        let mut seat = Seat::new(remote.policy().unwrap(), 0, 1).unwrap();
        seat.act(0).unwrap_err()
    });
    asked.recv_timeout(SOON).unwrap();
    gone.join().unwrap();
    let mut weights = patiently(&server).weights().unwrap();
    assert!(weights.newest(0).unwrap().is_none());
    drop(free);
}

/// What a client that bears so much `silence` says of a server that answers its greeting with
/// `at_once`, and then with `slowly`, a byte at a time.
fn answered(silence: Duration, at_once: Vec<u8>, slowly: Vec<u8>) -> RemoteError {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, slowly) = (stream.unwrap(), slowly.clone());
            let _ = stream.write_all(&at_once);
            std::thread::spawn(move || {
                for byte in slowly {
                    if stream.write_all(&[byte]).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
    let remote = Remote::new(Address::unix(path))
        .timeout(3 * silence)
        .silence(silence);
    let began = Instant::now();
    let error = remote.weights().unwrap().newest(0).unwrap_err();
    assert!(began.elapsed() < SOON);
    error
}

#[test]
fn a_client_refuses_a_server_of_another_version() {
    let error = answered(SOON / 3, opening(3), Vec::new());
    assert!(matches!(error, RemoteError::Refused { .. }), "{error}");
    let expected = "expected version 4 of the protocol, got version 3";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn a_client_gives_up_on_a_server_that_answers_a_byte_at_a_time() {
    let long = frame(ANSWER, 1, &[CURRENT, 0], &[0; 4000]);
    let silence = Duration::from_millis(200);
    let error = answered(silence, [greeting(), welcome(4096)].concat(), long);
    assert!(matches!(error, RemoteError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("silent for 200ms"), "{error}");
}

#[test]
fn a_client_gives_up_on_a_server_that_does_not_take_what_it_sends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let mut streams = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(&[greeting(), welcome(4 << 20)].concat());
            streams.push(stream);
        }
    });
    let remote = Remote::new(Address::unix(path))
        .timeout(Duration::from_millis(600))
        .silence(Duration::from_millis(200));
    let mut large = TensorDict::new([]);
    let values = Tensor::from_vec(vec![0f32; 1 << 20], [1 << 20]).unwrap();
    large.set("w", values).unwrap();
    let began = Instant::now();
    let error = remote.weights().unwrap().publish(&large).unwrap_err();
    assert!(matches!(error, RemoteError::Timeout { .. }), "{error}");
    assert!(began.elapsed() < SOON);
}
