//! Five pieces that turn around a middle one, which no cut from edge to edge separates.
//!
//! ```text
//! offset
//!   ^   short left | long right
//!   |   short left | middle | short right
//!   |   long left           | short right
//!   +------------------------------------> time
//! ```
//!
//! The long piece on the left starts with the short one on that side and ends with the middle one; the long piece on
//! the right starts with the middle one and ends with the short one on its side. So many edges coincide that, of the
//! five, any one may be a hole. What turns the other way is the same upside down, which is all one to a layout.

use super::{DIRECTIONS, Direction, Hole, Join, PiecePart, PieceTable, edge_evidence};

/// Looks that each pair of long pieces takes.
const PAIR_LOOKS: u64 = 8;

/// Four or five pieces of a pinwheel, as far as they are known.
struct Pinwheel {
    /// Left long, middle, right long, left short, right short, with their offsets.
    parts: Vec<PiecePart>,
    first: u32,
    end: u32,
    size: u32,
}

/// Proposes pinwheels, with one part that is a hole if `has_holes`. Returns looks at a piece, roughly.
pub(super) fn propose_pinwheels(table: &PieceTable, has_holes: bool, joins: &mut Vec<Join>) -> u64 {
    let mut looks = table.pieces.len() as u64;
    for middle in table.active_pieces() {
        let core = table.piece(middle);
        let left_longs = table.ending(core.end, Direction::Forwards);
        let right_longs = table.starting(core.first, Direction::Forwards);
        looks += (left_longs.len() * right_longs.len()) as u64;
        propose_around(table, middle, has_holes, joins);
        if has_holes {
            for direction in DIRECTIONS {
                propose_without_long(table, middle, direction, joins);
            }
        }
    }
    if has_holes {
        for long in table.active_pieces() {
            propose_without_middle(table, long, joins);
        }
    }
    PAIR_LOOKS * looks
}

impl Pinwheel {
    /// Evidence of the edges of all that are pieces: eight coincide, or five with one piece less.
    fn evidence(&self) -> u32 {
        let edges = edge_evidence(self.end - self.first) + edge_evidence(self.size);
        match self.parts.len() {
            5 => 4 * edges,
            _ => edges + edges / 2,
        }
    }

    fn propose(self, table: &PieceTable, hole: Option<Hole>, joins: &mut Vec<Join>) {
        let hole_evidence = match hole {
            Some(hole) if !table.takes_free(hole) => return,
            Some(hole) => table.hole_evidence(hole),
            None => 0,
        };
        joins.push(Join {
            evidence: self.evidence() + hole_evidence,
            parts: self.parts,
            hole,
        });
    }
}

/// The first of some pieces that has certain edges and a size.
fn find_piece(table: &PieceTable, among: &[u32], first: u32, end: u32, size: u32) -> Option<u32> {
    let mut pieces = among.iter().copied();
    pieces.find(|&index| {
        let piece = table.piece(index);
        (piece.first, piece.end, piece.size) == (first, end, size)
    })
}

/// Proposes pinwheels of which the middle and both long pieces are known, and at least one of the short ones.
fn propose_around(table: &PieceTable, middle: u32, has_holes: bool, joins: &mut Vec<Join>) {
    let core = table.piece(middle);
    let (left_time, right_time) = (core.first, core.end);
    let left_ends = table.ending(left_time, Direction::Forwards);
    let right_starts = table.starting(right_time, Direction::Forwards);
    for &left in table.ending(right_time, Direction::Forwards) {
        let left_long = table.piece(left);
        let first = left_long.first;
        let mut left_shorts = left_ends.iter();
        let has_left_short = left_shorts.any(|&short| table.piece(short).first == first);
        if first >= left_time || !(has_left_short || has_holes) {
            continue;
        }
        for &right in table.starting(left_time, Direction::Forwards) {
            let right_long = table.piece(right);
            if right_long.end <= right_time {
                continue;
            }
            let end = right_long.end;
            let size = left_long.size + core.size + right_long.size;
            let left_size = size - left_long.size;
            let right_size = size - right_long.size;
            let left_short = find_piece(table, left_ends, first, left_time, left_size);
            let right_short = find_piece(table, right_starts, right_time, end, right_size);
            let hole = match (left_short, right_short) {
                (Some(_), Some(_)) => None,
                (None, Some(_)) if has_holes => Some(Hole {
                    first,
                    end: left_time,
                    size: left_size,
                }),
                (Some(_), None) if has_holes => Some(Hole {
                    first: right_time,
                    end,
                    size: right_size,
                }),
                _ => continue,
            };

            let long_parts = [
                (Some(left), 0),
                (Some(middle), left_long.size),
                (Some(right), left_long.size + core.size),
                (left_short, left_long.size),
                (right_short, 0),
            ];
            let known = long_parts.into_iter();
            let parts = known.filter_map(|(piece, offset)| {
                Some(PiecePart {
                    piece: piece?,
                    offset,
                })
            });
            let pinwheel = Pinwheel {
                parts: parts.collect(),
                first,
                end,
                size,
            };
            pinwheel.propose(table, hole, joins);
        }
    }
}

/// Proposes pinwheels whose middle is a hole, from their long piece on the left.
fn propose_without_middle(table: &PieceTable, left: u32, joins: &mut Vec<Join>) {
    let left_long = table.piece(left);
    let (first, right_time) = (left_long.first, left_long.end);
    for &left_short in table.starting(first, Direction::Forwards) {
        let short = table.piece(left_short);
        let left_time = short.end;
        if left_time >= right_time {
            continue;
        }
        let size = left_long.size + short.size;
        for &right in table.starting(left_time, Direction::Forwards) {
            let right_long = table.piece(right);
            let end = right_long.end;
            if end <= right_time || right_long.size >= short.size {
                continue;
            }
            let right_size = size - right_long.size;
            let right_starts = table.starting(right_time, Direction::Forwards);
            let found = find_piece(table, right_starts, right_time, end, right_size);
            let Some(right_short) = found else { continue };

            let parts = vec![
                PiecePart {
                    piece: left,
                    offset: 0,
                },
                PiecePart {
                    piece: left_short,
                    offset: left_long.size,
                },
                PiecePart {
                    piece: right,
                    offset: right_size,
                },
                PiecePart {
                    piece: right_short,
                    offset: 0,
                },
            ];
            let hole = Hole {
                first: left_time,
                end: right_time,
                size: short.size - right_long.size,
            };
            let pinwheel = Pinwheel {
                parts,
                first,
                end,
                size,
            };
            pinwheel.propose(table, Some(hole), joins);
        }
    }
}

/// Proposes pinwheels of which one long piece is a hole: forwards the one on the left.
fn propose_without_long(
    table: &PieceTable,
    middle: u32,
    direction: Direction,
    joins: &mut Vec<Join>,
) {
    // Named as they are forwards.
    let core = table.piece(middle);
    let (near_time, far_time) = core.edges(direction);
    for &long in table.starting(near_time, direction) {
        let right_long = table.piece(long);
        let (_, end) = right_long.edges(direction);
        if !direction.is_before(far_time, end) {
            continue;
        }
        for &left_short in table.ending(near_time, direction) {
            let left = table.piece(left_short);
            if left.size != core.size + right_long.size {
                continue;
            }
            let (first, _) = left.edges(direction);
            for &right_short in table.starting(far_time, direction) {
                let right = table.piece(right_short);
                if right.edges(direction).1 != end || right.size <= core.size {
                    continue;
                }
                let hole_size = right.size - core.size;
                let parts = vec![
                    PiecePart {
                        piece: middle,
                        offset: hole_size,
                    },
                    PiecePart {
                        piece: long,
                        offset: hole_size + core.size,
                    },
                    PiecePart {
                        piece: left_short,
                        offset: hole_size,
                    },
                    PiecePart {
                        piece: right_short,
                        offset: 0,
                    },
                ];
                let hole = Hole {
                    first: first.min(far_time),
                    end: first.max(far_time),
                    size: hole_size,
                };
                let pinwheel = Pinwheel {
                    parts,
                    first: first.min(end),
                    end: first.max(end),
                    size: hole_size + left.size,
                };
                pinwheel.propose(table, Some(hole), joins);
            }
        }
    }
}
