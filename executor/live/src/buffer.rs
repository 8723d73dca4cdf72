//! Memory that is used again and again.

/// Packets that had to be kept. After some time nothing is allocated any more.
#[derive(Debug, Default)]
pub(crate) struct PacketPool {
    free: Vec<Vec<u8>>,
}

impl PacketPool {
    /// A copy of a packet.
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.free.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        copy
    }

    /// The copy is not needed any more.
    pub(crate) fn give_back(&mut self, copy: Vec<u8>) {
        self.free.push(copy);
    }
}
