//! A graph prepared for evaluation: values that depend on parameters alone are computed, weights
//! are packed, memory is assigned (ADR 0020).

use std::mem;
use std::sync::Arc;

use pulp::Arch;

use crate::{Noise, PolicyError};

use super::aligned::Aligned;
use super::apply::{BLOCK, Lanes, copy_rows};
use super::graph::{Graph, Op, Run, Value};
use super::kernel::{Packed, padded};
use super::step::{After, Given, Location, Memory, Norm, Step, Task};

/// The steps and the memory of [`forward`](Plan::forward).
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    steps: Vec<Step>,
    /// Numbers in a row of each input.
    inputs: Vec<usize>,
    /// Each output, and the numbers in a row of it.
    outputs: Vec<(Location, usize)>,
    memory: Memory,
    arch: Arch,
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

impl Plan {
    /// The plan for `values` of a graph that was checked.
    ///
    /// # Errors
    /// [`PolicyError::Layer`] for weights that depend on inputs.
    pub(crate) fn new(
        graph: &Graph,
        widths: &[usize],
        values: &[Value],
    ) -> Result<Self, PolicyError> {
        Self::for_arch(graph, widths, values, Arch::new())
    }

    pub(super) fn for_arch(
        graph: &Graph,
        widths: &[usize],
        values: &[Value],
        arch: Arch,
    ) -> Result<Self, PolicyError> {
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
            .map(|value| (planner.placed(*value), widths[value.0]))
            .collect();
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
        self.run(rows, inputs, noise, outputs)
    }

    /// Numbers in a row of the first input and of the first output.
    #[inline(always)]
    pub(super) fn ends(&self) -> (usize, usize) {
        (self.inputs[0], self.outputs[0].1)
    }

    /// As [`forward`](Self::forward), for lengths that were checked.
    #[inline(always)]
    pub(super) fn run(
        &mut self,
        rows: usize,
        inputs: &[&[f32]],
        noise: &[Noise],
        outputs: &mut [impl AsMut<[f32]>],
    ) -> Result<(), PolicyError> {
        let mut first = 0;
        while first < rows {
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
                let to = &mut output.as_mut()[first * width..][..given.rows * width];
                if from.stride == 0 {
                    to.chunks_exact_mut((*width).max(1))
                        .for_each(|to| to.copy_from_slice(&from.values[..*width]));
                } else {
                    copy_rows(given.rows, from.values, from.stride, to, *width);
                }
            }
            first += BLOCK;
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
            // Those of linear maps are packed, and get no other place.
            Op::Parameter(_) => return Ok(()),
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
        if let (Some(x), Some(last)) = (from.first(), self.steps.last_mut())
            && self.uses[x.0] == 1
            && step.from[0] == last.to
            && last.absorbs(&step)
        {
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
        // Everything but a linear map and copies reads rows at the distance of scratch memory.
        let mut copies = Vec::new();
        if !matches!(step.task, Task::Linear(..) | Task::Copy | Task::Take(_)) {
            for place in &mut step.from {
                if let Location::Input(index) = *place {
                    let width = self.graph.inputs()[index];
                    let (slot, to) = self.claim(width);
                    copies.push(slot);
                    self.steps.push(Step {
                        task: Task::Copy,
                        function: None,
                        after: Vec::new(),
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
        let x = self.placed(from[0]);
        let mut packed = Packed::zeros(inputs, outputs, self.lanes);
        let weight = self.weight(number, from[1], inputs * outputs)?;
        let bias = from
            .get(2)
            .map_or(Ok(&[][..]), |bias| self.weight(number, *bias, outputs))?;
        packed.pack(weight, bias);
        let packed = Arc::new(packed);
        let runs = self.widths[number] / outputs;
        let steps = (0..runs).map(|run| Step {
            task: Task::Linear(Arc::clone(&packed), run * inputs),
            function: None,
            after: Vec::new(),
            from: vec![x],
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
            function: None,
            after: Vec::new(),
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

    fn placed(&mut self, value: Value) -> Location {
        if let (None, Op::Parameter(index)) =
            (self.places[value.0], &self.graph.nodes()[value.0].op)
        {
            self.places[value.0] = Some(self.fixed(self.graph.values(*index)));
        }
        self.places[value.0].expect("A value that is used gets its place before it is read.")
    }

    fn step(&mut self, number: usize, op: &Op, from: &[Value]) -> Step {
        let mut after = Vec::new();
        let task = match op {
            Op::Map(function) => {
                after.push(After::Function(*function));
                Task::Copy
            }
            &Op::Normalize { run, eps } => {
                let (factor, summand) = (None, None);
                after.push(After::Norm(Norm {
                    run,
                    eps,
                    factor,
                    summand,
                }));
                Task::Copy
            }
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
            function: None,
            after,
            from: from.iter().map(|value| self.placed(*value)).collect(),
            to: Location::Fixed(0),
            width: self.widths[number],
            first: from.first().map_or(0, |value| self.widths[value.0]),
        }
    }

    fn weight(&self, layer: usize, value: Value, len: usize) -> Result<&[f32], PolicyError> {
        let graph = self.graph;
        match (&graph.nodes()[value.0].op, self.places[value.0]) {
            (Op::Parameter(index), _) => Ok(graph.values(*index)),
            (_, Some(Location::Fixed(index))) => Ok(&self.memory.fixed[index].as_slice()[..len]),
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

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use pulp::x86::V3;

    use super::*;
    use crate::nn::Sequential;

    /// Every kind of layer, with panels of all widths.
    fn net() -> Sequential {
        let net = Sequential::new().linear(19, 300).tanh().layer_norm(300);
        let net = net.linear(300, 130).silu().linear(130, 49).gelu();
        let net = net.linear(49, 80).elu(1.0).linear(80, 64).sigmoid();
        let net = net.linear(64, 33).gelu_tanh().relu().linear(33, 48);
        net.linear(48, 2).seed(6)
    }

    fn evaluate(arch: Arch, rows: usize) -> Vec<f32> {
        let mut noise = Noise::new(1, 2, 3);
        let input: Vec<f32> = (0..rows * 19).map(|_| noise.normal() as f32).collect();
        let mut out = vec![0.0; rows * 2];
        let (graph, output) = Graph::of(&net());
        let widths = graph.widths().unwrap();
        let plan = Plan::for_arch(&graph, &widths, &[output], arch);
        let mut plan = plan.unwrap();
        plan.run(rows, &[&input], &[], &mut [&mut out[..]]).unwrap();
        out
    }

    #[test]
    fn all_instruction_sets_agree() {
        let scalar = evaluate(Arch::Scalar, 131);
        let best = evaluate(Arch::new(), 131);
        // Without fused multiply-add every product is rounded.
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
        assert!(scalar.iter().zip(&best).all(close));
        // With it, all operations have the same order, so every bit is the same.
        if let Some(v3) = V3::try_new() {
            assert_eq!(evaluate(Arch::V3(v3), 131), best);
        }
        for rows in 1..12 {
            assert_eq!(evaluate(Arch::Scalar, rows), scalar[..rows * 2]);
        }
    }
}
