//! What a seed stands for: a council, its network, its faults. Must not know how they play out.

use fastrand::Rng;
use zbmd_council::VoterId;

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CouncilFault {
    /// A voter is killed, and started again after a while.
    Kill { voter: usize, down_ns: u64 },
    /// Whoever conducts then is killed.
    KillConductor { down_ns: u64 },
    /// A voter stands still for a while.
    Stop { voter: usize, still_ns: u64 },
    /// Whoever conducts then stands still.
    StopConductor { still_ns: u64 },
    /// Nothing goes from one voter to another for a while.
    Cut { from: usize, to: usize, cut_ns: u64 },
    /// These voters and the others do not hear each other for a while, or one side hears and is not heard.
    Split {
        side: u32,
        way: SplitWay,
        cut_ns: u64,
    },
    /// Whoever conducts then stands still, and the next voter to vote for another is killed before that is on disk.
    StopAndKillAtVote { still_ns: u64, down_ns: u64 },
    /// Whoever conducts then cannot be heard by one voter any more; some time later all others are killed and started again,
    /// and cannot hear it either.
    StrandConductor {
        cut_ns: u64,
        later_ns: u64,
        down_ns: u64,
    },
    /// So many of a thousand messages get lost for a while.
    Lossy { per_mille: u32, lossy_ns: u64 },
}

/// Which way nothing goes between two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitWay {
    Both,
    ToSide,
    FromSide,
}

pub(crate) struct CouncilScenario {
    pub voters: Vec<VoterId>,
    pub witnesses: Vec<VoterId>,
    pub agents: usize,
    pub tick_ns: u64,
    pub compact_after: u64,
    /// Messages take up to so long; a few take 20 times as long.
    pub delay_ns: u64,
    pub write_ns: u64,
    /// From one step of a conductor to the next.
    pub step_ns: u64,
    /// How fast the clocks run, in millionths of the right pace.
    pub paces: Vec<u64>,
    /// When, and what.
    pub faults: Vec<(u64, CouncilFault)>,
    /// Faults are over then.
    pub peace_ns: u64,
}

impl CouncilScenario {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let count = if rng.u32(0..3) == 0 { 5 } else { 3 };
        let voters: Vec<VoterId> = (1..=count as u64).map(VoterId).collect();
        let mut witnesses = voters.clone();
        rng.shuffle(&mut witnesses);
        witnesses.truncate(rng.usize(0..count - 1));

        let tick_ns = [MS, 2 * MS, 5 * MS][rng.usize(0..3)];
        let peace_ns = tick_ns * rng.u64(60..240);
        let fault_count = rng.usize(0..10);
        let faults = (0..fault_count).map(|_| {
            let at_ns = rng.u64(0..peace_ns);
            (at_ns, fault(rng, count, tick_ns))
        });
        Self {
            faults: faults.collect(),
            agents: rng.usize(1..=3),
            compact_after: rng.u64(5..60),
            delay_ns: tick_ns / rng.u64(4..40),
            write_ns: tick_ns / rng.u64(2..20),
            step_ns: match rng.bool() {
                true => tick_ns / rng.u64(1..4),
                false => tick_ns * rng.u64(1..15),
            },
            paces: (0..count).map(|_| rng.u64(990_000..1_010_000)).collect(),
            voters,
            witnesses,
            tick_ns,
            peace_ns,
        }
    }
}

fn fault(rng: &mut Rng, count: usize, tick_ns: u64) -> CouncilFault {
    let long_ns = tick_ns * rng.u64(1..60);
    let voter = rng.usize(0..count);
    let other = (voter + rng.usize(1..count)) % count;
    match rng.u32(0..18) {
        0 | 1 => CouncilFault::Kill {
            voter,
            down_ns: long_ns / 8,
        },
        2 => CouncilFault::Kill {
            voter,
            down_ns: long_ns,
        },
        3 | 4 => CouncilFault::KillConductor { down_ns: long_ns },
        5 => CouncilFault::Stop {
            voter,
            still_ns: long_ns,
        },
        6..=8 => CouncilFault::StopConductor { still_ns: long_ns },
        9 | 10 => CouncilFault::Cut {
            from: voter,
            to: other,
            cut_ns: long_ns,
        },
        11 | 12 => CouncilFault::Split {
            side: rng.u32(1..(1 << count) - 1),
            way: [SplitWay::Both, SplitWay::ToSide, SplitWay::FromSide][voter % 3],
            cut_ns: long_ns,
        },
        13 | 14 => CouncilFault::StopAndKillAtVote {
            // About as long as it takes to elect another.
            still_ns: tick_ns * rng.u64(10..24),
            down_ns: long_ns / 60,
        },
        15 | 16 => CouncilFault::StrandConductor {
            cut_ns: long_ns,
            later_ns: long_ns / 2,
            down_ns: long_ns / 60,
        },
        _ => CouncilFault::Lossy {
            per_mille: rng.u32(10..300),
            lossy_ns: 2 * long_ns,
        },
    }
}
