//! What the verifier refuses, one variant a property, with ids and both numbers. Knows no check.

use std::fmt;

use super::budget::{Budget, Overrun};
use crate::text::printable;
use crate::{
    ActorId, BlobId, BufferId, ChannelId, DeviceId, HostId, HostKindId, KindId, PlanId, Region,
    RingId, Role, TokenType,
};

/// A port of an actor, for messages: `input 2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// Index among the inputs.
    In(u32),
    /// Index among the outputs.
    Out(u32),
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::In(i) => write!(f, "input {i}"),
            Port::Out(i) => write!(f, "output {i}"),
        }
    }
}

/// Something that reads a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// A firing, through an input port.
    Input(ActorId, u32),
    /// A send into a ring.
    Send(RingId),
    /// The carry of a buffer.
    Carry(BufferId),
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::Input(actor, port) => write!(f, "input {port} of {actor}"),
            Access::Send(ring) => write!(f, "send to {ring}"),
            Access::Carry(buffer) => write!(f, "carry of {buffer}"),
        }
    }
}

/// Something that has bytes in a region of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Memory {
    /// A buffer, all its places.
    Buffer(BufferId),
    /// The kernels' scratch memory.
    Scratch,
    /// The weights of an actor that are fetched from a tier.
    Weights(ActorId),
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Buffer(buffer) => write!(f, "{buffer}"),
            Memory::Scratch => f.write_str("scratch"),
            Memory::Weights(actor) => write!(f, "weights of {actor}"),
        }
    }
}

/// A link of a chain of devices that wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The device that waits.
    pub device: DeviceId,
    /// The ring it waits at.
    pub ring: RingId,
    /// Whether it waits for a release (else for tokens).
    pub release: bool,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.release { "a release" } else { "tokens" };
        write!(f, "{} for {what} of {}", self.device, self.ring)
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    items
        .iter()
        .map(T::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

fn maybe(id: &Option<PlanId>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| id.to_string())
}

/// A value in an error, which takes little memory once it is bounded: names and shapes are the file's to choose.
trait Bounded {
    fn bound(&mut self) {}
}

macro_rules! small {
    ($($ty:ty),* $(,)?) => { $(impl Bounded for $ty {})* };
}

// Cycles are as long as what they pass through, and no actor or device is in two that are reported.
small!(
    bool,
    u32,
    u64,
    u128,
    i64,
    usize,
    &'static str,
    HostId,
    HostKindId,
    ActorId,
    BlobId,
    BufferId,
    ChannelId,
    DeviceId,
    KindId,
    PlanId,
    RingId,
    Option<PlanId>,
    Region,
    Role,
    Port,
    Access,
    Memory,
    Vec<ActorId>,
    Vec<Wait>,
);

impl Bounded for String {
    fn bound(&mut self) {
        const MAX_CHARS: usize = 200;
        if let Some((end, _)) = self.char_indices().nth(MAX_CHARS) {
            self.truncate(end);
            self.push('…');
            self.shrink_to_fit();
        }
    }
}

impl Bounded for TokenType {
    fn bound(&mut self) {
        self.shape.truncate(crate::limits::MAX_RANK + 1);
        self.shape.shrink_to_fit();
    }
}

macro_rules! errors {
    ($($code:literal $name:ident { $($field:ident: $ty:ty),* $(,)? } $msg:literal $(, $arg:expr)*;)*) => {
        /// A property that does not hold.
        #[derive(Clone, Debug, PartialEq, thiserror::Error)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "the message in each variant's documentation names its fields")]
        pub enum VerifyError {
            $(
                #[doc = concat!("`", $code, "`: ", $msg)]
                #[error($msg $(, $arg)*)]
                $name { $($field: $ty),* },
            )*
        }

        impl VerifyError {
            /// The stable short code of the property, such as `V0101`: the same in every release.
            pub fn code(&self) -> &'static str {
                match self {
                    $(VerifyError::$name { .. } => $code,)*
                }
            }

            /// Cuts what a hostile program can make as long as it likes.
            fn bound(&mut self) {
                match self {
                    $(VerifyError::$name { $($field),* } => {
                        $(Bounded::bound($field);)*
                    })*
                }
            }

            /// Every code, in the order of the enum.
            pub const CODES: &'static [&'static str] = &[$($code),*];
        }
    };
}

errors! {
    // Graph.
    "V0101" Limit { what: String, count: u128, limit: u128 } "{}: {count}, at most {limit}", printable(what);
    "V0102" DuplicateActor { name: String, first: ActorId, second: ActorId } "{first} and {second} are both called `{}`", printable(name);
    "V0103" DuplicatePort { actor: ActorId, first: Port, second: Port } "{first} and {second} of {actor} have the same name";
    "V0104" ZeroDimension { actor: ActorId, port: Port, token: TokenType } "{port} of {actor} has a dimension of 0: {token}";
    "V0105" ZeroRate { actor: ActorId, port: Port } "{port} of {actor} has rate 0, must be at least 1";
    "V0106" WindowBelowRate { actor: ActorId, port: Port, window: u64, rate: u64 } "{port} of {actor} has window {window} below its rate {rate}";
    "V0107" UnknownActor { channel: ChannelId, actor: ActorId, actors: usize } "{channel} names {actor} of {actors} actors";
    "V0108" UnknownPort { channel: ChannelId, actor: ActorId, port: Port, ports: usize } "{channel} names {port} of {actor}, which has {ports}";
    "V0109" PortType { channel: ChannelId, actor: ActorId, port: Port, found: TokenType, expected: TokenType } "{channel} carries {expected}, {port} of {actor} has {found}";
    "V0110" PortUnconnected { actor: ActorId, port: Port } "{port} of {actor} has no channel";
    "V0111" PortConnectedTwice { actor: ActorId, port: Port, first: ChannelId, second: ChannelId } "{port} of {actor} has both {first} and {second}";
    "V0112" DelayTooShort { channel: ChannelId, actor: ActorId, port: Port, delay: u64, least: u64 } "{channel} gives {port} of {actor} delay {delay}, its window needs at least {least}";
    "V0113" InitialLength { channel: ChannelId, expected: u128, found: u64 } "{channel} has {found} bytes of initial tokens, needs {expected}";
    "V0114" RolePorts { actor: ActorId, role: Role, inputs: usize, outputs: usize, states: usize } "{actor} is a {role:?} with {inputs} inputs, {outputs} outputs, {states} states";
    "V0115" StatePort { actor: ActorId, port: Port, ports: usize } "a state of {actor} names {port} of {ports}";
    "V0116" StatePortTwice { actor: ActorId, port: Port } "{port} of {actor} is in two states";
    "V0117" StateShape { actor: ActorId, port: Port, channel: ChannelId } "the state at {port} of {actor} is not alone on a self-loop {channel} with rate 1, window 1, delay 1";
    "V0118" UnknownBlob { actor: ActorId, param: String, blob: BlobId, blobs: usize } "parameter `{}` of {actor} names {blob} of {blobs}", printable(param);
    "V0119" BlobLength { actor: ActorId, param: String, blob: BlobId, expected: u64, found: u64 } "parameter `{}` of {actor} needs {expected} bytes, {blob} has {found}", printable(param);
    "V0120" Inconsistent { channel: ChannelId, from: ActorId, to: ActorId, produced: u128, consumed: u128 } "{channel}: while {from} produces {produced} tokens, {to} consumes {consumed}";
    "V0121" TooManyFirings { actor: ActorId, firings: u128, limit: u128 } "one iteration fires actors up to {actor} at least {firings} times, at most {limit}";
    "V0122" GraphDeadlock { actor: ActorId, fired: u64, needed: u64, cycle: Vec<ActorId> } "{actor} stops after {fired} of {needed} firings: {} wait for each other", list(cycle);
    "V0123" LivenessSteps { limit: u64 } "no proof within {limit} steps that an iteration can be completed";
    "V0124" UnknownCode { kernel: usize, blob: BlobId, blobs: usize } "the code of kernel {kernel} is {blob} of {blobs}";
    "V0125" CodeOrder { kernel: usize, format: String, key: u128 } "kernel {kernel} is `{}` {key:032x}, which must come after the one before it", printable(format);
    "V0126" InPlacePort { actor: ActorId, port: Port, ports: usize } "{actor} may write in place at {port}, which is in a state or none of {ports}";
    "V0127" InPlaceShape { actor: ActorId, input: u32, output: u32, at: u64, read: u128, written: u128, window: u64, rate: u64 } "{actor} may write output {output} over input {input}: {written} bytes a firing over {read}, the smaller {at} bytes into the larger, with a window of {window} at rate {rate}";
    "V0128" Name { place: String, name: String, why: String } "the name `{}` of {place} {why}", printable(name);
    "V0129" BurstWithoutMaximum { actor: ActorId, port: Port } "{port} of {actor} carries bursts without a shape: the first dimension is their maximum";
    "V0130" BurstParam { actor: ActorId, param: String } "parameter `{}` of {actor} is a tensor of bursts: only channels carry bursts, a parameter has all its items", printable(param);
    "V0131" LiveParameter { actor: ActorId, param: String, why: String } "the live parameter in `{}` of {actor} {}", printable(param), printable(why);
    "V0132" LiveDiffers { name: String, first: ActorId, second: ActorId } "the live parameter `{}` is one thing in {first} and another in {second}", printable(name);
    "V0133" Gate { actor: ActorId, why: String } "the gate of {actor} {}", printable(why);
    "V0134" Carried { actor: ActorId, why: String } "the carried state of {actor} {}", printable(why);
    "V0135" Merged { actor: ActorId, why: String } "{actor} of a merged graph {}", printable(why);
    // Machine.
    "V0201" DuplicateDevice { name: String, first: DeviceId, second: DeviceId } "{first} and {second} are both called `{}`", printable(name);
    "V0202" LinkDevice { from: DeviceId, to: u64, devices: usize } "a link goes from {from} to dev{to}, there are {devices} devices";
    "V0203" LinkToSelf { device: DeviceId } "a link goes from {device} to itself";
    "V0204" DuplicateLink { from: DeviceId, to: DeviceId } "two links go from {from} to {to}";
    "V0205" ZeroBandwidth { from: DeviceId, to: DeviceId } "the link from {from} to {to} has a bandwidth of 0 bytes per second, must be at least 1";
    "V0206" DuplicateCore { device: DeviceId, core: u32 } "{device} names core {core} twice";
    "V0207" CoreNumber { device: DeviceId, core: u32, limit: u32 } "{device} names core {core}, at most {limit}";
    "V0208" HostDevice { host: HostId, device: DeviceId, devices: usize } "{host} names {device} of {devices} devices";
    "V0209" HostTwice { device: DeviceId, first: HostId, second: HostId } "{device} is in {first} and again in {second}";
    "V0210" HostMissing { device: DeviceId } "{device} is in no host, and others are";
    "V0211" HostEmpty { host: HostId } "{host} has 0 devices, must have at least 1";
    "V0212" HostOrder { host: HostId, above: DeviceId, device: DeviceId } "{host} has {device} after {above}, must be ascending";
    "V0213" HostName { host: HostId, name: String } "{host} is called `{}`, as a device or another host is", printable(name);
    "V0214" TierDevice { device: DeviceId, devices: usize } "a tier is for {device} of {devices} devices";
    "V0215" TierBandwidth { device: DeviceId } "the tier of {device} has a bandwidth of 0 bytes per second, must be at least 1";
    "V0216" TierBackend { device: DeviceId } "{device} has a tier and is neither a CPU nor a GPU: no other device fetches weights";
    "V0217" LinkRun { from: DeviceId, to: DeviceId } "the run of links from {from} that begins at {to} is empty, out of order, or goes on with the one before it";
    // Plans and calendars.
    "V0301" NoPlan {} "a program needs at least 1 plan, has 0";
    "V0302" DuplicatePlan { name: String, first: PlanId, second: PlanId } "{first} and {second} are both called `{}`", printable(name);
    "V0303" TailBlock { plan: PlanId, block: u64 } "{plan} is called `tail` and has block {block}, must be 1";
    "V0304" ZeroBlock { plan: PlanId } "{plan} has block 0, must be at least 1";
    "V0305" PlacementLength { plan: PlanId, placed: usize, actors: usize } "{plan} places {placed} of {actors} actors";
    "V0306" PlacementDevice { plan: PlanId, actor: ActorId, device: DeviceId, devices: usize } "{plan} places {actor} on {device} of {devices} devices";
    "V0307" CalendarDevice { plan: PlanId, device: DeviceId, devices: usize } "{plan} has a calendar for {device} of {devices} devices";
    "V0308" CalendarOrder { plan: PlanId, before: DeviceId, device: DeviceId } "{plan} has the calendar of {device} after that of {before}";
    "V0309" CalendarMissing { plan: PlanId, device: DeviceId, actor: ActorId } "{plan} places {actor} on {device}, which has no calendar";
    "V0310" CalendarIdle { plan: PlanId, device: DeviceId } "{plan} has a calendar for {device}, which has no actor";
    "V0311" Lanes { plan: PlanId, device: DeviceId, lanes: usize } "{plan} has {lanes} lanes on {device}, must be 1, of kind Compute";
    "V0312" EmptyLoop { plan: PlanId, device: DeviceId, count: u64, body: usize } "{plan} has a loop of {count} times {body} entries on {device}, both must be at least 1";
    "V0313" EmptySlot { plan: PlanId, device: DeviceId, slot: usize } "slot {slot} on {device} of {plan} has count 0, must be at least 1";
    "V0314" SlotId { plan: PlanId, device: DeviceId, slot: usize, what: &'static str, id: u32, count: usize } "slot {slot} on {device} of {plan} names {what} {id} of {count}";
    "V0315" FireElsewhere { plan: PlanId, actor: ActorId, device: DeviceId, placed: DeviceId } "{plan} fires {actor} on {device}, places it on {placed}";
    "V0316" ActorStages { plan: PlanId, actor: ActorId, first: u32, second: u32 } "{plan} fires {actor} in stages {first} and {second}";
    "V0317" StageRange { plan: PlanId, device: DeviceId, slot: usize, stage: u32, stages: u32 } "slot {slot} on {device} of {plan} has stage {stage} of {stages}";
    "V0318" Stages { plan: PlanId, declared: u32, used: u64 } "{plan} has {declared} stages, its slots use {used}";
    "V0319" FiringOrder { plan: PlanId, actor: ActorId, expected: u64, found: u64 } "{plan} fires firing {found} of {actor} where {expected} is next";
    "V0320" FiringCount { plan: PlanId, actor: ActorId, fired: u64, needed: u64 } "{plan} fires {actor} {fired} times a period, must be {needed}";
    "V0321" InLoop { plan: PlanId, device: DeviceId, slot: usize } "slot {slot} on {device} of {plan} is in a loop, and a release, the carry of whole blocks, a fetch or a wait for one";
    "V0322" BlockFirings { plan: PlanId, actor: ActorId, firings: u128, limit: u128 } "{plan} needs {firings} of {actor} in a block (firings or tokens), at most {limit}";
    "V0323" VariantActor { plan: PlanId, actor: ActorId, actors: usize } "{plan} chooses a variant for {actor} of {actors} actors";
    "V0324" VariantKernel { plan: PlanId, actor: ActorId, device: DeviceId } "{plan} chooses a variant for {actor}, which is a stream on {device} and runs no kernel";
    "V0325" VariantName { plan: PlanId, actor: ActorId, name: String, limit: usize } "{plan} chooses variant `{}` for {actor}, must be 1 to {limit} of a-z, 0-9 and -", name.escape_debug();
    "V0326" OwnGate { plan: PlanId, actor: ActorId, device: DeviceId, channel: ChannelId } "{plan} places {actor} on {device}, which writes its gate {channel} itself: on a GPU the gate must come from another device";
    // Buffers.
    "V0401" BufferId { plan: PlanId, buffer: BufferId, channel: ChannelId, device: DeviceId } "{buffer} of {plan} is for {channel} on {device}, one of which does not exist";
    "V0402" BufferTwice { plan: PlanId, first: BufferId, second: BufferId } "{first} and {second} of {plan} are for the same channel on the same device";
    "V0403" BufferMissing { plan: PlanId, channel: ChannelId, device: DeviceId } "{plan} has no buffer for {channel} on {device}";
    "V0404" BufferUnneeded { plan: PlanId, buffer: BufferId, channel: ChannelId, device: DeviceId } "{buffer} of {plan}: {channel} has neither writer nor reader on {device}";
    "V0405" BlockTokens { plan: PlanId, buffer: BufferId, found: u64, expected: u64 } "{buffer} of {plan} has {found} tokens a block, must be {expected}";
    "V0406" HeadTokens { plan: PlanId, buffer: BufferId, found: u64, expected: u64 } "{buffer} of {plan} has {found} tokens of history, must be {expected}";
    "V0407" Blocks { plan: PlanId, buffer: BufferId, found: u32, limit: u32 } "{buffer} of {plan} has {found} places, must be 1 to {limit}";
    "V0408" Misaligned { plan: PlanId, device: DeviceId, memory: Memory, bytes: u64, align: u64 } "{memory} on {device} of {plan} has an offset or stride of {bytes}, no multiple of {align}";
    "V0409" Stride { plan: PlanId, buffer: BufferId, stride: u64, needed: u128 } "{buffer} of {plan} has its places {stride} bytes apart, needs {needed}";
    "V0410" OutsideRegion { plan: PlanId, device: DeviceId, memory: Memory, region: Region, end: u128, size: u64 } "{memory} on {device} of {plan} ends at {end} of {size} bytes of {region:?}";
    "V0411" WrongRegion { plan: PlanId, buffer: BufferId, found: Region, expected: Region } "{buffer} of {plan} lies in {found:?}, must lie in {expected:?}";
    "V0412" DeviceMemory { plan: PlanId, device: DeviceId, needed: u128, memory: u64 } "{plan} needs {needed} bytes on {device}, which has {memory}";
    "V0413" ChunkTokens { plan: PlanId, buffer: BufferId, found: u64, block: u64 } "{buffer} of {plan} holds chunks of {found} tokens, must be {block} or a divisor of it";
    "V0414" ChunkPlace { plan: PlanId, buffer: BufferId, problem: &'static str } "{buffer} of {plan} holds chunks of a block, but {problem}";
    "V0415" ChunkHead { plan: PlanId, buffer: BufferId, found: u64, least: u64 } "{buffer} of {plan} keeps {found} tokens before each chunk, must be at least {least}";
    // Order on a device.
    "V0501" ReadBeforeWrite { plan: PlanId, access: Access, buffer: BufferId, needed: i64, written: u64, read_stage: u32, write_stage: u32 } "{access} needs tokens up to {needed} of {buffer} of {plan} in stage {read_stage}, {written} are written by then in stage {write_stage}";
    "V0502" ReadOverwritten { plan: PlanId, access: Access, buffer: BufferId, first: i64, written: u64, read_stage: u32, write_stage: u32, blocks: u32 } "{access} reads from token {first} of {buffer} of {plan} in stage {read_stage}, when {written} are overwritten in stage {write_stage} with {blocks} places";
    "V0503" HeadNotCarried { plan: PlanId, access: Access, buffer: BufferId, read_stage: u32, carry_stage: u32 } "{access} reads history of {buffer} of {plan} in stage {read_stage} before its carry in stage {carry_stage}";
    "V0504" HeadOverwritten { plan: PlanId, access: Access, buffer: BufferId, read_stage: u32, carry_stage: u32, blocks: u32 } "{access} reads history of {buffer} of {plan} in stage {read_stage} after the carry in stage {carry_stage} has overwritten it with {blocks} places";
    "V0505" CarryCount { plan: PlanId, buffer: BufferId, found: u64, expected: u64 } "{buffer} of {plan} has {found} carries a period, must be {expected}";
    "V0506" CarryElsewhere { plan: PlanId, buffer: BufferId, device: DeviceId, expected: DeviceId } "{buffer} of {plan} is carried on {device}, lies on {expected}";
    "V0507" ReadAfterRelease { plan: PlanId, access: Access, ring: RingId, read_stage: u32, release_stage: u32 } "{access} reads a block of {ring} of {plan} in stage {read_stage} after its release in stage {release_stage}";
    "V0508" ChunkWrite { plan: PlanId, buffer: BufferId, actor: ActorId, first: u64, end: u64, start: u64, limit: u64 } "{actor} writes tokens {first} to {end} of {buffer} of {plan}, when its chunk of tokens {start} to {limit} is current";
    "V0509" ChunkDropped { plan: PlanId, access: Access, buffer: BufferId, needed: i64, kept: i64 } "{buffer} of {plan} drops its tokens before {kept}, when {access} still reads from {needed} on";
    "V0510" ChunkLoop { plan: PlanId, device: DeviceId, buffer: BufferId } "a loop on {device} of {plan} repeats a part of what is done to a chunk of {buffer}, and goes on to another: it must move on the writer and all readers by whole chunks each time, or stay in one";
    // Memory.
    "V0601" Overlap { plan: PlanId, device: DeviceId, region: Region, first: Memory, first_end: u64, second: Memory, second_start: u64 } "{first} ends at {first_end}, {second} starts at {second_start} in {region:?} on {device} of {plan} while both are live";
    "V0602" InPlaceKept { plan: PlanId, actor: ActorId, above: BufferId, below: BufferId, kept: BufferId } "{actor} writes {above} of {plan} over {below}, but {kept} has history, several places or stages, or lives on";
    "V0603" InPlaceRead { plan: PlanId, access: Access, buffer: BufferId, actor: ActorId } "{access} reads {buffer} of {plan} when {actor} has begun to write over it";
    // Rings.
    "V0701" RingId { plan: PlanId, ring: RingId, what: &'static str, id: u32, count: usize } "{ring} of {plan} names {what} {id} of {count}";
    "V0702" RingTwice { plan: PlanId, first: RingId, second: RingId } "{first} and {second} of {plan} bring the same channel to the same device";
    "V0703" RingMissing { plan: PlanId, channel: ChannelId, to: DeviceId } "{plan} has no ring that brings {channel} to {to}";
    "V0704" RingUnneeded { plan: PlanId, ring: RingId, channel: ChannelId, to: DeviceId } "{ring} of {plan} brings {channel} to {to}, which has the writer or no reader";
    "V0705" RingFrom { plan: PlanId, ring: RingId, from: DeviceId, writer: DeviceId } "{ring} of {plan} comes from {from}, the writer is on {writer}";
    "V0706" RingBuffer { plan: PlanId, ring: RingId, found: BufferId, expected: BufferId } "{ring} of {plan} fills {found}, must fill {expected}";
    "V0707" NoLink { plan: PlanId, ring: RingId, from: DeviceId, to: DeviceId } "{ring} of {plan} needs a link from {from} to {to}, the machine has none";
    "V0708" RingSlotElsewhere { plan: PlanId, ring: RingId, device: DeviceId, expected: DeviceId } "a slot of {ring} of {plan} runs on {device}, must run on {expected}";
    "V0709" RingStages { plan: PlanId, ring: RingId, what: &'static str, first: u32, second: u32 } "the {what} slots of {ring} of {plan} have stages {first} and {second}";
    "V0710" TransferOrder { plan: PlanId, ring: RingId, what: &'static str, expected: u64, found: u64 } "{what} of token {found} of {ring} of {plan} where {expected} is next";
    "V0711" TransferCount { plan: PlanId, ring: RingId, what: &'static str, found: u64, expected: u64 } "{what} of {found} tokens of {ring} of {plan} a period, must be {expected}";
    "V0712" ReleaseCount { plan: PlanId, ring: RingId, found: u64 } "{ring} of {plan} has {found} releases a period, must be 1";
    "V0713" RecvAfterRelease { plan: PlanId, ring: RingId, recv_stage: u32, release_stage: u32 } "{ring} of {plan} receives in stage {recv_stage} after the block's release in stage {release_stage}";
    // Deadlock across devices.
    "V0801" RecvStage { plan: PlanId, ring: RingId, send_stage: u32, recv_stage: u32 } "{ring} of {plan} receives in stage {recv_stage} what is sent in stage {send_stage}";
    "V0802" SendStage { plan: PlanId, ring: RingId, send_stage: u32, release_stage: u32, blocks: u32 } "{ring} of {plan} sends in stage {send_stage} into what is released in stage {release_stage} with {blocks} places";
    "V0803" PlanDeadlock { plan: PlanId, cycle: Vec<Wait> } "{plan} deadlocks: {}", list(cycle);
    // Times.
    "V0901" ZeroPeriod { plan: PlanId } "{plan} has a period of 0 ns, must be at least 1";
    "V0902" SlotStart { plan: PlanId, device: DeviceId, slot: usize, start_ns: u64, previous_end_ns: u64 } "slot {slot} on {device} of {plan} starts at {start_ns} ns, the one before ends at {previous_end_ns} ns";
    "V0903" LaneEnd { plan: PlanId, device: DeviceId, end_ns: u64, period_ns: u64 } "the lane of {device} of {plan} ends at {end_ns} ns of {period_ns}";
    "V0904" RecvTime { plan: PlanId, ring: RingId, recv_end_ns: u64, send_end_ns: u64 } "{ring} of {plan} is received by {recv_end_ns} ns, sent by {send_end_ns} ns";
    // Contingencies.
    "V1001" KindEmpty { kind: KindId } "{kind} has 0 devices, must have at least 1";
    "V1002" KindDevice { kind: KindId, device: DeviceId, devices: usize } "{kind} names {device} of {devices} devices";
    "V1003" KindTwice { device: DeviceId, first: KindId, second: KindId } "{device} is in {first} and again in {second}";
    "V1004" KindOrder { kind: KindId, above: DeviceId, device: DeviceId } "{kind} has {device} after {above}, must be ascending";
    "V1005" KindMissing { device: DeviceId } "{device} is of no kind";
    "V1006" NotAlike { kind: KindId, first: DeviceId, device: DeviceId, difference: String } "{kind} has {first} and {device}, which are not alike: {}", printable(difference);
    "V1007" NothingLost { entry: usize } "contingency {entry} is for 0 lost devices, must be at least 1";
    "V1008" LossKind { entry: usize, kind: KindId, kinds: usize } "contingency {entry} names {kind} of {kinds} kinds";
    "V1009" LossCount { entry: usize, kind: KindId, count: u32, devices: usize } "contingency {entry} loses {count} of {devices} devices of {kind}, must be 1 to {devices}";
    "V1010" LossOrder { entry: usize, above: KindId, kind: KindId } "contingency {entry} has {kind} after {above}, must be ascending";
    "V1011" LossTwice { first: usize, second: usize } "contingencies {first} and {second} are for the same loss";
    "V1012" ContingencyPlan { entry: usize, plan: PlanId, plans: usize } "contingency {entry} names {plan} of {plans} plans";
    "V1013" ContingencyBlock { entry: usize, plan: PlanId, found: u64, expected: u64 } "{plan} of contingency {entry} has block {found}, must be {expected}";
    "V1014" ContingencyTail { entry: usize, found: Option<PlanId>, expected: Option<PlanId> } "contingency {entry} has {} as its tail, the program has {}", maybe(found), maybe(expected);
    "V1015" LostRole { entry: usize, plan: PlanId, device: DeviceId, kind: KindId, role: usize, left: usize } "{plan} of contingency {entry} uses {device}, role {role} of {kind}, of which {left} are left";
    "V1016" AlikeHostUnknown { kind: HostKindId, position: usize } "host {position} of {kind} does not have the devices of a host of the machine, each once";
    "V1017" AlikeHostTwice { host: HostId } "{host} is listed twice among alike hosts";
    "V1018" AlikeHostAlone { kind: HostKindId, hosts: usize } "{kind} has {hosts} hosts, must have at least 2";
    "V1019" AlikeHostOrder { kind: HostKindId, above: HostId, host: HostId } "{kind} has {host} after {above}, must be ascending";
    "V1020" HostsNotAlike { kind: HostKindId, first: HostId, host: HostId, difference: String } "{kind} has {first} and {host}, which are not alike: {}", printable(difference);
    "V1021" HostKinds { kind: HostKindId, first: HostId, host: HostId } "{kind} has {first} and {host}, whose devices are not of corresponding kinds";
    "V1022" KindAcrossHosts { kind: KindId, first: DeviceId, device: DeviceId } "{kind} has {first} and {device}, which are in different hosts";
    "V1023" LossNotCanonical { entry: usize } "contingency {entry} does not have alike hosts in the order of their losses, the fewest first";
    // Work.
    "V1101" TooMuchWork { what: String, steps: u64, limit: u64 } "to verify {what} takes {steps} steps in all, at most {limit} for a program of this size: use shorter blocks, or loops of one stage";
    // Weights from tiers.
    "V1201" FetchActor { plan: PlanId, actor: ActorId } "{plan} fetches weights of {actor}, which has none that are packed";
    "V1202" FetchElsewhere { plan: PlanId, actor: ActorId, device: DeviceId, placed: DeviceId } "{plan} fetches weights of {actor} on {device}, places it on {placed}";
    "V1203" FetchDevice { plan: PlanId, device: DeviceId } "{plan} fetches weights on {device}, which has no tier";
    "V1204" FetchCount { plan: PlanId, actor: ActorId, fetches: u64, awaits: u64 } "{plan} fetches the weights of {actor} {fetches} times a period and waits for them {awaits} times, must be once each";
    "V1205" FireBeforeAwait { plan: PlanId, actor: ActorId } "{plan} fires {actor} before it waits for its weights";
    "V1206" FetchInUse { plan: PlanId, actor: ActorId } "{plan} fetches the weights of {actor} between its wait for them and its last firing, which still reads them";
    "V1207" FetchStage { plan: PlanId, actor: ActorId, stage: u32, expected: u32 } "{plan} fetches the weights of {actor} or waits for them in stage {stage}, fires it in stage {expected}";
    "V1208" TierBytes { plan: PlanId, device: DeviceId, needed: u128, memory: u64 } "{plan} fetches {needed} bytes of weights on {device}, whose tier has {memory}";
    "V1209" AwaitTime { plan: PlanId, actor: ActorId, device: DeviceId, await_end_ns: u64, ready_ns: u64 } "{plan} has the weights of {actor} by {await_end_ns} ns, the tier of {device} has sent them by {ready_ns} ns";
}

/// Most errors that one verification reports: enough to mend a program by, and a bound on memory.
pub const MAX_ERRORS: usize = 100;

/// Collects errors, at most [`MAX_ERRORS`], and counts the work done to find them.
#[derive(Debug)]
pub(super) struct Errors {
    list: Vec<VerifyError>,
    /// Most errors that the list takes.
    capacity: usize,
    /// Errors found, with those that the list has no room for and those that it has once already.
    found: u64,
    seen: std::collections::BTreeSet<(&'static str, u64, u64)>,
    pub(super) budget: Budget,
    /// The budget was not enough for a check, so that further errors would say little.
    is_overrun: bool,
}

impl Errors {
    pub(super) fn new(budget: Budget) -> Self {
        Self::with_capacity(budget, MAX_ERRORS)
    }

    pub(super) fn with_capacity(budget: Budget, capacity: usize) -> Self {
        Self {
            list: Vec::new(),
            capacity,
            found: 0,
            seen: std::collections::BTreeSet::new(),
            budget,
            is_overrun: false,
        }
    }

    pub(super) fn push(&mut self, mut error: VerifyError) {
        self.found += 1;
        if !self.full() {
            error.bound();
            self.list.push(error);
        }
    }

    /// Adds the error unless one of the same code and key was added: a slot in a loop fails once, not 147 times.
    pub(super) fn push_once(&mut self, key: (u64, u64), error: VerifyError) {
        if self.full() || !self.seen.insert((error.code(), key.0, key.1)) {
            self.found += 1;
        } else {
            self.push(error);
        }
    }

    /// Sets work aside that is not bounded by the program's size; false, and an error, if that is too much in all.
    pub(super) fn reserve(&mut self, what: impl FnOnce() -> String, steps: u64) -> bool {
        match self.budget.reserve(steps) {
            Ok(()) => true,
            Err(Overrun { steps, limit }) => {
                let what = what();
                self.push(VerifyError::TooMuchWork { what, steps, limit });
                self.is_overrun = true;
                false
            }
        }
    }

    pub(super) fn limit(
        &mut self,
        what: impl FnOnce() -> String,
        count: u128,
        limit: u128,
    ) -> bool {
        if count > limit {
            self.push(VerifyError::Limit {
                what: what(),
                count,
                limit,
            });
        }

        count <= limit
    }

    /// Whether nothing further would be reported.
    pub(super) fn full(&self) -> bool {
        self.list.len() >= self.capacity || self.is_overrun
    }

    /// How many errors were found. A check that relies on an earlier one asks whether this has grown: the list itself
    /// stops growing when it is full.
    pub(super) fn found(&self) -> u64 {
        self.found
    }

    pub(super) fn into_result(self) -> Result<(), Vec<VerifyError>> {
        if self.list.is_empty() {
            Ok(())
        } else {
            Err(self.list)
        }
    }
}
