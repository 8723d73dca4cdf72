//! A bundle taken apart, to be changed in any of its parts and put together again with checksums that fit.

use super::mutate::Random;
use super::reseal;
use super::tree::{Tree, change, tree_of};
use crate::bundle::testing::{difference, relative};
use crate::bundle::{MAGIC, Meta, Section, VERSION};
use crate::limits::ALIGN_BYTES;
use crate::{Plan, Program};

/// What each part of a bundle says. Plans that a bundle holds as differences are in the form that these are made of.
#[derive(Clone, Debug)]
pub struct Parts {
    meta: Tree,
    graph: Tree,
    machine: Tree,
    plans: Tree,
    table: Tree,
    others: Vec<Tree>,
    kernels: Tree,
    lengths: Tree,
    blobs: Vec<u8>,
    /// Plan 0 as it was, which differences are made from.
    main: Option<Plan>,
}

/// Names of the parts, for those who count what they have changed.
pub const NAMES: [&str; 9] = [
    "meta",
    "graph",
    "machine",
    "plans",
    "contingencies",
    "plans of contingencies",
    "kernels",
    "blob lengths",
    "blobs",
];

impl Parts {
    /// Takes a program apart as its bundle would have it.
    pub fn new(program: &Program) -> Self {
        let lengths: Vec<u64> = program.blobs.iter().map(|blob| blob.len() as u64).collect();
        let mut blobs = Vec::new();
        for blob in &program.blobs {
            blobs.resize(blobs.len().next_multiple_of(ALIGN_BYTES as usize), 0);
            blobs.extend_from_slice(blob);
        }

        let plans = &program.plans.raw;
        let (first, others) = match plans.split_first() {
            Some((_, others)) if !program.contingencies.list.is_empty() => (&plans[..1], others),
            _ => (&plans[..], &[][..]),
        };
        Self {
            meta: tree_of(&Meta::from([("model".to_owned(), "m".to_owned())])),
            graph: tree_of(&program.graph),
            machine: tree_of(&program.machine),
            plans: tree_of(first),
            table: tree_of(&program.contingencies),
            others: others.iter().map(|plan| tree_of(&relative(plan))).collect(),
            kernels: tree_of(&program.kernels),
            lengths: tree_of(&lengths),
            blobs,
            main: plans.first().cloned(),
        }
    }

    /// Changes one value of one part; which part.
    pub fn change(&mut self, random: &mut Random) -> &'static str {
        let part = random.below(NAMES.len());
        match part {
            0 => change(&mut self.meta, random),
            1 => change(&mut self.graph, random),
            2 => change(&mut self.machine, random),
            3 => change(&mut self.plans, random),
            4 => change(&mut self.table, random),
            5 if self.others.is_empty() => {
                change(&mut self.plans, random);
                return NAMES[3];
            }
            5 => {
                let index = random.below(self.others.len());
                change(&mut self.others[index], random);
            }
            6 => change(&mut self.kernels, random),
            7 => change(&mut self.lengths, random),
            _ => change_blobs(&mut self.blobs, random),
        }
        NAMES[part]
    }

    /// The bundle's bytes.
    pub fn bundle(&self) -> Vec<u8> {
        let plans = self.plans.bytes();
        // A reader unpacks differences with plan 0 as it finds it.
        let found: Option<Vec<Plan>> = postcard::from_bytes(&plans).ok();
        let main = found.and_then(|plans| plans.into_iter().next());
        let main = main.as_ref().or(self.main.as_ref());
        let differences: Vec<_> = self
            .others
            .iter()
            .filter_map(|other| main.map(|main| difference(main, &other.bytes())))
            .collect();
        let mut contingencies = self.table.bytes();
        contingencies.extend(tree_of(&differences).bytes());

        let sections = [
            self.meta.bytes(),
            self.graph.bytes(),
            self.machine.bytes(),
            plans,
            contingencies,
            self.kernels.bytes(),
            self.lengths.bytes(),
            self.blobs.clone(),
        ];
        assemble(&sections)
    }
}

fn change_blobs(blobs: &mut Vec<u8>, random: &mut Random) {
    match random.below(3) {
        0 if !blobs.is_empty() => {
            let index = random.below(blobs.len());
            blobs[index] ^= 1 << random.below(8);
        }
        1 => blobs.truncate(random.below(blobs.len() + 1)),
        _ => blobs.push(random.below(2) as u8),
    }
}

/// A file with these sections.
fn assemble(sections: &[Vec<u8>]) -> Vec<u8> {
    const WORDS_BEFORE_TABLE: usize = 32;
    const ENTRY_BYTES: usize = 32;
    let mut file = vec![0; WORDS_BEFORE_TABLE + ENTRY_BYTES * sections.len()];
    file[..4].copy_from_slice(&MAGIC);
    file[4..8].copy_from_slice(&VERSION.to_le_bytes());
    file[8..12].copy_from_slice(&(sections.len() as u32).to_le_bytes());

    for (index, (section, bytes)) in Section::ALL.iter().zip(sections).enumerate() {
        file.resize(file.len().next_multiple_of(ALIGN_BYTES as usize), 0);
        let offset = file.len() as u64;
        file.extend_from_slice(bytes);
        let entry = WORDS_BEFORE_TABLE + ENTRY_BYTES * index;
        file[entry..entry + 4].copy_from_slice(&(*section as u32).to_le_bytes());
        file[entry + 8..entry + 16].copy_from_slice(&offset.to_le_bytes());
        file[entry + 16..entry + 24].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    }
    let length = file.len() as u64;
    file[16..24].copy_from_slice(&length.to_le_bytes());
    reseal(&mut file);
    file
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::KernelCode;
    use crate::bundle::decode;
    use crate::testing::programs;
    use crate::verify::{check_counting, check_keeping};

    #[test]
    fn unchanged_parts_are_the_program() {
        // The section of hosts is not among the parts.
        let all = programs::all().into_iter();
        for mut program in all.filter(|program| program.machine.hosts.is_empty()) {
            program.blobs.push(vec![1; 100].into());
            program.blobs.push(vec![2; 3].into());
            let bundle = Parts::new(&program).bundle();
            assert_eq!(decode(bundle.into()), Ok(program));
        }
    }

    /// Whatever is in a bundle, it is read and verified in bounded work, or refused; and of changes in every part some
    /// get as far as the verifier.
    #[test]
    fn bundles_changed_anywhere_are_judged_within_the_budget() {
        let mut verified: BTreeMap<&str, u32> = BTreeMap::new();
        let base = |mut program: Program| {
            let blob = program.blobs.push_and_get_key(vec![1; 100].into());
            program.kernels = (0..3)
                .map(|key| KernelCode {
                    format: "spirv".into(),
                    key,
                    blob,
                })
                .collect();
            Parts::new(&program)
        };
        let bases: Vec<Parts> = programs::all().into_iter().map(base).collect();
        for seed in 0..30_000 {
            let mut random = Random::new(seed);
            let mut parts = bases[random.below(bases.len())].clone();
            let mut changed = Vec::new();
            for _ in 0..1 + random.below(3) {
                changed.push(parts.change(&mut random));
            }

            let Ok(program) = decode(parts.bundle().into()) else {
                continue;
            };
            let (result, work) = check_counting(&program);
            assert!(
                work.steps <= work.reserved && work.reserved <= work.limit,
                "seed {seed}: {work:?}"
            );
            // A list that is full after the first error must not let a later check rely on what is wrong.
            let (of_first, _) = check_keeping(&program, 1);
            assert_eq!(
                of_first.err().map(|list| list.len()),
                result.err().map(|_| 1),
                "seed {seed}"
            );
            for name in changed {
                *verified.entry(name).or_default() += 1;
            }
        }
        for name in NAMES {
            let count = verified.get(name).copied().unwrap_or(0);
            assert!(
                count > 100,
                "{name}: {count} of {verified:?}: a weak sample"
            );
        }
    }
}
