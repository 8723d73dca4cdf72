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

/// How much later than alone a program's blocks may come, at most, because of others: programs whose workers have these
/// reservations on so many cores. For each program, in nanoseconds; `None` where more is reserved than there is.
///
/// The thread whose reservation has the earliest deadline runs first, on whatever core. So a job is done at most
/// `x + e` after its deadline, where e is its time and `x = (E - e_min) / (m - U)`: m cores, E the sum of the m - 1 longest
/// times, U that of the m - 2 largest shares (Devi & Anderson, *Tardiness bounds under global EDF scheduling*, 2005); on one
/// core at its deadline. Alone it has a core at once, and so has every worker where there are enough cores for all. A
/// block passes through all workers of its program.
///
/// Threads that move tokens have no reservation, and run where a core has no worker at work, so they wait as long as workers
/// keep all cores busy at most. What a source waits for while its own program computes delays nothing, so it waits for
/// the workers of others; a sink waits for those of all.
pub fn interference_ns(programs: &[Vec<CpuReservation>], cores: usize) -> Option<Vec<u64>> {
    let all: Vec<&CpuReservation> = programs.iter().flatten().collect();
    let in_use: f64 = all.iter().map(|reservation| reservation.share()).sum();
    if in_use >= cores as f64 {
        return None;
    }
    let common_ns = common_wait_ns(&all, cores);
    // Just before all cores are busy, one of them is not: then fewer workers than cores have anything to do.
    let all_busy_ns = busy_ns(&all, common_ns, cores, cores - 1);
    let waits = programs.iter().enumerate().map(|(place, program)| {
        if program.len() == all.len() {
            return 0;
        }
        let others = programs.iter().enumerate();
        let others = others.filter(|(other, _)| *other != place);
        let others: Vec<&CpuReservation> = others.flat_map(|(_, program)| program).collect();
        let own_ns: u64 = match all.len() <= cores {
            true => 0,
            false => program.iter().map(|own| wait_ns(own, common_ns)).sum(),
        };
        let source_ns = busy_ns(&others, common_ns, cores, others.len()).min(all_busy_ns);
        own_ns + source_ns + all_busy_ns
    });
    Some(waits.collect())
}

/// What x is; `None` where no job is late: on one core, and where there are enough for all.
fn common_wait_ns(all: &[&CpuReservation], cores: usize) -> Option<u64> {
    if cores < 2 || all.len() <= cores {
        return None;
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
    Some(common_ns.ceil() as u64)
}

fn wait_ns(own: &CpuReservation, common_ns: Option<u64>) -> u64 {
    let slack_ns = own.period_ns.saturating_sub(own.runtime_ns);
    match common_ns {
        Some(common_ns) => slack_ns + own.runtime_ns + common_ns,
        None => slack_ns,
    }
}

/// How long workers may keep all cores busy at once: the least time that is as long as all their jobs take on all cores that may
/// run in it. So many of the workers may have jobs in it that began before, as long before as they may be late; of the others only those
/// that begin in it count (Baruah, *Techniques for multiprocessor global schedulability analysis*, 2007).
fn busy_ns(
    workers: &[&CpuReservation],
    common_ns: Option<u64>,
    cores: usize,
    carrying: usize,
) -> u64 {
    if workers.len() < cores {
        return 0;
    }
    let jobs_ns = |worker: &CpuReservation, window_ns: u64| {
        let jobs = window_ns / worker.period_ns.max(1) + 1;
        jobs.saturating_mul(worker.runtime_ns)
    };
    let needed_ns = |window_ns: u64| -> u64 {
        let begun_ns: u64 = workers
            .iter()
            .map(|worker| jobs_ns(worker, window_ns))
            .sum();
        let earlier = workers.iter().map(|worker| {
            let before_ns = match common_ns {
                Some(common_ns) => worker.period_ns + common_ns,
                None => worker.period_ns.saturating_sub(worker.runtime_ns),
            };
            jobs_ns(worker, window_ns + before_ns) - jobs_ns(worker, window_ns)
        });
        let mut earlier_ns: Vec<u64> = earlier.collect();
        earlier_ns.sort_unstable_by(|a, b| b.cmp(a));
        let carried_ns: u64 = earlier_ns.iter().take(carrying).sum();
        (begun_ns + carried_ns).div_ceil(cores as u64)
    };
    // They need less than all cores, so it ends; where they need nearly all, it may be long.
    const MAX_STEPS: usize = 100_000;
    let mut window_ns = 0;
    for _ in 0..MAX_STEPS {
        let next_ns = needed_ns(window_ns);
        if next_ns <= window_ns {
            break;
        }
        window_ns = next_ns;
    }
    window_ns
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
        // No worker waits, and no source; a sink for two jobs of both, while its worker computes the next block.
        check(&[burner.clone(), burner.clone()], 2, Some(vec![6, 6]));
        check(&[burner.clone(), burner.clone()], 3, Some(vec![0, 0]));
        check(&[burner.clone(), burner.clone()], 1, None);
        // On one core up to the deadline, 5 - 2 and 10 - 3; a source for two jobs of the other; a sink for two jobs of the first and one
        // of the second, as nobody has a job from before.
        check(
            &[vec![of(2, 5)], vec![of(3, 10)]],
            1,
            Some(vec![3 + 6 + 7, 7 + 4 + 7]),
        );
        // Three alike on two cores: 3 after the deadline, 5 - 3 + 3; a source for three jobs of both others, a sink for five of each and
        // one from before.
        check(&vec![burner.clone(); 3], 2, Some(vec![5 + 9 + 24; 3]));
        // The longest is 8 and the shortest 2: (8 - 2) / 2 more. Sources wait for three jobs each of 2 and 5, four of 8 and 5, three of 8
        // and 2, sinks for four of each and one of 8 from before.
        let three = [vec![of(8, 10)], vec![of(2, 10)], vec![of(5, 10)]];
        check(
            &three,
            2,
            Some(vec![
                2 + 8 + 3 + 11 + 34,
                8 + 2 + 3 + 26 + 34,
                5 + 5 + 3 + 15 + 34,
            ]),
        );
    }
}
