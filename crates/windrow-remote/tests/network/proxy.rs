//! Between clients and a server, and not to be trusted.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use windrow_remote::Address;

const KINDS: [&str; 5] = ["dropped", "repeated", "delayed", "swapped", "cut"];

/// Of so many pieces, one has a fault.
const ONE_IN: u64 = 12;

pub(crate) struct Proxy {
    port: u16,
    state: Arc<State>,
}

struct State {
    server: (String, u16),
    most: u32,
    made: [AtomicU32; KINDS.len()],
    begun: AtomicU32,
    random: AtomicU64,
}

impl Proxy {
    /// A proxy of `server` that makes `faults` faults.
    pub(crate) fn start(server: &Address, faults: u32, seed: u64) -> Self {
        let Address::Tcp { host, port } = server.clone() else {
            panic!("expected a port");
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let state = Arc::new(State {
            server: (host, port),
            most: faults,
            made: Default::default(),
            begun: AtomicU32::new(0),
            random: AtomicU64::new(seed),
        });
        let (port, at) = (listener.local_addr().unwrap().port(), Arc::clone(&state));
        // It ends with the process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect((at.server.0.as_str(), at.server.1)) else {
                    continue;
                };
                for (from, to) in [
                    (client.try_clone(), server.try_clone()),
                    (Ok(server), Ok(client)),
                ] {
                    let at = Arc::clone(&at);
                    std::thread::spawn(move || at.pass(from.unwrap(), to.unwrap()));
                }
            }
        });
        Self { port, state }
    }

    pub(crate) fn address(&self) -> Address {
        Address::loopback(self.port)
    }

    pub(crate) fn made(&self) -> u32 {
        self.state
            .made
            .iter()
            .map(|made| made.load(Ordering::Relaxed))
            .sum()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.made() >= self.state.most
    }

    /// Faults by kind, in words.
    pub(crate) fn kinds(&self) -> String {
        let kinds = KINDS.iter().zip(&self.state.made);
        let kinds: Vec<_> = kinds
            .map(|(kind, made)| format!("{} {kind}", made.load(Ordering::Relaxed)))
            .collect();
        kinds.join(", ")
    }
}

impl State {
    /// SplitMix64, one sequence for all connections.
    fn random(&self) -> u64 {
        let state = self
            .random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The fault of the next piece, if it has one.
    fn fault(&self) -> Option<usize> {
        if !self.random().is_multiple_of(ONE_IN)
            || self.begun.fetch_add(1, Ordering::Relaxed) >= self.most
        {
            return None;
        }
        let kind = (self.random() % KINDS.len() as u64) as usize;
        self.made[kind].fetch_add(1, Ordering::Relaxed);
        Some(kind)
    }

    /// Passes on what comes, piece by piece, until one side ends.
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        to.set_nodelay(true).unwrap();
        let mut piece = vec![0; 16 << 10];
        let mut held = Vec::new();
        while let Ok(len @ 1..) = from.read(&mut piece) {
            let fault = self.fault().map(|kind| KINDS[kind]);
            let piece = &piece[..len];
            let passed = match fault {
                Some("dropped") => Ok(()),
                Some("repeated") => to.write_all(piece).and_then(|()| to.write_all(piece)),
                Some("delayed") => {
                    std::thread::sleep(Duration::from_millis(self.random() % 100));
                    to.write_all(piece)
                }
                Some("swapped") if held.is_empty() => {
                    held = piece.to_vec();
                    continue;
                }
                Some("cut") => {
                    let _ = to.write_all(&piece[..len / 2]);
                    break;
                }
                _ => to.write_all(piece),
            };
            let held = std::mem::take(&mut held);
            if passed.and_then(|()| to.write_all(&held)).is_err() {
                break;
            }
        }
        for stream in [from, to] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
