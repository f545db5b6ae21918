//! Networks and heads beside PyTorch, which writes what it computes with
//! `tests/python/torch_policy.py`.
//!
//! Needs Python with torch and safetensors, in `WINDROW_PYTHON`: `cargo xtask test` sets it and
//! asks for the test, which others leave out.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tensordict::{DType, TensorDict};
use windrow_env::{EnvSpec, Spec};
use windrow_policy::nn::{Activation, Sequential};
use windrow_policy::{
    Binding, EnvRows, ExplorationType, Head, NetworkPolicy, Policy, PolicyIn, Scale,
};
use windrow_slab::{Key, RowBlock};

/// Of every number, relative to `1 + |expected|`: against `float64`, and against PyTorch in
/// `float32`, whose own error comes on top.
const TOLERANCE: f64 = 1e-5;
const TOLERANCE_F32: f64 = 2e-5;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

#[test]
#[ignore = "needs Python with torch in WINDROW_PYTHON: `cargo xtask test` has it"]
fn networks_and_heads_agree_with_torch() -> Outcome {
    let python = std::env::var_os("WINDROW_PYTHON").ok_or(
        "expected the path of a Python with torch and safetensors in WINDROW_PYTHON, which is not set: \
         `cargo xtask python` makes one and prints it",
    )?;
    let folder = tempfile::tempdir()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/torch_policy.py");
    let status = Command::new(python)
        .arg(script)
        .arg(folder.path())
        .status()?;
    assert!(status.success(), "torch_policy.py: {status}");

    let manifest = std::fs::read(folder.path().join("manifest.json"))?;
    let manifest: Value = serde_json::from_slice(&manifest)?;
    let cases = manifest["cases"].as_array().ok_or("no cases")?;
    let mut seen = Seen::default();
    for case in cases {
        let case = Case::read(case, folder.path())?;
        case.compare_network(&mut seen)?;
        match case.head.as_str() {
            "" => {}
            "categorical" => case.compare_categorical(&mut seen)?,
            _ => case.compare_normal(&mut seen)?,
        }
    }
    println!(
        "compared {} outputs of {} networks with torch {}: max abs error {:.2e} (float64: {:.2e})",
        seen.outputs,
        cases.len(),
        manifest["torch"].as_str().unwrap_or("?"),
        seen.worst,
        seen.worst_64,
    );
    Ok(())
}

#[derive(Default)]
struct Seen {
    outputs: usize,
    worst: f64,
    worst_64: f64,
}

impl Seen {
    fn compare(&mut self, what: &str, got: &[f32], expected: &[f32]) {
        let expected: Vec<_> = expected.iter().map(|&x| f64::from(x)).collect();
        self.worst = self.worst.max(worst(what, got, &expected, TOLERANCE_F32));
        self.outputs += got.len();
    }

    fn compare_64(&mut self, what: &str, got: &[f32], expected: &[f64]) {
        self.worst_64 = self.worst_64.max(worst(what, got, expected, TOLERANCE));
        self.outputs += got.len();
    }
}

fn worst(what: &str, got: &[f32], expected: &[f64], tolerance: f64) -> f64 {
    assert_eq!(got.len(), expected.len(), "{what}");
    let mut worst = 0.0_f64;
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        assert!(
            error <= tolerance * (1.0 + expected.abs()),
            "{what}, number {i}: {got}, expected {expected}"
        );
        worst = worst.max(error);
    }
    worst
}

/// One network of the manifest.
struct Case {
    name: String,
    net: Sequential,
    weights: Option<TensorDict>,
    tensors: TensorDict,
    head: String,
    prefix: String,
    actions: usize,
}

impl Case {
    fn read(case: &Value, folder: &Path) -> Outcome<Self> {
        let text = |key: &str| case[key].as_str().unwrap_or("").to_owned();
        let name = text("name");
        let mut net = Sequential::new();
        for layer in case["layers"].as_array().ok_or("no layers")? {
            net = add_layer(net, layer)?;
        }
        let path = folder.join(format!("{name}.safetensors"));
        let weights = match case["weights"].as_bool() {
            Some(true) => Some(TensorDict::load(&path)?),
            _ => None,
        };
        if weights.is_some() && text("head").is_empty() {
            net.load_file(&path)?;
        } else if let Some(weights) = &weights {
            let without_head = &mut weights.clone();
            if text("head") == "normal_log_std" {
                *without_head = leave_out(weights, "log_std")?;
            }
            net.load_prefixed(&text("prefix"), without_head)?;
        }
        Ok(Self {
            net,
            weights,
            tensors: TensorDict::load(folder.join(format!("{name}.io.safetensors")))?,
            head: text("head"),
            prefix: text("prefix"),
            actions: case["actions"].as_u64().unwrap_or(0) as usize,
            name,
        })
    }

    fn f32(&self, key: &str) -> Outcome<Vec<f32>> {
        Ok(self.tensors.get(key)?.to_vec()?)
    }

    fn f64(&self, key: &str) -> Outcome<Vec<f64>> {
        Ok(self.tensors.get(key)?.to_vec()?)
    }

    fn compare_network(&self, seen: &mut Seen) -> Outcome {
        let mut net = self.net.clone();
        let expected = self.f32("output")?;
        let mut out = vec![0.0; expected.len()];
        net.forward(&self.f32("input")?, &mut out)?;
        let what = format!("{} {:?}", self.name, kinds(&net));
        seen.compare(&what, &out, &expected);
        seen.compare_64(&what, &out, &self.f64("output64")?);
        Ok(())
    }

    /// Binds a policy with `head`, loads its parameters, and lets it act on the case's input.
    fn act(&self, head: Head, action: Spec, exploration: ExplorationType) -> Outcome<RowBlock> {
        let shape = self.tensors.get("input")?.shape().to_vec();
        let env = EnvSpec::new("torch", Spec::unbounded(DType::F32, [shape[1]]), action);
        let mut policy = NetworkPolicy::new(self.net.clone().seed(99), head)
            .prefix(self.prefix.as_str())
            .return_log_prob(true)
            .return_params(true);
        policy.load(self.weights.as_ref().ok_or("no weights")?)?;
        let spec = policy.bind(&Binding::new(&env, shape[0]))?;
        let mut obs = RowBlock::new(&env.observation_leaves(), shape[0])?;
        let input = self.f32("input")?;
        obs.rows_mut()
            .get_mut::<f32>(Key::new(0))?
            .copy_from_slice(&input);
        let mut out = RowBlock::new(&spec.columns, shape[0])?;
        let envs = EnvRows::new(1, (0..shape[0] as u32).collect());
        let input = PolicyIn::new(obs.rows(), &envs, exploration);
        policy.act(&input, out.rows_mut())?;
        Ok(out)
    }

    fn compare_categorical(&self, seen: &mut Seen) -> Outcome {
        let table = self.f64("table64")?;
        let greedy: Vec<i64> = self.tensors.get("greedy")?.to_vec()?;
        for exploration in [ExplorationType::Mode, ExplorationType::Random] {
            let out = self.act(Head::Categorical, Spec::discrete(self.actions), exploration)?;
            let actions = out.rows().get::<i64>(Key::new(0))?;
            if exploration == ExplorationType::Mode {
                assert_eq!(actions, greedy, "{}", self.name);
            }
            let rows = table.chunks(self.actions).zip(actions);
            let expected: Vec<_> = rows.map(|(row, &action)| row[action as usize]).collect();
            seen.compare_64(&self.name, out.rows().get(Key::new(1))?, &expected);
            seen.compare(
                &self.name,
                out.rows().get(Key::new(2))?,
                &self.f32("output")?,
            );
        }
        Ok(())
    }

    fn compare_normal(&self, seen: &mut Seen) -> Outcome {
        let bounds = Spec::bounded(&self.f32("low")?, &self.f32("high")?)?;
        let (head, action) = match self.head.as_str() {
            "normal" => (
                Head::Normal(Scale::softplus()),
                Spec::unbounded(DType::F32, [self.actions]),
            ),
            "normal_log_std" => (Head::Normal(Scale::log_std()), bounds),
            _ => (Head::TanhNormal(Scale::softplus()), bounds),
        };
        let out = self.act(head, action, ExplorationType::Deterministic)?;
        let columns = ["action64", "log_prob64", "loc64", "scale64"];
        for (leaf, name) in columns.into_iter().enumerate() {
            let what = format!("{} {} {name}", self.name, self.head);
            seen.compare_64(&what, out.rows().get(Key::new(leaf))?, &self.f64(name)?);
        }
        Ok(())
    }
}

fn leave_out(weights: &TensorDict, name: &str) -> Outcome<TensorDict> {
    let mut rest = TensorDict::new([]);
    for (key, tensor) in weights.leaves().filter(|(key, _)| key.last() != name) {
        rest.set(key, tensor)?;
    }
    Ok(rest)
}

fn kinds(net: &Sequential) -> Vec<&'static str> {
    net.layers().iter().map(|layer| layer.name()).collect()
}

fn add_layer(net: Sequential, layer: &Value) -> Outcome<Sequential> {
    let size = |i: usize| layer[i].as_u64().unwrap_or(0) as usize;
    Ok(match layer[0].as_str().unwrap_or("") {
        "linear" if layer[3] == true => net.linear(size(1), size(2)),
        "linear" => net.linear_without_bias(size(1), size(2)),
        "layer_norm" => net.layer_norm(size(1)),
        "flatten" => net.flatten(),
        "tanh" => net.tanh(),
        "relu" => net.relu(),
        "sigmoid" => net.sigmoid(),
        "silu" => net.silu(),
        "gelu" => net.gelu(),
        "gelu_tanh" => net.gelu_tanh(),
        "elu" => net.activation(Activation::ELU { alpha: 0.7 }),
        other => return Err(format!("unknown layer {other:?}").into()),
    })
}
