//! Makes the linker replace functions of the interpreter by those of the same names in
//! `src/gil/end.rs`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/gil/end.rs");
    let target = |name: &str| std::env::var(name).unwrap_or_default();
    if target("CARGO_CFG_TARGET_OS") != "linux" || target("CARGO_CFG_TARGET_ENV") != "gnu" {
        return;
    }
    // A line of the table is `fn PyObject_Call(…) -> …;`.
    let table = include_str!("src/gil/end.rs");
    let names = table
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("fn "))
        .filter_map(|rest| rest.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("Py") || name.starts_with("_Py"));
    for name in names {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
}
