//! Packets in, tokens in order and gaps out: a state machine without clock, threads or I/O, so that a simulation and a
//! socket drive the very same code. Must not know bytes.
//!
//! # Rules
//!
//! - The first packet's first token has index 0, unless silence was filled before it: then index 0 was sampled when the
//!   source was opened.
//! - A packet with a position (a number or a time stamp) has its index from it. Packets ahead of their turn are held, up
//!   to `window` of them and no longer than `limit_ns`; then what is missing before them is a gap: [`Cause::Lost`], or
//!   [`Cause::KernelDrop`] as far as the system counted datagrams that it dropped.
//! - A packet without a position follows on the one before. After a disconnection, or after silence was filled, its last
//!   token's index follows from the time since the first token and the rate instead.
//! - The time of a token is estimated by the packets with the shortest delays (`clock_line.rs`), so a sender whose
//!   clock is faster or slower than ours is followed, and delays do not add up.
//! - With [`Silence::Fill`], a token is waited for `limit_ns` beyond its time, and only while nothing arrives at all.
//! - What comes after its index was given out is dropped: a *repeat* if the token was received before, *late* if it was
//!   filled. Packets without position that exceed what time allows by more than the limit after filled silence are late
//!   as well, up to as many tokens as were filled.
//! - A packet further back than twice the window (and what was filled since tokens last came), or further ahead than time
//!   allows by a second, is kept aside. If the next packet follows on it, the sender began anew: its first token's index
//!   follows from time and rate (without a rate, it is the next). Otherwise it is dropped as *stray*. So neither a packet
//!   that strayed for a minute nor a hostile number of 2^63 makes the source fill anything. A sender that begins anew
//!   within its first packets, twice the window, cannot be told from one that repeats them.

use std::collections::VecDeque;

use crate::clock_line::ClockLine;
use crate::gap::{Cause, Gap};
use crate::sequence::SequenceCounter;

/// What is done when nothing arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    /// Wait.
    #[default]
    Stall,
    /// Fill tokens that are overdue by the limit.
    Fill,
}

/// How a timeline decides.
#[derive(Clone, Copy, Debug)]
pub struct TimelineSettings {
    /// Tokens a second, if known. [`Silence::Fill`] needs it.
    pub rate: Option<f64>,
    /// What is done when nothing arrives.
    pub silence: Silence,
    /// How long a token is waited for beyond its time, in nanoseconds.
    pub limit_ns: u64,
    /// Packets that are held at most while an earlier one is missing.
    pub window: usize,
    /// Positions that differ by up to so many tokens from the one that is due are taken for it: time stamps are rounded.
    pub tolerance: u64,
}

/// Where a packet says that it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketPlace {
    /// It does not say.
    Unknown,
    /// A number that counts packets, with so many bits.
    Number(u64, u32),
    /// Position of its first token, from an arbitrary moment on.
    Token(i128),
}

/// What a timeline needs to know of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Where it belongs.
    pub place: PacketPlace,
    /// Tokens in it.
    pub tokens: u64,
    /// When it arrived.
    pub arrival_ns: u64,
    /// Datagrams that the system dropped before it.
    pub kernel_drops: u64,
}

/// What to do next; `P` is a packet that was kept.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<P> {
    /// Give out tokens of the packet that was just handed in.
    Current {
        /// Leave out so many at its beginning.
        skip: u64,
        /// Then give out so many.
        take: u64,
    },
    /// Give out tokens of a packet that was kept.
    Kept {
        /// The packet.
        packet: P,
        /// Leave out so many at its beginning.
        skip: u64,
        /// Then give out so many.
        take: u64,
    },
    /// Give out fill tokens.
    Fill(Gap),
    /// A packet that was kept is of no use.
    Discard(P),
}

/// What a timeline has counted, in tokens where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimelineCounts {
    /// Packets handed in.
    pub packets: u64,
    /// Tokens in them.
    pub received: u64,
    /// Dropped: their indexes had been received before.
    pub repeats: u64,
    /// Dropped: their indexes had been filled before.
    pub late: u64,
    /// Dropped: nothing followed on a packet that was far from its turn.
    pub stray: u64,
    /// Packets that came after a later one, and were put in order.
    pub reordered_packets: u64,
    /// Times that the sender began anew.
    pub restarts: u64,
}

/// A packet that waits for those before it.
#[derive(Debug)]
struct Held<P> {
    index: u64,
    tokens: u64,
    arrival_ns: u64,
    packet: P,
}

/// A packet far from its turn.
#[derive(Debug)]
struct Aside<P> {
    position: i128,
    tokens: u64,
    arrival_ns: u64,
    packet: P,
}

/// How many filled gaps are remembered to tell late tokens from repeats.
const MAX_REMEMBERED: usize = 256;
/// A jump ahead of what time allows by more than so many nanoseconds is not believed at once.
const MAX_AHEAD_NS: f64 = 1e9;
/// Without a rate, a jump of more than so many tokens is not believed at once.
const MAX_JUMP: i128 = 1 << 24;
/// So long after filled silence tokens may still come that were filled.
const BACKLOG_NS: u64 = 1_000_000_000;

/// The order of a source's tokens.
#[derive(Debug)]
pub struct Timeline<P> {
    settings: TimelineSettings,
    sequence: SequenceCounter,
    steps: VecDeque<Step<P>>,
    /// Index of the token that is due.
    next: u64,
    /// Index of position 0, once it is known.
    shift: Option<i128>,
    /// By index, without repeats.
    held: Vec<Held<P>>,
    aside: Option<Aside<P>>,
    clock: Option<ClockLine>,
    opened_ns: u64,
    last_arrival_ns: Option<u64>,
    is_connected: bool,
    /// There was no connection since the last token.
    was_disconnected: bool,
    /// Tokens that were filled for silence since tokens last came in their turn.
    filled_silence: u64,
    /// Of those, how many may still come, and since when tokens come again.
    backlog: u64,
    resumed_ns: u64,
    /// Tokens in datagrams that the system dropped and that no gap was found for yet.
    kernel_dropped: u64,
    /// Highest end of a packet so far.
    highest_end: u64,
    largest_packet: u64,
    remembered: VecDeque<Gap>,
    counts: TimelineCounts,
}

impl<P> Timeline<P> {
    /// The timeline of a source that is opened at `now_ns`. Sources without connections are connected from the start.
    pub fn new(settings: TimelineSettings, now_ns: u64, is_connected: bool) -> Self {
        Self {
            settings,
            sequence: SequenceCounter::default(),
            steps: VecDeque::with_capacity(2 * settings.window + 8),
            next: 0,
            shift: None,
            held: Vec::with_capacity(settings.window + 1),
            aside: None,
            clock: None,
            opened_ns: now_ns,
            last_arrival_ns: None,
            is_connected,
            was_disconnected: false,
            filled_silence: 0,
            backlog: 0,
            resumed_ns: 0,
            kernel_dropped: 0,
            highest_end: 0,
            largest_packet: 0,
            remembered: VecDeque::with_capacity(MAX_REMEMBERED),
            counts: TimelineCounts::default(),
        }
    }

    /// What was counted so far.
    pub fn counts(&self) -> &TimelineCounts {
        &self.counts
    }

    /// Index of the next token to be given out.
    pub fn next_index(&self) -> u64 {
        self.next
    }

    /// What to do next; `None` until something happens. Whoever hands in a packet takes all steps before the next one.
    pub fn next_step(&mut self) -> Option<Step<P>> {
        self.steps.pop_front()
    }

    /// A connection was made.
    pub fn connected(&mut self) {
        self.is_connected = true;
    }

    /// The connection is gone: tokens are lost until the next one.
    pub fn disconnected(&mut self) {
        self.flush_held();
        self.is_connected = false;
        self.was_disconnected = true;
        self.backlog = 0;
    }

    /// Time has passed: packets that were held too long are given out, and overdue tokens are filled.
    pub fn tick(&mut self, now_ns: u64) {
        let limit_ns = self.settings.limit_ns;
        let oldest_ns = self.held.iter().map(|held| held.arrival_ns).min();
        if oldest_ns.is_some_and(|oldest_ns| now_ns.saturating_sub(oldest_ns) >= limit_ns) {
            self.flush_held();
        }

        let quiet_since_ns = self.last_arrival_ns.unwrap_or(self.opened_ns);
        let is_quiet = now_ns.saturating_sub(quiet_since_ns) >= limit_ns;
        if self.settings.silence != Silence::Fill || !is_quiet {
            return;
        }
        let Some(clock) = self.clock_or_begin(self.opened_ns, 0, true) else {
            return;
        };
        let due_index = clock.index_at(now_ns.saturating_sub(limit_ns)) as u64;
        let overdue = due_index.saturating_sub(self.next);
        if overdue > 0 {
            self.filled_silence += overdue;
            self.fill(overdue, self.outage_cause());
        }
    }

    /// Tokens are missing that the source knows of.
    pub fn missing(&mut self, tokens: u64, cause: Cause) {
        self.fill(tokens, cause);
    }

    /// A packet arrived. `keep` gives what stands for it if it has to wait.
    pub fn packet(&mut self, packet: &Packet, keep: impl FnOnce() -> P) {
        self.counts.packets += 1;
        self.counts.received += packet.tokens;
        if packet.tokens == 0 {
            return;
        }
        self.largest_packet = self.largest_packet.max(packet.tokens);
        let dropped = packet.kernel_drops.saturating_mul(packet.tokens);
        self.kernel_dropped = self.kernel_dropped.saturating_add(dropped);

        match packet.place {
            PacketPlace::Unknown => self.unplaced(packet),
            PacketPlace::Token(position) => self.placed(packet, position, keep),
            PacketPlace::Number(number, bits) => {
                let restarts = self.counts.restarts;
                let position = self.sequence.position(number, bits, packet.tokens);
                self.placed(packet, position, keep);
                if self.counts.restarts != restarts {
                    self.sequence.begin_anew();
                }
            }
        }
        self.last_arrival_ns = Some(packet.arrival_ns);
    }

    /// The clock's line, which begins here if it has none.
    fn clock_or_begin(&mut self, time_ns: u64, index: u64, is_known: bool) -> Option<ClockLine> {
        if self.clock.is_none() {
            let rate = self.settings.rate;
            self.clock = rate.map(|rate| ClockLine::new(rate, time_ns, index, is_known));
        }
        self.clock
    }

    fn observe(&mut self, index: u64, time_ns: u64) {
        self.clock_or_begin(time_ns, index, false);
        if let Some(clock) = &mut self.clock {
            clock.observe(index, time_ns);
        }
    }

    /// Where a packet's first token is by time alone, if its last one was sampled on arrival; never before what is due.
    fn index_by_time(&mut self, tokens: u64, arrival_ns: u64) -> u64 {
        if let Some(clock) = &mut self.clock {
            clock.begin_part();
        }
        let by_time = self.clock.map_or(0.0, |clock| clock.index_at(arrival_ns));
        (by_time.round() as u64)
            .saturating_sub(tokens)
            .max(self.next)
    }

    /// Tokens came in their turn.
    fn resumed(&mut self, arrival_ns: u64) {
        if self.filled_silence > 0 {
            self.backlog = self.filled_silence;
            self.resumed_ns = arrival_ns;
        }
        self.filled_silence = 0;
        self.was_disconnected = false;
    }

    fn remember(&mut self, gap: Gap) {
        if self
            .remembered
            .back_mut()
            .is_some_and(|last| last.extend(&gap))
        {
            return;
        }
        if self.remembered.len() == MAX_REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(gap);
    }

    fn fill(&mut self, tokens: u64, cause: Cause) {
        if tokens == 0 {
            return;
        }
        let gap = Gap {
            first: self.next,
            length: tokens,
            cause,
        };
        self.remember(gap);
        self.steps.push_back(Step::Fill(gap));
        self.next += tokens;
    }

    /// Fills up to an index for packets that did not come.
    fn fill_lost(&mut self, until: u64) {
        let missing = until.saturating_sub(self.next);
        let cause = match self.kernel_dropped >= missing {
            true => Cause::KernelDrop,
            false => Cause::Lost,
        };
        self.kernel_dropped = self.kernel_dropped.saturating_sub(missing);
        self.fill(missing, cause);
    }

    /// Fills up to where a stream goes on after an outage.
    fn fill_outage(&mut self, until: u64) {
        self.fill(until.saturating_sub(self.next), self.outage_cause());
    }

    /// Why nothing comes: a connection that has given no token yet is as good as none.
    fn outage_cause(&self) -> Cause {
        match self.is_connected && !self.was_disconnected {
            true => Cause::Silence,
            false => Cause::Disconnected,
        }
    }

    /// A packet without a position.
    fn unplaced(&mut self, packet: &Packet) {
        let is_first = self.last_arrival_ns.is_none() && self.next == 0;
        let after_outage = self.was_disconnected || self.filled_silence > 0;
        let mut skip = 0;
        if after_outage && !is_first {
            let resumes_at = self.index_by_time(packet.tokens, packet.arrival_ns);
            self.fill_outage(resumes_at);
            self.kernel_dropped = 0;
        } else {
            let dropped = self.kernel_dropped;
            self.fill_lost(self.next.saturating_add(dropped));
            skip = self.beyond_time(packet);
        }

        let was_disconnected = self.was_disconnected;
        self.resumed(packet.arrival_ns);
        if was_disconnected {
            // A new connection has nothing of what was sent before it.
            self.backlog = 0;
        }
        self.counts.late += skip;
        let take = packet.tokens - skip;
        self.steps.push_back(Step::Current { skip, take });
        self.next += take;
        self.observe(self.next, packet.arrival_ns);
    }

    /// Tokens of a packet without position for which there was no time since silence was filled: those that were filled.
    fn beyond_time(&mut self, packet: &Packet) -> u64 {
        if packet.arrival_ns.saturating_sub(self.resumed_ns) > BACKLOG_NS {
            self.backlog = 0;
        }
        let Some(clock) = self.clock.filter(|_| self.backlog > 0) else {
            return 0;
        };
        let limit_ns = self.settings.limit_ns;
        let latest_end = clock.index_at(packet.arrival_ns.saturating_add(limit_ns)) as u64;
        let end = self.next + packet.tokens;
        let excess = end.saturating_sub(latest_end);
        let late = excess.min(packet.tokens).min(self.backlog);
        self.backlog -= late;
        late
    }

    /// A packet with a position.
    fn placed(&mut self, packet: &Packet, position: i128, keep: impl FnOnce() -> P) {
        let Some(shift) = self.shift else {
            self.begin_at(position, packet.tokens, packet.arrival_ns);
            self.give_current(packet, 0);
            return;
        };

        let mut index = position + shift;
        let ahead = index - i128::from(self.next);
        if ahead.unsigned_abs() <= u128::from(self.settings.tolerance) {
            index = i128::from(self.next);
        }
        if self.is_plausible(index, packet) {
            self.drop_aside();
            // It is within the range of indexes, or behind the first one.
            self.in_range(index, packet, keep);
            return;
        }

        let follows = self
            .aside
            .take_if(|aside| aside.position + i128::from(aside.tokens) == position);
        let Some(aside) = follows else {
            self.drop_aside();
            self.aside = Some(Aside {
                position,
                tokens: packet.tokens,
                arrival_ns: packet.arrival_ns,
                packet: keep(),
            });
            return;
        };
        self.restart(aside);
        self.give_current(packet, 0);
    }

    /// Whether a packet may have this index without having been sent by a sender that began anew.
    fn is_plausible(&self, index: i128, packet: &Packet) -> bool {
        let end = index + i128::from(packet.tokens);
        let window = i128::from(self.largest_packet) * (self.settings.window as i128 + 1);
        let next = i128::from(self.next);

        let back = i128::from(self.filled_silence) + 2 * window;
        let allowed_end = match self.clock {
            Some(clock) => {
                let by_time = clock.index_at(packet.arrival_ns) + clock.tokens_in(MAX_AHEAD_NS);
                by_time as i128
            }
            None => next + MAX_JUMP,
        };
        let ahead = allowed_end.max(next + window) + i128::from(packet.tokens);
        end > next - back && end <= ahead
    }

    /// The first packet of a sender: from here on positions are known.
    fn begin_at(&mut self, position: i128, tokens: u64, arrival_ns: u64) {
        let is_first = self.last_arrival_ns.is_none() && self.next == 0;
        if !is_first {
            let begins_at = self.index_by_time(tokens, arrival_ns);
            self.fill_outage(begins_at);
        }
        self.shift = Some(i128::from(self.next) - position);
    }

    /// The sender began anew with the packet that was kept aside; what it sent before is complete.
    fn restart(&mut self, first: Aside<P>) {
        self.flush_held();
        self.counts.restarts += 1;
        self.kernel_dropped = 0;
        let begins_at = self.index_by_time(first.tokens, first.arrival_ns);
        let cause = match self.was_disconnected || self.filled_silence > 0 {
            true => self.outage_cause(),
            false => Cause::Lost,
        };
        self.fill(begins_at.saturating_sub(self.next), cause);
        self.shift = Some(i128::from(self.next) - first.position);

        self.steps.push_back(Step::Kept {
            packet: first.packet,
            skip: 0,
            take: first.tokens,
        });
        self.gave(first.tokens, first.arrival_ns);
    }

    fn drop_aside(&mut self) {
        if let Some(aside) = self.aside.take() {
            self.counts.stray += aside.tokens;
            self.steps.push_back(Step::Discard(aside.packet));
        }
    }

    /// Tokens of the due index were given out.
    fn gave(&mut self, tokens: u64, arrival_ns: u64) {
        self.next += tokens;
        self.highest_end = self.highest_end.max(self.next);
        self.resumed(arrival_ns);
        self.backlog = 0;
        self.observe(self.next, arrival_ns);
    }

    fn give_current(&mut self, packet: &Packet, skip: u64) {
        let take = packet.tokens - skip;
        self.steps.push_back(Step::Current { skip, take });
        self.gave(take, packet.arrival_ns);
    }

    /// A packet that is near its turn.
    fn in_range(&mut self, index: i128, packet: &Packet, keep: impl FnOnce() -> P) {
        let behind = i128::from(self.next) - index;
        let skip = u64::try_from(behind).unwrap_or(0).min(packet.tokens);
        if skip > 0 {
            self.count_old(index, skip);
        }
        if skip == packet.tokens {
            return;
        }

        // What is left ends after the due index, and no further ahead than is plausible.
        let end = (index + i128::from(packet.tokens)) as u64;
        if index <= i128::from(self.next) {
            let is_reordered = end < self.highest_end;
            self.counts.reordered_packets += u64::from(is_reordered);
            self.give_current(packet, skip);
            self.give_held();
            return;
        }
        let index = index as u64;
        if self.settings.window == 0 {
            self.fill_lost(index);
            self.give_current(packet, 0);
            return;
        }
        self.hold(index, packet, keep);
    }

    /// Keeps a packet until those before it have come, or too many wait.
    fn hold(&mut self, index: u64, packet: &Packet, keep: impl FnOnce() -> P) {
        let place = match self.held.binary_search_by_key(&index, |held| held.index) {
            Ok(_) => {
                self.counts.repeats += packet.tokens;
                return;
            }
            Err(place) => place,
        };
        let end = index + packet.tokens;
        self.counts.reordered_packets += u64::from(end < self.highest_end);
        self.highest_end = self.highest_end.max(end);
        let held = Held {
            index,
            tokens: packet.tokens,
            arrival_ns: packet.arrival_ns,
            packet: keep(),
        };
        self.held.insert(place, held);
        if self.held.len() > self.settings.window {
            self.fill_lost(self.held[0].index);
            self.give_held();
        }
    }

    /// Gives out the held packets whose turn has come.
    fn give_held(&mut self) {
        while self
            .held
            .first()
            .is_some_and(|held| held.index <= self.next)
        {
            let held = self.held.remove(0);
            let skip = (self.next - held.index).min(held.tokens);
            self.counts.repeats += skip;
            let take = held.tokens - skip;
            if take == 0 {
                self.steps.push_back(Step::Discard(held.packet));
                continue;
            }
            self.steps.push_back(Step::Kept {
                packet: held.packet,
                skip,
                take,
            });
            self.gave(take, held.arrival_ns);
        }
    }

    /// Gives out all held packets, with gaps for what is missing between them.
    fn flush_held(&mut self) {
        while let Some(first) = self.held.first() {
            self.fill_lost(first.index);
            self.give_held();
        }
    }

    /// Counts tokens that are dropped: repeats where they had been received, and late where they had been filled.
    fn count_old(&mut self, index: i128, tokens: u64) {
        let end = index + i128::from(tokens);
        let overlap = |gap: &Gap| {
            let first = i128::from(gap.first).max(index);
            let last = i128::from(gap.end()).min(end);
            (last - first).max(0) as u64
        };
        let late: u64 = self.remembered.iter().map(overlap).sum();
        self.counts.late += late;
        self.counts.repeats += tokens - late;
    }
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
