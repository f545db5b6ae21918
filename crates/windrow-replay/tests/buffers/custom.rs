//! A sampler and a writer that were written outside of this crate, with nothing but what is public.

use std::collections::BTreeMap;

use tensordict::{Tensor, TensorDict};
use windrow_replay::{
    Draw, Frames, ListStorage, NoDraw, ReplayBuffer, ReplayBufferBuilder, ReplayError, ReuseWriter,
    RoundRobinWriter, RowOrder, RowSet, RowSpan, SampleRng, Sampler, Shortage, Slices, StateError,
    Writer, check_room,
};
use windrow_sync::error_chain;

/// Draws the frames that were drawn least often so far, those of the lowest rows first.
#[derive(Debug, Clone, Default)]
struct LeastDrawnSampler {
    /// How often the frame in each row was drawn.
    counts: Vec<i64>,
}

impl Sampler for LeastDrawnSampler {
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        check_room::<i64>("the counts of draws", capacity)?;
        self.counts = vec![0; capacity];
        Ok(())
    }

    fn written(&mut self, rows: RowSpan, _: &Frames<'_>) {
        for range in rows.ranges() {
            self.counts[range].fill(0);
        }
    }

    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        _: &mut SampleRng,
    ) -> Result<Draw, NoDraw> {
        if frames.len() < batch_size {
            let why = format!("the least drawn of {} frames are fewer", frames.len());
            return Err(Shortage::Other(why).into());
        }
        let mut rows: Vec<usize> = (0..frames.len()).map(|at| frames.row(at)).collect();
        rows.sort_by_key(|&row| (self.counts[row], row));
        rows.truncate(batch_size);
        rows.iter().for_each(|&row| self.counts[row] += 1);
        Ok(Draw {
            rows: rows.into_iter().map(|row| row as u32).collect(),
            ..Draw::default()
        })
    }

    fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        let mut state = TensorDict::new([]);
        state.set(
            "counts",
            Tensor::from_slice(&self.counts, [self.counts.len()])?,
        )?;
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &TensorDict, _: &Frames<'_>) -> Result<(), ReplayError> {
        let counts = state.as_slice::<i64>("counts")?;
        if counts.iter().any(|&count| count < 0) {
            return Err(StateError::Other("a count is negative".to_owned()).into());
        }
        self.counts.copy_from_slice(counts);
        Ok(())
    }
}

/// Keeps one of every `each` frames, in the lowest free row or, when there is none, in row 0.
#[derive(Debug, Clone)]
struct ThinningWriter {
    each: usize,
    offered: usize,
}

impl Writer for ThinningWriter {
    fn order(&self) -> RowOrder {
        RowOrder::Any
    }

    fn place(
        &mut self,
        frames: &TensorDict,
        rows: &RowSet,
    ) -> Result<BTreeMap<u32, usize>, ReplayError> {
        let mut free = (0..rows.capacity()).filter(|&row| !rows.contains(row));
        let kept = (0..frames.numel()).filter(|at| (self.offered + at).is_multiple_of(self.each));
        let placed = kept
            .map(|at| (free.next().unwrap_or(0) as u32, at))
            .collect();
        self.offered += frames.numel();
        Ok(placed)
    }

    fn state_dict(&self, _: &[u32]) -> Result<TensorDict, ReplayError> {
        let mut state = TensorDict::new([]);
        state.set("offered", Tensor::scalar(self.offered as i64))?;
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &TensorDict, _: &[u32]) -> Result<(), ReplayError> {
        self.offered = state.get("offered")?.item::<i64>()? as usize;
        Ok(())
    }
}

fn frames(first: i64, count: i64) -> TensorDict {
    let mut frames = TensorDict::new([count as usize]);
    let times = Tensor::arange(first..first + count).unwrap();
    frames.set("t", times).unwrap();
    frames
}

fn builder() -> ReplayBufferBuilder {
    ReplayBuffer::builder()
        .storage(ListStorage::new(6))
        .sampler(LeastDrawnSampler::default())
        .batch_size(4)
}

fn times(batch: &TensorDict) -> Vec<i64> {
    batch.get("t").unwrap().to_vec().unwrap()
}

#[test]
fn a_sampler_of_another_crate_hears_of_every_frame() {
    let buffer = builder().build().unwrap();
    buffer.extend(&frames(0, 6)).unwrap();
    assert_eq!(times(&buffer.sample(None).unwrap()), [0, 1, 2, 3]);
    // Frame 6 lies in row 0 now, and was never drawn.
    buffer.extend(&frames(6, 1)).unwrap();
    assert_eq!(times(&buffer.sample(None).unwrap()), [6, 4, 5, 1]);
}

#[test]
fn a_sampler_of_another_crate_says_what_it_lacks() {
    let buffer = builder().build().unwrap();
    buffer.extend(&frames(0, 3)).unwrap();
    assert_eq!(
        buffer.sample(None).unwrap_err().to_string(),
        "cannot draw 4 frames: the least drawn of 3 frames are fewer; the buffer holds 3 frames of 1 trajectories, 0 of them \
         complete; no writer is attached"
    );
}

#[test]
fn a_sampler_of_another_crate_goes_on_from_its_state() {
    let buffer = builder().build().unwrap();
    buffer.extend(&frames(0, 6)).unwrap();
    buffer.sample(None).unwrap();
    let state = buffer.state_dict().unwrap();
    let other = builder().build().unwrap();
    other.load_state_dict(&state).unwrap();
    for _ in 0..3 {
        assert_eq!(other.sample(None).unwrap(), buffer.sample(None).unwrap());
    }
}

#[test]
fn a_state_that_a_sampler_of_another_crate_refuses_changes_nothing() {
    let buffer = builder().build().unwrap();
    buffer.extend(&frames(0, 6)).unwrap();
    let mut state = buffer.state_dict().unwrap();
    buffer.sample(None).unwrap();
    let counts = Tensor::full([6], -1i64).unwrap();
    state.set(("sampler", "counts"), counts).unwrap();
    assert_eq!(
        error_chain(&buffer.load_state_dict(&state).unwrap_err()),
        "failed to load the state: a count is negative"
    );
    assert_eq!(times(&buffer.sample(None).unwrap()), [4, 5, 0, 1]);
}

#[test]
fn a_sampler_can_be_tried_without_a_buffer() {
    let mut sampler = LeastDrawnSampler::default();
    sampler.begin(4).unwrap();
    let mut rows = RowSet::ring(4);
    let span = RowSpan::new(3, 2, 4);
    rows.add(span);
    sampler.written(span, &Frames::new(&rows, None));
    let mut rng = SampleRng::new(0);
    let draw = sampler
        .draw(2, &Frames::new(&rows, None), &mut rng)
        .unwrap();
    assert_eq!(draw.rows, [0, 3]);
}

#[test]
fn a_writer_of_another_crate_chooses_rows() {
    let writer = ThinningWriter {
        each: 3,
        offered: 0,
    };
    let build = || builder().writer(writer.clone()).build().unwrap();
    let buffer = build();
    assert_eq!(buffer.extend(&frames(0, 8)).unwrap(), [0, 1, 2]);
    assert_eq!(times(&buffer.all().unwrap()), [0, 3, 6]);
    let other = build();
    other
        .load_state_dict(&buffer.state_dict().unwrap())
        .unwrap();
    for buffer in [buffer, other] {
        assert_eq!(buffer.extend(&frames(8, 4)).unwrap(), [3]);
        assert_eq!(times(&buffer.all().unwrap()), [0, 3, 6, 9]);
    }
}

#[test]
fn slices_name_the_writer_that_keeps_no_order() {
    let error = ReplayBuffer::builder()
        .writer(ThinningWriter {
            each: 3,
            offered: 0,
        })
        .sampler(windrow_replay::SliceSampler::slice_len(2))
        .build()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "writer: expected one that keeps frames in order, which the sampler needs, got ThinningWriter"
    );
}

/// Chooses a row that the buffer does not have.
#[derive(Debug, Clone)]
struct LostWriter;

impl Writer for LostWriter {
    fn order(&self) -> RowOrder {
        RowOrder::Any
    }

    fn place(
        &mut self,
        _: &TensorDict,
        rows: &RowSet,
    ) -> Result<BTreeMap<u32, usize>, ReplayError> {
        Ok(BTreeMap::from([(rows.capacity() as u32, 0)]))
    }
}

#[test]
fn a_writer_that_chooses_a_row_that_there_is_not_gets_an_error() {
    let buffer = builder().writer(LostWriter).build().unwrap();
    assert!(matches!(
        buffer.extend(&frames(0, 1)),
        Err(ReplayError::Store(_))
    ));
    assert!(buffer.is_empty());
}

/// A sampler that always returns the same draw, whatever the size of the batch.
#[derive(Debug, Clone)]
struct FixedSampler(Draw);

impl Sampler for FixedSampler {
    fn draw(&mut self, _: usize, _: &Frames<'_>, _: &mut SampleRng) -> Result<Draw, NoDraw> {
        Ok(self.0.clone())
    }
}

#[test]
fn a_draw_that_makes_no_batch_is_an_error_of_the_sampler() {
    let refused = |rows: &[u32], weights: Option<usize>, slices: Option<Slices>| {
        let draw = Draw {
            weights: weights.map(|count| vec![1.0; count]),
            slices,
            ..Draw::of(rows.to_vec())
        };
        let buffer = builder().sampler(FixedSampler(draw)).build().unwrap();
        buffer.extend(&frames(0, 5)).unwrap();
        let error = buffer.sample(4).unwrap_err().to_string();
        let (drew, _) = error.split_once(": see").unwrap();
        drew.to_owned()
    };
    let slices = |lens: &[usize], burn_in: &[usize], padded: Option<usize>| {
        Some(Slices {
            lens: lens.to_vec(),
            burn_in: burn_in.to_vec(),
            padded,
            truncated_key: None,
        })
    };
    let four = [0, 1, 2, 3];
    for (drew, expected) in [
        (refused(&[0; 6], None, None), "6 rows, expected at most 4"),
        (
            refused(&[0, 5], None, None),
            "row 5, expected rows that hold frames",
        ),
        (
            refused(&four, Some(3), None),
            "3 weights, expected one for each of 4 rows",
        ),
        (
            refused(&four, None, slices(&[2, 3], &[], None)),
            "slices of 5 frames in all, expected as many as rows, 4",
        ),
        (
            refused(&four, None, slices(&[2, 9], &[], None)),
            "one of 9, expected slices of 1 to 4 frames",
        ),
        (
            refused(&four, None, slices(&[0, 4], &[], None)),
            "one of 0, expected slices of 1 to 4 frames",
        ),
        (
            refused(&four, None, slices(&[1, 3], &[], Some(2))),
            "one of 3, expected slices of 1 to 2 frames",
        ),
        (
            refused(&four, None, slices(&[2, 2], &[1], None)),
            "1 burn-ins, expected none, or one for each of 2 slices",
        ),
        (
            refused(&four, None, slices(&[2, 2], &[1, 3], None)),
            "a burn-in of 3 frames, expected at most the 2 of its slice",
        ),
    ] {
        assert_eq!(drew, format!("the sampler drew {expected}"));
    }
}

#[test]
fn a_sampler_cannot_use_up_rows_that_the_buffer_cannot_drop() {
    let refused = |row: u32, writer: Box<dyn Writer>| {
        let draw = Draw {
            spent: vec![row],
            ..Draw::of(vec![0])
        };
        let builder = builder().sampler(FixedSampler(draw)).writer(writer);
        let buffer = builder.build().unwrap();
        buffer.extend(&frames(0, 5)).unwrap();
        let error = buffer.sample(4).unwrap_err().to_string();
        assert_eq!(buffer.len(), 5);
        error.split_once(": see").unwrap().0.to_owned()
    };
    assert_eq!(
        refused(0, RoundRobinWriter::new().into()),
        "the sampler drew 1 rows to use up, expected none where rows are filled in a ring"
    );
    assert_eq!(
        refused(7, ReuseWriter::new().into()),
        "the sampler drew row 7, expected rows that hold frames"
    );
}
