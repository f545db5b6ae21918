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

const HELLO: u16 = 1;
const WELCOME: u16 = 2;
const CLOSED: u16 = 5;
const FAILED: u16 = 6;
const CHALLENGE: u16 = 9;
const PROOF: u16 = 10;
const BIND: u16 = 16;
const PULL: u16 = 35;
const PIECE: u16 = 36;
const CURRENT: u16 = 37;

fn opening(version: u32) -> Vec<u8> {
    let mut bytes = b"windrow\n".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

fn frame(kind: u16, seq: u64, words: [u64; 3], body: &[u8]) -> Vec<u8> {
    let mut head = crc32fast::hash(body).to_le_bytes().to_vec();
    head.extend((body.len() as u32).to_le_bytes());
    head.extend(kind.to_le_bytes());
    head.extend([0, 0]);
    head.extend(seq.to_le_bytes());
    words
        .iter()
        .for_each(|word| head.extend(word.to_le_bytes()));
    [&crc32fast::hash(&head).to_le_bytes()[..], &head, body].concat()
}

/// The first bytes of a client without a token, up to its `Hello`.
fn hello() -> Vec<u8> {
    let limit = (1u64 << 20).to_le_bytes();
    [unproved(), frame(HELLO, 0, [7, 8, 0], &limit)].concat()
}

/// The greeting of a client without a token.
fn unproved() -> Vec<u8> {
    let challenge = frame(CHALLENGE, 0, [0; 3], &[7; 32]);
    [opening(3), challenge, frame(PROOF, 0, [0; 3], &[])].concat()
}

/// The greeting of a server without a token.
fn greeting() -> Vec<u8> {
    [opening(3), frame(PROOF, 0, [0; 3], &[7; 32])].concat()
}

fn connect(server: &RemoteServer) -> UnixStream {
    let Address::Unix(path) = server.address() else {
        panic!("expected a socket, got {}", server.address());
    };
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// Kind, number, words and body of the next frame.
fn read(stream: &mut UnixStream) -> (u16, u64, [u64; 3], Vec<u8>) {
    let mut head = [0; 48];
    stream.read_exact(&mut head).unwrap();
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
    let mut body = vec![0; u32::from_le_bytes(head[8..12].try_into().unwrap()) as usize];
    stream.read_exact(&mut body).unwrap();
    let kind = u16::from_le_bytes([head[12], head[13]]);
    let words = [24, 32, 40].map(word);
    assert_eq!(
        frame(kind, word(16), words, &body),
        [&head[..], &body].concat()
    );
    (kind, word(16), words, body)
}

fn welcomed(server: &RemoteServer) -> UnixStream {
    let mut stream = connect(server);
    stream.write_all(&hello()).unwrap();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer.to_vec(), opening(3));
    let (kind, _, _, number) = read(&mut stream);
    assert_eq!((kind, number.len()), (PROOF, 32));
    let (kind, _, [_, last, limit], _) = read(&mut stream);
    assert_eq!((kind, last, limit), (WELCOME, 0, 4 << 20));
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
    stream.write_all(&frame(PULL, 1, [0; 3], &[])).unwrap();
    assert_eq!(read(&mut stream), (CURRENT, 1, [0; 3], Vec::new()));
    let newer = net(2).weights();
    server.update_policy_weights(&newer).unwrap();
    stream.write_all(&frame(PULL, 2, [0; 3], &[])).unwrap();
    let bytes = newer.to_bytes().unwrap();
    let words = [bytes.len() as u64, 0, 1];
    assert_eq!(read(&mut stream), (PIECE, 2, words, bytes));
}

#[test]
fn a_server_refuses_what_it_does_not_know_and_says_so() {
    let server = serve(net(1));
    // Another version: the opening tells which one is spoken here, and then there is the end.
    let mut stream = connect(&server);
    stream.write_all(&opening(2)).unwrap();
    assert_eq!(rest(&stream), opening(3));
    // A kind, and a flag, of a later version.
    let mut flagged = frame(PULL, 1, [0; 3], &[]);
    flagged[14] = 4;
    let sum = crc32fast::hash(&flagged[4..]).to_le_bytes();
    flagged[..4].copy_from_slice(&sum);
    for (request, part) in [
        (frame(48, 1, [0; 3], &[]), "of kind 48, which version 3"),
        (flagged, "flags 0x4"),
    ] {
        let mut stream = welcomed(&server);
        stream.write_all(&request).unwrap();
        let (kind, _, [why, ..], reason) = read(&mut stream);
        let reason = String::from_utf8(reason).unwrap();
        assert_eq!((kind, why), (CLOSED, 3), "{reason}");
        assert!(reason.contains(part), "{reason}");
        assert_eq!(rest(&stream), b"");
    }
    // Neither of them did harm.
    patiently(&server).weights().unwrap().newest(0).unwrap();
}

#[test]
fn a_length_beyond_the_limit_ends_the_connection_before_its_bytes_come() {
    let server = serve(net(1));
    let mut long = frame(PULL, 1, [0; 3], &[]);
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let sum = crc32fast::hash(&long[4..]).to_le_bytes();
    long[..4].copy_from_slice(&sum);
    let mut stream = welcomed(&server);
    stream.write_all(&long).unwrap();
    let (kind, .., reason) = read(&mut stream);
    let reason = String::from_utf8(reason).unwrap();
    assert_eq!(kind, CLOSED);
    assert!(
        reason.contains("more than the limit of 4194304"),
        "{reason}"
    );
    // Whoever has not been let in yet may send less.
    let mut stream = connect(&server);
    let greeting = frame(HELLO, 0, [7, 8, 0], &[0; 9000]);
    stream.write_all(&[unproved(), greeting].concat()).unwrap();
    stream.read_exact(&mut [0; 16]).unwrap();
    assert_eq!(read(&mut stream).0, PROOF);
    assert_eq!(read(&mut stream).0, CLOSED);
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
        let text = request.to_string();
        let body = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        number += 1;
        stream
            .write_all(&frame(BIND, number, [0; 3], &body))
            .unwrap();
        let (kind, _, _, reason) = read(&mut stream);
        let reason = String::from_utf8(reason).unwrap();
        assert!(kind == FAILED && reason.contains(part), "{reason}");
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
    stream.write_all(&frame(PULL, 1, [0; 3], &[])).unwrap();
    assert_eq!(read(&mut stream).0, PIECE);
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
    let error = answered(SOON / 3, opening(2), Vec::new());
    assert!(matches!(error, RemoteError::Refused { .. }), "{error}");
    let expected = "expected version 3 of the protocol, got version 2";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn a_client_gives_up_on_a_server_that_answers_a_byte_at_a_time() {
    let welcome = frame(WELCOME, 0, [1, 0, 4096], &[]);
    let long = frame(CURRENT, 1, [0; 3], &[0; 4000]);
    let silence = Duration::from_millis(200);
    let error = answered(silence, [greeting(), welcome].concat(), long);
    assert!(matches!(error, RemoteError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("silent for 200ms"), "{error}");
}

#[test]
fn a_client_gives_up_on_a_server_that_does_not_take_what_it_sends() {
    let welcome = frame(WELCOME, 0, [1, 0, 4 << 20], &[]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let mut streams = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(&[greeting(), welcome.clone()].concat());
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
