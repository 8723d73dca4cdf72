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
        while flow < enough {
            let Some(reached) = self.search(source, sink, steps_left) else {
                break;
            };
            flow += self.augment(source, reached);
        }
        flow
    }

    /// Breadth-first search for either sink.
    fn search(&mut self, source: usize, sink: usize, steps_left: &mut u64) -> Option<usize> {
        self.reached_by.fill(None);
        let mut queue = vec![source];
        let mut next = 0;

        while next < queue.len() {
            let node = queue[next];
            next += 1;
            *steps_left = steps_left.checked_sub(self.arcs_of[node].len() as u64)?;
            for &arc in &self.arcs_of[node] {
                let head = self.head[arc];
                let is_new = self.reached_by[head].is_none() && head != source;
                if self.residual[arc] == 0 || !is_new {
                    continue;
                }
                self.reached_by[head] = Some(arc);
                if head == sink || head == self.fixed_sink {
                    return Some(head);
                }
                queue.push(head);
            }
        }
        None
    }

    /// Sends as much as the path that was found allows.
    fn augment(&mut self, source: usize, reached: usize) -> u64 {
        let mut path = Vec::new();
        let mut node = reached;
        while node != source {
            let Some(arc) = self.reached_by[node] else {
                return 0;
            };
            path.push(arc);
            node = self.head[arc ^ 1];
        }

        let amount = path.iter().map(|&arc| self.residual[arc]).min();
        let amount = amount.unwrap_or(0);
        for arc in path {
            self.residual[arc] -= amount;
            self.residual[arc ^ 1] += amount;
        }
        amount
    }
}
