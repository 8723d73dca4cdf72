//! Loops of random calendars are judged as if each of their executions were a slot.

use super::tests::{calendar, codes, main};
use crate::testing::mutate::{Random, mutants};
use crate::testing::programs::{all_chunked, window};
use crate::{Action, ActorId, Entry, Program, Slot};

/// Looking at the ends of loops finds just what counting them out finds.
#[test]
fn loops_are_judged_like_their_executions() {
    let mut random = Random::new(11);
    let mut seen = [0; 2];
    for _ in 0..20_000 {
        let Some(looped) = random_loops(&mut random) else {
            continue;
        };
        let mut unrolled = looped.clone();
        let entries = &mut calendar(&mut unrolled, 0).lanes[0].entries;
        let mut fired = [0; 3];
        *entries = counted_out(entries, &mut fired);

        let codes_of = |program: &Program| {
            let mut found = codes(program);
            found.dedup();
            found
        };
        let found = codes_of(&looped);
        assert_eq!(found, codes_of(&unrolled), "{:#?}", looped.plans);
        seen[usize::from(found.is_empty())] += 1;
    }
    assert!(seen[0] > 5000 && seen[1] > 500, "{seen:?}: a weak sample");
}

/// The same of loops around chunks, except that those are refused too that do not do the same each time.
#[test]
fn loops_of_chunks_are_judged_like_their_executions() {
    let mut seen = [0; 3];
    for program in all_chunked() {
        for mutant in mutants(&program, 3, 4000) {
            let mut looped = mutant.program;
            if looped.plans.len() != 1 || main(&mut looped).calendars.len() != 1 {
                continue;
            }
            clear_times(&mut calendar(&mut looped, 0).lanes[0].entries);
            let mut unrolled = looped.clone();
            let entries = &mut calendar(&mut unrolled, 0).lanes[0].entries;
            let mut fired = vec![0; looped.graph.actors.len()];
            *entries = counted_out(entries, &mut fired);

            let found = codes(&looped);
            let found_unrolled = codes(&unrolled);
            let what = &mutant.what;
            let name = &looped.graph.name;
            if found.is_empty() {
                assert!(
                    found_unrolled.is_empty(),
                    "{name}: {what}: {found_unrolled:?}"
                );
                seen[0] += 1;
            } else if found_unrolled.is_empty() {
                // A wrong number of a first firing, which is counted anew here, or a loop that does something else each time.
                let is_of_loops = |code: &&str| ["V0319", "V0320", "V0510"].contains(code);
                assert!(found.iter().all(is_of_loops), "{name}: {what}: {found:?}");
                seen[1] += 1;
            } else {
                seen[2] += 1;
            }
        }
    }
    assert!(
        seen[0] > 500 && seen[1] > 5 && seen[2] > 5000,
        "{seen:?}: a weak sample"
    );
}

fn clear_times(entries: &mut [Entry]) {
    for entry in entries {
        match entry {
            Entry::Loop { body, .. } => clear_times(body),
            Entry::Slot(slot) => (slot.start_ns, slot.duration_ns) = (0, 0),
        }
    }
}

/// A source, an actor with a window and a sink, fired in random loops; now and then the right number of times.
fn random_loops(random: &mut Random) -> Option<Program> {
    let mut program = window();
    let stages: [u32; 3] = std::array::from_fn(|_| random.below(8).saturating_sub(5) as u32);
    let blocks: [u32; 2] = std::array::from_fn(|_| 1 + random.below(2) as u32);

    let mut entries = Vec::new();
    for _ in 0..1 + random.below(3) {
        entries.push(random_entry(random, &stages, 0));
    }
    let mut fired = [0; 3];
    let executions = counted_out(&entries, &mut fired);
    let total = fired
        .into_iter()
        .max()
        .filter(|total| (1..200).contains(total))?;
    for (actor, fired) in fired
        .into_iter()
        .enumerate()
        .filter(|(_, fired)| *fired < total)
    {
        let at = if random.below(4) == 0 {
            0
        } else {
            entries.len()
        };
        entries.insert(
            at,
            fire_entry(actor as u32, stages[actor], fired, total - fired),
        );
    }

    let used = stages.into_iter().max().unwrap_or(0) + 1;
    let period_ns = 100 * (executions.len() as u64 + 10);
    let plan = main(&mut program);
    (plan.block, plan.stages, plan.period_ns) = (total, used, period_ns);
    let mut end = 0;
    for (buffer, blocks) in plan.buffers.iter_mut().zip(blocks) {
        (buffer.block_tokens, buffer.blocks) = (total, blocks);
        buffer.chunk_tokens = total;
        (buffer.stride_bytes, buffer.offset_bytes) = (1024, end);
        end += 1024 * u64::from(blocks);
    }
    let lane = &mut plan.calendars[0];
    (lane.arena_bytes, lane.scratch_bytes) = (end, 0);
    let carry = lane.lanes[0].entries.iter().find(
        |entry| matches!(entry, Entry::Slot(slot) if matches!(slot.action, Action::Carry { .. })),
    );
    let mut carry = carry.cloned()?;
    if let Entry::Slot(slot) = &mut carry {
        (slot.stage, slot.start_ns, slot.duration_ns) = (stages[1], 0, 0);
    }
    let at = if random.below(4) == 0 {
        0
    } else {
        entries.len()
    };
    entries.insert(at, carry);
    set_first_firings(&mut entries, &mut [0; 3]);
    lane.lanes[0].entries = entries;
    Some(program)
}

fn fire_entry(actor: u32, stage: u32, first: u64, count: u64) -> Entry {
    let action = Action::Fire {
        actor: ActorId(actor),
        first,
        count,
    };
    Entry::Slot(Slot {
        stage,
        start_ns: 0,
        duration_ns: 0,
        action,
    })
}

fn random_entry(random: &mut Random, stages: &[u32; 3], depth: usize) -> Entry {
    if depth < 3 && random.below(3) > 0 {
        let body = (0..1 + random.below(3)).map(|_| random_entry(random, stages, depth + 1));
        return Entry::Loop {
            body: body.collect(),
            count: 1 + random.below(4) as u64,
        };
    }
    let actor = random.below(3);
    fire_entry(actor as u32, stages[actor], 0, 1 + random.below(2) as u64)
}

/// Lets the first execution of every slot go on where its actor's last one ended.
fn set_first_firings(entries: &mut [Entry], fired: &mut [u64; 3]) {
    for entry in entries {
        match entry {
            Entry::Loop { count, body } => {
                let before = *fired;
                set_first_firings(body, fired);
                for (fired, before) in fired.iter_mut().zip(before) {
                    *fired += (*fired - before) * (*count - 1);
                }
            }
            Entry::Slot(slot) => {
                if let Action::Fire {
                    actor,
                    first,
                    count,
                } = &mut slot.action
                {
                    *first = fired[actor.index()];
                    fired[actor.index()] += *count;
                }
            }
        }
    }
}

/// All executions as slots of their own.
fn counted_out(entries: &[Entry], fired: &mut [u64]) -> Vec<Entry> {
    let mut all = Vec::new();
    for entry in entries {
        match entry {
            Entry::Loop { count, body } => {
                for _ in 0..*count {
                    all.extend(counted_out(body, fired));
                }
            }
            Entry::Slot(slot) => {
                let mut slot = slot.clone();
                if let Action::Fire {
                    actor,
                    first,
                    count,
                } = &mut slot.action
                {
                    *first = fired[actor.index()];
                    fired[actor.index()] += *count;
                }
                all.push(Entry::Slot(slot));
            }
        }
    }
    all
}
