//! Versioned weights in shared memory: the publisher never waits, a reader never sees half of them.
//!
//! Each worker has two words: the buffer that is *newest* for it, which the publisher writes, and
//! the buffer that it has *pinned*, which it writes itself. The publisher fills a buffer that is
//! neither newest nor pinned for anyone; a reader pins the newest buffer and looks whether it still
//! is. Either the reader sees that another one is newest, or the publisher sees the pin. Readers in
//! the publisher's own process get snapshots, which keep a buffer as a pin does.

mod buffers;
mod snapshot;
mod words;

#[cfg(not(loom))]
use std::os::fd::{BorrowedFd, OwnedFd};

use windrow_sync::mapped::{Ordering, fence};
use windrow_sync::{Mutex, lock};

use crate::ProcessError;
use crate::shared::Item;
use buffers::Buffers;
pub use snapshot::Snapshot;
use words::{SeatWords, Words};

/// The readers of a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Every worker.
    All,
    /// This one.
    Worker(usize),
}

/// The publisher's side: buffers of one size, of which each worker sees the newest that was
/// published for it.
///
/// There are as many buffers as were needed at once: one at first, at most two for each worker, one
/// more, and those of snapshots.
#[derive(Debug)]
pub struct Exchange {
    words: Words,
    publisher: Mutex<Publisher>,
}

/// What only the publisher needs.
#[derive(Debug)]
struct Publisher {
    buffers: Buffers,
    /// The newest buffer of each worker, as in shared memory; 0 before the first, else one more
    /// than its index.
    newest: Vec<u32>,
}

impl Exchange {
    /// Room for the weights of `workers` workers, `bytes` bytes each time.
    ///
    /// # Errors
    /// [`ProcessError::NoMemory`] or [`ProcessError::Descriptors`] when the system has too little
    /// of either.
    pub fn create(workers: usize, bytes: usize) -> Result<Self, ProcessError> {
        let (words, buffers) = Words::create(workers, bytes)?;
        let newest = vec![0; workers];
        Ok(Self {
            words,
            publisher: Mutex::new(Publisher { buffers, newest }),
        })
    }

    /// The descriptor to send to a worker.
    #[must_use]
    #[cfg(not(loom))]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    /// Has `write` fill a free buffer, then makes it the newest of `to`; the result is the same
    /// buffer, for readers in this process. Versions are the caller's; a reader compares them for
    /// equality only. The buffer is aligned to 64 bytes, and holds anything before.
    ///
    /// # Errors
    /// [`ProcessError::NoMemory`] when a buffer more is needed and cannot be had;
    /// [`ProcessError::NoSuch`] for an unknown worker.
    pub fn publish(
        &self,
        to: Target,
        version: i64,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<Snapshot, ProcessError> {
        let workers = self.words.seats.len();
        let targets = match to {
            Target::All => 0..workers,
            Target::Worker(worker) if worker < workers => worker..worker + 1,
            Target::Worker(worker) => return Err(self.words.no_worker(worker)),
        };
        let mut publisher = lock(&self.publisher);
        let Publisher { buffers, newest } = &mut *publisher;
        let free = self.free(newest, buffers);
        buffers.make(free)?;
        // SAFETY: nobody else writes, by the lock; and no reader has this buffer: there is no
        // snapshot of it, it is not newest, and a reader that pinned it when it was, and too late
        // for `free` to see, finds another one newest and leaves it alone.
        write(unsafe { buffers.bytes_mut(free)? });
        buffers.version(free)?.store(version, Ordering::Relaxed);
        let snapshot = buffers.snapshot(free)?;
        for worker in targets {
            newest[worker] = free as u32 + 1;
            let word = &self.words.seats[worker].newest;
            word.store(newest[worker], Ordering::Release);
        }
        Ok(snapshot)
    }

    /// The first buffer that is neither newest nor pinned for any worker, and of which no snapshot
    /// is alive.
    fn free(&self, newest: &[u32], buffers: &mut Buffers) -> usize {
        // Pairs with the fence of `ExchangeReader::pin`.
        fence(Ordering::SeqCst);
        // Looked at once, so that each worker keeps two buffers at most.
        let seats = self.words.seats.iter();
        let pinned: Vec<_> = seats
            .map(|seat| seat.pinned.load(Ordering::Acquire))
            .collect();
        let taken = |&index: &usize| {
            let buffer = index as u32 + 1;
            newest.contains(&buffer) || pinned.contains(&buffer) || buffers.is_held(index)
        };
        (0..).take_while(taken).count()
    }

    /// Gives back the buffer that a worker was reading when it died; only for one that is known to
    /// have ended.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`] for an unknown worker.
    pub fn unpin_dead(&self, worker: usize) -> Result<(), ProcessError> {
        let seat = self.words.seats.get(worker);
        let seat = seat.ok_or_else(|| self.words.no_worker(worker))?;
        seat.pinned.store(0, Ordering::Release);
        Ok(())
    }

    /// A reader in this process, for models.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`] for an unknown worker.
    #[cfg(loom)]
    pub fn reader(&self, worker: usize) -> Result<ExchangeReader, ProcessError> {
        let buffers = lock(&self.publisher).buffers.clone();
        ExchangeReader::new(&self.words, buffers, worker)
    }
}

/// A worker's side of an [`Exchange`].
#[derive(Debug)]
pub struct ExchangeReader {
    seat: Item<SeatWords>,
    buffers: Buffers,
}

impl ExchangeReader {
    /// The view of `worker`, which is its only one.
    ///
    /// # Errors
    /// [`ProcessError::Foreign`] when `fd` is no exchange; [`ProcessError::NoSuch`] for an unknown
    /// worker.
    #[cfg(not(loom))]
    pub fn open(fd: OwnedFd, worker: usize) -> Result<Self, ProcessError> {
        let (words, buffers) = Words::open(fd)?;
        Self::new(&words, buffers, worker)
    }

    fn new(words: &Words, buffers: Buffers, worker: usize) -> Result<Self, ProcessError> {
        let seat = words
            .seats
            .item(worker)
            .ok_or_else(|| words.no_worker(worker))?;
        Ok(Self { seat, buffers })
    }

    /// The newest weights, unless they are of the version `held`. They stay as they are until the
    /// guard is dropped.
    ///
    /// # Errors
    /// [`ProcessError::System`] when a buffer that this worker has not seen before cannot be
    /// mapped.
    pub fn newest(&mut self, held: Option<i64>) -> Result<Option<Pinned<'_>>, ProcessError> {
        let Some(buffer) = self.pin() else {
            return Ok(None);
        };
        let guard = Unpin(self.seat.clone());
        self.buffers.see(buffer)?;
        let version = self.buffers.version(buffer)?.load(Ordering::Relaxed);
        if held == Some(version) {
            return Ok(None);
        }
        // SAFETY: the buffer was newest after it was pinned, so `Exchange::publish` had filled it
        // before and leaves it alone until the guard, which the result keeps, takes the pin away.
        let bytes = unsafe { self.buffers.bytes(buffer)? };
        Ok(Some(Pinned {
            version,
            bytes,
            _guard: guard,
        }))
    }

    /// Pins the newest buffer, and gives its index; `None` before the first publication.
    fn pin(&self) -> Option<usize> {
        let mut newest = self.seat.newest.load(Ordering::Acquire);
        loop {
            let index = newest.checked_sub(1)?;
            // The publisher that sees this pin also sees the reads under the last one as over.
            self.seat.pinned.store(newest, Ordering::Release);
            // Pairs with the fence of `Exchange::free`: of the pin here and the newer buffer there,
            // one of the two is seen.
            fence(Ordering::SeqCst);
            let now = self.seat.newest.load(Ordering::Acquire);
            if now == newest {
                return Some(index as usize);
            }
            newest = now;
        }
    }
}

/// Takes the worker's pin away.
#[derive(Debug)]
struct Unpin(Item<SeatWords>);

impl Drop for Unpin {
    fn drop(&mut self) {
        // What was read is read when the publisher sees this.
        self.0.pinned.store(0, Ordering::Release);
    }
}

/// Weights that nobody changes as long as this lives.
#[derive(Debug)]
pub struct Pinned<'a> {
    version: i64,
    bytes: &'a [u8],
    _guard: Unpin,
}

impl Pinned<'_> {
    /// The version under which they were published.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.version
    }

    /// The bytes, aligned to 64.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use tensordict::DType;

    use super::*;

    fn reader(exchange: &Exchange, worker: usize) -> ExchangeReader {
        let fd = exchange.as_fd().try_clone_to_owned().unwrap();
        ExchangeReader::open(fd, worker).unwrap()
    }

    fn publish(exchange: &Exchange, to: Target, version: i64) {
        let write = |bytes: &mut [u8]| bytes.fill(version as u8);
        exchange.publish(to, version, write).unwrap();
    }

    /// Version and common byte of what a reader gets.
    fn look(reader: &mut ExchangeReader, held: Option<i64>) -> Option<(i64, u8)> {
        let pinned = reader.newest(held).unwrap()?;
        let bytes = pinned.bytes();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        assert_eq!(bytes.as_ptr() as usize % 64, 0);
        Some((pinned.version(), bytes[0]))
    }

    /// Buffers that have memory.
    fn made(exchange: &Exchange) -> usize {
        lock(&exchange.publisher).buffers.made()
    }

    #[test]
    fn each_worker_sees_what_was_published_for_it() {
        let exchange = Exchange::create(3, 5000).unwrap();
        let mut readers = [0, 1, 2].map(|worker| reader(&exchange, worker));
        assert!(
            readers
                .iter_mut()
                .all(|reader| look(reader, None).is_none())
        );
        publish(&exchange, Target::All, 1);
        publish(&exchange, Target::Worker(1), 2);
        let seen = readers.each_mut().map(|reader| look(reader, None));
        assert_eq!(seen, [Some((1, 1)), Some((2, 2)), Some((1, 1))]);
        assert_eq!(look(&mut readers[1], Some(2)), None, "held already");
        assert_eq!(look(&mut readers[1], Some(1)), Some((2, 2)));
        publish(&exchange, Target::All, 3);
        let seen = readers.each_mut().map(|reader| look(reader, Some(1)));
        assert_eq!(seen, [Some((3, 3)); 3]);
    }

    #[test]
    fn a_pinned_buffer_stays_as_it_is_and_buffers_come_as_they_are_needed() {
        let exchange = Exchange::create(2, 100).unwrap();
        let (mut first, mut second) = (reader(&exchange, 0), reader(&exchange, 1));
        assert_eq!(made(&exchange), 0);
        publish(&exchange, Target::All, 1);
        let pinned = first.newest(None).unwrap().unwrap();
        for version in 2..100 {
            publish(&exchange, Target::All, version);
        }
        assert_eq!(made(&exchange), 3, "one pinned, one newest, one to write");
        assert!(pinned.version() == 1 && pinned.bytes() == [1; 100]);
        let other = second.newest(None).unwrap().unwrap();
        for version in 100..120 {
            publish(&exchange, Target::Worker((version % 2) as usize), version);
        }
        assert!(other.version() == 99 && other.bytes() == [99; 100]);
        assert_eq!(made(&exchange), 5, "two pinned, two newest, one to write");
        drop((pinned, other));
        assert_eq!(look(&mut first, None), Some((118, 118)));
        assert_eq!(look(&mut second, None), Some((119, 119)));
    }

    #[test]
    fn a_dead_reader_keeps_no_buffer() {
        let exchange = Exchange::create(1, 8).unwrap();
        publish(&exchange, Target::All, 1);
        let dead = reader(&exchange, 0);
        assert_eq!(dead.pin(), Some(0));
        drop(dead);
        assert!(exchange.unpin_dead(1).is_err());
        exchange.unpin_dead(0).unwrap();
        (2..10).for_each(|version| publish(&exchange, Target::All, version));
        assert_eq!(made(&exchange), 2);
        assert_eq!(look(&mut reader(&exchange, 0), None), Some((9, 9)));
    }

    #[test]
    fn a_snapshot_keeps_its_buffer_until_the_last_tensor_over_it_is_dropped() {
        let exchange = Exchange::create(1, 128).unwrap();
        let snapshot = |version: i64| {
            let write = |bytes: &mut [u8]| bytes.fill(version as u8);
            exchange.publish(Target::All, version, write).unwrap()
        };
        let one = snapshot(1);
        let tensor = one.tensor(64, DType::U8, &[8, 8]).unwrap();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), [1; 64]);
        drop(one);
        let view = tensor.select(0, 7).unwrap();
        drop(tensor);
        // What is dropped at once is held by nobody.
        (2..100).for_each(|version| drop(snapshot(version)));
        assert_eq!(made(&exchange), 3, "one held, one newest, one to write");
        assert_eq!(view.to_vec::<u8>().unwrap(), [1; 8]);
        // As many as readers here hold at once, however many that are.
        let all: Vec<_> = (100..120).map(snapshot).collect();
        for (version, snapshot) in (100..).zip(&all) {
            let tensor = snapshot.tensor(0, DType::U8, &[128]).unwrap();
            assert_eq!(tensor.to_vec::<u8>().unwrap(), [version; 128]);
        }
        let made_then = made(&exchange);
        drop((all, view));
        (120..127).for_each(|version| drop(snapshot(version)));
        assert_eq!(made(&exchange), made_then);
        assert_eq!(look(&mut reader(&exchange, 0), None), Some((126, 126)));
    }

    #[test]
    fn what_is_no_tensor_within_the_weights_is_refused() {
        let exchange = Exchange::create(1, 100).unwrap();
        let write = |bytes: &mut [u8]| bytes.fill(2);
        let snapshot = exchange.publish(Target::All, 1, write).unwrap();
        let tensor = |at, dtype, shape: &[usize]| snapshot.tensor(at, dtype, shape);
        assert!(tensor(64, DType::F32, &[9]).is_ok());
        assert!(tensor(64, DType::F32, &[usize::MAX / 16, 0]).is_ok());
        for (at, dtype, shape) in [
            (64, DType::F32, &[10][..]),
            (4, DType::F32, &[1]),
            (128, DType::F32, &[0]),
            (0, DType::F32, &[usize::MAX, 8, 0]),
            (0, DType::F32, &[usize::MAX / 4]),
            (0, DType::Bool, &[1]),
        ] {
            let error = tensor(at, dtype, shape).unwrap_err();
            assert!(matches!(error, ProcessError::NoTensor { .. }), "{error}");
        }
        let error = tensor(64, DType::F32, &[10]).unwrap_err().to_string();
        assert_eq!(
            error,
            "weights hold no float32 of shape [10] at byte 64, where 36 bytes are left"
        );
    }

    #[test]
    fn a_word_that_names_no_buffer_is_an_error() {
        let exchange = Exchange::create(1, 8).unwrap();
        publish(&exchange, Target::All, 1);
        let newest = &exchange.words.seats[0].newest;
        newest.store(u32::MAX, Ordering::Relaxed);
        let mut reader = reader(&exchange, 0);
        let error = reader.newest(None).unwrap_err();
        assert!(matches!(error, ProcessError::System { .. }), "{error}");
        assert_eq!(reader.buffers.made(), 0);
    }

    #[test]
    fn a_writer_that_panics_publishes_nothing() {
        let exchange = Exchange::create(1, 8).unwrap();
        publish(&exchange, Target::All, 1);
        let panics = || exchange.publish(Target::All, 2, |_| panic!("as the test wants"));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
        let mut reader = reader(&exchange, 0);
        assert_eq!(look(&mut reader, None), Some((1, 1)));
        publish(&exchange, Target::All, 3);
        assert_eq!(look(&mut reader, None), Some((3, 3)));
    }

    #[test]
    fn weights_without_bytes_have_versions_all_the_same() {
        let exchange = Exchange::create(1, 0).unwrap();
        exchange
            .publish(Target::All, 7, |bytes| assert!(bytes.is_empty()))
            .unwrap();
        let mut reader = reader(&exchange, 0);
        let pinned = reader.newest(None).unwrap().unwrap();
        assert!(pinned.version() == 7 && pinned.bytes().is_empty());
    }

    #[test]
    fn what_does_not_exist_or_is_something_else_is_named() {
        let exchange = Exchange::create(2, 8).unwrap();
        let error = exchange.publish(Target::Worker(2), 1, |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "worker 2 does not exist: there are 2");
        let fd = exchange.as_fd().try_clone_to_owned().unwrap();
        assert!(matches!(
            ExchangeReader::open(fd, 2),
            Err(ProcessError::NoSuch { .. })
        ));
        let spec = crate::ControlSpec {
            fingerprint: 1,
            workers: 1,
            envs: 1,
        };
        let (block, _) = crate::ControlBlock::create::<(), ()>(spec).unwrap();
        let fd = block.as_fd().try_clone_to_owned().unwrap();
        assert!(matches!(
            ExchangeReader::open(fd, 0),
            Err(ProcessError::Foreign { .. })
        ));
        let error = Exchange::create(1, usize::MAX / 2)
            .and_then(|exchange| exchange.publish(Target::All, 1, |_| ()));
        assert!(
            matches!(error, Err(ProcessError::NoMemory { .. })),
            "{error:?}"
        );
    }
}
