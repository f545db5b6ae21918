use loom::cell::UnsafeCell;

/// Stands for memory that loom does not see: a model fails in which one thread writes it while
/// another accesses it.
#[derive(Debug, Default)]
pub struct Shadow(UnsafeCell<u64>);

// SAFETY: loom checks every access, which is what the cell is for.
unsafe impl Sync for Shadow {}

impl Shadow {
    /// The memory is being written.
    pub fn write(&self) {
        // SAFETY: loom fails the test when another thread accesses the cell meanwhile.
        self.0.with_mut(|writes| unsafe { *writes += 1 });
    }

    /// The memory, which was written, is being read.
    pub fn read(&self) {
        // SAFETY: as above.
        self.0.with(|writes| assert!(unsafe { *writes } > 0));
    }
}
