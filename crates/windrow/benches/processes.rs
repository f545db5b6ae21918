//! What workers in processes cost, over workers in threads and by themselves.
//!
//! `cartpole` is at least its target, all others are at most. Both sides of a hand-over are awake:
//! they follow each other without a pause.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[cfg(target_os = "linux")]
#[path = "processes/lives.rs"]
mod lives;
#[cfg(target_os = "linux")]
#[path = "common/net.rs"]
mod net;
#[cfg(target_os = "linux")]
#[path = "processes/system.rs"]
mod system;
#[cfg(target_os = "linux")]
#[path = "common/mod.rs"]
mod timing;
#[cfg(target_os = "linux")]
#[path = "processes/work.rs"]
mod work;

#[cfg(target_os = "linux")]
fn main() {
    windrow::worker_main(|_| Ok(())).unwrap();
    if std::env::args().any(|argument| argument == lives::PARENT) {
        return lives::be_parent();
    }
    work::handover();
    work::cartpole();
    work::publish_small();
    work::publish_large();
    lives::first_batch();
    lives::idle();
    lives::death();
    lives::children_gone();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("workers run in processes on Linux only");
}
