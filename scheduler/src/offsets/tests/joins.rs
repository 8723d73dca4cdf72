//! Joins: which pieces they make one of, that they keep blocks apart, and that attempts with them find what there is.

use super::super::fillers::{FillerChoice, find_empty_rectangles};
use super::super::group::{BlockGroup, StepBudget};
use super::super::joins::{JoinAttempts, JoinStyle, JoinedGroup, PiecePart};
use super::super::restart::fit_by_section;
use super::super::search::{FitOutcome, StopSignal};
use super::super::{Item, ItemLayout};
use super::fillers::group_of;
use super::{Random, brute_force, check, item};

/// Joins all that has any evidence, in order of it.
const EAGER: JoinStyle = JoinStyle {
    least_evidence: 1,
    noise: 0,
    stack_bonus: 96,
    row_bonus: 64,
    doubling_loss: 8,
    left_out: 0,
    has_holes: true,
    seed: 1,
};

/// Items by first moment, end and bytes.
fn items_of(rectangles: &[(u64, u64, u64)]) -> Vec<Item> {
    let items = rectangles.iter();
    items
        .map(|&(first, end, size)| item(first, end, size))
        .collect()
}

fn joined_of(group: &BlockGroup, ceiling: u32, style: JoinStyle) -> JoinedGroup {
    JoinedGroup::new(group, ceiling, &[], style, StopSignal(&|| false))
}

/// Checks offsets of a group's blocks, which are those of some items.
fn check_blocks(items: &[Item], group: &BlockGroup, units: &[u32]) -> u64 {
    let problem = super::super::blocks::LayoutProblem::new(items).unwrap();
    let block_offsets: Vec<u64> = units.iter().map(|&u| u64::from(u) * group.unit).collect();
    let offsets = problem.item_offsets(&block_offsets);
    let size = problem.real_size(&offsets);
    let layout = ItemLayout {
        offsets,
        size,
        lower_bound: 0,
        nodes: 0,
    };
    check(items, &layout);
    size
}

/// The pinwheel of the module's picture, twelve moments and ten bytes: middle, long ones, short ones.
const PINWHEEL: [(u64, u64, u64); 5] = [(4, 9, 3), (0, 9, 2), (4, 12, 5), (0, 4, 8), (9, 12, 5)];

#[test]
fn rectangles_whose_edges_coincide_become_one() {
    // Two of equal moments, two of equal sizes, and two with a hole after the first and one before the second.
    let cases: [&[(u64, u64, u64)]; 5] = [
        &[(0, 7, 3), (0, 7, 7)],
        &[(0, 4, 10), (4, 9, 10)],
        &[(0, 3, 4), (0, 9, 6)],
        &[(5, 9, 4), (0, 9, 6)],
        &PINWHEEL,
    ];
    for rectangles in cases {
        let items = items_of(rectangles);
        let group = group_of(&items);
        let joined = joined_of(&group, 10 / group.unit as u32, EAGER);
        let wholes = joined.whole_pieces();
        assert_eq!(wholes.len(), 1, "{rectangles:?}");

        let whole = PiecePart {
            piece: wholes[0],
            offset: 0,
        };
        let units = joined.block_offsets(vec![whole], items.len());
        assert_eq!(check_blocks(&items, &group, &units), 10, "{rectangles:?}");
    }
}

#[test]
fn any_part_of_a_pinwheel_may_be_a_hole_whichever_way_it_turns() {
    for missing in 0..PINWHEEL.len() {
        for is_mirrored in [false, true] {
            let mut rectangles = PINWHEEL.to_vec();
            rectangles.remove(missing);
            if is_mirrored {
                for rectangle in &mut rectangles {
                    *rectangle = (12 - rectangle.1, 12 - rectangle.0, rectangle.2);
                }
            }
            let items = items_of(&rectangles);
            let group = group_of(&items);
            let joined = joined_of(&group, 10, EAGER);
            let wholes = joined.whole_pieces();
            assert_eq!(wholes.len(), 1, "without {missing}: {rectangles:?}");
            assert_eq!(joined.shapes_of(&wholes)[0].size, 10);

            let whole = PiecePart {
                piece: wholes[0],
                offset: 0,
            };
            let units = joined.block_offsets(vec![whole], items.len());
            assert!(check_blocks(&items, &group, &units) <= 10);
        }
    }
}

/// A rectangle of moments and bytes with its offset.
#[derive(Clone, Copy)]
struct CutPart {
    first: u64,
    end: u64,
    low: u64,
    high: u64,
}

/// Sizes and moments of up to `count` parts of a square of 16, cut at random, by pinwheels too.
fn cut_square(random: &mut Random, count: usize) -> Vec<Item> {
    let mut parts = vec![CutPart {
        first: 0,
        end: 16,
        low: 0,
        high: 16,
    }];
    for _ in 0..10 * count {
        let index = random.below(parts.len() as u64) as usize;
        let CutPart {
            first,
            end,
            low,
            high,
        } = parts[index];
        let kind = random.below(5);
        if kind == 0 && end - first >= 3 && high - low >= 3 && parts.len() + 4 <= count {
            let left = first + 1 + random.below(end - first - 2);
            let right = left + 1 + random.below(end - left - 1);
            let below = low + 1 + random.below(high - low - 2);
            let above = below + 1 + random.below(high - below - 1);
            let part = |first, end, low, high| CutPart {
                first,
                end,
                low,
                high,
            };
            parts.swap_remove(index);
            parts.extend([
                part(first, right, low, below),
                part(right, end, low, above),
                part(left, end, above, high),
                part(first, left, below, high),
                part(left, right, below, above),
            ]);
        } else if kind % 2 == 1 && end - first >= 2 && parts.len() < count {
            let cut = first + 1 + random.below(end - first - 1);
            parts[index].end = cut;
            parts.push(CutPart {
                first: cut,
                end,
                low,
                high,
            });
        } else if kind > 0 && high - low >= 2 && parts.len() < count {
            let cut = low + 1 + random.below(high - low - 1);
            parts[index].high = cut;
            parts.push(CutPart {
                first,
                end,
                low: cut,
                high,
            });
        }
    }
    let items = parts.iter();
    items
        .map(|part| item(part.first, part.end, part.high - part.low))
        .collect()
}

#[test]
fn joins_keep_blocks_apart_in_every_style() {
    let mut random = Random(3);
    for round in 0..2000 {
        let mut items = cut_square(&mut random, 3 + round % 30);
        // One that lives all the time, so that they are one group; some that leave holes.
        items.push(item(0, 16, 1));
        let kept = items.len().min(2 + random.below(40) as usize);
        items.drain(..items.len() - kept);
        let group = group_of(&items);
        let ceiling = (17 / group.unit) as u32;
        let style = JoinStyle {
            least_evidence: 16 * random.below(4) as u32,
            noise: 16 * random.below(5) as u32,
            left_out: random.below(9),
            has_holes: random.below(3) > 0,
            seed: round as u64,
            ..EAGER
        };
        let choice = FillerChoice {
            takes_rest: random.below(2) > 0,
            left_out: random.below(5),
            seed: round as u64,
        };
        let fillers = find_empty_rectangles(&group, ceiling, choice);
        let joined = JoinedGroup::new(&group, ceiling, &fillers, style, StopSignal(&|| false));

        // All pieces that are left, one on the other.
        let wholes = joined.whole_pieces();
        let mut top = 0;
        let mut placed = Vec::new();
        for (&piece, shape) in wholes.iter().zip(joined.shapes_of(&wholes)) {
            placed.push(PiecePart { piece, offset: top });
            top += shape.size;
        }
        let units = joined.block_offsets(placed, items.len());
        assert!(check_blocks(&items, &group, &units) <= u64::from(top) * group.unit);

        let areas = wholes.iter().zip(joined.shapes_of(&wholes));
        assert!(
            areas.clone().all(|(_, shape)| shape.size <= ceiling),
            "{items:?}"
        );
    }
}

/// Any number of attempts with joins alone, and the whole search, against all orders of the items.
#[test]
fn joins_lose_no_layout_of_small_squares() {
    let mut random = Random(11);
    let mut found_count = 0;
    for round in 0..400 {
        let mut items = cut_square(&mut random, 4 + round % 4);
        if round % 3 == 0 {
            items.swap_remove(random.below(items.len() as u64) as usize);
        }
        items.push(item(0, 16, 1));
        assert!(brute_force(&items) <= 17, "cut from a square");

        let group = group_of(&items);
        let ceiling = group.units(17);
        let signal = StopSignal(&|| false);
        let mut budget = StepBudget::new(10_000_000, signal);
        let (outcome, units) = fit_by_section(&group, ceiling, &mut budget);
        assert_eq!(outcome, FitOutcome::Found, "{items:?}");
        assert!(check_blocks(&items, &group, &units) <= 17);

        let mut attempts = JoinAttempts::default();
        let mut rounds = 0..64;
        let found = rounds.find_map(|r| attempts.fit(&group, ceiling, r, &mut budget));
        if let Some(units) = found {
            assert!(check_blocks(&items, &group, &units) <= 17);
            found_count += 1;
        }
    }
    assert!(found_count >= 400, "only {found_count} of 400");
}
