//! A lane's entries as a flat list, and a cursor that runs through its executions without storing them.

use crate::Slot;

/// A step of a flat lane.
#[derive(Debug)]
pub(super) enum Node<'a> {
    /// A slot; `executions` of it in one period.
    Slot {
        slot: &'a Slot,
        index: usize,
        executions: u64,
    },
    /// Start of a loop; `span_ns` is the predicted time from one repetition to the next.
    Begin { count: u64, span_ns: u64 },
    /// End of the loop that starts at `begin`.
    End { begin: usize },
}

/// The entries of one lane in order, loops as pairs of [`Node::Begin`] and [`Node::End`].
///
/// Every loop holds at least one slot and repeats at least once, and all executions together are bounded by
/// [`crate::limits::MAX_SLOT_EXECUTIONS`]: whoever makes one has checked that.
#[derive(Debug, Default)]
pub(super) struct Flat<'a> {
    pub(super) nodes: Vec<Node<'a>>,
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
            Node::Begin { .. } | Node::End { .. } => None,
        })
    }

    pub(super) fn cursor(&self) -> Cursor<'_> {
        Cursor {
            nodes: &self.nodes,
            at: 0,
            open: Vec::new(),
            repetition: 0,
            offset_ns: 0,
            position: 0,
        }
    }
}

/// One execution of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Execution<'a> {
    pub(super) slot: &'a Slot,
    /// Which execution of the slot in the period.
    pub(super) number: u64,
    /// Which execution of the lane in the period.
    pub(super) position: u64,
    /// Predicted start of this execution after the start of the first one.
    pub(super) offset_ns: u64,
}

/// A loop that the cursor is in.
#[derive(Clone, Copy, Debug)]
struct Open {
    begin: usize,
    round: u64,
    /// Executions of the loop before this one.
    outer: u64,
    outer_ns: u64,
}

/// Runs through a lane's executions in order.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'f> {
    nodes: &'f [Node<'f>],
    at: usize,
    open: Vec<Open>,
    /// How often the innermost open body has been run before.
    repetition: u64,
    offset_ns: u64,
    position: u64,
}

impl<'f> Iterator for Cursor<'f> {
    type Item = Execution<'f>;

    fn next(&mut self) -> Option<Execution<'f>> {
        loop {
            match self.nodes.get(self.at)? {
                Node::Slot { slot, .. } => {
                    let (position, number, offset_ns) =
                        (self.position, self.repetition, self.offset_ns);
                    self.at += 1;
                    self.position += 1;
                    return Some(Execution {
                        slot,
                        number,
                        position,
                        offset_ns,
                    });
                }
                Node::Begin { count, .. } => {
                    let (outer, outer_ns) = (self.repetition, self.offset_ns);
                    self.open.push(Open {
                        begin: self.at,
                        round: 0,
                        outer,
                        outer_ns,
                    });
                    self.repetition *= count;
                    self.at += 1;
                }
                Node::End { begin } => self.close(*begin),
            }
        }
    }
}

impl Cursor<'_> {
    fn close(&mut self, begin: usize) {
        let (Some(top), Some(&Node::Begin { count, span_ns })) =
            (self.open.last_mut(), self.nodes.get(begin))
        else {
            // A flat lane is well nested; ending is the harmless answer if it were not.
            self.at = self.nodes.len();
            return;
        };
        top.round += 1;
        if top.round < count {
            self.repetition = top.outer * count + top.round;
            self.offset_ns = top
                .outer_ns
                .saturating_add(top.round.saturating_mul(span_ns));
            self.at = top.begin + 1;
        } else {
            self.repetition = top.outer;
            self.offset_ns = top.outer_ns;
            self.open.pop();
            self.at += 1;
        }
    }
}
