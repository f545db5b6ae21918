use candle_core::{DType as CandleDType, Device, Tensor};
use tensordict::{DType, TensorDict, TensorError};

use crate::{CandleError, Tensors, from_candle, to_candle};

const CPU: Device = Device::Cpu;

/// The ends of the type, where a conversion on the way would show.
fn samples() -> Vec<tensordict::Tensor> {
    use tensordict::Tensor;
    let shape = [2, 2];
    let (i16s, i32s, i64s) = (
        [i16::MIN, i16::MAX],
        [i32::MIN, i32::MAX],
        [i64::MIN, i64::MAX],
    );
    [
        Tensor::from_slice(&[0, 1, 254, 255u8], shape),
        Tensor::from_slice(&[i16s[0], -1, 0, i16s[1]], shape),
        Tensor::from_slice(&[i32s[0], -1, 0, i32s[1]], shape),
        Tensor::from_slice(&[i64s[0], -1, (1 << 53) + 1, i64s[1]], shape),
        Tensor::from_slice(&[-0.0, 0.1, f32::MIN_POSITIVE / 2.0, f32::NAN], shape),
        Tensor::from_slice(&[-0.0, 0.1, f64::INFINITY, f64::MAX], shape),
    ]
    .map(Result::unwrap)
    .to_vec()
}

#[test]
fn every_number_comes_back_as_it_was() {
    for tensor in samples() {
        let there = to_candle(&tensor, &CPU).unwrap();
        assert_eq!(there.dims(), tensor.shape());
        let back = from_candle(&there).unwrap();
        assert!(back.same_bits(&tensor), "{}", tensor.dtype());
    }
}

#[test]
fn bools_become_zeros_and_ones() {
    let bools = tensordict::Tensor::from_vec(vec![true, false, true], [3]).unwrap();
    let there = to_candle(&bools, &CPU).unwrap();
    assert_eq!(there.to_vec1::<u8>().unwrap(), [1, 0, 1]);
}

#[test]
fn views_of_either_side_are_copied_in_their_order() {
    for tensor in samples() {
        let turned = tensor.transpose(0, 1).unwrap().flip(0).unwrap();
        let there = to_candle(&turned, &CPU).unwrap();
        assert!(from_candle(&there).unwrap().same_bits(&turned));

        // Elements of the storage lie before and between those of the view.
        let there = to_candle(&tensor, &CPU).unwrap();
        let column = from_candle(&there.narrow(1, 1, 1).unwrap()).unwrap();
        assert!(column.same_bits(&tensor.narrow(1, 1, 1).unwrap()));
        let row = from_candle(&there.get(1).unwrap()).unwrap();
        assert!(row.same_bits(&tensor.select(0, 1).unwrap()));
        let turned = from_candle(&there.t().unwrap()).unwrap();
        assert!(turned.same_bits(&tensor.transpose(0, 1).unwrap()));
        let twice = from_candle(&there.get(0).unwrap().broadcast_left(2).unwrap()).unwrap();
        assert!(twice.same_bits(&tensor.narrow(0, 0, 1).unwrap().expand([2, 2]).unwrap()));
    }
}

#[test]
fn scalars_and_empty_tensors_keep_their_shapes() {
    for shape in [&[][..], &[0], &[3, 0, 2], &[1, 1]] {
        let tensor = tensordict::Tensor::zeros(DType::F32, shape).unwrap();
        let there = to_candle(&tensor, &CPU).unwrap();
        assert_eq!(there.dims(), shape);
        assert_eq!(from_candle(&there).unwrap().shape(), shape);
    }
}

#[test]
fn wider_types_take_what_windrow_lacks() {
    let actions = Tensor::new(&[0, u32::MAX], &CPU).unwrap();
    let actions = from_candle(&actions).unwrap();
    assert_eq!(actions.to_vec::<i64>().unwrap(), [0, i64::from(u32::MAX)]);
    for dtype in [CandleDType::F16, CandleDType::BF16, CandleDType::F8E4M3] {
        let halves = Tensor::new(&[-0.5f32, 3.5], &CPU).unwrap();
        let halves = from_candle(&halves.to_dtype(dtype).unwrap()).unwrap();
        assert_eq!(halves.to_vec::<f32>().unwrap(), [-0.5, 3.5], "{dtype:?}");
    }
}

#[test]
fn types_that_candle_lacks_are_named() {
    let int8 = tensordict::Tensor::zeros(DType::I8, [2]).unwrap();
    let error = to_candle(&int8, &CPU).unwrap_err();
    assert_eq!(
        error.to_string(),
        "candle has no tensors of int8: cast the tensor to int16"
    );

    let mut dict = TensorDict::new([1]);
    let text = tensordict::Tensor::from_strings(&["left"], [1]).unwrap();
    dict.set(("next", "text"), text).unwrap();
    let error = Tensors::new(&dict, &CPU).unwrap_err();
    let text = r#"entry ("next", "text"): candle has no tensors of bytes: exclude the entry"#;
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_batch_comes_back_as_it_was() {
    let mut dict = TensorDict::new([2]);
    for (number, tensor) in samples().into_iter().enumerate() {
        dict.set(("next", &*number.to_string()), &tensor).unwrap();
        dict.set(number.to_string(), tensor).unwrap();
    }
    let tensors = Tensors::new(&dict, &CPU).unwrap();
    assert_eq!(tensors.iter().len(), 12);
    assert_eq!(tensors.get(("next", "0")).unwrap().dtype(), CandleDType::U8);
    assert!(tensors.to_dict([2]).unwrap().same_bits(&dict));

    let error = tensors.to_dict([3]).unwrap_err();
    assert!(matches!(
        error,
        CandleError::Tensor(TensorError::Batch { .. })
    ));
    let error = tensors.get("reward").unwrap_err().to_string();
    assert!(
        error.contains(r#"no entry "reward""#) && error.contains("next"),
        "{error}"
    );
}
