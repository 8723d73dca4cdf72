//! Hands events and states to those who listen, on a thread of its own and through a bounded queue: a listener that does
//! not come back keeps nobody else waiting. What the queue has no room for is dropped and counted; the count is an event
//! itself, as soon as there is room again.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

use crate::options::{BorderState, Listener, StateListener};
use crate::supervise::{Event, What};
use crate::transport::clock::Clock;
use crate::transport::primitive::{AtomicU64, Ordering};

/// Events and states that wait for their listener, at most.
const QUEUE_LENGTH: usize = 4096;
/// States are large: so many wait or are with their listener, at most.
const MAX_STATES: u64 = 1;

enum Item {
    Event(Event),
    State(Box<BorderState>),
}

/// What the two threads share.
#[derive(Default)]
struct Counts {
    /// Events in the queue or delivered.
    accepted: AtomicU64,
    /// Events that the listener has taken.
    delivered: AtomicU64,
    /// States on their way.
    states: AtomicU64,
}

/// The end for whoever has something to say. It never waits, until [`Self::finish`].
pub(crate) struct Outlet {
    queue: SyncSender<Item>,
    counts: Arc<Counts>,
    /// Closed when the thread ends.
    ended: Receiver<()>,
    has_events: bool,
    /// Events that were dropped, and those of them that no event has reported yet.
    dropped: u64,
    unreported: u64,
}

impl Outlet {
    /// Nothing is started where nobody listens. Without a thread, everything is dropped and counted.
    pub(crate) fn start(events: Option<Listener>, states: Option<StateListener>) -> Self {
        let (queue, items) = mpsc::sync_channel(QUEUE_LENGTH);
        let (end_guard, ended) = mpsc::channel::<()>();
        let counts = Arc::<Counts>::default();
        let has_events = events.is_some();

        if events.is_some() || states.is_some() {
            let shared_counts = Arc::clone(&counts);
            let deliver_all = move || {
                // Dropped when this thread ends, however it does.
                let _end_guard = end_guard;
                deliver(&items, &shared_counts, events.as_deref(), states.as_deref());
            };
            // The closure, and with it the queue's other end, is dropped if there is no thread.
            let _ = std::thread::Builder::new()
                .name("zbmd events".to_owned())
                .spawn(deliver_all);
        }
        Self {
            queue,
            counts,
            ended,
            has_events,
            dropped: 0,
            unreported: 0,
        }
    }

    pub(crate) fn event(&mut self, event: &Event) {
        if !self.has_events {
            return;
        }
        if self.unreported > 0 {
            let count = self.unreported;
            // The count of what was dropped goes first, so that a listener learns of the gap where it is.
            let what = What::EventsDropped { count };
            let at_ns = event.at_ns;
            if self.offer(Event { at_ns, what }) {
                self.unreported = 0;
            }
        }

        if self.unreported > 0 || !self.offer(event.clone()) {
            self.dropped += 1;
            self.unreported += 1;
        }
    }

    fn offer(&self, event: Event) -> bool {
        offer(&self.queue, &self.counts, event)
    }

    /// Something that sends an event from another thread. It is to be dropped before [`Self::finish`].
    pub(crate) fn event_sender(&self) -> impl Fn(Event) + Send + 'static {
        let queue = self.queue.clone();
        let counts = Arc::clone(&self.counts);
        move |event| {
            offer(&queue, &counts, event);
        }
    }

    /// Gives a state away, unless the listener is still busy with the last one.
    pub(crate) fn state(&self, state: impl FnOnce() -> Option<BorderState>) {
        if self.counts.states.load(Ordering::Acquire) >= MAX_STATES {
            return;
        }
        let Some(state) = state() else { return };
        self.counts.states.fetch_add(1, Ordering::AcqRel);
        if self.queue.try_send(Item::State(Box::new(state))).is_err() {
            self.counts.states.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits until all is delivered, or until the listener has taken nothing for so long: it may never come back, and
    /// keeps its thread. How many events were not delivered.
    pub(crate) fn finish(self, limit: Duration) -> u64 {
        let mut delivered = self.counts.delivered.load(Ordering::Acquire);
        let mut quiet_since_ns = Clock.now_ns();
        let queue_sender = self.queue.clone();
        // The last events may be about the drops.
        let mut last_item = (self.unreported > 0).then(|| {
            let count = self.unreported;
            let what = What::EventsDropped { count };
            let at_ns = Clock.now_ns();
            Item::Event(Event { at_ns, what })
        });

        // With the queue's last sender gone, the thread ends once it has delivered what is in it.
        drop(self.queue);
        let mut open_queue = Some(queue_sender);
        loop {
            if let (Some(item), Some(open)) = (last_item.take(), &open_queue) {
                match open.try_send(item) {
                    Ok(()) => {
                        self.counts.accepted.fetch_add(1, Ordering::AcqRel);
                    }
                    Err(TrySendError::Full(item)) => last_item = Some(item),
                    Err(TrySendError::Disconnected(_)) => {}
                }
            }
            if last_item.is_none() {
                open_queue = None;
            }
            if self.ended.recv_timeout(FINISH_PAUSE) == Err(RecvTimeoutError::Disconnected) {
                break;
            }

            let now_ns = Clock.now_ns();
            let delivered_now = self.counts.delivered.load(Ordering::Acquire);
            if delivered_now > delivered {
                delivered = delivered_now;
                quiet_since_ns = now_ns;
            }
            if now_ns.saturating_sub(quiet_since_ns) > limit.as_nanos() as u64 {
                break;
            }
        }

        let accepted_count = self.counts.accepted.load(Ordering::Acquire);
        self.dropped + accepted_count.saturating_sub(self.counts.delivered.load(Ordering::Acquire))
    }
}

fn offer(queue: &SyncSender<Item>, counts: &Counts, event: Event) -> bool {
    let is_accepted = queue.try_send(Item::Event(event)).is_ok();
    counts
        .accepted
        .fetch_add(u64::from(is_accepted), Ordering::AcqRel);
    is_accepted
}

/// How often a listener that is not done is looked at in the end.
const FINISH_PAUSE: Duration = Duration::from_millis(20);

fn deliver(
    items: &Receiver<Item>,
    counts: &Counts,
    events: Option<&(dyn Fn(&Event) + Send + Sync)>,
    states: Option<&(dyn Fn(BorderState) + Send + Sync)>,
) {
    while let Ok(item) = items.recv() {
        match item {
            Item::Event(event) => {
                if let Some(listener) = events {
                    listener(&event);
                }
                counts.delivered.fetch_add(1, Ordering::AcqRel);
            }
            Item::State(state) => {
                if let Some(listener) = states {
                    listener(*state);
                }
                counts.states.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::Sender;

    use zbmd_ir::{PresentMode, State, TiVec};

    use super::*;

    fn event(number: u64) -> Event {
        Event {
            at_ns: number,
            what: What::Waiting { lost: Vec::new() },
        }
    }

    /// A listener that takes an event only for each permit.
    fn gated() -> (Listener, Sender<()>, Arc<Mutex<Vec<Event>>>) {
        let (permit, permits) = mpsc::channel();
        let permits = Mutex::new(permits);
        let taken = Arc::<Mutex<Vec<Event>>>::default();
        let list = Arc::clone(&taken);
        let listener = move |event: &Event| {
            let permits = permits.lock().expect("no panic");
            let _ = permits.recv();
            list.lock().expect("no panic").push(event.clone());
        };
        (Arc::new(listener), permit, taken)
    }

    #[test]
    fn a_listener_that_stalls_costs_events_that_are_counted_and_told() {
        let (listener, permit, taken) = gated();
        let mut outlet = Outlet::start(Some(listener), None);
        let sent = 2 * QUEUE_LENGTH as u64;
        (0..sent).for_each(|number| outlet.event(&event(number)));
        let dropped = outlet.dropped;
        assert!(dropped >= sent - QUEUE_LENGTH as u64 - 1, "{dropped}");

        // It goes on: all that was queued comes, and then the count.
        (0..sent).for_each(|_| permit.send(()).expect("the listener is there"));
        assert_eq!(outlet.finish(Duration::from_secs(60)), dropped);
        let taken = taken.lock().expect("no panic");
        // A thread that takes its first event late makes room for one more in between, and a count is told then too.
        let told: Vec<u64> = taken
            .iter()
            .filter_map(|event| match event.what {
                What::EventsDropped { count } => Some(count),
                _ => None,
            })
            .collect();
        assert_eq!(told.iter().sum::<u64>(), dropped);
        assert_eq!((taken.len() - told.len()) as u64, sent - dropped);
    }

    #[test]
    fn a_listener_that_never_comes_back_is_left() {
        let (listener, permit, _) = gated();
        let mut outlet = Outlet::start(Some(listener), None);
        (0..3).for_each(|number| outlet.event(&event(number)));
        assert_eq!(outlet.finish(Duration::from_millis(50)), 3);
        drop(permit);
    }

    #[test]
    fn one_state_at_a_time() {
        let (permit, permits) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let permits = Mutex::new(permits);
        let tell = Mutex::new(tell);
        let listener = move |border: BorderState| {
            let _ = permits.lock().expect("no panic").recv();
            let _ = tell.lock().expect("no panic").send(border.state.iterations);
        };
        let outlet = Outlet::start(None, Some(Arc::new(listener)));
        let state = |iterations| BorderState {
            state: State {
                changes: Vec::new(),
                iterations,
                channels: TiVec::new(),
                consumed: Vec::new(),
            },
            present_mode: PresentMode::default(),
            emitted: Vec::new(),
            changes_made: 0,
        };
        outlet.state(|| Some(state(1)));
        outlet.state(|| panic!("the listener is busy: none is made"));
        permit.send(()).expect("the listener is there");
        assert_eq!(told.recv(), Ok(1));
        drop(permit);
        assert_eq!(outlet.finish(Duration::from_secs(60)), 0);
    }
}
