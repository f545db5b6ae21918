#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod activation;
mod error;
mod network;
mod tensor;
mod tensors;
mod vars;

pub use error::CandleError;
pub use network::Network;
pub use tensor::{from_candle, to_candle};
pub use tensors::Tensors;
pub use vars::Vars;
