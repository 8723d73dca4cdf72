//! Maximum cycle ratio of a graph of firings, by policy iteration in exact integers.
//!
//! Source: Cochet-Terrasson, Cohen, Gaubert, McGettrick & Quadrat 1998, "Numerical computation of spectral elements
//! in max-plus algebra". The variant here keeps one chain: whatever does not hang on the best cycle of a policy is
//! hung on it by a search, so that the ratio grows with every new cycle and equal ratios never alternate.

use super::Period;

/// A dependency between two firings: `to` starts at least `time` after the start of `from`, `tokens` iterations
/// (in scaled units) earlier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dep {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// What made it: an index of a link, or [`Dep::ORDER`].
    pub(crate) link: u32,
    pub(crate) tokens: i64,
    pub(crate) time: u64,
}

impl Dep {
    /// Firings of one actor start in order.
    pub(crate) const ORDER: u32 = u32::MAX;
}

/// Firings and their dependencies, grouped by `to`.
#[derive(Debug, Default)]
pub(crate) struct DepGraph {
    /// `deps[first[v]..first[v + 1]]` point to v.
    first: Vec<u32>,
    deps: Vec<Dep>,
}

/// The cycle that bounds the period: its dependencies in order, each starting where the one before ended.
#[derive(Debug)]
pub(crate) struct Critical {
    pub(crate) deps: Vec<Dep>,
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

    fn into(&self, v: usize) -> std::ops::Range<u32> {
        self.first[v]..self.first[v + 1]
    }
}

struct Iteration<'a> {
    graph: &'a DepGraph,
    /// The dependency that each firing waits for, as an index into `deps`.
    policy: Vec<u32>,
    /// Start times relative to the root, each times the denominator of the ratio.
    value: Vec<i128>,
    mark: Vec<u32>,
    /// Scratch: the order in which firings were reached from the root.
    reached: Vec<u32>,
}

/// The cycle of greatest `time / tokens`, or any cycle without tokens.
///
/// The graph must be strongly connected, with at least one dependency. Typically a handful of passes over it.
pub(crate) fn critical(graph: &DepGraph) -> Result<Critical, Overflow> {
    let nodes = graph.nodes();
    let policy = (0..nodes)
        .map(|v| {
            let key = |&d: &u32| {
                let dep = &graph.deps[d as usize];
                (dep.tokens, std::cmp::Reverse(dep.time))
            };
            graph.into(v).min_by_key(key).unwrap_or(0)
        })
        .collect();
    let mut iteration = Iteration {
        graph,
        policy,
        value: vec![0; nodes],
        mark: vec![0; nodes],
        reached: Vec::with_capacity(nodes),
    };
    let mut rounds = 0;
    let t = std::time::Instant::now();
    loop {
        rounds += 1;
        let best = iteration.best_cycle();
        if std::env::var("HOW").is_ok() {
            eprintln!(
                "  round {rounds} nodes {nodes} deps {} ratio {}/{} len {} at {:?}",
                graph.deps.len(),
                best.time,
                best.tokens,
                best.deps.len(),
                t.elapsed()
            );
        }
        if best.tokens <= 0 {
            return Ok(best);
        }
        let ratio = ratio(&best);
        let (num, den) = iteration.weights_fit(ratio)?;
        let Some(root) = best.deps.first().map(|d| d.from as usize) else { return Ok(best) };
        iteration.evaluate(root, num, den);
        if !iteration.improve(num, den) {
            return Ok(best);
        }
    }
}

fn ratio(cycle: &Critical) -> Period {
    let tokens = cycle.tokens.max(1).unsigned_abs();
    Period::new(cycle.time.max(0).unsigned_abs(), tokens).unwrap_or(Period::ZERO)
}

fn weight(dep: &Dep, num: i128, den: i128) -> i128 {
    i128::from(dep.time) * den - num * i128::from(dep.tokens)
}

impl Iteration<'_> {
    fn dep(&self, v: usize) -> &Dep {
        &self.graph.deps[self.policy[v] as usize]
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
                at = self.dep(at).from as usize;
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
        let none = Critical { deps: Vec::new(), time: 0, tokens: 1 };
        best.map_or(none, |(_, cycle)| cycle)
    }

    fn cycle_through(&self, node: usize) -> Critical {
        let mut cycle = Critical { deps: Vec::new(), time: 0, tokens: 0 };
        let mut at = node;
        loop {
            let dep = *self.dep(at);
            cycle.time += i128::from(dep.time);
            cycle.tokens += i128::from(dep.tokens);
            cycle.deps.push(dep);
            at = dep.from as usize;
            if at == node {
                cycle.deps.reverse();
                return cycle;
            }
        }
    }

    /// The ratio's numerator and denominator, if sums of weights along any path fit.
    fn weights_fit(&self, ratio: Period) -> Result<(i128, i128), Overflow> {
        let num = i128::try_from(ratio.num()).map_err(|_| Overflow)?;
        let den = i128::try_from(ratio.den()).map_err(|_| Overflow)?;
        let time = self.graph.deps.iter().map(|d| d.time).max().unwrap_or(0);
        let tokens = self.graph.deps.iter().map(|d| d.tokens.unsigned_abs()).max().unwrap_or(0);
        let by_time = i128::from(time).checked_mul(den).ok_or(Overflow)?;
        let by_tokens = i128::from(tokens).checked_mul(num).ok_or(Overflow)?;
        let largest = by_time.checked_add(by_tokens).ok_or(Overflow)?;
        largest.checked_mul(2 * (self.graph.nodes() as i128 + 1)).ok_or(Overflow)?;
        Ok((num, den))
    }

    /// Values of all firings under the policy, after what hangs on other cycles was hung on the root's.
    fn evaluate(&mut self, root: usize, num: i128, den: i128) {
        let nodes = self.policy.len();
        let mut first = vec![0u32; nodes + 1];
        for v in 0..nodes {
            first[self.dep(v).from as usize + 1] += 1;
        }
        for v in 0..nodes {
            first[v + 1] += first[v];
        }
        let mut next = first.clone();
        let mut children = vec![0u32; nodes];
        for v in 0..nodes {
            let at = &mut next[self.graph.deps[self.policy[v] as usize].from as usize];
            children[*at as usize] = v as u32;
            *at += 1;
        }
        self.mark.fill(0);
        self.reached.clear();
        self.reach(root, 0);
        let mut done = 0;
        while done < self.reached.len() {
            let u = self.reached[done] as usize;
            done += 1;
            for i in first[u]..first[u + 1] {
                let v = children[i as usize] as usize;
                if self.mark[v] == 0 {
                    let value = self.value[u] + weight(self.dep(v), num, den);
                    self.reach(v, value);
                }
            }
        }
        if done < nodes {
            self.adopt(num, den);
        }
    }

    fn reach(&mut self, v: usize, value: i128) {
        self.mark[v] = 1;
        self.value[v] = value;
        self.reached.push(v as u32);
    }

    /// Hangs every firing that is not reached yet on one that is, by a search along all dependencies.
    fn adopt(&mut self, num: i128, den: i128) {
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
        for (i, dep) in self.graph.deps.iter().enumerate() {
            let at = &mut next[dep.from as usize];
            out[*at as usize] = i as u32;
            *at += 1;
        }
        let mut done = 0;
        while done < self.reached.len() {
            let u = self.reached[done] as usize;
            done += 1;
            for i in first[u]..first[u + 1] {
                let index = out[i as usize];
                let dep = self.graph.deps[index as usize];
                let v = dep.to as usize;
                if self.mark[v] == 0 {
                    self.policy[v] = index;
                    self.reach(v, self.value[u] + weight(&dep, num, den));
                }
            }
        }
    }

    /// Makes every firing wait for its latest dependency; whether any waits for another one now.
    fn improve(&mut self, num: i128, den: i128) -> bool {
        let mut changed = false;
        for v in 0..self.policy.len() {
            let mut best = self.value[v];
            for index in self.graph.into(v) {
                let dep = &self.graph.deps[index as usize];
                let value = self.value[dep.from as usize] + weight(dep, num, den);
                if value > best {
                    best = value;
                    self.policy[v] = index;
                    changed = true;
                }
            }
        }
        changed
    }
}
