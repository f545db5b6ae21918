//! The bits that networks and heads have computed since they were first recorded, so that a change
//! of the evaluator is seen where it changes a number.

#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

use tensordict::{DType, Element};
use windrow_env::{EnvSpec, Spec};
use windrow_policy::nn::{Activation, Sequential};
use windrow_policy::{
    Binding, EnvRows, ExplorationType, Head, NetworkPolicy, Noise, Policy, PolicyIn, Scale,
    ScaleMapping,
};
use windrow_slab::{Key, RowBlock};

/// Fowler, Noll and Vo's hash, 64 bits, over bytes.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: impl AsRef<[u8]>) {
        for byte in bytes.as_ref() {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn floats(&mut self, values: &[f32]) {
        values
            .iter()
            .for_each(|x| self.add(x.to_bits().to_le_bytes()));
    }
}

/// Every order of layers that is prepared in a way of its own, and small networks as users have.
fn networks() -> Vec<(&'static str, usize, Sequential)> {
    let new = Sequential::new;
    let all = new()
        .linear(19, 300)
        .tanh()
        .layer_norm(300)
        .linear(300, 130);
    let all = all.silu().linear(130, 49).gelu().linear(49, 80).elu(1.0);
    let all = all.linear(80, 64).sigmoid().linear_without_bias(64, 33);
    let all = all.gelu_tanh().relu().linear(33, 48).linear(48, 2);
    let plain = [
        Activation::LeakyReLU { slope: 0.1 },
        Activation::Hardswish,
        Activation::Softsign,
        Activation::Tanhshrink,
    ];
    let plain = (plain.into_iter()).fold(new().linear(5, 20), Sequential::activation);
    let leading = new().flatten().relu().layer_norm_with_eps(7, 1e-3).relu();
    vec![
        ("all", 19, all),
        (
            "small",
            4,
            new()
                .linear(4, 64)
                .tanh()
                .linear(64, 64)
                .tanh()
                .linear(64, 2),
        ),
        ("relu", 17, new().linear(17, 32).relu().linear(32, 6)),
        ("single", 3, new().linear(3, 1)),
        ("plain", 5, plain.linear(20, 3)),
        (
            "leading",
            7,
            leading.linear(7, 16).layer_norm(16).flatten().tanh(),
        ),
        (
            "norms",
            16,
            new().layer_norm(16).layer_norm(16).linear(16, 4),
        ),
        ("function", 1, new().tanh().sigmoid()),
        ("nothing", 1, new().flatten()),
    ]
}

/// Numbers among which some are large, small, infinite or none.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut noise = Noise::new(seed, 0, 0);
    let special = [0.0, -0.0, 1e-40, 30.0, -30.0, 1e20, f32::INFINITY, f32::NAN];
    (0..count)
        .map(|place| match place % 97 {
            96 => special[place / 97 % special.len()],
            _ => noise.normal() as f32,
        })
        .collect()
}

/// Fused multiplication and addition, without which every product is rounded.
fn fuses() -> bool {
    std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2")
}

fn compare(got: &[(String, u64)], expected: &[(&str, u64)]) {
    let expected: Vec<_> = (expected
        .iter()
        .map(|(name, hash)| (name.to_string(), *hash)))
    .collect();
    let shown: Vec<_> = (got
        .iter()
        .map(|(name, hash)| format!("(\"{name}\", {hash:#018x}),")))
    .collect();
    assert!(got == expected, "computed:\n{}", shown.join("\n"));
}

#[test]
fn networks_compute_the_bits_that_were_recorded() {
    if !fuses() {
        return;
    }
    let mut got = Vec::new();
    for (name, inputs, net) in networks() {
        let mut net = net.seed(11);
        let outputs = net.outputs().unwrap_or(1);
        let mut hash = Hash::new();
        for rows in (1..=12).chain([63, 64, 65, 100, 129]) {
            let mut out = vec![0.0; rows * outputs];
            net.forward(&numbers(rows as u64, rows * inputs), &mut out)
                .unwrap();
            // The bits of what is no number differ by instruction.
            out.iter_mut()
                .filter(|x| x.is_nan())
                .for_each(|x| *x = f32::NAN);
            hash.floats(&out);
        }
        got.push((name.to_owned(), hash.0));
    }
    compare(&got, &NETWORKS);
}

/// An action and the heads that write it, with the number of the network's outputs.
fn heads() -> Vec<(&'static str, Spec, Head, usize)> {
    let real = |n: usize| Spec::unbounded(DType::F32, [n]);
    let bounded = Spec::Bounded {
        dtype: DType::F64,
        shape: [3].as_slice().into(),
        low: vec![-2.0, 0.1, -1e3],
        high: vec![1.5, 0.7, 1e3],
    };
    let exp = || Scale::Mapped(ScaleMapping::Exp);
    vec![
        ("choice", Spec::discrete(2), Head::Categorical, 2),
        (
            "choices",
            Spec::MultiDiscrete { nvec: vec![2, 5] },
            Head::Categorical,
            7,
        ),
        (
            "one-hot",
            Spec::OneHot { nvec: vec![3] },
            Head::Categorical,
            3,
        ),
        ("largest", Spec::discrete(6), Head::Deterministic, 6),
        ("copy", real(3), Head::Deterministic, 3),
        ("copy f64", bounded.clone(), Head::Deterministic, 3),
        ("normal", real(2), Head::Normal(Scale::softplus()), 4),
        ("normal exp", real(1), Head::Normal(exp()), 2),
        ("normal log_std", real(3), Head::Normal(Scale::log_std()), 3),
        (
            "squashed",
            bounded.clone(),
            Head::TanhNormal(Scale::softplus()),
            6,
        ),
        (
            "squashed log_std",
            bounded,
            Head::TanhNormal(Scale::log_std()),
            3,
        ),
    ]
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The bytes of every column, and messages of errors, for one head.
fn act(env: &EnvSpec, mut policy: NetworkPolicy, hash: &mut Hash) -> Outcome {
    let types = [ExplorationType::Random, ExplorationType::Deterministic];
    for rows in [1, 2, 3, 8, 64, 70] {
        let spec = policy.bind(&Binding::new(env, rows))?;
        let leaves = env.observation_leaves();
        let mut obs = RowBlock::new(&leaves, rows)?;
        let mut out = RowBlock::new(&spec.columns, rows)?;
        for (frame, exploration) in (0..5).flat_map(|frame| types.map(|kind| (frame, kind))) {
            for (index, leaf) in leaves.iter().enumerate() {
                let mut values = numbers(frame + index as u64, rows * leaf.elements());
                if frame < 4 {
                    let usual = |x: &&mut f32| x.abs() < 100.0;
                    let unusual = values.iter_mut().filter(|x| !usual(x));
                    unusual.for_each(|x| *x = 0.5);
                }
                fill(leaf.dtype, &mut obs, index, &values)?;
            }
            let mut envs = EnvRows::new(3, (10..10 + rows as u32).collect());
            envs.set_frame(frame);
            let input = PolicyIn::new(obs.rows(), &envs, exploration);
            if let Err(error) = policy.act(&input, out.rows_mut()) {
                hash.add(error.to_string());
                continue;
            }
            for (key, column) in spec.columns.iter().enumerate() {
                match column.dtype {
                    DType::I64 => bytes::<i64, 8>(&out, key, hash, i64::to_le_bytes)?,
                    DType::F64 => bytes::<f64, 8>(&out, key, hash, f64::to_le_bytes)?,
                    _ => bytes::<f32, 4>(&out, key, hash, f32::to_le_bytes)?,
                }
            }
        }
    }
    Ok(())
}

fn fill(dtype: DType, obs: &mut RowBlock, index: usize, values: &[f32]) -> Outcome {
    let mut rows = obs.rows_mut();
    if dtype == DType::F64 {
        let to = rows.get_mut::<f64>(Key::new(index))?;
        to.iter_mut()
            .zip(values)
            .for_each(|(to, &x)| *to = f64::from(x) / 3.0);
    } else {
        rows.get_mut(Key::new(index))?.copy_from_slice(values);
    }
    Ok(())
}

fn bytes<T: Element, const N: usize>(
    out: &RowBlock,
    key: usize,
    hash: &mut Hash,
    f: fn(T) -> [u8; N],
) -> Outcome {
    let values = out.rows().get::<T>(Key::new(key))?.to_vec();
    values.into_iter().for_each(|x| hash.add(f(x)));
    Ok(())
}

#[test]
fn policies_write_the_bits_that_were_recorded() {
    if !fuses() {
        return;
    }
    let mut got = Vec::new();
    for (name, action, head, outputs) in heads() {
        let single = EnvSpec::new("Test-v0", Spec::unbounded(DType::F32, [4]), action.clone());
        let wide = EnvSpec::new("Test-v0", Spec::unbounded(DType::F64, [4]), action.clone());
        let leaves = [
            ("a", Spec::unbounded(DType::F32, [1])),
            ("b", Spec::unbounded(DType::F64, [3])),
        ];
        let several = EnvSpec::new("Test-v0", Spec::composite(leaves), action);
        let mut hash = Hash::new();
        for env in [&single, &wide, &several] {
            let has_distribution = !matches!(head, Head::Deterministic);
            let net = Sequential::new()
                .linear(4, 32)
                .tanh()
                .linear(32, outputs)
                .seed(5);
            let policy = NetworkPolicy::new(net, head.clone());
            let policy = match std::ptr::eq(env, &several) {
                true => policy.in_key("b").in_key("a"),
                false => policy,
            };
            act(env, policy.clone(), &mut hash).unwrap();
            let policy = policy
                .return_log_prob(has_distribution)
                .return_params(has_distribution);
            act(env, policy, &mut hash).unwrap();
        }
        got.push((name.to_owned(), hash.0));
    }
    compare(&got, &HEADS);
}

const NETWORKS: [(&str, u64); 9] = [
    ("all", 0x99c9_d035_fd9a_ca53),
    ("small", 0xcb1b_566b_bc22_27e5),
    ("relu", 0xb16d_e0cf_edfe_3bc9),
    ("single", 0x9fc0_8030_b2f0_487c),
    ("plain", 0x85a7_2186_f147_247d),
    ("leading", 0x1e4a_623b_f5d5_11b4),
    ("norms", 0xba34_2bf0_8b3d_50e8),
    ("function", 0xb7e4_aeaa_9a67_57b6),
    ("nothing", 0xae75_e03c_ea69_43eb),
];

const HEADS: [(&str, u64); 11] = [
    ("choice", 0x025d_6e14_b476_2ef2),
    ("choices", 0xc829_4298_84da_4bc3),
    ("one-hot", 0x258f_13ca_6779_c8ec),
    ("largest", 0xbe1d_a66a_8e56_0aa5),
    ("copy", 0x661e_580e_abc5_d265),
    ("copy f64", 0xd56a_a8e3_febb_bb65),
    ("normal", 0xe27b_f272_9907_bc7c),
    ("normal exp", 0x2b48_d8d2_aab8_9d62),
    ("normal log_std", 0xfe70_93ab_729f_a602),
    ("squashed", 0x7284_6bf5_44c8_fe53),
    ("squashed log_std", 0x6d6c_c6fb_0535_9a3d),
];
