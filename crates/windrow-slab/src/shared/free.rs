//! The memory that the system has left.

use std::fs;
use std::path::Path;

/// Bytes that this process can allocate before the system kills a process; `None` if the system
/// does not say.
pub(super) fn bytes() -> Option<u64> {
    let machine = in_machine(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let group = group.and_then(|group| in_groups(Path::new("/sys/fs/cgroup"), group));
    Some(group.map_or(machine, |group| group.min(machine)))
}

fn in_machine(meminfo: &str) -> Option<u64> {
    let kilobytes = |name: &str| {
        let mut lines = meminfo.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let swap = kilobytes("SwapFree").unwrap_or(0);
    let free = kilobytes("MemAvailable")?.checked_add(swap)?;
    free.checked_mul(1024)
}

/// The bytes left below the tightest limit of a control group or its ancestors, such as a
/// container's; `None` without a limit.
fn in_groups(root: &Path, group: &str) -> Option<u64> {
    let group = root.join(group.trim_start_matches('/'));
    let around = group.ancestors().take_while(|dir| dir.starts_with(root));
    around.filter_map(left_in).min()
}

fn left_in(group: &Path) -> Option<u64> {
    let text = |name: &str| fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    // `max` stands for no limit.
    let (most, used) = (number("memory.max")?, number("memory.current")?);
    // Files that were read count as used, and are dropped when programs need memory.
    let stat = text("memory.stat").unwrap_or_default();
    let cached = stat
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file ")?.parse::<u64>().ok());
    Some(most.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_swap_counts_and_used_memory_does_not() {
        let text = "MemTotal:       100 kB\nMemFree:  10 kB\nMemAvailable:   30 kB\nSwapTotal: 9 kB\nSwapFree:        2 kB\n";
        assert_eq!(in_machine(text), Some(32 * 1024));
        assert_eq!(in_machine("MemAvailable:   30 kB\n"), Some(30 * 1024));
        assert_eq!(in_machine("MemTotal:       100 kB\n"), None);
    }

    #[test]
    fn the_tightest_limit_around_a_group_counts_less_what_is_used() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("job/step");
        fs::create_dir_all(&inner).unwrap();
        let group = |dir: &Path, files: [(&str, &str); 3]| {
            for (name, text) in files {
                fs::write(dir.join(name), text).unwrap();
            }
        };
        let files = |most, used, cached| {
            [
                ("memory.max", most),
                ("memory.current", used),
                ("memory.stat", cached),
            ]
        };
        assert_eq!(in_groups(root.path(), "/job/step"), None);
        group(&inner, files("max\n", "70\n", "anon 1\n"));
        assert_eq!(in_groups(root.path(), "/job/step"), None);
        let job = inner.parent().unwrap();
        group(job, files("100\n", "90\n", "anon 50\ninactive_file 25\n"));
        assert_eq!(in_groups(root.path(), "/job/step"), Some(35));
        group(&inner, files("80\n", "90\n", ""));
        assert_eq!(in_groups(root.path(), "/job/step"), Some(0));
        // A container sees its own group as the root, under its name outside.
        group(root.path(), files("9\n", "2\n", ""));
        assert_eq!(in_groups(root.path(), "/unknown/outside"), Some(7));
        assert_eq!(in_groups(root.path(), "/"), Some(7));
    }
}
