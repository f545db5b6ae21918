//! Parts that another process fills: this test's own program, started again.
#![cfg(all(target_os = "linux", not(any(loom, shuttle))))]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rustix::process::{Resource, Rlimit, setrlimit};
use tensordict::DType;
use windrow_slab::{
    Bell, Key, Layout, LeafSpec, Lease, Mapping, Order, Part, PartOrder, Pump, RecordSpec,
    RemoteRing, Ring, RingSpec, SharedFile, Shares, SlabError,
};

const OBSERVATION: Key<f32> = Key::new(0);
const TEXT: Key<[u8]> = Key::new(1);
const ACTION: Key<i64> = Key::new(0);

/// A variable that tells the started program what it is to do.
const ROLE: &str = "WINDROW_TEST_ROLE";

/// Names the descriptors of ring and lane, and the specs of the layout.
const FILES: &str = "WINDROW_TEST_FILES";
const RECORD: &str = "WINDROW_TEST_RECORD";
const SHARES: &str = "WINDROW_TEST_SHARES";

const STEPS: usize = 5;

fn record() -> RecordSpec {
    RecordSpec {
        observation: vec![
            LeafSpec::new("pixels", DType::F32, [3]),
            LeafSpec::new("text", DType::Bytes, []),
        ],
        policy: vec![LeafSpec::new("action", DType::I64, [])],
        groups: vec![("agents".into(), [2].as_slice().into())],
        traj_ids: true,
        ..RecordSpec::default()
    }
}

fn shares(steps: usize) -> Shares {
    Shares {
        steps: vec![steps],
        envs: 2,
        batched: true,
        order: PartOrder::Sequential,
    }
}

fn spec(max_slabs: usize) -> RingSpec {
    RingSpec {
        order: Order::ByWorker,
        workers: 1,
        ahead: 0,
        max_slabs,
        cut_after: None,
        max_age: None,
    }
}

/// What the value of an action says about its frame.
fn value(seq: u64, step: usize) -> i64 {
    100 * seq as i64 + step as i64
}

/// The text of a frame; those of slab 1 are long.
fn text(seq: u64, step: usize, env: usize) -> Vec<u8> {
    let times = match seq {
        1 => 100_000,
        _ => step,
    };
    format!("{seq} {step} {env}, ").repeat(times).into_bytes()
}

/// Words between the ring's owner and one worker, in memory that both map.
#[derive(Debug, Default)]
#[repr(C)]
struct Words {
    /// Rung with each order.
    ordered: Bell,
    /// Orders so far, and what the last one was.
    orders: AtomicU64,
    slot: AtomicU64,
    part: AtomicU64,
    seq: AtomicU64,
    /// Steps after which the worker is to stand still for ever.
    stall: AtomicU64,
    /// Orders that were answered.
    answers: AtomicU64,
}

struct Lane(Mapping);

impl Lane {
    fn words(&self) -> &Words {
        // SAFETY: zeroed at first, for which all of these types are valid, changed as atomics only,
        // and mapped as long as `self`.
        unsafe { self.0.ptr().cast::<Words>().as_ref() }
    }
}

struct Crew {
    ring: Arc<Ring>,
    lane: Lane,
    part: Mutex<Option<Part>>,
}

impl Pump for Crew {
    fn pump(&self) {
        let mut part = self.part.lock().unwrap();
        let words = self.lane.words();
        let orders = words.orders.load(Ordering::Relaxed);
        if part.is_some() && words.answers.load(Ordering::Acquire) == orders {
            part.take().unwrap().commit();
        }
        if part.is_none()
            && let Ok(Some(next)) = self.ring.try_claim(0)
        {
            words.slot.store(next.slot() as u64, Ordering::Relaxed);
            words.part.store(next.index() as u64, Ordering::Relaxed);
            words.seq.store(next.seq(), Ordering::Relaxed);
            words.orders.store(orders + 1, Ordering::Release);
            words.ordered.ring();
            *part = Some(next);
        }
    }
}

/// A ring, the pump that orders for it, and the file of its lane.
struct Scene {
    ring: Arc<Ring>,
    crew: Arc<Crew>,
    lane: SharedFile,
}

/// A started program; killed at the end of the test.
struct Worker {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    fn start(role: &str, variables: &[(&str, String)]) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["child_entry", "--exact", "--nocapture"]);
        command.env(ROLE, role).envs(variables.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    /// The next line that the program, and not its test harness, writes.
    fn says(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "it has ended");
            // The harness leaves its own line open.
            if let Some((_, said)) = line.split_once("says: ") {
                return said.trim_end().to_owned();
            }
        }
    }
}

impl Scene {
    fn new(max_slabs: usize) -> Self {
        let layout = Layout::new(&record(), shares(STEPS)).unwrap();
        let ring = Ring::shared(layout, spec(max_slabs)).unwrap();
        let lane = SharedFile::create("lane").unwrap();
        let page = SharedFile::page();
        lane.reserve(0, page as u64).unwrap();
        let crew = Arc::new(Crew {
            ring: Arc::clone(&ring),
            lane: Lane(lane.map(0, page).unwrap()),
            part: Mutex::new(None),
        });
        crew.lane.words().stall.store(u64::MAX, Ordering::Relaxed);
        let pump: Weak<Crew> = Arc::downgrade(&crew);
        ring.attend(pump);
        Self { ring, crew, lane }
    }

    /// A worker that expects the ring's slabs to be laid out by these shares.
    fn worker(&self, shares: &Shares) -> Worker {
        let numbers = [self.ring.file().unwrap(), &self.lane].map(|file| file.as_fd().as_raw_fd());
        let files = numbers.map(|fd| format!("/proc/{}/fd/{fd}", std::process::id()));
        let variables = [
            (FILES, files.join(" ")),
            (RECORD, serde_json::to_string(&record()).unwrap()),
            (SHARES, serde_json::to_string(shares).unwrap()),
        ];
        Worker::start("fill", &variables)
    }
}

fn assert_whole(lease: &Lease, seq: u64) {
    assert_eq!((lease.seq(), lease.commits()[0].steps), (seq, STEPS));
    let batch = lease.part(0).unwrap();
    let actions = batch.get("action").unwrap().to_vec::<i64>().unwrap();
    let expected: Vec<_> = (0..STEPS).map(|step| value(seq, step)).collect();
    assert_eq!(actions, [expected.clone(), expected.clone()].concat());
    let next = batch
        .get(("next", "pixels"))
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    let expected = expected.iter().flat_map(|&value| [value as f32; 3]);
    assert_eq!(next[..3 * STEPS], expected.collect::<Vec<_>>());
    let texts = batch.get(("next", "text")).unwrap();
    for (env, step) in (0..2).flat_map(|env| (0..STEPS).map(move |step| (env, step))) {
        let got = texts.string_at(&[env, step]).unwrap();
        assert!(got == text(seq, step, env), "{seq} {step} {env}");
    }
    // First observations were not written, and are not those of the slab before.
    assert_eq!(batch.get("text").unwrap().string_at(&[0, 0]).unwrap(), b"");
}

#[test]
fn text_from_a_process_arrives_and_memory_for_long_ones_goes_back() {
    let scene = Scene::new(1);
    let mut worker = scene.worker(&shares(STEPS));
    assert_eq!(worker.says(), "ready");
    let taken = || {
        512 * rustix::fs::fstat(scene.ring.file().unwrap())
            .unwrap()
            .st_blocks
    };
    let after: Vec<_> = (0..5)
        .map(|seq| {
            assert_whole(&scene.ring.next().unwrap(), seq);
            taken()
        })
        .collect();
    let long = 2 * STEPS as i64 * 900_000;
    assert!(
        after[0] < 1 << 20 && after[1] > long && after[4] < 1 << 20,
        "{after:?}"
    );
}

#[test]
fn a_process_fills_slabs_also_those_that_were_made_after_it_had_started() {
    let scene = Scene::new(5);
    let mut worker = scene.worker(&shares(STEPS));
    assert_eq!(worker.says(), "ready");
    assert_eq!(scene.ring.slabs(), 1);
    let kept: Vec<Lease> = (0..5).map(|_| scene.ring.next().unwrap()).collect();
    assert_eq!(scene.ring.slabs(), 5, "each batch is kept");
    for (seq, lease) in (0..).zip(&kept) {
        assert_whole(lease, seq);
    }
    let full = scene.ring.next().unwrap_err();
    assert!(
        matches!(full, SlabError::Exhausted { slabs: 5, .. }),
        "{full}"
    );
    drop(kept);
    assert_whole(&scene.ring.next().unwrap(), 5);
}

#[test]
fn the_part_of_a_process_that_was_killed_is_filled_again_and_its_batches_stay() {
    let scene = Scene::new(3);
    let mut first = scene.worker(&shares(STEPS));
    assert_eq!(first.says(), "ready");
    let before = scene.ring.next().unwrap();
    scene.crew.lane.words().stall.store(2, Ordering::Relaxed);
    scene.ring.request().unwrap();
    assert_eq!(first.says(), "stalled");
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    // Nobody writes the part any more, and nobody is to take up the order for it.
    drop(scene.crew.part.lock().unwrap().take());
    let words = scene.crew.lane.words();
    let orders = words.orders.load(Ordering::Relaxed);
    words.answers.store(orders, Ordering::Relaxed);
    words.stall.store(u64::MAX, Ordering::Relaxed);
    let mut second = scene.worker(&shares(STEPS));
    assert_eq!(second.says(), "ready");
    assert_whole(&scene.ring.next().unwrap(), 1);
    assert_whole(&before, 0);
}

#[test]
fn a_process_that_expects_another_layout_says_so() {
    let scene = Scene::new(1);
    let mut worker = scene.worker(&shares(STEPS + 1));
    let said = worker.says();
    assert!(
        said.contains("laid out otherwise than this worker expects"),
        "{said}"
    );
    assert!(said.contains("different programs or builds"), "{said}");
}

#[test]
fn too_little_memory_is_an_error_and_ends_no_process() {
    let mut worker = Worker::start("shortage", &[]);
    let at_build = worker.says();
    assert!(at_build.contains("no memory for 400 frames"), "{at_build}");
    let in_growth = worker.says();
    assert!(
        in_growth.contains("no memory for 200 frames"),
        "{in_growth}"
    );
    assert!(worker.child.wait().unwrap().success());
}

/// What a started program does; nothing in an ordinary run.
#[test]
fn child_entry() {
    match env::var(ROLE).as_deref() {
        Ok("fill") => fill_orders(),
        Ok("shortage") => run_short(),
        _ => {}
    }
}

fn open(path: &str) -> SharedFile {
    let file = File::options().read(true).write(true).open(path).unwrap();
    // SAFETY: this program fills the parts that it is told of, and the other leaves these alone
    // meanwhile.
    unsafe { SharedFile::from_fd(file.into()) }.unwrap()
}

fn fill_orders() {
    let files = env::var(FILES).unwrap();
    let (ring, lane) = files.split_once(' ').unwrap();
    let record: RecordSpec = serde_json::from_str(&env::var(RECORD).unwrap()).unwrap();
    let shares: Shares = serde_json::from_str(&env::var(SHARES).unwrap()).unwrap();
    let lane = Lane(open(lane).map(0, SharedFile::page()).unwrap());
    let ring = match RemoteRing::open(Layout::new(&record, shares).unwrap(), open(ring)) {
        Ok(ring) => ring,
        Err(error) => return println!("says: {error}"),
    };
    println!("says: ready");
    let words = lane.words();
    // Begins where the program before it has ended.
    let mut answered = words.answers.load(Ordering::Relaxed);
    loop {
        let seen = words.ordered.count();
        let orders = words.orders.load(Ordering::Acquire);
        if orders == answered {
            words.ordered.wait(seen, None);
            continue;
        }
        fill(&ring, words);
        answered = orders;
        words.answers.store(answered, Ordering::Release);
        ring.ring_bell();
    }
}

fn fill(ring: &Arc<RemoteRing>, words: &Words) {
    let number = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let (slot, part) = (number(&words.slot) as usize, number(&words.part) as usize);
    let mut part = ring.part(slot, part, number(&words.seq)).unwrap();
    let seq = part.seq();
    let mut rows = part.rows();
    let mut t = 0;
    while let Some(mut step) = rows.next_step() {
        if t as u64 == number(&words.stall) {
            println!("says: stalled");
            loop {
                std::thread::park();
            }
        }
        step.policy.get_mut(ACTION).unwrap().fill(value(seq, t));
        let next = step.next_obs.get_mut(OBSERVATION).unwrap();
        next.fill(value(seq, t) as f32);
        for env in 0..2 {
            let mut row = step.next_obs.env_mut(env).unwrap();
            row.write_string(TEXT, 0, &text(seq, t, env)).unwrap();
        }
        t += 1;
    }
    part.commit();
}

fn run_short() {
    let limit = |bytes: usize| {
        let current = Some(bytes as u64);
        let limit = Rlimit {
            current,
            maximum: current,
        };
        setrlimit(Resource::Fsize, limit).unwrap();
    };
    let layout = || Layout::new(&record(), shares(100)).unwrap();
    let page = SharedFile::page();
    let slab = layout().bytes().next_multiple_of(page);
    // The first page, two slabs, and not a third.
    limit(page + 2 * slab + page);
    let ring = Ring::shared(layout(), spec(3)).unwrap();
    let mut kept = Vec::new();
    let in_growth = loop {
        match ring.request() {
            Err(error) => break error,
            Ok(()) => ring.try_claim(0).unwrap().unwrap().commit(),
        }
        kept.push(ring.try_next().unwrap());
    };
    assert_eq!(kept.len(), 2);
    limit(page + slab);
    let at_build = Ring::shared(layout(), spec(3)).unwrap_err();
    println!("says: {at_build}");
    println!("says: {in_growth}");
}
