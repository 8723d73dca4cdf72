//! Hand-over between two devices: our ring beside `rtrb` and beside a bare atomic ping-pong of the same two cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rustix::thread::{CpuSet, sched_setaffinity};
use zbmd_executor::ring::{Peer, RingSync, Spin, Stop};

/// Ties the calling thread to a core, where the system lets it.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

/// Runs both sides pinned to two cores; the time of the first.
fn duel(first: impl FnOnce() + Send, second: impl FnOnce() + Send) -> Duration {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(1);
            second();
        });
        let timed = scope.spawn(|| {
            pin(0);
            let start = Instant::now();
            first();
            start.elapsed()
        });
        other.join().expect("no panic");
        timed.join().expect("no panic")
    })
}

fn round_trips(c: &mut Criterion) {
    let mut group = c.benchmark_group("round trip between two cores");
    group.sample_size(20);
    group.bench_function("bare atomics", |b| {
        b.iter_custom(|n| {
            let (ping, pong) = (AtomicU64::new(0), AtomicU64::new(0));
            let wait = |counter: &AtomicU64, value| {
                while counter.load(Ordering::Acquire) < value {
                    std::hint::spin_loop();
                }
            };
            let lines = [
                crossbeam_utils::CachePadded::new(ping),
                crossbeam_utils::CachePadded::new(pong),
            ];
            duel(
                || {
                    (1..=n).for_each(|i| {
                        lines[0].store(i, Ordering::Release);
                        wait(&lines[1], i);
                    })
                },
                || {
                    (1..=n).for_each(|i| {
                        wait(&lines[0], i);
                        lines[1].store(i, Ordering::Release);
                    })
                },
            )
        });
    });
    group.bench_function("two rings", |b| {
        b.iter_custom(|n| {
            let (there, back, stop) = (RingSync::new(), RingSync::new(), Stop::new());
            duel(
                || {
                    let mut peer = Peer::default();
                    for i in 1..=n {
                        there.publish(i);
                        back.wait_published(i, &mut peer, Spin::LONG, &stop)
                            .expect("no stop");
                    }
                },
                || {
                    let mut peer = Peer::default();
                    for i in 1..=n {
                        there
                            .wait_published(i, &mut peer, Spin::LONG, &stop)
                            .expect("no stop");
                        back.publish(i);
                    }
                },
            )
        });
    });
    group.finish();
}

/// Items handed over with flow control; the data are 64-bit words, `batch` of them published at a time.
fn ours(items: u64, batch: u64) -> Duration {
    const PLACES: u64 = 1024;
    let data: Arc<Vec<AtomicU64>> =
        Arc::new((0..PLACES * batch).map(|_| AtomicU64::new(0)).collect());
    let (ring, stop) = (RingSync::new(), Stop::new());
    let blocks = items / batch;
    duel(
        || {
            let mut peer = Peer::default();
            for block in 0..blocks {
                ring.wait_released(
                    (block + 1).saturating_sub(PLACES),
                    &mut peer,
                    Spin::LONG,
                    &stop,
                )
                .expect("no stop");
                for i in 0..batch {
                    data[((block % PLACES) * batch + i) as usize]
                        .store(block + i, Ordering::Relaxed);
                }
                ring.publish((block + 1) * batch);
            }
        },
        || {
            let (mut peer, mut sum) = (Peer::default(), 0u64);
            for block in 0..blocks {
                ring.wait_published((block + 1) * batch, &mut peer, Spin::LONG, &stop)
                    .expect("no stop");
                for i in 0..batch {
                    sum = sum.wrapping_add(
                        data[((block % PLACES) * batch + i) as usize].load(Ordering::Relaxed),
                    );
                }
                ring.release(block + 1);
            }
            std::hint::black_box(sum);
        },
    )
}

fn rtrb_items(items: u64, batch: u64) -> Duration {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<u64>::new(1024 * batch as usize);
    duel(
        move || {
            for block in 0..items / batch {
                loop {
                    if let Ok(chunk) = producer.write_chunk_uninit(batch as usize) {
                        chunk.fill_from_iter((0..batch).map(|i| block + i));
                        break;
                    }
                    std::hint::spin_loop();
                }
            }
        },
        move || {
            let mut sum = 0u64;
            for _ in 0..items / batch {
                loop {
                    if let Ok(chunk) = consumer.read_chunk(batch as usize) {
                        sum = chunk.into_iter().fold(sum, u64::wrapping_add);
                        break;
                    }
                    std::hint::spin_loop();
                }
            }
            std::hint::black_box(sum);
        },
    )
}

fn items(c: &mut Criterion) {
    let mut group = c.benchmark_group("64-bit items between two cores");
    group.sample_size(20);
    for batch in [1u64, 64] {
        group.throughput(Throughput::Elements(64));
        group.bench_function(format!("ours, {batch} at a time"), |b| {
            b.iter_custom(|n| ours(n * 64, batch))
        });
        group.bench_function(format!("rtrb, {batch} at a time"), |b| {
            b.iter_custom(|n| rtrb_items(n * 64, batch))
        });
    }
    group.finish();
}

criterion_group!(benches, round_trips, items);
criterion_main!(benches);
