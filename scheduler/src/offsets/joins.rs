//! Joins: blocks that may have been cut from one rectangle, put together again.
//!
//! Where a capacity is filled (nearly) to the last byte, edges of blocks coincide: two blocks that live at the same
//! moments and lie one on the other, two of one size of which one starts when the other ends, or five that turn
//! around a middle one (`pinwheels`). Each of these makes a rectangle, which may be part of a larger one. So joins
//! undo, from the smallest parts upwards, the cuts that such an instance can be made with, and what is left are a few
//! dozen large rectangles, which a search by section (`section_search`) mostly places at once or not at all.
//!
//! A join may include a *hole*: a rectangle of bytes that stay empty. It may also be wrong, since edges coincide by
//! chance too, the more often the shorter they are. So each join has *evidence*: roughly the number of bits of a
//! coincidence that chance would have had to guess. The joins with the most evidence are made first, and those with too
//! little are not made. A little noise is added to the evidence, so that each attempt joins in another way
//! (`attempts`). A layout of joined blocks is a layout of the blocks; that there is none proves nothing.
//!
//! To join rectangles side by side or one on the other, with a little waste, is how Wang 1983 builds cutting patterns
//! ("Two algorithms for constrained two-dimensional cutting stock problems", Operations Research 31). Here, as in the
//! static memory allocation of Moffitt 2023 ("MiniMalloc"), all starts and ends are known beforehand, so that few joins
//! are likely, and an incomplete search over them goes a long way.

mod attempts;
mod pinwheels;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use super::fillers::EmptyRectangle;
use super::group::BlockGroup;
use super::search::{BlockShape, StopSignal, mix_bits};

pub(super) use attempts::JoinAttempts;

/// How joins are chosen. Evidence is in sixteenths of a bit.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoinStyle {
    /// Evidence that a join needs.
    pub(super) least_evidence: u32,
    /// Evidence below which chance adds to that of each join.
    pub(super) noise: u32,
    /// Evidence of a stack, besides that of its edges.
    pub(super) stack_bonus: u32,
    /// Evidence of a row, besides that of its edges.
    pub(super) row_bonus: u32,
    /// Evidence that is lost with each doubling of the blocks that have an edge at the same moment.
    pub(super) doubling_loss: u32,
    /// One of so many joins is left out each time; 0: none.
    pub(super) left_out: u64,
    /// Whether joins may include holes.
    pub(super) has_holes: bool,
    /// Fixes what chance decides.
    pub(super) seed: u64,
}

/// Sixteenths in a bit of evidence.
const BIT: u32 = 16;

/// Evidence of a join of the only two blocks that end and start at one moment: where no byte stays empty, they must lie
/// side by side.
const ONLY_PAIR: u32 = 8 * BIT;

/// Evidence of any straight join with a hole, besides that of its edges.
const HOLED_BONUS: u32 = BIT;

/// Looks that each stretch takes by which a hole may grow.
const HOLE_LOOKS: u64 = 4;

/// Looks that it takes to propose a join, to sort it and to make it or not.
const PROPOSAL_LOOKS: u64 = 64;

/// A block, a hole or several joined, as a rectangle of known moments. Moments are indices of `PieceTable::times`.
#[derive(Clone, Debug)]
struct Piece {
    first: u32,
    end: u32,
    size: u32,
    /// What it is joined from, if it is.
    parts: Vec<PiecePart>,
    is_active: bool,
}

/// A piece, and how far it lies from the start of another or of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct PiecePart {
    pub(super) piece: u32,
    pub(super) offset: u32,
}

/// A rectangle that stays empty.
#[derive(Clone, Copy, Debug)]
struct Hole {
    first: u32,
    end: u32,
    size: u32,
}

/// Pieces that make a rectangle together.
struct Join {
    evidence: u32,
    parts: Vec<PiecePart>,
    hole: Option<Hole>,
}

/// Which way time is read: a join in one direction is one in the other too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forwards,
    Backwards,
}

const DIRECTIONS: [Direction; 2] = [Direction::Forwards, Direction::Backwards];

impl Direction {
    fn is_before(self, time: u32, other: u32) -> bool {
        match self {
            Direction::Forwards => time < other,
            Direction::Backwards => other < time,
        }
    }

    /// The time after another, if it is not the last.
    fn next_time(self, time: u32, last_time: u32) -> Option<u32> {
        match self {
            Direction::Forwards => (time < last_time).then(|| time + 1),
            Direction::Backwards => time.checked_sub(1),
        }
    }
}

impl Piece {
    /// The near and the far edge.
    fn edges(&self, direction: Direction) -> (u32, u32) {
        match direction {
            Direction::Forwards => (self.first, self.end),
            Direction::Backwards => (self.end, self.first),
        }
    }
}

/// Evidence of equal edges of a length: the longer, the less likely by chance.
fn edge_evidence(length: u32) -> u32 {
    BIT * (length + 1).ilog2()
}

/// All pieces, those that are joined already among them.
struct PieceTable {
    /// Moments at which blocks and fillers start or end.
    times: Vec<u64>,
    pieces: Vec<Piece>,
    /// Active pieces that start at each time.
    starts: Vec<Vec<u32>>,
    /// Active pieces that end at each time.
    ends: Vec<Vec<u32>>,
    /// Units that are free from each time to the next.
    free_units: Vec<u32>,
    /// Looks at a piece or at a time, roughly.
    looks: u64,
}

impl PieceTable {
    /// Pieces of a group's blocks, in their order, and of fillers.
    fn new(group: &BlockGroup, ceiling: u32, fillers: &[EmptyRectangle]) -> PieceTable {
        let blocks = group.shapes.iter().zip(&group.moments);
        let blocks = blocks.map(|(shape, moments)| (moments, shape.size));
        let fillers = fillers.iter().map(|filler| (&filler.moments, filler.size));
        let rectangles: Vec<(&Range<u64>, u32)> = blocks.chain(fillers).collect();

        let moments = rectangles.iter().map(|(moments, _)| *moments);
        let edges = moments.flat_map(|moments| [moments.start, moments.end]);
        let times: Vec<u64> = edges.collect::<BTreeSet<u64>>().into_iter().collect();
        let time_index = |moment: u64| times.partition_point(|&time| time < moment) as u32;
        let mut free_units = vec![ceiling; times.len()];
        // Nothing lives after the last moment, as nothing does before the first.
        if let Some(last_units) = free_units.last_mut() {
            *last_units = 0;
        }
        let mut table = PieceTable {
            pieces: Vec::new(),
            starts: vec![Vec::new(); times.len()],
            ends: vec![Vec::new(); times.len()],
            free_units,
            looks: 0,
            times: Vec::new(),
        };
        for (moments, size) in rectangles {
            let hole = Hole {
                first: time_index(moments.start),
                end: time_index(moments.end),
                size,
            };
            table.take_free(hole);
            table.add(hole.first, hole.end, size, Vec::new());
        }
        table.times = times;
        table
    }

    fn piece(&self, index: u32) -> &Piece {
        &self.pieces[index as usize]
    }

    fn active_pieces(&self) -> impl Iterator<Item = u32> {
        let indices = 0..self.pieces.len() as u32;
        indices.filter(|&index| self.piece(index).is_active)
    }

    fn add(&mut self, first: u32, end: u32, size: u32, parts: Vec<PiecePart>) {
        let index = self.pieces.len() as u32;
        self.starts[first as usize].push(index);
        self.ends[end as usize].push(index);
        self.pieces.push(Piece {
            first,
            end,
            size,
            parts,
            is_active: true,
        });
    }

    fn deactivate(&mut self, index: u32) {
        let piece = &mut self.pieces[index as usize];
        piece.is_active = false;
        self.starts[piece.first as usize].retain(|&other| other != index);
        self.ends[piece.end as usize].retain(|&other| other != index);
    }

    /// Pieces whose near edge is at a time.
    fn starting(&self, time: u32, direction: Direction) -> &[u32] {
        match direction {
            Direction::Forwards => &self.starts[time as usize],
            Direction::Backwards => &self.ends[time as usize],
        }
    }

    /// Pieces whose far edge is at a time.
    fn ending(&self, time: u32, direction: Direction) -> &[u32] {
        match direction {
            Direction::Forwards => &self.ends[time as usize],
            Direction::Backwards => &self.starts[time as usize],
        }
    }

    fn takes_free(&self, hole: Hole) -> bool {
        let mut free_units = self.free_units[hole.first as usize..hole.end as usize].iter();
        free_units.all(|&units| units >= hole.size)
    }

    fn take_free(&mut self, hole: Hole) {
        for units in &mut self.free_units[hole.first as usize..hole.end as usize] {
            *units = units.saturating_sub(hole.size);
        }
    }

    /// By how many units more are free from a time on than before.
    fn free_change(&self, time: u32) -> i64 {
        let before = match time {
            0 => 0,
            _ => self.free_units[time as usize - 1],
        };
        i64::from(self.free_units[time as usize]) - i64::from(before)
    }

    /// What speaks for a hole: as many units come free when it starts, or are taken when it ends.
    fn hole_evidence(&self, hole: Hole) -> u32 {
        let size = i64::from(hole.size);
        let is_start = self.free_change(hole.first) == size;
        let is_end = self.free_change(hole.end) == -size;
        (u32::from(is_start) + u32::from(is_end)) * edge_evidence(hole.size)
    }

    /// Makes a join, if all its parts and its hole are still there; whether they are.
    fn make_join(&mut self, join: &Join) -> bool {
        let mut parts = join.parts.iter();
        let has_parts = parts.all(|part| self.piece(part.piece).is_active);
        if !has_parts || join.hole.is_some_and(|hole| !self.takes_free(hole)) {
            return false;
        }
        let (mut first, mut end, mut size) = (u32::MAX, 0, 0);
        for part in &join.parts {
            let piece = self.piece(part.piece);
            first = first.min(piece.first);
            end = end.max(piece.end);
            size = size.max(part.offset + piece.size);
            self.deactivate(part.piece);
        }
        if let Some(hole) = join.hole {
            first = first.min(hole.first);
            end = end.max(hole.end);
            self.take_free(hole);
        }
        self.add(first, end, size, join.parts.clone());
        true
    }
}

/// Pieces of a group, joined as far as their edges suggest.
pub(super) struct JoinedGroup {
    table: PieceTable,
    style: JoinStyle,
    draws: u64,
}

impl JoinedGroup {
    /// Joins the blocks of a group, and fillers, that are to lie below a ceiling.
    pub(super) fn new(
        group: &BlockGroup,
        ceiling: u32,
        fillers: &[EmptyRectangle],
        style: JoinStyle,
        stop: StopSignal<'_>,
    ) -> JoinedGroup {
        let mut joined = JoinedGroup {
            table: PieceTable::new(group, ceiling, fillers),
            style,
            draws: 0,
        };
        while !stop.is_set() && joined.make_best_joins() {}
        joined
    }

    /// Looks at a piece or at a time, roughly.
    pub(super) fn looks(&self) -> u64 {
        self.table.looks
    }

    /// Pieces that are in no other, those of the largest area first.
    pub(super) fn whole_pieces(&self) -> Vec<u32> {
        let mut wholes: Vec<u32> = self.table.active_pieces().collect();
        wholes.sort_by_key(|&index| {
            let piece = self.table.piece(index);
            Reverse(u64::from(piece.end - piece.first) * u64::from(piece.size))
        });
        wholes
    }

    /// Shapes of some pieces, in sections that are counted without those in which none of them starts or ends.
    pub(super) fn shapes_of(&self, pieces: &[u32]) -> Vec<BlockShape> {
        let pieces = pieces.iter().map(|&index| self.table.piece(index));
        let edges: BTreeSet<u32> = pieces.clone().flat_map(|p| [p.first, p.end]).collect();
        let edges: Vec<u32> = edges.into_iter().collect();
        let section_from = |time: u32| edges.partition_point(|&edge| edge < time) as u32;
        let shape = |piece: &Piece| BlockShape {
            lo: section_from(piece.first),
            hi: section_from(piece.end),
            size: piece.size,
            mask: 0,
            residue: 0,
            fixed: None,
        };
        pieces.map(shape).collect()
    }

    /// Offsets of the first `block_count` pieces, which are the group's blocks, from those of whole pieces.
    pub(super) fn block_offsets(&self, wholes: Vec<PiecePart>, block_count: usize) -> Vec<u32> {
        let mut offsets = vec![0; block_count];
        let mut open = wholes;
        while let Some(whole) = open.pop() {
            if let Some(offset) = offsets.get_mut(whole.piece as usize) {
                *offset = whole.offset;
            }
            for part in &self.table.piece(whole.piece).parts {
                open.push(PiecePart {
                    piece: part.piece,
                    offset: whole.offset + part.offset,
                });
            }
        }
        offsets
    }

    /// Makes the joins with the most evidence; whether there were any.
    fn make_best_joins(&mut self) -> bool {
        let mut joins = self.propose_joins();
        for join in &mut joins {
            join.evidence += self.draw(u64::from(self.style.noise)) as u32;
        }
        if self.style.left_out > 0 {
            joins.retain(|_| self.draw(self.style.left_out) > 0);
        }
        joins.sort_by_key(|join| Reverse(join.evidence));

        let best_evidence = joins.first().map_or(0, |join| join.evidence);
        // Those with hardly less are made at once: to propose all again takes long.
        let least_evidence = best_evidence
            .saturating_sub(BIT)
            .max(self.style.least_evidence);
        let mut has_joined = false;
        for join in joins
            .iter()
            .take_while(|join| join.evidence >= least_evidence)
        {
            has_joined |= self.table.make_join(join);
        }
        has_joined
    }

    /// A number below another, by chance.
    fn draw(&mut self, below: u64) -> u64 {
        self.draws += 1;
        mix_bits((self.style.seed << 32) + self.draws) % below.max(1)
    }

    fn propose_joins(&mut self) -> Vec<Join> {
        let mut joins = Vec::new();
        for time in 0..self.table.times.len() as u32 {
            self.propose_stacks(time, &mut joins);
            self.propose_rows(time, &mut joins);
        }
        let pair_looks =
            pinwheels::propose_pinwheels(&self.table, self.style.has_holes, &mut joins);
        if self.style.has_holes {
            for direction in DIRECTIONS {
                self.propose_holed(direction, &mut joins);
            }
        }
        let proposal_looks = PROPOSAL_LOOKS * (self.table.times.len() + joins.len()) as u64;
        self.table.looks += pair_looks + proposal_looks;
        joins
    }

    /// Proposes to stack pieces that live from one time to another.
    fn propose_stacks(&self, time: u32, joins: &mut Vec<Join>) {
        let starting = self.table.starting(time, Direction::Forwards);
        for (index, &low) in starting.iter().enumerate() {
            let piece = self.table.piece(low);
            let end_count = self.table.ending(piece.end, Direction::Forwards).len();
            let gain = edge_evidence(piece.end - time) + self.style.stack_bonus;
            let loss = self.loss_among(starting.len() * end_count);
            for &high in &starting[index + 1..] {
                if self.table.piece(high).end == piece.end {
                    joins.push(Join {
                        evidence: gain.saturating_sub(loss),
                        parts: stack_parts(low, high, piece.size),
                        hole: None,
                    });
                }
            }
        }
    }

    /// Proposes to put pieces of one size beside each other that end and start at a time.
    fn propose_rows(&self, time: u32, joins: &mut Vec<Join>) {
        let ending = self.table.ending(time, Direction::Forwards);
        let starting = self.table.starting(time, Direction::Forwards);
        let pair_count = ending.len() * starting.len();
        for &before in ending {
            let size = self.table.piece(before).size;
            for &after in starting {
                if self.table.piece(after).size != size {
                    continue;
                }
                let mut gain = edge_evidence(size) + self.style.row_bonus;
                if pair_count == 1 {
                    gain += ONLY_PAIR;
                }
                joins.push(Join {
                    evidence: gain.saturating_sub(self.loss_among(pair_count - 1)),
                    parts: row_parts(before, after),
                    hole: None,
                });
            }
        }
    }

    /// Evidence that is lost where so many pairs of edges might coincide by chance.
    fn loss_among(&self, pair_count: usize) -> u32 {
        self.style.doubling_loss * (pair_count as u32 + 1).ilog2()
    }

    /// Proposes straight joins with a hole of the size of a piece, which follows it in time.
    fn propose_holed(&mut self, direction: Direction, joins: &mut Vec<Join>) {
        let last_time = self.table.times.len() as u32 - 1;
        let mut looks = 0;
        for index in self.table.active_pieces() {
            let piece = self.table.piece(index);
            let (_, hole_start) = piece.edges(direction);
            let mut far_time = hole_start;
            // The hole grows by one stretch at a time, as far as it is free.
            while let Some(next_time) = direction.next_time(far_time, last_time) {
                let added_stretch = far_time.min(next_time);
                far_time = next_time;
                looks += 1;
                if self.table.free_units[added_stretch as usize] < piece.size {
                    break;
                }
                let hole = Hole {
                    first: hole_start.min(far_time),
                    end: hole_start.max(far_time),
                    size: piece.size,
                };
                self.propose_with_hole(index, hole, far_time, direction, joins);
            }
        }
        self.table.looks += HOLE_LOOKS * looks;
    }

    /// Proposes to join a piece, and the hole beside it, to others.
    fn propose_with_hole(
        &self,
        index: u32,
        hole: Hole,
        far_time: u32,
        direction: Direction,
        joins: &mut Vec<Join>,
    ) {
        let piece = self.table.piece(index);
        let hole_evidence = HOLED_BONUS + self.table.hole_evidence(hole);
        for &other in self.table.ending(far_time, direction) {
            let other_piece = self.table.piece(other);
            if other_piece.edges(direction).0 == piece.edges(direction).0 {
                joins.push(Join {
                    evidence: hole_evidence,
                    parts: stack_parts(index, other, piece.size),
                    hole: Some(hole),
                });
            }
        }

        // The other way round, the other piece proposes the same.
        if direction == Direction::Backwards {
            return;
        }
        for &after in self.table.starting(far_time, direction) {
            if self.table.piece(after).size == piece.size {
                joins.push(Join {
                    evidence: hole_evidence + edge_evidence(piece.size),
                    parts: row_parts(index, after),
                    hole: Some(hole),
                });
            }
        }
    }
}

fn stack_parts(low: u32, high: u32, low_size: u32) -> Vec<PiecePart> {
    vec![
        PiecePart {
            piece: low,
            offset: 0,
        },
        PiecePart {
            piece: high,
            offset: low_size,
        },
    ]
}

fn row_parts(before: u32, after: u32) -> Vec<PiecePart> {
    vec![
        PiecePart {
            piece: before,
            offset: 0,
        },
        PiecePart {
            piece: after,
            offset: 0,
        },
    ]
}
