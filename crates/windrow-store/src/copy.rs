//! Loops that copy one field of many rows, one for each common width.

/// Copies `rows` of a field, which start at `base + row * stride`, to `to`, contiguously and in
/// this order.
type Gather = unsafe fn(base: *const u8, stride: usize, rows: &[u32], bytes: usize, to: *mut u8);

/// Copies `n` rows of `bytes` bytes that lie `from.1` bytes apart to places `to.1` bytes apart.
type Scatter = unsafe fn(from: (*const u8, isize), to: (*mut u8, usize), n: usize, bytes: usize);

/// The loops for one field, chosen once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copies {
    /// # Safety
    /// Each row may be read from `base` on; `rows.len() * bytes` bytes may be written to `to` and
    /// do not overlap the rows.
    pub(crate) gather: Gather,
    /// # Safety
    /// The bytes may be read and written, and do not overlap.
    pub(crate) scatter: Scatter,
}

impl Copies {
    /// For rows of `bytes` bytes.
    ///
    /// Every other byte than 0 is read as the bool 1, since another program can change the file.
    pub(crate) fn of(bytes: usize, bools: bool) -> Self {
        macro_rules! fixed {
            ($($width:literal)*) => {
                match bytes {
                    $($width => Self { gather: gather::<$width>, scatter: scatter::<$width> },)*
                    _ => Self { gather: gather_any, scatter: scatter_any },
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
/// As [`Copies::scatter`], for `N` bytes.
unsafe fn scatter<const N: usize>(
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
/// As [`Copies::scatter`].
unsafe fn scatter_any(
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
