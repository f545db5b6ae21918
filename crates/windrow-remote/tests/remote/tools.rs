//! What the tests share.

use std::time::Duration;

use tensordict::DType;
use windrow_env::{EnvSpec, Spec};
use windrow_policy::{
    Binding, EnvRows, ExplorationType, Head, NetworkPolicy, Policy, PolicyError, PolicyIn,
    PolicyRecipe, PolicySpec, nn::Sequential, policy_fn,
};
use windrow_remote::{Remote, RemoteServer, Token};
use windrow_slab::{Key, LeafSpec, RowBlock};

/// Four numbers are observed, two choices are there.
pub(crate) fn pole() -> EnvSpec {
    EnvSpec::new("Pole", Spec::unbounded(DType::F32, [4]), Spec::discrete(2))
}

pub(crate) fn net(seed: u64) -> NetworkPolicy {
    let layers = Sequential::new()
        .linear(4, 64)
        .tanh()
        .linear(64, 2)
        .seed(seed);
    NetworkPolicy::new(layers, Head::Categorical)
}

/// A policy with rows of its own.
pub(crate) struct Seat<P> {
    pub(crate) policy: P,
    pub(crate) spec: PolicySpec,
    pub(crate) envs: EnvRows,
    obs: RowBlock,
    out: RowBlock,
}

impl<P: Policy> Seat<P> {
    /// `policy` for environments `from..from + rows`.
    pub(crate) fn new(mut policy: P, from: u32, rows: usize) -> Result<Self, PolicyError> {
        let env = pole();
        let spec = policy.bind(&Binding::new(&env, rows))?;
        Ok(Self {
            policy,
            envs: EnvRows::new(7, (from..from + rows as u32).collect()),
            obs: RowBlock::new(&env.observation_leaves(), rows)?,
            out: RowBlock::new(&spec.columns, rows)?,
            spec,
        })
    }

    /// Acts for observations that follow from `frame`; the actions.
    pub(crate) fn act(&mut self, frame: usize) -> Result<Vec<i64>, PolicyError> {
        let obs = self.obs.rows_mut().get_mut::<f32>(Key::new(0)).map(|obs| {
            for (place, value) in obs.iter_mut().enumerate() {
                *value = ((place * 31 + frame * 17) as f32).sin();
            }
        });
        obs?;
        let input = PolicyIn::new(self.obs.rows(), &self.envs, ExplorationType::Random);
        self.policy.act(&input, self.out.rows_mut())?;
        self.envs.advance();
        Ok(self.out.rows().get::<i64>(Key::new(0))?.to_vec())
    }
}

pub(crate) fn serve(policy: impl Policy + Clone + 'static) -> RemoteServer {
    RemoteServer::builder(PolicyRecipe::of(policy))
        .start()
        .unwrap()
}

/// For tests that wait for failure: tries for a moment only.
pub(crate) fn briefly(server: &RemoteServer) -> Remote {
    Remote::new(server.address().clone()).timeout(Duration::from_millis(300))
}

pub(crate) fn patiently(server: &RemoteServer) -> Remote {
    Remote::new(server.address().clone())
}

/// The token of servers at a port, which always need one.
pub(crate) fn token() -> Token {
    Token::new("a-secret-that-clients-know").unwrap()
}

/// Acts by a function of the ids of environments.
pub(crate) fn by_ids(
    act: impl FnMut(&[u32], &mut [i64]) -> Result<(), PolicyError> + Send + Clone + 'static,
) -> impl Policy + Clone + 'static {
    let mut act = act;
    policy_fn(
        [LeafSpec::new("action", DType::I64, [])],
        move |input, mut out| act(input.envs.ids(), out.get_mut::<i64>(Key::new(0))?),
    )
}
