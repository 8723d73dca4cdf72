//! Minimum cuts of directed graphs, up to a limit.

/// A directed graph with capacities, one fixed sink, and the flow of the latest question.
pub(crate) struct FlowGraph {
    /// Head of each arc; arc `a ^ 1` is the reverse of arc `a`.
    head: Vec<usize>,
    capacity: Vec<u64>,
    residual: Vec<u64>,
    /// Arcs out of each node.
    arcs_of: Vec<Vec<usize>>,
    /// Node that is on the sink's side of every cut.
    fixed_sink: usize,
    /// Arc by which the search reached each node.
    reached_by: Vec<Option<usize>>,
}

impl FlowGraph {
    pub(crate) fn new(nodes: usize, fixed_sink: usize) -> Self {
        FlowGraph {
            head: Vec::new(),
            capacity: Vec::new(),
            residual: Vec::new(),
            arcs_of: vec![Vec::new(); nodes],
            fixed_sink,
            reached_by: vec![None; nodes],
        }
    }

    pub(crate) fn add_arc(&mut self, from: usize, to: usize, capacity: u64) {
        for (tail, head, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.arcs_of[tail].push(self.head.len());
            self.head.push(head);
            self.capacity.push(capacity);
        }
    }

    /// Lower bound on the capacity of every cut with `source` on one side, `sink` and the fixed sink on the other: the
    /// minimum, or at least `enough` where that is more, unless the steps run out. Each arc looked at is a step.
    pub(crate) fn min_cut(
        &mut self,
        source: usize,
        sink: usize,
        enough: u64,
        steps_left: &mut u64,
    ) -> u64 {
        self.residual.clone_from(&self.capacity);
        let mut flow = 0u64;

        // Every flow is a lower bound, so that the search may end at any time.
        while let Some(more) = self.search(source, sink, enough - flow, steps_left) {
            flow += more;
            if more == 0 || flow >= enough {
                break;
            }
        }
        flow
    }

    /// Breadth-first search that sends flow along every path to either sink that it finds, up to `enough` in all, until a
    /// path is cut behind it: what it sent, zero if there is no path. `None` once the steps have run out.
    ///
    /// A path mostly ends where the arc into the sink is full, and then the search goes on as if that arc had not been.
    fn search(
        &mut self,
        source: usize,
        sink: usize,
        enough: u64,
        steps_left: &mut u64,
    ) -> Option<u64> {
        self.reached_by.fill(None);
        let mut queue = vec![source];
        let mut next = 0;
        let mut flow = 0;

        while next < queue.len() {
            let node = queue[next];
            next += 1;
            let mut path: Option<Vec<usize>> = None;
            // Flow that has been sent counts even where the steps run out here.
            match steps_left.checked_sub(self.arcs_of[node].len() as u64) {
                Some(left) => *steps_left = left,
                None if flow > 0 => return Some(flow),
                None => return None,
            }

            for position in 0..self.arcs_of[node].len() {
                let arc = self.arcs_of[node][position];
                let head = self.head[arc];
                if self.residual[arc] == 0 || head == source {
                    continue;
                }
                if head == sink || head == self.fixed_sink {
                    let path = path.get_or_insert_with(|| self.path_to(node, source));
                    *steps_left = steps_left.saturating_sub(path.len() as u64);
                    flow += self.augment(path, arc);
                    let is_cut = path.iter().any(|&arc| self.residual[arc] == 0);
                    if is_cut || flow >= enough {
                        return Some(flow);
                    }
                } else if self.reached_by[head].is_none() {
                    self.reached_by[head] = Some(arc);
                    queue.push(head);
                }
            }
        }
        Some(flow)
    }

    /// Arcs by which the search came from the source to a node.
    fn path_to(&self, node: usize, source: usize) -> Vec<usize> {
        let mut path = Vec::new();
        let mut node = node;
        while node != source {
            let Some(arc) = self.reached_by[node] else {
                break;
            };
            path.push(arc);
            node = self.head[arc ^ 1];
        }
        path
    }

    /// Sends as much as a path and the arc behind it allow.
    fn augment(&mut self, path: &[usize], last_arc: usize) -> u64 {
        let arcs = || path.iter().chain([&last_arc]);
        let amount = arcs().map(|&arc| self.residual[arc]).min();
        let amount = amount.unwrap_or(0);
        for &arc in arcs() {
            self.residual[arc] -= amount;
            self.residual[arc ^ 1] += amount;
        }
        amount
    }
}
