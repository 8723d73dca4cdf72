//! The queue of the device in software: what is put into it is done at once, unless it waits for a word in memory, or
//! comes after something that does. Then a separate thread polls the word, as a real device would.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::super::driver::WordOp;
use super::super::error::{CallError, Site};
use super::{Machine, MachineState, NodeWork, SoftDriver, SoftNode};

/// Between two polls of a word that is waited for.
pub(super) const PAUSE: Duration = Duration::from_micros(20);

/// What is put into the queue.
pub(super) enum QueueEntry {
    Work(NodeWork),
    Graph(Arc<[SoftNode]>),
    WordOp(WordOp),
    Event(u64),
}

/// What has been put into it and not been done.
#[derive(Default)]
pub(super) struct SoftQueue {
    pending: VecDeque<QueueEntry>,
    /// A thread polls for it.
    has_poller: bool,
    /// Nothing more is done: the device hangs or is lost.
    pub(super) is_frozen: bool,
}

/// How often an event was put into the queue, and how often the queue has reached it.
#[derive(Clone, Copy, Default)]
pub(super) struct EventState {
    put_count: u64,
    reached_count: u64,
}

impl MachineState {
    /// Whether the queue can go on with this.
    fn is_ready(&mut self, entry: &QueueEntry) -> bool {
        let QueueEntry::WordOp(word_op) = entry else {
            return true;
        };
        if !word_op.waits {
            return true;
        }
        match self.memory.load_word(word_op.word) {
            Ok(word) => word.wrapping_sub(word_op.value).cast_signed() >= 0,
            // It goes on, and reports the error.
            Err(_) => true,
        }
    }

    fn do_entry(&mut self, entry: QueueEntry) {
        match entry {
            QueueEntry::Work(work) => {
                self.memory.trace.clear();
                self.do_work(&work, false);
            }
            QueueEntry::Graph(nodes) => self.run_nodes(&nodes),
            QueueEntry::WordOp(word_op) => {
                let done = match word_op.waits {
                    true => self.memory.load_word(word_op.word).map(drop),
                    false => self.memory.store_word(word_op.word, word_op.value),
                };
                if let Err(code) = done {
                    self.lost.get_or_insert(code);
                }
            }
            QueueEntry::Event(event) => {
                // It may have been destroyed meanwhile.
                if let Some(state) = self.events.get_mut(&event) {
                    state.reached_count += 1;
                }
            }
        }
    }

    /// Goes on as far as it can; whether something is left that may still be done.
    fn advance_queue(&mut self) -> bool {
        while !self.queue.is_frozen && self.lost.is_none() {
            let Some(entry) = self.queue.pending.pop_front() else {
                return false;
            };
            if !self.is_ready(&entry) {
                self.queue.pending.push_front(entry);
                return true;
            }
            self.do_entry(entry);
        }
        false
    }

    /// Whether nothing is in the queue, or nothing more will be done.
    pub(super) fn is_settled(&self) -> bool {
        self.queue.pending.is_empty() || self.queue.is_frozen || self.lost.is_some()
    }

    /// Notes that an event has been put into the queue.
    fn note_event(&mut self, event: u64) {
        self.events.get_mut(&event).expect("an event").put_count += 1;
    }

    /// Whether the queue has reached an event as often as it was put in.
    pub(super) fn has_reached(&self, event: u64) -> bool {
        let state = self.events[&event];
        assert!(
            state.put_count > 0,
            "a wait for an event that is not in the queue"
        );
        state.put_count == state.reached_count
    }
}

impl SoftDriver {
    /// Puts something into the queue.
    pub(super) fn put(&self, site: Site, entry: QueueEntry) -> Result<(), CallError> {
        let mut state = self.enter_call(site)?;
        if let QueueEntry::Event(event) = entry {
            state.note_event(event);
        }
        self.push_entry(state, entry);
        Ok(())
    }

    pub(super) fn push_entry(&self, mut state: MutexGuard<'_, MachineState>, entry: QueueEntry) {
        state.queue.pending.push_back(entry);
        if state.advance_queue() && !std::mem::replace(&mut state.queue.has_poller, true) {
            let machine = Arc::clone(&self.machine);
            std::thread::spawn(move || poll_queue(&machine));
        }
    }
}

/// Advances the queue until nothing is left in it.
fn poll_queue(machine: &Machine) {
    loop {
        let mut state = machine.lock();
        if !state.advance_queue() {
            state.queue.has_poller = false;
            return;
        }
        drop(state);
        std::thread::sleep(PAUSE);
    }
}
