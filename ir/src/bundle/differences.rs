//! Plans stored as differences from plan 0. Knows nothing of the file around them.
//!
//! A plan that is much like plan 0 differs from it in most start times, because one slot more at the front moves all
//! that follow. So start times are first written as the gap after the slot before, mostly 0, and buffers' offsets as
//! the step from the buffer before; then the bytes (postcard) are compressed with those of plan 0 as the dictionary.
//!
//! LZ4 (`lz4_flex`: kept, no dependencies, forbids unsafe code as configured here) is quick and simple to bound: no
//! byte of it can stand for more than 255. Its window of 64 KiB is shorter than very large plans, which then find fewer
//! matches; they still have their own. Measured (`tests/tests/plans/contingencies.rs` prints it): plans for lost devices take
//! 640 bytes instead of 4,736 for 100 actors on 4 devices, 13,888 instead of 50,240 for 1000; 256 instead of 512 for
//! the few of broadcast FM on 2.

use serde::{Deserialize, Serialize};

use super::measured::{MemoryBudget, take_from_bytes};
use super::{BundleError, Section};
use crate::{Entry, Plan};

/// A plan as its difference from another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Difference {
    /// Bytes of the plan once decompressed.
    bytes: u64,
    /// LZ4 block.
    packed: Vec<u8>,
}

/// Most bytes that one byte of an LZ4 block stands for: a run-length byte of 255.
const MAX_EXPANSION: u64 = 255;
/// Bytes that the first byte of a block may stand for beyond that.
const MIN_MATCH: u64 = 64;
/// Bytes that all differences of a bundle together may stand for, however small it is…
const MIN_UNPACKED_BYTES: u64 = 4 << 20;
/// …and further ones for each of its bytes. Plans of real models are 3 to 8 times as long as their differences.
const UNPACKED_PER_BYTE: u64 = 8;

/// Bytes that differences may stand for in a bundle of so many bytes.
fn unpacked_limit(bundle_bytes: u64) -> u64 {
    MIN_UNPACKED_BYTES.saturating_add(bundle_bytes.saturating_mul(UNPACKED_PER_BYTE))
}

/// Refuses differences that would unpack to much more than the bundle's bytes, before any is unpacked.
pub(super) fn check_sizes(
    differences: &[Difference],
    bundle_bytes: u64,
) -> Result<(), BundleError> {
    let sizes = differences.iter().map(|difference| difference.bytes);
    let unpacked = sizes.fold(0, u64::saturating_add);
    let limit = unpacked_limit(bundle_bytes);
    if unpacked <= limit {
        return Ok(());
    }

    // The sum says more than the first plan that would not fit.
    let count = differences.len();
    let message = format!(
        "{count} plans unpack to {unpacked} bytes, at most {limit} in a bundle of {bundle_bytes} bytes"
    );
    Err(BundleError::Content {
        section: Section::Contingencies,
        message,
    })
}

/// The differences of plans from plan 0. Where compressed ones would be refused when they are read, because they are
/// very short for what they stand for, they are stored without compression.
pub(super) fn pack_all(main: &Plan, others: &[Plan]) -> Vec<Difference> {
    let base = Base::new(main);
    let differences: Vec<Difference> = others.iter().map(|plan| base.pack(plan)).collect();
    let packed_bytes: usize = differences.iter().map(|d| d.packed.len()).sum();

    match check_sizes(&differences, packed_bytes as u64) {
        Ok(()) => differences,
        Err(_) => others
            .iter()
            .map(|plan| store_literals(&relative_bytes(plan)))
            .collect(),
    }
}

fn refuse_difference(message: String) -> BundleError {
    BundleError::Content {
        section: Section::Contingencies,
        message,
    }
}

/// Bytes as an LZ4 block of one run of literals.
fn store_literals(bytes: &[u8]) -> Difference {
    const NIBBLE: usize = 15;
    const BYTE: usize = 255;
    let length = bytes.len();
    let mut literal_block = Vec::with_capacity(length + length / BYTE + 2);

    // The length is the upper nibble of the first byte, and what exceeds it follows in bytes of at most 255.
    literal_block.push((length.min(NIBBLE) as u8) << 4);
    if let Some(mut rest) = length.checked_sub(NIBBLE) {
        while rest >= BYTE {
            literal_block.push(BYTE as u8);
            rest -= BYTE;
        }

        literal_block.push(rest as u8);
    }

    literal_block.extend_from_slice(bytes);

    Difference {
        bytes: length as u64,
        packed: literal_block,
    }
}

/// What plans are compared with: plan 0, in the form that differences are made of.
pub(super) struct Base(Vec<u8>);

impl Base {
    pub(super) fn new(plan: &Plan) -> Self {
        Self(relative_bytes(plan))
    }

    pub(super) fn pack(&self, plan: &Plan) -> Difference {
        let bytes = relative_bytes(plan);
        let packed = lz4_flex::block::compress_with_dict(&bytes, &self.0);
        Difference {
            bytes: bytes.len() as u64,
            packed,
        }
    }

    /// The plan of a difference that may be damaged or hostile: takes at most 255 times its bytes of memory before
    /// anything of it is believed.
    pub(super) fn unpack(
        &self,
        difference: &Difference,
        budget: &MemoryBudget,
    ) -> Result<Plan, BundleError> {
        let Difference { bytes, packed } = difference;
        let max_bytes = (packed.len() as u64)
            .saturating_mul(MAX_EXPANSION)
            .saturating_add(MIN_MATCH);
        if *bytes > max_bytes {
            let found = packed.len();
            return Err(refuse_difference(format!(
                "{found} bytes stand for {bytes} of a plan, at most {max_bytes}"
            )));
        }

        // The length is only believed as far as the compressed bytes can stand for it.
        let mut plan_bytes = vec![0; *bytes as usize];
        let unpacked_bytes =
            lz4_flex::block::decompress_into_with_dict(packed, &mut plan_bytes, &self.0)
                .map_err(|error| refuse_difference(error.to_string()))?;
        if unpacked_bytes as u64 != *bytes {
            return Err(refuse_difference(format!(
                "a plan has {unpacked_bytes} bytes, must have {bytes}"
            )));
        }

        match take_from_bytes::<Plan>(&plan_bytes, budget) {
            Ok((mut plan, [])) => {
                map_starts_and_offsets(&mut plan, u64::wrapping_add, true);
                Ok(plan)
            }
            Ok((_, rest)) => Err(refuse_difference(format!(
                "{} bytes after a plan",
                rest.len()
            ))),
            Err(_) if budget.is_overrun() => Err(BundleError::Memory {
                section: Section::Contingencies,
                limit: budget.limit(),
            }),
            Err(error) => Err(refuse_difference(error.to_string())),
        }
    }
}

/// A plan in the form that differences are made of.
pub(crate) fn relative_form(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    map_starts_and_offsets(&mut plan, u64::wrapping_sub, false);
    plan
}

/// A difference from `main` that unpacks to these bytes, whatever they are.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn difference(main: &Plan, bytes: &[u8]) -> Difference {
    let packed = lz4_flex::block::compress_with_dict(bytes, &relative_bytes(main));
    Difference {
        bytes: bytes.len() as u64,
        packed,
    }
}

fn relative_bytes(plan: &Plan) -> Vec<u8> {
    let plan = relative_form(plan);
    postcard::to_stdvec(&plan).expect("every sequence has a length")
}

/// Applies `op` to each start time and what it follows, and to each offset and the one before. All sums wrap: what is
/// taken away is what is added again, whatever the numbers.
fn map_starts_and_offsets(plan: &mut Plan, op: fn(u64, u64) -> u64, restore: bool) {
    for lane in plan.calendars.iter_mut().flat_map(|c| &mut c.lanes) {
        map_starts(&mut lane.entries, 0, op, restore);
    }

    // Offsets are steps from the buffer before, as buffers are laid out in a row.
    let mut offset_before = 0;
    for buffer in &mut plan.buffers {
        let stored_offset = buffer.offset_bytes;
        buffer.offset_bytes = op(stored_offset, offset_before);
        offset_before = if restore {
            buffer.offset_bytes
        } else {
            stored_offset
        };
    }
}

/// The end of the last entry, in absolute time.
fn map_starts(
    entries: &mut [Entry],
    mut now_ns: u64,
    op: fn(u64, u64) -> u64,
    restore: bool,
) -> u64 {
    for entry in entries {
        now_ns = match entry {
            Entry::Slot(slot) => {
                let stored_start = slot.start_ns;
                slot.start_ns = op(stored_start, now_ns);
                let start_ns = if restore { slot.start_ns } else { stored_start };
                start_ns.wrapping_add(slot.duration_ns)
            }
            Entry::Loop { count, body } => {
                // The body is written once: its times are those of the first repetition.
                let body_ns = map_starts(body, now_ns, op, restore).wrapping_sub(now_ns);
                now_ns.wrapping_add(body_ns.wrapping_mul(*count))
            }
        };
    }

    now_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unbounded() -> MemoryBudget {
        MemoryBudget::new(u64::MAX)
    }
    use crate::testing::mutate::{Random, mutants};
    use crate::testing::programs;
    use crate::{Action, BufferId, PlanId, Slot};

    #[test]
    fn any_plan_comes_back() {
        for program in programs::all() {
            let base = Base::new(&program.plans[PlanId(0)]);
            for other in programs::all() {
                for mutant in mutants(&other, 3, 200) {
                    for plan in &mutant.program.plans {
                        assert_eq!(
                            base.unpack(&base.pack(plan), &unbounded()),
                            Ok(plan.clone())
                        );
                    }
                }
            }
        }
        // Numbers that wrap around.
        let mut plan = programs::feedback().plans[PlanId(0)].clone();
        plan.buffers[BufferId(0)].offset_bytes = u64::MAX;
        let action = Action::Carry {
            buffer: BufferId(9),
        };
        let slot = Slot {
            stage: 0,
            start_ns: u64::MAX,
            duration_ns: u64::MAX,
            action,
        };
        let body = vec![
            Entry::Slot(slot.clone()),
            Entry::Slot(Slot {
                start_ns: 0,
                ..slot
            }),
        ];
        let entries = &mut plan.calendars[0].lanes[0].entries;
        entries.insert(
            0,
            Entry::Loop {
                count: u64::MAX,
                body,
            },
        );
        let base = Base::new(&plan);
        assert_eq!(base.unpack(&base.pack(&plan), &unbounded()), Ok(plan));
    }

    #[test]
    fn plans_that_compress_too_well_are_stored() {
        let main = programs::chain().plans[PlanId(0)].clone();
        let mut long = main.clone();
        long.name = "a".repeat(3 << 20);
        let few = pack_all(&main, &[long.clone()]);
        let many = pack_all(&main, &[long.clone(), long.clone()]);
        assert!(few[0].packed.len() < 20_000);
        assert!(many[0].packed.len() > 3 << 20);

        let base = Base::new(&main);
        for difference in few.iter().chain(&many) {
            assert_eq!(base.unpack(difference, &unbounded()), Ok(long.clone()));
        }
        for length in [0, 1, 14, 15, 16, 269, 270, 271, 525, 70_000] {
            let bytes = vec![7; length];
            let Difference { packed, .. } = store_literals(&bytes);
            let plain = lz4_flex::block::decompress(&packed, length);
            assert_eq!(plain.expect("a block"), bytes);
        }
    }

    #[test]
    fn differences_that_would_fill_the_memory_are_refused_before_they_are_unpacked() {
        let one = Difference {
            bytes: 3 << 20,
            packed: Vec::new(),
        };
        assert_eq!(check_sizes(std::slice::from_ref(&one), 0), Ok(()));
        let error = check_sizes(&[one.clone(), one.clone()], 1000).expect_err("6 MiB");
        let text = error.to_string();
        assert!(
            text.contains(
                "2 plans unpack to 6291456 bytes, at most 4202304 in a bundle of 1000 bytes"
            ),
            "{text}"
        );
        assert_eq!(check_sizes(&[one.clone(), one], 1 << 20), Ok(()));
    }

    #[test]
    fn a_plan_like_plan_0_takes_few_bytes() {
        let plan = &programs::round_trip().plans[PlanId(0)];
        let (base, mut later) = (Base::new(plan), plan.clone());
        let Entry::Slot(first) = &mut later.calendars[0].lanes[0].entries[0] else {
            panic!()
        };
        first.start_ns += 1_000_000;
        for entry in &mut later.calendars[0].lanes[0].entries[1..] {
            let Entry::Slot(slot) = entry else { panic!() };
            slot.start_ns += 1_000_000;
        }
        let difference = base.pack(&later);
        assert!(
            difference.packed.len() < 32 && difference.bytes > 150,
            "{difference:?}"
        );
    }

    #[test]
    fn hostile_differences_are_refused() {
        let program = programs::spare();
        let base = Base::new(&program.plans[PlanId(0)]);
        let good = base.pack(&program.plans[PlanId(1)]);
        let refused = |bytes, packed: &[u8]| {
            let packed = packed.to_vec();
            base.unpack(&Difference { bytes, packed }, &unbounded())
                .expect_err("refused")
                .to_string()
        };
        let cases = [
            (
                u64::MAX,
                good.packed.clone(),
                "stand for 18446744073709551615 of a plan, at most",
            ),
            (
                1 << 40,
                good.packed.clone(),
                "stand for 1099511627776 of a plan, at most",
            ),
            (good.bytes + 1, good.packed.clone(), "a plan has"),
            (
                good.bytes - 1,
                good.packed.clone(),
                "section contingencies: ",
            ),
            (good.bytes, vec![], "section contingencies: "),
            (0, vec![], "section contingencies: "),
            // A copy from before the dictionary.
            (100, vec![0x0f, 0xff, 0xff, 0x10], "section contingencies: "),
        ];
        for (bytes, packed, expected) in cases {
            let found = refused(bytes, &packed);
            assert!(
                found.contains(expected),
                "expected `{expected}`, found `{found}`"
            );
        }
        // Nothing that is done to the bytes makes it panic, or take more than it may.
        let mut random = Random::new(5);
        for _ in 0..20_000 {
            let mut damaged = good.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(damaged.packed.len());
                damaged.packed[at] = random.bits() as u8;
            }
            if random.below(4) == 0 {
                damaged.packed.truncate(random.below(damaged.packed.len()));
            }
            if random.below(4) == 0 {
                damaged.bytes = random.below(20_000) as u64;
            }
            let _ = base.unpack(&damaged, &unbounded());
        }
    }

    /// The bound on expansion holds for what is most compressible.
    #[test]
    fn runs_are_within_the_bound() {
        let mut plan = programs::chain().plans[PlanId(0)].clone();
        let base = Base::new(&plan);
        plan.name = "a".repeat(1 << 20);
        let difference = base.pack(&plan);
        assert!(difference.packed.len() < 10_000);
        assert_eq!(base.unpack(&difference, &unbounded()), Ok(plan));
    }
}
