//! The memory of one channel on one node.

/// A ring of tokens: the byte at stream position p lies in place p modulo the ring's size.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    bytes: Vec<u8>,
    /// The stream position behind the last byte that has been written.
    end: i128,
}

impl Ring {
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            bytes: vec![0; bytes as usize],
            end: i128::MIN,
        }
    }

    fn place(&self, position: i128) -> usize {
        position.rem_euclid(self.bytes.len() as i128) as usize
    }

    /// Writes bytes from a stream position on. They are no more than the ring holds.
    pub(crate) fn write(&mut self, position: i128, bytes: &[u8]) {
        self.end = self.end.max(position + bytes.len() as i128);
        let start = self.place(position);
        let first = bytes.len().min(self.bytes.len() - start);
        self.bytes[start..start + first].copy_from_slice(&bytes[..first]);
        self.bytes[..bytes.len() - first].copy_from_slice(&bytes[first..]);
    }

    /// Whether nothing from a stream position on has been written over.
    pub(crate) fn holds(&self, position: i128) -> bool {
        position.saturating_add(self.bytes.len() as i128) >= self.end
    }

    /// Reads bytes from a stream position on. They are no more than the ring holds.
    pub(crate) fn read(&self, position: i128, bytes: &mut [u8]) {
        let start = self.place(position);
        let first = bytes.len().min(self.bytes.len() - start);
        let (head, tail) = bytes.split_at_mut(first);
        head.copy_from_slice(&self.bytes[start..start + first]);
        tail.copy_from_slice(&self.bytes[..tail.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_round() {
        let mut ring = Ring::new(5);
        ring.write(-3, &[1, 2, 3]);
        ring.write(3, &[4, 5, 6]);
        let mut found = [0; 5];
        ring.read(1, &mut found);
        // 1 and 2 were written over by 5 and 6, and nobody wrote to the place of 1 and 6.
        assert_eq!(found, [0, 1, 4, 5, 6]);
        assert!(ring.holds(1) && !ring.holds(0));
        let mut last = [0; 3];
        ring.read(3, &mut last);
        assert_eq!(last, [4, 5, 6]);
    }
}
