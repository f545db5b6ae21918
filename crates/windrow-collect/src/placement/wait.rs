use std::sync::Arc;

use windrow_slab::{Lease, Ring};
use windrow_sync::{GivenUp, SLICE};

use crate::CollectError;

/// Waits for the next whole slab, which workers elsewhere fill.
pub(super) fn wait(ring: &Arc<Ring>, given_up: &mut GivenUp<'_>) -> Result<Lease, CollectError> {
    let Some(given_up) = given_up else {
        return Ok(ring.next()?);
    };
    loop {
        if let Some(lease) = ring.next_within(SLICE)? {
            return Ok(lease);
        }
        if given_up() {
            return Err(CollectError::BatchGivenUp);
        }
    }
}
