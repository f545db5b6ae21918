//! Running statistics of environments in another process, such as the members of a `Parallel`.
//!
//! Their owner keeps what they gather. It lends a member the statistics with each command, in notes
//! beside the rows: moments, and what each of its environments has gathered since. With the answer
//! come the deltas after the command. So a member has no state that could differ from its owner's,
//! and the owner merges the deltas of all members, in their order, unless its own collector does so
//! later.

use super::gathering::{Gathering, Gathers, HEAD};
use super::statistics::Gathered;

/// What a row leaves of the weight of all before, and its own.
const RATES: usize = 2;

/// The notes of one exchange, as their owner and the member see them.
struct Exchange<'a> {
    head: &'a mut [f64],
    deltas: &'a mut [f64],
    rates: &'a mut [f64],
    base: &'a mut [f64],
}

impl Gathers {
    /// How many numbers an owner and its member exchange.
    #[must_use]
    pub fn lent_numbers(&self) -> usize {
        let lent = self.delta_numbers() + RATES + self.base_numbers();
        HEAD + lent.max(self.kept_numbers())
    }

    fn lent<'a>(&self, notes: &'a mut [f64]) -> Exchange<'a> {
        let (head, rest) = notes.split_at_mut(HEAD);
        // Deltas lie where they are merged from.
        let (deltas, rest) = rest.split_at_mut(self.delta_numbers());
        let (rates, rest) = rest.split_at_mut(RATES);
        Exchange {
            head,
            deltas,
            rates,
            base: &mut rest[..self.base_numbers()],
        }
    }

    /// Writes the statistics as they were after a call that a member has answered, where it has
    /// changed them.
    pub fn keep(&self, notes: &[f64]) {
        let [has_written, has_frozen, is_frozen] = [0, 1, 2].map(|at| notes[at] != 0.0);
        let mut kept = self.statistics.lock();
        if has_frozen {
            kept.is_frozen = is_frozen;
        }
        if has_written && let Some(gathered) = &mut kept.gathered {
            let numbers = &notes[HEAD..HEAD + self.kept_numbers()];
            gathered.numbers.copy_from_slice(numbers);
            kept.writes += 1;
        }
    }
}

/// The owner's side.
impl Gathering {
    /// What environments in another process gather.
    #[must_use]
    pub fn elsewhere(of: Gathers) -> Self {
        Self::new(of, false)
    }

    /// Writes into `notes` what a member needs for a command: one of `together` environments that
    /// share the statistics.
    pub fn lend(&self, together: usize, notes: &mut [f64]) {
        let of = &self.of;
        let lent = of.lent(notes);
        if let Some(apart) = &self.apart {
            lent.head[2] = f64::from(u8::from(apart.is_frozen));
            lent.deltas.copy_from_slice(&apart.deltas);
            lent.rates.copy_from_slice(&[apart.left, apart.weight]);
            lent.base.copy_from_slice(&apart.base);
            return;
        }
        let kept = of.statistics.lock();
        lent.head.copy_from_slice(&of.head(&kept));
        of.empty(lent.deltas);
        let (left, weight) = of.rates(together);
        lent.rates.copy_from_slice(&[left, weight]);
        match &kept.gathered {
            Some(gathered) => of.bases_of(&gathered.numbers, lent.base),
            None => lent.base.fill(0.0),
        }
    }

    /// Takes the deltas that a member has answered with, where nobody merges them after each
    /// command.
    pub fn take_back(&mut self, notes: &mut [f64]) {
        if let Some(apart) = &mut self.apart {
            apart.deltas.copy_from_slice(self.of.lent(notes).deltas);
        }
    }

    /// Whether what members have gathered is to be [merged](Gathers::merge) after each command.
    #[must_use]
    pub fn merges_each_step(&self) -> bool {
        self.apart.is_none()
    }
}

/// The member's side.
impl Gathering {
    /// Goes on with what the owner has lent.
    pub fn borrow(&mut self, notes: &mut [f64]) {
        let lent = self.of.lent(notes);
        if let Some(apart) = &mut self.apart {
            apart.is_frozen = lent.head[2] != 0.0;
            apart.deltas.copy_from_slice(lent.deltas);
            (apart.left, apart.weight) = (lent.rates[0], lent.rates[1]);
            apart.base.copy_from_slice(lent.base);
        }
    }

    /// Answers with the deltas after the command.
    pub fn give_back(&mut self, notes: &mut [f64]) {
        if let Some(apart) = &self.apart {
            self.of.lent(notes).deltas.copy_from_slice(&apart.deltas);
        }
    }

    /// Shows this process the statistics that the owner has [sent](Gathers::send), for a call that
    /// may read and write them.
    pub fn show(&self, notes: &[f64]) {
        let mut kept = self.of.statistics.lock();
        kept.is_frozen = notes[2] != 0.0;
        if let Some(gathered) = &mut kept.gathered {
            gathered
                .numbers
                .copy_from_slice(&notes[HEAD..HEAD + self.of.kept_numbers()]);
        }
    }

    /// Tells the owner in the notes of [`show`](Self::show) what a call has changed.
    pub fn tell(&self, notes: &mut [f64]) {
        let kept = self.of.statistics.lock();
        let (head, rest) = notes.split_at_mut(HEAD);
        let rest = &mut rest[..self.of.kept_numbers()];
        let bits = |numbers: &[f64]| -> Vec<u64> { numbers.iter().map(|x| x.to_bits()).collect() };
        let is_new = |gathered: &&Gathered| bits(&gathered.numbers) != bits(rest);
        let written = kept.gathered.as_ref().filter(is_new);
        let has_frozen = kept.is_frozen != (head[2] != 0.0);
        let flags = [written.is_some(), has_frozen, kept.is_frozen];
        head[..flags.len()].copy_from_slice(&flags.map(|flag| f64::from(u8::from(flag))));
        if let Some(gathered) = written {
            rest.copy_from_slice(&gathered.numbers);
        }
    }
}
