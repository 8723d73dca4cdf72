//! Attempts to lay out a group with its blocks joined, each in another way.

use super::super::fillers::{EmptyRectangle, FillerChoice, find_empty_rectangles};
use super::super::group::{BlockGroup, StepBudget};
use super::super::restart::{MAX_BLOCKS, SHORTEST_SEARCH, luby, search_sections};
use super::super::search::{FitOutcome, LOOKS};
use super::super::section_search::SectionOrder;
use super::{BIT, JoinStyle, JoinedGroup, PiecePart};

/// What is taken for fillers, by turns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FillerTurn {
    /// Rectangles with edges that match.
    Matched,
    /// Nothing: joins make their own holes.
    None,
    /// All bytes that may stay empty.
    All,
}

const FILLER_TURNS: [FillerTurn; 3] = [FillerTurn::Matched, FillerTurn::None, FillerTurn::All];

/// What the evidence of joins depends on besides their edges, by turns.
///
/// These and the choices below were found by trial, on instances of other seeds than those that are reported on.
struct EvidenceWeights {
    stack_bonus: u32,
    row_bonus: u32,
    doubling_loss: u32,
}

const WEIGHTS: [EvidenceWeights; 2] = [
    EvidenceWeights {
        stack_bonus: 6 * BIT,
        row_bonus: 4 * BIT,
        doubling_loss: BIT / 2,
    },
    EvidenceWeights {
        stack_bonus: 8 * BIT,
        row_bonus: 2 * BIT,
        doubling_loss: 2 * BIT,
    },
];

/// Noise by turns, hardly any at first. Five of them, so that each comes up with each choice below.
const NOISES: [u32; 5] = [BIT / 2, 2 * BIT, 4 * BIT, BIT, 6 * BIT];

/// Evidence that a join needs, by turns.
const LEAST_EVIDENCE: [u32; 4] = [2 * BIT, 4 * BIT, BIT, 6 * BIT];

/// One of so many joins, and of so many fillers, is left out, by turns; 0: none.
const LEFT_OUT: [(u64, u64); 4] = [(0, 0), (16, 16), (8, 0), (30, 6)];

/// Orders of the searches for each way to join.
const ORDERS: [SectionOrder; 2] = [SectionOrder::Random, SectionOrder::Chains];

/// Joins are promising if fewer pieces are left than all divided by this.
const PROMISING_DIVISOR: usize = 2;

/// What the attempts with one group have shown so far.
#[derive(Default)]
pub(in super::super) struct JoinAttempts {
    /// Whether one attempt has left few pieces.
    is_promising: bool,
}

impl JoinAttempts {
    /// Joins a group's blocks in the way of a round, and looks for a layout of at most `ceiling` units; returns its
    /// offsets, if any.
    ///
    /// Skips most rounds if the blocks have few edges in common. The group must have no fixed blocks.
    pub(in super::super) fn fit(
        &mut self,
        group: &BlockGroup,
        ceiling: u32,
        round: u64,
        budget: &mut StepBudget<'_>,
    ) -> Option<Vec<u32>> {
        let is_due = self.is_promising || (round + 1).is_power_of_two();
        let is_aligned = group.shapes.iter().any(|shape| shape.mask > 0);
        if !is_due || is_aligned || budget.left() == 0 {
            return None;
        }

        let fillers = choose_fillers(group, ceiling, round);
        let style = choose_style(round);
        let joined = JoinedGroup::new(group, ceiling, &fillers, style, budget.stop);
        budget.used += joined.looks().div_ceil(LOOKS);
        let wholes = joined.whole_pieces();
        let piece_count = group.shapes.len() + fillers.len();
        self.is_promising |= wholes.len() * PROMISING_DIVISOR < piece_count;
        let placed = fit_wholes(&joined, &wholes, ceiling, round, budget)?;
        Some(joined.block_offsets(placed, group.shapes.len()))
    }
}

/// How often each kind of fillers has had its turn before a round.
fn turn_of(round: u64) -> usize {
    round as usize / FILLER_TURNS.len()
}

fn choose_fillers(group: &BlockGroup, ceiling: u32, round: u64) -> Vec<EmptyRectangle> {
    let filler_turn = FILLER_TURNS[round as usize % FILLER_TURNS.len()];
    if filler_turn == FillerTurn::None {
        return Vec::new();
    }
    let choice = FillerChoice {
        takes_rest: filler_turn == FillerTurn::All,
        left_out: LEFT_OUT[turn_of(round) % LEFT_OUT.len()].1,
        seed: round,
    };
    let mut fillers = find_empty_rectangles(group, ceiling, choice);
    if group.shapes.len() + fillers.len() > MAX_BLOCKS {
        fillers.clear();
    }
    fillers
}

fn choose_style(round: u64) -> JoinStyle {
    let turn = turn_of(round);
    let filler_turn = FILLER_TURNS[round as usize % FILLER_TURNS.len()];
    let weights = &WEIGHTS[turn % WEIGHTS.len()];
    JoinStyle {
        least_evidence: LEAST_EVIDENCE[turn / 2 % LEAST_EVIDENCE.len()],
        noise: NOISES[turn % NOISES.len()],
        stack_bonus: weights.stack_bonus,
        row_bonus: weights.row_bonus,
        doubling_loss: weights.doubling_loss,
        left_out: LEFT_OUT[turn % LEFT_OUT.len()].0,
        has_holes: filler_turn == FillerTurn::None || turn.is_multiple_of(2),
        seed: round,
    }
}

/// Looks for a layout of pieces that are in no other.
fn fit_wholes(
    joined: &JoinedGroup,
    wholes: &[u32],
    ceiling: u32,
    round: u64,
    budget: &mut StepBudget<'_>,
) -> Option<Vec<PiecePart>> {
    let shapes = joined.shapes_of(wholes);
    let section_count = shapes.iter().map(|shape| shape.hi).max()?;
    let mut failures = vec![0; section_count as usize];
    let shortest_search = SHORTEST_SEARCH * shapes.len() as u64;
    let length = luby(turn_of(round) as u64 + 1);

    for order in ORDERS {
        let limit = shortest_search.saturating_mul(length).min(budget.left());
        let (outcome, offsets) =
            search_sections(&shapes, ceiling, limit, order, round, &mut failures, budget);
        match outcome {
            FitOutcome::Budget => {}
            // With these joins: without them there may be a layout.
            FitOutcome::Impossible => return None,
            FitOutcome::Found => {
                let placed = wholes.iter().zip(&offsets);
                let parts = placed.map(|(&piece, &offset)| PiecePart { piece, offset });
                return Some(parts.collect());
            }
        }
    }
    None
}
