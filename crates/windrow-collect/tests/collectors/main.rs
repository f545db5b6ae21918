//! Tests of collectors, one subject a file. All are one program, which takes less time to build
//! than a program for each file.
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
mod max_lag;
mod overwriting;
mod resume;
mod served;
mod shape;
mod shutdown;
mod sink;
mod trajectories;
mod worker_stats;
