//! A feeder between a source and a run that are both in this process: full queues, what fills gaps, flags in step, and no
//! memory taken once it has run for a while.
#![expect(unsafe_code, reason = "a counting allocator is one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use zbmd_ir::{DType, TokenType};
use zbmd_live::{
    Arrival, Cause, ConsumerClosed, Feeder, FeederEnd, FeederParts, Gap, LiveReport, LiveSource,
    PacketPlace, SharedReport, SourceUrl, TokenConsumer,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: everything is the system allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Packets with numbers, one a call, then the end.
struct Packets {
    packets: Vec<(u64, Vec<u8>)>,
    next: usize,
}

impl LiveSource for Packets {
    fn receive(&mut self, _: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        let Some((number, payload)) = self.packets.get(self.next) else {
            visit(Arrival::Ended);
            return;
        };
        self.next += 1;
        visit(Arrival::Packet {
            place: PacketPlace::Number(*number, 64),
            payload,
            arrival_ns: zbmd_live::now_ns(),
            kernel_drops: 0,
        });
    }

    fn has_connections(&self) -> bool {
        false
    }
}

/// Takes tokens, as many as it has room for.
#[derive(Clone, Default)]
struct Taken {
    bytes: Arc<Mutex<Vec<u8>>>,
    token_bytes: usize,
    /// Tokens that it takes without having been waited for.
    room: u64,
}

impl Taken {
    fn new(token_bytes: usize, room: u64) -> Self {
        Self {
            bytes: Arc::default(),
            token_bytes,
            room,
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes.lock().expect("no panic").clone()).expect("letters")
    }

    fn take(&mut self, bytes: &[u8], tokens: u64) -> u64 {
        let offered = (bytes.len() / self.token_bytes) as u64;
        let taken = offered.min(tokens);
        let taken_bytes = &bytes[..taken as usize * self.token_bytes];
        self.bytes.lock().expect("no panic").extend(taken_bytes);
        taken
    }
}

impl TokenConsumer for Taken {
    fn offer(&mut self, bytes: &[u8]) -> Result<u64, ConsumerClosed> {
        let taken = self.take(bytes, self.room);
        self.room -= taken;
        Ok(taken)
    }

    fn offer_within(&mut self, bytes: &[u8], _: Duration) -> Result<u64, ConsumerClosed> {
        Ok(self.take(bytes, u64::MAX))
    }
}

/// Packets of letters: `a` has number 0, and all are as long as the first.
fn letters(words: &[&str]) -> Packets {
    let packet = |word: &&str| {
        let first = word.as_bytes()[0];
        let number = u64::from(first - b'a') / word.len() as u64;
        (number, word.as_bytes().to_vec())
    };
    Packets {
        packets: words.iter().map(packet).collect(),
        next: 0,
    }
}

/// What a run with so much room is given of these packets, its flags, and the report.
fn feed(keys: &str, words: &[&str], room: u64) -> (String, String, LiveReport) {
    let text = format!("udp://127.0.0.1:1?header=seq&silence=stall&window=0&{keys}");
    let url = SourceUrl::parse(&text).expect("right");
    let taken = Taken::new(1, room);
    let flags = Taken::new(1, u64::MAX);
    let report = SharedReport::new("a", &text, false);
    let parts = FeederParts {
        token: TokenType::scalar(DType::U8),
        model_rate: None,
        consumer: Box::new(taken.clone()),
        flags: Some(Box::new(flags.clone())),
        listener: None,
        report: report.clone(),
    };
    let feeder = Feeder::new(&url, Box::new(letters(words)), parts).expect("right");
    assert_eq!(feeder.run(&|| false), FeederEnd::SourceEnded);
    let flag_text = flags.text().replace('\0', "0").replace('\u{1}', "1");
    (taken.text().replace('\0', "."), flag_text, report.get())
}

#[test]
fn gaps_are_filled_and_flagged() {
    let words = ["ab", "cd", "ij", "kl"];
    let (tokens, flags, report) = feed("fill=zeros", &words, u64::MAX);
    assert_eq!(
        (tokens.as_str(), flags.as_str()),
        ("abcd....ijkl", "000011110000")
    );
    let gap = Gap {
        first: 4,
        length: 4,
        cause: Cause::Lost,
    };
    assert_eq!((report.gaps, report.given), (vec![gap], 12));

    let (tokens, _, _) = feed("fill=hold", &words, u64::MAX);
    assert_eq!(tokens, "abcdddddijkl");
}

#[test]
fn a_full_queue_drops_as_it_was_told_and_keeps_indexes() {
    let words = ["abc", "def", "ghi", "jkl"];
    for (keys, expect, dropped) in [
        // Two are taken at once; the queue holds four.
        ("queue=4&full=drop-newest", "abcdef......", Some((6, 6))),
        ("queue=4&full=drop-oldest", "ab......ijkl", Some((2, 6))),
        ("full=wait", "abcdefghijkl", None),
    ] {
        let (tokens, flags, report) = feed(keys, &words, 2);
        assert_eq!(tokens, expect, "{keys}");
        let is_filled = |c: char| if c == '.' { '1' } else { '0' };
        assert_eq!(
            flags,
            expect.chars().map(is_filled).collect::<String>(),
            "{keys}"
        );
        let gaps: Vec<(u64, u64)> = report.gaps.iter().map(|g| (g.first, g.length)).collect();
        assert_eq!(gaps, dropped.into_iter().collect::<Vec<_>>(), "{keys}");
        let filled = report.filled.get(&Cause::QueueFull).copied();
        assert_eq!(filled, dropped.map(|(_, length)| length), "{keys}");
    }
}

/// Gives the same packet on and on, with numbers that skip, repeat and go back by one.
struct Endless {
    payload: Vec<u8>,
    calls: u64,
    allocations_at: Arc<Mutex<Vec<u64>>>,
}

impl LiveSource for Endless {
    fn receive(&mut self, _: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        const WARM_UP: u64 = 20_000;
        if self.calls == WARM_UP || self.calls == 5 * WARM_UP {
            let allocations = ALLOCATIONS.with(Cell::get);
            self.allocations_at
                .lock()
                .expect("no panic")
                .push(allocations);
        }
        if self.calls > 5 * WARM_UP {
            visit(Arrival::Ended);
            return;
        }
        self.calls += 1;
        let number = match self.calls % 100 {
            // Not sent, sent again, exchanged with the next.
            30 => return,
            50 => self.calls - 1,
            70 => self.calls + 1,
            71 => self.calls - 1,
            _ => self.calls,
        };
        visit(Arrival::Packet {
            place: PacketPlace::Number(number, 64),
            payload: &self.payload,
            arrival_ns: zbmd_live::now_ns(),
            kernel_drops: 0,
        });
    }

    fn has_connections(&self) -> bool {
        false
    }
}

/// Takes everything and keeps nothing.
struct Nobody;

impl TokenConsumer for Nobody {
    fn offer(&mut self, bytes: &[u8]) -> Result<u64, ConsumerClosed> {
        Ok(bytes.len() as u64 / 8)
    }

    fn offer_within(&mut self, bytes: &[u8], _: Duration) -> Result<u64, ConsumerClosed> {
        self.offer(bytes)
    }
}

#[test]
fn nothing_is_allocated_once_it_has_run_for_a_while() {
    let text = "udp://127.0.0.1:1?header=seq&silence=stall&limit=1h";
    let url = SourceUrl::parse(text).expect("right");
    let report = SharedReport::new("a", text, false);
    let allocations_at: Arc<Mutex<Vec<u64>>> = Arc::default();
    let source = Endless {
        payload: vec![1; 1464],
        calls: 0,
        allocations_at: allocations_at.clone(),
    };
    let parts = FeederParts {
        token: TokenType::scalar(DType::C32),
        model_rate: None,
        consumer: Box::new(Nobody),
        flags: None,
        listener: None,
        report: report.clone(),
    };
    let feeder = Feeder::new(&url, Box::new(source), parts).expect("right");
    assert_eq!(feeder.run(&|| false), FeederEnd::SourceEnded);
    let report = report.get();
    assert!(
        report.gap_count > 500 && report.reordered_packets > 500,
        "{report:?}"
    );
    let allocations_at = allocations_at.lock().expect("no panic").clone();
    // The list of gaps is all that may still grow.
    let allocated = allocations_at[1] - allocations_at[0];
    assert!(allocated <= 8, "{allocated} allocations in 80,000 packets");
}
