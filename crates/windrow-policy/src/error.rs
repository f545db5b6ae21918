use std::sync::Arc;

use tensordict::NestedKey;
use windrow_env::names::others;
use windrow_slab::SlabError;

use crate::WeightsError;

/// Errors of policies, their weights and inference servers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A row was accessed by a wrong column or element type.
    #[error("policy broke its spec")]
    Row(#[from] SlabError),
    /// The policy was made for another kind of environment.
    #[error("{policy} does not fit {env}: {what}: expected {expected}, got {got}")]
    Fit {
        /// The policy, in words.
        policy: String,
        /// Id of the environment.
        env: String,
        /// The compared property.
        what: String,
        /// The value that one side needs.
        expected: String,
        /// The value that the other side has.
        got: String,
    },
    /// `act` was called before `bind`.
    #[error("{policy} was asked to act before it was bound to an environment")]
    NotBound {
        /// The policy, in words.
        policy: &'static str,
    },
    /// The inputs and outputs of one call differ in their number of rows.
    #[error("{what}: expected {expected} rows, got {got}")]
    Rows {
        /// The input that differs.
        what: &'static str,
        /// Rows of the actions to be written.
        expected: usize,
        /// Rows of the input.
        got: usize,
    },
    /// A network returned a number that gives no action.
    #[error("environment {env}, frame {frame}: {what} is {value}")]
    NotFinite {
        /// The output, in words.
        what: &'static str,
        /// Its value.
        value: f32,
        /// Environment of the row, over all workers.
        env: u32,
        /// Frame of that environment.
        frame: u64,
    },
    /// The mask of an environment allows no action.
    #[error("no action is legal: the mask of an environment is all false")]
    NoLegalAction,
    /// A network whose layers cannot follow each other.
    #[error("layer {layer} ({kind}): {what}: expected {expected}, got {got}")]
    Layer {
        /// Number of the layer.
        layer: usize,
        /// Kind of the layer.
        kind: &'static str,
        /// The compared property.
        what: &'static str,
        /// The value that the layer needs.
        expected: usize,
        /// The value that it got.
        got: usize,
    },
    /// An operation of a graph whose operands do not fit it, or each other.
    #[error(
        "layer {layer} (Graph): {op}: expected operands that fit, got {got:?} numbers in a row"
    )]
    Operands {
        /// Number of the operation.
        layer: usize,
        /// The operation.
        op: String,
        /// Numbers in a row of each operand.
        got: Vec<usize>,
    },
    /// A layer that is too large.
    #[error("layer {layer} ({kind}): no memory for parameters from {inputs} to {outputs} numbers")]
    LayerMemory {
        /// Number of the layer.
        layer: usize,
        /// Kind of the layer.
        kind: &'static str,
        /// Numbers that it reads in a row.
        inputs: usize,
        /// Numbers that it writes in a row.
        outputs: usize,
    },
    /// New parameters that the policy cannot take.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// No policy is registered under this name.
    #[error("no policy is called {name:?}{}", elsewhere(near, known))]
    UnknownPolicy {
        /// The unknown name.
        name: String,
        /// Registered names that look like it, best first.
        near: Vec<String>,
        /// All registered names.
        known: Vec<String>,
    },
    /// Another policy is registered under this name.
    #[error("a policy is registered as {name:?} already; choose another name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A recipe with a factory given as code cannot be serialized.
    #[error(
        "policies made by {factory} cannot be written down, which worker processes need: register them under a name with windrow::worker_main at the start of main and pass PolicyRecipe::named, give a NetworkPolicy or a RandomPolicy, or choose placement threads"
    )]
    Unwritable {
        /// Type of the factory, or of the policy that is cloned.
        factory: &'static str,
    },
    /// A written recipe that cannot be read.
    #[error("the recipe of policies cannot be read: {reason}")]
    Unreadable {
        /// Why it cannot be read.
        reason: String,
    },
    /// A policy that keeps states [by row](crate::States::ByRow) cannot be
    /// [served](crate::InferenceServer): its rows belong to varying clients.
    #[error(
        "a policy that keeps a state for each row cannot be served: it writes {key:?} before and after each step; keep it by EnvRows::place and declare States::ByPlace, or let each worker evaluate it"
    )]
    ServedState {
        /// The state.
        key: NestedKey,
    },
    /// The error of a served policy, which all requests of its batch get.
    #[error(transparent)]
    Served(Arc<PolicyError>),
    /// The [server](crate::InferenceServer) has ended.
    #[error("the inference server has ended: {reason}")]
    ServerEnded {
        /// Why it has ended.
        reason: Arc<str>,
    },
    /// A choice of an [inference server](crate::InferenceServer) is out of its range.
    #[error("{name} of an inference server must be {expected}, got {got}")]
    ServerConfig {
        /// The choice.
        name: &'static str,
        /// The allowed values.
        expected: String,
        /// The value that was given.
        got: usize,
    },
    /// A thread could not be created.
    #[error("failed to start the thread of the inference server")]
    ServerThread(#[source] std::io::Error),
    /// Another error of the policy.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl PolicyError {
    /// An error of the policy's own, from a message or another error.
    pub fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed(error.into())
    }
}

fn elsewhere(near: &[String], known: &[String]) -> String {
    match known {
        [] => "; register it with windrow::worker_main at the start of main".to_owned(),
        known => others(near, known),
    }
}

/// Joins names for a message.
pub(crate) fn names<'a>(keys: impl IntoIterator<Item = &'a NestedKey>) -> String {
    let names: Vec<_> = keys.into_iter().map(|key| format!("{key:?}")).collect();
    names.join(", ")
}
