//! E04xx to E06xx: analysis, machines, limits, bundles.

use super::{Example, Page, entry, model};
use crate::codes::Code;

/// A model with nothing wrong.
const FINE: &[u8] = br#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "half": Gain(0.5) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
)
"#;

const WITH_MACHINE: &str = "compile model.ron --machine machine.ron -o model.zbmd";

/// [`FINE`] and a machine.
macro_rules! machine {
    ($code:ident, $text:literal, $machine:literal, $fix:literal) => {
        Page {
            code: Code::$code,
            text: $text,
            example: Example::Command {
                files: &[("model.ron", FINE), ("machine.ron", $machine.as_bytes())],
                command: WITH_MACHINE,
            },
            fix: $fix,
        }
    };
}

/// [`FINE`] and a command line.
macro_rules! command {
    ($code:ident, $text:literal, $command:literal, $fix:literal) => {
        Page {
            code: Code::$code,
            text: $text,
            example: Example::Command {
                files: &[("model.ron", FINE)],
                command: $command,
            },
            fix: $fix,
        }
    };
}

pub(super) const PAGES: &[Page] = &[
    entry!(
        E0401,
        "On every channel, what the writer writes in one iteration must be what the reader reads: firings of the \
         writer x its rate = firings of the reader x its rate (Lee & Messerschmitt 1987). No firing counts satisfy \
         all channels here: two paths between the same actors change the rate differently, so tokens would pile up.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "slow": Fir([1.0], decimate: 2), "sum": Expr("a + b") },
    sinks: { "out": Stream() },
    channels: [
        (from: "in", to: ["slow", "sum.a"]),
        (from: "slow", to: ["sum.b"]),
        (from: "sum", to: ["out"]),
    ],
)
"#,
        "decimate the other path as well, or interpolate behind the decimator."
    ),
    entry!(
        E0402,
        "The actors of a loop wait for each other: none can fire first, because the loop has too few initial tokens. \
         A feedback loop is an ordinary channel with initial tokens.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: {
        "sum": Expr("x + y", inputs: { "x": f32, "y": f32 }),
        "leak": Gain(0.9),
    },
    sinks: { "out": Stream() },
    channels: [
        (from: "in", to: ["sum.x"]),
        (from: "sum", to: ["leak", "out"]),
        (from: "leak", to: ["sum.y"]),
    ],
)
"#,
        "give the loop its first value: `(from: \"leak\", to: [\"sum.y\"], initial: [0.0])`."
    ),
    entry!(
        E0403,
        "One iteration of the graph fires actors absurdly often, because rates that share no factors multiply. \
         Neither memory nor latency could be kept small.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    sinks: {
        "a": Stream(rate: 4294967291),
        "b": Stream(rate: 4294967279),
        "c": Stream(rate: 4294967231),
    },
    channels: [(from: "in", to: ["a", "b", "c"])],
)
"#,
        "choose rates with common factors: 4096 instead of 4095."
    ),
    entry!(
        E0404,
        "Sample rates follow the rates of the graph: one stated rate fixes all streams that are connected to it. Two \
         statements contradict each other.",
        r#"Model(
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: { "slow": Fir([1.0], decimate: 3) },
    sinks: { "out": Stream(sample_rate: 44100) },
    channels: [(from: "in", to: ["slow"]), (from: "slow", to: ["out"])],
)
"#,
        "48000 / 3 is 16000: correct the statement or the resampling."
    ),
    Page {
        code: Code::E0405,
        text: "A model compiled with `--sequences` gives its state to a sink at the end of an iteration and takes it from a \
               source at the start of the next. That needs initial tokens that an iteration reads first, all of them and \
               nothing else, and writes last. Here an iteration also reads tokens that it wrote itself, or older ones, or \
               an op keeps a state inside.",
        example: Example::Command {
            files: &[(
                "model.ron",
                br#"Model(
    sources: { "in": Stream(dtype: f32, rate: 4) },
    actors: { "sum": Expr("x + y", inputs: { "x": f32, "y": f32 }) },
    sinks: { "out": Stream() },
    channels: [
        (from: "in", to: ["sum.x"]),
        (from: "sum", to: ["sum.y"], initial: [0.0]),
        (from: "sum", to: ["out"]),
    ],
)
"#,
            )],
            command: "compile model.ron --sequences",
        },
        fix: "let an iteration be one firing of the loop: with `rate: 1`, or with tokens of the shape `[4]`.",
    },
    machine!(
        E0501,
        "A link of the machine joins a device that is not listed, or a device to itself; or measured costs are given \
         for a device that is not listed.",
        r#"Machine(
    devices: [(name: "cpu:0", backend: cpu), (name: "cpu:1", backend: cpu)],
    links: [(from: "cpu:0", to: "cpu:2", bandwidth: "10GB/s", latency: "1us")],
)
"#,
        "name devices of the list. Without `links`, every two devices are linked."
    ),
    entry!(
        E0502,
        "A pin names an actor, an instance or a device that does not exist, or pins a feedback loop apart.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["out"])],
    pins: { "inn": "cpu:0" },
)
"#,
        "correct the name; `zbmdc devices` lists the devices of this computer."
    ),
    machine!(
        E0503,
        "No device of the machine can run an actor, or two devices that must talk have no link.",
        r#"Machine(devices: [(name: "vulkan:0", backend: vulkan)])
"#,
        "add a CPU device: it runs every op."
    ),
    command!(
        E0504,
        "The smallest plan needs more memory than a device has or `--max-memory` allows.",
        "compile model.ron --devices 1 --max-memory 1B -o model.zbmd",
        "allow more, or make rates, shapes and histories smaller."
    ),
    entry!(
        E0505,
        "Something is larger than zbmd's limits, which keep hostile or mistaken models from taking all memory: 2^32 \
         for rates and windows and the bytes of a token, 2^30 bytes of initial tokens on all channels together, 8 \
         dimensions, 2^20 actors and instances, 1 KiB of an actor's name with the instances around it, 8 MiB of text in \
         a model file and 64 MiB in all, and data files of this computer's memory.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["out"], initial: Zeros(1000000000000))],
)
"#,
        "choose a smaller number."
    ),
    command!(
        E0506,
        "No plan keeps the bound that was asked for: the latency is below what the work itself takes, the block is \
         too large, more losses of devices are to be planned for than a bundle holds, or the plan has more executions of \
         slots than a bundle may have or than can be verified in bounded time.",
        "compile model.ron --devices 1 --max-latency 1ns -o model.zbmd",
        "allow more, or split long iterations."
    ),
    machine!(
        E0507,
        "A device of the machine is impossible: no devices at all, an unknown backend, no memory, a core named twice, \
         an op measured to cost nothing.",
        r#"Machine(devices: [(name: "tpu:0", backend: tpu)])
"#,
        "start from `zbmdc devices --ron`, which describes this computer."
    ),
    Page {
        code: Code::E0508,
        text: "A sink has a deadline that no plan keeps. From the release of a block's last tokens, which comes by the \
               sample rate, to its output the plan takes longer by its planned costs; or a block takes longer than the \
               time until the next one, so that each comes later than the one before. Smaller blocks and plans of one \
               stage have been tried. Plans for lost devices have to keep deadlines too.",
        example: Example::Command {
            files: &[(
                "model.ron",
                br#"Model(
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: { "half": Gain(0.5) },
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
    sinks: { "out": Stream(deadline: "1ns") },
)
"#,
            )],
            command: "compile model.ron --devices 1 -o model.zbmd",
        },
        fix: "take more or quicker devices, allow more, or leave out plans for losses; `zbmdc calibrate` measures what \
              kernels really cost.",
    },
    Page {
        code: Code::E0601,
        text: "A file is no bundle, is damaged or cut short, was made by another version, or holds a program that \
               breaks a rule. Bundles are never trusted: everything in them is checked.",
        example: Example::Command {
            files: &[(
                "model.zbmd",
                b"this is no bundle, only text of more than thirty-two bytes\n",
            )],
            command: "inspect model.zbmd",
        },
        fix: "compile the model again.",
    },
    Page {
        code: Code::E0602,
        text: "A graph made in Rust breaks a rule of the intermediate representation: an id out of range, a port \
               without a channel, types that differ.",
        example: Example::Rust(
            r#"
let mut graph = Graph::default();
graph.channels.push(Channel {
    from: Endpoint { actor: ActorId(7), port: 0 },
    readers: vec![],
    token: TokenType::scalar(DType::F32),
    initial: vec![],
});
compile_graph(graph, TiVec::new(), &CompileOptions::default())
"#,
        ),
        fix: "use a `GraphBuilder`, which cannot make one, or fix what the message names.",
    },
    machine!(
        W0501,
        "`zbmdc calibrate` names the quickest variant of each kernel in the machine file. This one was written by a \
         version of zbmd that has other variants, or for another kind of device: the default one is taken in its place.",
        r#"Machine(
    devices: [Device(name: "cpu:0", backend: cpu)],
    costs: [Costs(devices: ["cpu:0"], entries: [
        Cost(op: "Gain", key: "b1daea422ed55c12c1c734931f878d06", call_ps: 1000, firing_ps: 500, variant: "13x33"),
    ])],
)
"#,
        "measure again with `zbmdc calibrate`, or remove the entry."
    ),
    Page {
        code: Code::W0502,
        text: "By their sample rate, tokens come faster than the plan takes them, by its planned costs. A run from files \
               takes as long as it takes; one from a live source drops tokens. A sink with a `deadline` makes this an \
               error.",
        example: Example::Command {
            files: &[(
                "model.ron",
                br#"Model(
    sources: { "in": Stream(dtype: f32, sample_rate: 1e12) },
    actors: { "half": Gain(0.5) },
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
    sinks: { "out": Stream() },
)
"#,
            )],
            command: "compile model.ron --devices 1 -o model.zbmd",
        },
        fix: "take more or quicker devices, or a cheaper actor where the help names one; `zbmdc calibrate` measures what \
              kernels really cost.",
    },
    Page {
        code: Code::W0701,
        text: "`zbmdc calibrate` keeps what it measured in a cache. Its file is damaged, was written for another \
               processor or version, or cannot be read or written. Kernels are measured as if there were none; a \
               damaged file is written anew.",
        example: Example::Command {
            files: &[("model.ron", FINE), ("notes.txt", b"no folder\n")],
            command: "calibrate model.ron -o machine.ron --budget 1ms --cache notes.txt",
        },
        fix: "name a folder that can be written.",
    },
];
