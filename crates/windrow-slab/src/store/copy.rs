//! Loops that copy one field of many rows, for each width its own.

/// Copies `rows` of a field, which start at `base + row * stride`, one behind the other to `to`.
type Gather = unsafe fn(base: *const u8, stride: usize, rows: &[u32], bytes: usize, to: *mut u8);

/// Copies `n` rows of `bytes` bytes from every `from.1` bytes on to every `to.1` bytes on.
type Spread = unsafe fn(from: (*const u8, isize), to: (*mut u8, usize), n: usize, bytes: usize);

/// The loops for one field, chosen once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copies {
    /// # Safety
    /// Each row may be read from `base` on, `rows.len() * bytes` bytes may be written to `to`, apart from the rows.
    pub(super) gather: Gather,
    /// # Safety
    /// The bytes may be read and written, and do not overlap.
    pub(super) spread: Spread,
}

impl Copies {
    /// For rows of `bytes` bytes.
    ///
    /// Bools are read as 0 or 1 whatever stands in memory, since a file can be changed behind our back.
    pub(super) fn of(bytes: usize, bools: bool) -> Self {
        macro_rules! fixed {
            ($($width:literal)*) => {
                match bytes {
                    $($width => Self { gather: gather::<$width>, spread: spread::<$width> },)*
                    _ => Self { gather: gather_any, spread: spread_any },
                }
            };
        }
        let copies = fixed!(1 2 4 8 12 16 20 24 28 32 40 48 56 64);
        match (bools, bytes) {
            (false, _) => copies,
            (true, 1) => Self {
                gather: gather_bool,
                ..copies
            },
            (true, _) => Self {
                gather: gather_bools,
                ..copies
            },
        }
    }
}

/// # Safety
/// As [`Copies::gather`], for `N` bytes.
unsafe fn gather<const N: usize>(
    base: *const u8,
    stride: usize,
    rows: &[u32],
    _: usize,
    to: *mut u8,
) {
    let to = to.cast::<[u8; N]>();
    for (place, &row) in rows.iter().enumerate() {
        // SAFETY: promised by the caller.
        unsafe {
            let from = base.add(row as usize * stride).cast::<[u8; N]>();
            to.add(place).write(from.read());
        }
    }
}

/// # Safety
/// As [`Copies::gather`].
unsafe fn gather_any(base: *const u8, stride: usize, rows: &[u32], bytes: usize, to: *mut u8) {
    for (place, &row) in rows.iter().enumerate() {
        // SAFETY: promised by the caller.
        unsafe {
            let from = base.add(row as usize * stride);
            std::ptr::copy_nonoverlapping(from, to.add(place * bytes), bytes);
        }
    }
}

/// # Safety
/// As [`Copies::gather`], for one byte.
unsafe fn gather_bool(base: *const u8, stride: usize, rows: &[u32], _: usize, to: *mut u8) {
    for (place, &row) in rows.iter().enumerate() {
        // SAFETY: promised by the caller.
        unsafe {
            let byte = base.add(row as usize * stride).read();
            to.add(place).write(u8::from(byte != 0));
        }
    }
}

/// # Safety
/// As [`Copies::gather`].
unsafe fn gather_bools(base: *const u8, stride: usize, rows: &[u32], bytes: usize, to: *mut u8) {
    for (place, &row) in rows.iter().enumerate() {
        for byte in 0..bytes {
            // SAFETY: promised by the caller.
            unsafe {
                let from = base.add(row as usize * stride + byte).read();
                to.add(place * bytes + byte).write(u8::from(from != 0));
            }
        }
    }
}

/// # Safety
/// As [`Copies::spread`], for `N` bytes.
unsafe fn spread<const N: usize>(
    (from, from_step): (*const u8, isize),
    (to, to_step): (*mut u8, usize),
    n: usize,
    _: usize,
) {
    for place in 0..n {
        // SAFETY: promised by the caller.
        unsafe {
            let from = from.offset(place as isize * from_step).cast::<[u8; N]>();
            let to = to.add(place * to_step).cast::<[u8; N]>();
            to.write(from.read());
        }
    }
}

/// # Safety
/// As [`Copies::spread`].
unsafe fn spread_any(
    (from, from_step): (*const u8, isize),
    (to, to_step): (*mut u8, usize),
    n: usize,
    bytes: usize,
) {
    for place in 0..n {
        // SAFETY: promised by the caller.
        unsafe {
            let from = from.offset(place as isize * from_step);
            std::ptr::copy_nonoverlapping(from, to.add(place * to_step), bytes);
        }
    }
}
