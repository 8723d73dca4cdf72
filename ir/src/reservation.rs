//! Time of a processor that threads of a run are promised, and how long programs that keep to such promises wait for each
//! other. Pure arithmetic: knows no system.

use std::fmt;

use crate::response::block_release_ns;
use crate::{Calendar, Graph, Plan, walk};

/// What is asked for beyond the planned time, in parts of it: plans are predictions. A thread that needs more gets it while
/// others do not use what is theirs.
const HEADROOM: f64 = 0.02;
/// Periods that systems take are between a tenth of a millisecond and four seconds; shorter ones cost switches.
const MIN_PERIOD_NS: f64 = 1e6;
const MAX_PERIOD_NS: f64 = 1e9;

/// Of a core, for a thread that moves the tokens of a stream.
const STREAM_SHARE: f64 = 0.01;
/// Such a thread that has had its time waits for the rest of its period: a part of the time from block to block.
const STREAM_PERIODS: f64 = 4.0;
const MAX_STREAM_PERIOD_NS: f64 = 1e7;

/// Time of a core that a thread is promised, and held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuReservation {
    /// Time of a core…
    pub runtime_ns: u64,
    /// …in each period of this length.
    pub period_ns: u64,
}

impl CpuReservation {
    /// What a calendar needs in its plan; `None` where no stream says how fast the program is to be.
    pub fn of_calendar(graph: &Graph, plan: &Plan, calendar: &Calendar) -> Option<Self> {
        let release_ns = block_release_ns(graph, plan)?;
        let planned_ns = planned_calendar_ns(calendar) as f64;
        Some(Self::for_blocks(planned_ns, release_ns))
    }

    /// What a thread needs that does `planned_ns` of work in each block, of which one comes every `release_ns`.
    pub fn for_blocks(planned_ns: f64, release_ns: f64) -> Self {
        let share = planned_ns * (1.0 + HEADROOM) / release_ns;
        let period_ns = match release_ns {
            // As many blocks as fit, so that a reservation holds whole ones.
            short if short < MIN_PERIOD_NS => short * (MIN_PERIOD_NS / short).ceil(),
            long => long.min(MAX_PERIOD_NS),
        };
        Self {
            runtime_ns: (share.min(1.0) * period_ns) as u64,
            period_ns: period_ns as u64,
        }
    }

    /// What a thread needs that moves the tokens of a stream, of which a block comes every `release_ns`: little, and soon.
    pub fn of_stream(release_ns: f64) -> Self {
        let period_ns = (release_ns / STREAM_PERIODS).clamp(MIN_PERIOD_NS, MAX_STREAM_PERIOD_NS);
        Self {
            runtime_ns: (STREAM_SHARE * period_ns) as u64,
            period_ns: period_ns as u64,
        }
    }

    /// Part of a core.
    pub fn share(&self) -> f64 {
        self.runtime_ns as f64 / self.period_ns.max(1) as f64
    }
}

impl fmt::Display for CpuReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |ns: u64| ns as f64 / 1e6;
        write!(
            f,
            "{:.3} ms of a core in each {:.3} ms ({:.1} %)",
            millis(self.runtime_ns),
            millis(self.period_ns),
            100.0 * self.share()
        )
    }
}

/// How long all slots of a period are planned to take together.
pub fn planned_calendar_ns(calendar: &Calendar) -> u64 {
    let mut planned_ns: u64 = 0;
    for lane in &calendar.lanes {
        walk::visit_slots(&lane.entries, |visit| {
            let slot_ns = visit.slot.duration_ns.saturating_mul(visit.executions);
            planned_ns = planned_ns.saturating_add(slot_ns);
        });
    }
    planned_ns
}

/// How much later than alone a program's blocks may come, at most, because of others: programs whose threads have these
/// reservations on so many cores. For each program, in nanoseconds; `None` where more is reserved than there is.
///
/// The thread whose reservation has the earliest deadline runs first, on whatever core. So a job is done at most
/// `x + e` after its deadline, where e is its time and `x = (E - e_min) / (m - U)`: m cores, E the sum of the m - 1 longest
/// times, U that of the m - 2 largest shares (Devi & Anderson, *Tardiness bounds under global EDF scheduling*, 2005); on one
/// core at its deadline. Alone it has a core at once, and so has every thread where there are enough cores for all. A
/// block passes through all threads of its program.
pub fn interference_ns(programs: &[Vec<CpuReservation>], cores: usize) -> Option<Vec<u64>> {
    let all: Vec<&CpuReservation> = programs.iter().flatten().collect();
    let in_use: f64 = all.iter().map(|reservation| reservation.share()).sum();
    if in_use > cores as f64 {
        return None;
    }
    let is_alone = |program: &[CpuReservation]| program.len() == all.len();
    let waits = |program: &Vec<CpuReservation>| match all.len() <= cores || is_alone(program) {
        true => 0,
        false => program.iter().map(|own| wait_ns(own, &all, cores)).sum(),
    };
    Some(programs.iter().map(waits).collect())
}

fn wait_ns(own: &CpuReservation, all: &[&CpuReservation], cores: usize) -> u64 {
    let slack_ns = own.period_ns.saturating_sub(own.runtime_ns);
    if cores < 2 {
        return slack_ns;
    }
    let mut runtimes: Vec<u64> = all
        .iter()
        .map(|reservation| reservation.runtime_ns)
        .collect();
    runtimes.sort_unstable_by(|a, b| b.cmp(a));
    let mut shares: Vec<f64> = all.iter().map(|reservation| reservation.share()).collect();
    shares.sort_by(|a, b| b.total_cmp(a));

    let longest_ns: u64 = runtimes.iter().take(cores - 1).sum();
    let shortest_ns = runtimes.last().copied().unwrap_or(0);
    let largest: f64 = shares.iter().take(cores - 2).sum();
    let common_ns = longest_ns.saturating_sub(shortest_ns) as f64 / (cores as f64 - largest);
    slack_ns + own.runtime_ns + common_ns.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::programs;
    use crate::{Entry, PlanId, Value};

    fn reservation(sample_rate: Option<f64>, busy_ns: u64) -> Option<CpuReservation> {
        let mut program = programs::chain();
        if let Some(rate) = sample_rate {
            let source = program.graph.find("in").expect("there");
            let params = &mut program.graph.actors[source].params;
            params.insert("sample_rate".into(), Value::Float(rate));
        }
        let plan = &program.plans[PlanId(0)];
        let mut calendar = plan.calendars[0].clone();
        for lane in &mut calendar.lanes {
            for entry in &mut lane.entries {
                if let Entry::Slot(slot) = entry {
                    slot.duration_ns = 0;
                }
            }
        }
        if let Some(Entry::Slot(slot)) = calendar.lanes[0].entries.first_mut() {
            slot.duration_ns = busy_ns;
        }
        CpuReservation::of_calendar(&program.graph, plan, &calendar)
    }

    #[test]
    fn a_reservation_has_a_fiftieth_more_than_the_plan_and_no_short_periods() {
        assert_eq!(reservation(None, 5), None);
        let of = |rate, busy_ns| reservation(Some(rate), busy_ns).expect("a rate");
        let half = CpuReservation::for_blocks(5e6, 1e7);
        assert_eq!((half.runtime_ns, half.period_ns), (5_100_000, 10_000_000));
        let slow = of(1.0, 100_000_000);
        let share = slow.share();
        assert!(
            slow.period_ns <= 1_000_000_000 && share > 0.0 && share <= 1.0,
            "{slow}"
        );
        let fast = of(1e6, 400);
        assert!(fast.period_ns >= 1_000_000, "{fast}");
        // More than all of a core cannot be had.
        let too_much = of(1e6, 1_000_000_000);
        assert_eq!(too_much.share(), 1.0);
    }

    #[test]
    fn programs_wait_for_each_other_only_where_cores_are_too_few() {
        let of = |runtime_ns, period_ns| CpuReservation {
            runtime_ns,
            period_ns,
        };
        let burner = vec![of(3, 5)];
        let check = |programs: &[Vec<CpuReservation>], cores, expect: Option<Vec<u64>>| {
            assert_eq!(
                interference_ns(programs, cores),
                expect,
                "{programs:?} on {cores}"
            );
        };
        check(std::slice::from_ref(&burner), 1, Some(vec![0]));
        check(&[burner.clone(), burner.clone()], 2, Some(vec![0, 0]));
        check(&[burner.clone(), burner.clone()], 1, None);
        // On one core up to the deadline, 5 - 2 and 10 - 3.
        check(&[vec![of(2, 5)], vec![of(3, 10)]], 1, Some(vec![3, 7]));
        // Three alike on two cores: 3 after the deadline, 5 - 3 + 3.
        check(&vec![burner.clone(); 3], 2, Some(vec![5; 3]));
        // The longest is 8 and the shortest 2: (8 - 2) / 2 more.
        let three = [vec![of(8, 10)], vec![of(2, 10)], vec![of(5, 10)]];
        check(&three, 2, Some(vec![2 + 8 + 3, 8 + 2 + 3, 5 + 5 + 3]));
    }
}
