//! Which firings of a call a gate opens.

use crate::{DType, is_open};

/// The window of a gate, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateWindow {
    /// The type of its tokens, which have one element.
    pub dtype: DType,
    /// Bytes that a firing moves on by.
    pub step: usize,
    /// Bytes that a firing looks at.
    pub window: usize,
}

impl GateWindow {
    /// Where the last element ends that opens the gate.
    fn last_open_end(&self, tokens: &[u8]) -> Option<usize> {
        // Every actor behind a gate looks at all of its window while it is closed: most often at nothing but zeros.
        if tokens.iter().fold(0, |bits, byte| bits | byte) == 0 {
            return None;
        }
        let element_bytes = self.dtype.size_bytes() as usize;
        let mut elements = tokens.chunks_exact(element_bytes);
        let index = elements.rposition(|element| is_open(self.dtype, element))?;
        Some((index + 1) * element_bytes)
    }
}

/// What a gate says of firings that are asked for in order. Looks at each token once, however long windows are.
#[derive(Debug)]
pub struct GateScan<'a> {
    window: GateWindow,
    tokens: &'a [u8],
    /// Bytes that were looked at.
    seen: usize,
    /// End of the last element among them that is not zero.
    last_end: usize,
}

impl<'a> GateScan<'a> {
    /// For firings whose windows begin at the first of these tokens and lie within them.
    pub fn new(window: GateWindow, tokens: &'a [u8]) -> Self {
        Self {
            window,
            tokens,
            seen: 0,
            last_end: 0,
        }
    }

    /// Whether a firing is open: not before one that was asked for.
    pub fn is_open(&mut self, firing: usize) -> bool {
        let start = firing * self.window.step;
        let end = start + self.window.window;
        if self.seen < end {
            let unseen = &self.tokens[self.seen..end];
            if let Some(open_end) = self.window.last_open_end(unseen) {
                self.last_end = self.seen + open_end;
            }
            self.seen = end;
        }
        self.last_end > start
    }
}
