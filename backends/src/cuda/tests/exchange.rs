//! What tokens are exchanged by: others' memory, registered once and given back once, and words of it that the queue
//! waits for and stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::soft;
use crate::cuda::cubins::Cubins;
use crate::cuda::device::{Bank, Mark};
use crate::cuda::driver::{MAX_SIGNALS, Signal};
use crate::cuda::queue::Queue;
use crate::cuda::registered::Registered;
use crate::cuda::{Code, Device, Fault, Injection, Lacking, Machine, Options, Site};
use crate::replay::{Handover, Home, HostRegion, Queue as _, Range};

/// Memory that somebody else made: whole pages of words.
struct Others(Box<[Page]>);

#[repr(align(4096))]
struct Page([AtomicU64; 512]);

impl Others {
    fn new() -> Self {
        let page = || Page(std::array::from_fn(|_| AtomicU64::new(0)));
        Self((0..2).map(|_| page()).collect())
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[0].0[index]
    }

    #[expect(unsafe_code, reason = "lends its own memory")]
    fn region(&self) -> HostRegion {
        // SAFETY: every test drops its queues, or freezes its device, before its memory, and accesses words atomically.
        unsafe { HostRegion::new(self.0.as_ptr().cast_mut().cast(), 2 * 4096) }
    }
}

fn machine(device: &Device) -> &Arc<Machine> {
    device.instance().machine().expect("software")
}

const PATIENCE_NS: u64 = 5_000_000_000;

#[test]
fn what_two_devices_share_is_registered_once_and_given_back_once() {
    let (others, one) = (Others::new(), soft());
    let two = Device::open(one.instance(), one.listed(), &Options::default()).expect("once more");
    let registered = |device: &Arc<Device>| Registered::of(device, others.region());
    let first = registered(&one).expect("alive").expect("it is reached");
    let second = registered(&two).expect("alive").expect("it is reached");
    assert!(Arc::ptr_eq(&first, &second));
    drop(first);
    assert_eq!(
        machine(&one).counts().registered,
        1,
        "the other one still has it"
    );
    drop(second);
    assert_eq!(machine(&one).counts().registered, 0);
    assert!(registered(&two).expect("alive").is_some(), "and again");
}

#[test]
fn memory_that_the_driver_does_not_take_is_not_reached() {
    // Somebody else has registered a page of it: the driver says CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED.
    let (others, device) = (Others::new(), soft());
    let page = std::ptr::from_ref(&others.0[1]).cast_mut().cast();
    device
        .call(|driver| driver.register(page, 4096))
        .expect("nobody has it");
    assert!(
        Registered::of(&device, others.region())
            .expect("alive")
            .is_none()
    );
    device.give_back(|driver| driver.unregister(page));
    assert!(
        Registered::of(&device, others.region())
            .expect("alive")
            .is_some()
    );

    machine(&device).lacks(Lacking::Registration);
    assert!(
        Registered::of(&device, others.region())
            .expect("alive")
            .is_none()
    );
    assert!(device.is_alive());

    // A device that is lost is no matter of registration.
    let lost = Injection {
        site: Site::Register,
        after: 0,
        code: Some(Code(700)),
    };
    machine(&device).inject(Some(lost));
    assert!(matches!(
        Registered::of(&device, others.region()),
        Err(Fault::Lost { .. })
    ));
}

#[test]
fn a_dead_device_gives_nothing_back() {
    let (others, device) = (Others::new(), soft());
    let registered = Registered::of(&device, others.region())
        .expect("alive")
        .expect("reached");
    let lost = Injection {
        site: Site::Query,
        after: 0,
        code: Some(Code(700)),
    };
    machine(&device).inject(Some(lost));
    device.once(1_000, |_| Ok(())).expect_err("it is lost");
    drop(registered);
    assert_eq!(machine(&device).counts().registered, 1);
}

#[test]
fn what_is_given_back_is_touched_no_more() {
    let (others, device) = (Others::new(), soft());
    let registered = Registered::of(&device, others.region())
        .expect("alive")
        .expect("reached");
    let at = registered.at;
    let store = |value| Signal {
        at,
        value,
        waits: false,
    };
    device
        .once(PATIENCE_NS, |driver| driver.signal(&[store(3)]))
        .expect("it is registered");
    assert_eq!(others.word(0).load(Ordering::Acquire), 3);
    drop(registered);
    let fault = device.once(PATIENCE_NS, |driver| driver.signal(&[store(4)]));
    assert!(
        matches!(
            fault,
            Err(Fault::Lost {
                code: Code(700),
                ..
            })
        ),
        "{fault:?}"
    );
    assert_eq!(others.word(0).load(Ordering::Acquire), 3);
}

#[test]
fn the_queue_waits_for_words_and_goes_on_by_itself() {
    let (others, device) = (Others::new(), soft());
    let registered = Registered::of(&device, others.region())
        .expect("alive")
        .expect("reached");
    let word = |index: u64| registered.at + 8 * index;
    let mark = Mark::new(&device).expect("a mark");
    let put = |driver: &dyn crate::cuda::driver::Driver| {
        driver.signal(&[
            Signal {
                at: word(0),
                value: 5,
                waits: true,
            },
            Signal {
                at: word(1),
                value: 7,
                waits: false,
            },
        ])?;
        driver.record(mark.event)
    };
    device.call(put).expect("a queue");
    let ended = || {
        device
            .call(|driver| driver.query(mark.event))
            .expect("alive")
    };
    for (stored, ends) in [(0, false), (4, false), (5, true)] {
        others.word(0).store(stored, Ordering::Release);
        if ends {
            // Nobody calls the driver: it is the queue itself that looks.
            while others.word(1).load(Ordering::Acquire) != 7 {
                std::thread::yield_now();
            }
            device.wait(mark.event, 1, PATIENCE_NS).expect("alive");
        }
        assert_eq!(
            (ended(), others.word(1).load(Ordering::Acquire)),
            (ends, 7 * u64::from(ends))
        );
    }
}

/// Batches are cut where they are too long, and around copies; all of it in order.
#[test]
fn long_hand_overs_are_done_in_order() {
    let (others, device) = (Others::new(), soft());
    let mut queue = Queue::new(&device, Cubins::default()).expect("a queue");
    let shared = queue
        .adopt(others.region())
        .expect("alive")
        .expect("reached");
    let own = queue.bank(4096, Home::Host).expect("memory");
    #[expect(unsafe_code, reason = "writes a bank of its own")]
    // SAFETY: the bank has the word, and nothing is in the queue.
    unsafe {
        queue.host(own, 0, 8).cast::<u64>().write(11);
    }
    let word = |index: u64| Range::new(shared, 8 * index, 8);
    let last = 2 * MAX_SIGNALS as u64 + 3;
    let mut after: Vec<Handover> = (0..=last)
        .map(|i| Handover::Write {
            word: word(i),
            value: i + 1,
        })
        .collect();
    // What is waited for was stored just before; then a copy over one of the words, and the store that tells of it.
    after.push(Handover::Wait {
        word: word(last),
        least: last + 1,
    });
    after.push(Handover::Copy {
        from: Range::new(own, 0, 8),
        to: word(0),
    });
    after.push(Handover::Write {
        word: word(last),
        value: 99,
    });
    queue
        .submit_between(&[], None, &after)
        .expect("a submission");
    queue.wait(1, PATIENCE_NS).expect("its end");
    let found = |index| others.word(index as usize).load(Ordering::Acquire);
    assert_eq!((found(0), found(last)), (11, 99));
    assert!((1..last).all(|i| found(i) == i + 1));
    assert_eq!(machine(&device).counts().signals, after.len() - 1);
    assert_eq!(queue.bank_bytes(shared), 2 * 4096);
}

/// The end of a wait is asked for before the driver is.
#[test]
fn waits_end_when_they_are_told_to() {
    let (others, device) = (Others::new(), soft());
    let mut queue = Queue::new(&device, Cubins::default()).expect("a queue");
    let shared = queue
        .adopt(others.region())
        .expect("alive")
        .expect("reached");
    let never = Handover::Wait {
        word: Range::new(shared, 0, 8),
        least: 1,
    };
    queue
        .submit_between(&[never], None, &[])
        .expect("a submission");
    let mut turns = 0;
    let mut told = || {
        turns += 1;
        turns == 3
    };
    queue
        .wait_until(1, PATIENCE_NS, &mut told)
        .expect("told at last");
    assert!(machine(&device).is_waiting());
    let mut release = || {
        others.word(0).store(1, Ordering::Release);
        false
    };
    queue
        .wait_until(1, PATIENCE_NS, &mut release)
        .expect("let go");
    assert!(!machine(&device).is_waiting());
    let bank = Bank::new(&device, 64, Home::Device).expect("it is well");
    drop((bank, queue));
    assert_eq!(machine(&device).counts().registered, 0);
}
