//! The server that evaluates the policy, if one is to.

use std::sync::Arc;

use windrow_policy::{ServerConfig, WeightStore};

use crate::config::builder::CollectorBuilder;
use crate::config::plan::{Inference, Placement};
use crate::error::ArgumentError;
use crate::shared::service::Service;

/// Whether there can be a server where one is wanted, and nothing is chosen for a server that there
/// is not.
pub(super) fn check_inference(chosen: &CollectorBuilder) -> Result<(), ArgumentError> {
    let config = &chosen.config;
    let plan = config.plan();
    let needs = |name, needs| Err(ArgumentError::Needs { name, needs });
    let is_served = plan.inference == Inference::Served;
    if is_served && plan.placement != Placement::Threads {
        return needs("inference served", "workers in threads: placement threads");
    }
    let needed = match is_served {
        true if !chosen.policy.is_served_elsewhere() => return Ok(()),
        true => "a policy that is evaluated here: the server of this one gathers requests",
        false => "inference served",
    };
    let chosen = [
        ("max_batch_size", config.max_batch_size.is_some()),
        ("min_batch_size", config.min_batch_size.is_some()),
        ("server_timeout", config.server_timeout.is_some()),
    ];
    match chosen.into_iter().find(|(_, chosen)| *chosen) {
        Some((name, _)) => needs(name, needed),
        None => Ok(()),
    }
}

/// Whether each worker has weights of its own, where workers take up newer ones at different times,
/// or while the program does something else.
pub(super) fn check_clones(chosen: &CollectorBuilder, workers: usize) -> Result<(), ArgumentError> {
    let plan = chosen.config.plan();
    let apart = match plan.placement {
        Placement::Inline => workers > 1,
        Placement::Threads => plan.inference != Inference::Served,
        // What was sent to another process is a copy.
        Placement::Processes => false,
    };
    match apart && chosen.policy.shares_weights() {
        true => Err(ArgumentError::Needs {
            name: "policy",
            needs: "clones with weights of their own, or policy_factory with one for each worker: what is loaded into one clone acts in all",
        }),
        false => Ok(()),
    }
}

/// What serves the policy to `workers` workers of `num_envs` environments, if it is served.
pub(super) fn service(
    chosen: &CollectorBuilder,
    workers: usize,
    num_envs: usize,
) -> Option<Arc<Service>> {
    let config = &chosen.config;
    if config.plan().inference != Inference::Served || chosen.policy.is_served_elsewhere() {
        return None;
    }
    let most = config.max_batch_size.unwrap_or(workers * num_envs);
    let mut server = ServerConfig::new().max_batch_size(most);
    server.sole_client = workers == 1;
    server.min_batch_size = config.min_batch_size.unwrap_or(server.min_batch_size);
    server.timeout = config.server_timeout.unwrap_or(server.timeout);
    let weights = Arc::new(WeightStore::new(workers));
    let service = Service::new(chosen.policy.clone(), server, weights);
    Some(Arc::new(service))
}
