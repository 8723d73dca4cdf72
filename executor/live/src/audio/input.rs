//! A sound card as a source. What it gives is kept until the feeder takes it; where the card lost frames, the timeline is
//! told that the stream was interrupted, and finds the index of what follows by time and rate.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use alsa::Direction;
use zbmd_ir::TokenType;

use super::card::{Card, CardFault, CardThread};
use crate::clock::{now_ns, sleep_until};
use crate::sink::sound_channels;
use crate::source::{Arrival, LiveSource};
use crate::timeline::PacketPlace;
use crate::url::AudioCard;

/// Blocks that are kept while the feeder does something else; further ones are lost.
const MAX_BLOCKS: usize = 256;
/// A card that went is looked for so often.
const RETRY_NS: u64 = 1_000_000_000;

/// A block that the card gave.
#[derive(Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    arrival_ns: u64,
    /// Frames were lost before it.
    is_after_loss: bool,
}

#[derive(Debug, Default)]
struct Blocks {
    waiting: Vec<Block>,
    /// Memory for more.
    free: Vec<Block>,
    has_loss: bool,
    card_is_lost: bool,
}

/// What the card's thread shares with the feeder.
#[derive(Debug, Default)]
struct Capture {
    blocks: Mutex<Blocks>,
    changed: Condvar,
}

impl Capture {
    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a block.
    fn add(&self, samples: &[f32]) {
        let arrival_ns = now_ns();
        let mut blocks = self.blocks();
        if blocks.waiting.len() >= MAX_BLOCKS {
            blocks.has_loss = true;
            return;
        }
        let mut block = blocks.free.pop().unwrap_or_default();
        block.bytes.clear();
        for sample in samples {
            block.bytes.extend_from_slice(&sample.to_ne_bytes());
        }
        block.arrival_ns = arrival_ns;
        block.is_after_loss = std::mem::take(&mut blocks.has_loss);
        blocks.waiting.push(block);
        drop(blocks);
        self.changed.notify_one();
    }
}

/// Listens.
pub(crate) struct AudioSource {
    card: AudioCard,
    rate: f64,
    channels: usize,
    /// Until it listens.
    open_card: Option<Card>,
    card_thread: Option<CardThread>,
    capture: Arc<Capture>,
    /// Taken out of the shared memory, so that the card's thread does not wait for the run.
    taken: Vec<Block>,
    is_connected: bool,
    retry_ns: u64,
}

impl AudioSource {
    pub(crate) fn open(card: &AudioCard, token: &TokenType, rate: f64) -> io::Result<Self> {
        let mut source = Self {
            card: card.clone(),
            rate,
            channels: sound_channels(token)?,
            open_card: None,
            card_thread: None,
            capture: Arc::default(),
            taken: Vec::new(),
            is_connected: false,
            retry_ns: 0,
        };
        source.open_card()?;
        Ok(source)
    }

    fn open_card(&mut self) -> io::Result<()> {
        let (name, block) = (&self.card.device, self.card.latency / 2);
        let card = Card::open(name, Direction::Capture, self.rate, self.channels, block)?;
        self.open_card = Some(card);
        Ok(())
    }

    /// Starts the card, which may be one that came back.
    fn connect(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        let now = now_ns();
        if now < self.retry_ns {
            sleep_until(self.retry_ns.min(now.saturating_add(limit_ns)));
            return;
        }
        self.retry_ns = now + RETRY_NS;
        if self.open_card.is_none() && self.open_card().is_err() {
            return;
        }
        let Some(card) = self.open_card.take() else {
            return;
        };
        let capture = Arc::clone(&self.capture);
        let started = CardThread::start("zbmd card in", move |is_over| {
            hear_blocks(card, &capture, is_over);
        });
        if let Ok(thread) = started {
            self.card_thread = Some(thread);
            self.is_connected = true;
            visit(Arrival::Connected);
        }
    }

    /// Waits for blocks; whether the card is still there.
    fn take(&mut self, limit_ns: u64) -> bool {
        let limit = Duration::from_nanos(limit_ns);
        let is_idle = |blocks: &mut Blocks| blocks.waiting.is_empty() && !blocks.card_is_lost;
        let blocks = self.capture.blocks();
        let waited = self
            .capture
            .changed
            .wait_timeout_while(blocks, limit, is_idle);
        let mut blocks = waited.unwrap_or_else(PoisonError::into_inner).0;
        blocks.free.append(&mut self.taken);
        std::mem::swap(&mut blocks.waiting, &mut self.taken);
        !std::mem::take(&mut blocks.card_is_lost)
    }
}

impl LiveSource for AudioSource {
    fn receive(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        if !self.is_connected {
            self.connect(limit_ns, visit);
            return;
        }
        let is_there = self.take(limit_ns);
        for block in &self.taken {
            if block.is_after_loss {
                visit(Arrival::Disconnected);
                visit(Arrival::Connected);
            }
            visit(Arrival::Packet {
                place: PacketPlace::Unknown,
                payload: &block.bytes,
                arrival_ns: block.arrival_ns,
                kernel_drops: 0,
            });
        }
        if !is_there {
            self.card_thread = None;
            self.is_connected = false;
            visit(Arrival::Disconnected);
        }
    }

    fn has_connections(&self) -> bool {
        true
    }
}

/// Keeps what a card hears, until the flag is set or the card goes.
fn hear_blocks(mut card: Card, capture: &Capture, is_over: &AtomicBool) {
    let mut samples = vec![0.0; card.block_samples()];
    let mut gone_on = card.start();
    while gone_on.is_ok() && !is_over.load(Ordering::Relaxed) {
        let heard = match card.wait() {
            Ok(true) => card.read(&mut samples).map(|()| capture.add(&samples)),
            other => other.map(|_| ()),
        };
        gone_on = match heard {
            Err(CardFault::Interrupted) => {
                capture.blocks().has_loss = true;
                card.restart()
            }
            other => other,
        };
    }
    if gone_on.is_err() {
        capture.blocks().card_is_lost = true;
        capture.changed.notify_one();
    }
}
