//! The format of models and machines as a table: the groups `Name(…)` and what each field of them takes and means.
//!
//! Readers take their fields by this table ([`crate::read::Fields`]) and [`crate::reference`] prints it, so that
//! neither can have a field that the other lacks. Tests hold types and defaults to it.

/// What a field takes.
#[derive(Debug)]
pub(crate) struct Takes {
    /// In words.
    pub(crate) shown: &'static str,
    /// Something that is refused.
    #[cfg(test)]
    pub(crate) wrong: &'static str,
}

/// What holds where a field is left out.
#[derive(Debug)]
pub(crate) enum Absent {
    /// It must be there.
    Refused,
    /// The same as with this value.
    Is(&'static str),
    /// In words.
    Means(&'static str),
}

/// A field of a group.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) takes: Takes,
    pub(crate) absent: Absent,
    pub(crate) doc: &'static str,
    /// How its value begins in the group's text, as far as it takes to tell it from others.
    #[cfg(test)]
    pub(crate) at: &'static str,
}

/// A group `Name(…)`.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) fields: &'static [Field],
    /// A model or a machine with every field of the group.
    pub(crate) text: &'static str,
}

impl Group {
    /// Names of the fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.fields.iter().map(|field| field.name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }
}

macro_rules! takes {
    ($($name:ident: $shown:literal, not $wrong:literal;)*) => {
        $(const $name: Takes = Takes { shown: $shown, #[cfg(test)] wrong: $wrong };)*
    };
}

macro_rules! group {
    ($id:ident, $name:literal, $doc:literal, $text:literal: $($field:literal: $at:literal, $takes:ident, $absent:expr, $fdoc:literal;)*) => {
        #[doc = $doc]
        pub(crate) static $id: Group = Group {
            name: $name,
            doc: $doc,
            text: $text,
            fields: &[$(Field {
                name: $field,
                takes: $takes,
                absent: $absent,
                doc: $fdoc,
                #[cfg(test)]
                at: $at,
            },)*],
        };
    };
}

use Absent::{Is, Means, Refused};

takes! {
    STRING: "string", not "5";
    WORD: "word or string", not "5";
    ANSWER: "word, string or `Mode(\"…\")`", not "5";
    DTYPE: "dtype", not "f31";
    SHAPE: "list of dimensions, or `Burst`", not "5";
    DIMENSIONS: "list of dimensions", not "5";
    COUNT: "count, at least 1", not "0";
    COUNT0: "count", not "-1";
    NUMBER: "number above 0", not "\"fast\"";
    NUMBER0: "number", not "\"fast\"";
    NUMBERS: "number, or list of numbers", not "\"fast\"";
    FLAG: "`true` or `false`", not "5";
    TOKENS: "tokens", not "5";
    ONE: "one token", not "[1.0, 2.0]";
    VALUES: "map of values", not "5";
    PORTS: "map of `Port` or dtypes", not "5";
    STREAMS: "map of `Stream`", not "5";
    MODELS: "map of `Model` or `File(\"other.ron\")`", not "5";
    ACTORS: "map of ops with parameters", not "5";
    CHANNELS: "list of channels", not "5";
    MODES: "map of `Mode`", not "5";
    CHANGES: "list of pairs of modes", not "5";
    DECISION: "`(from: \"actor\", every: 480)`", not "5";
    WORDS: "map of strings", not "5";
    READERS: "string, reader, or a list of them", not "5";
    COUNTS: "map of counts", not "5";
    STRINGS: "list of strings", not "5";
    TIERS: "`Tier`", not "5";
    DEVICES: "list of `Device`", not "5";
    LINKS: "list of `Link`", not "5";
    HOSTS: "map from names to lists of devices", not "5";
    COSTS: "list of `Costs`", not "5";
    ENTRIES: "list of `Cost`", not "5";
    CORES: "list of core numbers", not "5";
    SIZE: "size, such as \"1GiB\", or bytes", not "\"1 parsec\"";
    SPEED: "bandwidth, such as \"10GB/s\", or bytes per second", not "\"1 parsec\"";
    FLOPS: "operations per second, such as \"50G\"", not "\"1 parsec\"";
    TIME: "duration, such as \"2us\"", not "\"1 parsec\"";
    KEY: "32 hexadecimal digits", not "\"none\"";
    PERCENT: "number, percent", not "-1.0";
    VARIANT: "name of a-z, 0-9 and -", not "\"6 x 64\"";
}

group! { MODEL, "Model", "A model, or a sub-model: `Model` may be left out in a map of `models`.", r#"Model(
    name: "outer",
    params: { "loudness": 0.5 },
    sources: { "in": Stream(dtype: f32) },
    models: { "scale": Model(
        name: "scale",
        params: { "by": required },
        inputs: { "x": f32 },
        outputs: { "y": Port() },
        actors: { "gain": Gain($by) },
        channels: [(from: "x", to: ["gain"]), (from: "gain", to: ["y"])],
    ) },
    actors: { "half": Sub("scale", by: $loudness), "twice": Gain(2.0), "pick": Expr("x < 0.5 ? 0 : 1") },
    channels: [
        (from: "in", to: ["half", "pick"]),
        (from: "half", to: ["twice"]),
        (from: "twice", to: ["out"]),
        (from: "pick", to: ["mode"], initial: [0]),
    ],
    sinks: { "out": Stream(), "mode": Stream() },
    pins: { "twice": "cpu:0" },
    modes: { "near": Mode(), "far": Mode() },
    initial_mode: "near",
    changes: [("near", "far")],
    mode_from: (from: "pick", every: 480),
)"#:
    "name": "\"outer\"", STRING, Is("\"model\""), "Stands in reports and bundles.";
    "params": "{ \"loudness\": 0.5 }", VALUES, Is("{}"), "Parameters with their defaults: `$name` stands for the value everywhere else. The default `required` means that there is none. From outside: `zbmdc --param NAME=VALUE`; of a sub-model: `Sub(\"model\", name: value)`.";
    "inputs": "{ \"x\": f32 }", PORTS, Is("{}"), "Input ports of a sub-model.";
    "outputs": "{ \"y\": Port() }", PORTS, Is("{}"), "Output ports of a sub-model.";
    "sources": "{ \"in\": Stream(dtype: f32) }", STREAMS, Is("{}"), "Where tokens come from outside; of the outermost model only.";
    "models": "{ \"scale\": Model(", MODELS, Is("{}"), "Sub-models, used as actors by `Sub(\"name\", parameters)`. One written in place sees those around it, a file its own only.";
    "actors": "{ \"half\": Sub(\"scale\", by: $loudness), \"twice\": Gain(2.0), \"pick\": Expr(\"x < 0.5 ? 0 : 1\") }", ACTORS, Is("{}"), "Actors by name. The catalogue has the ops; `Custom` is Rust code, `Sub` a sub-model, `Onnx` an ONNX model.";
    "channels": "[(from: \"x\", to: [\"gain\"]), (from: \"gain\", to: [\"y\"])]", CHANNELS, Is("[]"), "What is joined to what.";
    "sinks": "{ \"out\": Stream(), \"mode\": Stream() }", STREAMS, Is("{}"), "Where tokens go outside; of the outermost model only.";
    "pins": "{ \"twice\": \"cpu:0\" }", WORDS, Is("{}"), "Actors that must run on a device of the machine. A pinned actor has no other place to go when that device is lost.";
    "modes": "{ \"near\": Mode(), \"far\": Mode() }", MODES, Is("{}"), "Modes by name, of which a run is in one at a time: each is this model with the mode's actors and channels added, and has plans of its own. All have the same sources, sinks and types of them; rates may differ. Of the outermost model only.";
    "initial_mode": "\"near\"", STRING, Means("the first in the text"), "The mode that a run begins in.";
    "changes": "[(\"near\", \"far\")]", CHANGES, Means("from every mode to every other"), "From which mode to which other a run may go.";
    "mode_from": "(from: \"pick\", every: 480)", DECISION, Means("nobody: modes change by commands and late blocks"), "What decides about the mode.";
}

group! { MODE_FROM, "mode_from", "Tokens that decide about the mode, the same on all devices and after all losses. Where `every` iterations were done, or a multiple, the run empties its pipeline and looks at the last token that the output has written: the number of a mode, in the order of `modes`, from 0. Other numbers, and changes that are not allowed, change nothing; so does a mode without that actor.", r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "pick": Expr("x < 0.5 ? 0 : 1") },
    channels: [(from: "in", to: ["pick"]), (from: "pick", to: ["mode"], initial: [0])],
    modes: {
        "calm": Mode(channels: [(from: "in", to: ["out"])]),
        "loud": Mode(
            actors: { "gain": Gain(0.5) },
            channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
        ),
    },
    mode_from: (from: "pick.y", every: 480),
    sinks: { "out": Stream(), "mode": Stream() },
)"#:
    "from": "\"pick.y\"", STRING, Refused, "The actor, with its output where it has several: `\"actor.port\"`. Its tokens are u8, i32 or i64, and its channel has an initial token, so that the last one is a part of the state.";
    "every": "480", COUNT, Refused, "Iterations from one decision to the next. A multiple of a block's is best: what is left over runs in single iterations.";
}

group! { MODE, "Mode", "A mode of a model: what it has besides what stands in the model itself. `Mode` may be left out. When a run goes over, tokens go along that lie on channels of the same actor, output, type and number in both modes; others begin as written.", r#"Model(
    sources: { "in": Stream(dtype: f32) },
    modes: {
        "loud": Mode(
            actors: { "gain": Gain(2.0) },
            channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
            pins: { "gain": "cpu:0" },
        ),
        "same": Mode(channels: [(from: "in", to: ["out"])]),
    },
    initial_mode: "loud",
    sinks: { "out": Stream() },
)"#:
    "actors": "{ \"gain\": Gain(2.0) }", ACTORS, Is("{}"), "Actors that the mode has besides those of the model.";
    "channels": "[(from: \"in\", to: [\"gain\"]), (from: \"gain\", to: [\"out\"])]", CHANNELS, Is("[]"), "Channels, likewise; from and to any actor and stream of the model and the mode.";
    "pins": "{ \"gain\": \"cpu:0\" }", WORDS, Is("{}"), "Actors that must run on a device, likewise.";
}

group! { PORT, "Port", "A port of a sub-model. A dtype alone does: `\"x\": f32`.", r#"Model(
    sources: { "in": Stream(shape: [2], dtype: f32) },
    models: { "same": Model(
        inputs: { "x": Port(dtype: f32, shape: [2]) },
        outputs: { "y": Port() },
        actors: { "gain": Gain(1.0) },
        channels: [(from: "x", to: ["gain"]), (from: "gain", to: ["y"])],
    ) },
    actors: { "same": Sub("same") },
    channels: [(from: "in", to: ["same"]), (from: "same", to: ["out"])],
    sinks: { "out": Stream() },
)"#:
    "dtype": "f32, shape", DTYPE, Means("inferred"), "Element type of the tokens.";
    "shape": "[2]) }", SHAPE, Means("inferred"), "Shape of a token; `[]` is a scalar.";
}

group! { STREAM, "Stream", "A source or a sink.", r#"Model(
    sources: { "in": Stream(sample_rate: 48000, shape: [2], dtype: f32) },
    actors: { "gain": Gain(0.5) },
    channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
    sinks: { "out": Stream(dtype: f32, shape: [2], rate: 1, sample_rate: 48000, deadline: "100ms", on_miss: hold, file: "out.f32") },
)"#:
    "dtype": "f32, shape", DTYPE, Means("inferred"), "Element type of the tokens.";
    "shape": "[2], rate", SHAPE, Means("inferred; scalar where only a dtype is known"), "Shape of a token; `[]` is a scalar.";
    "rate": "1", COUNT, Is("1"), "Tokens of one firing of the stream. More make an iteration longer: frames that belong together.";
    "sample_rate": "48000, deadline", NUMBER, Means("follows from the others, if any is given"), "Tokens per second. Those of all streams must agree with the rates; WAV files are written with it, and reports set the measured pace beside it.";
    "deadline": "\"100ms\"", TIME, Means("none"), "Of sinks: how long after the release of a block's last tokens, by the sample rate, its output may come. Plans that cannot keep it by their planned costs are refused, those for lost devices too; a run counts the blocks that are late.";
    "on_miss": "hold", ANSWER, Is("wait"), "Of sinks: what a run gives in the place of a block whose last token comes after its deadline, this one or that of `zbmd-run --deadline`. `wait`: the block, as late as it is. `drop`: nothing. `hold`: the last block that was in time again, zeros before the first; the late one is dropped, so that every other block keeps its place. `Mode(\"track\")`: the block, as late as it is, and the run goes over to that mode, to which `changes` must allow every other mode to go.";
    "file": "\"out.f32\"", STRING, Means("given to `zbmd-run` by `--input`, `--output`"), "The file to read or write where `zbmd-run --allow-files` is told to take it and no option names one: relative, in or below the folder where it is started. Or a URL such as `udp://0.0.0.0:5000`, with `--allow-urls`.";
}

group! { CHANNEL, "Channel", "From one writer to its readers. `Channel` is usually left out: `(from: \"a\", to: [\"b\"])`.", r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "mean": Fir(taps: [0.5, 0.5]), "slow": Gain(0.5) },
    channels: [
        (from: "in", to: ["mean"], dtype: f32, shape: [], rate: 1, window: 2, history: [0.0]),
        (from: "mean", to: ["slow"], initial: [0.0]),
        (from: "slow", to: ["out"]),
    ],
    sinks: { "out": Stream() },
)"#:
    "from": "\"in\"", STRING, Refused, "The writer: a source, `actor` (its first output) or `actor.port`.";
    "to": "[\"mean\"]", READERS, Refused, "The readers: sinks, `actor` (its first input) or `actor.port`. All read every token. `[]` drops them.";
    "dtype": "f32, ", DTYPE, Means("inferred"), "Holds the channel to an element type.";
    "shape": "[]", SHAPE, Means("inferred"), "Holds the channel to a shape.";
    "rate": "1", COUNT, Means("that of the writer"), "Holds the writer to its rate: tokens that one firing writes.";
    "window": "2", COUNT, Means("that of the reader"), "Holds the reader to its window: tokens that one firing looks at, those before its own among them.";
    "history": "[0.0]", TOKENS, Means("zeros"), "Tokens before the first one, for windows longer than the rate: window less rate of them.";
    "initial": "[0.0]", TOKENS, Is("[]"), "Tokens that lie on the channel at the start: a delay, and what makes a cycle run.";
}

group! { READER, "Reader", "A reader with more to say than its name: `(to: \"b\", window: 2)`. It has no name before its bracket.", r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "mean": Fir(taps: [0.5, 0.5]) },
    channels: [
        (from: "in", to: [(to: "mean", rate: 1, window: 2, history: [0.0])]),
        (from: "mean", to: ["out"]),
    ],
    sinks: { "out": Stream() },
)"#:
    "to": "\"mean\"", STRING, Refused, "A sink, `actor` or `actor.port`. May stand without its name.";
    "rate": "1", COUNT, Means("that of the op"), "Holds the reader to its rate: tokens that one firing consumes.";
    "window": "2", COUNT, Means("that of the channel"), "As of the channel, for this reader.";
    "history": "[0.0]", TOKENS, Means("that of the channel"), "As of the channel, for this reader.";
}

group! { ONNX, "Onnx", "An ONNX model as an actor: its inputs and outputs are the ports.", r#"Model(
    sources: { "in": Stream(dtype: f32, shape: [3]) },
    actors: { "net": Onnx(file: "relu.onnx", dims: {}, set: {}, state: {}, without: ["channels-last"]) },
    channels: [(from: "in", to: ["net.x"]), (from: "net.y", to: ["out"])],
    sinks: { "out": Stream() },
)"#:
    "file": "\"relu.onnx\"", STRING, Refused, "The file, relative to the model. May stand without its name.";
    "dims": "{}", COUNTS, Is("{}"), "Sizes of dimensions that the file leaves open, by name.";
    "set": "{}", VALUES, Is("{}"), "Inputs that become constants: they decide shapes or branches.";
    "state": "{}", WORDS, Is("{}"), "Inputs that are fed by an output, through one token of zeros.";
    "without": "[\"channels-last\"]", STRINGS, Is("[]"), "Passes to leave out; `zbmdc compile --emit passes` lists them.";
}

group! { BURST, "Burst", "A shape: tokens of a varying number of items, with the index of the sample that the first of them belongs to. Sinks write the items there are.", r#"Model(
    sources: { "in": Stream(dtype: f32, shape: Burst(max: 8, of: [2])) },
    actors: { "index": BurstIndex(hop: 1000) },
    channels: [(from: "in", to: ["index"]), (from: "index", to: ["out"])],
    sinks: { "out": Stream() },
)"#:
    "max": "8, ", COUNT, Refused, "Largest number of items. Buffers and times are planned for it.";
    "of": "[2]", DIMENSIONS, Is("[]"), "Shape of an item.";
}

group! { LIVE, "Live", "A parameter that may change while a run goes on: `Live(1.0, min: 0.0, max: 10.0)`, as a value in `params`. It may decide no rate, type, shape or state.", r#"Model(
    params: { "gain": Live(value: 0.5, min: 0.25, max: 1.0) },
    sources: { "in": Stream(dtype: f32) },
    actors: { "gain": Gain($gain) },
    channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
    sinks: { "out": Stream() },
)"#:
    "value": "0.5", NUMBERS, Refused, "Its first value: a number, or a list whose length stays. May stand without its name.";
    "min": "0.25", NUMBER0, Refused, "Smallest value, of a list of each number.";
    "max": "1.0", NUMBER0, Refused, "Largest value.";
}

group! { GATE, "Gate", "Behind a gate, which any actor and any sub-model may have as the argument `gate`, work is skipped while the gate's token is zero: `gate: \"active\"` or, with more to say, `gate: Gate(\"active\", closed: zero)`. Its time stays reserved, and windows move on.", r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: {
        "loud": Threshold(0.5),
        "mean": Fir([0.5, 0.5], gate: Gate(from: "loud", closed: hold, state: hold, after: 2)),
    },
    channels: [(from: "in", to: ["loud", "mean"]), (from: "mean", to: ["out"])],
    sinks: { "out": Stream() },
)"#:
    "from": "\"loud\"", STRING, Refused, "The output that opens it while its tokens are not zero: a source, `actor` or `actor.port`, of one real number or truth value a token. An iteration has a token for each firing, or several, of which one suffices, or one for several firings. May stand without its name.";
    "closed": "hold", WORD, Means("`hold`; bursts are empty"), "What outputs give while it is closed. `hold`: the tokens of the last open firing; before the first one those of `initial`, or zeros. `zero`: zeros, an empty burst. Between actors behind the same gate that nobody else reads, there are zeros.";
    "state": "hold", WORD, Is("hold"), "What becomes of what the gated part remembers: states of ops, and channels between its actors with a delay or a longer window. `hold`: it stays. `zero`: it becomes zeros.";
    "after": "2", COUNT0, Is("0"), "Firings that it stays open after the last token that is not zero.";
}

group! { ZEROS, "Zeros", "Tokens of zeros, for `initial` and `history`.", r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "gain": Gain(0.5) },
    channels: [(from: "in", to: ["gain"], initial: Zeros(count: 2)), (from: "gain", to: ["out"])],
    sinks: { "out": Stream() },
)"#:
    "count": "2", COUNT0, Refused, "How many. May stand without its name: `Zeros(2)`.";
}

group! { FILL, "Fill", "Tokens that are all alike, for `initial` and `history`.", r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "gain": Gain(0.5) },
    channels: [(from: "in", to: ["gain"], initial: Fill(count: 2, value: 1.0)), (from: "gain", to: ["out"])],
    sinks: { "out": Stream() },
)"#:
    "count": "2", COUNT0, Refused, "How many. Both may stand without names: `Fill(2, 1.0)`.";
    "value": "1.0", ONE, Refused, "Each of them.";
}

group! { MACHINE, "Machine", "What to compile for: `zbmdc devices --ron` writes that of this computer.", r#"Machine(
    devices: [Device(name: "cpu:0", backend: cpu), Device(name: "cpu:1", backend: cpu)],
    links: [Link(from: "cpu:0", to: "cpu:1", both: true)],
    hosts: {"left": ["cpu:0"], "right": ["cpu:1"]},
    costs: [],
)"#:
    "devices": "[Device(name: \"cpu:0\", backend: cpu), Device(name: \"cpu:1\", backend: cpu)]", DEVICES, Refused, "The devices.";
    "links": "[Link(from: \"cpu:0\", to: \"cpu:1\", both: true)]", LINKS, Means("one between every two devices"), "Which device can send to which. An end may be a host, which is all its devices; a link between two devices of its own goes before that.";
    "hosts": "{\"left\": [\"cpu:0\"], \"right\": [\"cpu:1\"]}", HOSTS, Means("one computer with all devices"), "The devices of each host, which are lost with it all at once. A device is in one.";
    "costs": "[]", COSTS, Is("[]"), "What kernels cost, as `zbmdc calibrate` measured it.";
}

group! { DEVICE, "Device", "A device.", r#"Machine(devices: [
    Device(
        name: "cpu:0", backend: cpu, cores: [0], memory: "1GiB", flops: "8G", bandwidth: "10GB/s", programmatic: false,
        tier: Tier(bandwidth: "2GB/s"),
    ),
])"#:
    "name": "\"cpu:0\"", STRING, Refused, "Its name: `cpu:0`. GPUs have those that `zbmdc devices` shows.";
    "backend": "cpu", WORD, Refused, "`cpu`, `vulkan` or `cuda`.";
    "cores": "[0]", CORES, Is("[]"), "Cores that its worker is tied to, each once; any if empty. Two devices may share a core. On a computer with several nodes of memory (NUMA), the device's memory comes from the node that is near all of them.";
    "memory": "\"1GiB\"", SIZE, Means("that of this computer"), "What its arena may take.";
    "flops": "\"8G\"", FLOPS, Means("a usual core's"), "Arithmetic at its peak, for the roofline.";
    "bandwidth": "\"10GB/s\"", SPEED, Means("a usual core's"), "Memory traffic at its peak, for the roofline.";
    "programmatic": "false", FLAG, Is("false"), "Of CUDA devices: kernels are launched before those that they wait for have ended. `zbmdc calibrate` writes it where it pays.";
    "tier": "Tier(bandwidth: \"2GB/s\")", TIERS, Means("all weights are in memory, and not counted"), "Where a device fetches weights from that do not fit its `memory`: a CPU from the bundle's file, a GPU from its host's memory.";
}

group! { TIER, "Tier", "Slower memory of a device: for a CPU the file of the bundle, for a GPU memory of its host.", r#"Machine(devices: [
    Device(name: "cpu:0", backend: cpu, tier: Tier(memory: "64GiB", bandwidth: "2GB/s")),
])"#:
    "memory": "\"64GiB\"", SIZE, Means("no limit"), "What may be fetched from it in all.";
    "bandwidth": "\"2GB/s\"", SPEED, Refused, "How fast bytes come from it.";
}

group! { LINK, "Link", "A way from one device to another.", r#"Machine(
    devices: [Device(name: "cpu:0", backend: cpu), Device(name: "cpu:1", backend: cpu)],
    links: [Link(from: "cpu:0", to: "cpu:1", both: true, bandwidth: "10GB/s", latency: "1us")],
)"#:
    "from": "\"cpu:0\"", STRING, Refused, "The sender.";
    "to": "\"cpu:1\"", STRING, Refused, "The receiver.";
    "both": "true", FLAG, Is("false"), "The way back too.";
    "bandwidth": "\"10GB/s\"", SPEED, Means("that of memory between cores"), "How fast bytes go over.";
    "latency": "\"1us\"", TIME, Means("that between two cores"), "What a transfer takes besides.";
}

group! { COST_GROUP, "Costs", "What kernels cost on some devices; `zbmdc calibrate` writes it.", r#"Machine(
    devices: [Device(name: "cpu:0", backend: cpu)],
    costs: [Costs(devices: ["cpu:0"], entries: [])],
)"#:
    "devices": "[\"cpu:0\"]", STRINGS, Refused, "The devices, which are alike.";
    "entries": "[]", ENTRIES, Refused, "The costs.";
}

group! { COST, "Cost", "The cost of one kernel for given parameters and port types.", r#"Machine(
    devices: [Device(name: "cpu:0", backend: cpu)],
    costs: [Costs(devices: ["cpu:0"], entries: [
        Cost(op: "Gain", ports: "x: f32", key: "00112233445566778899aabbccddeeff", call_ps: 1000, firing_ps: 500, spread: 1.0, samples: 9, variant: "6x64"),
    ])],
)"#:
    "op": "\"Gain\"", STRING, Refused, "The op, for people.";
    "ports": "\"x: f32\"", STRING, Is("\"\""), "Its ports, for people.";
    "key": "\"00112233445566778899aabbccddeeff\"", KEY, Refused, "Of op, parameters and port types.";
    "call_ps": "1000", COUNT0, Refused, "Picoseconds of a call.";
    "firing_ps": "500", COUNT0, Refused, "Picoseconds of each firing in it.";
    "spread": "1.0", PERCENT, Is("0.0"), "How far the measurements lie apart.";
    "samples": "9", COUNT, Is("1"), "How many there were.";
    "variant": "\"6x64\"", VARIANT, Means("the default one"), "The variant of the kernel that was the best.";
}

/// All groups, as a reader wants them.
pub(crate) static GROUPS: [&Group; 19] = [
    &MODEL,
    &MODE,
    &MODE_FROM,
    &STREAM,
    &CHANNEL,
    &READER,
    &PORT,
    &ONNX,
    &BURST,
    &LIVE,
    &GATE,
    &ZEROS,
    &FILL,
    &MACHINE,
    &DEVICE,
    &TIER,
    &LINK,
    &COST_GROUP,
    &COST,
];

#[cfg(test)]
mod tests;
