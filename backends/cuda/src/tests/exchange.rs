//! What tokens are exchanged by: others' memory, registered once and given back once, and words of it that the queue
//! waits for and stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::soft;
use crate::driver::{Driver, MAX_WORD_OPS, WordOp};
use crate::error::CallError;
use crate::memory::Bank;
use crate::queue::Queue;
use crate::{Code, CudaDevice, CudaOptions, Fault, Injection, Lacking, Machine, Site};
use zbmd_gpu_ir::emit::cubins::Cubins;
use zbmd_hal::{BankRange, HostRegion, MemoryKind, Queue as _, QueueOp};

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

fn machine(device: &CudaDevice) -> &Arc<Machine> {
    device.instance().machine().expect("software")
}

const PATIENCE_NS: u64 = 5_000_000_000;

#[expect(
    unsafe_code,
    reason = "puts operations on a test's own words into the queue"
)]
fn put_word_ops(driver: &dyn Driver, word_ops: &[WordOp]) -> Result<(), CallError> {
    // SAFETY: the words are parts of `Others`, which every test drops after its device has waited, or where the device
    // in software checks them: it does not access memory that is no longer registered.
    unsafe { driver.put_word_ops(word_ops) }
}

#[test]
fn what_two_devices_share_is_registered_once_and_given_back_once() {
    let (others, one) = (Others::new(), soft());
    let two =
        CudaDevice::open(one.instance(), one.listed(), &CudaOptions::default()).expect("once more");
    let registered = |device: &Arc<CudaDevice>| device.register_memory(others.region());
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
    #[expect(unsafe_code, reason = "registers memory as somebody else would")]
    let registered = device.call(|driver| {
        // SAFETY: the page exists until the end of the test, and is unregistered before.
        unsafe { driver.register_host(page, 4096) }
    });
    registered.expect("it is not registered yet");
    assert!(
        device
            .register_memory(others.region())
            .expect("alive")
            .is_none()
    );
    #[expect(unsafe_code, reason = "unregisters what was registered above")]
    device.give_back(|driver| {
        // SAFETY: registered above, and nothing uses it.
        unsafe { driver.unregister_host(page) }
    });
    assert!(
        device
            .register_memory(others.region())
            .expect("alive")
            .is_some()
    );

    machine(&device).set_lacking(Lacking::Registration);
    assert!(
        device
            .register_memory(others.region())
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
        device.register_memory(others.region()),
        Err(Fault::Lost { .. })
    ));
}

#[test]
fn a_dead_device_gives_nothing_back() {
    let (others, device) = (Others::new(), soft());
    let registered = device
        .register_memory(others.region())
        .expect("alive")
        .expect("reached");
    let lost = Injection {
        site: Site::Query,
        after: 0,
        code: Some(Code(700)),
    };
    machine(&device).inject(Some(lost));
    device
        .run_and_wait(1_000, |_| Ok(()))
        .expect_err("it is lost");
    drop(registered);
    assert_eq!(machine(&device).counts().registered, 1);
}

#[test]
fn what_is_given_back_is_touched_no_more() {
    let (others, device) = (Others::new(), soft());
    let registered = device
        .register_memory(others.region())
        .expect("alive")
        .expect("reached");
    let word = registered.address;
    let store = |value| WordOp {
        word,
        value,
        waits: false,
    };
    device
        .run_and_wait(PATIENCE_NS, |driver| put_word_ops(driver, &[store(3)]))
        .expect("it is registered");
    assert_eq!(others.word(0).load(Ordering::Acquire), 3);
    drop(registered);
    let fault = device.run_and_wait(PATIENCE_NS, |driver| put_word_ops(driver, &[store(4)]));
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
    let registered = device
        .register_memory(others.region())
        .expect("alive")
        .expect("reached");
    let word = |index: u64| registered.address + 8 * index;
    let fence = device.new_fence().expect("a fence");
    let put = |driver: &dyn Driver| {
        let word_ops = [
            WordOp {
                word: word(0),
                value: 5,
                waits: true,
            },
            WordOp {
                word: word(1),
                value: 7,
                waits: false,
            },
        ];
        put_word_ops(driver, &word_ops)?;
        fence.record(driver)
    };
    device.call(put).expect("a queue");
    let ended = || fence.has_passed().expect("alive");
    for (stored, ends) in [(0, false), (4, false), (5, true)] {
        others.word(0).store(stored, Ordering::Release);
        if ends {
            // Nobody calls the driver: it is the queue itself that looks.
            while others.word(1).load(Ordering::Acquire) != 7 {
                std::thread::yield_now();
            }
            device.wait_for(&fence, 1, PATIENCE_NS).expect("alive");
        }
        assert_eq!(
            (ended(), others.word(1).load(Ordering::Acquire)),
            (ends, 7 * u64::from(ends))
        );
    }
}

/// Batches are cut where they are too long, and around copies; all of it in order.
#[test]
fn long_rows_of_queue_ops_are_done_in_order() {
    let (others, device) = (Others::new(), soft());
    let mut queue = Queue::new(&device, Cubins::default()).expect("a queue");
    let shared = queue
        .import_host_memory(others.region())
        .expect("alive")
        .expect("reached");
    let own = queue.allocate_bank(4096, MemoryKind::Host).expect("memory");
    #[expect(unsafe_code, reason = "writes a bank of its own")]
    // SAFETY: the bank has the word, and nothing is in the queue.
    unsafe {
        queue.host_pointer(own, 0, 8).cast::<u64>().write(11);
    }
    let word = |index: u64| BankRange::new(shared, 8 * index, 8);
    let last = 2 * MAX_WORD_OPS as u64 + 3;
    let mut after: Vec<QueueOp> = (0..=last)
        .map(|i| QueueOp::Write {
            word: word(i),
            value: i + 1,
        })
        .collect();
    // What is waited for was stored just before; then a copy over one of the words, and the store that tells of it.
    after.push(QueueOp::Wait {
        word: word(last),
        min: last + 1,
    });
    after.push(QueueOp::Copy {
        from: BankRange::new(own, 0, 8),
        to: word(0),
    });
    after.push(QueueOp::Write {
        word: word(last),
        value: 99,
    });
    queue
        .submit_with_ops(&[], None, &after)
        .expect("a submission");
    queue.wait_for(1, PATIENCE_NS).expect("its end");
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
        .import_host_memory(others.region())
        .expect("alive")
        .expect("reached");
    let never = QueueOp::Wait {
        word: BankRange::new(shared, 0, 8),
        min: 1,
    };
    queue
        .submit_with_ops(&[never], None, &[])
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
    let bank = Bank::allocate(&device, 64, MemoryKind::Device).expect("it is well");
    drop((bank, queue));
    assert_eq!(machine(&device).counts().registered, 0);
}

/// What the caller frees after an error must not be in the queue.
#[test]
fn work_that_was_put_only_in_part_is_waited_for_too() {
    let (others, device) = (Others::new(), soft());
    let registered = device
        .register_memory(others.region())
        .expect("alive")
        .expect("reached");
    let wait = WordOp {
        word: registered.address,
        value: 1,
        waits: true,
    };
    let failed = CallError {
        site: Site::Copy,
        code: Code(1),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !machine(&device).is_waiting() {
                std::thread::yield_now();
            }
            others.word(0).store(1, Ordering::Release);
        });
        let fault = device.run_and_wait(PATIENCE_NS, |driver| {
            put_word_ops(driver, &[wait])?;
            Err(failed)
        });
        assert!(matches!(fault, Err(Fault::Other { .. })), "{fault:?}");
        assert!(!machine(&device).is_waiting(), "the queue still waits");
    });
    assert!(device.is_alive());
}
