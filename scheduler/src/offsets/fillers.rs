//! Fillers: blocks made of the bytes that a layout of a capacity may leave empty.
//!
//! Where every section is filled to the last byte, few blocks can cover a given cell, and a search by section
//! (`section_search`) mostly finds a layout at once. Where bytes may stay empty, any cell may, and it loses its way.
//! So the empty bytes are taken for blocks too: the bytes that are free at each moment are a profile that rises where an
//! empty rectangle begins and falls where one ends. A rise and a later fall of the same height are taken for the two
//! edges of one rectangle. A layout with fillers is one without them; that there is none says nothing.
//!
//! Dummy rectangles for empty space are common in rectangle packing, where they make a problem a perfect packing
//! (Huang & Korf 2012, "Optimal rectangle packing: an absolute placement approach").

use std::collections::BTreeMap;
use std::ops::Range;

use super::group::BlockGroup;
use super::search::{BlockShape, mix_bits};

/// An empty rectangle of time and memory, whose offset is not known.
pub(super) struct EmptyRectangle {
    pub(super) moments: Range<u64>,
    pub(super) size: u32,
}

/// Which steps of a profile are taken for the edges of empty rectangles.
#[derive(Clone, Copy, Debug)]
pub(super) struct FillerChoice {
    /// Whether what no edges explain becomes fillers too, by chance; else it stays empty.
    pub(super) takes_rest: bool,
    /// One of so many matches of edges is left out; 0: none.
    pub(super) left_out: u64,
    /// Fixes what chance decides.
    pub(super) seed: u64,
}

/// The steps of a profile of free units, made into rectangles.
struct FillerSweep {
    choice: FillerChoice,
    draws: u64,
    /// Moments, and by how many units the profile changes; 0 once it is explained.
    steps: Vec<(u64, i64)>,
    /// Units between each step and the next that are free and in no rectangle.
    rooms: Vec<i64>,
    rectangles: Vec<EmptyRectangle>,
}

/// Steps among which the two others of three edges are looked for: with more, it would take too long, and heights would
/// more often add up by chance.
const PAIR_SPAN: usize = 64;

/// Empty rectangles that a layout of a group within `ceiling` may have.
pub(super) fn find_empty_rectangles(
    group: &BlockGroup,
    ceiling: u32,
    choice: FillerChoice,
) -> Vec<EmptyRectangle> {
    let mut sweep = FillerSweep {
        choice,
        draws: 0,
        rooms: Vec::new(),
        steps: find_steps(group, ceiling),
        rectangles: Vec::new(),
    };
    sweep.find_rooms();
    sweep.match_single_edges();
    sweep.match_pairs();
    if choice.takes_rest {
        sweep.take_rest();
    }
    sweep.rectangles
}

/// Fillers for the units below `ceiling` that a group leaves empty.
pub(super) fn make_fillers(
    group: &BlockGroup,
    ceiling: u32,
    choice: FillerChoice,
) -> Vec<BlockShape> {
    let fullest_moments = find_fullest_moments(group);
    let mut fillers = Vec::new();
    for rectangle in find_empty_rectangles(group, ceiling, choice) {
        // A filler for the sections whose fullest moment it lives in.
        let section_from =
            |start: u64| fullest_moments.partition_point(|&moment| moment < start) as u32;
        let lo = section_from(rectangle.moments.start);
        let hi = section_from(rectangle.moments.end);
        if lo < hi {
            fillers.push(BlockShape {
                lo,
                hi,
                size: rectangle.size,
                mask: 0,
                residue: 0,
                fixed: None,
            });
        }
    }
    fillers
}

/// Moments at which the units that a group leaves free below `ceiling` change, and by how many.
fn find_steps(group: &BlockGroup, ceiling: u32) -> Vec<(u64, i64)> {
    let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
    for (shape, moments) in group.shapes.iter().zip(&group.moments) {
        *changes.entry(moments.start).or_default() -= i64::from(shape.size);
        *changes.entry(moments.end).or_default() += i64::from(shape.size);
    }
    if let Some(mut first) = changes.first_entry() {
        *first.get_mut() += i64::from(ceiling);
    }
    if let Some(mut last) = changes.last_entry() {
        *last.get_mut() -= i64::from(ceiling);
    }
    changes.retain(|_, change| *change != 0);
    changes.into_iter().collect()
}

/// The moment of each section at which all its blocks are live: when the last of it starts.
fn find_fullest_moments(group: &BlockGroup) -> Vec<u64> {
    let section_count = group.shapes.iter().map(|shape| shape.hi).max().unwrap_or(0);
    let mut fullest_moments = vec![0; section_count as usize];
    for (shape, moments) in group.shapes.iter().zip(&group.moments) {
        let fullest = &mut fullest_moments[shape.lo as usize];
        *fullest = moments.start.max(*fullest);
    }
    fullest_moments
}

impl FillerSweep {
    fn draw(&mut self, below: usize) -> usize {
        self.draws += 1;
        (mix_bits((self.choice.seed << 32) + self.draws) % below as u64) as usize
    }

    fn is_left_out(&mut self) -> bool {
        let one_of = self.choice.left_out as usize;
        one_of > 0 && self.draw(one_of) == 0
    }

    fn find_rooms(&mut self) {
        let mut room = 0;
        for &(_, change) in &self.steps {
            room += change;
            self.rooms.push(room);
        }
    }

    /// Adds a rectangle from one step to another.
    fn add(&mut self, steps: Range<usize>, size: i64) {
        if steps.is_empty() {
            return;
        }
        for room in &mut self.rooms[steps.clone()] {
            *room -= size;
        }
        self.rectangles.push(EmptyRectangle {
            moments: self.steps[steps.start].0..self.steps[steps.end].0,
            size: size as u32,
        });
    }

    /// Whether so many units are free from one step to another.
    fn has_room(&self, steps: Range<usize>, size: i64) -> bool {
        self.rooms[steps].iter().all(|&room| room >= size)
    }

    /// Falls, each with the last rise of its height before it.
    fn match_single_edges(&mut self) {
        for fall in 0..self.steps.len() {
            let size = -self.steps[fall].1;
            if size <= 0 {
                continue;
            }
            let rise = (0..fall).rfind(|&rise| self.steps[rise].1 == size);
            if let Some(rise) = rise
                && self.has_room(rise..fall, size)
                && !self.is_left_out()
            {
                self.add(rise..fall, size);
                self.steps[rise].1 = 0;
                self.steps[fall].1 = 0;
            }
        }
    }

    /// Two rises before a fall of their sum, and a rise before two falls of its parts.
    ///
    /// Where the second of the two lies, one rectangle may end and another begin, which the profile does not show. So
    /// the fillers end there, which excludes neither.
    fn match_pairs(&mut self) {
        for whole in 0..self.steps.len() {
            let change = self.steps[whole].1;
            let range = match change {
                0 => continue,
                1.. => whole + 1..self.steps.len().min(whole + PAIR_SPAN),
                _ => whole.saturating_sub(PAIR_SPAN)..whole,
            };
            let Some((low, high)) = self.find_pair(range, -change) else {
                continue;
            };
            let low_size = self.steps[low].1.abs();
            let high_size = self.steps[high].1.abs();
            let rectangles = match change > 0 {
                true => [(whole..low, low_size + high_size), (low..high, high_size)],
                false => [(low..high, low_size), (high..whole, low_size + high_size)],
            };
            let has_room = rectangles
                .iter()
                .all(|(steps, size)| self.has_room(steps.clone(), *size));
            if !has_room || self.is_left_out() {
                continue;
            }

            for (steps, size) in rectangles {
                if size == low_size + high_size {
                    self.add(steps.clone(), low_size);
                    self.add(steps, high_size);
                } else {
                    self.add(steps, size);
                }
            }
            for step in [whole, low, high] {
                self.steps[step].1 = 0;
            }
        }
    }

    /// Two steps in one direction that make up `sum`.
    fn find_pair(&self, range: Range<usize>, sum: i64) -> Option<(usize, usize)> {
        for high in range.clone() {
            let rest = sum - self.steps[high].1;
            if self.steps[high].1.signum() != sum.signum() || rest.signum() != sum.signum() {
                continue;
            }
            let low = (range.start..high).rfind(|&low| self.steps[low].1 == rest);
            if let Some(low) = low {
                return Some((low, high));
            }
        }
        None
    }

    /// What is left of the profile, cut by chance.
    fn take_rest(&mut self) {
        // First step and units of each open rectangle.
        let mut open: Vec<(usize, i64)> = Vec::new();
        for step in 0..self.steps.len() {
            let change = self.steps[step].1;
            if change > 0 {
                open.push((step, change));
            }
            let mut rest = (-change).max(0);
            while rest > 0 && !open.is_empty() {
                let index = self.draw(open.len());
                let (first, size) = open.swap_remove(index);
                let ended = size.min(rest);
                self.add(first..step, ended);
                if size > ended {
                    self.add(first..step, size - ended);
                    open.push((step, size - ended));
                }
                rest -= ended;
            }
        }
    }
}
