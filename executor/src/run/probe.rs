//! Looking into a run: copies of what a channel carries, block by block, and when the slots of a device ended. The run is
//! not stopped, built anew or waited for, and its tokens are the same whoever looks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zbmd_ir::trace::OTHER;
use zbmd_ir::{ChannelId, DType, DeviceId, TokenType};

use super::control::{CurrentEpoch, RunControl};
use crate::error::ProbeError;
use crate::transport::clock::Clock;
use crate::transport::epoch::EpochMemory;
use crate::transport::probe_ring::MAX_PLACE_BYTES;
use crate::worker::probe::{SLOT_TIME_BYTES, SLOT_TIMES};

/// Between two looks at what was copied: the longer nothing comes, the longer, but not so long that people notice.
const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(10);
/// Names that an error lists at most.
const MAX_KNOWN: usize = 40;

/// Who looks into a run: one at a time.
#[derive(Default)]
pub(super) struct ProbeDesk {
    /// What is looked at.
    target: Mutex<Option<String>>,
    tickets: AtomicU64,
}

impl ProbeDesk {
    fn target(&self) -> MutexGuard<'_, Option<String>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that nobody has had.
    fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Looks into a run, from any thread.
#[derive(Clone)]
pub struct ProbeHandle {
    pub(super) control: Arc<RunControl>,
    pub(super) has_hosts: bool,
}

impl std::fmt::Debug for ProbeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProbeHandle").finish_non_exhaustive()
    }
}

/// A channel that can be looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeChannel {
    /// The actor that writes it, or `actor.port` where that has several outputs.
    pub name: String,
    /// Its tokens.
    pub token: TokenType,
    /// Tokens of a block of the present plan.
    pub block_tokens: u64,
    /// Iterations of such a block.
    pub block_iterations: u64,
    /// The device that they are copied on.
    pub device: String,
    /// Tokens a second, where a source or a sink of the model says how fast it is.
    pub sample_rate: Option<f64>,
}

/// What a channel carried in one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbedBlock {
    /// The run's first iteration of the block.
    pub iteration: u64,
    /// Iterations of the block.
    pub iterations: u64,
    /// Its tokens.
    pub bytes: Vec<u8>,
}

/// When one slot of a period ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotTime {
    /// Its number in the device's calendar, loops not counted out; `None` for what a worker does besides its slots.
    pub slot: Option<u32>,
    /// Nanoseconds after the period began.
    pub end_ns: u32,
}

/// What a probe looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ProbeSubject {
    Channel(String),
    Device(String),
}

impl ProbeSubject {
    fn name(&self) -> &str {
        match self {
            Self::Channel(name) | Self::Device(name) => name,
        }
    }
}

impl ProbeHandle {
    /// The channels that can be looked at now: those that a CPU writes or receives. A mode has its own.
    pub fn channels(&self) -> Vec<ProbeChannel> {
        let current = self.control.current();
        current.as_ref().map_or_else(Vec::new, visible_channels)
    }

    /// Begins to look at a channel, named as in [`ProbeChannel`]; the next block of it that begins is the first that comes.
    ///
    /// # Errors
    /// See [`ProbeError`].
    pub fn attach(&self, channel: &str) -> Result<Probe, ProbeError> {
        self.attach_to(ProbeSubject::Channel(channel.to_owned()))
    }

    /// When the slots of one period of a CPU device ended: the next period that it begins, within so long. `None` if it
    /// begins none.
    ///
    /// # Errors
    /// See [`ProbeError`].
    pub fn slot_times(
        &self,
        device: &str,
        limit: Duration,
    ) -> Result<Option<Vec<SlotTime>>, ProbeError> {
        let mut probe = self.attach_to(ProbeSubject::Device(device.to_owned()))?;
        let found = probe.next(limit)?;
        Ok(found.map(|block| slot_times(&block.bytes)))
    }

    fn attach_to(&self, subject: ProbeSubject) -> Result<Probe, ProbeError> {
        if self.has_hosts {
            return Err(ProbeError::Hosts);
        }
        if self.control.is_over() {
            return Err(ProbeError::Ended);
        }
        let seat = ProbeSeat::take(&self.control, subject.name())?;
        let mut probe = Probe {
            seat,
            subject,
            attachment: None,
            next_iteration: 0,
        };
        probe.follow_epoch()?;
        Ok(probe)
    }
}

/// The place of the one who looks, as long as this is kept.
struct ProbeSeat(Arc<RunControl>);

impl ProbeSeat {
    /// # Errors
    /// Somebody has it.
    fn take(control: &Arc<RunControl>, target: &str) -> Result<Self, ProbeError> {
        let mut taken = control.probe_desk.target();
        match &*taken {
            Some(other) => Err(ProbeError::Busy {
                other: other.clone(),
            }),
            None => {
                *taken = Some(target.to_owned());
                Ok(Self(Arc::clone(control)))
            }
        }
    }
}

impl Drop for ProbeSeat {
    fn drop(&mut self) {
        *self.0.probe_desk.target() = None;
    }
}

/// What somebody looks at. Dropping it ends that.
pub struct Probe {
    seat: ProbeSeat,
    subject: ProbeSubject,
    attachment: Option<Attachment>,
    /// Blocks before it were taken, and come again after a loss.
    next_iteration: u64,
}

/// A probe in one epoch.
struct Attachment {
    memory: Arc<EpochMemory>,
    ticket: u64,
    first_iteration: u64,
    block_iterations: u64,
    token: TokenType,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.detach();
    }
}

impl Probe {
    /// The tokens of the channel; those of the mode that it was last looked at in.
    pub fn token(&self) -> TokenType {
        let attachment = self.attachment.as_ref();
        attachment.map_or_else(|| TokenType::scalar(DType::U8), |known| known.token.clone())
    }

    /// The next block, waited for at most so long; `None` if none came. Blocks come in order; one that was copied while
    /// two or more others were not taken yet is left out, so numbers of iterations may have gaps. After a loss it
    /// goes on where it was; after a change of mode with the channel of that name, if there is one.
    ///
    /// # Errors
    /// The run has ended, and all that was copied was taken; or the present mode has no such channel.
    pub fn next(&mut self, limit: Duration) -> Result<Option<ProbedBlock>, ProbeError> {
        let end_ns = Clock.now_ns().saturating_add(limit.as_nanos() as u64);
        let mut pause = MIN_PAUSE;
        loop {
            // Before it looks: what a run has copied at its end is taken.
            let is_over = self.seat.0.is_over();
            while let Some(block) = self.take() {
                let is_new = block.iteration >= self.next_iteration;
                if is_new {
                    self.next_iteration = block.iteration + block.iterations;
                    return Ok(Some(block));
                }
            }
            if is_over {
                return Err(ProbeError::Ended);
            }
            self.follow_epoch()?;
            if Clock.now_ns() >= end_ns {
                return Ok(None);
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(MAX_PAUSE);
        }
    }

    fn take(&self) -> Option<ProbedBlock> {
        let attachment = self.attachment.as_ref()?;
        let mut bytes = Vec::new();
        let block = attachment
            .memory
            .probe
            .take(attachment.ticket, &mut bytes)?;
        Some(ProbedBlock {
            iteration: attachment.first_iteration + block * attachment.block_iterations,
            iterations: attachment.block_iterations,
            bytes,
        })
    }

    fn detach(&mut self) {
        if let Some(attachment) = self.attachment.take() {
            attachment.memory.probe.withdraw();
        }
    }

    /// Looks into the epoch at work, if it does not yet.
    fn follow_epoch(&mut self) -> Result<(), ProbeError> {
        let control = Arc::clone(&self.seat.0);
        let current = control.current();
        let current = current.as_ref().ok_or(ProbeError::Ended)?;
        let attached_to = self.attachment.as_ref().map(|known| &known.memory);
        if attached_to.is_some_and(|memory| Arc::ptr_eq(memory, &current.memory)) {
            return Ok(());
        }

        self.detach();
        let (calendar, target, token) = match &self.subject {
            ProbeSubject::Channel(name) => {
                let VisibleChannel { id, calendar } = find_channel(current, name)?;
                let token = current.loaded.program.graph.channels[id].token.clone();
                (calendar, id.0, token)
            }
            ProbeSubject::Device(name) => {
                let calendar = find_calendar(current, name)?;
                (calendar, SLOT_TIMES, TokenType::scalar(DType::U8))
            }
        };
        let plan = &current.loaded.program.plans[current.spec.plan];
        let ticket = control.probe_desk.ticket();
        current.memory.make_probe_present();
        current
            .memory
            .probe
            .request(ticket, calendar as u32, target);
        self.attachment = Some(Attachment {
            memory: Arc::clone(&current.memory),
            ticket,
            first_iteration: current.first_iteration,
            block_iterations: plan.block,
            token,
        });
        Ok(())
    }
}

/// A channel where it can be copied.
struct VisibleChannel {
    id: ChannelId,
    calendar: usize,
}

/// The channels of an epoch that can be looked at.
fn visible_channels(current: &CurrentEpoch) -> Vec<ProbeChannel> {
    let graph = &current.loaded.program.graph;
    let ids = graph.channels.iter_enumerated().map(|(id, _)| id);
    let visible = ids.filter_map(|id| {
        let calendar = copying_calendar(current, id)?;
        Some(describe(current, &VisibleChannel { id, calendar }))
    });
    visible.collect()
}

fn describe(current: &CurrentEpoch, channel: &VisibleChannel) -> ProbeChannel {
    let program = &current.loaded.program;
    let plan = &program.plans[current.spec.plan];
    let device = current.spec.devices[channel.calendar];
    let iteration_tokens = iteration_tokens(current, channel.id);
    ProbeChannel {
        name: channel_name(current, channel.id),
        token: program.graph.channels[channel.id].token.clone(),
        block_tokens: plan.block * iteration_tokens,
        block_iterations: plan.block,
        device: program.machine.devices[device].name.clone(),
        sample_rate: iteration_rate(current).map(|rate| rate * iteration_tokens as f64),
    }
}

/// Tokens that an iteration writes to a channel.
fn iteration_tokens(current: &CurrentEpoch, id: ChannelId) -> u64 {
    let graph = &current.loaded.program.graph;
    let from = graph.channels[id].from;
    let output = &graph.actors[from.actor].outputs[from.port as usize];
    current.loaded.repetition[from.actor] * output.rate
}

/// Iterations a second, by the first stream that says how fast it is.
fn iteration_rate(current: &CurrentEpoch) -> Option<f64> {
    let graph = &current.loaded.program.graph;
    let mut streams = graph.sources().chain(graph.sinks());
    streams.find_map(|(id, actor)| {
        let tokens = current.loaded.tokens_per_iteration(id);
        Some(actor.sample_rate()? / tokens as f64)
    })
}

/// The actor that writes a channel, with the port if there are several.
fn channel_name(current: &CurrentEpoch, id: ChannelId) -> String {
    let graph = &current.loaded.program.graph;
    let from = graph.channels[id].from;
    let actor = &graph.actors[from.actor];
    let is_state = |port: usize| actor.state_of_output(port as u32).is_some();
    let outputs = (0..actor.outputs.len()).filter(|port| !is_state(*port));
    match outputs.count() {
        0 | 1 => actor.name.clone(),
        _ => format!("{}.{}", actor.name, actor.outputs[from.port as usize].name),
    }
}

/// The calendar whose worker can copy a channel: that of its writer, or one that receives it where that is a GPU. `None` for
/// a state, or where no CPU has its tokens.
fn copying_calendar(current: &CurrentEpoch, id: ChannelId) -> Option<usize> {
    let program = &current.loaded.program;
    if program.graph.is_state(id) {
        return None;
    }
    let plan = &program.plans[current.spec.plan];
    let calendar_of = |device: DeviceId| {
        let mut calendars = plan.calendars.iter();
        calendars.position(|calendar| calendar.device == device)
    };
    let writer = program.graph.channels[id].from.actor;
    let receivers = plan.rings.iter().filter(|ring| ring.channel == id);
    let devices = std::iter::once(plan.placement[writer]).chain(receivers.map(|ring| ring.to));
    let is_cpu = |calendar: &usize| !current.loaded.is_gpu(current.spec.devices[*calendar]);
    devices.filter_map(calendar_of).find(is_cpu)
}

/// The channel of a name.
fn find_channel(current: &CurrentEpoch, name: &str) -> Result<VisibleChannel, ProbeError> {
    let program = &current.loaded.program;
    let graph = &program.graph;
    let plan = &program.plans[current.spec.plan];
    let is_named = |id: ChannelId| {
        let from = graph.channels[id].from;
        let actor = &graph.actors[from.actor];
        let port = &actor.outputs[from.port as usize].name;
        let with_port = name
            .strip_prefix(&actor.name)
            .and_then(|rest| rest.strip_prefix('.'));
        name == channel_name(current, id) || with_port == Some(port)
    };
    let mut ids = graph.channels.iter_enumerated().map(|(id, _)| id);
    let found = ids.find(|id| is_named(*id) && !graph.is_state(*id));
    let id = found.ok_or_else(|| ProbeError::Unknown {
        name: name.to_owned(),
        known: known_channels(current),
    })?;

    let Some(calendar) = copying_calendar(current, id) else {
        let device = plan.placement[graph.channels[id].from.actor];
        return Err(ProbeError::OnGpu {
            name: name.to_owned(),
            device: program.machine.devices[device].name.clone(),
            known: known_channels(current),
        });
    };
    let token_bytes = graph.channels[id].token.bytes();
    let bytes = plan.block * iteration_tokens(current, id) * token_bytes;
    if bytes > MAX_PLACE_BYTES {
        return Err(ProbeError::TooLong {
            name: name.to_owned(),
            bytes,
            limit: MAX_PLACE_BYTES,
        });
    }
    Ok(VisibleChannel { id, calendar })
}

/// Names for an error: as many as somebody reads.
fn known_channels(current: &CurrentEpoch) -> Vec<String> {
    let channels = visible_channels(current);
    let more = channels.len().saturating_sub(MAX_KNOWN);
    let names = channels.into_iter().map(|channel| channel.name);
    let mut known: Vec<String> = names.take(MAX_KNOWN).collect();
    if more > 0 {
        known.push(format!("and {more} more"));
    }
    known
}

/// The calendar that a CPU device of this name runs.
fn find_calendar(current: &CurrentEpoch, name: &str) -> Result<usize, ProbeError> {
    let devices = &current.loaded.program.machine.devices;
    let here = current.spec.devices.iter().enumerate();
    let cpus = here.filter(|(_, device)| !current.loaded.is_gpu(**device));
    let named: Vec<(usize, &str)> = cpus
        .map(|(calendar, device)| (calendar, devices[*device].name.as_str()))
        .collect();
    let found = named.iter().find(|(_, device)| *device == name);
    found
        .map(|(calendar, _)| *calendar)
        .ok_or_else(|| ProbeError::Device {
            name: name.to_owned(),
            known: named
                .iter()
                .map(|(_, device)| (*device).to_owned())
                .collect(),
        })
}

/// The times that a worker has noted.
fn slot_times(bytes: &[u8]) -> Vec<SlotTime> {
    let words = bytes.chunks_exact(SLOT_TIME_BYTES).map(|pair| {
        let word = |at: usize| {
            let word = pair[at..].first_chunk().copied().unwrap_or_default();
            u32::from_ne_bytes(word)
        };
        let slot = word(0);
        SlotTime {
            slot: (slot != OTHER).then_some(slot),
            end_ns: word(4),
        }
    });
    words.collect()
}
