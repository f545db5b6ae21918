//! CartPole collected without windrow: the loop that one would write by hand, storing the same
//! columns.

/// The columns of one batch, `[time][env]` each.
#[derive(Default)]
pub struct Batch {
    pub obs: Vec<[f32; 4]>,
    pub next_obs: Vec<[f32; 4]>,
    pub action: Vec<i64>,
    pub reward: Vec<f32>,
    pub done: Vec<bool>,
    pub terminated: Vec<bool>,
    pub truncated: Vec<bool>,
    pub root_flags: [Vec<bool>; 3],
    pub traj_ids: Vec<i64>,
}

impl Batch {
    pub fn new(frames: usize) -> Self {
        Self {
            obs: vec![[0.0; 4]; frames],
            next_obs: vec![[0.0; 4]; frames],
            action: vec![0; frames],
            reward: vec![0.0; frames],
            done: vec![false; frames],
            terminated: vec![false; frames],
            truncated: vec![false; frames],
            root_flags: std::array::from_fn(|_| vec![false; frames]),
            traj_ids: vec![0; frames],
        }
    }
}

/// A generator as one would inline it: xorshift64.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    #[inline(always)]
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    #[inline(always)]
    pub fn f32(&mut self) -> f32 {
        (self.bits() >> 40) as f32 * (1.0 / 16_777_216.0)
    }

    fn start(&mut self) -> f64 {
        (f64::from(self.f32()) - 0.5) * 0.1
    }
}

#[derive(Clone, Copy)]
struct Pole {
    x: f64,
    v: f64,
    theta: f64,
    omega: f64,
    steps: u32,
    traj_id: i64,
}

/// Environments stepped in lockstep by the loop below.
pub struct HandWritten {
    poles: Vec<Pole>,
    next_id: i64,
    rng: Rng,
}

impl HandWritten {
    pub fn new(envs: usize) -> Self {
        let mut rng = Rng::new(7);
        let poles = (0..envs)
            .map(|id| Pole {
                x: rng.start(),
                v: rng.start(),
                theta: rng.start(),
                omega: rng.start(),
                steps: 0,
                traj_id: id as i64,
            })
            .collect();
        Self {
            poles,
            next_id: envs as i64,
            rng,
        }
    }

    /// Fills `batch`; `act` chooses the actions of one row of observations.
    #[inline(always)]
    pub fn collect(&mut self, batch: &mut Batch, act: &impl Fn(&[[f32; 4]], &mut [i64], &mut Rng)) {
        let envs = self.poles.len();
        for flags in &mut batch.root_flags {
            flags.fill(false);
        }
        for row in (0..batch.obs.len()).step_by(envs) {
            let rows = row..row + envs;
            for (obs, pole) in batch.obs[rows.clone()].iter_mut().zip(&self.poles) {
                *obs = pole.observation();
            }
            act(
                &batch.obs[rows.clone()],
                &mut batch.action[rows.clone()],
                &mut self.rng,
            );
            for (i, pole) in rows.zip(&mut self.poles) {
                pole.push(if batch.action[i] == 1 { 10.0 } else { -10.0 });
                let terminated = pole.x.abs() > 2.4 || pole.theta.abs() > 0.209_439_510_239_319_53;
                let truncated = pole.steps >= 500;
                batch.next_obs[i] = pole.observation();
                batch.reward[i] = 1.0;
                batch.terminated[i] = terminated;
                batch.truncated[i] = truncated;
                batch.done[i] = terminated | truncated;
                batch.traj_ids[i] = pole.traj_id;
                if terminated | truncated {
                    *pole = Pole {
                        x: self.rng.start(),
                        v: self.rng.start(),
                        theta: self.rng.start(),
                        omega: self.rng.start(),
                        steps: 0,
                        traj_id: self.next_id,
                    };
                    self.next_id += 1;
                }
            }
        }
    }
}

impl Pole {
    #[inline(always)]
    fn observation(&self) -> [f32; 4] {
        [
            self.x as f32,
            self.v as f32,
            self.theta as f32,
            self.omega as f32,
        ]
    }

    #[inline(always)]
    fn push(&mut self, force: f64) {
        let (sin, cos) = self.theta.sin_cos();
        let temp = (force + 0.05 * self.omega * self.omega * sin) / 1.1;
        let alpha = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1));
        let accel = temp - 0.05 * alpha * cos / 1.1;
        self.x += 0.02 * self.v;
        self.v += 0.02 * accel;
        self.theta += 0.02 * self.omega;
        self.omega += 0.02 * alpha;
        self.steps += 1;
    }
}
