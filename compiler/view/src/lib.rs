//! What a bundle holds as people look at it: one structure, [`View`], which every format prints and every comparison
//! reads. Knows nothing of how a plan is made.
//!
//! [`View::of`] flattens a program: names and types as text, loops of calendars counted out into slots, transfers
//! matched from sender to receiver, live ranges of memory. The formats are functions of it: [`text`], [`json`],
//! [`ron`], [`graph`] (DOT and Mermaid), [`svg`], [`html`] and [`perfetto`]. All are deterministic: the same program
//! gives the same bytes. [`measured`] lays the trace of a run beside its plans.
//!
//! # The JSON form
//!
//! [`json::write`] writes a [`View`] field by field, under the names that the fields have here. `format` is
//! [`FORMAT`], `version` is [`VERSION`]: it grows when a field changes its meaning or goes, not when one is added. All
//! times are nanoseconds from the start of the period, all sizes bytes. Numbers called `actor`, `channel`, `device`,
//! `plan`, `lane`, `slot`, `ring` and `buffer` are positions in the lists of those names, counted from 0. Absent
//! fields are 0 or null.

pub mod admit;
mod build;
pub mod diff;
mod expand;
pub mod graph;
pub mod html;
pub mod json;
mod labels;
pub mod measured;
#[cfg(test)]
mod measured_tests;
mod modes;
pub mod perfetto;
mod protobuf;
mod stages;
pub mod svg;
#[cfg(test)]
mod tests;
pub mod text;

use std::collections::BTreeMap;

use serde::Serialize;
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{LaneKind, Program};

pub use self::measured::{MeasuredActor, MeasuredLane, MeasuredPlan, MeasuredRun, MeasuredSlot};
pub use self::modes::{ModePlan, ModeView, ModesView};

/// What the `format` field of the JSON form says.
pub const FORMAT: &str = "zbmd-view";
/// Version of the JSON form.
pub const VERSION: u32 = 1;

/// A program to look at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct View {
    /// [`FORMAT`].
    pub format: &'static str,
    /// [`VERSION`].
    pub version: u32,
    /// Name of the model.
    pub model: String,
    /// What the bundle says of how it was made.
    pub meta: BTreeMap<String, String>,
    /// Devices of the machine.
    pub devices: Vec<DeviceView>,
    /// Links of the machine.
    pub links: Vec<LinkView>,
    /// Actors of the graph.
    pub actors: Vec<ActorView>,
    /// Channels of the graph.
    pub channels: Vec<ChannelView>,
    /// Actors that run on several devices at once, with the number of their replicas.
    pub replicated: Vec<(String, u32)>,
    /// How many actors round the factors of their products on CUDA devices, by what to.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rounded: BTreeMap<String, u32>,
    /// The plans; 0 is `main`.
    pub plans: Vec<PlanView>,
    /// Devices that can stand in for one another; empty without contingencies.
    pub kinds: Vec<Vec<u32>>,
    /// Hosts that can stand in for one another, each with its devices, which correspond position by position. Those that
    /// have lost the least stand at the first places.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alike_hosts: Vec<Vec<Vec<u32>>>,
    /// What runs when devices are lost.
    pub contingencies: Vec<ContingencyView>,
    /// All modes of the bundle, of which one is shown; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modes: Option<ModesView>,
    /// The run that is shown beside the plans, if any; see [`PlanView::measured`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredRun>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceView {
    /// Its name, such as `cpu:0`.
    pub name: String,
    /// What drives it.
    pub backend: String,
    /// Memory for arenas and exchanges.
    pub memory_bytes: u64,
    /// The host that it is lost with; absent where the machine has no hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl DeviceView {
    /// Its name, and that of its host if there is one: `cpu:0 on host left`.
    pub fn name_with_host(&self) -> String {
        match &self.host {
            Some(host) => format!("{} on host {host}", self.name),
            None => self.name.clone(),
        }
    }
}

/// A one-way link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkView {
    /// Device that sends.
    pub from: u32,
    /// Device that receives.
    pub to: u32,
    /// Bandwidth.
    pub bytes_per_s: u64,
    /// From the end of a send to the tokens' being readable.
    pub latency_ns: u64,
}

/// An actor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActorView {
    /// Its name.
    pub name: String,
    /// What drawings call it, where that is not its name: see [`zbmd_ir::text::actor_label`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The op, `source` or `sink`, with its parameters.
    pub op: String,
    /// `compute`, `source` or `sink`.
    pub role: &'static str,
    /// Firings in an iteration.
    pub repetitions: u64,
    /// Input ports.
    pub inputs: Vec<PortView>,
    /// Output ports.
    pub outputs: Vec<PortView>,
    /// What says when it works; absent where it always does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateView>,
}

/// The gate of an actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GateView {
    /// The input port that opens it while one of the tokens looked at is not zero, by position.
    pub input: u32,
    /// What the op's outputs give while it is closed, `hold` or `zero` each. Outputs that are states are left out.
    pub outputs: Vec<&'static str>,
    /// What becomes of the op's states meanwhile: `hold` or `zero`.
    pub states: &'static str,
}

/// A port of an actor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PortView {
    /// Its name.
    pub name: String,
    /// Tokens consumed or produced in a firing.
    pub rate: u64,
    /// Tokens looked at in a firing; the rate for outputs.
    pub window: u64,
    /// The channel it is joined to.
    pub channel: u32,
}

/// A channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChannelView {
    /// The writer's port, such as `fir.out`.
    pub name: String,
    /// Actor that writes.
    pub from: u32,
    /// Tokens of one firing of the writer.
    pub rate: u64,
    /// The readers.
    pub readers: Vec<ReaderView>,
    /// Type of a token.
    pub token: String,
    /// Size of a token.
    pub token_bytes: u64,
    /// Tokens that lie on it at every iteration border.
    pub initial: u64,
    /// Whether it is a state, updated in place.
    pub state: bool,
}

/// A reader of a channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReaderView {
    /// Actor that reads.
    pub actor: u32,
    /// Its input port, by position.
    pub port: u32,
    /// Initial tokens that it sees first.
    pub delay: u64,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanView {
    /// Its name.
    pub name: String,
    /// Iterations in a block.
    pub block: u64,
    /// Predicted time from one period's start to the next.
    pub period_ns: u64,
    /// Predicted time from a block's first slot to its last slot's end.
    pub latency_ns: u64,
    /// What limits the period, as the scheduler names it.
    pub bound_by: String,
    /// Number of stages.
    pub stages: u32,
    /// What each stage but the first buys; empty for a plan of one stage.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub boundaries: Vec<StageBoundary>,
    /// Why the latency is long, where it exceeds the period times one more than the plan's devices, which a row of them
    /// needs at most: the actors with which a chain of work comes to each device, of a chain that changes its device as
    /// often as any does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_changes: Vec<u32>,
    /// What each actor does, by actor.
    pub actors: Vec<FiredView>,
    /// Lanes with their slots.
    pub lanes: Vec<LaneView>,
    /// Hand-overs between devices.
    pub rings: Vec<RingView>,
    /// Sends with the receipts that wait for them.
    pub transfers: Vec<TransferView>,
    /// Memory of channels.
    pub buffers: Vec<BufferView>,
    /// Regions of the devices that have slots.
    pub memories: Vec<MemoryView>,
    /// How busy lanes and links are, the busiest first.
    pub loads: Vec<LoadView>,
    /// How a run really went, in the periods that ran this plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredPlan>,
}

/// Where one stage of the pipeline ends and the next begins: what would have to fit into one period without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StageBoundary {
    /// The stage that begins, counted from 0.
    pub stage: u32,
    /// The longest chain of calls, in the stage and the one before, that begins and ends on one device. If the two
    /// stages were one, no period could be shorter.
    pub joined_ns: u64,
    /// The first actor of that chain.
    pub first_actor: u32,
    /// The last actor of that chain, on the same device.
    pub last_actor: u32,
}

/// What a plan does with one actor in a period.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FiredView {
    /// Device that it is placed on.
    pub device: u32,
    /// Lane of its first slot.
    pub lane: u32,
    /// Periods that it is behind its block's first slot.
    pub stage: u32,
    /// Start of its first firing.
    pub start_ns: u64,
    /// End of its last firing.
    pub end_ns: u64,
    /// Calls of its kernel.
    pub calls: u64,
    /// Firings in all calls.
    pub firings: u64,
    /// Time in all calls.
    pub busy_ns: u64,
    /// The variant of its kernel; null for the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// A lane.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaneView {
    /// Device that it belongs to.
    pub device: u32,
    /// `compute`, `copy-in` or `copy-out`.
    pub kind: &'static str,
    /// Time that it is busy in a period.
    pub busy_ns: u64,
    /// Slots executed in a period, loops counted out.
    pub executions: u64,
    /// Slots by start. Loops are counted out, except very long ones, which stand as one slot.
    pub slots: Vec<SlotView>,
}

/// What a slot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Act {
    /// Calls a kernel for `count` firings from `first` on; `id` is the actor.
    Fire,
    /// Sends `count` tokens from `first` on; `id` is the ring.
    Send,
    /// Waits for `count` tokens from `first` on; `id` is the ring.
    Recv,
    /// Gives a place back to the sender; `id` is the ring.
    Release,
    /// Carries history to the next place; `id` is the buffer.
    Carry,
    /// Begins to read weights from the device's tier; `id` is the actor.
    Fetch,
    /// Waits for weights from the device's tier; `id` is the actor.
    Await,
    /// A loop of `count` executions, too many to list; `id` is the actor that takes most of the time.
    Loop,
}

impl Act {
    /// All, in order.
    pub const ALL: [Act; 8] = [
        Act::Fire,
        Act::Send,
        Act::Recv,
        Act::Release,
        Act::Carry,
        Act::Fetch,
        Act::Await,
        Act::Loop,
    ];

    /// Name in every format.
    pub const fn name(self) -> &'static str {
        match self {
            Act::Fire => "fire",
            Act::Send => "send",
            Act::Recv => "recv",
            Act::Release => "release",
            Act::Carry => "carry",
            Act::Fetch => "fetch",
            Act::Await => "await",
            Act::Loop => "loop",
        }
    }
}

/// A slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlotView {
    /// When it starts.
    pub start_ns: u64,
    /// How long it takes.
    pub duration_ns: u64,
    /// Periods that it is behind its block's first slot.
    #[serde(skip_serializing_if = "zero32")]
    pub stage: u32,
    /// What it does.
    pub act: Act,
    /// What it does it to; see [`Act`].
    pub id: u32,
    /// First firing or token of the block.
    #[serde(skip_serializing_if = "zero")]
    pub first: u64,
    /// Firings, tokens or executions.
    #[serde(skip_serializing_if = "zero")]
    pub count: u64,
}

impl SlotView {
    /// When it ends.
    pub fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }
}

/// A hand-over between devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RingView {
    /// The channel.
    pub channel: u32,
    /// Device of the writer.
    pub from: u32,
    /// Device of the readers.
    pub to: u32,
    /// Buffer of the receiver.
    pub buffer: u32,
    /// Tokens handed over in a block.
    pub tokens: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A receipt and the send that it waits for last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferView {
    /// The ring.
    pub ring: u32,
    /// Lane and slot that send.
    pub from: (u32, u32),
    /// Lane and slot that receive.
    pub to: (u32, u32),
    /// Periods from the send to the receipt.
    #[serde(skip_serializing_if = "zero32")]
    pub periods: u32,
    /// Tokens received.
    pub tokens: u64,
}

/// Memory of a channel on a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BufferView {
    /// The channel.
    pub channel: u32,
    /// The device.
    pub device: u32,
    /// `arena` or `exchange`.
    pub region: &'static str,
    /// Offset of place 0.
    pub offset_bytes: u64,
    /// Distance between places.
    pub stride_bytes: u64,
    /// Number of places.
    pub places: u32,
    /// Tokens of history in front of each block.
    pub head_tokens: u64,
    /// New tokens in each block.
    pub block_tokens: u64,
    /// New tokens that a place holds at a time, where that is less than a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk_tokens: Option<u64>,
    /// The channel whose buffer on the same device this one lies over, or over a part of: an actor writes in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<u32>,
    /// The channel in whose buffer on the same device this one lies: an actor puts that together in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part_of: Option<u32>,
    /// From its first write to its last read, where its memory is free for others in the rest of the period.
    pub live_ns: Option<(u64, u64)>,
}

impl BufferView {
    /// New tokens in a place, for people: `8`, or `2 of 8` for chunks of a block.
    pub fn shown_tokens(&self) -> String {
        let block = self.block_tokens;
        match self.chunk_tokens {
            Some(chunk) => format!("{chunk} of {block}"),
            None => block.to_string(),
        }
    }

    /// Bytes of all places.
    pub fn size_bytes(&self) -> u64 {
        self.stride_bytes.saturating_mul(u64::from(self.places))
    }
}

/// Regions of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryView {
    /// The device.
    pub device: u32,
    /// Size of its arena.
    pub arena_bytes: u64,
    /// Size of its exchange region.
    pub exchange_bytes: u64,
    /// Where kernels' scratch memory lies in the arena.
    pub scratch_offset_bytes: u64,
    /// Its size.
    pub scratch_bytes: u64,
}

/// How busy a lane or a link is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadView {
    /// `cpu:0`, `cpu:0 copy-in`, `cpu:0 -> cpu:1`.
    pub what: String,
    /// Time that it is busy in a period.
    pub busy_ns: u64,
    /// That as a fraction of the period.
    pub share: f64,
}

/// What runs when devices are lost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContingencyView {
    /// The loss in words.
    pub lost: String,
    /// How many of which kind are lost, as positions in `kinds`.
    pub counts: Vec<(u32, u32)>,
    /// The plan that runs then.
    pub plan: u32,
    /// The plan for what is left of the input.
    pub tail: Option<u32>,
}

impl View {
    /// Looks at a verified program. O(slots · log slots); long loops are not counted out, so that memory stays within
    /// a few times that of the program.
    pub fn of(
        program: &zbmd_ir::verify::Verified<Program>,
        meta: &BTreeMap<String, String>,
    ) -> View {
        build::view(program, meta)
    }

    /// Looks at one of verified modes, by index, and at what there is to say of all of them.
    pub fn of_mode(modes: &VerifiedModes, shown: usize, meta: &BTreeMap<String, String>) -> View {
        let mut view = build::view(&modes.programs()[shown], meta);
        view.modes = ModesView::of(modes, shown);
        view
    }

    /// The plan of that name or number.
    pub fn plan(&self, wanted: &str) -> Option<usize> {
        let number = wanted
            .parse::<usize>()
            .ok()
            .filter(|&n| n < self.plans.len());
        number.or_else(|| self.plans.iter().position(|p| p.name == wanted))
    }

    /// The actor of that name.
    pub fn actor(&self, name: &str) -> Option<usize> {
        self.actors.iter().position(|a| a.name == name)
    }

    fn device_name(&self, device: u32) -> &str {
        self.devices.get(device as usize).map_or("?", |d| &d.name)
    }
}

fn lane_kind(kind: LaneKind) -> &'static str {
    match kind {
        LaneKind::Compute => "compute",
        LaneKind::CopyIn => "copy-in",
        LaneKind::CopyOut => "copy-out",
    }
}

fn zero(n: &u64) -> bool {
    *n == 0
}

fn zero32(n: &u32) -> bool {
    *n == 0
}
