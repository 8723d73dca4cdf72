//! The queue of the device in software: what is put into it is done at once, unless it waits for a word in memory, or
//! comes after what does. Then a thread of its own looks again and again, as a real device would.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::super::driver::Signal;
use super::super::error::{Said, Site};
use super::{Inner, Machine, Made, Soft, Work};

/// Between two looks at a word that is waited for.
pub(super) const PAUSE: Duration = Duration::from_micros(20);

/// What is put into the queue.
pub(super) enum Entry {
    Work(Work),
    Graph(Arc<[Made]>),
    Signal(Signal),
    /// An event.
    Mark(u64),
}

/// What has been put into it and not been done.
#[derive(Default)]
pub(super) struct Queue {
    pending: VecDeque<Entry>,
    /// A thread looks after it.
    is_tended: bool,
    /// Nothing more is done: the device hangs or is lost.
    pub(super) is_frozen: bool,
}

/// How often an event was put into the queue, and how often the queue came to it.
#[derive(Clone, Copy, Default)]
pub(super) struct Marked {
    put: u64,
    done: u64,
}

impl Inner {
    /// Whether the queue can go on with this.
    fn is_ready(&mut self, entry: &Entry) -> bool {
        match entry {
            Entry::Signal(Signal {
                at,
                value,
                waits: true,
            }) => match self.memory.word(*at) {
                Ok(word) => word.wrapping_sub(*value).cast_signed() >= 0,
                // It goes on, to say so.
                Err(_) => true,
            },
            _ => true,
        }
    }

    fn do_now(&mut self, entry: Entry) {
        match entry {
            Entry::Work(work) => {
                self.memory.trace.clear();
                self.work(&work, false);
            }
            Entry::Graph(nodes) => self.nodes(&nodes),
            Entry::Signal(signal) => {
                let done = match signal.waits {
                    true => self.memory.word(signal.at).map(drop),
                    false => self.memory.set_word(signal.at, signal.value),
                };
                if let Err(code) = done {
                    self.lost.get_or_insert(code);
                }
            }
            Entry::Mark(event) => {
                // It may have been given back meanwhile.
                self.events
                    .get_mut(&event)
                    .into_iter()
                    .for_each(|marked| marked.done += 1);
            }
        }
    }

    /// Goes on as far as it can; whether something is left that may still come about.
    fn go_on(&mut self) -> bool {
        while !self.queue.is_frozen && self.lost.is_none() {
            let Some(entry) = self.queue.pending.pop_front() else {
                return false;
            };
            if !self.is_ready(&entry) {
                self.queue.pending.push_front(entry);
                return true;
            }
            self.do_now(entry);
        }
        false
    }

    /// Nothing is in the queue, or ever will be done.
    pub(super) fn is_settled(&self) -> bool {
        self.queue.pending.is_empty() || self.queue.is_frozen || self.lost.is_some()
    }

    /// An event has been put into the queue.
    fn mark(&mut self, event: u64) {
        self.events.get_mut(&event).expect("an event").put += 1;
    }

    /// Whether the queue has come to an event as often as it was put in.
    pub(super) fn has_come_to(&self, event: u64) -> bool {
        let Marked { put, done } = self.events[&event];
        assert!(put > 0, "a mark that is not in the queue is waited for");
        put == done
    }
}

impl Soft {
    /// Puts something into the queue.
    pub(super) fn put(&self, site: Site, entry: Entry) -> Result<(), Said> {
        let mut inner = self.enter(site)?;
        if let Entry::Mark(event) = entry {
            inner.mark(event);
        }
        self.push(inner, entry);
        Ok(())
    }

    pub(super) fn push(&self, mut inner: MutexGuard<'_, Inner>, entry: Entry) {
        inner.queue.pending.push_back(entry);
        if inner.go_on() && !std::mem::replace(&mut inner.queue.is_tended, true) {
            let machine = Arc::clone(&self.machine);
            std::thread::spawn(move || tend(&machine));
        }
    }
}

/// Looks after the queue until nothing is left in it.
fn tend(machine: &Machine) {
    loop {
        let mut inner = machine.lock();
        if !inner.go_on() {
            inner.queue.is_tended = false;
            return;
        }
        drop(inner);
        std::thread::sleep(PAUSE);
    }
}
