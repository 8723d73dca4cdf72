//! Plays the executor's part for the calendar of one GPU: feeds its rings with the tokens that the interpreter found on
//! their channels, and takes what it sends.
#![expect(
    unsafe_code,
    reason = "lends memory of its own to a replay as exchange regions"
)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use zbmd_backends::gpu::{Halt, Replay};
use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::{GpuCapabilities, Registry};
use zbmd_backends::replay::{Exchange, HostRegion, Peers, Stopped, Summary};
use zbmd_backends::vulkan::{Instance, OpenError, VulkanDevice, VulkanOptions};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{
    Actor, ActorId, BlobId, Buffer, BufferId, Calendar, Channel, ChannelId, Costs, DType, Device,
    DeviceId, Endpoint, Graph, InPort, Link, Machine, OutPort, Params, Plan, PlanId, Program,
    Reader, RingId, Role, State, TiVec, TokenType, Value,
};
use zbmd_scheduler::assign::Objective;
use zbmd_scheduler::{Block, ScheduleError, schedule};

use crate::run::{Streams, compile, random_inputs};

/// The GPU of [`machine`].
const GPU: DeviceId = DeviceId(1);

/// The calendar of the GPU of [`machine`].
///
/// # Panics
/// If the plan gives it none.
pub fn gpu_calendar(plan: &Plan) -> &Calendar {
    let mut calendars = plan.calendars.iter();
    calendars
        .find(|calendar| calendar.device == GPU)
        .expect("a calendar")
}

/// Whether `ZBMD_REQUIRE` names a backend, whose devices must be there then.
pub fn required(backend: &str) -> bool {
    std::env::var("ZBMD_REQUIRE").is_ok_and(|r| r.split(',').any(|w| w == backend))
}

/// For a test's turn: the validation layers do not bear several instances at work at once.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first device of this machine; with `validate`, the validation layers look on. `None`, loudly, without one.
///
/// # Panics
/// Without a device, if `ZBMD_REQUIRE` names `vulkan`.
pub fn open(validate: bool, options: &VulkanOptions) -> Option<Arc<VulkanDevice>> {
    let required = required("vulkan");
    let opened = Instance::load(validate)
        .map_err(OpenError::from)
        .and_then(|instance| {
            let listed = instance.find("vulkan:0")?;
            VulkanDevice::open(&instance, &listed, options)
        });
    match opened {
        Ok(device) => {
            let looks_on = device.instance().validates() || !validate || !required;
            assert!(looks_on, "the validation layers are not installed");
            Some(device)
        }
        Err(error) if required => panic!("ZBMD_REQUIRE names vulkan, but {error}"),
        Err(error) => {
            eprintln!("SKIPPED, no Vulkan device: {error}");
            None
        }
    }
}

/// A CPU, and a GPU like the one at hand.
pub fn machine() -> Machine {
    with(&["vulkan"])
}

/// A CPU, and a GPU of each backend.
pub fn with(backends: &[&str]) -> Machine {
    let device = |name: &str, backend: &str| Device {
        name: name.to_owned(),
        backend: backend.into(),
        cores: vec![],
        memory_bytes: 1 << 30,
        flops_per_s: 10_000_000_000,
        bytes_per_s: 10_000_000_000,
        programmatic: false,
    };
    let link = |from: DeviceId, to: DeviceId| Link {
        from,
        to,
        bytes_per_s: 5_000_000_000,
        latency_ns: 10_000,
    };
    let gpus = backends
        .iter()
        .map(|backend| device(&format!("{backend}:0"), backend));
    let devices: TiVec<DeviceId, Device> = std::iter::once(device("cpu:0", "cpu"))
        .chain(gpus)
        .collect();
    let ids = || devices.keys();
    let pairs = ids()
        .flat_map(|from| ids().map(move |to| (from, to)))
        .filter(|(a, b)| a != b);
    let links = pairs.map(|(from, to)| link(from, to)).collect();
    Machine {
        devices,
        links,
        ..Machine::default()
    }
}

/// The model, every actor that has a kernel there, and that `on_gpu` wants there, on the GPU of [`machine`].
///
/// # Panics
/// If there is no valid plan.
pub fn place(
    graph: &Graph,
    blobs: &TiVec<BlobId, Bytes>,
    registry: &Registry,
    block: Block,
    on_gpu: fn(usize) -> bool,
) -> Verified<Program> {
    let home = |i| if on_gpu(i) { DeviceId(1) } else { DeviceId(0) };
    let options = zbmd_scheduler::ScheduleOptions {
        block,
        ..Default::default()
    };
    place_on(machine(), graph, blobs, registry, options, &home)
}

/// The model on a machine, each actor where `home` wants it, if that device has a kernel for it, else on the first.
///
/// # Panics
/// If there is no valid plan.
pub fn place_on(
    machine: Machine,
    graph: &Graph,
    blobs: &TiVec<BlobId, Bytes>,
    registry: &Registry,
    options: zbmd_scheduler::ScheduleOptions,
    home: &dyn Fn(usize) -> DeviceId,
) -> Verified<Program> {
    try_place_on(machine, graph, blobs, registry, options, home).expect("a schedule")
}

/// The same.
///
/// # Errors
/// Why there is no plan.
///
/// # Panics
/// If the plan is not valid.
pub fn try_place_on(
    machine: Machine,
    graph: &Graph,
    blobs: &TiVec<BlobId, Bytes>,
    registry: &Registry,
    options: zbmd_scheduler::ScheduleOptions,
    home: &dyn Fn(usize) -> DeviceId,
) -> Result<Verified<Program>, ScheduleError> {
    let (graph, blobs) = (graph.clone(), blobs.clone());
    let capabilities = GpuCapabilities::default();
    let cost = |a| {
        machine
            .devices
            .iter()
            .map(|d| registry.cost(a, d, &capabilities, &blobs))
            .collect()
    };
    let costs = Costs {
        table: graph.actors.iter().map(cost).collect(),
    };
    let pins = costs.table.iter_enumerated().map(|(id, row)| {
        let wanted = home(id.index());
        (
            id,
            if row[wanted].is_some() {
                wanted
            } else {
                DeviceId(0)
            },
        )
    });
    let options = zbmd_scheduler::ScheduleOptions {
        pins: pins.collect(),
        ..options
    };
    let plans = schedule(&graph, &machine, &costs, &options)?;
    let program = Program {
        graph,
        machine,
        plans: plans.into(),
        blobs,
        ..Program::default()
    };
    Ok(verify(program).unwrap_or_else(|e| panic!("not verified: {e:?}")))
}

/// [`place`] for `graphs/{model}`.
///
/// # Panics
/// If it does not compile, or there is no valid plan.
pub fn place_model(
    model: &str,
    registry: &Registry,
    block: Block,
    on_gpu: fn(usize) -> bool,
) -> Verified<Program> {
    let Program { graph, blobs, .. } = compile(model, 1, registry).program.into_inner();
    place(&graph, &blobs, registry, block, on_gpu)
}

/// A chain of so many gains on the GPU, in blocks of 64 tokens.
///
/// # Panics
/// If it has no valid plan.
pub fn chain(slots: u32, registry: &Registry) -> Verified<Program> {
    chain_in(64, slots, registry)
}

/// The same in blocks of so many tokens.
///
/// # Panics
/// If it has no valid plan.
pub fn chain_in(block: u64, slots: u32, registry: &Registry) -> Verified<Program> {
    place(
        &gains(slots),
        &TiVec::new(),
        registry,
        Block::Fixed(block),
        |_| true,
    )
}

/// A chain of so many gains, on the CPU and on the GPU by turns, where a block ends before the next one begins: in each
/// period the devices wait for each other again and again.
///
/// # Panics
/// If it has no valid plan.
pub fn to_and_fro(slots: u32, registry: &Registry, machine: Machine) -> Verified<Program> {
    let (block, objective) = (Block::Fixed(8), Objective::LATENCY);
    let options = zbmd_scheduler::ScheduleOptions {
        block,
        objective,
        ..Default::default()
    };
    let home = |i| DeviceId(i as u32 % 2);
    place_on(
        machine,
        &gains(slots),
        &TiVec::new(),
        registry,
        options,
        &home,
    )
}

/// So many gains in a row.
fn gains(slots: u32) -> Graph {
    let token = TokenType::scalar(DType::F32);
    let port = |name: &str| InPort {
        name: name.into(),
        token: token.clone(),
        rate: 1,
        window: 1,
    };
    let output = || {
        vec![OutPort {
            name: "y".into(),
            token: token.clone(),
            rate: 1,
        }]
    };
    let mut graph = Graph {
        name: "chain".into(),
        ..Graph::default()
    };
    for i in 0..slots + 2 {
        let (role, op) = match i {
            0 => (Role::Source, "Source"),
            i if i > slots => (Role::Sink, "Sink"),
            _ => (Role::Compute, "Gain"),
        };
        let gain = ("gain".to_owned(), Value::Float(0.999));
        graph.actors.push(Actor {
            name: format!("n{i}"),
            role,
            op: op.into(),
            params: (role == Role::Compute)
                .then_some(gain)
                .into_iter()
                .collect(),
            inputs: if i == 0 { vec![] } else { vec![port("x")] },
            outputs: if i > slots { vec![] } else { output() },
            state: vec![],
            in_place: vec![],
        });
        if i > 0 {
            let end = |actor| Endpoint {
                actor: ActorId(actor),
                port: 0,
            };
            let readers = vec![Reader {
                to: end(i),
                delay: 0,
            }];
            let (from, token) = (end(i - 1), token.clone());
            graph.channels.push(Channel {
                from,
                readers,
                token,
                initial: vec![],
            });
        }
    }
    graph
}

/// Values of floats and complex numbers; other elements as their bytes.
fn values(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 | DType::C32 => bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into())
            .collect(),
        DType::F64 => bytes
            .chunks_exact(8)
            .map(|b| f64::from_le_bytes(b.try_into().expect("eight")))
            .collect(),
        _ => bytes.iter().map(|b| f64::from(*b)).collect(),
    }
}

/// Largest difference as a share of the largest value.
///
/// # Panics
/// If there are not as many bytes.
pub fn distance(dtype: DType, got: &[u8], want: &[u8]) -> f64 {
    assert_eq!(got.len(), want.len());
    let (got, want) = (values(dtype, got), values(dtype, want));
    let scale = want.iter().fold(1e-30, |m: f64, v| m.max(v.abs()));
    got.iter()
        .zip(&want)
        .map(|(g, w)| (g - w).abs())
        .fold(0.0, f64::max)
        / scale
}

/// Inputs for so many iterations: tame noise for sources of floats, bytes for the rest.
///
/// # Panics
/// If the graph is inconsistent.
pub fn tame_inputs(program: &Program, iterations: u64) -> Streams {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut inputs = random_inputs(program, iterations, 5);
    for (_, source) in program.graph.sources() {
        if matches!(source.outputs[0].token.dtype, DType::F32 | DType::C32) {
            for word in inputs
                .get_mut(&source.name)
                .expect("its bytes")
                .chunks_exact_mut(4)
            {
                word.copy_from_slice(&(rng.f32() - 0.5).to_le_bytes());
            }
        }
    }
    inputs
}

/// [`played`]; what was made for it.
///
/// # Panics
/// As [`played`].
pub fn beside(
    program: &Program,
    registry: &Registry,
    blocks: u64,
    ways: (bool, Shares),
    tolerance: f64,
    make: impl FnOnce(&Plan, &Calendar, &Exchange) -> Box<dyn Replay>,
) -> Summary {
    played(program, registry, blocks, ways, tolerance, make).summary()
}

/// Runs the calendar that the program's first plan has for a GPU, the second device, beside the interpreter: what every
/// ring has carried, what is kept at every border, and the state that is left at the end. What has run it.
///
/// # Panics
/// If something differs by more than the tolerance, or there is no such calendar.
pub fn played(
    program: &Program,
    registry: &Registry,
    blocks: u64,
    (lazy, shares): (bool, Shares),
    tolerance: f64,
    make: impl FnOnce(&Plan, &Calendar, &Exchange) -> Box<dyn Replay>,
) -> Box<dyn Replay> {
    let plan = &program.plans[PlanId(0)];
    let calendar = gpu_calendar(plan);
    let inputs = tame_inputs(program, blocks * plan.block);
    let after = |blocks: u64| tokens(program, registry, &inputs, blocks * plan.block);
    let (tokens, want) = after(blocks);
    let mut player = Player::new(program, plan, GPU, &tokens, lazy).sharing(shares);
    let mut replay = make(plan, calendar, &player.exchange());
    let mut state = State::initial(&program.graph);
    replay.load_state(&state).expect("a state");
    let heads = plan.buffers.iter_enumerated();
    let heads = heads.filter(|(_, b)| b.device == GPU && b.head_tokens > 0);
    let heads: Vec<BufferId> = heads.map(|(id, _)| id).collect();
    let every = u64::from(plan.stages);
    replay
        .save_borders(every, &heads)
        .expect("room for borders");
    player.run(&mut *replay, blocks).expect("a run");
    assert_eq!(player.ended, blocks + every - 1);
    let close = |what: &str, channel: ChannelId, got: &[u8], want: &[u8]| {
        let off = distance(program.graph.channels[channel].token.dtype, got, want);
        assert!(off <= tolerance, "{what} of {channel}: off by {off:e}");
    };
    let last = |tokens: &'_ [u8], bytes: usize| tokens[tokens.len() - bytes..].to_vec();
    assert!(!player.sent.is_empty() || plan.rings.iter().all(|r| r.from != GPU));
    for (ring, bytes) in &player.sent {
        let channel = plan.rings[*ring].channel;
        close("tokens", channel, bytes, &tokens[channel]);
    }
    replay.save_state(blocks, &mut state).expect("a state");
    for buffer in heads.iter().map(|id| &plan.buffers[*id]) {
        let channel = buffer.channel;
        let bytes = (buffer.head_tokens * program.graph.channels[channel].token.bytes()) as usize;
        let of = |state: &State| last(&state.channels[channel], bytes);
        close("the state", channel, &of(&state), &of(&want));
    }
    let borders: Vec<u64> = (1..=blocks).filter(|b| b.is_multiple_of(every)).collect();
    assert_eq!(player.saved.len(), borders.len() * heads.len());
    for border in borders {
        let (_, want) = after(border);
        for channel in heads.iter().map(|id| plan.buffers[*id].channel) {
            let saved = &player.saved[&(border, channel)];
            close(
                "a border",
                channel,
                saved,
                &last(&want.channels[channel], saved.len()),
            );
        }
    }
    replay
}

/// Others that are always ready and touch nothing: for measuring. For a device that hands over by itself, let
/// [`Player::be_idle`] store their counters.
pub struct Idle;

impl Peers for Idle {
    fn published(&mut self, _: RingId, _: u64, _: bool) -> Result<bool, Stopped> {
        Ok(true)
    }
    fn wait_released(&mut self, _: RingId, _: u64) -> Result<(), Stopped> {
        Ok(())
    }
    fn publish(&mut self, _: RingId, _: u64) {}
    fn release(&mut self, _: RingId, _: u64) {}
}

/// All tokens that were ever written to each channel in so many iterations (none for states), and the state that is
/// left.
///
/// # Panics
/// If the interpretation fails.
pub fn tokens(
    program: &Program,
    registry: &Registry,
    inputs: &Streams,
    iterations: u64,
) -> (TiVec<ChannelId, Vec<u8>>, State) {
    let mut graph: Graph = program.graph.clone();
    let states: Vec<bool> = graph.channels.keys().map(|id| graph.is_state(id)).collect();
    for (id, channel) in graph.channels.iter_mut_enumerated() {
        if states[id.index()] {
            continue;
        }
        let port = InPort {
            name: "x".into(),
            token: channel.token.clone(),
            rate: 1,
            window: 1,
        };
        let tap = Actor {
            name: format!("tap {id}"),
            role: Role::Sink,
            op: "Sink".into(),
            params: Params::new(),
            inputs: vec![port],
            outputs: vec![],
            state: vec![],
            in_place: vec![],
        };
        let to = Endpoint {
            actor: ActorId::from(graph.actors.len()),
            port: 0,
        };
        graph.actors.push(tap);
        channel.readers.push(Reader { to, delay: 0 });
    }
    let mut interpreter =
        Interpreter::new(&graph, &program.blobs, registry).expect("an interpreter");
    let mut outcome = interpreter.run(inputs, Some(iterations)).expect("a run");
    assert_eq!(outcome.iterations, iterations, "the inputs are too short");
    let tap = |id: ChannelId| {
        outcome
            .outputs
            .remove(&format!("tap {id}"))
            .unwrap_or_default()
    };
    (graph.channels.keys().map(tap).collect(), outcome.state)
}

/// What a device learns of the memory that tokens are exchanged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shares {
    /// Where the regions lie.
    Regions,
    /// In which memory, too: drivers may be told.
    Memory,
    /// The counters of rings, too: the device may wait and tell by itself.
    Counters,
}

/// The other devices of a plan.
pub struct Player<'p> {
    graph: &'p Graph,
    plan: &'p Plan,
    device: DeviceId,
    /// What is on every channel.
    tokens: &'p TiVec<ChannelId, Vec<u8>>,
    /// The counters of all rings, `published` and `released` by turns; then the exchange regions.
    memory: Vec<u64>,
    /// First word and bytes of each region.
    regions: BTreeMap<DeviceId, (usize, u64)>,
    /// What of it the device learns.
    shares: Shares,
    /// Tokens written into each ring, and blocks given back.
    written: BTreeMap<RingId, u64>,
    released: BTreeMap<RingId, u64>,
    /// What the device sent.
    pub sent: BTreeMap<RingId, Vec<u8>>,
    /// What it saved at borders.
    pub saved: BTreeMap<(u64, ChannelId), Vec<u8>>,
    /// How many periods it said had ended.
    pub ended: u64,
    /// What the device's counters were when they were last looked at.
    told: BTreeMap<RingId, u64>,
    /// Answers that tokens are not there yet, to make the device wait.
    rng: fastrand::Rng,
    lazy: bool,
}

impl<'p> Player<'p> {
    /// The others than `device`; `lazy` ones are often late.
    pub fn new(
        program: &'p Program,
        plan: &'p Plan,
        device: DeviceId,
        tokens: &'p TiVec<ChannelId, Vec<u8>>,
        lazy: bool,
    ) -> Self {
        let mut words = 2 * plan.rings.len();
        let mut region = |c: &zbmd_ir::Calendar| {
            let (first, all) = (words, c.exchange_bytes.div_ceil(8));
            words += all as usize;
            (c.device, (first, 8 * all))
        };
        let regions = plan.calendars.iter().map(&mut region).collect();
        Self {
            graph: &program.graph,
            plan,
            device,
            tokens,
            memory: vec![0; words],
            regions,
            shares: Shares::Regions,
            written: BTreeMap::new(),
            released: BTreeMap::new(),
            sent: BTreeMap::new(),
            saved: BTreeMap::new(),
            ended: 0,
            told: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(7),
            lazy,
        }
    }

    /// The same, with a device that learns more.
    #[must_use]
    pub fn sharing(mut self, shares: Shares) -> Self {
        self.shares = shares;
        self
    }

    /// What is shared, for a replay that lives no longer than this.
    pub fn exchange(&mut self) -> Exchange {
        let first = self.memory.as_mut_ptr();
        // SAFETY: the vector is never resized, and is touched by the protocol of rings.
        let region =
            |at: usize, bytes| unsafe { HostRegion::new(first.wrapping_add(at).cast(), bytes) };
        let regions = self
            .regions
            .iter()
            .map(|(device, (at, bytes))| (*device, region(*at, *bytes)));
        let exchange = Exchange::new(regions.collect());
        if self.shares == Shares::Regions {
            return exchange;
        }
        let exchange = exchange.within(region(0, 8 * self.memory.len() as u64));
        if self.shares == Shares::Memory {
            return exchange;
        }
        let counters = (0..self.plan.rings.len()).map(|ring| [2 * ring, 2 * ring + 1]);
        exchange.by_device(counters.map(|c| c.map(|word| region(word, 8))).collect())
    }

    /// A ring's counter: 0 for `published`, 1 for `released`.
    pub fn counter(&self, ring: RingId, which: usize) -> &AtomicU64 {
        assert!(
            2 * ring.index() + which < self.memory.len(),
            "{ring} is none of the plan's"
        );
        let word = self.memory.as_ptr().wrapping_add(2 * ring.index() + which);
        // SAFETY: the word is accessed in this way only, by devices too.
        unsafe { AtomicU64::from_ptr(word.cast_mut()) }
    }

    /// Everything that the device may wait for is there, once and for all.
    pub fn be_idle(&self) {
        for (ring, its) in self.plan.rings.iter_enumerated() {
            let which = if its.from == self.device { 1 } else { 0 };
            self.counter(ring, which).store(1 << 40, Ordering::Release);
        }
    }

    /// Bytes of a device's region, which are this side's by the protocol of rings.
    fn at(&mut self, device: DeviceId, offset: usize, len: usize) -> *mut u8 {
        let (first, bytes) = self.regions[&device];
        assert!(
            (offset + len) as u64 <= bytes,
            "{offset} + {len} of {bytes}"
        );
        self.memory
            .as_mut_ptr()
            .wrapping_add(first)
            .cast::<u8>()
            .wrapping_add(offset)
    }

    /// A counter of the device's is what it says, and never goes back.
    fn look(&mut self, ring: RingId, which: usize, least: u64) {
        let now = self.counter(ring, which).load(Ordering::Acquire);
        let before = self.told.insert(ring, now).unwrap_or(0);
        assert!(
            now >= least.max(before),
            "{ring}: {now} after {before}, told of {least}"
        );
    }

    fn put(&mut self, device: DeviceId, offset: usize, bytes: &[u8]) {
        let to = self.at(device, offset, bytes.len());
        // SAFETY: checked against the region; nobody else touches them now.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn take(&mut self, device: DeviceId, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let from = self.at(device, offset, len);
        // SAFETY: as in `put`.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Runs `blocks` blocks through all stages.
    ///
    /// # Errors
    /// What the replay says.
    pub fn run(&mut self, replay: &mut dyn Replay, blocks: u64) -> Result<(), Halt> {
        let stages = u64::from(self.plan.stages);
        for period in 0..blocks + stages - 1 {
            let known = (period >= blocks).then_some(blocks);
            replay.step(period, known, self)?;
        }
        replay.drain(self)
    }

    /// Bytes of a token, and where token `t` of a ring lies in its region.
    fn place(&self, ring: RingId, t: u64) -> (usize, usize) {
        let buffer: &Buffer = &self.plan.buffers[self.plan.rings[ring].buffer];
        let token = self.graph.channels[buffer.channel].token.bytes();
        let (block, at) = (t / buffer.block_tokens, t % buffer.block_tokens);
        let place = buffer.offset_bytes + block % u64::from(buffer.blocks) * buffer.stride_bytes;
        (
            token as usize,
            (place + (buffer.head_tokens + at) * token) as usize,
        )
    }
}

impl Peers for Player<'_> {
    fn published(&mut self, ring: RingId, tokens: u64, wait: bool) -> Result<bool, Stopped> {
        let written = self.written.get(&ring).copied().unwrap_or(0);
        if written >= tokens {
            return Ok(true);
        }
        let (channel, to) = (self.plan.rings[ring].channel, self.plan.rings[ring].to);
        assert_eq!(to, self.device, "{ring} is received by another device");
        let buffer = &self.plan.buffers[self.plan.rings[ring].buffer];
        let free = self.released.get(&ring).copied().unwrap_or(0) + u64::from(buffer.blocks);
        if tokens > free * buffer.block_tokens {
            assert!(
                !wait,
                "deadlock: the device waits for tokens that it keeps from being sent"
            );
            return Ok(false);
        }
        if !wait && self.lazy && self.rng.u8(..) < 100 {
            return Ok(false);
        }
        let all = &self.tokens[channel];
        for t in written..tokens {
            let (size, at) = self.place(ring, t);
            self.put(to, at, &all[t as usize * size..][..size]);
        }
        self.written.insert(ring, tokens);
        self.counter(ring, 0).store(tokens, Ordering::Release);
        Ok(true)
    }

    fn wait_released(&mut self, ring: RingId, blocks: u64) -> Result<(), Stopped> {
        // What was published is taken at once.
        let buffer = &self.plan.buffers[self.plan.rings[ring].buffer];
        let token = self.graph.channels[buffer.channel].token.bytes();
        let taken = self.sent.get(&ring).map_or(0, |s| s.len() as u64 / token);
        assert!(
            blocks * buffer.block_tokens <= taken,
            "{ring}: waits for what it has not sent"
        );
        Ok(())
    }

    fn publish(&mut self, ring: RingId, tokens: u64) {
        let to = self.plan.rings[ring].to;
        let (size, _) = self.place(ring, 0);
        let from = self.sent.get(&ring).map_or(0, |s| s.len() / size) as u64;
        for t in from..tokens {
            let (size, at) = self.place(ring, t);
            let token = self.take(to, at, size);
            self.put(to, at, &vec![0xaa; size]);
            self.sent.entry(ring).or_default().extend(token);
        }
        let block_tokens = self.plan.buffers[self.plan.rings[ring].buffer].block_tokens;
        self.counter(ring, 1)
            .store(tokens / block_tokens, Ordering::Release);
    }

    fn release(&mut self, ring: RingId, blocks: u64) {
        assert_eq!(
            self.released.get(&ring).copied().unwrap_or(0) + 1,
            blocks,
            "{ring}"
        );
        self.released.insert(ring, blocks);
        // The sender may overwrite the place now.
        let buffer = self.plan.buffers[self.plan.rings[ring].buffer].clone();
        let first = (blocks - 1) * buffer.block_tokens;
        for t in first..first + buffer.block_tokens {
            let (size, at) = self.place(ring, t);
            self.put(self.device, at, &vec![0x55; size]);
        }
    }

    fn was_published(&mut self, ring: RingId, tokens: u64) {
        self.look(ring, 0, tokens);
        self.publish(ring, tokens);
    }

    fn was_released(&mut self, ring: RingId, blocks: u64) {
        self.look(ring, 1, blocks);
        self.release(ring, blocks);
    }

    fn save(&mut self, border: u64, channel: ChannelId, tokens: &[u8]) -> Result<(), Stopped> {
        assert!(
            self.saved
                .insert((border, channel), tokens.to_vec())
                .is_none(),
            "saved twice"
        );
        Ok(())
    }

    fn ended(&mut self, periods: u64) {
        assert_eq!(periods, self.ended + 1, "periods end one after the other");
        self.ended = periods;
    }
}
