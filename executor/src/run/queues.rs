//! How many tokens the queues of sources and sinks hold, and how often the tokens on channels are saved. Pure functions
//! of a program and the options.

use zbmd_ir::response::block_release_ns;
use zbmd_ir::{ActorId, Plan};

use crate::options::RunOptions;
use crate::program::{LoadedModes, LoadedProgram};
use crate::transport::epoch_spec::Saves;
use crate::transport::session_memory::Queues;

/// Blocks that each half of a queue holds besides what the calendar itself needs: whoever waits at a queue sleeps until
/// half of it is free or full.
const BLOCKS_AHEAD: u64 = 2;

/// The least work between two saved borders: this much is done again after a loss.
const BORDER_NS: u64 = 500_000;
/// The same over several hosts, where a border is committed some milliseconds after it was saved: workers wait for that
/// when they are two borders ahead.
#[cfg(hosts)]
const HOSTS_BORDER_NS: u64 = 10_000_000;
/// How fast tokens are copied when they are saved.
const COPY_BYTES_PER_US: u64 = 2_000;
/// What saving takes besides the copy.
const SAVE_NS: u64 = 200;
/// Saving takes one part in so many of the time.
const SAVE_SHARE: u64 = 500;
/// Areas for saved borders.
const SAVE_AREAS: u64 = 3;

/// The source queues of a session that begins with this program: for each source what the mode needs that needs most.
pub(crate) fn source_queues(modes: &LoadedModes, options: &RunOptions) -> Queues {
    let mut queues = Queues::new();
    for loaded in modes.iter() {
        for (index, (id, actor)) in loaded.program.graph.sources().enumerate() {
            let capacity = source_capacity(loaded, id, options);
            match queues.get_mut(index) {
                Some((most, _)) => *most = capacity.max(*most),
                None => queues.push((capacity, actor.outputs[0].token.bytes())),
            }
        }
    }
    queues
}

/// A block is admitted when its tokens are there; the slot that takes them may come as many periods later as there are
/// stages, and tokens are released only when the next border after them is committed: so many blocks must fit besides;
/// and twice that, for a program that sleeps until half the queue is free must not starve the calendar.
fn source_capacity(loaded: &LoadedProgram, id: ActorId, options: &RunOptions) -> u64 {
    let token_bytes = loaded.program.graph.actors[id].outputs[0].token.bytes();
    tokens_over_borders(loaded, id, options).max(options.queue_bytes / token_bytes)
}

/// Twice the tokens that an actor's port 0 moves from one border to the end of the first period after the next one.
fn tokens_over_borders(loaded: &LoadedProgram, id: ActorId, options: &RunOptions) -> u64 {
    let plans = loaded.program.plans.iter();
    let iterations = plans.map(|plan| {
        let save_every = saves(loaded, plan, options, 0).map_or(0, |saves| saves.every);
        let blocks = 2 * (u64::from(plan.stages) + save_every + BLOCKS_AHEAD);
        plan.block.saturating_mul(blocks)
    });
    let iterations = iterations.max().unwrap_or(1);
    iterations.saturating_mul(loaded.tokens_per_iteration(id))
}

/// How often the tokens on channels are saved when this plan runs; never without supervision.
///
/// Often enough that little is done again after a loss, and seldom enough that saving takes a small share of the time.
/// Both go by the planned period. Where blocks take far longer than that, losses may come before the first border, again
/// and again: `halvings` says how often the distance is to be halved because of such losses.
pub(crate) fn saves(
    loaded: &LoadedProgram,
    plan: &Plan,
    options: &RunOptions,
    halvings: u32,
) -> Option<Saves> {
    let supervised = options.supervised.as_ref()?;

    let channels = loaded.program.graph.channels.iter();
    let saved_bytes: u64 = channels.map(|c| c.history() * c.token.bytes()).sum();
    let save_ns = saved_bytes * 1000 / COPY_BYTES_PER_US + SAVE_NS;
    let chosen = (save_ns * SAVE_SHARE)
        .max(border_ns(options))
        .div_ceil(block_ns(loaded, plan, options).max(1))
        .checked_shr(halvings)
        .unwrap_or(0);

    let every = supervised
        .save_every
        .unwrap_or(chosen)
        .max(u64::from(plan.stages))
        .max(1);
    Some(Saves {
        every,
        areas: SAVE_AREAS,
    })
}

/// Time from one block to the next: as planned or, where outputs wait for borders, as the sample rates say.
fn block_ns(loaded: &LoadedProgram, plan: &Plan, options: &RunOptions) -> u64 {
    match has_council(options) {
        true => {
            let release_ns = block_release_ns(&loaded.program.graph, plan);
            plan.period_ns.max(release_ns.unwrap_or(0.0) as u64)
        }
        false => plan.period_ns,
    }
}

/// The least work between two saved borders of a run.
fn border_ns(options: &RunOptions) -> u64 {
    #[cfg(hosts)]
    if options.hosts.is_some() {
        return HOSTS_BORDER_NS;
    }
    let _ = options;
    BORDER_NS
}

/// Room at a source below which this program might stand still, whatever it saves and when.
pub(crate) fn min_source_capacity(loaded: &LoadedProgram, id: ActorId) -> u64 {
    let main = &loaded.program.plans[loaded.main];
    let tail = loaded.tail.map(|tail| &loaded.program.plans[tail]);
    let stages = tail.map_or(1, |tail| tail.stages).max(main.stages);

    let blocks = 4 * (u64::from(stages) + BLOCKS_AHEAD);
    largest_block_tokens(loaded, id).saturating_mul(blocks)
}

/// Tokens that each sink's queue holds.
pub(crate) fn sink_capacities(loaded: &LoadedProgram, options: &RunOptions) -> Vec<u64> {
    let sinks = loaded.program.graph.sinks();
    sinks
        .map(|(id, actor)| {
            let token_bytes = actor.inputs[0].token.bytes();
            largest_block_tokens(loaded, id)
                .saturating_mul(2 * BLOCKS_AHEAD)
                .max(options.queue_bytes / token_bytes)
                .max(undecided_tokens(loaded, id, options))
        })
        .collect()
}

/// Tokens that a sink's queue holds back until a council has decided their border. A queue that is full before the border is
/// reached would stop the run for ever.
fn undecided_tokens(loaded: &LoadedProgram, id: ActorId, options: &RunOptions) -> u64 {
    match has_council(options) {
        true => tokens_over_borders(loaded, id, options),
        false => 0,
    }
}

/// Whether the run is conducted in the name of a council.
pub(crate) fn has_council(options: &RunOptions) -> bool {
    #[cfg(hosts)]
    if let Some(hosts) = &options.hosts {
        return hosts.council.is_some();
    }
    let _ = options;
    false
}

/// Tokens that an actor's port 0 moves in the largest block of the plans for the whole machine.
fn largest_block_tokens(loaded: &LoadedProgram, id: ActorId) -> u64 {
    let main_block = loaded.program.plans[loaded.main].block;
    let tail_block = loaded
        .tail
        .map_or(1, |tail| loaded.program.plans[tail].block);
    main_block
        .max(tail_block)
        .saturating_mul(loaded.tokens_per_iteration(id))
}
