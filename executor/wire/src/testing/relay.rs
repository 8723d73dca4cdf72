//! Two network devices, each of which hands its packets to the other one after a delay, and loses some: the link between hosts that are
//! far apart, also where the system cannot delay packets itself.
#![expect(
    unsafe_code,
    reason = "makes TUN devices, by a call that takes an untyped structure"
)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::ioctl::{Setter, ioctl};

/// Longest packet of a device with the usual limits.
const PACKET_BYTES: usize = 1 << 16;
/// How often it is asked whether the relay is over.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// `TUNSETIFF`.
const SET_DEVICE: u32 = 0x4004_54ca;
/// `IFF_TUN | IFF_NO_PI`.
const PACKETS_ALONE: u16 = 0x1001;

/// `struct ifreq`, as far as it is used.
#[repr(C)]
struct DeviceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// What becomes of packets on a link.
#[derive(Clone, Copy, Debug)]
pub struct LongLink {
    /// Each one takes so long.
    pub delay: Duration,
    /// So many of 1,000 are lost, in each direction.
    pub lost_per_mille: u32,
}

/// Ends when it is dropped, and both devices with it.
pub(super) struct Relay {
    is_over: Arc<AtomicBool>,
}

/// A packet, and when it is to be handed over.
struct LatePacket {
    bytes: Vec<u8>,
    due: Instant,
}

impl Relay {
    /// Makes devices of these names with this link between them.
    ///
    /// # Errors
    /// The system has no such devices, or does not let us make them.
    pub(super) fn start(names: [&str; 2], link: LongLink) -> io::Result<Self> {
        let [one, other] = [open_device(names[0])?, open_device(names[1])?];
        let is_over = Arc::<AtomicBool>::default();
        for (seed, (from, to)) in (1..).zip([(one.try_clone()?, other.try_clone()?), (other, one)])
        {
            let (sender, receiver) = mpsc::channel();
            let flag = Arc::clone(&is_over);
            std::thread::spawn(move || take_packets(from, (link, seed), &sender, &flag));
            std::thread::spawn(move || hand_over(&receiver, to));
        }
        Ok(Self { is_over })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn open_device(name: &str) -> io::Result<File> {
    let mut open = File::options();
    let device = open.read(true).write(true).open("/dev/net/tun")?;
    let mut request = DeviceRequest {
        name: [0; 16],
        flags: PACKETS_ALONE,
        rest: [0; 22],
    };
    // The last byte stays zero.
    let longest = request.name.len() - 1;
    for (to, from) in request.name[..longest].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: the call reads a structure of this layout, and writes the device's name into the system's copy of it.
    unsafe {
        let set_device = Setter::<{ SET_DEVICE as _ }, DeviceRequest>::new(request);
        ioctl(&device, set_device)?;
    }
    Ok(device)
}

fn take_packets(
    mut from: File,
    (link, seed): (LongLink, u64),
    packets: &Sender<LatePacket>,
    is_over: &AtomicBool,
) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut packet = vec![0; PACKET_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        let is_there = poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&LOOK_EVERY));
        if is_there != Ok(1) {
            continue;
        }
        // A device that is down has no packets.
        let Ok(length) = from.read(&mut packet) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        if rng.u32(0..1000) < link.lost_per_mille {
            continue;
        }
        let bytes = packet[..length].to_vec();
        let due = Instant::now() + link.delay;
        if packets.send(LatePacket { bytes, due }).is_err() {
            return;
        }
    }
}

fn hand_over(packets: &Receiver<LatePacket>, mut to: File) {
    // The system may otherwise wake this thread 50 us late.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    for LatePacket { bytes, due } in packets {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // A device that is down takes none: it is lost, as on any link.
        let _ = to.write(&bytes);
    }
}
