//! How much memory the system has left.

use std::fs;

/// Bytes that the system can give without taking them from programs; `None` where it does not tell.
pub(super) fn bytes() -> Option<u64> {
    in_text(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn in_text(meminfo: &str) -> Option<u64> {
    let kilobytes = |name: &str| {
        let mut lines = meminfo.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let swap = kilobytes("SwapFree").unwrap_or(0);
    kilobytes("MemAvailable")?
        .checked_add(swap)?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_swap_counts_and_used_memory_does_not() {
        let text = "MemTotal:       100 kB\nMemFree:  10 kB\nMemAvailable:   30 kB\nSwapTotal: 9 kB\nSwapFree:        2 kB\n";
        assert_eq!(in_text(text), Some(32 * 1024));
        assert_eq!(in_text("MemAvailable:   30 kB\n"), Some(30 * 1024));
        assert_eq!(in_text("MemTotal:       100 kB\n"), None);
    }
}
