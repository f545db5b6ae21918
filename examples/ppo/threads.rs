//! How many threads candle uses.

use std::{env, io, os::unix::process::CommandExt, process::Command};

const VARIABLE: &str = "RAYON_NUM_THREADS";

/// Starts the program over with one thread for candle, unless the environment says how many.
///
/// Networks this small gain nothing from more. And candle asks before every product of matrices: the environment, or
/// else the system for a description of all processors, which takes longer than the product.
///
/// # Errors
/// The program could not be started.
pub(crate) fn settle() -> io::Result<()> {
    if env::var_os(VARIABLE).is_some() {
        return Ok(());
    }
    let mut program = Command::new(env::current_exe()?);
    Err(program
        .args(env::args_os().skip(1))
        .env(VARIABLE, "1")
        .exec())
}
