//! Another profiler beside windrow's recorder, such as that of the framework that evaluates the
//! policy.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, ThreadId};

/// Why a profiler could not do what it was told.
type Failed = Box<dyn Error + Send + Sync>;

type Made = Result<Box<dyn Profiler>, Failed>;

/// Records rollouts of one worker in its own way, beside the phases that windrow records.
///
/// All methods are called in the thread of the worker. Where another thread ends the recording,
/// `end` is not called, and that is an error. After an error, no method is called any more, and the
/// collector reports it.
///
/// ```
/// use std::error::Error;
/// use std::path::Path;
///
/// use windrow_collect::{MultiSyncCollector, ProfileConfig, Profiler, ProfilerRecipe};
///
/// #[derive(Debug, Default)]
/// struct Count(usize);
///
/// impl Profiler for Count {
///     fn begin(&mut self) -> Result<(), Box<dyn Error + Send + Sync>> {
///         Ok(())
///     }
///
///     fn step(&mut self) -> Result<(), Box<dyn Error + Send + Sync>> {
///         self.0 += 1;
///         Ok(())
///     }
///
///     fn end(&mut self, path: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
///         std::fs::write(path.with_extension("count"), self.0.to_string())?;
///         Ok(())
///     }
/// }
///
/// let path = std::env::temp_dir().join("windrow_beside.json");
/// let mut collector = MultiSyncCollector::builder("CartPole-v1")
///     .num_workers(2)
///     .frames_per_batch(20)
///     .total_frames(60)
///     .build()?;
/// let beside = ProfilerRecipe::new(|_worker| Ok(Count::default()));
/// collector.enable_profile(&ProfileConfig::new().save_path(&path).profiler(beside))?;
/// for batch in &mut collector {
///     batch?;
/// }
/// collector.shutdown()?;
/// assert_eq!(std::fs::read_to_string(path.with_extension("count"))?, "3");
/// # std::fs::remove_file(path.with_extension("count"))?;
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn Error>>(())
/// ```
pub trait Profiler: Send + fmt::Debug {
    /// The first rollout begins, those that warm up included.
    ///
    /// # Errors
    /// The profiler cannot record.
    fn begin(&mut self) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// A rollout has ended.
    ///
    /// # Errors
    /// The profiler cannot go on.
    fn step(&mut self) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// The recording is over; the trace of the phases is at `path`, unless no rollout was recorded.
    ///
    /// # Errors
    /// The profiler cannot write what it has recorded.
    fn end(&mut self, path: &Path) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// How the [`Profiler`] of a worker is made, given the worker's number.
#[derive(Clone)]
pub struct ProfilerRecipe {
    make: Arc<dyn Fn(usize) -> Made + Send + Sync>,
    written: Option<Vec<u8>>,
}

impl ProfilerRecipe {
    /// Calls `make` in the worker's thread.
    #[must_use]
    pub fn new<P: Profiler + 'static>(
        make: impl Fn(usize) -> Result<P, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            make: Arc::new(move |worker| Ok(Box::new(make(worker)?))),
            written: None,
        }
    }

    /// The same, for workers in processes too, which [make it](crate::WorkerMain::profilers) of
    /// `bytes`.
    #[must_use]
    pub fn written_as(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.written = Some(bytes.into());
        self
    }

    pub(crate) fn written(&self) -> Option<&Vec<u8>> {
        self.written.as_ref()
    }
}

impl PartialEq for ProfilerRecipe {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.make, &other.make) && self.written == other.written
    }
}

impl Eq for ProfilerRecipe {}

impl fmt::Debug for ProfilerRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProfilerRecipe").finish_non_exhaustive()
    }
}

/// Makes the profiler of a worker in a process.
#[cfg(target_os = "linux")]
pub(crate) type MakeProfiler = fn(&[u8], usize) -> Made;

/// The other profiler of one worker.
#[derive(Debug, Default)]
pub(super) enum ExternalProfiler {
    #[default]
    None,
    /// It is made when the first rollout begins.
    Pending(ProfilerRecipe),
    /// In this thread.
    Recording(Box<dyn Profiler>, ThreadId),
    Failed(Failed),
}

impl ExternalProfiler {
    /// A rollout of worker `worker` begins.
    pub(super) fn begin(&mut self, worker: usize) {
        if let Self::Pending(recipe) = self {
            let begun = (recipe.make)(worker).and_then(|mut profiler| {
                profiler.begin()?;
                Ok(profiler)
            });
            *self = match begun {
                Ok(profiler) => Self::Recording(profiler, thread::current().id()),
                Err(error) => Self::Failed(error),
            };
        }
    }

    /// A rollout has ended.
    pub(super) fn step(&mut self) {
        if let Self::Recording(profiler, _) = self
            && let Err(error) = profiler.step()
        {
            *self = Self::Failed(error);
        }
    }

    /// The recording is over.
    ///
    /// # Errors
    /// The first error of the profiler.
    pub(super) fn end(&mut self, path: &Path) -> Result<(), Failed> {
        match std::mem::take(self) {
            Self::None | Self::Pending(_) => Ok(()),
            Self::Recording(mut profiler, by) if by == thread::current().id() => profiler.end(path),
            Self::Recording(..) => Err(
                "it records a thread, which can end the recording, and another one has done so"
                    .into(),
            ),
            Self::Failed(error) => Err(error),
        }
    }
}

/// How `make` makes the profiler of a worker in a process, of `written`.
#[cfg(target_os = "linux")]
pub(super) fn made_of(make: MakeProfiler, written: Vec<u8>) -> ProfilerRecipe {
    ProfilerRecipe {
        make: Arc::new(move |worker| make(&written, worker)),
        written: None,
    }
}
