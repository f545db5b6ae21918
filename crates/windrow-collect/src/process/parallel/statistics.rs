//! Running statistics that members gather: lent to them with each command, taken back with their
//! answers.

use windrow_env::{EnvError, EnvSpec, Gathering, Gathers};
use windrow_slab::Part;

/// What each member gathers.
#[derive(Debug)]
pub(super) struct MemberStatistics {
    members: Vec<Vec<Lent>>,
}

/// Statistics of one member.
#[derive(Debug)]
struct Lent {
    gathers: Gathers,
    /// Environments of all members that gather the same.
    together: usize,
}

impl MemberStatistics {
    /// What members with these specs gather, each of so many environments.
    ///
    /// # Errors
    /// The first member that gathers something else in the place of others.
    pub(super) fn of(specs: &[&EnvSpec], envs: usize) -> Result<Self, EnvError> {
        let all = || specs.iter().flat_map(|spec| &spec.statistics);
        let mut members = Vec::new();
        for (member, spec) in specs.iter().enumerate() {
            let mut own = Vec::new();
            for gathers in &spec.statistics {
                let checked = gathers.check();
                checked.map_err(|error| EnvError::Member(Box::new(error.of(member * envs))))?;
                own.push(Lent {
                    gathers: gathers.clone(),
                    together: (all().filter(|other| other.are_of(gathers)))
                        .map(Gathers::envs)
                        .sum(),
                });
            }
            members.push(own);
        }
        Ok(Self { members })
    }

    /// How many numbers each member needs beside its rows.
    pub(super) fn notes(&self) -> usize {
        let numbers = |own: &Vec<Lent>| own.iter().map(|of| of.gathers.lent_numbers()).sum();
        self.members.iter().map(numbers).max().unwrap_or(0)
    }

    /// Lends the members that are `selected` what they need for a command. `gatherings` are those
    /// of all members.
    pub(super) fn lend(&self, selected: &[bool], parts: &mut [Part], gatherings: &mut [Gathering]) {
        self.each(selected, parts, gatherings, |lent, gathering, notes| {
            gathering.lend(lent.together, notes);
        });
    }

    /// Takes what they answered with. It is merged now, unless a collector does so when the part is
    /// complete.
    pub(super) fn take_back(
        &self,
        selected: &[bool],
        parts: &mut [Part],
        gatherings: &mut [Gathering],
    ) {
        let mut merged = Vec::new();
        self.each(selected, parts, gatherings, |_, gathering, notes| {
            gathering.take_back(notes);
            if gathering.merges_each_step() {
                merged.push((gathering.gathers(), &*notes));
            }
        });
        Gathers::merge(merged);
    }

    /// Shows `member`, which is called, the statistics of now.
    pub(super) fn show(&self, member: usize, parts: &mut [Part]) {
        let mut rest = parts[member].notes();
        for Lent { gathers, .. } in &self.members[member] {
            let (notes, others) = rest.split_at_mut(gathers.lent_numbers());
            gathers.send(notes);
            rest = others;
        }
    }

    /// Keeps what the call of `member` has changed.
    pub(super) fn keep(&self, member: usize, parts: &mut [Part]) {
        let mut rest = &*parts[member].notes();
        for Lent { gathers, .. } in &self.members[member] {
            let (notes, others) = rest.split_at(gathers.lent_numbers());
            gathers.keep(notes);
            rest = others;
        }
    }

    /// Calls `f` with all statistics of the members that are `selected`, and their notes.
    fn each<'a>(
        &'a self,
        selected: &[bool],
        parts: &'a mut [Part],
        gatherings: &'a mut [Gathering],
        mut f: impl FnMut(&'a Lent, &'a mut Gathering, &'a mut [f64]),
    ) {
        let mut gatherings = gatherings.iter_mut();
        for ((own, part), selected) in self.members.iter().zip(parts).zip(selected) {
            let mut rest = part.notes();
            for (lent, gathering) in own.iter().zip(&mut gatherings) {
                let (notes, others) = rest.split_at_mut(lent.gathers.lent_numbers());
                if *selected {
                    f(lent, gathering, notes);
                }
                rest = others;
            }
        }
    }
}
