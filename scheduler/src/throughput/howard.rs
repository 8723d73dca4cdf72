//! Maximum cycle ratio of a graph of firings, by policy iteration in exact integers.
//!
//! Source: Cochet-Terrasson, Cohen, Gaubert, McGettrick & Quadrat 1998, "Numerical computation of spectral elements
//! in max-plus algebra". The variant here keeps one chain: whatever does not hang on the best cycle of a policy is
//! hung on it by a search, so that the ratio grows with every new cycle and equal ratios never alternate.

use std::cmp::Reverse;

use zbmd_ir::math::gcd_u64;

use super::Period;

/// A dependency of a firing: it starts at least `time` after the start of `from`, `tokens` iterations (in scaled
/// units) earlier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dependency {
    pub(crate) from: u32,
    /// What made it: an index of a link, or [`Dependency::ORDER`].
    pub(crate) link: u32,
    pub(crate) tokens: i64,
    pub(crate) time: u64,
}

impl Dependency {
    /// Firings of one actor start in order.
    pub(crate) const ORDER: u32 = u32::MAX;
}

/// Firings and their dependencies.
#[derive(Debug, Default)]
pub(crate) struct DependencyGraph {
    /// Firing v has the dependencies `deps[first[v]..first[v + 1]]`.
    first: Vec<u32>,
    deps: Vec<Dependency>,
}

/// The cycle that bounds the period: its dependencies in order, each with the firing that has it, which is the
/// `from` of the next.
#[derive(Debug)]
pub(crate) struct PolicyCycle {
    /// Each with the firing that has it.
    pub(crate) deps: Vec<(u32, Dependency)>,
    pub(crate) time: i128,
    /// Not positive: the cycle can never run.
    pub(crate) tokens: i128,
}

impl Default for PolicyCycle {
    /// No cycle: a ratio of 0.
    fn default() -> Self {
        PolicyCycle {
            deps: Vec::new(),
            time: 0,
            tokens: 1,
        }
    }
}

/// A number outgrew 128 bits.
#[derive(Debug)]
pub(crate) struct ArithmeticOverflow;

impl DependencyGraph {
    pub(crate) fn clear(&mut self) {
        self.first.clear();
        self.first.push(0);
        self.deps.clear();
    }

    /// Adds a dependency of the firing that [`DependencyGraph::close`] is called for next.
    pub(crate) fn push(&mut self, dep: Dependency) {
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

    fn of(&self, node: usize) -> &[Dependency] {
        &self.deps[self.first[node] as usize..self.first[node + 1] as usize]
    }
}

/// Which of its dependencies each firing waits for, by position among them.
pub(crate) type Policy = Vec<u32>;

/// The cycle of greatest `time / tokens`, or any cycle without tokens.
///
/// The graph must be strongly connected, with at least one dependency. `policy` is where to start and becomes where
/// it ended: for a graph of the same shape, a good start saves most of the few passes.
pub(crate) fn critical_cycle(
    graph: &DependencyGraph,
    policy: &mut Policy,
) -> Result<PolicyCycle, ArithmeticOverflow> {
    let policy_fits = policy.len() == graph.nodes()
        && policy
            .iter()
            .enumerate()
            .all(|(node, &choice)| (choice as usize) < graph.of(node).len());
    if !policy_fits {
        policy.clear();
        policy.extend((0..graph.nodes()).map(|node| first_choice(graph.of(node))));
    }

    // Tokens of whole iterations share a large factor: without it, most sums fit into 64 bits.
    let dep_tokens = graph.deps.iter().map(|dep| dep.tokens.unsigned_abs());
    let unit = dep_tokens.fold(0, gcd_u64).max(1) as i64;
    let mut iteration = PolicyIteration {
        graph,
        unit,
        policy,
        mark: vec![0; graph.nodes()],
        path: Vec::new(),
        narrow: Vec::new(),
        wide: Vec::new(),
    };

    loop {
        let best_cycle = iteration.best_cycle();
        // A cycle without tokens is a deadlock: no ratio is greater.
        if best_cycle.tokens <= 0 {
            return Ok(best_cycle);
        }
        let cycle_ratio = iteration.cycle_ratio(&best_cycle)?;
        // In 64 bits where all sums fit, which is several times as fast.
        let policy_changed = if cycle_ratio.fits_narrow {
            let mut values = std::mem::take(&mut iteration.narrow);
            let time = cycle_ratio.time as i64;
            let policy_changed =
                iteration.pass(&best_cycle, &mut values, time, cycle_ratio.tokens as i64);
            iteration.narrow = values;
            policy_changed
        } else {
            let mut values = std::mem::take(&mut iteration.wide);
            let policy_changed = iteration.pass(
                &best_cycle,
                &mut values,
                cycle_ratio.time,
                cycle_ratio.tokens,
            );
            iteration.wide = values;
            policy_changed
        };
        if !policy_changed {
            return Ok(best_cycle);
        }
    }
}

/// The dependency with the fewest tokens, of those the one with most time.
fn first_choice(deps: &[Dependency]) -> u32 {
    (0..deps.len() as u32)
        // Fewest tokens make the greatest ratio, as far as one dependency can tell.
        .min_by_key(|&choice| {
            let dep = &deps[choice as usize];
            (dep.tokens, Reverse(dep.time))
        })
        .unwrap_or(0)
}

/// A cycle's time over its tokens, counted in the unit.
struct CycleRatio {
    time: i128,
    tokens: i128,
    /// Whether sums of weights along any path fit into 64 bits.
    fits_narrow: bool,
}

fn ratio(cycle: &PolicyCycle) -> Period {
    let tokens = cycle.tokens.max(1).unsigned_abs();
    Period::new(cycle.time.max(0).unsigned_abs(), tokens).unwrap_or(Period::ZERO)
}

/// Start times relative to the root, times the denominator of the ratio.
trait StartTime: Copy + Default + Ord + std::ops::Add<Output = Self> {
    fn weight(dep: &Dependency, unit: i64, ratio_time: Self, ratio_tokens: Self) -> Self;
}

impl StartTime for i64 {
    fn weight(dep: &Dependency, unit: i64, ratio_time: i64, ratio_tokens: i64) -> i64 {
        let tokens = if unit == 1 {
            dep.tokens
        } else {
            dep.tokens / unit
        };
        dep.time as i64 * ratio_tokens - ratio_time * tokens
    }
}

impl StartTime for i128 {
    fn weight(dep: &Dependency, unit: i64, ratio_time: i128, ratio_tokens: i128) -> i128 {
        i128::from(dep.time) * ratio_tokens - ratio_time * i128::from(dep.tokens / unit)
    }
}

struct PolicyIteration<'a> {
    graph: &'a DependencyGraph,
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

/// The firings that depend on each firing, one after the other.
struct DependentLists {
    /// Node v has the dependents `nodes[first[v]..first[v + 1]]`.
    first: Vec<u32>,
    nodes: Vec<u32>,
}

impl DependentLists {
    /// A counting sort of the dependencies by what they wait for.
    fn of(graph: &DependencyGraph) -> Self {
        let nodes = graph.nodes();
        let mut first = vec![0u32; nodes + 1];
        for dep in &graph.deps {
            first[dep.from as usize + 1] += 1;
        }
        for node in 0..nodes {
            first[node + 1] += first[node];
        }

        let mut next = first.clone();
        let mut dependents = vec![0u32; graph.deps.len()];
        for node in 0..nodes {
            for dep in graph.of(node) {
                let slot = &mut next[dep.from as usize];
                dependents[*slot as usize] = node as u32;
                *slot += 1;
            }
        }
        DependentLists {
            first,
            nodes: dependents,
        }
    }

    fn of_node(&self, node: usize) -> &[u32] {
        &self.nodes[self.first[node] as usize..self.first[node + 1] as usize]
    }
}

impl PolicyIteration<'_> {
    fn choice(&self, node: usize) -> &Dependency {
        &self.graph.deps[(self.graph.first[node] + self.policy[node]) as usize]
    }

    /// The best cycle that the policy closes; one without tokens as soon as there is one.
    fn best_cycle(&mut self) -> PolicyCycle {
        self.mark.fill(0);
        let mut best: Option<(Period, PolicyCycle)> = None;

        for start in 0..self.policy.len() {
            let walk = start as u32 + 1;
            let mut node = start;
            while self.mark[node] == 0 {
                self.mark[node] = walk;
                node = self.choice(node).from as usize;
            }
            // Only the walk that closes a cycle first sees it.
            if self.mark[node] != walk {
                continue;
            }

            let cycle = self.cycle_through(node);
            if cycle.tokens <= 0 {
                return cycle;
            }
            let ratio = ratio(&cycle);
            if best.as_ref().is_none_or(|(known, _)| ratio > *known) {
                best = Some((ratio, cycle));
            }
        }
        best.map_or_else(PolicyCycle::default, |(_, cycle)| cycle)
    }

    fn cycle_through(&self, node: usize) -> PolicyCycle {
        let mut cycle = PolicyCycle {
            deps: Vec::new(),
            time: 0,
            tokens: 0,
        };

        let mut current_node = node;
        loop {
            let chosen_dep = *self.choice(current_node);
            cycle.time += i128::from(chosen_dep.time);
            cycle.tokens += i128::from(chosen_dep.tokens);
            cycle.deps.push((current_node as u32, chosen_dep));

            current_node = chosen_dep.from as usize;
            if current_node == node {
                cycle.deps.reverse();
                return cycle;
            }
        }
    }

    /// The ratio of a cycle in units.
    fn cycle_ratio(&self, cycle: &PolicyCycle) -> Result<CycleRatio, ArithmeticOverflow> {
        let unit_ratio = ratio(&PolicyCycle {
            deps: Vec::new(),
            time: cycle.time,
            tokens: cycle.tokens / i128::from(self.unit),
        });
        let ratio_time = i128::try_from(unit_ratio.num()).map_err(|_| ArithmeticOverflow)?;
        let ratio_tokens = i128::try_from(unit_ratio.den()).map_err(|_| ArithmeticOverflow)?;
        let max_sum = self
            .max_weight_sum(ratio_time, ratio_tokens)
            .ok_or(ArithmeticOverflow)?;
        Ok(CycleRatio {
            time: ratio_time,
            tokens: ratio_tokens,
            fits_narrow: max_sum < i128::from(i64::MAX),
        })
    }

    /// The largest sum of weights along any path; `None` if it does not fit 128 bits.
    fn max_weight_sum(&self, ratio_time: i128, ratio_tokens: i128) -> Option<i128> {
        let all_deps = self.graph.deps.iter();
        let max_time = all_deps.clone().map(|dep| dep.time).max().unwrap_or(0);
        let max_tokens = all_deps
            .map(|dep| dep.tokens.unsigned_abs())
            .max()
            .unwrap_or(0);
        let max_units = max_tokens / self.unit.unsigned_abs();

        // A weight is the time times the ratio's tokens less the tokens times its time.
        let by_time = i128::from(max_time).checked_mul(ratio_tokens)?;
        let by_tokens = i128::from(max_units).checked_mul(ratio_time)?;
        let max_weight = by_time.checked_add(by_tokens)?;
        max_weight.checked_mul(2 * (self.graph.nodes() as i128 + 1))
    }

    /// Values under the policy with its best cycle, and the policy that is better for them; whether there is one.
    fn pass<V: StartTime>(
        &mut self,
        best: &PolicyCycle,
        values: &mut Vec<V>,
        ratio_time: V,
        ratio_tokens: V,
    ) -> bool {
        let Some(&(root, _)) = best.deps.first() else {
            return false;
        };
        values.resize(self.policy.len(), V::default());
        self.evaluate(root as usize, values, ratio_time, ratio_tokens);
        self.improve_policy(values, ratio_time, ratio_tokens)
    }

    /// Values of all firings under the policy, after what hangs on other cycles was hung on the root's.
    fn evaluate<V: StartTime>(
        &mut self,
        root: usize,
        values: &mut [V],
        ratio_time: V,
        ratio_tokens: V,
    ) {
        self.mark.fill(0);
        self.mark[root] = HAS_VALUE;
        values[root] = V::default();
        let mut any_elsewhere = false;

        for start in 0..self.policy.len() {
            let mut node = start;
            while self.mark[node] == 0 {
                self.mark[node] = start as u32 + 1;
                self.path.push(node as u32);
                node = self.choice(node).from as usize;
            }
            if self.mark[node] != HAS_VALUE {
                any_elsewhere = true;
                self.path.clear();
                continue;
            }

            // Back along the walk, each value follows from the one before.
            while let Some(node) = self.path.pop() {
                let dep = self.choice(node as usize);
                let dep_weight = V::weight(dep, self.unit, ratio_time, ratio_tokens);
                values[node as usize] = values[dep.from as usize] + dep_weight;
                self.mark[node as usize] = HAS_VALUE;
            }
        }
        if any_elsewhere {
            self.adopt_others(values, ratio_time, ratio_tokens);
        }
    }

    /// Hangs every firing without a value on one that has one, by a search along all dependencies.
    fn adopt_others<V: StartTime>(&mut self, values: &mut [V], ratio_time: V, ratio_tokens: V) {
        let node_count = self.policy.len();
        let dependents = DependentLists::of(self.graph);
        let mut reached: Vec<u32> = (0..node_count as u32)
            .filter(|&node| self.mark[node as usize] == HAS_VALUE)
            .collect();
        let mut next_reached = 0;

        while next_reached < reached.len() {
            let from = reached[next_reached];
            next_reached += 1;
            for &dependent in dependents.of_node(from as usize) {
                let node = dependent as usize;
                if self.mark[node] == HAS_VALUE {
                    continue;
                }
                let weighted_deps =
                    self.graph
                        .of(node)
                        .iter()
                        .enumerate()
                        .filter_map(|(choice, dep)| {
                            let dep_weight = V::weight(dep, self.unit, ratio_time, ratio_tokens);
                            (dep.from == from).then_some((choice, dep_weight))
                        });
                // Of several dependencies on the same firing the latest counts.
                if let Some((choice, dep_weight)) =
                    weighted_deps.max_by_key(|&(_, dep_weight)| dep_weight)
                {
                    self.policy[node] = choice as u32;
                    values[node] = values[from as usize] + dep_weight;
                    self.mark[node] = HAS_VALUE;
                    reached.push(dependent);
                }
            }
        }
    }

    /// Makes every firing wait for its latest dependency; whether any waits for another one now.
    fn improve_policy<V: StartTime>(
        &mut self,
        values: &[V],
        ratio_time: V,
        ratio_tokens: V,
    ) -> bool {
        let mut any_changed = false;

        for node in 0..self.policy.len() {
            let mut latest_start = values[node];
            for (choice, dep) in self.graph.of(node).iter().enumerate() {
                let dep_weight = V::weight(dep, self.unit, ratio_time, ratio_tokens);
                let start_time = values[dep.from as usize] + dep_weight;
                if start_time > latest_start {
                    latest_start = start_time;
                    self.policy[node] = choice as u32;
                    any_changed = true;
                }
            }
        }
        any_changed
    }
}
