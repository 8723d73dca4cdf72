use super::*;

/// What comes out of a timeline: `5..9` tokens of index 5 to 8, `lost 9..12` a gap.
struct Receiver {
    timeline: Timeline<()>,
    said: Vec<String>,
}

const MS: u64 = 1_000_000;

/// 1000 tokens a second, so a token a millisecond; a limit of 50 ms.
const SETTINGS: TimelineSettings = TimelineSettings {
    rate: Some(1000.0),
    silence: Silence::Fill,
    limit_ns: 50 * MS,
    window: 2,
    tolerance: 0,
};

impl Receiver {
    fn new(settings: TimelineSettings) -> Self {
        Self {
            timeline: Timeline::new(settings, 0, true),
            said: Vec::new(),
        }
    }

    fn say(&mut self) {
        let mut index = self.timeline.next_index();
        let mut steps = Vec::new();
        while let Some(step) = self.timeline.next_step() {
            steps.push(step);
        }
        // The timeline is ahead of the steps: their sizes tell where they begin.
        let size = |step: &Step<()>| match step {
            Step::Current { take, .. } | Step::Kept { take, .. } => *take,
            Step::Fill(gap) => gap.length,
            Step::Discard(()) => 0,
        };
        index -= steps.iter().map(size).sum::<u64>();
        for step in steps {
            let end = index + size(&step);
            match step {
                Step::Fill(gap) => {
                    assert_eq!((gap.first, gap.end()), (index, end));
                    self.said.push(format!("{} {index}..{end}", gap.cause));
                }
                Step::Discard(()) => {}
                _ if index == end => {}
                _ => self.said.push(format!("{index}..{end}")),
            }
            index = end;
        }
    }

    fn packet(&mut self, ms: u64, place: PacketPlace, tokens: u64) -> &mut Self {
        let packet = Packet {
            place,
            tokens,
            arrival_ns: ms * MS,
            kernel_drops: 0,
        };
        self.timeline.packet(&packet, || ());
        self.say();
        self
    }

    /// A packet of 10 tokens with a number.
    fn number(&mut self, ms: u64, number: u64) -> &mut Self {
        self.packet(ms, PacketPlace::Number(number, 64), 10)
    }

    /// A packet of 10 tokens without a position.
    fn bytes(&mut self, ms: u64) -> &mut Self {
        self.packet(ms, PacketPlace::Unknown, 10)
    }

    fn tick(&mut self, ms: u64) -> &mut Self {
        self.timeline.tick(ms * MS);
        self.say();
        self
    }

    fn said(&mut self) -> String {
        std::mem::take(&mut self.said).join(", ")
    }
}

#[test]
fn numbers_put_packets_in_order() {
    let mut receiver = Receiver::new(SETTINGS);
    receiver
        .number(10, 7)
        .number(20, 9)
        .number(21, 8)
        .number(40, 10);
    assert_eq!(receiver.said(), "0..10, 10..20, 20..30, 30..40");
    assert_eq!(receiver.timeline.counts().reordered_packets, 1);

    // The third packet that waits shows that the first will not come.
    receiver.number(60, 12).number(70, 13);
    assert_eq!(receiver.said(), "");
    receiver.number(80, 14);
    assert_eq!(receiver.said(), "lost 40..50, 50..60, 60..70, 70..80");

    // What comes after all is late, what comes again a repeat.
    receiver.number(81, 11).number(82, 14).number(83, 9);
    assert_eq!(receiver.said(), "");
    let counts = receiver.timeline.counts();
    assert_eq!((counts.late, counts.repeats), (10, 20));
}

#[test]
fn a_packet_that_waits_is_not_held_for_longer_than_the_limit() {
    let mut receiver = Receiver::new(SETTINGS);
    receiver.number(10, 1).number(30, 3).tick(79);
    assert_eq!(receiver.said(), "0..10");
    receiver.tick(80);
    assert_eq!(receiver.said(), "lost 10..20, 20..30");
}

#[test]
fn silence_is_filled_behind_time_and_what_comes_late_is_counted() {
    let mut receiver = Receiver::new(SETTINGS);
    receiver.number(10, 1).tick(59);
    assert_eq!(receiver.said(), "0..10");
    receiver.tick(80).tick(100);
    assert_eq!(receiver.said(), "silence 10..30, silence 30..50");
    // Packets 2 to 4 and half of 6 were filled.
    receiver.number(101, 2).number(102, 6);
    assert_eq!(receiver.said(), "50..60");
    receiver
        .tick(165)
        .packet(166, PacketPlace::Number(7, 64), 10);
    assert_eq!(receiver.said(), "silence 60..115");
    assert_eq!(receiver.timeline.counts().late, 20);
}

#[test]
fn a_source_that_never_speaks_is_filled_from_its_opening_on() {
    let mut receiver = Receiver::new(SETTINGS);
    receiver.tick(49).tick(150).bytes(170);
    assert_eq!(
        receiver.said(),
        "silence 0..100, silence 100..160, 160..170"
    );
    // Stalling sources wait.
    let mut receiver = Receiver::new(TimelineSettings {
        silence: Silence::Stall,
        ..SETTINGS
    });
    receiver.tick(1000).bytes(2000).tick(9000).bytes(9000);
    assert_eq!(receiver.said(), "0..10, 10..20");
}

#[test]
fn after_a_disconnection_time_tells_the_index() {
    let mut receiver = Receiver::new(SETTINGS);
    receiver.bytes(10).bytes(20);
    receiver.timeline.disconnected();
    receiver.tick(100);
    receiver.timeline.connected();
    receiver.bytes(130).bytes(140);
    assert_eq!(
        receiver.said(),
        "0..10, 10..20, disconnected 20..50, disconnected 50..120, 120..130, 130..140"
    );
}

#[test]
fn bytes_that_were_only_delayed_are_not_given_twice_their_time() {
    let mut receiver = Receiver::new(SETTINGS);
    receiver.bytes(10).tick(200);
    assert_eq!(receiver.said(), "0..10, silence 10..150");
    // A backlog: 190 ms of tokens at once, of which 140 ms were filled; the limit's 50 ms may be ahead of time.
    receiver.packet(201, PacketPlace::Unknown, 10);
    assert_eq!(receiver.said(), "silence 150..191, 191..201");
    receiver.packet(201, PacketPlace::Unknown, 181);
    assert_eq!(receiver.said(), "201..251");
    assert_eq!(receiver.timeline.counts().late, 131);
    // Nothing is dropped for ever.
    receiver.packet(1300, PacketPlace::Unknown, 10);
    assert_eq!(receiver.said(), "251..261");
}

#[test]
fn a_sender_that_begins_anew_goes_on_where_time_is() {
    let mut receiver = Receiver::new(SETTINGS);
    for number in 100..110 {
        receiver.number(10 * (number - 99), number);
    }
    receiver.said();
    // The first packet is kept aside until the second follows on it.
    receiver.number(130, 1);
    assert_eq!(receiver.said(), "");
    receiver.number(140, 2).number(150, 3);
    assert_eq!(
        receiver.said(),
        "lost 100..120, 120..130, 130..140, 140..150"
    );
    assert_eq!(receiver.timeline.counts().restarts, 1);
}

#[test]
fn hostile_numbers_fill_nothing() {
    let mut receiver = Receiver::new(SETTINGS);
    receiver.number(10, 5);
    for (step, number) in [1 << 63, u64::MAX, 0, (1 << 63) + 10, 1 << 40]
        .into_iter()
        .enumerate()
    {
        receiver.number(11, number);
        receiver.number(20 + 10 * step as u64, 6 + step as u64);
    }
    let given = receiver.timeline.next_index();
    assert_eq!(given, 60);
    assert!(!receiver.said().contains("lost"));
    // One may come true by being followed: then time decides, and not the number.
    receiver.number(70, 1 << 63).number(80, (1 << 63) + 1);
    assert_eq!(receiver.said(), "60..70, 70..80");
}

#[test]
fn numbers_wrap() {
    let mut receiver = Receiver::new(SETTINGS);
    receiver.number(10, u64::MAX - 1).number(20, u64::MAX);
    receiver.number(30, 0).number(50, 2).number(51, 1);
    assert_eq!(receiver.said(), "0..10, 10..20, 20..30, 30..40, 40..50");
}

#[test]
fn datagrams_that_the_system_dropped_are_told_apart() {
    let mut receiver = Receiver::new(SETTINGS);
    receiver.bytes(10);
    let packet = Packet {
        place: PacketPlace::Unknown,
        tokens: 10,
        arrival_ns: 40 * MS,
        kernel_drops: 2,
    };
    receiver.timeline.packet(&packet, || ());
    receiver.say();
    assert_eq!(receiver.said(), "0..10, kernel drop 10..30, 30..40");
}

/// SplitMix64 (Steele, Lea & Flood 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What a sender did to its packets.
#[derive(Debug, Default)]
struct SenderLog {
    dropped: Vec<(u64, u64)>,
    repeated_tokens: u64,
    swaps: u64,
}

/// The order in which packets are sent: some not, some twice, some exchanged with the next.
fn send_order(seed: u64, packets: u64, tokens: u64) -> (Vec<u64>, SenderLog) {
    let mut state = seed;
    let mut order = Vec::new();
    let mut log = SenderLog::default();
    let mut number = 0;
    while number < packets {
        // The first packets show where the stream begins, the last ones that nothing is missing.
        let is_edge = number < 2 || number + 20 > packets;
        let chance = if is_edge {
            999
        } else {
            random(&mut state) % 1000
        };
        match chance {
            0..10 => match log.dropped.last_mut() {
                Some((first, count)) if *first + *count == number * tokens => *count += tokens,
                _ => log.dropped.push((number * tokens, tokens)),
            },
            10..15 => {
                order.extend([number, number]);
                log.repeated_tokens += tokens;
            }
            15..20 => {
                order.extend([number + 1, number]);
                log.swaps += 1;
                number += 1;
            }
            _ => order.push(number),
        }
        number += 1;
    }
    (order, log)
}

/// A timeline's gaps for a sender with these first numbers, of packets of `tokens` tokens.
fn check_sender(seed: u64, packets: u64, first_number: u64, bits: u32) {
    const TOKENS: u64 = 7;
    let (order, log) = send_order(seed, packets, TOKENS);
    let settings = TimelineSettings {
        rate: Some(1e6),
        window: 4,
        ..SETTINGS
    };
    let mut timeline: Timeline<u64> = Timeline::new(settings, 0, true);
    let mut gaps: Vec<Gap> = Vec::new();
    let mut next_index = 0;
    for (step, number) in order.into_iter().enumerate() {
        let packet = Packet {
            place: PacketPlace::Number(first_number.wrapping_add(number), bits),
            tokens: TOKENS,
            arrival_ns: step as u64 * TOKENS * 1000,
            kernel_drops: 0,
        };
        timeline.packet(&packet, || number);
        while let Some(step) = timeline.next_step() {
            let (given_number, take) = match step {
                Step::Current { skip: 0, take } => (number, take),
                Step::Kept {
                    packet,
                    skip: 0,
                    take,
                } => (packet, take),
                Step::Fill(gap) => {
                    assert_eq!((gap.first, gap.cause), (next_index, Cause::Lost));
                    next_index += gap.length;
                    if !gaps.last_mut().is_some_and(|last| last.extend(&gap)) {
                        gaps.push(gap);
                    }
                    continue;
                }
                other => panic!("seed {seed}: {other:?}"),
            };
            assert_eq!(
                (given_number * TOKENS, TOKENS),
                (next_index, take),
                "seed {seed}"
            );
            next_index += take;
        }
    }

    let found: Vec<(u64, u64)> = gaps.iter().map(|gap| (gap.first, gap.length)).collect();
    assert!(found == log.dropped, "seed {seed}: {found:?} {log:?}");
    let counts = timeline.counts();
    assert_eq!(next_index, packets * TOKENS, "seed {seed}");
    assert_eq!(counts.repeats, log.repeated_tokens, "seed {seed}");
    assert_eq!(counts.reordered_packets, log.swaps, "seed {seed}");
    assert_eq!(
        (counts.late, counts.stray, counts.restarts),
        (0, 0, 0),
        "seed {seed}"
    );
}

#[test]
fn the_list_of_gaps_is_the_senders_log() {
    for seed in 0..200 {
        check_sender(seed, 2_000, seed.wrapping_mul(0x1234_5678_9abc_def1), 64);
        check_sender(seed, 500, seed % 16, 4);
    }
    // Around the end of the numbers.
    check_sender(1, 5_000, u64::MAX - 2_500, 64);
    check_sender(2, 1_000_000, 1, 64);
}

/// Whatever strangers send: what comes out is in order and without holes, and a packet fills no more than it may.
#[test]
fn hostile_senders_break_nothing() {
    const MAX_TOKENS: u64 = 2_000;
    for seed in 0..300u64 {
        let mut state = seed;
        let settings = TimelineSettings {
            rate: seed.is_multiple_of(3).then_some(1e6).or(Some(50.0)),
            silence: match seed.is_multiple_of(2) {
                true => Silence::Fill,
                false => Silence::Stall,
            },
            limit_ns: MS,
            window: (seed % 5) as usize,
            tolerance: seed % 2,
        };
        let rate_per_s = settings.rate.expect("a rate") as u64;
        let mut receiver = Receiver::new(settings);
        let mut now_ms = 0;
        let mut base = random(&mut state);
        for _ in 0..400 {
            let chance = random(&mut state) % 100;
            let step_ms = if chance == 0 {
                500
            } else {
                random(&mut state) % 3
            };
            now_ms += step_ms;
            if random(&mut state).is_multiple_of(20) {
                base = random(&mut state);
            }
            let near = random(&mut state) % 40;
            let number = match random(&mut state) % 10 {
                0 => random(&mut state),
                _ => base.wrapping_add(near),
            };
            let tokens = match random(&mut state) % 8 {
                0 => random(&mut state) % MAX_TOKENS,
                _ => 10,
            };
            let place = match seed % 4 {
                0 => PacketPlace::Token(i128::from(number) * 10),
                1 => PacketPlace::Number(number, 4),
                2 if chance < 30 => PacketPlace::Unknown,
                _ => PacketPlace::Number(number, 64),
            };
            match chance {
                1 => receiver.timeline.disconnected(),
                2 => receiver.timeline.connected(),
                _ => {}
            }
            receiver.say();
            receiver.tick(now_ms);

            // `Receiver::say` looks at the order of what comes out.
            let before = receiver.timeline.next_index();
            receiver.packet(now_ms, place, tokens);
            let given = receiver.timeline.next_index() - before;
            let held = (settings.window as u64 + 2) * (MAX_TOKENS + 10);
            let outage = now_ms * rate_per_s / 1000;
            let limit =
                2 * rate_per_s + outage + 64 * MAX_TOKENS * (settings.window as u64 + 2) + held;
            assert!(given <= limit, "seed {seed}: {given} tokens for one packet");
        }
        let counts = *receiver.timeline.counts();
        let dropped = counts.repeats + counts.late + counts.stray;
        assert!(dropped <= counts.received, "seed {seed}: {counts:?}");
    }
}
