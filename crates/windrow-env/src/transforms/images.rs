//! Pictures: their layout, their colours, and parts of them.

use serde::{Deserialize, Serialize};
use tensordict::{DType, Shape, for_dtype};
use windrow_slab::{Key, LeafSpec, Row, RowMut};

use super::keys::Keys;
use super::relayout::{FillLeaf, ObservationLayout, Relayout, mapped};
use crate::number::Number;
use crate::{Attach, EnvError, Spec, Transform};

/// A picture made from another.
pub(super) struct Pictured<M> {
    /// Fills the leaf; `fit` sets the places that it reads and writes.
    pub(super) make: M,
    pub(super) spec: Spec,
}

/// Replaces pictures by the results of `make`, which gets their index, leaf and spec.
pub(super) fn picture<M: FillLeaf>(
    envs: &mut Attach<'_>,
    keys: &Keys,
    make: impl Fn(usize, &LeafSpec, &Spec) -> Result<Pictured<M>, Unfit>,
    fit: impl Fn(&mut M, usize),
) -> Result<Relayout<M>, EnvError> {
    let mut layout = ObservationLayout::of(&envs.spec.observation, "observation");
    let mut made = Vec::new();
    for (key, to) in keys.iter() {
        let (from, leaf) = envs.observation(key)?;
        let spec = layout.spec(key).cloned();
        let spec = spec.unwrap_or_else(|| Spec::unbounded(leaf.dtype, &leaf.shape));
        let Pictured { make, spec } = make(from, &leaf, &spec).map_err(|Unfit(expected)| {
            let got = format!("{} of shape {:?}", leaf.dtype, leaf.shape);
            envs.inner().unfit(key, expected, got)
        })?;
        layout.put(to, spec, None);
        made.push((make, to));
    }
    layout.lay(envs, made, fit)
}

/// The expected kind of picture.
pub(super) struct Unfit(pub(super) String);

/// Height and width of a picture.
pub(super) fn plane(leaf: &LeafSpec) -> Result<[usize; 2], Unfit> {
    match leaf.shape.as_slice() {
        [.., height, width] => Ok([*height, *width]),
        _ => Err(Unfit("a picture, with a height and a width".to_owned())),
    }
}

/// Moves the channels of pictures from the last dimension to the first of three, as networks
/// expect, and scales integers up to 255 to real numbers up to 1.
///
/// ```
/// use windrow_env::{Keys, ToTensorImage};
///
/// let transform = ToTensorImage { keys: Keys::pairs([("pixels", "picture")]), ..ToTensorImage::default() };
/// # let _ = transform;
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToTensorImage {
    /// Whether values are divided by 255; `None` for those that are no real numbers.
    pub from_int: Option<bool>,
    /// Whether pictures of three dimensions are given another one in front.
    pub unsqueeze: bool,
    /// Element type of the result, `float32` or `float64`.
    pub dtype: DType,
    /// Observations that are changed.
    pub keys: Keys,
    /// Whether pictures that have not three channels behind keep their layout.
    pub shape_tolerant: bool,
}

impl Default for ToTensorImage {
    fn default() -> Self {
        Self {
            from_int: None,
            unsqueeze: false,
            dtype: DType::F32,
            keys: Keys::pixels(),
            shape_tolerant: false,
        }
    }
}

impl Transform for ToTensorImage {
    type Bound = Relayout<Channelled>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let make = |from, leaf: &LeafSpec, spec: &Spec| {
            let [lead @ .., height, width, channels] = leaf.shape.as_slice() else {
                return Err(Unfit("a picture of three dimensions".to_owned()));
            };
            if !self.dtype.is_float() {
                return Err(Unfit(format!(
                    "float32 or float64 as dtype instead of {}",
                    self.dtype
                )));
            }
            let scaled = self.from_int.unwrap_or(!leaf.dtype.is_float());
            let permuted = !self.shape_tolerant || *channels == 3;
            let mut shape = Shape::from_slice(lead);
            shape.extend(match permuted {
                true => [*channels, *height, *width],
                false => [*height, *width, *channels],
            });
            if self.unsqueeze && shape.len() == 3 {
                shape.insert(0, 1);
            }
            let scale = |x: f64| if scaled { x / 255.0 } else { x };
            Ok(Pictured {
                spec: mapped(spec, self.dtype, shape, scale),
                make: Channelled {
                    dtypes: (leaf.dtype, self.dtype),
                    from,
                    to: 0,
                    scaled,
                    width: if permuted { *width } else { width * channels },
                    channels: if permuted { *channels } else { 1 },
                    plane: height * if permuted { *width } else { width * channels },
                    table: (0..=255u8).map(|x| f32::from(x) / 255.0).collect(),
                },
            })
        };
        picture(envs, &self.keys, make, |make, to| make.to = to)
    }
}

/// Moves channels to the front.
#[derive(Debug)]
pub struct Channelled {
    dtypes: (DType, DType),
    from: usize,
    to: usize,
    scaled: bool,
    /// Elements of a row of one channel.
    width: usize,
    channels: usize,
    /// Elements of one channel.
    plane: usize,
    /// Each byte divided by 255.
    table: Vec<f32>,
}

impl FillLeaf for Channelled {
    fn next(&mut self, _: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        if self.dtypes == (DType::U8, DType::F32) && self.scaled {
            let seen = from.get(Key::<u8>::new(self.from))?;
            let mut table = [0f32; 256];
            // Of a known length, so that no index has to be checked.
            table.copy_from_slice(&self.table);
            let to = to.get_mut(Key::<f32>::new(self.to))?;
            self.channels(seen, to, |x| table[usize::from(x)]);
            return Ok(());
        }
        for_dtype!(self.dtypes.0, F => {
            let seen = from.get(Key::<F>::new(self.from))?;
            match self.dtypes.1 {
                DType::F64 => {
                    let to = to.get_mut(Key::<f64>::new(self.to))?;
                    self.channels(seen, to, |x| self.value(x));
                }
                _ => {
                    let to = to.get_mut(Key::<f32>::new(self.to))?;
                    self.channels(seen, to, |x| self.value(x) as f32);
                }
            }
        });
        Ok(())
    }
}

impl Channelled {
    /// A value as a real number; PyTorch divides integers in `float32`.
    #[inline(always)]
    fn value<T: Number>(&self, x: T) -> f64 {
        match (self.scaled, T::DTYPE) {
            (false, _) => x.number(),
            (true, DType::F64) => x.number() / 255.0,
            (true, _) => f64::from(x.number() as f32 / 255.0),
        }
    }

    #[inline(always)]
    fn channels<T: Copy, F>(&self, seen: &[T], to: &mut [F], value: impl Fn(T) -> F) {
        let (width, channels) = (self.width.max(1), self.channels);
        let picture = (self.plane * channels).max(1);
        for (seen, to) in seen.chunks_exact(picture).zip(to.chunks_exact_mut(picture)) {
            // Row by row, so that a row is read from the nearest memory.
            for (y, pixels) in seen.chunks_exact(width * channels).enumerate() {
                for channel in 0..channels {
                    let to = &mut to[channel * self.plane + y * width..][..width];
                    let values = pixels[channel..].iter().step_by(channels);
                    to.iter_mut()
                        .zip(values)
                        .for_each(|(to, &x)| *to = value(x));
                }
            }
        }
    }
}

/// Converts pictures of three channels, red, green and blue, to one:
/// `0.2989 r + 0.587 g + 0.114 b`. Channels come before height and width.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrayScale {
    /// Observations that are changed.
    #[serde(default = "Keys::pixels")]
    pub keys: Keys,
}

impl GrayScale {
    /// Changes the pictures `keys`.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self { keys }
    }
}

impl Transform for GrayScale {
    type Bound = Relayout<Grey>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let make = |from, leaf: &LeafSpec, spec: &Spec| {
            let [lead @ .., 3, height, width] = leaf.shape.as_slice() else {
                return Err(Unfit("three channels, before height and width".to_owned()));
            };
            let mut shape = Shape::from_slice(lead);
            shape.extend([1, *height, *width]);
            let dtype = leaf.dtype;
            let grey = |x: f64| for_dtype!(dtype, T => grey(T::nearest(x), T::nearest(x), T::nearest(x)).number());
            Ok(Pictured {
                spec: mapped(spec, dtype, shape, grey),
                make: Grey {
                    dtype,
                    from,
                    to: 0,
                    plane: height * width,
                },
            })
        };
        picture(envs, &self.keys, make, |make, to| make.to = to)
    }
}

/// Mixes three channels.
#[derive(Debug)]
pub struct Grey {
    dtype: DType,
    from: usize,
    to: usize,
    plane: usize,
}

impl FillLeaf for Grey {
    fn next(&mut self, _: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        let plane = self.plane.max(1);
        for_dtype!(self.dtype, T => {
            let seen = from.get(Key::<T>::new(self.from))?.chunks_exact(3 * plane);
            let to = to.get_mut(Key::<T>::new(self.to))?.chunks_exact_mut(plane);
            for (seen, to) in seen.zip(to) {
                let (red, others) = seen.split_at(plane);
                let (green, blue) = others.split_at(plane);
                let colours = red.iter().zip(green).zip(blue);
                for (to, ((&red, &green), &blue)) in to.iter_mut().zip(colours) {
                    *to = grey(red, green, blue);
                }
            }
        });
        Ok(())
    }
}

/// The brightness of a colour, computed in `float32` unless it is of `float64`, and cut off where
/// it is a whole number.
#[inline(always)]
fn grey<T: Number>(red: T, green: T, blue: T) -> T {
    let [red, green, blue] = [red, green, blue].map(T::number);
    match T::DTYPE {
        DType::F64 => T::nearest(0.2989 * red + 0.587 * green + 0.114 * blue),
        dtype => {
            let [red, green, blue] = [red, green, blue].map(|x| x as f32);
            let grey = 0.2989 * red + 0.587 * green + 0.114 * blue;
            T::nearest(f64::from(if dtype.is_float() {
                grey
            } else {
                grey.trunc()
            }))
        }
    }
}

/// Crops pictures to their middle; smaller pictures are padded with zeros.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CenterCrop {
    /// Size of the second dimension from the end.
    pub w: usize,
    /// Size of the last dimension; `w` where it is not given.
    #[serde(default)]
    pub h: Option<usize>,
    /// Observations that are changed.
    #[serde(default = "Keys::pixels")]
    pub keys: Keys,
}

impl CenterCrop {
    /// Cuts `[w, h]` out of the pictures `keys`.
    #[must_use]
    pub fn new(w: usize, h: usize, keys: Keys) -> Self {
        Self {
            w,
            h: Some(h),
            keys,
        }
    }
}

impl Transform for CenterCrop {
    type Bound = Relayout<Cropped>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let size = [self.w, self.h.unwrap_or(self.w)];
        let make = |from, leaf: &LeafSpec, spec: &Spec| {
            let [height, width] = plane(leaf)?;
            let (rows, columns) = (Span::of(height, size[0]), Span::of(width, size[1]));
            let mut shape = leaf.shape.clone();
            let at = shape.len() - 2;
            shape[at..].copy_from_slice(&size);
            let is_padded = rows.len < size[0] || columns.len < size[1];
            let mut spec = mapped(spec, leaf.dtype, shape, |x| x);
            if let (Spec::Bounded { low, high, .. }, true) = (&mut spec, is_padded) {
                low.iter_mut().for_each(|low| *low = low.min(0.0));
                high.iter_mut().for_each(|high| *high = high.max(0.0));
            }
            Ok(Pictured {
                spec,
                make: Cropped {
                    dtype: leaf.dtype,
                    from,
                    to: 0,
                    seen: [height, width],
                    shown: size,
                    rows,
                    columns,
                },
            })
        };
        picture(envs, &self.keys, make, |make, to| make.to = to)
    }
}

/// The interval that a crop keeps of one dimension.
#[derive(Debug, Clone, Copy)]
struct Span {
    /// First element that is kept.
    from: usize,
    /// Its place in the result.
    to: usize,
    len: usize,
}

impl Span {
    /// The middle `wanted` of `size` elements.
    fn of(size: usize, wanted: usize) -> Self {
        match wanted.checked_sub(size) {
            // The smaller half is in front.
            Some(more) => Self {
                from: 0,
                to: more / 2,
                len: size,
            },
            None => Self {
                // Halves are rounded to even numbers, as Python does.
                from: ((size - wanted) as f64 / 2.0).round_ties_even() as usize,
                to: 0,
                len: wanted,
            },
        }
    }
}

/// Copies the middle.
#[derive(Debug)]
pub struct Cropped {
    dtype: DType,
    from: usize,
    to: usize,
    /// Rows and columns before.
    seen: [usize; 2],
    /// Rows and columns of the result.
    shown: [usize; 2],
    rows: Span,
    columns: Span,
}

impl FillLeaf for Cropped {
    fn next(&mut self, _: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        let ([height, width], [tall, wide]) = (self.seen, self.shown);
        let (rows, columns) = (self.rows, self.columns);
        for_dtype!(self.dtype, T => {
            let seen = from.get(Key::<T>::new(self.from))?.chunks_exact((height * width).max(1));
            let to = to.get_mut(Key::<T>::new(self.to))?;
            to.fill(T::default());
            for (seen, to) in seen.zip(to.chunks_exact_mut((tall * wide).max(1))) {
                for row in 0..rows.len {
                    let kept = &seen[(rows.from + row) * width + columns.from..][..columns.len];
                    to[(rows.to + row) * wide + columns.to..][..columns.len].copy_from_slice(kept);
                }
            }
        });
        Ok(())
    }
}
