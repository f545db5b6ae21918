//! A graph prepared for evaluation: values that depend on parameters alone are computed, weights
//! are packed, memory is assigned (ADR 0020).

use std::mem;
use std::sync::Arc;

use pulp::{Arch, Simd, WithSimd};

use crate::{Noise, PolicyError};

use super::aligned::Aligned;
use super::elementwise::{Function, Reduction, Zip};
use super::graph::{Draw, Graph, Op, Run, Value};
use super::graph_runs::{Stray, draw_gamma, draw_into};
use super::kernel::{Packed, padded};
use super::plan::{Apply, BLOCK, Lanes, copy_rows};

/// Where the numbers of a value are: in an input, in scratch memory, or in a constant row for all
/// rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    Input(usize),
    /// A slot of scratch memory, and the distance of rows in it.
    Slot(usize, usize),
    Fixed(usize),
}

/// An operation with its constants ready.
#[derive(Debug, Clone)]
pub(super) enum Task {
    /// A copy of an input.
    Copy,
    /// A linear map of the inputs from this one on, with the functions that follow it.
    Linear(Arc<Packed>, usize, Vec<Function>),
    Map(Function),
    Zip(Zip),
    Where,
    Take(Vec<Run>),
    /// Rows, inner size and columns.
    MatMul(usize, usize, usize),
    Reduce(Reduction, usize),
    Softmax(usize),
    LogSoftmax(usize),
    Normalize(usize, f32),
    Lookup(usize),
    Gather(usize),
    Within(f32, f32),
    Pick(usize),
    Noise(Draw, usize),
    Gamma(usize),
}

#[derive(Debug, Clone)]
struct Step {
    task: Task,
    from: Vec<Location>,
    /// Scratch memory that is written.
    to: Location,
    /// Numbers in a row of the result.
    width: usize,
    /// Numbers in a row of the first operand.
    first: usize,
}

/// The steps and the memory of [`forward`](GraphPlan::forward).
#[derive(Debug, Clone)]
pub(crate) struct GraphPlan {
    steps: Vec<Step>,
    /// Numbers in a row of each input.
    inputs: Vec<usize>,
    /// Each output, and the numbers in a row of it.
    outputs: Vec<(Location, usize)>,
    memory: Memory,
    arch: Arch,
}

#[derive(Debug, Clone, Default)]
struct Memory {
    /// `[BLOCK, padded width]` each.
    slots: Vec<Aligned>,
    /// `[padded width]` each.
    fixed: Vec<Aligned>,
    /// The first number that was out of place since this was asked for.
    stray: Option<Stray>,
}

/// Rows of one value. A distance of 0 means that all rows are the same.
#[derive(Clone, Copy)]
struct Rows<'a> {
    values: &'a [f32],
    stride: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn row(self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..]
    }
}

/// The inputs of one block of rows.
#[derive(Clone, Copy)]
struct Given<'a> {
    /// All rows of each input, with the numbers in a row.
    inputs: &'a [&'a [f32]],
    widths: &'a [usize],
    noise: &'a [Noise],
    /// The first row of the block, and how many rows there are.
    first: usize,
    rows: usize,
}

/// Builds the steps, one value after the other.
struct Planner<'a> {
    graph: &'a Graph,
    widths: &'a [usize],
    lanes: usize,
    arch: Arch,
    steps: Vec<Step>,
    memory: Memory,
    /// Padded widths of all slots of scratch memory, and the free slots.
    slots: Vec<usize>,
    free: Vec<usize>,
    places: Vec<Option<Location>>,
    /// How often each value is read, outputs included.
    uses: Vec<usize>,
}

impl GraphPlan {
    /// The plan for `values` of a graph that was checked.
    ///
    /// # Errors
    /// [`PolicyError::Layer`] for weights that depend on inputs.
    pub(crate) fn new(
        graph: &Graph,
        widths: &[usize],
        values: &[Value],
    ) -> Result<Self, PolicyError> {
        let arch = Arch::new();
        let mut uses = vec![0; widths.len()];
        for value in values {
            uses[value.0] += 1;
        }
        // Nodes refer only to nodes before them.
        for (number, node) in graph.nodes().iter().enumerate().rev() {
            if uses[number] > 0 {
                node.from.iter().for_each(|from| uses[from.0] += 1);
            }
        }
        let mut planner = Planner {
            graph,
            widths,
            lanes: arch.dispatch(Lanes),
            arch,
            steps: Vec::new(),
            memory: Memory::default(),
            slots: Vec::new(),
            free: Vec::new(),
            places: vec![None; widths.len()],
            uses,
        };
        let varying = graph.varying();
        for (number, varies) in varying.into_iter().enumerate() {
            if planner.uses[number] > 0 {
                planner.add(number, varies)?;
            }
        }
        let outputs = values
            .iter()
            .map(|value| (planner.placed(*value), widths[value.0]));
        let outputs = outputs.collect();
        let mut memory = planner.memory;
        let slots = planner.slots.iter();
        memory.slots = slots.map(|width| Aligned::zeros(BLOCK * width)).collect();
        Ok(Self {
            steps: planner.steps,
            inputs: graph.inputs().to_vec(),
            outputs,
            memory,
            arch,
        })
    }

    /// Number of rows in `len` values of output 0.
    pub(crate) fn rows(&self, len: usize) -> usize {
        self.outputs
            .first()
            .map_or(0, |(_, width)| len / width.max(&1))
    }

    /// Evaluates inputs `[rows, width]` into outputs `[rows, width]`, with one stream of noise for
    /// each row; never allocates.
    ///
    /// # Errors
    /// [`PolicyError::Rows`] for an input or output of another length; [`PolicyError::Failed`] for
    /// an index or an observation that is out of its bounds.
    pub(crate) fn forward(
        &mut self,
        inputs: &[&[f32]],
        noise: &[Noise],
        outputs: &mut [Vec<f32>],
    ) -> Result<(), PolicyError> {
        let rows = noise.len();
        let given = inputs.iter().map(|input| input.len()).zip(&self.inputs);
        let written = outputs.iter().map(|output| output.len());
        let written = written.zip(self.outputs.iter().map(|(_, width)| width));
        let counts = inputs.len() == self.inputs.len() && outputs.len() == self.outputs.len();
        let bad = given
            .chain(written)
            .find(|(len, width)| *len != rows * **width);
        if let Some((len, width)) = bad.or((!counts).then_some((inputs.len(), &1))) {
            return Err(PolicyError::Rows {
                what: "a value of the network",
                expected: rows,
                got: len / width.max(&1),
            });
        }
        for first in (0..rows).step_by(BLOCK) {
            let given = Given {
                inputs,
                widths: &self.inputs,
                noise,
                first,
                rows: BLOCK.min(rows - first),
            };
            for step in &self.steps {
                step.take(self.arch, &mut self.memory, given);
            }
            for ((place, width), output) in self.outputs.iter().zip(outputs.iter_mut()) {
                let from = self.memory.rows(*place, given);
                let to = &mut output[first * width..][..given.rows * width];
                if from.stride == 0 {
                    to.chunks_exact_mut((*width).max(1))
                        .for_each(|to| to.copy_from_slice(&from.values[..*width]));
                } else {
                    copy_rows(given.rows, from.values, from.stride, to, *width);
                }
            }
        }
        match self.memory.stray.take() {
            None => Ok(()),
            Some(stray) => Err(PolicyError::failed(stray.to_string())),
        }
    }
}

impl Planner<'_> {
    fn add(&mut self, number: usize, varies: bool) -> Result<(), PolicyError> {
        let graph = self.graph;
        let node = &graph.nodes()[number];
        let place = match &node.op {
            Op::Input(index) => Location::Input(*index),
            Op::Parameter(index) => self.fixed(graph.values(*index)),
            Op::Constant(bits) => {
                let values: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
                self.fixed(&values)
            }
            Op::Linear { outputs, inputs } => {
                self.linear(number, &node.from, (*inputs, *outputs), varies)?
            }
            op => {
                let step = self.step(number, op, &node.from);
                self.place(step, &node.from, varies)
            }
        };
        self.places[number] = Some(place);
        for value in &node.from {
            self.uses[value.0] = self.uses[value.0].saturating_sub(1);
            // A function that became part of a linear map has its place already.
            if let (0, Some(Location::Slot(slot, _))) = (self.uses[value.0], self.places[value.0])
                && !matches!(place, Location::Slot(own, _) if own == slot)
            {
                self.free.push(slot);
            }
        }
        Ok(())
    }

    fn place(&mut self, step: Step, from: &[Value], varies: bool) -> Location {
        if !varies {
            let value = self.computed(step);
            return self.fixed(&value);
        }
        if let (Task::Map(function), Some(last)) = (&step.task, self.steps.last_mut())
            && let Task::Linear(_, _, after) = &mut last.task
            && self.uses[from[0].0] == 1
            && step.from == [last.to]
        {
            after.push(*function);
            return last.to;
        }
        self.push(step)
    }

    fn fixed(&mut self, values: &[f32]) -> Location {
        let mut row = Aligned::zeros(padded(values.len()));
        row.as_mut_slice()[..values.len()].copy_from_slice(values);
        self.memory.fixed.push(row);
        Location::Fixed(self.memory.fixed.len() - 1)
    }

    /// The value of a step that depends on parameters alone.
    fn computed(&mut self, mut step: Step) -> Vec<f32> {
        step.to = Location::Slot(0, padded(step.width));
        self.memory.slots = vec![Aligned::zeros(padded(step.width))];
        let given = Given {
            inputs: &[],
            widths: &[],
            noise: &[],
            first: 0,
            rows: 1,
        };
        step.take(self.arch, &mut self.memory, given);
        let value = mem::take(&mut self.memory.slots);
        value
            .first()
            .map_or(&[][..], |row| &row.as_slice()[..step.width])
            .to_vec()
    }

    /// Adds a step that is taken for each block of rows.
    fn push(&mut self, mut step: Step) -> Location {
        // Everything but a linear map and a copy of runs reads rows at the distance of scratch
        // memory.
        let mut copies = Vec::new();
        if !matches!(step.task, Task::Linear(..) | Task::Take(_)) {
            for place in &mut step.from {
                if let Location::Input(index) = *place {
                    let width = self.graph.inputs()[index];
                    let (slot, to) = self.claim(width);
                    copies.push(slot);
                    self.steps.push(Step {
                        task: Task::Copy,
                        from: vec![*place],
                        to,
                        width,
                        first: width,
                    });
                    *place = to;
                }
            }
        }
        (_, step.to) = self.claim(step.width);
        let to = step.to;
        self.steps.push(step);
        self.free.extend(copies);
        to
    }

    /// Scratch memory for rows of `width` numbers: the smallest free slot that fits, or a new one.
    fn claim(&mut self, width: usize) -> (usize, Location) {
        let width = padded(width);
        let fits = |&i: &usize| self.slots[self.free[i]] >= width;
        let best = (0..self.free.len())
            .filter(fits)
            .min_by_key(|&i| self.slots[self.free[i]]);
        let slot = match best {
            Some(i) => self.free.swap_remove(i),
            None => {
                self.slots.push(width);
                self.slots.len() - 1
            }
        };
        (slot, Location::Slot(slot, width))
    }

    /// A linear map of each run of inputs: one step for each, and one that puts the results side by
    /// side.
    fn linear(
        &mut self,
        number: usize,
        from: &[Value],
        (inputs, outputs): (usize, usize),
        varies: bool,
    ) -> Result<Location, PolicyError> {
        let places: Vec<_> = from.iter().map(|value| self.placed(*value)).collect();
        let mut packed = Packed::zeros(inputs, outputs, self.lanes);
        let none = vec![0.0; outputs];
        let weight = self.weight(number, places[1], inputs * outputs)?;
        let bias = places
            .get(2)
            .map_or(Ok(&none[..]), |place| self.weight(number, *place, outputs))?;
        packed.pack(weight, bias);
        let packed = Arc::new(packed);
        let runs = self.widths[number] / outputs;
        let steps = (0..runs).map(|run| Step {
            task: Task::Linear(Arc::clone(&packed), run * inputs, Vec::new()),
            from: vec![places[0]],
            to: Location::Fixed(0),
            width: outputs,
            first: self.widths[from[0].0],
        });
        let mut steps: Vec<_> = steps.collect();
        if !varies {
            let values: Vec<f32> = steps
                .into_iter()
                .flat_map(|step| self.computed(step))
                .collect();
            return Ok(self.fixed(&values));
        }
        if runs == 1
            && let Some(step) = steps.pop()
        {
            return Ok(self.push(step));
        }
        let parts: Vec<_> = steps.into_iter().map(|step| self.push(step)).collect();
        let runs = (0..parts.len() as u32).map(|part| Run(part, 0, outputs as u32, 1));
        let joined = self.push(Step {
            task: Task::Take(runs.collect()),
            from: parts.clone(),
            to: Location::Fixed(0),
            width: self.widths[number],
            first: outputs,
        });
        self.free
            .extend(parts.into_iter().filter_map(|part| match part {
                Location::Slot(slot, _) => Some(slot),
                _ => None,
            }));
        Ok(joined)
    }

    fn placed(&self, value: Value) -> Location {
        self.places[value.0].expect("A value that is used gets its place before it is read.")
    }

    fn step(&self, number: usize, op: &Op, from: &[Value]) -> Step {
        let task = match op {
            Op::Map(function) => Task::Map(*function),
            Op::Zip(zip) => Task::Zip(*zip),
            Op::Where => Task::Where,
            Op::Take(runs) => Task::Take(runs.clone()),
            &Op::MatMul {
                rows,
                inner,
                columns,
            } => Task::MatMul(rows, inner, columns),
            Op::Reduce(reduction, run) => Task::Reduce(*reduction, *run),
            Op::Softmax(run) => Task::Softmax(*run),
            Op::LogSoftmax(run) => Task::LogSoftmax(*run),
            Op::Normalize { run, eps } => Task::Normalize(*run, *eps),
            Op::Lookup(run) => Task::Lookup(*run),
            Op::Gather(run) => Task::Gather(*run),
            Op::Within { low, high } => Task::Within(*low, *high),
            Op::Pick(run) => Task::Pick(*run),
            Op::Noise(draw, _, branch) => Task::Noise(*draw, *branch),
            Op::Gamma(branch) => Task::Gamma(*branch),
            // These have places, or steps of their own.
            Op::Input(_) | Op::Parameter(_) | Op::Constant(_) | Op::Linear { .. } => Task::Copy,
        };
        Step {
            task,
            from: from.iter().map(|value| self.placed(*value)).collect(),
            to: Location::Fixed(0),
            width: self.widths[number],
            first: from.first().map_or(0, |value| self.widths[value.0]),
        }
    }

    fn weight(&self, layer: usize, place: Location, len: usize) -> Result<&[f32], PolicyError> {
        match place {
            Location::Fixed(index) => Ok(&self.memory.fixed[index].as_slice()[..len]),
            _ => Err(PolicyError::Layer {
                layer,
                kind: "Graph",
                what: "inputs on which the weights of a linear map depend",
                expected: 0,
                got: 1,
            }),
        }
    }
}

impl Memory {
    #[inline(always)]
    fn rows<'a>(&'a self, place: Location, given: Given<'a>) -> Rows<'a> {
        match place {
            Location::Input(index) => Rows {
                values: &given.inputs[index][given.first * given.widths[index]..],
                stride: given.widths[index],
            },
            Location::Slot(slot, stride) => Rows {
                values: self.slots[slot].as_slice(),
                stride,
            },
            Location::Fixed(index) => Rows {
                values: self.fixed[index].as_slice(),
                stride: 0,
            },
        }
    }
}

impl Step {
    fn take(&self, arch: Arch, memory: &mut Memory, given: Given<'_>) {
        if let Location::Slot(slot, stride) = self.to {
            let mut target = mem::take(&mut memory.slots[slot]);
            let out = &mut target.as_mut_slice()[..given.rows * stride];
            let stray = self.write(arch, memory, given, (out, stride));
            memory.stray = memory.stray.or(stray);
            memory.slots[slot] = target;
        }
    }

    fn write(
        &self,
        arch: Arch,
        memory: &Memory,
        given: Given<'_>,
        (out, stride): (&mut [f32], usize),
    ) -> Option<Stray> {
        if stride == 0 {
            // There is no number to write, and chunks have one at least.
            return None;
        }
        let x = |i: usize| memory.rows(self.from[i], given);
        match &self.task {
            Task::Linear(packed, skip, after) => {
                let x = x(0);
                let mut after = after.iter().copied();
                arch.dispatch(&mut Apply {
                    linear: Some((packed, &x.values[*skip..], x.stride)),
                    function: after.next(),
                    rows: given.rows,
                    values: out,
                });
                for function in after {
                    arch.dispatch(&mut Apply {
                        linear: None,
                        function: Some(function),
                        rows: given.rows,
                        values: out,
                    });
                }
                None
            }
            Task::Map(function) => {
                let x = x(0);
                if x.stride == stride {
                    out.copy_from_slice(&x.values[..out.len()]);
                } else {
                    out.chunks_exact_mut(stride)
                        .for_each(|out| out.copy_from_slice(&x.values[..stride]));
                }
                arch.dispatch(&mut Apply {
                    linear: None,
                    function: Some(*function),
                    rows: given.rows,
                    values: out,
                });
                None
            }
            _ => arch.dispatch(Other {
                step: self,
                memory,
                given,
                out,
                stride,
            }),
        }
    }
}

/// A step that is neither a linear layer nor a function, see [`Apply`].
struct Other<'a> {
    step: &'a Step,
    memory: &'a Memory,
    given: Given<'a>,
    out: &'a mut [f32],
    stride: usize,
}

impl WithSimd for Other<'_> {
    type Output = Option<Stray>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Option<Stray> {
        let Self {
            step,
            memory,
            given,
            out,
            stride,
        } = self;
        let from = |i: usize| memory.rows(step.from[i], given);
        let width = step.width;
        let rows = 0..given.rows;
        match &step.task {
            Task::Copy => copy_rows(given.rows, from(0).values, from(0).stride, out, stride),
            Task::Zip(zip) => {
                let (a, b) = (from(0), from(1));
                if a.stride == stride && b.stride == stride {
                    zip.apply(&a.values[..out.len()], &b.values[..out.len()], out);
                } else {
                    for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                        zip.apply(&a.row(row)[..stride], &b.row(row)[..stride], out);
                    }
                }
            }
            Task::Where => {
                for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                    let (test, a, b) = (from(0).row(row), from(1).row(row), from(2).row(row));
                    for (i, out) in out[..width].iter_mut().enumerate() {
                        *out = if test[i] == 0.0 { b[i] } else { a[i] };
                    }
                }
            }
            Task::Take(runs) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                    copy_runs(runs, |source| from(source).row(row), out);
                }
            }
            Task::Noise(draw, branch) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                    let noise = given.noise[given.first + row].branch(*branch);
                    draw_into(*draw, noise, &mut out[..width]);
                }
            }
            Task::Gamma(branch) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                    let noise = given.noise[given.first + row].branch(*branch);
                    draw_gamma(&from(0).row(row)[..width], noise, out);
                }
            }
            task => {
                let mut stray = None;
                for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                    let x = &from(0).row(row)[..step.first];
                    let second = match step.from.len() {
                        1 => x,
                        _ => from(1).row(row),
                    };
                    stray = stray.or(task.by_runs(x, second, &mut out[..width]));
                }
                return stray;
            }
        }
        None
    }
}

#[inline(always)]
fn copy_runs<'a>(runs: &[Run], from: impl Fn(usize) -> &'a [f32], mut out: &mut [f32]) {
    for &Run(source, start, count, step) in runs {
        let (source, start) = (from(source as usize), start as usize);
        let (to, rest) = mem::take(&mut out).split_at_mut(count as usize);
        match step {
            1 => to.copy_from_slice(&source[start..][..count as usize]),
            0 => to.fill(source[start]),
            _ => {
                let places = (0..).map(|i: i64| (start as i64 + i * i64::from(step)) as usize);
                to.iter_mut()
                    .zip(places)
                    .for_each(|(to, place)| *to = source[place]);
            }
        }
        out = rest;
    }
}
