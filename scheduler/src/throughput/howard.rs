//! Maximum cycle ratio of a graph of firings, by policy iteration in exact integers.
//!
//! Source: Cochet-Terrasson, Cohen, Gaubert, McGettrick & Quadrat 1998, "Numerical computation of spectral elements
//! in max-plus algebra". The variant here keeps one chain: whatever does not hang on the best cycle of a policy is
//! hung on it by a search, so that the ratio grows with every new cycle and equal ratios never alternate.

use super::Period;

/// A dependency of a firing: it starts at least `time` after the start of `from`, `tokens` iterations (in scaled
/// units) earlier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dep {
    pub(crate) from: u32,
    /// What made it: an index of a link, or [`Dep::ORDER`].
    pub(crate) link: u32,
    pub(crate) tokens: i64,
    pub(crate) time: u64,
}

impl Dep {
    /// Firings of one actor start in order.
    pub(crate) const ORDER: u32 = u32::MAX;
}

/// Firings and their dependencies.
#[derive(Debug, Default)]
pub(crate) struct DepGraph {
    /// Firing v has the dependencies `deps[first[v]..first[v + 1]]`.
    first: Vec<u32>,
    deps: Vec<Dep>,
}

/// The cycle that bounds the period: its dependencies in order, each with the firing that has it, which is the
/// `from` of the next.
#[derive(Debug)]
pub(crate) struct Critical {
    pub(crate) deps: Vec<(u32, Dep)>,
    pub(crate) time: i128,
    /// Not positive: the cycle can never run.
    pub(crate) tokens: i128,
}

/// A number outgrew 128 bits.
#[derive(Debug)]
pub(crate) struct Overflow;

impl DepGraph {
    pub(crate) fn clear(&mut self) {
        self.first.clear();
        self.first.push(0);
        self.deps.clear();
    }

    /// Adds a dependency of the firing that [`DepGraph::close`] is called for next.
    pub(crate) fn push(&mut self, dep: Dep) {
        self.deps.push(dep);
    }

    /// Ends the dependencies of one firing.
    pub(crate) fn close(&mut self) {
        self.first.push(self.deps.len() as u32);
    }

    pub(crate) fn len(&self) -> usize {
        self.deps.len()
    }

    fn nodes(&self) -> usize {
        self.first.len().saturating_sub(1)
    }

    fn of(&self, v: usize) -> &[Dep] {
        &self.deps[self.first[v] as usize..self.first[v + 1] as usize]
    }
}

/// Which of its dependencies each firing waits for, by position among them.
pub(crate) type Policy = Vec<u32>;

/// The cycle of greatest `time / tokens`, or any cycle without tokens.
///
/// The graph must be strongly connected, with at least one dependency. `policy` is where to start and becomes where
/// it ended: for a graph of the same shape, a good start saves most of the few passes.
pub(crate) fn critical(graph: &DepGraph, policy: &mut Policy) -> Result<Critical, Overflow> {
    let fits = |(v, &choice): (usize, &u32)| (choice as usize) < graph.of(v).len();
    if policy.len() != graph.nodes() || !policy.iter().enumerate().all(fits) {
        policy.clear();
        policy.extend((0..graph.nodes()).map(|v| first_choice(graph.of(v))));
    }
    // Tokens of whole iterations share a large factor: without it, most sums fit into 64 bits.
    let unit = graph
        .deps
        .iter()
        .fold(0, |g, d| gcd(g, d.tokens.unsigned_abs()))
        .max(1) as i64;
    let mut state = Iteration {
        graph,
        unit,
        policy,
        mark: vec![0; graph.nodes()],
        path: Vec::new(),
        narrow: Vec::new(),
        wide: Vec::new(),
    };
    loop {
        let best = state.best_cycle();
        if best.tokens <= 0 {
            return Ok(best);
        }
        let better = match state.weights(&best)? {
            (num, den, true) => {
                let mut values = std::mem::take(&mut state.narrow);
                let better = state.pass(&best, &mut values, num as i64, den as i64);
                state.narrow = values;
                better
            }
            (num, den, false) => {
                let mut values = std::mem::take(&mut state.wide);
                let better = state.pass(&best, &mut values, num, den);
                state.wide = values;
                better
            }
        };
        if !better {
            return Ok(best);
        }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The dependency with the fewest tokens, of those the one with most time.
fn first_choice(deps: &[Dep]) -> u32 {
    let key = |i: &u32| {
        let dep = &deps[*i as usize];
        (dep.tokens, std::cmp::Reverse(dep.time))
    };
    (0..deps.len() as u32).min_by_key(key).unwrap_or(0)
}

fn ratio(cycle: &Critical) -> Period {
    let tokens = cycle.tokens.max(1).unsigned_abs();
    Period::new(cycle.time.max(0).unsigned_abs(), tokens).unwrap_or(Period::ZERO)
}

/// Start times relative to the root, times the denominator of the ratio.
trait Value: Copy + Default + Ord + std::ops::Add<Output = Self> {
    fn weight(dep: &Dep, unit: i64, num: Self, den: Self) -> Self;
}

impl Value for i64 {
    fn weight(dep: &Dep, unit: i64, num: i64, den: i64) -> i64 {
        let tokens = if unit == 1 {
            dep.tokens
        } else {
            dep.tokens / unit
        };
        dep.time as i64 * den - num * tokens
    }
}

impl Value for i128 {
    fn weight(dep: &Dep, unit: i64, num: i128, den: i128) -> i128 {
        i128::from(dep.time) * den - num * i128::from(dep.tokens / unit)
    }
}

struct Iteration<'a> {
    graph: &'a DepGraph,
    /// Divides the tokens of all dependencies.
    unit: i64,
    policy: &'a mut Policy,
    /// 0: not seen; otherwise the walk that saw the firing, or whether it has its value.
    mark: Vec<u32>,
    path: Vec<u32>,
    narrow: Vec<i64>,
    wide: Vec<i128>,
}

const HAS_VALUE: u32 = u32::MAX;

impl Iteration<'_> {
    fn choice(&self, v: usize) -> &Dep {
        &self.graph.deps[(self.graph.first[v] + self.policy[v]) as usize]
    }

    /// The best cycle that the policy closes; one without tokens as soon as there is one.
    fn best_cycle(&mut self) -> Critical {
        self.mark.fill(0);
        let mut best: Option<(Period, Critical)> = None;
        for start in 0..self.policy.len() {
            let stamp = start as u32 + 1;
            let mut at = start;
            while self.mark[at] == 0 {
                self.mark[at] = stamp;
                at = self.choice(at).from as usize;
            }
            if self.mark[at] != stamp {
                continue;
            }
            let cycle = self.cycle_through(at);
            if cycle.tokens <= 0 {
                return cycle;
            }
            let ratio = ratio(&cycle);
            if best.as_ref().is_none_or(|(known, _)| ratio > *known) {
                best = Some((ratio, cycle));
            }
        }
        let none = Critical {
            deps: Vec::new(),
            time: 0,
            tokens: 1,
        };
        best.map_or(none, |(_, cycle)| cycle)
    }

    fn cycle_through(&self, node: usize) -> Critical {
        let mut cycle = Critical {
            deps: Vec::new(),
            time: 0,
            tokens: 0,
        };
        let mut at = node;
        loop {
            let dep = *self.choice(at);
            cycle.time += i128::from(dep.time);
            cycle.tokens += i128::from(dep.tokens);
            cycle.deps.push((at as u32, dep));
            at = dep.from as usize;
            if at == node {
                cycle.deps.reverse();
                return cycle;
            }
        }
    }

    /// The cycle's ratio as numerator and denominator over the unit, and whether sums of weights along any path fit
    /// into 64 bits.
    fn weights(&self, cycle: &Critical) -> Result<(i128, i128, bool), Overflow> {
        let tokens = cycle.tokens / i128::from(self.unit);
        let ratio = ratio(&Critical {
            deps: Vec::new(),
            time: cycle.time,
            tokens,
        });
        let num = i128::try_from(ratio.num()).map_err(|_| Overflow)?;
        let den = i128::try_from(ratio.den()).map_err(|_| Overflow)?;
        let time = self.graph.deps.iter().map(|d| d.time).max().unwrap_or(0);
        let tokens = self
            .graph
            .deps
            .iter()
            .map(|d| d.tokens.unsigned_abs())
            .max()
            .unwrap_or(0);
        let by_time = i128::from(time).checked_mul(den).ok_or(Overflow)?;
        let by_tokens = i128::from(tokens / self.unit.unsigned_abs())
            .checked_mul(num)
            .ok_or(Overflow)?;
        let largest = by_time.checked_add(by_tokens).ok_or(Overflow)?;
        let sum = largest
            .checked_mul(2 * (self.graph.nodes() as i128 + 1))
            .ok_or(Overflow)?;
        Ok((num, den, sum < i128::from(i64::MAX)))
    }

    /// Values under the policy with its best cycle, and the policy that is better for them; whether there is one.
    fn pass<V: Value>(&mut self, best: &Critical, values: &mut Vec<V>, num: V, den: V) -> bool {
        let Some(&(root, _)) = best.deps.first() else {
            return false;
        };
        values.resize(self.policy.len(), V::default());
        self.evaluate(root as usize, values, num, den);
        self.improve(values, num, den)
    }

    /// Values of all firings under the policy, after what hangs on other cycles was hung on the root's.
    fn evaluate<V: Value>(&mut self, root: usize, values: &mut [V], num: V, den: V) {
        self.mark.fill(0);
        (self.mark[root], values[root]) = (HAS_VALUE, V::default());
        let mut astray = false;
        for start in 0..self.policy.len() {
            let mut at = start;
            while self.mark[at] == 0 {
                self.mark[at] = start as u32 + 1;
                self.path.push(at as u32);
                at = self.choice(at).from as usize;
            }
            if self.mark[at] != HAS_VALUE {
                astray = true;
                self.path.clear();
                continue;
            }
            while let Some(v) = self.path.pop() {
                let dep = self.choice(v as usize);
                let value = values[dep.from as usize] + V::weight(dep, self.unit, num, den);
                values[v as usize] = value;
                self.mark[v as usize] = HAS_VALUE;
            }
        }
        if astray {
            self.adopt(values, num, den);
        }
    }

    /// Hangs every firing without a value on one that has one, by a search along all dependencies.
    fn adopt<V: Value>(&mut self, values: &mut [V], num: V, den: V) {
        let nodes = self.policy.len();
        let mut first = vec![0u32; nodes + 1];
        for dep in &self.graph.deps {
            first[dep.from as usize + 1] += 1;
        }
        for v in 0..nodes {
            first[v + 1] += first[v];
        }
        let mut next = first.clone();
        let mut out = vec![0u32; self.graph.deps.len()];
        for v in 0..nodes {
            for dep in self.graph.of(v) {
                let at = &mut next[dep.from as usize];
                out[*at as usize] = v as u32;
                *at += 1;
            }
        }
        let mut reached: Vec<u32> = (0..nodes as u32)
            .filter(|&v| self.mark[v as usize] == HAS_VALUE)
            .collect();
        let mut done = 0;
        while done < reached.len() {
            let u = reached[done];
            done += 1;
            for i in first[u as usize]..first[u as usize + 1] {
                let v = out[i as usize] as usize;
                if self.mark[v] == HAS_VALUE {
                    continue;
                }
                let latest = |(_, dep): &(usize, &Dep)| V::weight(dep, self.unit, num, den);
                let deps = self
                    .graph
                    .of(v)
                    .iter()
                    .enumerate()
                    .filter(|(_, d)| d.from == u);
                if let Some((choice, dep)) = deps.max_by_key(latest) {
                    self.policy[v] = choice as u32;
                    values[v] = values[u as usize] + V::weight(dep, self.unit, num, den);
                    self.mark[v] = HAS_VALUE;
                    reached.push(v as u32);
                }
            }
        }
    }

    /// Makes every firing wait for its latest dependency; whether any waits for another one now.
    fn improve<V: Value>(&mut self, values: &[V], num: V, den: V) -> bool {
        let mut changed = false;
        for v in 0..self.policy.len() {
            let mut best = values[v];
            for (choice, dep) in self.graph.of(v).iter().enumerate() {
                let value = values[dep.from as usize] + V::weight(dep, self.unit, num, den);
                if value > best {
                    best = value;
                    self.policy[v] = choice as u32;
                    changed = true;
                }
            }
        }
        changed
    }
}
