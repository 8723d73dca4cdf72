//! Fillers: which they are, and that a search with them finds layouts that one without them misses.

use super::super::Item;
use super::super::blocks::LayoutProblem;
use super::super::fillers::{FillerChoice, make_fillers};
use super::super::group::BlockGroup;
use super::super::search::BlockShape;
use super::{Random, item};

/// The only group of some items.
pub(super) fn group_of(items: &[Item]) -> BlockGroup {
    let problem = LayoutProblem::new(items).unwrap();
    BlockGroup::new(&problem.blocks, &problem.loads).unwrap()
}

fn fillers_of(group: &BlockGroup, ceiling: u32, takes_rest: bool) -> Vec<BlockShape> {
    let choice = FillerChoice {
        takes_rest,
        left_out: 0,
        seed: 1,
    };
    make_fillers(group, ceiling, choice)
}

/// Items that fill ten bytes from moment 0 to 10, but for some rectangles: first moment, end and bytes.
fn items_around(empty: &[(u64, u64, u64)]) -> Vec<Item> {
    let mut items = Vec::new();
    let mut rest = 9;
    for &(first, end, size) in empty {
        items.push(item(0, first, size));
        items.push(item(end, 10, size));
        rest -= size;
    }
    items.push(item(0, 10, rest));
    // Each moment is a section.
    items.extend((0..10).map(|moment| item(moment, moment + 1, 1)));
    items
}

#[test]
fn steps_of_one_height_are_edges_of_one_filler() {
    // Two rectangles whose edges lie apart; two that end together; two that begin together.
    let cases = [
        (vec![(2, 5, 3), (4, 8, 2)], vec![(2, 5, 3), (4, 8, 2)]),
        (
            vec![(2, 5, 3), (3, 5, 4)],
            vec![(2, 3, 3), (3, 5, 3), (3, 5, 4)],
        ),
        (
            vec![(2, 5, 3), (2, 7, 4)],
            vec![(2, 5, 3), (2, 5, 4), (5, 7, 4)],
        ),
    ];
    for (empty, expected) in cases {
        let group = group_of(&items_around(&empty));
        let fillers = fillers_of(&group, 10, false);
        let mut edges: Vec<(u32, u32, u32)> = fillers
            .iter()
            .map(|filler| (filler.lo, filler.hi, filler.size))
            .collect();
        edges.sort_unstable();
        assert_eq!(edges, expected, "{empty:?}");
    }
}

#[test]
fn fillers_never_overfill_a_section_and_all_of_them_fill_it() {
    let mut random = Random(5);
    for _ in 0..2000 {
        let mut items = vec![item(0, 30, 1)];
        for _ in 0..random.below(30) {
            let first = random.below(20);
            items.push(item(
                first,
                first + 1 + random.below(9),
                1 + random.below(40),
            ));
        }
        let group = group_of(&items);
        let section_count = group.shapes.iter().map(|shape| shape.hi).max().unwrap();
        let load_of = |shapes: &[BlockShape], section: u32| -> u32 {
            let live = shapes.iter().filter(|shape| shape.covers(section as usize));
            live.map(|shape| shape.size).sum()
        };
        let loads = (0..section_count).map(|section| load_of(&group.shapes, section));
        let ceiling = loads.max().unwrap() + random.below(20) as u32;

        let matched = fillers_of(&group, ceiling, false);
        let all = fillers_of(&group, ceiling, true);
        for section in 0..section_count {
            let load = load_of(&group.shapes, section);
            assert!(load + load_of(&matched, section) <= ceiling, "{items:?}");
            assert_eq!(load + load_of(&all, section), ceiling, "{items:?}");
        }
    }
}
