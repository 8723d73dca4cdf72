//! Where parts may lie in wholes.

use super::*;

/// First and last position, and lines of 64 bytes.
type Buffers<'a> = &'a [(u32, u32, u64)];
/// A whole, and its parts with the lines at which they begin.
type Wholes<'a> = &'a [(u32, &'a [(u32, i64)])];

/// Lines from the start of its block, and the block's first buffer, for each buffer that is tied.
fn tie(buffers: Buffers<'_>, wholes: Wholes<'_>) -> Vec<(u32, u32, u64)> {
    let lives = buffers.iter().map(|&(first, last, lines)| {
        Some(BufferLife {
            first,
            last,
            bytes: 64 * lines,
        })
    });
    let mut blocks = BufferBlocks::new(lives.collect());
    let mut load = blocks.load(|_| true);

    let mut intended = BTreeSet::new();
    for &(whole, parts) in wholes {
        let whole = BufferId(whole);
        for PartPlace { part, offset } in places(parts) {
            for (below, above, shift) in [(part, whole, -offset), (whole, part, offset)] {
                intended.insert(Overlap {
                    below,
                    above,
                    shift,
                });
            }
        }
    }

    for &(whole, parts) in wholes {
        let whole = BufferId(whole);
        if !blocks.tie(whole, &places(parts), &intended, &mut load) {
            for place in &places(parts) {
                blocks.tie(whole, std::slice::from_ref(place), &intended, &mut load);
            }
        }
    }
    let tied = blocks.tied_buffers().into_iter();
    tied.map(|(id, place)| (id.0, place.root.0, place.offset_bytes / 64))
        .collect()
}

fn places(parts: &[(u32, i64)]) -> Vec<PartPlace> {
    let places = parts.iter().map(|&(part, line)| PartPlace {
        part: BufferId(part),
        offset: 64 * line,
    });
    places.collect()
}

#[test]
fn parts_lie_in_wholes_where_nothing_is_in_the_way() {
    type Case<'a> = (&'a str, Buffers<'a>, Wholes<'a>, &'a [(u32, u32, u64)]);
    let cases: [Case<'_>; 6] = [
        (
            "a concatenation",
            &[(0, 2, 1), (1, 2, 2), (2, 3, 3)],
            &[(2, &[(0, 0), (1, 1)])],
            &[(1, 0, 1), (2, 0, 0)],
        ),
        (
            "the first part is elsewhere",
            &[(1, 2, 2), (2, 3, 3)],
            &[(1, &[(0, 1)])],
            &[(0, 1, 1)],
        ),
        (
            "a split, put together in the same order",
            &[(0, 1, 3), (1, 2, 1), (1, 2, 2), (2, 3, 3)],
            &[(0, &[(1, 0), (2, 1)]), (3, &[(1, 0), (2, 1)])],
            &[(1, 0, 0), (2, 0, 1), (3, 0, 0)],
        ),
        (
            "in the other order only one can stay",
            &[(0, 1, 2), (1, 2, 1), (1, 2, 1), (2, 3, 2)],
            &[(0, &[(1, 0), (2, 1)]), (3, &[(2, 0), (1, 1)])],
            &[(1, 0, 0), (2, 0, 1), (3, 0, 1)],
        ),
        (
            "the second part is still needed when its place is overwritten",
            &[(0, 1, 2), (1, 2, 1), (1, 5, 1), (2, 3, 2)],
            &[(0, &[(1, 0), (2, 1)]), (3, &[(1, 0)])],
            &[(1, 0, 0), (2, 0, 1)],
        ),
        (
            "there is no room for the whole when its first part is made",
            &[(0, 9, 1), (1, 7, 4), (8, 9, 1), (9, 10, 2)],
            &[(3, &[(0, 0), (2, 1)])],
            &[(2, 3, 1)],
        ),
    ];
    for (name, buffers, wholes, expected) in cases {
        assert_eq!(tie(buffers, wholes), expected, "{name}");
    }
}
