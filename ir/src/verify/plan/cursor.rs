//! A lane's entries as a flat list, and two ways through its executions without storing them: all of them, or of each
//! loop only the first and the last repetition.

use std::ops::Range;

use crate::Slot;

/// A step of a flat lane.
#[derive(Clone, Debug)]
pub(super) enum Node<'a> {
    /// A slot; `executions` of it in one period.
    Slot {
        slot: &'a Slot,
        index: usize,
        executions: u64,
    },
    /// Start of a loop.
    Begin(Begin),
    /// End of the loop that starts at `begin`.
    End { begin: usize },
}

/// What is known of a loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    /// Repetitions.
    pub(super) count: u64,
    /// Predicted time from one repetition to the next.
    pub(super) span_ns: u64,
    /// Runs of its body in one period: repetitions, times those of the loops around it.
    pub(super) runs: u64,
    /// Index of its end.
    pub(super) end: usize,
    /// Whether all slots in it have the same stage.
    pub(super) has_one_stage: bool,
}

/// The entries of one lane in order, loops as pairs of [`Node::Begin`] and [`Node::End`].
///
/// Every loop holds at least one slot and repeats at least once, and all executions together are bounded by
/// [`crate::limits::MAX_SLOT_EXECUTIONS`]: whoever makes one has checked that.
#[derive(Debug, Default)]
pub(super) struct Flat<'a> {
    pub(super) nodes: Vec<Node<'a>>,
}

/// Goes through a lane; see [`Flat::visit`].
pub(super) trait Visitor {
    /// An execution of a slot: which one of the lane in the period, and whether it is the slot's first.
    fn execute(&mut self, slot: &Slot, position: u64, is_first: bool);

    /// A loop follows of which repetitions will be skipped, with these nodes; no such loop is around it.
    fn enter(&mut self, body: &[Node<'_>]);

    /// The loop last entered is over.
    fn leave(&mut self);

    /// Further executions of a slot, which are like those before and after.
    fn skip(&mut self, slot: &Slot, executions: u64);

    /// Whether nothing further need be known.
    fn is_done(&self) -> bool;
}

impl<'a> Flat<'a> {
    /// Every slot once, in order.
    pub(super) fn slots(&self) -> impl Iterator<Item = (&'a Slot, usize, u64)> + '_ {
        self.nodes.iter().filter_map(|node| match *node {
            Node::Slot {
                slot,
                index,
                executions,
            } => Some((slot, index, executions)),
            Node::Begin(_) | Node::End { .. } => None,
        })
    }

    /// Every execution, in order.
    pub(super) fn cursor(&self) -> Cursor<'_> {
        Cursor {
            nodes: &self.nodes,
            index: 0,
            open: Vec::new(),
            offset_ns: 0,
        }
    }

    /// The first and the last repetition of every loop whose slots have one stage, and every repetition of others.
    ///
    /// What has been fired, sent and received by an execution grows by the same amounts from one repetition of a loop
    /// to the next. So whatever compares two such sums holds for all repetitions if it holds for the first and the last
    /// ones of all loops around.
    pub(super) fn visit(&self, visitor: &mut impl Visitor) {
        let mut walk = Walk {
            flat: self,
            visitor,
            position: 0,
        };
        walk.run(0..self.nodes.len(), true, false);
    }

    /// Steps of [`Self::visit`] where an execution of a slot takes `cost`.
    pub(super) fn visit_steps(&self, cost: impl Fn(&Slot) -> u64) -> u64 {
        let mut total_steps: u64 = 0;
        let mut nest_executions: Vec<u64> = vec![1];

        for (index, node) in self.nodes.iter().enumerate() {
            let executions = nest_executions.last().copied().unwrap_or(1);
            match node {
                Node::Slot { slot, .. } => {
                    total_steps = total_steps.saturating_add(executions.saturating_mul(cost(slot)));
                }
                Node::Begin(begin) if begin.has_one_stage => {
                    // Of such a loop only the first and last repetitions are executed; the others are skipped node by
                    // node.
                    let body_nodes = (begin.end - index) as u64;
                    total_steps = total_steps.saturating_add(executions.saturating_mul(body_nodes));
                    nest_executions.push(executions.saturating_mul(begin.count.min(2)));
                }
                Node::Begin(begin) => nest_executions.push(executions.saturating_mul(begin.count)),
                Node::End { .. } => drop(nest_executions.pop()),
            }
        }

        total_steps
    }

    /// Only the slots that `is_wanted`, and the loops around them.
    pub(super) fn filtered(&self, is_wanted: impl Fn(&Slot) -> bool) -> Flat<'a> {
        let mut kept_nodes: Vec<Node<'a>> = Vec::new();
        let mut open_loops: Vec<usize> = Vec::new();

        for node in &self.nodes {
            match node {
                Node::Slot { slot, .. } if !is_wanted(slot) => {}
                Node::Slot { .. } => kept_nodes.push(node.clone()),
                Node::Begin(_) => {
                    open_loops.push(kept_nodes.len());
                    kept_nodes.push(node.clone());
                }
                Node::End { .. } => {
                    let begin = open_loops.pop().unwrap_or(0);

                    // A loop of which nothing is left goes as a whole.
                    if begin + 1 == kept_nodes.len() {
                        kept_nodes.pop();
                        continue;
                    }

                    let end = kept_nodes.len();
                    if let Some(Node::Begin(b)) = kept_nodes.get_mut(begin) {
                        b.end = end;
                    }
                    kept_nodes.push(Node::End { begin });
                }
            }
        }

        Flat { nodes: kept_nodes }
    }
}

/// A visit at work.
struct Walk<'w, 'a, V> {
    flat: &'w Flat<'a>,
    visitor: &'w mut V,
    /// Executions of the lane so far.
    position: u64,
}

impl<V: Visitor> Walk<'_, '_, V> {
    /// Recursion is as deep as loops nest. `is_first`: no loop around has been repeated yet. `is_inside`: repetitions
    /// of a loop around are skipped.
    fn run(&mut self, nodes: Range<usize>, is_first: bool, is_inside: bool) {
        let flat = self.flat;
        let mut index = nodes.start;

        while index < nodes.end && !self.visitor.is_done() {
            match &flat.nodes[index] {
                Node::Slot { slot, .. } => {
                    self.visitor.execute(slot, self.position, is_first);
                    self.position += 1;
                    index += 1;
                }
                Node::Begin(begin) => {
                    let body = index + 1..begin.end;
                    if begin.has_one_stage {
                        self.run_ends(begin, body, is_first, is_inside);
                    } else {
                        self.run_all(begin, body, is_first);
                    }
                    index = begin.end + 1;
                }
                Node::End { .. } => index += 1,
            }
        }
    }

    fn run_all(&mut self, begin: &Begin, body: Range<usize>, is_first: bool) {
        self.run(body.clone(), is_first, false);
        for _ in 1..begin.count {
            if self.visitor.is_done() {
                return;
            }
            self.run(body.clone(), false, false);
        }
    }

    fn run_ends(&mut self, begin: &Begin, body: Range<usize>, is_first: bool, is_inside: bool) {
        let flat = self.flat;
        if !is_inside {
            self.visitor.enter(&flat.nodes[body.clone()]);
        }

        self.run(body.clone(), is_first, true);

        // What the repetitions between do is counted without being executed.
        if begin.count > 2 {
            self.skip(begin, &flat.nodes[body.clone()]);
        }
        if begin.count > 1 {
            self.run(body, false, true);
        }

        if !is_inside {
            self.visitor.leave();
        }
    }

    /// All repetitions but the first and the last.
    fn skip(&mut self, begin: &Begin, body: &[Node<'_>]) {
        for node in body {
            if let Node::Slot {
                slot, executions, ..
            } = node
            {
                let skipped = (executions / begin.runs) * (begin.count - 2);
                self.visitor.skip(slot, skipped);
                self.position += skipped;
            }
        }
    }
}

/// One execution of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Execution<'a> {
    pub(super) slot: &'a Slot,
    /// Predicted start of this execution after the start of the first one.
    pub(super) offset_ns: u64,
}

/// A loop that the cursor is in.
#[derive(Clone, Copy, Debug)]
struct Open {
    begin: usize,
    round: u64,
    outer_ns: u64,
}

/// Runs through a lane's executions in order.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'f> {
    nodes: &'f [Node<'f>],
    index: usize,
    open: Vec<Open>,
    offset_ns: u64,
}

impl<'f> Iterator for Cursor<'f> {
    type Item = Execution<'f>;

    fn next(&mut self) -> Option<Execution<'f>> {
        loop {
            match self.nodes.get(self.index)? {
                Node::Slot { slot, .. } => {
                    let offset_ns = self.offset_ns;
                    self.index += 1;
                    return Some(Execution { slot, offset_ns });
                }
                Node::Begin(_) => {
                    self.open.push(Open {
                        begin: self.index,
                        round: 0,
                        outer_ns: self.offset_ns,
                    });
                    self.index += 1;
                }
                Node::End { begin } => self.close(*begin),
            }
        }
    }
}

impl Cursor<'_> {
    fn close(&mut self, begin: usize) {
        let (Some(top), Some(Node::Begin(Begin { count, span_ns, .. }))) =
            (self.open.last_mut(), self.nodes.get(begin))
        else {
            // A flat lane is well nested; ending is the harmless answer if it were not.
            self.index = self.nodes.len();
            return;
        };

        top.round += 1;
        if top.round < *count {
            self.offset_ns = top
                .outer_ns
                .saturating_add(top.round.saturating_mul(*span_ns));
            self.index = top.begin + 1;
        } else {
            self.offset_ns = top.outer_ns;
            self.open.pop();
            self.index += 1;
        }
    }
}
