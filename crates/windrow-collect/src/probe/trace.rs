//! Chrome's trace event format, as a JSON object: Perfetto and `chrome://tracing` open it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;

use super::Phase;
use super::recorder::{Recorder, Span};
use crate::error::ProfileError;

/// Ends the recording: writes the trace to its file, whole or not at all and only where a rollout
/// was recorded, and has the other profiler end too.
///
/// # Errors
/// [`ProfileError::File`] and [`ProfileError::Profiler`].
pub(super) fn save(recorder: &mut Recorder) -> Result<(), ProfileError> {
    let saved = save_phases(recorder);
    saved.and(recorder.end_beside())
}

fn save_phases(recorder: &Recorder) -> Result<(), ProfileError> {
    if recorder.spans.is_empty() {
        return Ok(());
    }
    let path = Path::new(&recorder.recording.path);
    let partial = partial(path, process::id(), recorder.timeline.unix_nanos);
    let saved = write_file(&partial, recorder)
        .and_then(|()| std::fs::rename(&partial, path))
        .inspect_err(|_| {
            // If the file cannot be removed either, the first error says why.
            let _ = std::fs::remove_file(&partial);
        });
    saved.map_err(|source| ProfileError::File {
        worker: recorder.recording.worker,
        path: path.to_owned(),
        source,
    })
}

/// A unique name beside the file, so that renaming stays within one file system: for process `pid`
/// and the timeline that began at `unix_nanos`.
pub(super) fn partial(path: &Path, pid: u32, unix_nanos: u64) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{pid}-{unix_nanos}.partial"));
    path.with_file_name(name)
}

fn write_file(path: &Path, recorder: &Recorder) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    write_json(&mut out, recorder)?;
    out.flush()
}

/// Times are microseconds since the start of the timeline: viewers read them as `double`, which
/// cannot hold absolute times exactly.
fn write_json(out: &mut impl Write, recorder: &Recorder) -> io::Result<()> {
    writeln!(
        out,
        "{{\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":{},\"traceEvents\":[",
        recorder.timeline.unix_nanos
    )?;
    let worker = recorder.recording.worker;
    // Viewers take number 0 for the idle process.
    let track = Track(worker + 1);
    track.describe(out, "process_name", format_args!("\"worker {worker}\""))?;
    track.describe(out, "thread_name", format_args!("\"rollouts\""))?;
    write!(
        out,
        "{{\"name\":\"process_sort_index\",\"ph\":\"M\",{track},\"args\":{{\"sort_index\":{worker}}}}}"
    )?;
    // Rollouts that warm up are counted, so that a rollout has the number of the worker's part.
    let mut rollouts = recorder.recording.warmup_rollouts;
    for span in &recorder.spans {
        rollouts += usize::from(span.phase == Phase::Rollout);
        out.write_all(b",\n")?;
        track.span(out, span, rollouts - 1)?;
    }
    out.write_all(b"\n]}\n")
}

/// The track of a worker's events: a process with one thread.
#[derive(Debug, Clone, Copy)]
struct Track(usize);

impl std::fmt::Display for Track {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"pid\":{0},\"tid\":{0}", self.0)
    }
}

impl Track {
    fn describe(
        self,
        out: &mut impl Write,
        what: &str,
        name: std::fmt::Arguments<'_>,
    ) -> io::Result<()> {
        writeln!(
            out,
            "{{\"name\":\"{what}\",\"ph\":\"M\",{self},\"args\":{{\"name\":{name}}}}},"
        )
    }

    fn span(self, out: &mut impl Write, span: &Span, rollout: usize) -> io::Result<()> {
        let Span {
            start,
            nanos,
            step,
            phase,
        } = *span;
        write!(
            out,
            "{{\"name\":\"{phase}\",\"cat\":\"windrow\",\"ph\":\"X\",{self},\"ts\":{},\"dur\":{},\"args\":{{\"rollout\":{rollout}",
            Micros(start),
            Micros(nanos)
        )?;
        if phase == Phase::Rollout {
            write!(out, ",\"steps\":{step}")?;
        } else if phase.is_of_step() {
            write!(out, ",\"step\":{step}")?;
        }
        out.write_all(b"}}")
    }
}

/// Nanoseconds, shown as microseconds without loss.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}
