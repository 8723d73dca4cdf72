//! Named limits. Anything beyond them is refused with both numbers, by the compiler and again at load.

/// Alignment of every buffer and of the places in it, in bytes: a cache line, and enough for any SIMD load.
pub const ALIGN_BYTES: u64 = 64;
/// Actors in a graph.
pub const MAX_ACTORS: usize = 1 << 20;
/// Channels in a graph.
pub const MAX_CHANNELS: usize = 1 << 21;
/// Ports of one actor on one side.
pub const MAX_PORTS: usize = 256;
/// Dimensions of a token.
pub const MAX_RANK: usize = 8;
/// Bytes of one token.
pub const MAX_TOKEN_BYTES: u64 = 1 << 32;
/// Rate or window of a port, in tokens.
pub const MAX_RATE: u64 = 1 << 32;
/// Initial tokens of one channel, and of all channels together, in bytes.
pub const MAX_INITIAL_BYTES: u64 = 1 << 30;
/// Elements of a table that an op computes when it is resolved or its kernel is made: windows, transforms, gathers.
pub const MAX_TABLE_ELEMENTS: u64 = 1 << 26;
/// Firings of one actor in one iteration, and of all actors together.
pub const MAX_FIRINGS: u64 = 1 << 40;
/// Firings of all actors in one iteration of a graph with live parameters: each is looked at to find where changes take
/// effect.
pub const MAX_LIVE_FIRINGS: u64 = 1 << 24;
/// Changes of live parameters that a state has: those of its last moments.
pub const MAX_CHANGES: usize = 1 << 16;
/// Tokens that the verifier moves, a batch at a time, to prove that an iteration can be completed.
pub const MAX_LIVENESS_STEPS: u64 = 1 << 26;
/// Bytes of a name in UTF-8: of a model, actor, port, op, parameter, device or plan.
pub const MAX_NAME_BYTES: usize = 1024;
/// Bytes of the names of all actors together.
pub const MAX_NAMES_BYTES: usize = 1 << 25;
/// Number of a core of a CPU device.
pub const MAX_CORE: u32 = 65_535;
/// Devices of a machine; every two may be linked, so that time and memory grow with the square.
pub const MAX_DEVICES: usize = 1024;
/// Modes of a bundle.
pub const MAX_MODES: usize = 64;
/// Plans of a program.
pub const MAX_PLANS: usize = 4096;
/// Characters in the name of a kernel's variant.
pub const MAX_VARIANT_NAME: usize = 32;
/// Losses that a program has plans for.
pub const MAX_CONTINGENCIES: usize = 4096;
/// Memory that the structure of a bundle may take, which is all of it but the blobs, unless the reader allows more.
pub const MAX_STRUCTURE_BYTES: u64 = 48 << 20;
/// Executions of slots in one period of one device, loops counted out.
pub const MAX_SLOT_EXECUTIONS: u64 = 1 << 24;
/// Nesting of loops in a calendar.
pub const MAX_LOOP_DEPTH: usize = 4;
/// Nesting of lists and maps in a parameter, and of anything in a bundle.
pub const MAX_NESTING: usize = 32;
/// Places of one buffer.
pub const MAX_BLOCKS: u32 = 1 << 10;
/// Stages of a plan.
pub const MAX_STAGES: u32 = 1 << 10;
/// Bytes of one device's arena or exchange region.
pub const MAX_ARENA_BYTES: u64 = 1 << 46;
/// Bytes that a source gives or a sink takes in all runs that go on from one another: 4 EiB.
pub const MAX_STREAM_BYTES: u64 = 1 << 62;
