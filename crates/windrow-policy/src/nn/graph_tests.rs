use super::*;

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut noise = Noise::new(seed, 0, 0);
    (0..n).map(|_| noise.normal() as f32).collect()
}

/// What `value` is for `rows` rows of each input.
fn evaluate(graph: &mut Graph, value: Value, rows: usize, inputs: &[&[f32]]) -> Vec<f32> {
    let mut out = [vec![0.0; rows * graph.elements(value).unwrap()]];
    graph.forward(inputs, &[value], &mut out).unwrap();
    let [out] = out;
    out
}

#[test]
fn a_chain_gives_what_the_layers_give_to_the_last_bit() {
    let net = Sequential::new().linear(19, 70).tanh().layer_norm(70);
    let net = net
        .linear(70, 33)
        .elu(0.7)
        .linear_without_bias(33, 5)
        .seed(4);
    let (mut graph, out) = Graph::of(&net);
    assert_eq!(graph.weights(), net.weights());
    for rows in [1, 2, 5, 64, 131] {
        let input = numbers(1, rows * 19);
        let mut expected = vec![0.0; rows * 5];
        net.clone().forward(&input, &mut expected).unwrap();
        assert_eq!(evaluate(&mut graph, out, rows, &[&input]), expected);
    }
}

#[test]
fn a_row_does_not_depend_on_the_rows_beside_it() {
    let mut graph = Graph::new();
    let (x, y) = (graph.input(3), graph.input(7));
    let joined = graph.cat(&[y, x]);
    let wide = graph.linear("0", joined, 21);
    let soft = graph.push(Op::Softmax(7), &[wide]);
    let noise = graph.push(Op::Noise(Draw::Normal, 21, 3), &[]);
    let sum = graph.zip(Zip::Add, soft, noise);
    let out = graph.push(Op::Reduce(Reduction::Logsumexp, 7), &[sum]);
    let (x, y) = (numbers(1, 3 * 100), numbers(2, 7 * 100));
    let all = evaluate(&mut graph, out, 100, &[&x, &y]);
    for rows in [1, 3, 65] {
        let some = evaluate(&mut graph, out, rows, &[&x[..3 * rows], &y[..7 * rows]]);
        assert_eq!(some, all[..3 * rows]);
    }
}

#[test]
fn operations_do_what_they_say() {
    let mut graph = Graph::new();
    let x = graph.input(6);
    let place = graph.input(2);
    let runs = vec![Run(0, 5, 3, -2), Run(1, 0, 2, 0), Run(0, 0, 1, 1)];
    let cases = [
        (
            Op::Take(runs),
            vec![x, place],
            vec![6.0, 4.0, 2.0, 2.0, 2.0, 1.0],
        ),
        (Op::Reduce(Reduction::Sum, 3), vec![x], vec![6.0, 15.0]),
        (Op::Reduce(Reduction::Argmax, 3), vec![x], vec![2.0, 2.0]),
        (
            Op::Reduce(Reduction::Prod, 2),
            vec![x],
            vec![2.0, 12.0, 30.0],
        ),
        (Op::Gather(3), vec![x, place], vec![3.0, 4.0]),
        (Op::Lookup(2), vec![x, place], vec![5.0, 6.0, 1.0, 2.0]),
        (Op::Zip(Zip::Max), vec![place, place], vec![2.0, 0.0]),
        (Op::Where, vec![place, place, place], vec![2.0, 0.0]),
        (Op::Map(Function::Not), vec![place], vec![0.0, 1.0]),
    ];
    for (op, from, expected) in cases {
        let out = graph.push(op.clone(), &from);
        let got = evaluate(
            &mut graph,
            out,
            1,
            &[&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2.0, 0.0]],
        );
        assert_eq!(got, expected, "{op:?}");
    }
}

#[test]
fn a_number_out_of_place_is_an_error_and_not_a_number_stays_one() {
    let ops = [
        (Op::Gather(3), 6, "an index from 0 to 2"),
        (Op::Lookup(2), 6, "an index from 0 to 2"),
        (
            Op::Within {
                low: 0.0,
                high: 2.0,
            },
            0,
            "an observation or state from 0 to 2",
        ),
    ];
    for (op, width, expected) in ops {
        let mut graph = Graph::new();
        let (table, place) = (graph.input(6), graph.input(2));
        let from = if width == 0 {
            vec![place]
        } else {
            vec![table, place]
        };
        let out = graph.push(op.clone(), &from);
        let elements = graph.elements(out).unwrap();
        let mut evaluate = |place: [f32; 2]| {
            // The second of two rows.
            let places = [0.0, 1.0, place[0], place[1]];
            let mut outputs = [vec![0.0; 2 * elements]];
            let result = graph.forward(&[&[1.0; 12], &places], &[out], &mut outputs);
            result.map(|()| outputs[0][2 * elements - 1])
        };
        for stray in [-1.0, 3.0, 1e20, f32::INFINITY] {
            let error = evaluate([stray, 0.0]).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("the network expected {expected}, got {stray}"),
                "{op:?}"
            );
        }
        assert!(evaluate([0.0, f32::NAN]).unwrap().is_nan(), "{op:?}");
        assert!(
            evaluate([0.0, 2.0]).is_ok(),
            "an error does not stay: {op:?}"
        );
    }
}

#[test]
fn the_logarithm_of_a_softmax_keeps_what_little_is_left_beside_a_large_number() {
    let mut graph = Graph::new();
    let x = graph.input(2);
    let out = graph.push(Op::LogSoftmax(2), &[x]);
    let got = evaluate(&mut graph, out, 1, &[&[1000.0, 990.0]]);
    let exact = -(-10.0_f64).exp().ln_1p();
    assert!((f64::from(got[0]) / exact - 1.0).abs() < 1e-2, "{got:?}");
    assert!((got[1] + 10.0).abs() < 1e-4);
}

#[test]
fn matrices_of_each_row_are_multiplied() {
    let mut graph = Graph::new();
    let (rows, inner, columns, batch) = (3, 5, 4, 2);
    let (a, b) = (
        graph.input(batch * rows * inner),
        graph.input(batch * inner * columns),
    );
    let op = Op::MatMul {
        rows,
        inner,
        columns,
    };
    let out = graph.push(op, &[a, b]);
    let count = 70;
    let (x, y) = (
        numbers(1, count * batch * rows * inner),
        numbers(2, count * batch * inner * columns),
    );
    let got = evaluate(&mut graph, out, count, &[&x, &y]);
    for (pair, got) in got.chunks(rows * columns).enumerate() {
        let (x, y) = (&x[pair * rows * inner..], &y[pair * inner * columns..]);
        for row in 0..rows {
            for column in 0..columns {
                let products = (0..inner)
                    .map(|i| f64::from(x[row * inner + i]) * f64::from(y[i * columns + column]));
                let exact: f64 = products.sum();
                assert!((f64::from(got[row * columns + column]) - exact).abs() < 1e-5);
            }
        }
    }
    let some = evaluate(&mut graph, out, 1, &[&x[..30], &y[..40]]);
    assert_eq!(some, got[..24], "a row does not depend on others");
}

#[test]
fn gamma_samples_have_the_mean_and_variance_of_their_shapes() {
    let mut graph = Graph::new();
    let shapes = graph.constant(&[0.3, 1.0, 4.0, -1.0]);
    let out = graph.push(Op::Gamma(2), &[shapes]);
    let rows = 20_000;
    let samples = evaluate(&mut graph, out, rows, &[]);
    for (place, shape) in [0.3, 1.0, 4.0].into_iter().enumerate() {
        let own = || samples.iter().skip(place).step_by(4).map(|&x| f64::from(x));
        let mean = own().sum::<f64>() / rows as f64;
        let variance = own().map(|x| (x - mean).powi(2)).sum::<f64>() / rows as f64;
        assert!((mean / shape - 1.0).abs() < 0.06, "{shape}: {mean}");
        assert!((variance / shape - 1.0).abs() < 0.15, "{shape}: {variance}");
        assert!(own().all(|x| x > 0.0));
    }
    assert!(samples[3].is_nan());
}

#[test]
fn a_linear_map_of_several_runs_maps_each() {
    let mut graph = Graph::new();
    let (x, one) = (graph.input(6), graph.input(2));
    let weight = graph.parameter("w", [3, 2]);
    let many = graph.push(
        Op::Linear {
            outputs: 3,
            inputs: 2,
        },
        &[x, weight],
    );
    let single = graph.push(
        Op::Linear {
            outputs: 3,
            inputs: 2,
        },
        &[one, weight],
    );
    let mut weights = Weights::new([]);
    put(&mut weights, "w", &numbers(5, 6), &[3, 2]);
    graph.load(&weights).unwrap();
    let input = numbers(6, 6 * 5);
    let got = evaluate(&mut graph, many, 5, &[&input, &[0.0; 10]]);
    let expected = evaluate(&mut graph, single, 15, &[&[0.0; 90], &input]);
    assert_eq!(got, expected);
}

#[test]
fn what_depends_on_parameters_alone_follows_them() {
    let mut graph = Graph::new();
    let x = graph.input(2);
    let scale = graph.parameter("scale", [2]);
    let exp = graph.map(scale, Function::Exp);
    let out = graph.zip(Zip::Mul, x, exp);
    for log in [0.0_f32, 1.0] {
        let mut weights = Weights::new([]);
        put(&mut weights, "scale", &[log; 2], &[2]);
        graph.load(&weights).unwrap();
        let got = evaluate(&mut graph, out, 2, &[&[1.0, 2.0, 3.0, 4.0]]);
        assert!((got[3] - 4.0 * log.exp()).abs() < 1e-5, "{got:?}");
    }
    let missing = graph.load(&Weights::new([])).unwrap_err().to_string();
    assert!(missing.contains("\"scale\" is missing"), "{missing}");
}

#[test]
fn choices_have_the_probabilities_of_their_weights() {
    let mut graph = Graph::new();
    let weights = graph.constant(&[1.0, 0.0, 3.0]);
    let uniform = graph.push(Op::Noise(Draw::Uniform, 1, 0), &[]);
    let out = graph.push(Op::Pick(3), &[weights, uniform]);
    let rows = 20_000;
    let picked = evaluate(&mut graph, out, rows, &[]);
    let of = |choice: f32| picked.iter().filter(|&&x| x == choice).count() as f64 / rows as f64;
    assert!(
        (of(0.0) - 0.25).abs() < 0.015 && of(1.0) == 0.0,
        "{} {}",
        of(0.0),
        of(1.0)
    );
    let nothing = graph.constant(&[0.0; 3]);
    let out = graph.push(Op::Pick(3), &[nothing, uniform]);
    assert!(evaluate(&mut graph, out, 1, &[])[0].is_nan());
}

#[test]
fn values_that_do_not_fit_are_named() {
    let x = Value(0);
    let bad = [
        (Op::Zip(Zip::Add), vec![x, Value(1)]),
        (Op::Take(vec![Run(0, 3, 2, 1)]), vec![x]),
        (Op::Take(vec![Run(0, 1, 3, -1)]), vec![x]),
        (Op::Take(vec![Run(1, 0, 1, 1)]), vec![x]),
        (Op::Reduce(Reduction::Sum, 3), vec![x]),
        (Op::Softmax(0), vec![x]),
        (
            Op::Linear {
                outputs: 2,
                inputs: 4,
            },
            vec![x, Value(1)],
        ),
        (Op::Input(2), vec![]),
        (Op::Map(Function::Abs), vec![Value(2)]),
        (Op::Pick(2), vec![x, Value(1)]),
        (
            Op::MatMul {
                rows: 2,
                inner: 2,
                columns: 2,
            },
            vec![x, Value(1)],
        ),
    ];
    for (op, from) in bad {
        let mut graph = Graph::new();
        graph.input(4);
        graph.input(5);
        graph.push(op.clone(), &from);
        let error = graph.check().unwrap_err().to_string();
        assert!(error.starts_with("layer 2 (Graph): "), "{op:?}: {error}");
        let what = match op {
            Op::Input(_) => Some("inputs: expected 3, got 2"),
            Op::Pick(_) => Some("Pick(2): expected operands that fit, got [4, 5] numbers in a row"),
            _ => None,
        };
        assert!(error.ends_with(what.unwrap_or_default()), "{error}");
    }
    let mut graph = Graph::new();
    let x = graph.input(4);
    let out = graph.push(
        Op::Linear {
            outputs: 1,
            inputs: 4,
        },
        &[x, x],
    );
    let error = graph
        .forward(&[&[0.0; 4]], &[out], &mut [vec![0.0]])
        .unwrap_err()
        .to_string();
    assert!(error.contains("weights of a linear map"), "{error}");
    let error = graph
        .forward(&[&[0.0; 5]], &[x], &mut [vec![0.0; 4]])
        .unwrap_err()
        .to_string();
    assert!(error.contains("expected 1 rows"), "{error}");
}

#[test]
fn every_activation_is_the_function_of_its_name() {
    let soft = |x: f64| x.exp().ln_1p();
    let cases: [(Activation, &dyn Fn(f64) -> f64); 12] = [
        (Activation::LeakyReLU { slope: 0.1 }, &|x| x.max(0.1 * x)),
        (Activation::CELU { alpha: 2.0 }, &|x| {
            if x > 0.0 { x } else { 2.0 * (x / 2.0).exp_m1() }
        }),
        (Activation::SELU, &|x| {
            1.050_700_987
                * if x > 0.0 {
                    x
                } else {
                    1.673_263_242 * x.exp_m1()
                }
        }),
        (
            Activation::Softplus {
                beta: 2.0,
                threshold: 20.0,
            },
            &|x| soft(2.0 * x) / 2.0,
        ),
        (Activation::Mish, &|x| x * soft(x).tanh()),
        (
            Activation::Hardtanh {
                low: -1.0,
                high: 2.0,
            },
            &|x| x.clamp(-1.0, 2.0),
        ),
        (Activation::Hardsigmoid, &|x| {
            (x / 6.0 + 0.5).clamp(0.0, 1.0)
        }),
        (Activation::Softsign, &|x| x / (1.0 + x.abs())),
        (Activation::LogSigmoid, &|x| -soft(-x)),
        (Activation::Tanhshrink, &|x| x - x.tanh()),
        (Activation::Softshrink { lambda: 0.5 }, &|x| {
            x - x.clamp(-0.5, 0.5)
        }),
        (Activation::Hardswish, &|x| {
            x * (x / 6.0 + 0.5).clamp(0.0, 1.0)
        }),
    ];
    let input: Vec<f32> = (-60..60).map(|i| i as f32 * 0.1 + 0.05).collect();
    for (activation, exact) in cases {
        let mut graph = Graph::new();
        let x = graph.input(input.len());
        let out = graph.activation(x, activation);
        for (&x, y) in input.iter().zip(evaluate(&mut graph, out, 1, &[&input])) {
            let exact = exact(f64::from(x));
            assert!(
                (f64::from(y) - exact).abs() < 2e-6,
                "{activation:?} of {x}: {y}, expected {exact}"
            );
        }
    }
}

#[test]
fn values_of_no_numbers_are_no_work() {
    let mut graph = Graph::new();
    let (x, none) = (graph.input(2), graph.input(0));
    let values = [
        x,
        none,
        graph.cat(&[]),
        graph.push(Op::Noise(Draw::Normal, 0, 0), &[]),
        graph.push(Op::Where, &[none; 3]),
        graph.map(none, Function::Abs),
    ];
    let mut outputs = vec![Vec::new(); values.len()];
    outputs[0] = vec![0.0; 4];
    let inputs = [[1.0; 4].as_slice(), &[]];
    graph.forward(&inputs, &values, &mut outputs).unwrap();
    assert_eq!(outputs[0], [1.0; 4]);
}

#[test]
fn a_parameter_that_memory_cannot_hold_is_an_error_of_what_reads_the_graph() {
    for outputs in [1 << 44, usize::MAX] {
        let mut net = Graph::new();
        let x = net.input(4);
        let y = net.linear("a", x, outputs);
        let errors = [
            net.check().unwrap_err(),
            net.elements(y).unwrap_err(),
            net.forward(&[&[0.0; 4]], &[y], &mut [Vec::new()])
                .unwrap_err(),
        ];
        for error in errors {
            let expected =
                format!("layer 1 (Graph): no memory for parameters from 4 to {outputs} numbers");
            assert_eq!(error.to_string(), expected);
        }
    }
}
