//! Intervals in, offsets out; an independent checker; brute force on tiny instances.

use std::collections::BTreeMap;

use super::{
    Alias, ConflictVerdict, Item, ItemLayout, LayoutLimits, OffsetsError, conflict, solve,
};

mod fillers;
mod joins;
mod section_search;

/// Seeded xorshift: the tests need variety, not quality.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

fn item(first: u64, end: u64, size: u64) -> Item {
    Item::new(first, end, size)
}

fn aligned(item: Item, align: u64) -> Item {
    Item { align, ..item }
}

fn fixed(item: Item, offset: u64) -> Item {
    Item {
        fixed: Some(offset),
        ..item
    }
}

fn tied(item: Item, to: usize, offset: u64) -> Item {
    Item {
        alias: Some(Alias { item: to, offset }),
        ..item
    }
}

/// The item at the end of the chain of aliases.
fn root(items: &[Item], mut i: usize) -> usize {
    while let Some(alias) = items[i].alias {
        i = alias.item;
    }
    i
}

/// Everything a layout promises, by definition and pair by pair.
#[track_caller]
fn check(items: &[Item], layout: &ItemLayout) {
    let o = &layout.offsets;
    for (i, a) in items.iter().enumerate() {
        assert_eq!(o[i] % a.align, 0, "item {i} is misaligned");
        assert!(a.fixed.is_none_or(|f| f == o[i]), "item {i} has moved");
        if let Some(alias) = a.alias {
            assert_eq!(
                o[i],
                o[alias.item] + alias.offset,
                "item {i} left what it is tied to"
            );
        }
        for (j, b) in items.iter().enumerate().skip(i + 1) {
            let meet = a.first < b.end && b.first < a.end && a.first < a.end && b.first < b.end;
            let apart = o[i] + a.size <= o[j] || o[j] + b.size <= o[i];
            let empty = a.size == 0 || b.size == 0;
            let same = root(items, i) == root(items, j);
            assert!(!meet || apart || empty || same, "items {i} and {j} overlap");
        }
    }
    let top = items
        .iter()
        .zip(o)
        .filter(|(a, _)| a.size > 0)
        .map(|(a, o)| o + a.size);
    assert_eq!(layout.size, top.max().unwrap_or(0));
    assert!(layout.lower_bound <= layout.size);
}

/// As [`check`] for many items without aliases: a sweep over those live.
fn check_many(items: &[Item], layout: &ItemLayout) {
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        events.extend([(item.first, true, i), (item.end, false, i)]);
    }
    events.sort_unstable();
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, starts, i) in events {
        let (start, end) = (layout.offsets[i], layout.offsets[i] + items[i].size);
        if starts {
            let below = live.range(..end).next_back();
            assert!(
                below.is_none_or(|(_, &top)| top <= start),
                "item {i} overlaps"
            );
            assert!(end <= layout.size);
            live.insert(start, end);
        } else {
            live.remove(&start);
        }
    }
}

#[test]
fn offsets_are_as_expected() {
    let cases: &[(&str, &[Item], &[u64], u64)] = &[
        ("nothing needs nothing", &[], &[], 0),
        ("one item lies at 0", &[item(0, 1, 5)], &[0], 5),
        (
            "ends are exclusive: both share",
            &[item(0, 2, 5), item(2, 4, 5)],
            &[0, 0],
            5,
        ),
        (
            "live together: the larger first",
            &[item(0, 3, 4), item(2, 4, 6)],
            &[6, 0],
            10,
        ),
        (
            "never live: shares with all",
            &[item(0, 9, 8), item(4, 4, 8)],
            &[0, 0],
            8,
        ),
        (
            "never live, but it must be somewhere",
            &[item(0, 9, 1), item(4, 4, 8)],
            &[0, 0],
            8,
        ),
        (
            "a long item out of the way of two short ones in turn",
            &[item(0, 2, 4), item(2, 4, 4), item(0, 4, 2)],
            &[0, 0, 4],
            6,
        ),
        (
            "each offset is a multiple of its own alignment",
            &[
                aligned(item(0, 4, 8), 1),
                aligned(item(0, 4, 16), 16),
                aligned(item(0, 4, 8), 8),
            ],
            &[16, 0, 24],
            32,
        ),
        (
            "sizes need not be multiples of the alignment: nothing is lost at the top",
            &[aligned(item(0, 4, 100), 64), aligned(item(0, 4, 100), 64)],
            &[0, 128],
            228,
        ),
        (
            "a fixed item stays; the others go around it",
            &[fixed(item(0, 4, 4), 4), item(0, 4, 4), item(2, 3, 2)],
            &[4, 0, 8],
            10,
        ),
        (
            "in place: input and output are one block",
            &[item(0, 3, 8), tied(item(2, 6, 8), 0, 0), item(5, 7, 8)],
            &[0, 0, 8],
            16,
        ),
        (
            "the parts of a concatenation lie in the whole",
            &[
                item(4, 6, 12),
                tied(item(0, 5, 4), 0, 0),
                tied(item(2, 5, 8), 0, 4),
                item(0, 9, 2),
            ],
            &[0, 0, 4, 12],
            14,
        ),
        (
            "the block of a part that must be aligned moves as a whole",
            &[
                item(0, 5, 12),
                tied(aligned(item(0, 5, 8), 8), 0, 4),
                fixed(item(0, 1, 1), 0),
            ],
            &[4, 8, 0],
            16,
        ),
    ];
    for (reason, items, offsets, size) in cases {
        let layout = solve(items, &LayoutLimits::default()).unwrap();
        check(items, &layout);
        assert_eq!(
            (&layout.offsets[..], layout.size),
            (*offsets, *size),
            "{reason}"
        );
        assert!(layout.proved(), "{reason}: bound {}", layout.lower_bound);
    }
}

#[test]
fn bad_items_are_rejected() {
    let two = [item(0, 4, 8), item(0, 4, 8)];
    let cases: &[(&[Item], OffsetsError)] = &[
        (
            &[aligned(two[0], 3)],
            OffsetsError::Align { item: 0, align: 3 },
        ),
        (
            &[aligned(two[0], 0)],
            OffsetsError::Align { item: 0, align: 0 },
        ),
        (
            &[fixed(aligned(two[0], 8), 12)],
            OffsetsError::FixedAlign {
                item: 0,
                fixed: 12,
                align: 8,
            },
        ),
        (
            &[fixed(two[0], 0), fixed(two[1], 7)],
            OffsetsError::FixedOverlap {
                first: 0,
                first_fixed: 0,
                second: 1,
                second_fixed: 7,
            },
        ),
        (
            &[tied(two[0], 1, 0)],
            OffsetsError::AliasRange {
                item: 0,
                to: 1,
                count: 1,
            },
        ),
        (
            &[tied(two[0], 1, 0), tied(two[1], 0, 0)],
            OffsetsError::AliasCycle { item: 0 },
        ),
        (
            &[aligned(two[0], 16), tied(aligned(two[1], 8), 0, 4)],
            OffsetsError::AliasAlign {
                item: 1,
                offset: 4,
                align: 16,
            },
        ),
        (
            &[fixed(two[0], 8), tied(fixed(two[1], 8), 0, 4)],
            OffsetsError::AliasFixed {
                item: 1,
                fixed: 8,
                wanted: 12,
            },
        ),
        (
            &[two[0], tied(fixed(two[1], 2), 0, 4)],
            OffsetsError::AliasFixed {
                item: 1,
                fixed: 2,
                wanted: 4,
            },
        ),
        (
            &[item(0, 1, u64::MAX)],
            OffsetsError::TooBig {
                limit: super::MAX_BYTES,
            },
        ),
    ];
    for (items, error) in cases {
        assert_eq!(solve(items, &LayoutLimits::default()).as_ref(), Err(error));
    }
}

/// Random items of all kinds. Tied and fixed ones may contradict each other.
fn mixed(random: &mut Random, count: u64) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for i in 0..count {
        let first = random.below(count);
        let mut new = item(first, first + random.below(count / 2 + 2), random.below(30));
        if random.below(3) == 0 {
            new.align = 1 << random.below(5);
        }
        if random.below(8) == 0 {
            new.fixed = Some(random.below(100) * new.align);
        }
        if i > 0 && random.below(5) == 0 {
            new = tied(new, random.below(i) as usize, random.below(12) * new.align);
        }
        items.push(new);
    }
    items
}

#[test]
fn random_layouts_keep_all_promises() {
    let mut random = Random(42);
    let mut laid_out = 0;
    for round in 0..2000 {
        let count = 1 + round % 40;
        let items = mixed(&mut random, count);
        let steps = [0, 1000, 100_000][round as usize % 3];
        if let Ok(layout) = solve(
            &items,
            &LayoutLimits {
                capacity: None,
                steps,
            },
        ) {
            check(&items, &layout);
            laid_out += 1;
        }
    }
    assert!(
        laid_out > 300,
        "only {laid_out} of the instances were consistent"
    );
}

/// The smallest region over all orders in which items are dropped to their lowest free offset. Fixed ones lie first.
fn brute_force(items: &[Item]) -> u64 {
    fn go(items: &[Item], placed: &mut Vec<(usize, u64)>, left: u32, best: &mut u64) {
        let top = placed
            .iter()
            .map(|&(i, o)| o + items[i].size)
            .max()
            .unwrap_or(0);
        if top >= *best {
            return;
        }
        if left == 0 {
            *best = top;
        }
        for i in (0..items.len()).filter(|i| left >> i & 1 == 1) {
            let a = &items[i];
            let free = |at: u64| {
                placed.iter().all(|&(j, o)| {
                    let b = &items[j];
                    let meet = a.first < b.end && b.first < a.end;
                    !meet || at + a.size <= o || o + b.size <= at
                })
            };
            let at = (0..)
                .step_by(a.align as usize)
                .find(|&at| free(at))
                .unwrap();
            placed.push((i, at));
            go(items, placed, left & !(1 << i), best);
            placed.pop();
        }
    }
    let mut placed: Vec<(usize, u64)> = items
        .iter()
        .enumerate()
        .filter_map(|(i, a)| Some((i, a.fixed?)))
        .collect();
    let left = (0..items.len())
        .filter(|&i| items[i].fixed.is_none())
        .map(|i| 1 << i)
        .sum();
    let mut best = u64::MAX;
    go(items, &mut placed, left, &mut best);
    best
}

#[test]
fn tiny_instances_are_solved_to_the_optimum() {
    let mut random = Random(7);
    let mut beyond_load = 0;
    for round in 0..300 {
        let items: Vec<Item> = (0..3 + round % 5)
            .map(|_| {
                let first = random.below(6);
                let new = item(first, first + 1 + random.below(5), 1 + random.below(6));
                match random.below(6) {
                    0 => aligned(new, 1 << random.below(3)),
                    1 => fixed(new, random.below(8)),
                    _ => new,
                }
            })
            .collect();
        let Ok(layout) = solve(&items, &LayoutLimits::default()) else {
            continue;
        };
        check(&items, &layout);
        let optimum = brute_force(&items);
        assert_eq!(layout.size, optimum, "{items:?}");
        let load = |t: u64| {
            items
                .iter()
                .filter(|a| (a.first..a.end).contains(&t))
                .map(|a| a.size)
                .sum::<u64>()
        };
        beyond_load += u32::from(optimum > (0..12).map(load).max().unwrap_or(0));
        // Rounding to the smallest alignment aside, the search proves what it finds.
        if items.iter().any(|a| a.align == 1) {
            assert!(layout.proved(), "{items:?} {layout:?}");
        }
    }
    assert!(
        beyond_load > 5,
        "only {beyond_load} instances need more than their load"
    );
}

/// Items live between two random moments.
fn random_lives(random: &mut Random, count: u64) -> Vec<Item> {
    (0..count)
        .map(|_| {
            let (a, b) = (random.below(count), random.below(count));
            item(a.min(b), a.max(b) + 1, 1 + random.below(1000))
        })
        .collect()
}

#[test]
fn random_layouts_are_within_two_percent_of_the_bound() {
    let mut random = Random(3);
    let mut sum = 0.0;
    for round in 0..40 {
        let items = random_lives(&mut random, 20 + 10 * round);
        let layout = solve(
            &items,
            &LayoutLimits {
                capacity: None,
                steps: 1_000_000,
            },
        )
        .unwrap();
        check(&items, &layout);
        sum += layout.gap();
    }
    assert!(sum / 40.0 <= 0.02, "mean gap {}", sum / 40.0);
}

#[test]
fn a_hundred_thousand_ranges() {
    let mut random = Random(5);
    let local: Vec<Item> = (0..100_000)
        .map(|i| item(i, i + 1 + random.below(60), 64 * (1 + random.below(1000))))
        .collect();
    let dense = random_lives(&mut random, 100_000);
    for (name, items, worst) in [("local", local, 0.15), ("dense", dense, 0.05)] {
        let layout = solve(
            &items,
            &LayoutLimits {
                capacity: None,
                steps: 0,
            },
        )
        .unwrap();
        check_many(&items, &layout);
        assert!(layout.gap() < worst, "{name}: {}", layout.gap());
    }
}

#[test]
fn repair_lowers_a_group_too_large_to_search() {
    let mut random = Random(11);
    let items: Vec<Item> = (0..6000)
        .map(|i| item(i, i + 1 + random.below(20), 64 * (1 + random.below(100))))
        .collect();
    let [greedy, repaired] = [0, 1_000_000].map(|steps| {
        solve(
            &items,
            &LayoutLimits {
                capacity: None,
                steps,
            },
        )
        .unwrap()
    });
    check_many(&items, &repaired);
    assert!(
        repaired.gap() <= 0.02 && repaired.size < greedy.size,
        "{} from {}",
        repaired.gap(),
        greedy.gap()
    );
}

#[test]
fn a_capacity_ends_the_search() {
    let mut random = Random(9);
    let items = random_lives(&mut random, 60);
    let free = solve(&items, &LayoutLimits::default()).unwrap();
    let limits = LayoutLimits {
        capacity: Some(free.lower_bound * 2),
        ..LayoutLimits::default()
    };
    let roomy = solve(&items, &limits).unwrap();
    assert_eq!(roomy.nodes, 0);
    assert!(roomy.size <= free.lower_bound * 2);
    assert_eq!(solve(&items, &LayoutLimits::default()).unwrap(), free);
}

#[test]
fn conflicts_name_what_cannot_fit() {
    let a = |first, end, size| item(first, end, size);
    let cases: &[(&str, &[Item], u64, &[usize])] = &[
        (
            "at one moment: the largest that exceed it",
            &[a(0, 9, 1), a(0, 5, 6), a(2, 9, 5), a(6, 9, 3)],
            10,
            &[1, 2],
        ),
        (
            "of several moments, the one with the fewest",
            &[a(0, 2, 4), a(0, 2, 4), a(0, 2, 4), a(2, 4, 9), a(3, 5, 2)],
            10,
            &[3, 4],
        ),
        ("one item alone", &[a(0, 2, 4), a(7, 8, 12)], 10, &[1]),
        (
            "fixed too high",
            &[a(0, 2, 4), fixed(a(0, 1, 4), 8)],
            10,
            &[1],
        ),
        (
            "what is tied together goes together",
            &[a(0, 2, 6), tied(a(1, 4, 6), 0, 0), a(3, 4, 6)],
            10,
            &[0, 1, 2],
        ),
        (
            "no moment exceeds it, but a fixed item halves the rest",
            &[a(0, 9, 1), fixed(a(0, 4, 2), 4), a(3, 6, 5), a(7, 9, 9)],
            10,
            &[1, 2],
        ),
    ];
    for (reason, items, capacity, expect) in cases {
        let verdict = conflict(items, *capacity, 100_000).unwrap();
        let expect = ConflictVerdict::Conflict {
            items: expect.to_vec(),
            minimal: true,
        };
        assert_eq!(verdict, expect, "{reason}");
    }
    let fits = [a(0, 2, 4), a(1, 3, 6)];
    assert!(matches!(conflict(&fits, 10, 0), Ok(ConflictVerdict::Fits(l)) if l.size == 10));
}

#[test]
fn conflicts_of_shape_are_minimal() {
    let mut random = Random(21);
    let mut found = 0;
    for _ in 0..200 {
        let items: Vec<Item> = (0..7)
            .map(|_| {
                let first = random.below(7);
                item(first, first + 1 + random.below(5), 1 + random.below(6))
            })
            .collect();
        let layout = solve(&items, &LayoutLimits::default()).unwrap();
        let Ok(ConflictVerdict::Conflict {
            items: set,
            minimal,
        }) = conflict(&items, layout.size - 1, 1_000_000)
        else {
            panic!("{items:?} fit beneath their optimum")
        };
        assert!(minimal);
        found += u32::from(set.len() > 3);
        let chosen: Vec<Item> = set.iter().map(|&i| items[i]).collect();
        assert!(
            brute_force(&chosen) >= layout.size,
            "{items:?}: {set:?} fit"
        );
        for out in 0..chosen.len() {
            let mut rest = chosen.clone();
            rest.remove(out);
            assert!(
                brute_force(&rest) < layout.size,
                "{items:?}: {set:?} is not minimal"
            );
        }
    }
    assert!(found > 10);
}
