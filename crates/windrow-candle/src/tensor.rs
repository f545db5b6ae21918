//! One tensor from windrow to candle, and back.

use candle_core::{CpuStorage, DType as CandleDType, Device, Storage, Tensor};
use tensordict::DType;

use crate::CandleError;

/// A copy of `tensor` on `device`, of the same shape; `bool` becomes `u8`, 0 or 1.
///
/// Copies once, and once more to a device that is not the CPU. Strided views need not be
/// contiguous.
///
/// # Errors
/// [`CandleError::DType`] for `int8` and `bytes`, which candle lacks; [`CandleError::Tensor`] when
/// there is no memory; [`CandleError::Candle`] when the device refuses.
///
/// ```
/// use candle_core::{DType, Device};
/// use windrow::Tensor;
///
/// let done = Tensor::from_vec(vec![false, true], [2, 1])?;
/// let done = windrow_candle::to_candle(&done, &Device::Cpu)?;
/// assert_eq!((done.dims(), done.dtype()), (&[2, 1][..], DType::U8));
/// # Ok::<(), windrow_candle::CandleError>(())
/// ```
pub fn to_candle(tensor: &tensordict::Tensor, device: &Device) -> Result<Tensor, CandleError> {
    let shape = tensor.shape();
    // candle takes the vectors as they are.
    Ok(match tensor.dtype() {
        DType::Bool => {
            let values = tensor.to_vec::<bool>()?.into_iter().map(u8::from);
            Tensor::from_vec(values.collect::<Vec<_>>(), shape, device)?
        }
        DType::U8 => Tensor::from_vec(tensor.to_vec::<u8>()?, shape, device)?,
        DType::I16 => Tensor::from_vec(tensor.to_vec::<i16>()?, shape, device)?,
        DType::I32 => Tensor::from_vec(tensor.to_vec::<i32>()?, shape, device)?,
        DType::I64 => Tensor::from_vec(tensor.to_vec::<i64>()?, shape, device)?,
        DType::F32 => Tensor::from_vec(tensor.to_vec::<f32>()?, shape, device)?,
        DType::F64 => Tensor::from_vec(tensor.to_vec::<f64>()?, shape, device)?,
        got @ (DType::I8 | DType::Bytes) => return Err(CandleError::DType { got }),
    })
}

/// A copy of `tensor`, of the same shape; `f16`, `bf16` and `f8e4m3` become `float32`, and `u32`
/// becomes `int64`, without loss.
///
/// Copies once, and once more where the tensor is not on the CPU, not contiguous, or of one of
/// these types.
///
/// # Errors
/// [`CandleError::CandleDType`] for types without arithmetic, such as `f4`; [`CandleError::Tensor`]
/// when there is no memory; [`CandleError::Candle`] when the device refuses.
///
/// ```
/// use candle_core::{Device, Tensor};
///
/// let advantage = Tensor::new(&[[0.5f32, -1.0], [2.0, 0.0]], &Device::Cpu)?;
/// let advantage = windrow_candle::from_candle(&advantage.t()?)?;
/// assert_eq!(advantage.to_vec::<f32>()?, [0.5, 2.0, -1.0, 0.0]);
/// # Ok::<(), windrow_candle::CandleError>(())
/// ```
pub fn from_candle(tensor: &Tensor) -> Result<tensordict::Tensor, CandleError> {
    let tensor = match windrow_dtype(tensor.dtype())? {
        DType::F32 => tensor.to_dtype(CandleDType::F32)?,
        DType::I64 => tensor.to_dtype(CandleDType::I64)?,
        _ => tensor.clone(),
    };
    // Both return the tensor itself where nothing is to be done.
    let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        unreachable!("A tensor on the CPU has its storage there.");
    };
    let start = layout.start_offset();
    let range = start..start + tensor.elem_count();
    let shape = tensor.dims();
    Ok(match storage {
        CpuStorage::U8(values) => tensordict::Tensor::from_slice(&values[range], shape)?,
        CpuStorage::I16(values) => tensordict::Tensor::from_slice(&values[range], shape)?,
        CpuStorage::I32(values) => tensordict::Tensor::from_slice(&values[range], shape)?,
        CpuStorage::I64(values) => tensordict::Tensor::from_slice(&values[range], shape)?,
        CpuStorage::F32(values) => tensordict::Tensor::from_slice(&values[range], shape)?,
        CpuStorage::F64(values) => tensordict::Tensor::from_slice(&values[range], shape)?,
        _ => unreachable!("Other types have been converted or refused."),
    })
}

/// The element type of windrow that has all values of `dtype`.
pub(crate) fn windrow_dtype(dtype: CandleDType) -> Result<DType, CandleError> {
    Ok(match dtype {
        CandleDType::U8 => DType::U8,
        CandleDType::I16 => DType::I16,
        CandleDType::I32 => DType::I32,
        CandleDType::U32 | CandleDType::I64 => DType::I64,
        CandleDType::BF16 | CandleDType::F16 | CandleDType::F8E4M3 | CandleDType::F32 => DType::F32,
        CandleDType::F64 => DType::F64,
        got => return Err(CandleError::CandleDType { got }),
    })
}

#[cfg(test)]
#[path = "tensor_tests.rs"]
mod tests;
