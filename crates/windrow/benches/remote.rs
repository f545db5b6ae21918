//! A policy over a Unix socket against the same policy here: what a round trip costs beyond the
//! forward.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "common/mod.rs"]
mod timing;

use std::time::Instant;

use windrow::envs::{EnvSpec, Spec};
use windrow::nn::Sequential;
use windrow::policy::EnvRows;
use windrow::policy::{Binding, PolicyIn};
use windrow::remote::{Address, Remote, RemoteServer, Token};
use windrow::{DType, ExplorationType, Head, NetworkPolicy, Policy, PolicyRecipe, RowBlock};

const ROWS: usize = 64;
const CALLS: usize = 2000;

fn main() {
    let folder = std::env::temp_dir().join(format!("windrow-bench-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let token = Token::new("a-secret-that-clients-know").unwrap();
    let socket = Address::unix(folder.join("policy.sock"));
    for (name, address, limit) in [
        ("round_trip_unix_us", socket, 150.0),
        ("round_trip_loopback_us", Address::loopback(0), 200.0),
    ] {
        let server = RemoteServer::builder(PolicyRecipe::of(net()))
            .address(address)
            .token(token.clone())
            .start()
            .unwrap();
        let mut there = Actor::new(
            Remote::new(server.address().clone())
                .token(token.clone())
                .policy()
                .unwrap(),
        );
        let mut here = Actor::new(net());
        timing::at_most(name, limit, || there.median() - here.median());
    }
    std::fs::remove_dir_all(folder).unwrap();
}

fn net() -> NetworkPolicy {
    let layers = Sequential::new()
        .linear(4, 64)
        .tanh()
        .linear(64, 64)
        .tanh()
        .linear(64, 2);
    NetworkPolicy::new(layers, Head::Categorical)
}

/// A policy with observations for it.
struct Actor<P> {
    policy: P,
    envs: EnvRows,
    obs: RowBlock,
    out: RowBlock,
}

impl<P: Policy> Actor<P> {
    fn new(mut policy: P) -> Self {
        let env = EnvSpec::new("Pole", Spec::unbounded(DType::F32, [4]), Spec::discrete(2));
        let spec = policy.bind(&Binding::new(&env, ROWS)).unwrap();
        Self {
            policy,
            envs: EnvRows::new(7, (0..ROWS as u32).collect()),
            obs: RowBlock::new(&env.observation_leaves(), ROWS).unwrap(),
            out: RowBlock::new(&spec.columns, ROWS).unwrap(),
        }
    }

    /// Median time of a call, in µs.
    fn median(&mut self) -> f64 {
        let mut times: Vec<f64> = (0..CALLS).map(|_| self.act()).collect();
        times.sort_by(f64::total_cmp);
        times[CALLS / 2]
    }

    fn act(&mut self) -> f64 {
        let input = PolicyIn::new(self.obs.rows(), &self.envs, ExplorationType::Random);
        let start = Instant::now();
        self.policy.act(&input, self.out.rows_mut()).unwrap();
        let time = start.elapsed();
        self.envs.advance();
        time.as_secs_f64() * 1e6
    }
}
