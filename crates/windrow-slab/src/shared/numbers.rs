//! Numbers that threads and processes change in turn.

use std::cell::UnsafeCell;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;

use super::file::{Mapping, SharedFile};

/// Numbers in shared memory, with a text that says what they are. Threads and processes open them by their [path](Self::path), and
/// change them in turn; a turn takes no system call where nobody else wants one.
///
/// The numbers are kept twice: a turn writes the copy that is not in use, and a word then says that it is. A process or a thread that
/// dies in its turn leaves the numbers from before it, and the next in turn goes on. The memory is free when nobody has it open.
///
/// ```
/// use windrow_slab::SharedNumbers;
///
/// let mut one = SharedNumbers::create()?;
/// let mut other = SharedNumbers::open(&one.path(), one.token(), 0)?;
/// one.settle(b"a sum and a count", 2)?;
/// other.settle(b"what is there stays", 2)?;
/// other.turn(|turn| turn.write(&[7.5, 3.0]))?;
/// let mut numbers = [0.0; 2];
/// one.turn(|turn| turn.read(&mut numbers))?;
/// assert_eq!((numbers, other.text()?), ([7.5, 3.0], b"a sum and a count".to_vec()));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedNumbers {
    file: SharedFile,
    token: u64,
    /// Where in the file these begin.
    begin: u64,
    map: Mapping,
    /// Where the rest is in `map`, as soon as it is settled.
    rest: Option<Rest>,
}

/// What follows the head: the text, then the numbers twice, each copy on lines of its own.
#[derive(Debug, Clone, Copy)]
struct Rest {
    text: usize,
    count: usize,
}

const LINE: usize = 64;

impl Rest {
    /// Where copy `side` begins.
    fn side(self, side: usize) -> usize {
        (size_of::<Head>() + self.text).next_multiple_of(LINE)
            + side * (self.count * size_of::<f64>()).next_multiple_of(LINE)
    }

    /// The end of all, if it is within a section.
    fn checked(text: u64, count: u64) -> Option<(Self, usize)> {
        let bytes = text.checked_add(count.checked_mul(16)?)?;
        (bytes < SECTION - 4096).then_some(())?;
        let rest = Self {
            text: usize::try_from(text).ok()?,
            count: usize::try_from(count).ok()?,
        };
        Some((rest, rest.side(2)))
    }
}

/// Bytes from one section of a file to the next. What is not used of them takes no memory.
const SECTION: u64 = 1 << 32;

/// The first bytes of a section. Zeros are one that was not made yet.
#[repr(C, align(64))]
struct Head {
    /// Tells the file from any other that the path may stand for later.
    token: AtomicU64,
    /// Whether the lock was made.
    is_made: AtomicU32,
    flag: AtomicU32,
    /// Which copy of the numbers is in use.
    side: AtomicU32,
    /// Bytes of the text; 0 until all of it is there.
    text: AtomicU64,
    count: AtomicU64,
    /// The system's own for several processes, which it passes on when its owner dies.
    lock: UnsafeCell<libc::pthread_mutex_t>,
}

const _: () = assert!(size_of::<Head>() <= 4096);

impl SharedNumbers {
    /// A new file, whose sections have no numbers yet; this is section 0.
    ///
    /// # Errors
    /// Those of the system, such as too many open files.
    pub fn create() -> io::Result<Self> {
        let token = RandomState::new().hash_one(std::process::id());
        Self::over(SharedFile::create("windrow-numbers")?, token, 0)
    }

    /// Section `section` of the file that somebody has open under `path`, and that has this `token`. Each section has numbers of its own.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) where the file is gone, [`InvalidInput`](io::ErrorKind::InvalidInput) where the path stands
    /// for another one by now, and those of the system.
    pub fn open(path: &Path, token: u64, section: u32) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if token_of(&file) != Some(token) {
            let text = format!("expected the file with token {token:x}, got another one");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // SAFETY: who opens a file with this token goes through this module, which reads and writes all but atomic words of it under
        // the lock.
        let file = unsafe { SharedFile::from_fd(OwnedFd::from(file)) }?;
        Self::over(file, token, u64::from(section) * SECTION)
    }

    fn over(file: SharedFile, token: u64, begin: u64) -> io::Result<Self> {
        // One at a time makes the lock; the system releases this one where a process dies.
        retry_on_intr(|| flock(file.as_fd(), FlockOperation::LockExclusive))?;
        let page = SharedFile::page();
        let made = file.reserve(begin, page as u64).and_then(|()| {
            let map = file.map(begin, page)?;
            // SAFETY: the page is mapped, and nobody else makes the lock.
            unsafe { make(head_of(&map), token) }?;
            Ok(map)
        });
        retry_on_intr(|| flock(file.as_fd(), FlockOperation::Unlock))?;
        let mut own = Self {
            map: made?,
            file,
            token,
            begin,
            rest: None,
        };
        own.grow()?;
        Ok(own)
    }

    /// Where others can open the file, as long as this process has it open here.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let (process, file) = (std::process::id(), self.file.as_fd().as_raw_fd());
        format!("/proc/{process}/fd/{file}").into()
    }

    /// Tells the file from any other.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Sets `text`, which is not empty, and `count` numbers of 0, unless others have set theirs: these then stay.
    ///
    /// # Errors
    /// [`OutOfMemory`](io::ErrorKind::OutOfMemory) or [`FileTooLarge`](io::ErrorKind::FileTooLarge) where there is no room.
    pub fn settle(&mut self, text: &[u8], count: usize) -> io::Result<()> {
        let lock = self.lock()?;
        if self.head().text.load(Ordering::Relaxed) == 0 {
            let (_, end) = Rest::checked(text.len() as u64, count as u64)
                .ok_or(io::ErrorKind::FileTooLarge)?;
            self.file.reserve(self.begin, end as u64)?;
            let whole = self.file.map(self.begin, end)?;
            // SAFETY: the text lies behind the head, within what was mapped, and nobody reads it before the word is set below. The lock
            // keeps others from writing it.
            unsafe {
                let to = whole.ptr().add(size_of::<Head>()).as_ptr();
                to.copy_from_nonoverlapping(text.as_ptr(), text.len());
            }
            self.head().count.store(count as u64, Ordering::Relaxed);
            self.head().text.store(text.len() as u64, Ordering::Release);
        }
        drop(lock);
        self.grow()
    }

    /// What the numbers are; empty as long as nobody has settled that.
    ///
    /// # Errors
    /// Those of the system, where it does not map the memory.
    pub fn text(&mut self) -> io::Result<Vec<u8>> {
        self.grow()?;
        let mut text = vec![0; self.rest.map_or(0, |rest| rest.text)];
        // SAFETY: the text lies behind the head, within the map, and stays as it is.
        unsafe {
            let from = self.map.ptr().add(size_of::<Head>()).as_ptr();
            text.as_mut_ptr().copy_from_nonoverlapping(from, text.len());
        }
        Ok(text)
    }

    /// How many numbers there are; 0 as long as nobody has settled that.
    #[must_use]
    pub fn count(&self) -> usize {
        self.rest.map_or(0, |rest| rest.count)
    }

    /// A word beside the numbers, 0 at first.
    #[must_use]
    pub fn flag(&self) -> u32 {
        self.head().flag.load(Ordering::Relaxed)
    }

    /// Sets the word beside the numbers.
    pub fn set_flag(&self, flag: u32) {
        self.head().flag.store(flag, Ordering::Relaxed);
    }

    /// Runs `change` while all others wait for their turn. A turn within this one is an error.
    ///
    /// # Errors
    /// Those of the system's lock.
    pub fn turn<R>(&mut self, change: impl FnOnce(&mut Turn<'_>) -> R) -> io::Result<R> {
        if self.rest.is_none() {
            self.grow()?;
        }
        let lock = self.lock()?;
        let changed = change(&mut Turn { of: self });
        drop(lock);
        Ok(changed)
    }

    /// Maps text and numbers if somebody has settled them.
    fn grow(&mut self) -> io::Result<()> {
        let text = self.head().text.load(Ordering::Acquire);
        if self.rest.is_none() && text != 0 {
            let count = self.head().count.load(Ordering::Relaxed);
            let (rest, end) = Rest::checked(text, count).ok_or(io::ErrorKind::FileTooLarge)?;
            self.map = self.file.map(self.begin, end)?;
            self.rest = Some(rest);
        }
        Ok(())
    }

    fn head(&self) -> &Head {
        // SAFETY: the map begins with a head, aligned to a page, and lives as long as `self`. Of its fields, those that change are atomics
        // and the lock.
        unsafe { &*head_of(&self.map) }
    }

    fn lock(&self) -> io::Result<Locked<'_>> {
        let lock = self.head().lock.get();
        // SAFETY: `over` has made the lock, or has found it made.
        let code = match unsafe { libc::pthread_mutex_lock(lock) } {
            // SAFETY: as above, and this thread has it. The turn that was cut off has changed no number in use.
            libc::EOWNERDEAD => unsafe { libc::pthread_mutex_consistent(lock) },
            code => code,
        };
        checked(code)?;
        Ok(Locked(self.head()))
    }
}

/// What a function of the system's locks has returned.
fn checked(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// The token at the start of `file`, if it is as long.
fn token_of(file: &File) -> Option<u64> {
    let mut token = [0; 8];
    file.read_exact_at(&mut token, 0).ok()?;
    Some(u64::from_ne_bytes(token))
}

fn head_of(map: &Mapping) -> *const Head {
    map.ptr().as_ptr().cast_const().cast()
}

/// Makes the lock in `head`, unless it was made.
///
/// # Safety
/// `head` is mapped for as long as the call takes, and nobody else makes the lock meanwhile.
unsafe fn make(head: *const Head, token: u64) -> io::Result<()> {
    // SAFETY: it is mapped, zeros or made; only atomics and the lock change.
    let head = unsafe { &*head };
    if head.is_made.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let mut kind = MaybeUninit::uninit();
    let kind = kind.as_mut_ptr();
    // SAFETY: the attributes are made by the first call and used by those after it. Nobody uses the lock before `is_made` is set.
    unsafe {
        checked(libc::pthread_mutexattr_init(kind))?;
        checked(libc::pthread_mutexattr_setpshared(
            kind,
            libc::PTHREAD_PROCESS_SHARED,
        ))?;
        checked(libc::pthread_mutexattr_setrobust(
            kind,
            libc::PTHREAD_MUTEX_ROBUST,
        ))?;
        checked(libc::pthread_mutexattr_settype(
            kind,
            libc::PTHREAD_MUTEX_ERRORCHECK,
        ))?;
        checked(libc::pthread_mutex_init(head.lock.get(), kind))?;
        libc::pthread_mutexattr_destroy(kind);
    }
    head.token.store(token, Ordering::Relaxed);
    head.is_made.store(1, Ordering::Release);
    Ok(())
}

/// Has the lock; of the thread that took it.
struct Locked<'a>(&'a Head);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread has the lock, which is mapped as long as the borrow.
        unsafe { libc::pthread_mutex_unlock(self.0.lock.get()) };
    }
}

/// The numbers, while all others wait.
#[derive(Debug)]
pub struct Turn<'a> {
    of: &'a SharedNumbers,
}

impl Turn<'_> {
    /// The word beside the numbers.
    #[must_use]
    pub fn flag(&self) -> u32 {
        self.of.flag()
    }

    /// Copies the numbers, or as many of them as `to` has room for.
    pub fn read(&self, to: &mut [f64]) {
        let (from, count) = self.copy(0);
        // SAFETY: the copy has `count` numbers, aligned, of which any bits are one; the lock keeps others from writing them.
        unsafe {
            to.as_mut_ptr()
                .copy_from_nonoverlapping(from, count.min(to.len()));
        }
    }

    /// Puts others in the place of the numbers, all at once. Where there are fewer, the last ones become 0.
    pub fn write(&mut self, from: &[f64]) {
        let (to, count) = self.copy(1);
        let len = count.min(from.len());
        // SAFETY: the copy has `count` numbers, aligned, and is not in use; the lock keeps others from touching it.
        unsafe {
            to.copy_from_nonoverlapping(from.as_ptr(), len);
            to.add(len).write_bytes(0, count - len);
        }
        // After the numbers, also for who finds them when this process has died.
        let side = &self.of.head().side;
        side.store(side.load(Ordering::Relaxed) ^ 1, Ordering::Release);
    }

    /// Where the copy in use is, or the `other` one, and how many numbers it has.
    fn copy(&self, other: u32) -> (*mut f64, usize) {
        let side = (self.of.head().side.load(Ordering::Acquire) ^ other) & 1;
        match self.of.rest {
            // SAFETY: both sides lie within the map.
            Some(rest) => unsafe {
                let begin = self.of.map.ptr().add(rest.side(side as usize));
                (begin.as_ptr().cast(), rest.count)
            },
            None => (std::ptr::NonNull::dangling().as_ptr(), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(of: &mut SharedNumbers) -> Vec<f64> {
        let mut numbers = vec![0.0; of.count()];
        of.turn(|turn| turn.read(&mut numbers)).unwrap();
        numbers
    }

    fn opened(of: &SharedNumbers, section: u32) -> SharedNumbers {
        SharedNumbers::open(&of.path(), of.token(), section).unwrap()
    }

    #[test]
    fn threads_take_turns_and_lose_nothing() {
        let mut first = SharedNumbers::create().unwrap();
        first.settle(b"counts", 3).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mut own = opened(&first, 0);
                scope.spawn(move || {
                    let mut numbers = [0.0; 3];
                    for _ in 0..2_000 {
                        let add = |turn: &mut Turn<'_>| {
                            turn.read(&mut numbers);
                            assert!(numbers.iter().all(|number| *number == numbers[0]));
                            turn.write(&numbers.map(|number| number + 1.0));
                        };
                        own.turn(add).unwrap();
                    }
                });
            }
        });
        assert_eq!(read(&mut first), [8_000.0; 3]);
    }

    #[test]
    fn who_dies_in_a_turn_leaves_the_numbers_from_before() {
        let mut first = SharedNumbers::create().unwrap();
        first.settle(b"numbers", 4).unwrap();
        first
            .turn(|turn| turn.write(&[1.0, 2.0, 3.0, 4.0]))
            .unwrap();
        let own = opened(&first, 0);
        let own = std::thread::spawn(move || {
            std::mem::forget(own.lock().unwrap());
            let (to, _) = Turn { of: &own }.copy(1);
            // SAFETY: this thread has its turn, which ends with it before it has written the others.
            unsafe { to.write(9.0) };
            own
        });
        let _mapped = own.join().unwrap();
        assert_eq!(read(&mut first), [1.0, 2.0, 3.0, 4.0]);
        first.turn(|turn| turn.write(&[5.0, 6.0])).unwrap();
        assert_eq!(read(&mut opened(&first, 0)), [5.0, 6.0, 0.0, 0.0]);
    }

    #[test]
    fn a_panic_in_a_turn_ends_it() {
        let mut first = SharedNumbers::create().unwrap();
        first.settle(b"number", 1).unwrap();
        let mut own = opened(&first, 0);
        let panicked = std::thread::spawn(move || own.turn(|_| panic!("on purpose")));
        assert!(panicked.join().is_err());
        assert_eq!(read(&mut first), [0.0]);
    }

    #[test]
    fn a_turn_within_a_turn_is_an_error() {
        let mut first = SharedNumbers::create().unwrap();
        let mut other = opened(&first, 0);
        let inner = first.turn(|_| other.turn(|_| ())).unwrap();
        assert_eq!(inner.unwrap_err().raw_os_error(), Some(libc::EDEADLK));
    }

    #[test]
    fn sections_have_numbers_of_their_own_and_take_little_memory() {
        let mut first = SharedNumbers::create().unwrap();
        let mut last = opened(&first, 7);
        assert_eq!((last.text().unwrap(), last.count()), (Vec::new(), 0));
        last.turn(|turn| turn.write(&[1.0])).unwrap();
        // Settled by another one while it is open here.
        opened(&first, 7).settle(b"last", 2).unwrap();
        assert_eq!(last.text().unwrap(), b"last");
        last.turn(|turn| turn.write(&[1.0, 2.0])).unwrap();
        last.set_flag(3);
        assert_eq!((first.flag(), opened(&first, 7).flag()), (0, 3));
        assert_eq!(first.text().unwrap(), b"");
        let file = File::from(first.file.as_fd().try_clone_to_owned().unwrap());
        let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        assert!(
            blocks * 512 <= 4 * SharedFile::page() as u64,
            "{blocks} blocks"
        );
        let huge = first.settle(b"huge", 1 << 40).unwrap_err();
        assert_eq!(huge.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_file_that_is_gone_or_another_one_is_refused() {
        let first = SharedNumbers::create().unwrap();
        let (path, token) = (first.path(), first.token());
        let other = SharedNumbers::open(&path, token ^ 1, 0).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::InvalidInput);
        let nowhere = SharedNumbers::open(Path::new("/proc/self/fd/999999"), token, 0);
        assert_eq!(nowhere.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
