use serde::{Deserialize, Serialize};
use tensordict::{DType, Element, Tensor, for_dtype};
use windrow_slab::{Key, LeafSpec, Row, RowMut};

use super::images::{Pictured, Unfit, picture, plane};
use super::keys::Keys;
use super::relayout::{FillLeaf, Relayout, mapped};
use crate::number::Number;
use crate::{Attach, EnvError, Spec, SpecError, Transform};

/// Resizes pictures, whose last two dimensions become `[w, h]`.
///
/// Smaller pictures are averaged as PyTorch does with `antialias=True`. Whole numbers are rounded.
///
/// ```
/// use windrow_env::{Interpolation, Keys, Resize};
///
/// let mut resize = Resize::new(84, 84, Keys::of(["pixels"]));
/// resize.interpolation = Interpolation::Nearest;
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// New size of the second dimension from the end.
    pub w: usize,
    /// New size of the last dimension; `w` where it is not given.
    #[serde(default)]
    pub h: Option<usize>,
    /// The kind of interpolation.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// Observations that are changed.
    #[serde(default = "Keys::pixels")]
    pub keys: Keys,
}

/// The kind of interpolation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Interpolation {
    /// The value above and to the left.
    Nearest,
    /// The value whose middle is nearest.
    NearestExact,
    /// A mean, with weights that fall with the distance.
    #[default]
    Bilinear,
    /// A mean, with weights that are cubic in the distance; some of them are negative.
    Bicubic,
}

impl Resize {
    /// Resizes the pictures `keys` to `[w, h]`, bilinearly.
    #[must_use]
    pub fn new(w: usize, h: usize, keys: Keys) -> Self {
        Self {
            w,
            h: Some(h),
            interpolation: Interpolation::default(),
            keys,
        }
    }

    fn size(&self) -> [usize; 2] {
        [self.w, self.h.unwrap_or(self.w)]
    }

    /// Resizes `pictures`, `[..., height, width]`, with the same results as for observations.
    ///
    /// # Errors
    /// [`SpecError::Argument`] where they are no pictures, or of a type or size that cannot be
    /// resized.
    ///
    /// ```
    /// use tensordict::Tensor;
    /// use windrow_env::{Keys, Resize};
    ///
    /// let picture = Tensor::from_vec(vec![0u8, 10, 20, 30], [1, 2, 2])?;
    /// let smaller = Resize::new(1, 1, Keys::of(["pixels"])).pictures(&picture)?;
    /// assert_eq!(smaller.to_vec::<u8>()?, [15]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pictures(&self, pictures: &Tensor) -> Result<Tensor, EnvError> {
        let (dtype, size) = (pictures.dtype(), self.size());
        let refused = || SpecError::Argument {
            argument: "pictures",
            of: "Resize".to_owned(),
            expected: format!("numbers [..., height, width] that can be resized to {size:?}"),
            got: format!("{dtype} of shape {:?}", pictures.shape()),
        };
        let [lead @ .., height, width] = pictures.shape() else {
            return Err(refused().into());
        };
        let seen = [*height, *width];
        if seen.contains(&0) || size.contains(&0) || dtype == DType::Bool {
            return Err(refused().into());
        }
        let count: usize = lead.iter().product();
        let shape = [lead, size.as_slice()].concat();
        let resized = for_dtype!(dtype, T => {
            let from = pictures.to_vec::<T>().map_err(EnvError::failed)?;
            let mut to = vec![T::nearest(0.0); count * size[0] * size[1]];
            match dtype {
                DType::F64 => Scaled::<f64>::new(self.interpolation, 0, seen, size).scale(&from, &mut to),
                _ => Scaled::<f32>::new(self.interpolation, 0, seen, size).scale(&from, &mut to),
            }
            Tensor::from_vec(to, shape)
        });
        resized.map_err(EnvError::failed)
    }
}

impl Transform for Resize {
    type Bound = Relayout<Resized>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let size = self.size();
        let make = |from, leaf: &LeafSpec, spec: &Spec| {
            let seen = plane(leaf)?;
            if seen.contains(&0) || size.contains(&0) || leaf.dtype == DType::Bool {
                return Err(Unfit(format!("numbers that can be resized to {size:?}")));
            }
            let mut shape = leaf.shape.clone();
            let at = shape.len() - 2;
            shape[at..].copy_from_slice(&size);
            let spec = match self.interpolation {
                // Weights that are negative lead beyond the bounds.
                Interpolation::Bicubic => Spec::unbounded(leaf.dtype, shape),
                _ => mapped(spec, leaf.dtype, shape, |x| x),
            };
            let make = match leaf.dtype {
                DType::F64 => Resized::Double(Scaled::new(self.interpolation, from, seen, size)),
                dtype => Resized::Single(dtype, Scaled::new(self.interpolation, from, seen, size)),
            };
            Ok(Pictured { make, spec })
        };
        picture(envs, &self.keys, make, |make, place| match make {
            Resized::Single(_, scaled) => scaled.to = place,
            Resized::Double(scaled) => scaled.to = place,
        })
    }
}

/// Resizes one leaf; in `float32` unless it is of `float64`.
#[derive(Debug)]
pub enum Resized {
    /// A leaf of this type.
    Single(DType, Scaled<f32>),
    /// A leaf of `float64`.
    Double(Scaled<f64>),
}

impl FillLeaf for Resized {
    fn next(&mut self, _: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        match self {
            Self::Single(dtype, scaled) => for_dtype!(*dtype, T => scaled.apply::<T>(from, to)),
            Self::Double(scaled) => scaled.apply::<f64>(from, to),
        }
    }
}

/// A real number in which pictures are resized.
pub trait Real: Element {
    /// As a double.
    fn double(self) -> f64;

    /// `self + weight * value`.
    fn plus(self, weight: Self, value: Self) -> Self;

    /// Of a double.
    fn of(number: f64) -> Self;
}

macro_rules! real {
    ($($real:ty),*) => {$(
        impl Real for $real {
            #[inline(always)]
            fn double(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn plus(self, weight: Self, value: Self) -> Self {
                self + weight * value
            }

            #[inline(always)]
            fn of(number: f64) -> Self {
                number as $real
            }
        }
    )*};
}

real!(f32, f64);

/// Weights of both dimensions: first columns are combined row by row, then the elements of a row.
#[derive(Debug)]
pub struct Scaled<R> {
    from: usize,
    to: usize,
    rows: Axis<R>,
    columns: Axis<R>,
    /// One plane with its new rows and its old columns.
    between: Vec<R>,
    /// One new row.
    line: Vec<R>,
}

/// The weights along one dimension.
#[derive(Debug)]
struct Axis<R> {
    seen: usize,
    /// First old element of each new one.
    starts: Vec<usize>,
    /// Weights of as many old elements for each new one; zero beyond those that count.
    weights: Vec<R>,
    taps: usize,
}

impl<R: Real> Scaled<R> {
    fn new(of: Interpolation, from: usize, seen: [usize; 2], size: [usize; 2]) -> Self {
        Self {
            from,
            to: 0,
            rows: Axis::new(of, seen[0], size[0]),
            columns: Axis::new(of, seen[1], size[1]),
            between: vec![R::of(0.0); size[0] * seen[1]],
            line: vec![R::of(0.0); size[1]],
        }
    }

    #[inline(always)]
    fn apply<T: Number>(&mut self, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        let seen = from.get(Key::<T>::new(self.from))?;
        let to = to.get_mut(Key::<T>::new(self.to))?;
        self.scale(seen, to);
        Ok(())
    }

    /// Resizes planes that lie one after the other.
    #[inline(always)]
    fn scale<T: Number>(&mut self, seen: &[T], to: &mut [T]) {
        let (width, wide) = (self.columns.seen, self.columns.starts.len());
        let (plane, new) = (self.rows.seen * width, self.rows.starts.len() * wide);
        for (seen, to) in seen.chunks_exact(plane).zip(to.chunks_exact_mut(new)) {
            for (y, row) in self.between.chunks_exact_mut(width).enumerate() {
                let (start, weights) = self.rows.of(y);
                let lines = seen[start * width..].chunks_exact(width).zip(weights);
                row.fill(R::of(0.0));
                for (line, &weight) in lines {
                    for (sum, value) in row.iter_mut().zip(line) {
                        *sum = sum.plus(weight, R::of(value.number()));
                    }
                }
            }
            for (row, to) in self
                .between
                .chunks_exact(width)
                .zip(to.chunks_exact_mut(wide))
            {
                self.columns.combine(row, &mut self.line);
                for (to, sum) in to.iter_mut().zip(&self.line) {
                    *to = match T::DTYPE.is_float() {
                        true => T::nearest(sum.double()),
                        false => T::nearest(sum.double().round_ties_even()),
                    };
                }
            }
        }
    }
}

impl<R: Real> Axis<R> {
    /// The first old element that new element `i` is made of, and the weights from there on.
    #[inline(always)]
    fn of(&self, i: usize) -> (usize, &[R]) {
        (self.starts[i], &self.weights[i * self.taps..][..self.taps])
    }

    /// Combines elements of `row`, in loops of fixed length for the usual numbers of weights.
    fn combine(&self, row: &[R], to: &mut [R]) {
        match self.taps {
            3 => self.combine_of::<3>(row, to),
            5 => self.combine_of::<5>(row, to),
            7 => self.combine_of::<7>(row, to),
            _ => {
                for (x, to) in to.iter_mut().enumerate() {
                    let (start, weights) = self.of(x);
                    let values = row[start..].iter().zip(weights);
                    *to = values.fold(R::of(0.0), |sum, (&value, &weight)| sum.plus(weight, value));
                }
            }
        }
    }

    fn combine_of<const TAPS: usize>(&self, row: &[R], to: &mut [R]) {
        let (weights, _) = self.weights.as_chunks::<TAPS>();
        for ((to, &start), weights) in to.iter_mut().zip(&self.starts).zip(weights) {
            let mut sum = R::of(0.0);
            for (weight, value) in weights.iter().zip(&row[start..start + TAPS]) {
                sum = sum.plus(*weight, *value);
            }
            *to = sum;
        }
    }

    /// Weights for `size` elements of `seen` ones, computed in the precision in which PyTorch
    /// computes them.
    fn new(of: Interpolation, seen: usize, size: usize) -> Self {
        let cut = |x: f64| R::of(x).double();
        let scale = cut(cut(seen as f64) / cut(size as f64));
        let (half, filter): (f64, fn(f64) -> f64) = match of {
            Interpolation::Bilinear => (1.0, |x| (1.0 - x).max(0.0)),
            Interpolation::Bicubic => (2.0, cubic),
            Interpolation::Nearest => return Self::picks(seen, size, |i| cut(i * scale)),
            Interpolation::NearestExact => {
                return Self::picks(seen, size, |i| cut((i + 0.5) * scale));
            }
        };
        let support = if scale >= 1.0 {
            cut(half * scale)
        } else {
            half
        };
        let inverse = if scale >= 1.0 { cut(1.0 / scale) } else { 1.0 };
        let taps = (support.ceil() as usize * 2 + 1).min(seen);
        let (mut starts, mut weights) = (Vec::with_capacity(size), Vec::new());
        for i in 0..size {
            let center = cut(scale * (i as f64 + 0.5));
            let start = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(seen);
            // All of `taps` elements exist; those before the first have no weight.
            let first = start.min(seen - taps);
            let weight = |at: usize| {
                let distance = cut(cut(at as f64 - center) + 0.5) * inverse;
                let distance = cut(distance).abs();
                if (start..end).contains(&at) {
                    cut(filter(distance))
                } else {
                    0.0
                }
            };
            let own: Vec<f64> = (first..first + taps).map(weight).collect();
            let total = own.iter().fold(0.0, |sum, x| cut(sum + x));
            let total = if total == 0.0 { 1.0 } else { total };
            weights.extend(own.iter().map(|x| R::of(x / total)));
            starts.push(first);
        }
        Self {
            seen,
            starts,
            weights,
            taps,
        }
    }

    /// Each new element is one of the old ones.
    fn picks(seen: usize, size: usize, at: impl Fn(f64) -> f64) -> Self {
        let starts = (0..size).map(|i| (at(i as f64) as usize).min(seen - 1));
        Self {
            seen,
            starts: starts.collect(),
            weights: vec![R::of(1.0); size],
            taps: 1,
        }
    }
}

/// Keys' convolution kernel with the coefficient -1/2, at a distance of 0 or more.
fn cubic(x: f64) -> f64 {
    match x {
        x if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
        x if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
        _ => 0.0,
    }
}
