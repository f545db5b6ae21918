//! Clients publish and act through a proxy that drops, repeats, delays, swaps and cuts what they
//! send: each request is done once, or its failure is told. Then strangers knock: nobody is let in.
//!
//! `WINDROW_KILLS` says how many faults the proxy makes; `cargo xtask faults network` sets it.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod proxy;
mod strangers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proxy::Proxy;
use tensordict::{DType, Tensor, TensorDict};
use windrow_env::{EnvSpec, Spec};
use windrow_policy::{
    Binding, EnvRows, ExplorationType, Policy, PolicyError, PolicyIn, PolicyRecipe, PolicySpec,
    Weights,
};
use windrow_remote::{Address, Limits, Remote, RemoteServer, RemoteWeights, Token};
use windrow_slab::{Key, RowBlock, RowsMut};

const CLIENTS: u32 = 4;

/// Environments of a client.
const ROWS: u32 = 3;

const STRANGERS: usize = 1000;

#[test]
fn requests_are_done_once_whatever_the_network_does_and_strangers_stay_outside() {
    let times = std::env::var("WINDROW_KILLS").map_or(50, |times| times.parse().unwrap());
    let seed = std::env::var("WINDROW_SEED").map_or_else(
        |_| u64::from(std::process::id()),
        |seed| seed.parse().unwrap(),
    );
    let log = Log::default();
    let limits = Limits::new().message(4096);
    let server = RemoteServer::builder(PolicyRecipe::of(Counted(Arc::clone(&log))));
    let token = Token::new("a-secret-that-clients-know").unwrap();
    let server = server.address(Address::loopback(0)).token(token.clone());
    let server = server.limits(limits).start().unwrap();
    let proxy = Proxy::start(server.address(), times, seed);
    let remote = Remote::new(proxy.address())
        .token(token)
        .limits(limits)
        .silence(Duration::from_millis(60))
        .timeout(Duration::from_secs(60));
    let told: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn({
                    let (proxy, remote) = (&proxy, &remote);
                    move || Client::new(remote, client).run(proxy)
                })
            })
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .collect()
    });

    let (sum, mut duplicates) = Told::sum(told);
    let log = log.lock().unwrap();
    duplicates += log.values().filter(|times| **times > 1).count();
    // What the server did beyond what clients know of, and the other way around; errors that were
    // told are neither.
    let (published, known) = (server.version() as usize, sum.versions.len());
    duplicates += published.saturating_sub(known + sum.reported);
    let (done, rows) = (log.values().sum::<usize>(), ROWS as usize);
    duplicates += done.saturating_sub((sum.acted + sum.reported) * rows);
    let gaps =
        known.saturating_sub(published) + (sum.acted * rows).saturating_sub(done) + sum.wrong;
    let strangers = strangers::knock(STRANGERS, seed);
    println!(
        "{} faults, {duplicates} duplicates, {gaps} unreported gaps, {} errors told, {} unauthenticated connections accepted of {STRANGERS}",
        proxy.made(),
        sum.reported,
        strangers.accepted,
    );
    let stats = server.stats();
    println!(
        "cells: {}; {} actions, {published} publications, {} answers repeated, {} connections; seed {seed}",
        proxy.kinds(),
        sum.acted,
        stats.repeated,
        stats.connections,
    );
    let violations = [
        ("a request was done twice", duplicates > 0),
        (
            "a request was not done, or answered wrongly, and nobody was told",
            gaps > 0,
        ),
        (
            "a client gave up although the server was there",
            sum.reported > 0,
        ),
        ("a stranger was let in", strangers.accepted > 0),
        (
            "strangers were not counted",
            strangers.refused < STRANGERS as u64,
        ),
        ("strangers took memory", strangers.mebibytes > 100),
        ("fewer faults than asked for", proxy.made() < times),
    ];
    let violations: Vec<_> = violations.iter().filter(|(_, is)| *is).collect();
    violations
        .iter()
        .for_each(|(what, _)| println!("violation: {what}; WINDROW_SEED={seed}"));
    assert!(violations.is_empty());
}

/// How often the policy acted, by environment and frame.
type Log = Arc<Mutex<BTreeMap<(u32, u64), usize>>>;

/// Writes down what it is asked, and answers by environment and frame.
#[derive(Clone)]
struct Counted(Log);

fn answer(id: u32, frame: u64) -> i64 {
    i64::from(id) * 1_000_000 + frame as i64
}

impl Policy for Counted {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        Ok(PolicySpec::new(binding.spec.action_leaves()))
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        let mut log = self.0.lock().unwrap();
        let rows = input.envs.ids().iter().zip(input.envs.frames());
        for (out, (&id, &frame)) in out.get_mut::<i64>(Key::new(0))?.iter_mut().zip(rows) {
            *log.entry((id, frame)).or_default() += 1;
            *out = answer(id, frame);
        }
        Ok(())
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.check(weights)
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        match weights.as_slice::<f32>("w") {
            Ok(values) if values.iter().all(|value| *value == values[0]) => Ok(()),
            _ => Err(PolicyError::failed("torn weights")),
        }
    }
}

/// What a client knows.
#[derive(Default)]
struct Told {
    acted: usize,
    versions: BTreeSet<i64>,
    reported: usize,
    wrong: usize,
}

impl Told {
    /// What all know, and versions that two of them were given.
    fn sum(all: Vec<Self>) -> (Self, usize) {
        let (mut sum, mut twice) = (Self::default(), 0);
        for told in all {
            sum.acted += told.acted;
            sum.reported += told.reported;
            sum.wrong += told.wrong;
            for version in told.versions {
                twice += usize::from(!sum.versions.insert(version));
            }
        }
        (sum, twice)
    }
}

struct Client {
    policy: windrow_remote::RemotePolicy,
    weights: RemoteWeights,
    envs: EnvRows,
    obs: RowBlock,
    out: RowBlock,
    told: Told,
}

impl Client {
    fn new(remote: &Remote, client: u32) -> Self {
        let env = EnvSpec::new("Wire", Spec::unbounded(DType::F32, [5]), Spec::discrete(2));
        let mut policy = remote.policy().unwrap();
        let spec = policy.bind(&Binding::new(&env, ROWS as usize)).unwrap();
        Self {
            policy,
            weights: remote.weights().unwrap(),
            envs: EnvRows::new(0, (0..ROWS).map(|row| client * ROWS + row).collect()),
            obs: RowBlock::new(&env.observation_leaves(), ROWS as usize).unwrap(),
            out: RowBlock::new(&spec.columns, ROWS as usize).unwrap(),
            told: Told::default(),
        }
    }

    /// Acts, publishes and fetches until all faults were made, and a little longer.
    fn run(mut self, proxy: &Proxy) -> Told {
        for round in 0.. {
            let is_last = proxy.is_done();
            for _ in 0..4 {
                self.act();
            }
            self.publish(round as f32);
            if round % 2 == 0 {
                self.fetch();
            }
            if is_last {
                break;
            }
        }
        self.told
    }

    fn act(&mut self) {
        let input = PolicyIn::new(self.obs.rows(), &self.envs, ExplorationType::Random);
        match self.policy.act(&input, self.out.rows_mut()) {
            Ok(()) => {
                self.told.acted += 1;
                let actions = self.out.rows().get::<i64>(Key::new(0)).unwrap();
                let rows = self.envs.ids().iter().zip(self.envs.frames());
                let right = rows
                    .zip(actions)
                    .all(|((&id, &frame), action)| *action == answer(id, frame));
                self.told.wrong += usize::from(!right);
            }
            Err(error) => self.report(&error),
        }
        self.envs.advance();
    }

    fn publish(&mut self, value: f32) {
        let mut weights = TensorDict::new([]);
        // Several messages.
        weights
            .set("w", Tensor::from_vec(vec![value; 3000], [3000]).unwrap())
            .unwrap();
        match self.weights.publish(&weights) {
            Ok(version) => self.told.wrong += usize::from(!self.told.versions.insert(version)),
            Err(error) => self.report(&error),
        }
    }

    fn fetch(&mut self) {
        match self.weights.newest(0) {
            Ok(Some(newest)) => {
                let values = newest.weights.as_slice::<f32>("w").unwrap();
                let least = self.told.versions.last().copied().unwrap_or_default();
                let right =
                    values.iter().all(|value| *value == values[0]) && newest.version >= least;
                self.told.wrong += usize::from(!right);
            }
            Ok(None) => self.told.wrong += 1,
            Err(error) => self.report(&error),
        }
    }

    fn report(&mut self, error: &dyn std::fmt::Display) {
        println!("told: {error}");
        self.told.reported += 1;
    }
}
