//! Numbers of packets as positions of tokens. Must not know what is done about packets that are missing.
//!
//! Packets are counted, not tokens: a packet that did not come is taken to have been as large as its neighbours. A number
//! that follows the one before needs no such guess, so senders may vary their packets as long as none is lost.

/// Above this, a difference of two numbers is no loss: the sender began anew, or the packet is not its.
const MAX_STEP: i128 = 1 << 20;

/// A packet that was looked at.
#[derive(Clone, Copy, Debug)]
struct Numbered {
    number: i128,
    position: i128,
    tokens: u64,
}

impl Numbered {
    fn end(&self) -> i128 {
        self.position + i128::from(self.tokens)
    }
}

/// Extends numbers of a few bits, which wrap, and turns them into positions.
#[derive(Clone, Debug, Default)]
pub struct SequenceCounter {
    /// The highest number that is plausible.
    highest: Option<Numbered>,
    /// The latest packet.
    latest: Option<Numbered>,
}

impl SequenceCounter {
    /// The position of a packet's first token, relative to an arbitrary one, for a packet with the number `number` of
    /// `bits` bits, from 1 to 64.
    pub fn position(&mut self, number: u64, bits: u32, tokens: u64) -> i128 {
        let Some(highest) = self.highest else {
            let first = Numbered {
                number: i128::from(number),
                position: 0,
                tokens,
            };
            self.highest = Some(first);
            self.latest = Some(first);
            return 0;
        };

        let next_number = highest.number + 1;
        let steps = steps_between(next_number, number, bits);
        let extended = next_number + steps;
        let position = match self.latest {
            // A sender that counts from elsewhere: what follows on its packet needs no guess either.
            Some(latest) if latest.number + 1 == extended => latest.end(),
            _ if steps >= 0 => {
                let size = highest.tokens.max(tokens);
                highest.end() + steps * i128::from(size)
            }
            _ => highest.position + (steps + 1) * i128::from(tokens),
        };

        let packet = Numbered {
            number: extended,
            position,
            tokens,
        };
        if (0..MAX_STEP).contains(&steps) {
            self.highest = Some(packet);
        }
        self.latest = Some(packet);
        position
    }

    /// The latest packet is the first of a sender that began anew: numbers are compared with its from now on.
    pub fn begin_anew(&mut self) {
        self.highest = self.latest;
    }
}

/// How far a number of so many bits is from the one that is due, by the shorter way around.
fn steps_between(due: i128, number: u64, bits: u32) -> i128 {
    let unused_bits = 64 - bits.clamp(1, 64);
    let difference = number.wrapping_sub(due as u64);
    i128::from((difference << unused_bits).cast_signed() >> unused_bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(bits: u32, packets: &[(u64, u64)]) -> Vec<i128> {
        let mut counter = SequenceCounter::default();
        let position = |(number, tokens): &(u64, u64)| counter.position(*number, bits, *tokens);
        packets.iter().map(position).collect()
    }

    #[test]
    fn numbers_become_positions() {
        for (bits, packets, expect) in [
            (
                64,
                &[(1, 10), (2, 10), (5, 10), (4, 10), (6, 10)][..],
                &[0, 10, 40, 30, 50][..],
            ),
            // Around the end of the numbers.
            (
                64,
                &[(u64::MAX - 1, 3), (u64::MAX, 3), (0, 3), (2, 3)],
                &[0, 3, 6, 12],
            ),
            (
                4,
                &[(14, 5), (15, 5), (0, 5), (2, 5), (1, 5)],
                &[0, 5, 10, 20, 15],
            ),
            // Sizes may vary where no number is missing.
            (64, &[(1, 10), (2, 4), (3, 10), (4, 7)], &[0, 10, 14, 24]),
            // A far packet moves nothing.
            (
                64,
                &[(1, 10), (1 << 60, 10), (2, 10)],
                &[0, (1 << 60) * 10 - 10, 10],
            ),
        ] {
            assert_eq!(positions(bits, packets), expect, "{packets:?}");
        }
    }

    #[test]
    fn far_packets_follow_on_each_other() {
        let found = positions(64, &[(1, 10), (1 << 63, 7), ((1 << 63) + 1, 7)]);
        assert_eq!(found[2] - found[1], 7);
    }
}
