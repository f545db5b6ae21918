//! Just enough of the grammars of Rust and Python to measure functions and to see which module knows which, on machines
//! that have neither rustc's parser at hand nor an interpreter.

pub(crate) mod functions;
pub(crate) mod modules;
pub(crate) mod python;
pub(crate) mod rust;
