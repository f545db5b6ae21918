//! Workers somewhere else (ADR 0032). A [`Launcher`](crate::Launcher) starts each, and it connects
//! to a [relay](relay), a thread that is a worker process to its collector; at its own end, it
//! fills parts through a [`StreamChannel`](channel::StreamChannel).

pub(super) mod channel;
mod entry;
pub(crate) mod relay;
pub(super) mod stream;

pub(super) use entry::{connect, is_invited};
