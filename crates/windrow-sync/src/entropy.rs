/// 64 random bits from the operating system.
///
/// The keys of the standard library's hash maps are no source of such numbers: a forked process has
/// those of its parent, so that all children draw the same.
///
/// # Panics
/// If the operating system has no random numbers.
#[must_use]
pub fn entropy() -> u64 {
    getrandom::u64().expect("The operating system has random numbers.")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_are_different_each_time() {
        let drawn: HashSet<u64> = (0..1000).map(|_| entropy()).collect();
        assert_eq!(drawn.len(), 1000);
    }
}
