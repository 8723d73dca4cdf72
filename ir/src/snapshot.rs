//! Calendars pinned in tests: [`assert_calendar_snapshot!`](crate::assert_calendar_snapshot) over insta.
//!
//! With the feature `snapshot`, which is for `[dev-dependencies]`. A snapshot shows change, not truth: that a plan is
//! right the verifier has said before. Fix the machine in such a test, since the one that is found differs from
//! computer to computer.
//!
//! ```
//! # use zbmd_ir::snapshot::{Times, text};
//! # fn test(program: &zbmd_ir::Program) {
//! zbmd_ir::assert_calendar_snapshot!("agc", program); // what runs where and in which order
//! zbmd_ir::assert_calendar_snapshot!("agc with times", program, Times::Kept); // and when
//! # }
//! ```

/// For the macro.
#[doc(hidden)]
pub use insta;

use crate::text::{self, TextOptions};
use crate::{Program, verify};

/// Whether a snapshot has predicted times: they change with every measurement of costs, orders do so less often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// Left out.
    #[default]
    Redacted,
    /// Periods, starts and durations.
    Kept,
}

/// What is pinned: the graph, then placement, calendars and memory of each plan.
pub fn text(program: &Program, times: Times) -> String {
    let options = TextOptions {
        times: times == Times::Kept,
    };
    // A graph that has no repetition vector is refused long before; its absence costs a column.
    let q = verify::graph::repetition(&program.graph).ok();
    let mut all = text::graph(&program.graph, q.as_deref());
    for plan in &program.plans {
        all += &format!("\n-- plan {}\n", plan.name);
        all += &text::placement(program, plan);
        all += &text::calendar(program, plan, options);
        all += &text::layout(program, plan);
    }

    all
}

/// Compares the calendars of a program with the snapshot of that name beside the test, as `insta::assert_snapshot!`
/// does: `cargo insta review` shows what changed and accepts it.
///
/// Takes the name, the program (anything that dereferences to a [`Program`](crate::Program)), and whether times are
/// kept: [`Times`](crate::snapshot::Times), by default redacted.
#[macro_export]
macro_rules! assert_calendar_snapshot {
    ($name:expr, $program:expr $(,)?) => {
        $crate::assert_calendar_snapshot!($name, $program, $crate::snapshot::Times::Redacted)
    };
    ($name:expr, $program:expr, $times:expr $(,)?) => {{
        let text = $crate::snapshot::text(&$program, $times);
        $crate::snapshot::insta::with_settings!({ omit_expression => true }, {
            $crate::snapshot::insta::assert_snapshot!($name, text);
        });
    }};
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::programs;

    /// Redacted text does not depend on times; kept text does.
    #[test]
    fn times_are_redacted() {
        let program = programs::two_devices();
        let mut slower = program.clone();
        for plan in &mut slower.plans {
            plan.period_ns *= 2;
            plan.bound_by.push_str(" and more");
        }
        let of = |times| (text(&program, times), text(&slower, times));
        let (a, b) = of(Times::Redacted);
        assert_eq!(a, b);
        let (a, b) = of(Times::Kept);
        assert_ne!(a, b);
    }

    #[test]
    fn the_macro_pins() {
        let program = programs::two_devices();
        crate::assert_calendar_snapshot!("two_devices", program);
        crate::assert_calendar_snapshot!("two_devices_with_times", program, Times::Kept);
    }
}
