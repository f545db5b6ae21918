//! What collectors promise, one promise a file. They are one program, because each program is linked by itself.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "../conformance/crew.rs"]
mod crew;
#[path = "../conformance/faulty.rs"]
mod faulty;
#[path = "../conformance/frames.rs"]
mod frames;
#[path = "../conformance/recorder.rs"]
mod recorder;
#[path = "../conformance/stamp.rs"]
mod stamp;

mod abandoned;
mod attaching;
mod control;
mod cut;
mod determinism;
mod errors;
mod events;
mod faults;
mod interruptions;
mod last_stage;
mod ledger;
mod overwriting;
mod resume;
mod served;
mod shape;
mod shutdown;
mod sink;
mod trajectories;
mod worker_stats;
