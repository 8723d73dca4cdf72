//! How a search is limited, watched and stopped. The crate has no clock: the caller brings one.

/// How hard to try. Each level is a fixed amount of work, so the same input gives the same result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Constructive heuristics and a short local search: milliseconds.
    Fast,
    /// Local search until it no longer pays and a short exact search: about a second at the very most for 50 tasks.
    #[default]
    Balanced,
    /// Exact search until optimality is proved or the node limit is reached.
    Exact,
}

/// The state of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What works at the moment.
    pub stage: &'static str,
    /// Cost of the best solution so far.
    pub best: u64,
    /// Proved lower bound on the cost.
    pub bound: u64,
    /// Iterations and nodes so far.
    pub work: u64,
}

impl Progress {
    /// How far the best may be from the optimum, as a fraction of the bound; 0 when proved optimal.
    pub fn gap(&self) -> f64 {
        gap(self.best, self.bound)
    }
}

/// `best / bound - 1`, at least 0; infinite where the bound is 0 and the best is not.
pub fn gap(best: u64, bound: u64) -> f64 {
    match (best.saturating_sub(bound), bound) {
        (0, _) => 0.0,
        (_, 0) => f64::INFINITY,
        (above, _) => above as f64 / bound as f64,
    }
}

/// The caller's hooks: `stop` is asked every few hundred steps and ends the search with the best so far (a clock, a
/// signal; the result then depends on when it came), `progress` is told of each improvement and now and then.
pub struct Control<'a> {
    /// Whether to stop.
    pub stop: &'a dyn Fn() -> bool,
    /// Told how the search stands.
    pub progress: &'a mut dyn FnMut(Progress),
}

impl Control<'_> {
    pub(crate) fn stopped(&self) -> bool {
        (self.stop)()
    }

    pub(crate) fn report(&mut self, stage: &'static str, best: u64, bound: u64, work: u64) {
        (self.progress)(Progress {
            stage,
            best,
            bound,
            work,
        });
    }
}

/// Runs a search with hooks that never stop it and hear nothing.
pub fn unattended<T>(run: impl FnOnce(&mut Control<'_>) -> T) -> T {
    run(&mut Control {
        stop: &|| false,
        progress: &mut |_| {},
    })
}
