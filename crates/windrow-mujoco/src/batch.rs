use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::api::{Api, BatchFunction, MjBatch, MjBatchConfig, MjData, MjModel};
use crate::model::{MESSAGE, text_of};
use crate::{LoadError, Model, SimulationError};

/// Components of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Component {
    /// `mjSTATE_TIME`
    Time = 1,
    /// `mjSTATE_QPOS`: positions.
    Qpos = 1 << 1,
    /// `mjSTATE_QVEL`: velocities.
    Qvel = 1 << 2,
    /// `mjSTATE_ACT`: activations of actuators.
    Act = 1 << 3,
    /// `mjSTATE_CTRL`: controls.
    Ctrl = 1 << 6,
}

/// A field of `mjData` that is copied out after each call.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    rows: NonNull<f64>,
    len: usize,
    /// Which of the batch's.
    index: usize,
}

// SAFETY: it says where rows of a batch lie, which are reached through the batch alone.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// Numbers of one simulation.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether a simulation has none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Simulations of one model, which the caller's thread runs one after the other.
#[derive(Debug)]
pub struct Batch {
    raw: NonNull<MjBatch>,
    model: Arc<Model>,
    simulations: usize,
    state: NonNull<f64>,
    state_len: usize,
    outputs: Vec<(CString, Output)>,
}

// SAFETY: a batch of one thread has none of its own: each call runs in the thread that makes it.
unsafe impl Send for Batch {}

/// How many steps to take, before forces are computed.
struct Steps {
    api: &'static Api,
    count: c_int,
}

/// `mjSTAGE_NONE`: nothing is computed.
const STAGE_NONE: c_int = 0;

/// Where simulations begin.
struct Start {
    api: &'static Api,
    states: *const f64,
    state_len: usize,
    /// Where positions and velocities begin in a state.
    parts: [(Component, usize); 2],
}

impl Batch {
    /// `simulations` of `model`, in its default state.
    ///
    /// # Errors
    /// [`LoadError::Model`] with MuJoCo's reason.
    pub fn new(model: &Arc<Model>, simulations: usize) -> Result<Self, LoadError> {
        let api = model.library().api;
        let refused = |reason: String| LoadError::Model {
            path: model.path().to_owned(),
            reason,
        };
        let count = c_int::try_from(simulations);
        let count =
            count.map_err(|_| refused(format!("{simulations} simulations are too many")))?;
        let config = MjBatchConfig {
            threads: 1,
            persistent: true,
        };
        let mut message = [0; MESSAGE];
        let room = message.as_mut_ptr();
        // SAFETY: a model that the batch will hold, a configuration, and room for a message.
        let raw = unsafe {
            (api.make_batch)(
                model.raw(),
                count,
                &raw const config,
                room,
                MESSAGE as c_int,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| refused(text_of(&message)))?;
        // SAFETY: a batch.
        let (state, len) = unsafe { ((api.state)(raw.as_ptr()), (api.state_len)(raw.as_ptr())) };
        Ok(Self {
            raw,
            model: Arc::clone(model),
            simulations,
            state: NonNull::new(state).ok_or_else(|| refused("it has no state".to_owned()))?,
            state_len: usize::try_from(len).expect("The length of a state is not negative."),
            outputs: Vec::new(),
        })
    }

    /// The number of simulations.
    #[must_use]
    pub fn simulations(&self) -> usize {
        self.simulations
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Where a component lies in a [`state`](Self::state).
    #[must_use]
    pub fn component(&mut self, component: Component) -> Range<usize> {
        let mut len = 0;
        // SAFETY: a batch, a component, and room for a length.
        let first = unsafe {
            (self.api().state_component)(self.raw.as_ptr(), component as c_int, &raw mut len)
        };
        let len = usize::try_from(len).expect("The length of a component is not negative.");
        if len == 0 {
            // Such as the velocities of a model without joints.
            return 0..0;
        }
        let bytes = (first as usize).checked_sub(self.state.as_ptr() as usize);
        let start = bytes.map(|bytes| bytes / size_of::<f64>());
        let start = start.filter(|start| start.saturating_add(len) <= self.state_len);
        let start = start.expect("A component lies in the state that it is a part of.");
        start..start + len
    }

    /// All that a simulation goes on from.
    ///
    /// # Panics
    /// There is no such simulation.
    #[must_use]
    pub fn state(&self, simulation: usize) -> &[f64] {
        assert!(
            simulation < self.simulations,
            "There is no simulation {simulation}."
        );
        // SAFETY: one of `simulations` rows of this length, in memory of the batch, which writes to
        // it in calls that borrow it mutably.
        unsafe {
            std::slice::from_raw_parts(
                self.state.as_ptr().add(simulation * self.state_len),
                self.state_len,
            )
        }
    }

    /// As [`state`](Self::state), to be written: the next call begins there.
    ///
    /// # Panics
    /// There is no such simulation.
    #[must_use]
    pub fn state_mut(&mut self, simulation: usize) -> &mut [f64] {
        assert!(
            simulation < self.simulations,
            "There is no simulation {simulation}."
        );
        // SAFETY: as in `state`, and this borrows the batch mutably.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.state.as_ptr().add(simulation * self.state_len),
                self.state_len,
            )
        }
    }

    /// Has a field of `mjData`, such as `xpos`, copied out after each call.
    ///
    /// # Errors
    /// [`LoadError::NoField`] where `mjData` has none of this name, or its values are no `mjtNum`.
    pub fn bind(&mut self, name: &str) -> Result<Output, LoadError> {
        let text = CString::new(name).unwrap_or_default();
        if let Some((_, known)) = self.outputs.iter().find(|(known, _)| *known == text) {
            return Ok(*known);
        }
        let (mut len, mut size) = (0, 0);
        // SAFETY: a batch, a name that ends with NUL, and room for two numbers.
        let rows = unsafe {
            (self.api().output)(
                self.raw.as_ptr(),
                text.as_ptr(),
                &raw mut len,
                &raw mut size,
            )
        };
        let output = numbers(rows, len, size).ok_or_else(|| LoadError::NoField {
            of: "mjData",
            name: name.to_owned(),
        })?;
        let index = self.outputs.len();
        let output = Output { index, ..output };
        self.outputs.push((text, output));
        Ok(output)
    }

    /// The values of a field as of the last call on the simulation. It is one that this batch has
    /// [bound](Self::bind).
    ///
    /// # Panics
    /// There is no such simulation, or the field is another batch's.
    #[must_use]
    pub fn output(&self, output: Output, simulation: usize) -> &[f64] {
        assert!(
            simulation < self.simulations,
            "There is no simulation {simulation}."
        );
        // The address is that of a field of this batch. A batch that is gone may have had a field
        // of another length there.
        let own = self.outputs.get(output.index).map(|(_, own)| own);
        let own = own
            .filter(|own| (own.rows, own.len) == (output.rows, output.len))
            .expect("The field is one of this batch.");
        // SAFETY: one of `simulations` rows of this length, in memory of this batch, which writes
        // to it in calls that borrow it mutably.
        unsafe { std::slice::from_raw_parts(own.rows.as_ptr().add(simulation * own.len), own.len) }
    }

    /// Advances the simulations `which` by `count` steps. Fields are those of before the last of
    /// these, as `mj_step` leaves them; where `forces` are asked for, `mj_rnePostConstraint`
    /// follows.
    ///
    /// # Errors
    /// [`SimulationError`] for the first that MuJoCo gave up.
    ///
    /// # Panics
    /// There is no such simulation.
    pub fn step(
        &mut self,
        which: &[c_int],
        count: c_int,
        forces: bool,
    ) -> Result<(), SimulationError> {
        let (raw, api, simulations) = (self.raw.as_ptr(), self.api(), self.ids(which));
        if forces {
            let mut steps = Steps { api, count };
            return self.apply(which, step, (&raw mut steps).cast());
        }
        // SAFETY: a batch, and ids below the number of its simulations.
        let failed =
            unsafe { (api.batch_step)(raw, which.as_ptr(), simulations, count, STAGE_NONE) };
        self.outcome(failed, which)
    }

    /// Begins the simulations `which` anew with the positions and velocities of their states, and
    /// computes what follows from these (`mj_forward`). All else is as the model has it.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    ///
    /// # Panics
    /// There is no such simulation.
    pub fn restart(&mut self, which: &[c_int]) -> Result<(), SimulationError> {
        let place = |batch: &mut Self, part| (part, batch.component(part).start);
        let mut start = Start {
            api: self.api(),
            states: self.state.as_ptr(),
            state_len: self.state_len,
            parts: [place(self, Component::Qpos), place(self, Component::Qvel)],
        };
        self.apply(which, restart, (&raw mut start).cast())
    }

    /// Calls `function` on the simulations `which`, whose argument lives until this returns.
    fn apply(
        &mut self,
        which: &[c_int],
        function: BatchFunction,
        argument: *mut c_void,
    ) -> Result<(), SimulationError> {
        let (raw, api, simulations) = (self.raw.as_ptr(), self.api(), self.ids(which));
        // SAFETY: a batch, ids below the number of its simulations, and a function that gets its
        // argument.
        let failed =
            unsafe { (api.apply)(raw, which.as_ptr(), simulations, function, argument, 1) };
        self.outcome(failed, which)?;
        // That copies no fields out. This computes nothing, and does.
        // SAFETY: as above.
        let failed = unsafe { (api.batch_forward)(raw, which.as_ptr(), simulations, STAGE_NONE) };
        self.outcome(failed, which)
    }

    /// How many ids there are.
    fn ids(&self, which: &[c_int]) -> c_int {
        let exists = |&id: &c_int| usize::try_from(id).is_ok_and(|id| id < self.simulations);
        assert!(
            which.iter().all(exists),
            "There is no such simulation: {which:?}"
        );
        c_int::try_from(which.len()).expect("A `c_int` counts the ids.")
    }

    fn outcome(&self, failed: c_int, which: &[c_int]) -> Result<(), SimulationError> {
        match failed {
            0 => Ok(()),
            _ => Err(self.failure(which)),
        }
    }

    #[cold]
    fn failure(&self, which: &[c_int]) -> SimulationError {
        let raw = self.raw.as_ptr();
        // SAFETY: a batch.
        let status = unsafe { (self.api().status)(raw) };
        // SAFETY: a number for each simulation.
        let failed = |&&id: &&c_int| unsafe { *status.add(id as usize) } != 0;
        let id = which.iter().find(failed).copied().unwrap_or(which[0]);
        // SAFETY: a batch, and one of its simulations.
        let reason = unsafe { (self.api().error)(raw, id) };
        // SAFETY: text that ends with NUL, and lives until the next call.
        let reason = unsafe { CStr::from_ptr(reason) }
            .to_string_lossy()
            .into_owned();
        SimulationError {
            simulation: id as usize,
            reason,
        }
    }

    pub(crate) fn model_numbers(&mut self, name: &str) -> Result<Vec<f64>, LoadError> {
        let text = CString::new(name).unwrap_or_default();
        let (mut len, mut size) = (0, 0);
        // SAFETY: a batch, a name that ends with NUL, and room for two numbers.
        let rows = unsafe {
            (self.api().expand)(
                self.raw.as_ptr(),
                text.as_ptr(),
                &raw mut len,
                &raw mut size,
            )
        };
        let found = numbers(rows, len, size).ok_or_else(|| LoadError::NoField {
            of: "mjModel",
            name: name.to_owned(),
        })?;
        // SAFETY: the first row, in memory of this batch.
        Ok(unsafe { std::slice::from_raw_parts(found.rows.as_ptr(), found.len) }.to_vec())
    }

    fn api(&self) -> &'static Api {
        self.model.library().api
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: rows are borrowed from this, so none is in use.
        unsafe { (self.api().delete_batch)(self.raw.as_ptr()) }
    }
}

/// Rows of `mjtNum`, where that is what MuJoCo returned.
fn numbers(rows: *mut c_void, len: c_int, size: c_int) -> Option<Output> {
    let is_number = usize::try_from(size) == Ok(size_of::<f64>());
    let rows = NonNull::new(rows.cast::<f64>()).filter(|_| is_number)?;
    Some(Output {
        rows,
        len: usize::try_from(len).ok()?,
        index: 0,
    })
}

/// # Safety
/// MuJoCo passes model and data of a simulation; the argument is a [`Steps`].
unsafe extern "C-unwind" fn step(
    model: *const MjModel,
    data: *mut MjData,
    _: c_int,
    argument: *mut c_void,
) {
    // SAFETY: `Batch::step` passes it, and holds it until all calls have returned.
    let steps = unsafe { &*argument.cast::<Steps>() };
    for _ in 0..steps.count {
        // SAFETY: data of this model.
        unsafe { (steps.api.step)(model, data) }
    }
    // SAFETY: as above.
    unsafe { (steps.api.rne_post_constraint)(model, data) }
}

/// # Safety
/// MuJoCo passes model, data and id of a simulation; the argument is a [`Start`].
unsafe extern "C-unwind" fn restart(
    model: *const MjModel,
    data: *mut MjData,
    id: c_int,
    argument: *mut c_void,
) {
    // SAFETY: `Batch::restart` passes it, and holds it until all calls have returned.
    let start = unsafe { &*argument.cast::<Start>() };
    // SAFETY: data of this model.
    unsafe { (start.api.reset_data)(model, data) };
    for (part, offset) in start.parts {
        // SAFETY: there is a state for each simulation, which MuJoCo writes to when this has
        // returned; the part lies in it.
        let values = unsafe { start.states.add(id as usize * start.state_len + offset) };
        // SAFETY: data of this model, and values as long as this part of its states.
        unsafe { (start.api.set_state)(model, data, values, part as c_int) };
    }
    // SAFETY: data of this model.
    unsafe { (start.api.forward)(model, data) };
}
