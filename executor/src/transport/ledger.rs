//! Borders: which blocks of an epoch are done for good, and where the tokens that lie on channels at a border are kept.
//! Pure arithmetic, shared by workers, supervisor and simulation. Must not know memory.
//!
//! Every `every` blocks the workers save the tokens that lie on the channels: each its own, when its calendar comes to
//! that border, into area `border / every % areas`. A border is *committed* when every worker has passed it, for then
//! its area is whole, and all sinks have been given the tokens of the blocks before it. A worker may save border b only
//! when border `b - (areas - 1) * every` is committed: so the committed area is never written. That wait cannot block
//! for ever as long as `every >= stages`: the workers behind need nothing of the waiting one but what it did in
//! periods that are over (Chandy & Lamport 1985 take such a cut with markers; a calendar knows where it lies).

/// Where the borders of an epoch lie. All borders and blocks are counted from the start of the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borders {
    /// Blocks from one saved border to the next, at least `stages`.
    every: u64,
    /// Stages of the plan.
    stages: u64,
    /// Areas, at least 2.
    areas: u64,
}

impl Borders {
    /// Borders every `every` blocks (or `stages`, where that is more), kept in `areas` areas (at least 2).
    pub fn new(every: u64, stages: u64, areas: u64) -> Self {
        let stages = stages.max(1);
        Self {
            every: every.max(stages),
            stages,
            areas: areas.max(2),
        }
    }

    /// Blocks from one border to the next.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// Areas for saved borders.
    pub fn areas(&self) -> u64 {
        self.areas
    }

    /// Whether tokens are saved at this border.
    pub fn is_saved(&self, border: u64) -> bool {
        border > 0 && border.is_multiple_of(self.every)
    }

    /// The area of a saved border.
    pub fn area(&self, border: u64) -> u64 {
        border / self.every % self.areas
    }

    /// The last saved border that a worker has passed after `periods` periods: 0, the start, if none.
    pub fn passed(&self, periods: u64) -> u64 {
        let blocks = (periods + 1).saturating_sub(self.stages);
        blocks - blocks % self.every
    }

    /// The last committed border, given the periods that each worker has done. 0 is always committed: it is the state
    /// that the epoch began with.
    pub fn committed(&self, periods: impl IntoIterator<Item = u64>) -> u64 {
        periods
            .into_iter()
            .map(|p| self.passed(p))
            .min()
            .unwrap_or(0)
    }

    /// The border that must be committed before `border` may be saved.
    pub fn needs(&self, border: u64) -> u64 {
        border.saturating_sub((self.areas - 1) * self.every)
    }

    /// Whether saving `border` would write over the area of `held`, which somebody is reading.
    pub fn collides(&self, border: u64, held: u64) -> bool {
        held != 0 && held < border && self.area(border) == self.area(held)
    }
}

/// How much of a stream's tokens an epoch finds given out already when it begins at an earlier border: it makes them
/// again, bit for bit, and drops them. Tokens are counted from the start of the run: those given out, and those that lie
/// before the border.
///
/// # Panics
/// If more tokens lie before the border than were given out: a border is committed only after its tokens are out.
pub fn given_out_before(released: u64, at_border: u64) -> u64 {
    assert!(
        released >= at_border,
        "border at token {at_border}, only {released} given out"
    );
    released - at_border
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_border_is_passed_when_its_last_stage_is() {
        for (every, stages, periods, passed) in [
            (1, 1, 0, 0),
            (1, 1, 1, 1),
            (1, 1, 7, 7),
            (4, 1, 3, 0),
            (4, 1, 4, 4),
            (4, 3, 5, 0),
            (4, 3, 6, 4),
            // Fewer blocks than stages between borders are too few.
            (1, 3, 4, 0),
            (1, 3, 5, 3),
        ] {
            let borders = Borders::new(every, stages, 2);
            assert_eq!(
                borders.passed(periods),
                passed,
                "{borders:?} after {periods}"
            );
        }
    }

    #[test]
    fn the_committed_area_is_never_written() {
        for (every, stages, areas) in [(1, 1, 2), (3, 2, 2), (4, 4, 3)] {
            let borders = Borders::new(every, stages, areas);
            for border in (1..=20).map(|n| n * borders.every()) {
                assert!(borders.is_saved(border));
                let needs = borders.needs(border);
                // Whatever is committed from `needs` on up to the border before lies in another area.
                for committed in (needs..border).filter(|c| *c > 0 && borders.is_saved(*c)) {
                    assert_ne!(borders.area(committed), borders.area(border));
                    assert!(!borders.collides(border, committed));
                }
            }
            assert!(borders.collides((areas + 1) * borders.every(), borders.every()));
        }
    }

    #[test]
    fn the_slowest_worker_decides() {
        let borders = Borders::new(2, 2, 2);
        assert_eq!(borders.committed([9, 4, 12]), 2);
        assert_eq!(borders.committed([]), 0);
    }
}
