//! The samplers that are compared.

use windrow_replay::{
    PrioritizedSampler, PrioritizedSliceSampler, RandomSampler, ReplayBufferBuilder,
    SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement,
};

/// One way to sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Random,
    WithoutReplacement {
        shuffle: bool,
        drop_last: bool,
    },
    Slice(Slice),
    SliceWithoutReplacement {
        slice: Slice,
        shuffle: bool,
        drop_last: bool,
    },
    Prioritized,
    PrioritizedSlice(Slice),
    /// The frames with the highest numbers are kept.
    Best,
    BestWithoutReplacement,
}

/// What slices are like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slice {
    pub(crate) cut: Cut,
    pub(crate) strict: bool,
    pub(crate) pad: bool,
    pub(crate) span: [usize; 2],
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cut {
    /// Frames of each; a batch has as many as it is asked for.
    Len(usize),
    /// Number of slices; they are as long as a batch is asked for.
    Num(usize),
}

impl Slice {
    const fn new(cut: Cut) -> Self {
        Self {
            cut,
            strict: true,
            pad: false,
            span: [0, 0],
        }
    }

    const fn short(self) -> Self {
        Self {
            strict: false,
            ..self
        }
    }

    const fn padded(self) -> Self {
        Self { pad: true, ..self }
    }

    const fn span(self, left: usize, right: usize) -> Self {
        Self {
            span: [left, right],
            ..self
        }
    }

    /// Number and length of the slices of a batch of size `n`.
    pub(crate) fn of(self, n: usize) -> (usize, usize) {
        match self.cut {
            Cut::Len(len) => (n, len),
            Cut::Num(num) => (num, n),
        }
    }

    fn sampler(self) -> SliceSampler {
        let sampler = match self.cut {
            Cut::Len(len) => SliceSampler::slice_len(len),
            Cut::Num(num) => SliceSampler::num_slices(num),
        };
        let [left, right] = self.span;
        sampler
            .strict_length(self.strict)
            .pad_output(self.pad)
            .span(left, right)
    }
}

const ALL: usize = SliceSampler::WHOLE;

pub(crate) const KINDS: &[Kind] = &[
    Kind::Random,
    Kind::WithoutReplacement {
        shuffle: true,
        drop_last: false,
    },
    Kind::WithoutReplacement {
        shuffle: true,
        drop_last: true,
    },
    Kind::WithoutReplacement {
        shuffle: false,
        drop_last: false,
    },
    Kind::WithoutReplacement {
        shuffle: false,
        drop_last: true,
    },
    Kind::Slice(Slice::new(Cut::Len(4))),
    Kind::Slice(Slice::new(Cut::Num(3))),
    Kind::Slice(Slice::new(Cut::Len(5)).short()),
    Kind::Slice(Slice::new(Cut::Len(5)).short().padded()),
    Kind::Slice(Slice::new(Cut::Len(4)).span(2, 1)),
    Kind::Slice(Slice::new(Cut::Num(2)).short().span(ALL, ALL)),
    Kind::SliceWithoutReplacement {
        slice: Slice::new(Cut::Len(4)),
        shuffle: true,
        drop_last: false,
    },
    Kind::SliceWithoutReplacement {
        slice: Slice::new(Cut::Num(3)),
        shuffle: true,
        drop_last: true,
    },
    Kind::SliceWithoutReplacement {
        slice: Slice::new(Cut::Len(5)).short().padded().span(1, 1),
        shuffle: false,
        drop_last: true,
    },
    Kind::SliceWithoutReplacement {
        slice: Slice::new(Cut::Num(2)).short(),
        shuffle: false,
        drop_last: false,
    },
    Kind::Prioritized,
    Kind::PrioritizedSlice(Slice::new(Cut::Len(4))),
    Kind::PrioritizedSlice(Slice::new(Cut::Num(3))),
    Kind::PrioritizedSlice(Slice::new(Cut::Len(5)).short()),
    Kind::PrioritizedSlice(Slice::new(Cut::Len(4)).span(0, 2)),
    Kind::PrioritizedSlice(Slice::new(Cut::Len(4)).short().padded().span(0, 1)),
    Kind::Best,
    Kind::BestWithoutReplacement,
];

pub(crate) const ALPHA: f64 = 0.7;
pub(crate) const BETA: f64 = 0.4;

impl Kind {
    pub(crate) fn install(self, builder: ReplayBufferBuilder) -> ReplayBufferBuilder {
        match self {
            Kind::Random | Kind::Best => builder.sampler(RandomSampler::new()),
            Kind::WithoutReplacement { shuffle, drop_last } => builder.sampler(
                SamplerWithoutReplacement::new()
                    .shuffle(shuffle)
                    .drop_last(drop_last),
            ),
            Kind::BestWithoutReplacement => builder.sampler(SamplerWithoutReplacement::new()),
            Kind::Slice(slice) => builder.sampler(slice.sampler()),
            Kind::SliceWithoutReplacement {
                slice,
                shuffle,
                drop_last,
            } => builder.sampler(
                SliceSamplerWithoutReplacement::new(slice.sampler())
                    .shuffle(shuffle)
                    .drop_last(drop_last),
            ),
            Kind::Prioritized => builder.sampler(PrioritizedSampler::new(ALPHA, BETA)),
            Kind::PrioritizedSlice(slice) => {
                builder.sampler(PrioritizedSliceSampler::new(slice.sampler(), ALPHA, BETA))
            }
        }
    }

    pub(crate) fn keeps_best(self) -> bool {
        matches!(self, Kind::Best | Kind::BestWithoutReplacement)
    }

    pub(crate) fn prioritized(self) -> bool {
        matches!(self, Kind::Prioritized | Kind::PrioritizedSlice(_))
    }
}
