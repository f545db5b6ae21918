//! Workers in processes of their own: what the collector keeps of them, and what they are.
//!
//! The collector's side: [`Hiring`](hiring::Hiring) starts the processes and has them agree; a [`Crew`](crew::Crew) gives
//! them parts and takes what they have filled; [`Watch`](watch::Watch) sees to starts, faults and deaths, and an
//! [`Employer`](employer::Employer) to the end of them all. The worker's side: [`worker_main`] makes a
//! [`Worker`](crate::worker::Worker) whose desk is a [`LaneDesk`](lane_desk::LaneDesk).

mod agreement;
mod child;
pub(crate) mod crew;
pub(crate) mod employer;
mod entry;
mod frozen;
pub(crate) mod hiring;
mod lane_desk;
mod live;
pub(crate) mod messages;
mod parallel;
mod program;
mod seat;
mod watch;
mod watchdog;
pub(crate) mod weights;

pub use entry::{WorkerMain, worker_main};
pub use parallel::{MemberError, Parallel, ParallelEnvs, ParallelHandle};
