//! Every interleaving of the hand-over and sleeping protocols. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p zbmd-loom --release`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use zbmd_loom::ring::{Parker, Peer, RingSync, Spin, Stop, Stopped};

/// The data of a ring of two blocks of one token each: loom reports any access that the counters do not order.
struct Places([UnsafeCell<u64>; 2]);

fn write(places: &Places, block: u64) {
    places.0[block as usize % 2].with_mut(|p| {
        #[expect(unsafe_code, reason = "loom checks that accesses are ordered")]
        // SAFETY: the sender has waited for the release of the place.
        unsafe {
            *p = block;
        }
    });
}

fn read(places: &Places, block: u64) -> u64 {
    places.0[block as usize % 2].with(|p| {
        #[expect(unsafe_code, reason = "loom checks that accesses are ordered")]
        // SAFETY: the receiver has waited for the token.
        unsafe {
            *p
        }
    })
}

#[test]
fn tokens_arrive_once_in_order_and_places_are_not_overwritten() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new((
            RingSync::new(),
            Places([UnsafeCell::new(9), UnsafeCell::new(9)]),
            Stop::new(),
        ));
        let there = Arc::clone(&shared);
        let sender = thread::spawn(move || {
            let (sync, places, stop) = &*there;
            let mut peer = Peer::default();
            for block in 0..3u64 {
                let free = (block + 1).saturating_sub(2);
                sync.wait_released(free, &mut peer, Spin(0), stop)
                    .expect("not stopped");
                write(places, block);
                sync.publish(block + 1);
            }
        });
        let (sync, places, stop) = &*shared;
        let mut peer = Peer::default();
        for block in 0..3 {
            sync.wait_published(block + 1, &mut peer, Spin(0), stop)
                .expect("not stopped");
            assert_eq!(read(places, block), block);
            sync.release(block + 1);
        }
        sender.join().expect("no panic");
    });
}

#[test]
fn no_wake_up_is_lost_with_two_waiters() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new((Parker::new(), AtomicU64::new(0)));
        let waiters: Vec<_> = (1..=2)
            .map(|target| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared
                        .0
                        .wait_until(Spin(0), || shared.1.load(Ordering::Acquire) >= target);
                })
            })
            .collect();
        for value in 1..=2 {
            shared.1.store(value, Ordering::Release);
            shared.0.notify();
        }
        waiters
            .into_iter()
            .for_each(|w| w.join().expect("no panic"));
    });
}

#[test]
fn a_stop_ends_every_wait() {
    loom::model(|| {
        let shared = Arc::new((RingSync::new(), Stop::new()));
        let there = Arc::clone(&shared);
        let receiver = thread::spawn(move || {
            there
                .0
                .wait_published(1, &mut Peer::default(), Spin(0), &there.1)
        });
        shared.1.set();
        shared.0.wake();
        assert_eq!(receiver.join().expect("no panic"), Err(Stopped));
    });
}

#[test]
fn a_waiter_for_many_tokens_is_woken_by_the_last_of_them() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new((Parker::new(), AtomicU64::new(0)));
        let there = Arc::clone(&shared);
        let waiter = thread::spawn(move || {
            // A wait for more after one for less: a stale level must not swallow the wake-up.
            for level in [1, 3] {
                there
                    .0
                    .wait_level(level, Spin(0), || there.1.load(Ordering::Acquire) >= level);
            }
        });
        for value in 1..=3 {
            shared.1.store(value, Ordering::Release);
            shared.0.notify_at(value);
        }
        waiter.join().expect("no panic");
    });
}

/// A device stores the counter, and wakes nobody; its worker does, once it has seen it.
#[test]
fn no_wake_up_is_lost_where_a_device_stores_the_counter() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new((Parker::new(), AtomicU64::new(0)));
        let [device, worker] = [Arc::clone(&shared), Arc::clone(&shared)];
        let device = thread::spawn(move || device.1.store(1, Ordering::Release));
        let worker = thread::spawn(move || {
            while worker.1.load(Ordering::Acquire) < 1 {
                thread::yield_now();
            }
            worker.0.notify_at(1);
        });
        shared
            .0
            .wait_level(1, Spin(0), || shared.1.load(Ordering::Acquire) >= 1);
        device.join().expect("no panic");
        worker.join().expect("no panic");
    });
}
