//! Draws rows in proportion to a value of each.

use std::ops::Range;

/// Children of a node. A node's sums are two cache lines, a leaf's values one.
const FAN: usize = 16;

/// The sum of all children before each child of a node.
#[derive(Debug, Clone, Copy)]
#[repr(align(128))]
struct Node([f64; FAN]);

impl Node {
    /// The child in which the running sum passes `mass`, the last if it is in none, and what is
    /// left of `mass` there.
    ///
    /// A child that adds nothing is not found where there is another: the one behind it begins with
    /// the same sum.
    #[inline]
    fn find(&self, mass: f64) -> (usize, f64) {
        let before = &self.0;
        let passed = |at: usize| usize::from(before[at] <= mass);
        // Without a branch, since it would be guessed wrong every other time.
        let first = 4 * (passed(4) + passed(8) + passed(12));
        let child = first + passed(first + 1) + passed(first + 2) + passed(first + 3);
        (child, mass - before[child])
    }
}

/// One non-negative value for each of `0..len`: sums and minima are kept up to date, O(log) for
/// each change.
///
/// A value of 0 stands for "not to be drawn".
#[derive(Debug, Clone)]
pub(crate) struct SumTree {
    len: usize,
    /// Padded with zeros to whole leaves.
    values: Vec<f32>,
    /// Sums and least positive values, leaves first, the root last. `totals[0]` and `mins[0]` have
    /// one item for each leaf, padded to whole nodes.
    sums: Vec<Vec<Node>>,
    totals: Vec<Vec<f64>>,
    mins: Vec<Vec<f32>>,
    total: f64,
    /// Scratch: nodes to be computed anew.
    touched: Vec<u32>,
    /// Scratch: the remainder of each mass while drawing.
    masses: Vec<f64>,
}

impl SumTree {
    /// All values 0.
    pub(crate) fn new(len: usize) -> Self {
        let leaves = len.div_ceil(FAN).max(1);
        let (mut sums, mut totals, mut mins) = (Vec::new(), Vec::new(), Vec::new());
        let mut below = leaves;
        loop {
            let nodes = below.div_ceil(FAN);
            totals.push(vec![0.0; nodes * FAN]);
            mins.push(vec![f32::INFINITY; nodes * FAN]);
            sums.push(vec![Node([0.0; FAN]); nodes]);
            if nodes == 1 {
                break;
            }
            below = nodes;
        }
        Self {
            len,
            values: vec![0.0; leaves * FAN],
            sums,
            totals,
            mins,
            total: 0.0,
            touched: Vec::new(),
            masses: Vec::new(),
        }
    }

    pub(crate) fn values(&self) -> &[f32] {
        &self.values[..self.len]
    }

    /// Sum of all values.
    pub(crate) fn total(&self) -> f64 {
        self.total
    }

    /// The least value above 0; infinite when all are 0.
    pub(crate) fn min(&self) -> f32 {
        self.mins.last().map_or(f32::INFINITY, |mins| least(mins))
    }

    /// Sets all values in `places` to `value`.
    pub(crate) fn fill(&mut self, places: Range<usize>, value: f32) {
        if places.is_empty() {
            return;
        }
        let leaves = places.start / FAN..places.end.div_ceil(FAN);
        self.values[places].fill(value);
        self.touched.extend(leaves.map(|leaf| leaf as u32));
        self.refresh();
    }

    /// Sets one value each.
    pub(crate) fn set(&mut self, values: impl IntoIterator<Item = (usize, f32)>) {
        for (place, value) in values {
            self.values[place] = value;
            self.touched.push((place / FAN) as u32);
        }
        self.touched.sort_unstable();
        self.touched.dedup();
        self.refresh();
    }

    /// Recomputes sums and minima above the touched leaves from their parts, so that no errors
    /// accumulate.
    fn refresh(&mut self) {
        for &leaf in &self.touched {
            let values = &self.values[leaf as usize * FAN..][..FAN];
            self.totals[0][leaf as usize] = values.iter().map(|&value| f64::from(value)).sum();
            self.mins[0][leaf as usize] = values
                .iter()
                .filter(|&&value| value > 0.0)
                .fold(f32::INFINITY, |least, &value| least.min(value));
        }
        for level in 0..self.sums.len() {
            for node in &mut self.touched {
                *node /= FAN as u32;
            }
            self.touched.dedup();
            for &node in &self.touched {
                let node = node as usize;
                let below = node * FAN..(node + 1) * FAN;
                let mut sum = 0.0;
                for (running, total) in self.sums[level][node]
                    .0
                    .iter_mut()
                    .zip(&self.totals[level][below.clone()])
                {
                    *running = sum;
                    sum += total;
                }
                let min = least(&self.mins[level][below]);
                if level + 1 < self.sums.len() {
                    self.totals[level + 1][node] = sum;
                    self.mins[level + 1][node] = min;
                } else {
                    self.total = sum;
                }
            }
        }
        self.touched.clear();
    }

    /// Sets everything to 0.
    pub(crate) fn clear(&mut self) {
        self.fill(0..self.len, 0.0);
    }

    /// Draws `count` places with `unit()` in `[0, 1)`, each with the probability that is its share
    /// of the total, which must be above 0.
    ///
    /// All draws descend together, level by level, so that a cache miss is waited for once a level
    /// and not once a draw.
    pub(crate) fn draw(&mut self, count: usize, mut unit: impl FnMut() -> f64) -> Vec<u32> {
        let total = self.total();
        self.masses.clear();
        self.masses.extend((0..count).map(|_| unit() * total));
        let mut places = vec![0u32; count];
        for level in self.sums.iter().rev() {
            // Rounding can lead behind the last.
            let last = level.len() - 1;
            for (place, mass) in places.iter_mut().zip(&mut self.masses) {
                let node = (*place as usize).min(last);
                let (child, left) = level[node].find(*mass);
                *place = (node * FAN + child) as u32;
                *mass = left;
            }
        }
        let (leaves, _) = self.values.as_chunks::<FAN>();
        let last = (leaves.len() - 1) as u32;
        places.iter_mut().for_each(|leaf| *leaf = (*leaf).min(last));
        // Touched first, so that cache misses of many leaves overlap.
        let touched = places
            .iter()
            .map(|&leaf| leaves[leaf as usize][0].to_bits());
        std::hint::black_box(touched.fold(0, |all, bits| all | bits));
        for (place, mass) in places.iter_mut().zip(&self.masses) {
            let leaf = *place as usize;
            let found = leaf * FAN + find_value(&leaves[leaf], *mass);
            *place = self.positive_near(found) as u32;
        }
        places
    }

    /// `place`, or the nearest one before with a value above 0: rounding may put a mass at a sum to
    /// which nothing is added.
    #[inline]
    fn positive_near(&self, place: usize) -> usize {
        if self.values[place] > 0.0 {
            return place;
        }
        let before = self.values[..place].iter().rposition(|&value| value > 0.0);
        let behind = || self.values.iter().position(|&value| value > 0.0);
        before
            .or_else(behind)
            .expect("The total is above 0, so that one of the values is.")
    }
}

/// The value with which the running sum passes `mass`; the last when none does.
///
/// Sums of four first: shorter chains of additions, and no branch that would be guessed wrong every
/// other time.
#[inline]
fn find_value(values: &[f32; FAN], mass: f64) -> usize {
    let wide = |at: usize| f64::from(values[at]);
    let total = |four: usize| {
        let at = 4 * four;
        (wide(at) + wide(at + 1)) + (wide(at + 2) + wide(at + 3))
    };
    let one = total(0);
    let two = one + total(1);
    let three = two + total(2);
    let four = usize::from(one <= mass) + usize::from(two <= mass) + usize::from(three <= mass);
    let left = mass - [0.0, one, two, three][four];
    let first = 4 * four;
    let one = wide(first);
    let two = one + wide(first + 1);
    let three = two + wide(first + 2);
    let at = usize::from(one <= left) + usize::from(two <= left) + usize::from(three <= left);
    first + at
}

fn least(values: &[f32]) -> f32 {
    values.iter().copied().fold(f32::INFINITY, f32::min)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::SumTree;

    #[test]
    fn where_rounding_leads_to_a_zero_the_nearest_before_it_is_drawn() {
        let mut tree = SumTree::new(40);
        tree.set([(3, 1.0), (10, 2.0)]);
        let near = [2, 3, 9, 10, 20].map(|place| tree.positive_near(place));
        assert_eq!(near, [3, 3, 3, 10, 10]);
    }

    #[test]
    fn zero_is_never_drawn() {
        for len in [1, 15, 16, 17, 300, 5000] {
            let mut tree = SumTree::new(len);
            assert_eq!((tree.total(), tree.min()), (0.0, f32::INFINITY));
            tree.set([(len - 1, 0.25), (len / 2, 0.5)]);
            // 1 stands for what rounding can make of the greatest number below it.
            let mut units = [0.0, 1.0, 0.5, 0.7].into_iter().cycle();
            let drawn = tree.draw(4, || units.next().unwrap());
            assert!(
                drawn
                    .iter()
                    .all(|&at| [len - 1, len / 2].contains(&(at as usize)))
            );
            assert_eq!(drawn[0] as usize, len / 2);
        }
    }

    proptest! {
        #[test]
        fn sums_minima_and_draws_agree_with_a_list(
            len in 1usize..700,
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0usize..40, 0u8..5), 1..30),
            units in prop::collection::vec(0.0f64..1.0, 1..20),
        ) {
            let mut tree = SumTree::new(len);
            let mut naive = vec![0.0f32; len];
            for (first, count, value) in changes {
                let first = first.index(len);
                let end = (first + count).min(len);
                let value = f32::from(value) * 0.25;
                naive[first..end].fill(value);
                tree.fill(first..end, value);
                naive[first] = 0.5;
                tree.set([(first, 0.5)]);
            }
            let total: f64 = naive.iter().map(|&value| f64::from(value)).sum();
            prop_assert_eq!(tree.values(), &naive[..]);
            // Quarters add up exactly.
            prop_assert_eq!(tree.total(), total);
            let least = naive.iter().copied().filter(|&v| v > 0.0).fold(f32::INFINITY, f32::min);
            prop_assert_eq!(tree.min(), least);
            let mut given = units.iter().copied();
            let drawn = tree.draw(units.len(), || given.next().unwrap());
            for (unit, place) in units.iter().zip(drawn) {
                let mut sum = 0.0;
                let expected = naive.iter().position(|&value| {
                    sum += f64::from(value);
                    sum > unit * total
                });
                prop_assert_eq!(Some(place as usize), expected);
            }
            tree.clear();
            prop_assert_eq!(tree.total(), 0.0);
        }
    }
}
