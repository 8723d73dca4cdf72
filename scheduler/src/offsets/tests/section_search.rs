//! Searches by section: what they call impossible is, what they find is a layout, and they stop when told.

use super::super::blocks::LayoutProblem;
use super::super::group::{BlockGroup, StepBudget};
use super::super::restart::fit_by_section;
use super::super::search::{FitOutcome, StopSignal};
use super::super::{Item, ItemLayout, LayoutLimits, solve_until};
use super::{Random, aligned, brute_force, check, item};

/// Whether one search by section after the other lays out items under a ceiling.
fn fit_sections(items: &[Item], ceiling: u64) -> FitOutcome {
    let problem = LayoutProblem::new(items).unwrap();
    let group = BlockGroup::new(&problem.blocks, &problem.loads).unwrap();
    let mut budget = StepBudget::new(10_000_000, StopSignal(&|| false));
    let (outcome, found) = fit_by_section(&group, group.units(ceiling), &mut budget);
    if outcome == FitOutcome::Found {
        let block_offsets: Vec<u64> = found
            .iter()
            .map(|&units| units as u64 * group.unit)
            .collect();
        let offsets = problem.item_offsets(&block_offsets);
        let size = problem.real_size(&offsets);
        assert!(size <= ceiling);
        let layout = ItemLayout {
            offsets,
            size,
            lower_bound: 0,
            nodes: 0,
        };
        check(items, &layout);
    }
    outcome
}

/// Few items with many overlaps, so that their load is not always enough.
fn entangled_items(random: &mut Random, count: u64) -> Vec<Item> {
    (0..count)
        .map(|index| {
            let first = random.below(6);
            let new = item(first, first + 1 + random.below(4), 1 + random.below(9));
            // The first has no alignment, so that sizes are not rounded up.
            match random.below(8) {
                0 if index > 0 => aligned(new, 1 << random.below(3)),
                _ => new,
            }
        })
        .collect()
}

/// Every ceiling that is called impossible is compared with the best of all orders of the items.
#[test]
fn section_search_finds_a_layout_exactly_where_there_is_one() {
    let mut random = Random(13);
    let mut beyond_load = 0;
    for round in 0..20_000 {
        let items = entangled_items(&mut random, 7 + round % 3);
        let load = LayoutProblem::new(&items).unwrap().lower_bound;
        let mut ceiling = load;
        loop {
            match fit_sections(&items, ceiling) {
                FitOutcome::Found => break,
                FitOutcome::Impossible => ceiling += 1,
                FitOutcome::Budget => panic!("the steps do not do for {items:?}"),
            }
        }

        // A layout of as many bytes as the load needs no other proof that none is smaller.
        if ceiling > load {
            assert_eq!(ceiling, brute_force(&items), "{items:?}");
            beyond_load += 1;
        }
    }
    assert!(
        beyond_load > 40,
        "only {beyond_load} need more than their load"
    );
}

/// Items that fill `capacity` bytes at every moment: a rectangle cut from edge to edge or into pinwheels.
fn full_items(random: &mut Random, capacity: u64, count: usize) -> Vec<Item> {
    // First moment, offset, moments and bytes.
    let mut rectangles = vec![[0, 0, capacity, capacity]];
    while rectangles.len() < count {
        let index = random.below(rectangles.len() as u64) as usize;
        let [first, offset, width, height] = rectangles.swap_remove(index);
        if width >= 3 && height >= 3 && random.below(3) == 0 {
            let left = 1 + random.below(width - 2);
            let right = left + 1 + random.below(width - left - 1);
            let below = 1 + random.below(height - 2);
            let above = below + 1 + random.below(height - below - 1);
            rectangles.push([first, offset, right, below]);
            rectangles.push([first + right, offset, width - right, above]);
            rectangles.push([first + left, offset + above, width - left, height - above]);
            rectangles.push([first, offset + below, left, height - below]);
            let middle = [right - left, above - below];
            rectangles.push([first + left, offset + below, middle[0], middle[1]]);
        } else if width > 1 && (height == 1 || random.below(2) == 0) {
            let cut = 1 + random.below(width - 1);
            rectangles.push([first, offset, cut, height]);
            rectangles.push([first + cut, offset, width - cut, height]);
        } else if height > 1 {
            let cut = 1 + random.below(height - 1);
            rectangles.push([first, offset, width, cut]);
            rectangles.push([first, offset + cut, width, height - cut]);
        } else {
            rectangles.push([first, offset, width, height]);
        }
    }
    rectangles
        .iter()
        .map(|[first, _, width, height]| item(*first, first + width, *height))
        .collect()
}

/// Instances with a layout by construction, too large for a search through all orders.
#[test]
fn section_search_calls_nothing_impossible_that_is_not() {
    const CAPACITY: u64 = 30;
    let mut random = Random(19);
    let mut found = 0;
    for round in 0..4000 {
        let mut items = full_items(&mut random, CAPACITY, 12 + round % 20);
        let left_out = random.below(4) as usize;
        items.drain(..left_out);
        let outcome = fit_sections(&items, CAPACITY);
        assert_ne!(outcome, FitOutcome::Impossible, "{items:?}");
        found += usize::from(outcome == FitOutcome::Found);
    }
    assert!(found > 3900, "only {found} of 4000 found");
}

/// Items of one load at all moments, in which at each the ones that end are of the size of those that begin.
///
/// They have next to no chance of a layout of that size, and far too many to prove it.
fn exchanged_items(random: &mut Random, rounds: u64) -> Vec<Item> {
    let mut live: Vec<(u64, u64)> = (0..60).map(|_| (0, 50 + random.below(100))).collect();
    let mut items = Vec::new();
    for now in 1..=rounds {
        let mut freed = 0;
        for _ in 0..3 {
            let index = random.below(live.len() as u64) as usize;
            let (first, size) = live.swap_remove(index);
            freed += size;
            if first < now {
                items.push(item(first, now, size));
            }
        }
        let low = 1 + random.below(freed / 2);
        let high = 1 + random.below(freed / 3);
        live.extend([low, high, freed - low - high].map(|size| (now, size)));
    }
    items.extend(
        live.iter()
            .map(|&(first, size)| item(first, rounds + 1, size)),
    );
    items
}

#[test]
fn a_search_for_a_capacity_stops_when_told() {
    let mut random = Random(17);
    let items = exchanged_items(&mut random, 80);
    let lower_bound = LayoutProblem::new(&items).unwrap().lower_bound;
    for (capacity, allowed) in [(Some(lower_bound), 1000), (None, 20)] {
        let limits = LayoutLimits {
            capacity,
            steps: u64::MAX,
        };
        let asked = std::cell::Cell::new(0u64);
        let should_stop = || {
            asked.set(asked.get() + 1);
            asked.get() > allowed
        };
        let layout = solve_until(&items, &limits, &should_stop).unwrap();
        check(&items, &layout);
        assert!(layout.size > lower_bound, "it ends before it is stopped");
        // Between two questions there are at most 64 nodes, and after the last there is next to nothing to do.
        assert!(layout.nodes <= 64 * (allowed + 1), "{} nodes", layout.nodes);
        assert!(asked.get() < allowed + 20, "asked {} times", asked.get());
    }
}
