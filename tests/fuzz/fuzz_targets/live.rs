//! What strangers send to live streams: datagrams, hellos and commands of any bytes are read or refused, and whatever
//! numbers, time stamps and times their packets have, tokens come out in order and without holes.
//!
//! `FAMILY=urls` in the environment spends the whole time on one family of parsers; see `FAMILIES`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use zbmd_ir::{DType, TokenType};
use zbmd_live::bridge::{RecordReader, RecordWriter};
use zbmd_live::packet::{rtl_tcp, seq, vita49};
use zbmd_live::sigmf::{Recording, Segment};
use zbmd_live::{Packet, PacketPlace, Silence, SinkUrl, SourceUrl, Step, Timeline, TimelineSettings};

type Family = (&'static str, fn(u8, &[u8]));

const FAMILIES: [Family; 6] = [
    ("datagrams", |_, bytes| datagrams(bytes)),
    ("receivers", |_, bytes| receivers(bytes)),
    ("urls", |_, bytes| urls(bytes)),
    ("bridge_records", |_, bytes| bridge_records(bytes)),
    ("recordings", |_, bytes| recordings(bytes)),
    ("packets", packets),
];

static CHOSEN: LazyLock<Option<Family>> = LazyLock::new(|| {
    let name = std::env::var("FAMILY").ok()?;
    let found = FAMILIES.into_iter().find(|family| family.0 == name);
    Some(found.unwrap_or_else(|| panic!("FAMILY={name} is none of live.rs")))
});

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, rest)) = bytes.split_first() else {
        return;
    };
    let place = usize::from(*choice) % FAMILIES.len();
    let (_, run) = CHOSEN.unwrap_or(FAMILIES[place]);
    run(*choice, rest);
});

/// Parts of a datagram lie within it.
fn datagrams(bytes: &[u8]) {
    if let Some((number, payload)) = seq::split(bytes) {
        assert_eq!([&seq::header(number)[..], payload].concat(), bytes);
    }
    let Ok(vita49::Vita49::Data {
        prologue, payload, ..
    }) = vita49::parse(bytes)
    else {
        return;
    };
    let payload = &bytes[payload];
    let mut tokens = Vec::new();
    for dtype in DType::ALL {
        vita49::to_native(payload, dtype, &mut tokens);
        assert_eq!(tokens.len(), payload.len());
    }
    for rate_micro in [1, 48_000_000_000, 1_000_000_000_000_000_000] {
        vita49::position(&prologue, rate_micro);
    }
}

/// A record that is read is written as it was, but for actions that are one.
fn bridge_records(bytes: &[u8]) {
    let Ok(mut reader) = RecordReader::new(bytes) else {
        return;
    };
    let mut actions = Vec::new();
    while let Ok(Some(action)) = reader.next_action() {
        actions.push(action);
    }
    let mut text = Vec::new();
    let mut writer = RecordWriter::new(&mut text, reader.record()).expect("memory");
    for action in &actions {
        writer.add(*action).expect("memory");
    }
    writer.finish().expect("memory");

    let mut again = RecordReader::new(&text[..]).expect("our own");
    let mut left = actions.into_iter();
    while let Ok(Some(action)) = again.next_action() {
        // As many of the first as it was made of.
        let mut made = left.next().expect("an action");
        while made != action {
            assert!(made.merge(left.next().expect("an action")));
        }
    }
    assert!(left.next().is_none());
}

/// Hellos and commands come back as they were.
fn receivers(bytes: &[u8]) {
    if let Some((hello, _)) = bytes.split_first_chunk()
        && let Some(parsed) = rtl_tcp::Hello::parse(hello)
    {
        assert_eq!(&parsed.bytes(), hello);
    }
    let mut reader = rtl_tcp::CommandReader::default();
    let mut sent_again = Vec::new();
    for piece in bytes.chunks(3) {
        reader.read(piece, |command| sent_again.extend(command.bytes()));
    }
    assert!(bytes.starts_with(&sent_again));
    assert!(bytes.len() - sent_again.len() < rtl_tcp::COMMAND_BYTES);
}

fn urls(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = SourceUrl::parse(text).map_err(|error| error.to_string());
        let _ = SinkUrl::parse(text).map_err(|error| error.to_string());
    }
}

/// What is read of a recording lies within its data, in order.
fn recordings(bytes: &[u8]) {
    let Some((data_bytes, meta)) = bytes.split_first_chunk() else {
        return;
    };
    let data_bytes = u64::from(u32::from_le_bytes(*data_bytes));
    for dtype in DType::ALL {
        let token = TokenType::new(dtype, [2]);
        let Ok(recording) = Recording::parse(meta, data_bytes, &token) else {
            continue;
        };
        let mut read_to = 0;
        for segment in recording.segments {
            if let Segment::Data { at_byte, tokens } | Segment::Filled { at_byte, tokens, .. } = segment {
                assert!(at_byte >= read_to);
                read_to = at_byte + tokens * token.bytes();
                assert!(read_to <= data_bytes);
            }
        }
    }
}

/// A packet for each 12 bytes.
fn packets(choice: u8, bytes: &[u8]) {
    let settings = TimelineSettings {
        rate: (choice & 8 != 0).then_some(1e4),
        silence: match choice & 24 {
            24 => Silence::Fill,
            _ => Silence::Stall,
        },
        limit_ns: 1_000_000,
        window: usize::from(choice >> 5),
        tolerance: 1,
    };
    let mut timeline: Timeline<u64> = Timeline::new(settings, 0, true);
    let mut now_ns = 0u64;
    let mut next_index = 0;
    for piece in bytes.as_chunks::<12>().0 {
        let [kind, time, tokens, _, number @ ..] = *piece;
        let number = u64::from_le_bytes(number);
        now_ns += u64::from(time) * 100_000;
        match kind % 16 {
            0 => timeline.disconnected(),
            1 => timeline.connected(),
            _ => {}
        }
        timeline.tick(now_ns);
        let packet = Packet {
            place: match kind % 4 {
                0 => PacketPlace::Unknown,
                1 => PacketPlace::Token(i128::from(number)),
                2 => PacketPlace::Number(number, 4),
                _ => PacketPlace::Number(number, 64),
            },
            tokens: u64::from(tokens),
            arrival_ns: now_ns,
            kernel_drops: u64::from(kind >> 6),
        };
        check_steps(&mut timeline, &mut next_index, 0);
        timeline.packet(&packet, || packet.tokens);
        check_steps(&mut timeline, &mut next_index, packet.tokens);
    }
    assert_eq!(timeline.next_index(), next_index);
}

/// Every step begins where the one before ended, and gives no more than there is.
fn check_steps(timeline: &mut Timeline<u64>, next_index: &mut u64, current_tokens: u64) {
    while let Some(step) = timeline.next_step() {
        match step {
            Step::Current { skip, take } => {
                assert!(skip + take <= current_tokens);
                *next_index += take;
            }
            Step::Kept { packet, skip, take } => {
                assert!(skip + take <= packet);
                *next_index += take;
            }
            Step::Fill(gap) => {
                assert_eq!(gap.first, *next_index);
                *next_index += gap.length;
            }
            Step::Discard(_) => {}
        }
    }
}
