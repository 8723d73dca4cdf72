//! A worker's rings to and from workers on other hosts: opens its wires, puts what comes into the exchange region, and
//! keeps them served while the worker waits for something else.
//!
//! The wires belong to the worker's thread, and so are in a thread-local place: whatever the thread sleeps for, the sleep
//! attends to them ([`crate::transport::primitive`]), so that no other worker waits for this one to read its sockets.
#![expect(
    unsafe_code,
    reason = "writes tokens that come into the places that a verified plan has for them"
)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use zbmd_ir::{Plan, PlanId, Region, RingId};
use zbmd_wire::connection::{Connection, Credentials, Protection};
use zbmd_wire::error::{FrameError, HandshakeError, WireError};
use zbmd_wire::handshake::{Hello, Purpose, dial};
use zbmd_wire::wires::{RingMemory, RingSpec, Side, WireStop, Wires};
use zbmd_wire::{Deadline, carry_over_ucx, connect_by};

use crate::fault::{StepStop, WorkerFault};
use crate::program::LoadedProgram;
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::primitive::duties;
use crate::transport::ring::Spin;
use crate::transport::switchboard::{Switchboard, WireKey};

/// A wire that is not there after so long will not come.
const OPEN_LIMIT: Duration = Duration::from_secs(5);
/// A connection attempt takes so long at most: between two the worker looks whether the epoch was stopped.
const DIAL_LIMIT: Duration = Duration::from_millis(250);
const REDIAL_PAUSE: Duration = Duration::from_millis(5);
/// Whoever watches hosts stops the epoch within this time if a host is gone; else the connection alone is broken.
const GONE_LIMIT_S: i64 = 5;

/// How a process takes part in the network of a run.
pub(crate) struct Network {
    pub run: u128,
    pub credentials: Credentials,
    /// Where its wires arrive.
    pub switchboard: Arc<Switchboard>,
}

/// Where the workers of an epoch are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerPlaces {
    /// Says which plan of which bundle runs, so that two hosts cannot run different ones.
    pub plan: u64,
    /// This host, and those of all calendars.
    pub own_host: usize,
    pub hosts: Vec<usize>,
    /// Where the wires of each calendar arrive.
    pub addresses: Vec<SocketAddr>,
    /// What hosts are called.
    pub names: Vec<String>,
    /// The conductor, on another host, says which blocks are admitted.
    pub is_agent: bool,
}

/// Where the workers of an epoch are, and how to reach them.
pub(crate) struct Wiring {
    pub network: Arc<Network>,
    pub places: WorkerPlaces,
}

/// One wire of a worker.
struct WirePlan {
    peer: usize,
    side: Side,
    rings: Vec<RingId>,
}

impl WorkerPlaces {
    /// Whether it says of each of so many calendars where it is.
    pub(crate) fn are_for(&self, calendars: usize) -> bool {
        let has_all = self.hosts.len() == calendars && self.addresses.len() == calendars;
        has_all && self.hosts.iter().all(|host| *host < self.names.len())
    }

    /// The wires of a calendar, with its rings in the order in which they are numbered.
    fn wires(&self, plan: &Plan, calendar: usize) -> Vec<WirePlan> {
        let own_device = plan.calendars[calendar].device;
        let mut wires: BTreeMap<(usize, bool), Vec<RingId>> = BTreeMap::new();
        for (id, ring) in plan.rings.iter_enumerated() {
            let is_sender = ring.from == own_device;
            let peer_device = if is_sender { ring.to } else { ring.from };
            if !is_sender && ring.to != own_device {
                continue;
            }
            let mut calendars = plan.calendars.iter();
            let peer = calendars.position(|calendar| calendar.device == peer_device);
            if let Some(peer) = peer
                && self.hosts[peer] != self.own_host
            {
                wires.entry((peer, is_sender)).or_default().push(id);
            }
        }
        let wires = wires
            .into_iter()
            .map(|((peer, is_sender), rings)| WirePlan {
                peer,
                side: if is_sender {
                    Side::Sends
                } else {
                    Side::Receives
                },
                rings,
            });
        wires.collect()
    }

    /// The number that each ring to or from another host has among a calendar's.
    pub(crate) fn wired_rings(&self, plan: &Plan, calendar: usize) -> BTreeMap<RingId, u32> {
        let wires = self.wires(plan, calendar);
        let rings = wires.iter().flat_map(|wire| &wire.rings);
        rings.copied().zip(0..).collect()
    }
}

/// Where the tokens of a ring are put that come from another host.
#[derive(Clone, Copy)]
struct RingPlace {
    /// The first new token of place 0; null for rings that this worker sends on.
    base: *mut u8,
    stride_bytes: usize,
    blocks: u64,
    block_tokens: u64,
    token_bytes: usize,
}

/// The places of a worker's wired rings.
struct RingPlaces(Vec<RingPlace>);

impl RingMemory for RingPlaces {
    fn place(&mut self, ring: usize, first: u64, bytes: usize) -> &mut [u8] {
        let place = self.0[ring];
        let offset_tokens = first % place.block_tokens;
        let offset_bytes = offset_tokens as usize * place.token_bytes;
        let block_bytes = place.block_tokens as usize * place.token_bytes;
        assert!(
            !place.base.is_null() && offset_bytes + bytes <= block_bytes,
            "tokens that come stay in their block"
        );
        let index = (first / place.block_tokens % place.blocks) as usize;
        let start = place
            .base
            .wrapping_add(index * place.stride_bytes + offset_bytes);
        // SAFETY: the block's place is in the exchange region at the offset of a verified plan, which the worker's
        // `RingPlaces` keep alive with the epoch; the place has been released, so nobody but this worker's thread uses it
        // before the tokens are published, which is after the slice is gone.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }
}

/// The wires of the worker of this thread.
struct WorkerWires {
    wires: Wires,
    places: RingPlaces,
    stop: OwnedFd,
    /// What went wrong while the worker slept for something else.
    failed: Option<WireStop>,
    /// What the places are in.
    _epoch: Arc<EpochMemory>,
}

thread_local! {
    static WIRES: RefCell<Option<WorkerWires>> = const { RefCell::new(None) };
}

/// Takes the wires away from the thread when the worker's part is over.
pub(super) struct OpenWires(());

impl Drop for OpenWires {
    fn drop(&mut self) {
        duties::set(None);
        WIRES.with_borrow_mut(|wires| *wires = None);
    }
}

/// Opens the wires of a calendar, on the worker's own thread; `spin` is how it waits for them. Nothing if it has none.
///
/// # Errors
/// The epoch was stopped, or a peer does not come.
pub(super) fn open(
    loaded: &LoadedProgram,
    spec: &EpochSpec,
    calendar: usize,
    epoch: &Arc<EpochMemory>,
    wiring: &Wiring,
    spin: Spin,
) -> Result<Option<OpenWires>, StepStop> {
    let plan = &loaded.program.plans[spec.plan];
    let worker_places = &wiring.places;
    let planned = worker_places.wires(plan, calendar);
    if planned.is_empty() {
        return Ok(None);
    }
    let failed = |error: std::io::Error| wire_fault(error.to_string());
    let stop = epoch.stop_event().map_err(failed)?;
    let wires_stop = stop.try_clone().map_err(failed)?;
    let mut wires = Wires::new(spec.epoch, wires_stop, spec.checksums);
    if spin == Spin::LONG {
        wires = wires.with_own_core();
    }
    let mut places = RingPlaces(Vec::new());
    let deadline = Deadline::after(OPEN_LIMIT);
    let peer_name = |wire: &WirePlan| {
        let device = &loaded.program.machine.devices[spec.devices[wire.peer]].name;
        let host = &worker_places.names[worker_places.hosts[wire.peer]];
        format!("{device} on host {host}")
    };

    // First those that this worker dials: two workers that send to each other would otherwise wait for each other.
    let mut connections: Vec<Option<Connection>> = planned.iter().map(|_| None).collect();
    for side in [Side::Sends, Side::Receives] {
        for (wire, connection) in planned.iter().zip(&mut connections) {
            if wire.side != side {
                continue;
            }
            let opened = open_wire(spec, calendar, epoch, wiring, wire, deadline);
            *connection = Some(opened.map_err(|error| match epoch.common.stop.is_set() {
                true => StepStop::Stopped,
                false => wire_fault(format!("no wire to {}: {error}", peer_name(wire))),
            })?);
        }
    }

    let mut connections: Vec<Connection> = connections.into_iter().flatten().collect();
    if matches!(wiring.network.credentials.protection, Protection::Ucx) {
        let is_stopped = || epoch.common.stop.is_set();
        let carried = carry_over_ucx(&mut connections, deadline, is_stopped);
        carried.map_err(|(wire, error)| match is_stopped() {
            true => StepStop::Stopped,
            false => wire_fault(format!(
                "the wire to {}: {error}",
                peer_name(&planned[wire])
            )),
        })?;
    }

    for (wire, connection) in planned.into_iter().zip(connections) {
        let peer = peer_name(&wire);
        let specs = ring_specs(loaded, spec.plan, &wire);
        places.add(loaded, plan, epoch, &wire);
        let added = wires.add(connection, peer, wire.side, specs);
        added.map_err(|error| wire_fault(error.to_string()))?;
    }

    let worker_wires = WorkerWires {
        wires,
        places,
        stop,
        failed: None,
        _epoch: Arc::clone(epoch),
    };
    WIRES.with_borrow_mut(|wires| *wires = Some(worker_wires));
    duties::set(Some(attend));
    Ok(Some(OpenWires(())))
}

/// What both ends know of a wire's rings.
fn ring_specs(loaded: &LoadedProgram, plan_id: PlanId, wire: &WirePlan) -> Vec<RingSpec> {
    let plan = &loaded.program.plans[plan_id];
    let sends = &loaded.facts(plan_id).sums(plan).sends;
    let specs = wire.rings.iter().map(|ring| {
        let buffer = &plan.buffers[plan.rings[*ring].buffer];
        let channel = &loaded.program.graph.channels[buffer.channel];
        let ranges = sends[*ring].iter();
        RingSpec {
            ring: ring.0,
            token_bytes: channel.token.bytes(),
            block_tokens: buffer.block_tokens,
            blocks: u64::from(buffer.blocks),
            sends: ranges.map(|(from, end)| end - from).collect(),
        }
    });
    specs.collect()
}

impl RingPlaces {
    /// Adds the places of a wire's rings.
    fn add(&mut self, loaded: &LoadedProgram, plan: &Plan, epoch: &EpochMemory, wire: &WirePlan) {
        for ring in &wire.rings {
            let buffer = &plan.buffers[plan.rings[*ring].buffer];
            let channel = &loaded.program.graph.channels[buffer.channel];
            let token_bytes = channel.token.bytes();
            let first_offset = buffer.offset_bytes + buffer.head_tokens * token_bytes;
            assert_eq!(
                buffer.region,
                Region::Exchange,
                "what others send comes here"
            );
            self.0.push(RingPlace {
                base: match wire.side {
                    Side::Sends => std::ptr::null_mut(),
                    Side::Receives => epoch
                        .exchange(buffer.device)
                        .wrapping_add(first_offset as usize),
                },
                stride_bytes: buffer.stride_bytes as usize,
                blocks: u64::from(buffer.blocks),
                block_tokens: buffer.block_tokens,
                token_bytes: token_bytes as usize,
            });
        }
    }
}

/// The connection of one wire: the sender dials, the receiver is dialed.
fn open_wire(
    spec: &EpochSpec,
    calendar: usize,
    epoch: &EpochMemory,
    wiring: &Wiring,
    wire: &WirePlan,
    deadline: Deadline,
) -> Result<Connection, String> {
    let is_stopped = || epoch.common.stop.is_set();
    let (sender, receiver) = match wire.side {
        Side::Sends => (calendar, wire.peer),
        Side::Receives => (wire.peer, calendar),
    };
    let key = WireKey {
        epoch: spec.epoch,
        sender: sender as u32,
        receiver: receiver as u32,
    };
    if wire.side == Side::Receives {
        let switchboard = &wiring.network.switchboard;
        return switchboard.take(key, deadline, is_stopped);
    }

    let hello = Hello {
        purpose: Purpose::Wire,
        run: wiring.network.run,
        epoch: spec.epoch,
        plan: wiring.places.plan,
        sender: key.sender,
        receiver: key.receiver,
    };
    let address = wiring.places.addresses[wire.peer];
    loop {
        let connected = connect_by(address, Deadline::after(DIAL_LIMIT));
        let error = match connected {
            Ok(socket) => match dial(socket, &hello, &wiring.network.credentials, deadline) {
                // A host lets go whoever comes while it has many others to let in.
                Err(error @ HandshakeError::Cut { .. }) => {
                    std::thread::sleep(REDIAL_PAUSE);
                    error.to_string()
                }
                dialed => return dialed.map_err(|error| error.to_string()),
            },
            Err(error) => format!("{address}: {error}"),
        };
        if is_stopped() || deadline.left_ns() == Some(0) {
            return Err(error);
        }
    }
}

fn wire_fault(text: String) -> StepStop {
    StepStop::Fault(WorkerFault::Wire(text))
}

/// Attends to the wires while the worker sleeps for something else.
fn attend() {
    WIRES.with(|wires| {
        let Ok(mut wires) = wires.try_borrow_mut() else {
            return;
        };
        if let Some(wires) = &mut *wires
            && wires.failed.is_none()
        {
            wires.failed = wires.wires.pump(&mut wires.places).err();
        }
    });
}

/// Does something with the wires of this thread.
fn with_wires<T>(
    act: impl FnOnce(&mut Wires, &mut RingPlaces) -> Result<T, WireStop>,
) -> Result<T, StepStop> {
    WIRES.with_borrow_mut(|wires| {
        // A calendar is lowered to wire instructions only where its worker opens wires.
        let Some(worker_wires) = wires else {
            return Err(wire_fault("the worker has no wires".to_owned()));
        };
        let result = match worker_wires.failed.take() {
            Some(stop) => Err(stop),
            None => act(&mut worker_wires.wires, &mut worker_wires.places),
        };
        result.map_err(|stop| worker_wires.step_stop(stop))
    })
}

pub(super) fn wait_released(ring: u32, blocks: u64) -> Result<(), StepStop> {
    with_wires(|wires, places| wires.wait_released(ring as usize, blocks, Deadline::NEVER, places))
}

pub(super) fn wait_published(ring: u32, tokens: u64) -> Result<(), StepStop> {
    with_wires(|wires, places| wires.wait_published(ring as usize, tokens, Deadline::NEVER, places))
}

/// Whether so many tokens of a ring have come, without waiting.
pub(super) fn has_published(ring: u32, tokens: u64) -> Result<bool, StepStop> {
    with_wires(|wires, places| {
        if wires.counts(ring as usize).0 < tokens {
            wires.pump(places)?;
        }
        Ok(wires.counts(ring as usize).0 >= tokens)
    })
}

pub(super) fn send(ring: u32, count: u64, payload: &[u8]) -> Result<(), StepStop> {
    with_wires(|wires, places| wires.send(ring as usize, count, payload, places))
}

pub(super) fn release(ring: u32, blocks: u64) -> Result<(), StepStop> {
    with_wires(|wires, _| wires.release(ring as usize, blocks))
}

/// Everything is sent: waits until the receivers have read it.
pub(super) fn finish() -> Result<(), StepStop> {
    with_wires(Wires::finish)
}

impl WorkerWires {
    /// What the end of a wait is to the worker. A peer that is gone is not this worker's fault: its host's loss stops the
    /// epoch, which is waited for.
    #[cold]
    fn step_stop(&self, stop: WireStop) -> StepStop {
        let error = match stop {
            WireStop::Stopped | WireStop::TimedOut => return StepStop::Stopped,
            WireStop::Failed(error) => error,
        };
        let is_gone = match &error {
            WireError::Gone { .. } => true,
            WireError::Frame { source, .. } => matches!(source, FrameError::Cut { .. }),
            _ => false,
        };
        if is_gone && self.is_stopped_soon() {
            return StepStop::Stopped;
        }
        wire_fault(error.to_string())
    }

    fn is_stopped_soon(&self) -> bool {
        let limit = Timespec {
            tv_sec: GONE_LIMIT_S,
            tv_nsec: 0,
        };
        let mut polled = [PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN)];
        poll(&mut polled, Some(&limit)).is_ok_and(|ready| ready > 0)
    }
}
