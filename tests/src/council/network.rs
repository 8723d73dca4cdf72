//! Links between voters, and when a message comes. Must not know what is in it.

use fastrand::Rng;

use super::scenario::SplitWay;

pub(crate) struct Network {
    count: usize,
    /// From each to each: nothing goes through before then.
    cut_until_ns: Vec<u64>,
    lossy_until_ns: u64,
    per_mille: u32,
    delay_ns: u64,
}

impl Network {
    pub(crate) fn new(count: usize, delay_ns: u64) -> Self {
        Self {
            count,
            cut_until_ns: vec![0; count * count],
            lossy_until_ns: 0,
            per_mille: 0,
            delay_ns,
        }
    }

    pub(crate) fn cut(&mut self, from: usize, to: usize, until_ns: u64) {
        let cut = &mut self.cut_until_ns[from * self.count + to];
        *cut = until_ns.max(*cut);
    }

    /// Cuts all links between these voters and the others, one way or both.
    pub(crate) fn split(&mut self, side: u32, way: SplitWay, until_ns: u64) {
        let is_there = |voter: usize| side & (1 << voter) != 0;
        for from in 0..self.count {
            for to in (0..self.count).filter(|to| is_there(from) != is_there(*to)) {
                let is_cut = match way {
                    SplitWay::Both => true,
                    SplitWay::ToSide => is_there(to),
                    SplitWay::FromSide => is_there(from),
                };
                if is_cut {
                    self.cut(from, to, until_ns);
                }
            }
        }
    }

    pub(crate) fn make_lossy(&mut self, per_mille: u32, until_ns: u64) {
        (self.per_mille, self.lossy_until_ns) = (per_mille, until_ns);
    }

    /// All faults are over.
    pub(crate) fn heal(&mut self) {
        self.cut_until_ns.fill(0);
        self.lossy_until_ns = 0;
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize, now_ns: u64) -> bool {
        self.cut_until_ns[from * self.count + to] > now_ns
    }

    /// How long a message takes, for each time that it comes: never, once, and now and then twice.
    pub(crate) fn delays(&self, from: usize, to: usize, now_ns: u64, rng: &mut Rng) -> Vec<u64> {
        let is_lossy = now_ns < self.lossy_until_ns;
        let is_lost = is_lossy && rng.u32(0..1000) < self.per_mille;
        if is_lost || self.is_cut(from, to, now_ns) {
            return Vec::new();
        }
        let copies = if is_lossy && rng.u32(0..20) == 0 {
            2
        } else {
            1
        };
        (0..copies).map(|_| self.delay(rng)).collect()
    }

    pub(crate) fn delay(&self, rng: &mut Rng) -> u64 {
        let delay_ns = rng.u64(self.delay_ns / 4..=self.delay_ns);
        match rng.u32(0..100) {
            0 => 20 * delay_ns,
            _ => delay_ns,
        }
    }
}
