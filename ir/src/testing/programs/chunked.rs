//! Programs with buffers that hold less than a block.

use super::{Sketch, actor, build, carry, channel, feedback, fire, input, output, slot, window};
use crate::limits::ALIGN_BYTES;
use crate::{Action, ActorId, BufferId, Entry, PlanId, Program};

/// Lets buffers hold chunks, given as (buffer, head, chunk tokens), and lays out all anew. For one device, no scratch.
fn use_chunks(program: &mut Program, chunks: &[(u32, u64, u64)]) {
    let plan = &mut program.plans[PlanId(0)];
    for &(buffer, head_tokens, chunk_tokens) in chunks {
        let buffer = &mut plan.buffers[BufferId(buffer)];
        buffer.head_tokens = head_tokens;
        buffer.chunk_tokens = chunk_tokens;
        let bytes =
            (head_tokens + chunk_tokens) * program.graph.channels[buffer.channel].token.bytes();
        buffer.stride_bytes = bytes.next_multiple_of(ALIGN_BYTES);
    }

    let mut end = 0;
    for buffer in &mut plan.buffers {
        buffer.offset_bytes = end;
        end += buffer.size_bytes();
    }
    let calendar = &mut plan.calendars[0];
    calendar.arena_bytes = end;
    calendar.scratch_offset_bytes = end;
}

/// Firings `[first, first + count)`.
fn firings(actor: u32, first: u64, count: u64) -> Entry {
    slot(
        0,
        Action::Fire {
            actor: ActorId(actor),
            first,
            count,
        },
    )
}

fn repeat(count: u64, body: Vec<Entry>) -> Entry {
    Entry::Loop { count, body }
}

/// A source that writes 2 tokens at a time, a filter that takes 3 of them `delay` late, and a sink; one iteration.
fn two_to_three(name: &str, delay: u64, lane: Vec<Entry>) -> Program {
    let actors = vec![
        actor("in", "Source", vec![], vec![output("y", 2)]),
        actor("fir", "Fir", vec![input("x", 3, 3)], vec![output("y", 1)]),
        actor("out", "Sink", vec![input("x", 1, 1)], vec![]),
    ];
    let channels = vec![
        channel((0, 0), &[(1, 0, delay)]),
        channel((1, 0), &[(2, 0, 0)]),
    ];
    let sketch = Sketch {
        block: 1,
        stages: 1,
        placement: vec![0; 3],
        buffers: vec![(0, 0, 1, delay, 6), (1, 0, 1, 0, 2)],
        rings: vec![],
        lanes: vec![lane],
        scratch: 0,
    };
    build(name, actors, channels, sketch)
}

/// Rates 2 and 3 through the least memory that there is for them, 4 tokens: chunks of one firing of the source, and as
/// many before them as the filter takes from there. All slots outside loops.
pub fn chunks() -> Program {
    let lane = vec![
        firings(0, 0, 1),
        carry(0, 0),
        firings(0, 1, 1),
        firings(1, 0, 1),
        carry(0, 0),
        firings(0, 2, 1),
        firings(1, 1, 1),
        carry(0, 0),
        fire(0, 2, 2),
    ];
    let mut program = two_to_three("chunks", 0, lane);
    use_chunks(&mut program, &[(0, 2, 2)]);
    program
}

/// [`chunks`] with an initial token, which is less than the head: a border has no more than that to say.
pub fn delayed_chunks() -> Program {
    let lane = vec![
        firings(0, 0, 1),
        firings(1, 0, 1),
        carry(0, 0),
        firings(0, 1, 1),
        carry(0, 0),
        firings(0, 2, 1),
        firings(1, 1, 1),
        carry(0, 0),
        fire(0, 2, 2),
    ];
    let mut program = two_to_three("delayed_chunks", 1, lane);
    use_chunks(&mut program, &[(0, 2, 2)]);
    program
}

/// Rates 3 and 2 in a nest of loops: a chunk for each time that the source and the filter meet, and for the filter's
/// tokens a chunk of one. No heads.
pub fn nested_chunks() -> Program {
    let actors = vec![
        actor("in", "Source", vec![], vec![output("y", 3)]),
        actor("fir", "Fir", vec![input("x", 2, 2)], vec![output("y", 1)]),
        actor("out", "Sink", vec![input("x", 1, 1)], vec![]),
    ];
    let channels = vec![channel((0, 0), &[(1, 0, 0)]), channel((1, 0), &[(2, 0, 0)])];
    let inner = vec![firings(1, 0, 1), firings(2, 0, 1)];
    let outer = vec![repeat(2, vec![firings(0, 0, 1)]), repeat(3, inner)];
    let sketch = Sketch {
        block: 4,
        stages: 1,
        placement: vec![0; 3],
        buffers: vec![(0, 0, 1, 0, 24), (1, 0, 1, 0, 12)],
        rings: vec![],
        lanes: vec![vec![repeat(4, outer)]],
        scratch: 0,
    };
    let mut program = build("nested_chunks", actors, channels, sketch);
    use_chunks(&mut program, &[(0, 0, 6), (1, 0, 1)]);
    program
}

/// [`window`] with chunks of two tokens, a firing at a time in loops of loops; the history is carried in the outer one.
pub fn chunked_window() -> Program {
    let graph = window().graph;
    let outer = vec![
        repeat(2, vec![firings(0, 0, 1)]),
        repeat(2, vec![firings(1, 0, 1), firings(2, 0, 1)]),
        carry(0, 0),
    ];
    let sketch = Sketch {
        block: 8,
        stages: 1,
        placement: vec![0; 3],
        buffers: vec![(0, 0, 1, 2, 8), (1, 0, 1, 0, 8)],
        rings: vec![],
        lanes: vec![vec![repeat(4, outer)]],
        scratch: 0,
    };
    let (actors, channels) = (graph.actors.into(), graph.channels.into());
    let mut program = build("chunked_window", actors, channels, sketch);
    use_chunks(&mut program, &[(0, 2, 2), (1, 0, 1)]);
    program
}

/// [`chunked_window`] with a writer that is two chunks ahead: the filter reads what it needs of both of them in one
/// loop, all of it out of the head; and it has slots in and outside of that loop.
pub fn chunks_behind() -> Program {
    let graph = window().graph;
    let outer = vec![
        firings(0, 0, 2),
        carry(0, 0),
        firings(0, 2, 2),
        carry(0, 0),
        firings(1, 0, 1),
        repeat(3, vec![firings(1, 1, 1)]),
        firings(2, 0, 4),
    ];
    let sketch = Sketch {
        block: 8,
        stages: 1,
        placement: vec![0; 3],
        buffers: vec![(0, 0, 1, 2, 8), (1, 0, 1, 0, 8)],
        rings: vec![],
        lanes: vec![vec![repeat(2, outer)]],
        scratch: 0,
    };
    let (actors, channels) = (graph.actors.into(), graph.channels.into());
    let mut program = build("chunks_behind", actors, channels, sketch);
    use_chunks(&mut program, &[(0, 6, 2), (1, 0, 4)]);
    program
}

/// [`feedback`] with all that goes round in chunks of one token.
pub fn chunked_feedback() -> Program {
    let graph = feedback().graph;
    let body = vec![
        firings(0, 0, 1),
        firings(1, 0, 1),
        firings(2, 0, 1),
        carry(0, 2),
        firings(3, 0, 1),
    ];
    let sketch = Sketch {
        block: 6,
        stages: 1,
        placement: vec![0; 4],
        buffers: vec![(0, 0, 1, 0, 6), (1, 0, 1, 0, 6), (2, 0, 1, 1, 6)],
        rings: vec![],
        lanes: vec![vec![repeat(6, body)]],
        scratch: 0,
    };
    let (actors, channels) = (graph.actors.into(), graph.channels.into());
    let mut program = build("chunked_feedback", actors, channels, sketch);
    use_chunks(&mut program, &[(0, 0, 1), (1, 0, 1), (2, 1, 1)]);
    program
}

/// All that have buffers smaller than a block.
pub fn all_chunked() -> Vec<Program> {
    vec![
        chunks(),
        delayed_chunks(),
        nested_chunks(),
        chunked_window(),
        chunks_behind(),
        chunked_feedback(),
    ]
}
