//! A buffer on disk of as many rows as memory can cache: what a sample, the index and opening cost,
//! and how that grows.
//!
//! `--rows N` measures 10^5, 10^6, … and N rows of 32 bytes. For each of these, a process of its
//! own fills a buffer, goes on writing and is killed; this one opens what is left. Each sampled row
//! is compared with the formula of its number, apart from the time.

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use windrow::replay::Sampler;
use windrow::{LazyMemmapStorage, RandomSampler, ReplayBuffer, SliceSampler, Tensor, TensorDict};

use super::timing;

/// Frames of a uniform sample, and slices of a sliced one, of `STEPS` frames each.
const BATCH: usize = 256;
const STEPS: usize = 4;
/// Frames that are written at once while the buffer fills, and while its process waits to be
/// killed.
const FILL: usize = 1 << 18;
const GO_ON: usize = 1 << 10;
/// Frames of an episode on average.
const EPISODE: u64 = 200;
/// Bytes of a record: those of the columns below, up to a multiple of 8.
const ROW: usize = 32;
/// Samples of each figure.
const SAMPLES: usize = 2001;
const FILLER: &str = "--filler";

/// Does what the arguments ask for, if they ask for rows.
pub fn run() -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        Some(&arguments[at + 1..])
    };
    if let Some([folder, rows, ..]) = after(FILLER) {
        fill(Path::new(folder), rows.parse().unwrap());
        return true;
    }
    let Some([rows, ..]) = after("--rows") else {
        return false;
    };
    let most: usize = rows.parse().expect("--rows N: a number of rows");
    let folder = Folder::new();
    let decades = (5..).map(|power| 10usize.pow(power));
    let sizes = decades.take_while(|&rows| rows < most).chain([most]);
    eprintln!("    rows of {ROW} bytes; episodes of {EPISODE} frames on average");
    let measured: Vec<Measured> = sizes.map(|rows| measure(&folder.0, rows)).collect();
    let last = measured.last().unwrap();
    at_most("uniform_256_us", last.uniform.micros(), 100.0);
    at_most("slices_256x4_us", last.slices.micros(), 100.0);
    at_most("index_percent", last.index_percent(), 1.0);
    at_most("open_after_kill_s", last.open, 2.0);
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replay-rows.svg");
    fs::write(&picture, drawing(&measured)).unwrap();
    eprintln!("    the curve is in {}", picture.display());
    true
}

fn at_most(name: &str, value: f64, limit: f64) {
    timing::line(name, value, limit, value <= limit);
}

/// A folder that is gone afterwards, and that a run that was killed has left to the next.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replay-rows");
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn hash(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn observation(number: u64, place: usize) -> f32 {
    (hash(number) >> (16 * place) & 0xffff) as f32
}

fn ends(number: u64) -> bool {
    hash(number).is_multiple_of(EPISODE)
}

/// Frames `[n]` whose every column follows from their numbers: CartPole's without the next
/// observation.
fn frames(first: u64, n: usize) -> TensorDict {
    let numbers = first..first + n as u64;
    let mut observations = Vec::with_capacity(4 * n);
    for number in numbers.clone() {
        observations.extend((0..4).map(|place| observation(number, place)));
    }
    let rewards: Vec<f32> = numbers.clone().map(|number| number as f32).collect();
    let done: Vec<bool> = numbers.clone().map(ends).collect();
    let action = Tensor::arange(numbers.start as i64..numbers.end as i64).unwrap();
    let mut dict = TensorDict::new([n]);
    dict.set("action", action).unwrap();
    dict.set(
        "observation",
        Tensor::from_vec(observations, [n, 4]).unwrap(),
    )
    .unwrap();
    dict.set(
        ("next", "reward"),
        Tensor::from_vec(rewards, [n, 1]).unwrap(),
    )
    .unwrap();
    for key in ["done", "terminated"] {
        dict.set(("next", key), Tensor::from_slice(&done, [n, 1]).unwrap())
            .unwrap();
    }
    dict
}

fn open(folder: &Path, rows: usize, sampler: impl Sampler + 'static) -> ReplayBuffer {
    ReplayBuffer::builder()
        .storage(LazyMemmapStorage::new(rows).at(folder).unwrap())
        .sampler(sampler)
        .seed(0)
        .build()
        .unwrap()
}

/// Memory of this process that no file backs, in bytes.
fn anonymous() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kilobytes.map_or(0, |number| 1024 * number.parse::<usize>().unwrap())
}

/// Fills a buffer, says how fast and in how much memory, and goes on until it is killed.
fn fill(folder: &Path, rows: usize) {
    let parent = std::os::unix::process::parent_id();
    let before = anonymous();
    let buffer = open(folder, rows, SliceSampler::slice_len(STEPS));
    let mut written = 0;
    let mut time = Duration::ZERO;
    while written < rows {
        let batch = frames(written as u64, FILL.min(rows - written));
        let start = Instant::now();
        black_box(buffer.extend(&batch).unwrap());
        time += start.elapsed();
        written += batch.numel();
    }
    buffer.sample(BATCH * STEPS).unwrap();
    let memory = anonymous().saturating_sub(before);
    println!("filled {} {memory}", rows as f64 / time.as_secs_f64());
    let mut number = written as u64;
    while std::os::unix::process::parent_id() == parent {
        buffer.extend(&frames(number, GO_ON)).unwrap();
        number += GO_ON as u64;
    }
}

/// A process that is killed with this at the latest.
struct Filler(Child);

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Times of one kind of sample, in order.
struct Times(Vec<Duration>);

impl Times {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    fn micros(&self) -> f64 {
        self.0[self.0.len() / 2].as_secs_f64() * 1e6
    }

    fn late(&self) -> f64 {
        self.0[self.0.len() * 99 / 100].as_secs_f64() * 1e6
    }
}

struct Measured {
    rows: usize,
    /// Rows a second while the buffer filled.
    written: f64,
    /// Bytes of files beside those of records.
    files: usize,
    /// Bytes in memory, of the process that wrote and of the one that opened.
    memory: [usize; 2],
    /// Seconds.
    open: f64,
    /// Microseconds of the first sliced sample, which no page of the file is mapped for.
    first: f64,
    uniform: Times,
    slices: Times,
}

impl Measured {
    fn index(&self) -> usize {
        self.files + self.memory[0].max(self.memory[1])
    }

    fn index_percent(&self) -> f64 {
        100.0 * self.index() as f64 / (self.rows * ROW) as f64
    }

    fn tell(&self) {
        eprintln!(
            "    {:>11} rows: uniform 256 {:.1} us (p99 {:.1}), 256 slices of 4 {:.1} us (p99 {:.1}, the first {:.0}); open after kill -9 \
             {:.4} s; index {:.2} MB on disk, {:.2} MB in memory when filled, {:.2} MB when opened: {:.3} % of {:.0} MB; written at {:.2} M rows/s",
            self.rows,
            self.uniform.micros(),
            self.uniform.late(),
            self.slices.micros(),
            self.slices.late(),
            self.first,
            self.open,
            self.files as f64 / 1e6,
            self.memory[0] as f64 / 1e6,
            self.memory[1] as f64 / 1e6,
            self.index_percent(),
            (self.rows * ROW) as f64 / 1e6,
            self.written / 1e6,
        );
    }
}

fn measure(folder: &Path, rows: usize) -> Measured {
    let exe = std::env::current_exe().unwrap();
    let _ = fs::remove_dir_all(folder);
    let mut command = Command::new(exe);
    command.arg(FILLER).arg(folder).arg(rows.to_string());
    let mut filler = Filler(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    let output = filler.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    let told: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse().unwrap())
        .collect();
    std::thread::sleep(Duration::from_millis(50 + hash(rows as u64) % 50));
    drop(filler);

    let before = anonymous();
    let start = Instant::now();
    let buffer = open(folder, rows, SliceSampler::slice_len(STEPS));
    let opened = start.elapsed();
    let (slices, first) = (sliced, timed(|| sliced(&buffer)).1);
    let memory = anonymous().saturating_sub(before);
    assert!(
        buffer.len() + GO_ON >= rows,
        "{} of {rows} rows",
        buffer.len()
    );
    map_pages(&buffer);
    let slices = Times::of(times(&buffer, slices));
    drop(buffer);
    let buffer = open(folder, rows, RandomSampler::new());
    map_pages(&buffer);
    let uniform = Times::of(times(&buffer, |buffer| buffer.sample(BATCH).unwrap()));
    drop(buffer);
    let measured = Measured {
        rows,
        written: told[0],
        files: bytes(folder) - rows * ROW,
        memory: [told[1] as usize, memory],
        open: opened.as_secs_f64(),
        first: first.as_secs_f64() * 1e6,
        uniform,
        slices,
    };
    fs::remove_dir_all(folder).unwrap();
    measured.tell();
    measured
}

fn sliced(buffer: &ReplayBuffer) -> TensorDict {
    buffer.sample(BATCH * STEPS).unwrap()
}

/// Bytes of the files in a folder.
fn bytes(folder: &Path) -> usize {
    let files = fs::read_dir(folder).unwrap();
    let bytes = files.map(|file| file.unwrap().metadata().unwrap().len() as usize);
    bytes.sum()
}

/// Reads a row of each page, so that samples are not timed with the faults that map a page.
fn map_pages(buffer: &ReplayBuffer) {
    let rows: Vec<i64> = (0..buffer.capacity() as i64).step_by(4096 / ROW).collect();
    let held = |row: &i64| buffer.get(&[*row]).is_ok();
    for rows in rows.chunks(1 << 16) {
        if buffer.get(rows).is_err() {
            // Those that were being written when the process died.
            let rows: Vec<i64> = rows.iter().copied().filter(held).collect();
            black_box(buffer.get(&rows).unwrap());
        }
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let done = black_box(work());
    (done, start.elapsed())
}

/// The time of each of many samples, which are checked.
fn times(buffer: &ReplayBuffer, sample: impl Fn(&ReplayBuffer) -> TensorDict) -> Vec<Duration> {
    let one = |_| {
        let (batch, time) = timed(|| sample(buffer));
        check(buffer, &batch);
        time
    };
    (0..SAMPLES).map(one).collect()
}

/// Each row is the one that was written there last; each slice is of one episode.
fn check(buffer: &ReplayBuffer, batch: &TensorDict) {
    let (capacity, written) = (buffer.capacity() as u64, buffer.write_count());
    let rows = batch.as_slice::<i64>("index").unwrap();
    let numbers = batch.as_slice::<i64>("action").unwrap();
    let observations = batch.as_slice::<f32>("observation").unwrap();
    let rewards = batch.as_slice::<f32>(("next", "reward")).unwrap();
    let terminated = batch.as_slice::<bool>(("next", "terminated")).unwrap();
    for (at, (&row, &number)) in rows.iter().zip(numbers).enumerate() {
        let number = number as u64;
        assert!(
            number < written && written - number <= capacity,
            "{number} of {written}"
        );
        assert_eq!(number % capacity, row as u64);
        assert_eq!(rewards[at], number as f32);
        assert_eq!(terminated[at], ends(number));
        let expected: [f32; 4] = std::array::from_fn(|place| observation(number, place));
        assert_eq!(observations[4 * at..][..4], expected);
    }
    if batch.numel() == BATCH * STEPS {
        for slice in numbers.chunks(STEPS) {
            assert!(
                slice.windows(2).all(|pair| pair[1] == pair[0] + 1),
                "{slice:?}"
            );
            let inner = &slice[..STEPS - 1];
            assert!(
                !inner.iter().any(|&number| ends(number as u64)),
                "{slice:?}"
            );
        }
    }
}

/// Width and height of the picture, and of the axes within it.
const SIZE: [f64; 2] = [900.0, 420.0];
const AXES: [std::ops::Range<f64>; 2] = [70.0..700.0, 350.0..60.0];

/// Times over rows, both on logarithmic axes.
fn drawing(measured: &[Measured]) -> String {
    type Line = (&'static str, &'static str, fn(&Measured) -> f64);
    let lines: [Line; 3] = [
        ("256 frames", "#2a6f97", |of| of.uniform.micros()),
        ("256 slices of 4", "#bc4749", |of| of.slices.micros()),
        ("opening", "#6a994e", |of| of.open * 1e6),
    ];
    let place = |value: f64, [from, to]: [f64; 2], axis: &std::ops::Range<f64>| {
        let share = (value / from).log10() / (to / from).log10();
        axis.start + share * (axis.end - axis.start)
    };
    let most = measured.last().map_or(1e6, |of| of.rows as f64);
    let x = |rows: f64| place(rows, [1e5, most.max(1e6)], &AXES[0]);
    let y = |micros: f64| place(micros, [1.0, 1e6], &AXES[1]);
    let [width, height] = SIZE;
    let mut drawn = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"30\" font-size=\"17\">A buffer on disk: microseconds by number of rows</text>\n"
    );
    let [left, right] = [AXES[0].start, AXES[0].end];
    for power in 0..=6 {
        let (at, micros) = (y(10f64.powi(power)), 10u64.pow(power as u32));
        writeln!(
            drawn,
            "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#ddd\"/>"
        )
        .unwrap();
        writeln!(
            drawn,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{micros}</text>",
            left - 8.0,
            at + 4.0
        )
        .unwrap();
    }
    for of in measured {
        let (at, below) = (x(of.rows as f64), AXES[1].start + 20.0);
        let rows = match of.rows {
            rows if rows >= 1_000_000 => format!("{} M", rows / 1_000_000),
            rows => rows.to_string(),
        };
        writeln!(
            drawn,
            "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{rows}</text>"
        )
        .unwrap();
    }
    for (name, colour, value) in lines {
        let mut path = String::new();
        let mut end = 0.0;
        for (of, step) in measured
            .iter()
            .zip("M".chars().chain(std::iter::repeat('L')))
        {
            end = y(value(of));
            write!(path, "{step}{:.1} {end:.1}", x(of.rows as f64)).unwrap();
        }
        writeln!(
            drawn,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        )
        .unwrap();
        writeln!(
            drawn,
            "<text x=\"{}\" y=\"{:.1}\" fill=\"{colour}\">{name}</text>",
            right + 10.0,
            end + 4.0
        )
        .unwrap();
    }
    let below = "Medians, of rows whose pages are cached and mapped; opening after kill -9. Both axes are logarithmic.";
    let at = height - 20.0;
    writeln!(
        drawn,
        "<text x=\"12\" y=\"{at}\" font-size=\"11\" fill=\"#555\">{below}</text>\n</svg>"
    )
    .unwrap();
    drawn
}
