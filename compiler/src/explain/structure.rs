//! E02xx and warnings: names and structure.

use super::{Example, Page, entry, model};
use crate::codes::Code;

/// A model that fails beside another one of its name.
const NAMED_MODEL: &[u8] = br#"Model(
    name: "left",
    sources: { "in": Stream(dtype: f32) },
    channels: [(from: "in", to: ["out"])],
    sinks: { "out": Stream() },
)
"#;

pub(super) const PAGES: &[Page] = &[
    entry!(
        E0201,
        "A group has a field that is not known there; mostly a slip of the pen.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    channels: [(from: "in", to: [], inital: [0.0])],
)
"#,
        "the suggestion names the field that was probably meant."
    ),
    entry!(
        E0202,
        "A group lacks a field that it must have.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    channels: [(from: "in")],
)
"#,
        "add the field: `to: [\"reader\"]`, or `to: []` if the tokens are dropped."
    ),
    entry!(
        E0203,
        "A value is of another kind than its place asks for: a list instead of a string, a word instead of an op, a \
         number without its unit.",
        r#"Model(
    sources: { "in": Stream(dtype: f32, rate: "four") },
    channels: [(from: "in", to: [])],
)
"#,
        "write the kind of value that the message asks for: `rate: 4`."
    ),
    entry!(
        E0204,
        "Names are made of letters, digits, `_` and `-`. A dot separates an actor from its port and a slash a \
         sub-model's instance from its actors, so neither can be part of a name. Names of models and devices may have other \
         characters too, but none that cannot be seen: control characters, marks of the writing direction, zero-width \
         characters. At most 200 bytes.",
        r#"Model(
    sources: { "radio.in": Stream(dtype: f32) },
)
"#,
        "rename it: `radio_in`."
    ),
    entry!(
        E0205,
        "Sources, sinks, actors and ports of one model share one set of names, because channels name them alike.",
        r#"Model(
    sources: { "audio": Stream(dtype: f32) },
    actors: { "audio": Gain(0.5) },
    channels: [(from: "audio", to: [])],
)
"#,
        "rename one of them."
    ),
    entry!(
        E0206,
        "A channel's `from` or `to` names something that this model does not have. A sub-model sees its own actors \
         only, not those around it.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "half": Gain(0.5) },
    channels: [(from: "in", to: ["hlaf"]), (from: "half", to: [])],
)
"#,
        "correct the name, or declare what is missing."
    ),
    entry!(
        E0207,
        "The actor or instance exists, but has no port of this name. `zbmdc ops NAME` lists the ports of an op.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "half": Gain(0.5) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["half", "out"]), (from: "half.z", to: [])],
)
"#,
        "name an existing port, or none for the first one: `from: \"half\"`."
    ),
    entry!(
        E0208,
        "Every input must be read from exactly one channel; no channel leads to this one.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    sinks: { "out": Stream(), "log": Stream() },
    channels: [(from: "in", to: ["out"])],
)
"#,
        "add it to the readers of a channel, or remove it."
    ),
    entry!(
        E0209,
        "Every input is read from exactly one channel, two lead here. Tokens of two channels are never merged \
         silently: the order would be undefined.",
        r#"Model(
    sources: { "a": Stream(dtype: f32), "b": Stream(dtype: f32) },
    sinks: { "out": Stream() },
    channels: [(from: "a", to: ["out"]), (from: "b", to: ["out"])],
)
"#,
        "combine the channels with an op, such as `Expr(\"a + b\")`."
    ),
    entry!(
        E0210,
        "The catalogue has no op of this name; `zbmdc ops` lists all. Rust code of an embedding program is used as \
         `Custom(\"name\", …)`.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "half": Gian(0.5) },
    channels: [(from: "in", to: ["half"])],
)
"#,
        "correct the name."
    ),
    entry!(
        E0211,
        "`Sub(\"name\")` makes an instance of a sub-model, which must be defined in `models` of this model or of one \
         around it. A model in a file of its own sees only its own.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "s": Sub("stage") },
    channels: [(from: "in", to: ["s"])],
)
"#,
        "define it: `models: { \"stage\": Model(…) }` or `models: { \"stage\": File(\"stage.ron\") }`."
    ),
    entry!(
        E0212,
        "A sub-model contains an instance of itself, directly or through others, so the graph would never end.",
        r#"Model(
    models: {
        "a": Model(actors: { "inner": Sub("b") }),
        "b": Model(actors: { "inner": Sub("a") }),
    },
    actors: { "start": Sub("a") },
)
"#,
        "feedback is no recursion: write it as a channel with initial tokens."
    ),
    entry!(
        E0213,
        "`$name` stands for a parameter of the model it is written in; this model has none of that name. Parameters \
         of a model around are handed on by giving them to the instance.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    models: {
        "stage": Model(
            params: { "gain": 1.0 },
            inputs: { "x": Port() },
            outputs: { "y": Port() },
            actors: { "amp": Gain($gian) },
            channels: [(from: "x", to: ["amp"]), (from: "amp", to: ["y"])],
        ),
    },
    actors: { "s": Sub("stage", gain: 2.0) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["s"]), (from: "s", to: ["out"])],
)
"#,
        "correct the name, or declare it in `params`."
    ),
    entry!(
        E0214,
        "An instance gives a sub-model a parameter that it does not have, or not one that it requires.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    models: {
        "stage": Model(
            params: { "gain": required },
            inputs: { "x": Port() },
            outputs: { "y": Port() },
            actors: { "amp": Gain($gain) },
            channels: [(from: "x", to: ["amp"]), (from: "amp", to: ["y"])],
        ),
    },
    actors: { "s": Sub("stage") },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["s"]), (from: "s", to: ["out"])],
)
"#,
        "give it: `Sub(\"stage\", gain: 2.0)`, or a default in `params`."
    ),
    entry!(
        E0215,
        "Only the outermost model has sources and sinks, because they have one name to the outside; sub-models have \
         `inputs` and `outputs`. A model that is compiled by itself has no ports.",
        r#"Model(
    inputs: { "x": Port(dtype: f32) },
    sinks: { "out": Stream() },
    channels: [(from: "x", to: ["out"])],
)
"#,
        "make it a source: `sources: { \"x\": Stream(dtype: f32) }`."
    ),
    entry!(
        E0216,
        "A channel runs from an output to inputs. Here a sink or an output of the sub-model is read from, or a source \
         or an input is written to.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["out"]), (from: "out", to: [])],
)
"#,
        "read from what writes the sink instead: `from: \"in\"`."
    ),
    entry!(
        E0217,
        "Ports of sub-models are joined to each other in a circle, and no actor writes any of them.",
        r#"Model(
    models: {
        "wire": Model(
            inputs: { "x": Port() },
            outputs: { "y": Port(), "z": Port() },
            actors: { "amp": Gain(2.0) },
            channels: [(from: "x", to: ["y", "amp"]), (from: "amp", to: ["z"])],
        ),
    },
    actors: { "w": Sub("wire") },
    sinks: { "out": Stream() },
    channels: [(from: "w.y", to: ["w.x"]), (from: "w.z", to: ["out"])],
)
"#,
        "put an actor into the loop, and initial tokens."
    ),
    entry!(
        E0218,
        "The model has neither sources nor actors nor sinks, so there is nothing to compile.",
        r#"Model(name: "empty")
"#,
        "add actors, and channels between them."
    ),
    entry!(
        E0219,
        "The modes of a model cannot follow each other: `initial_mode` or `changes` names one that does not exist, a change \
         leads from a mode to itself, modes stand in a sub-model, a source or sink has another type in one mode than in \
         another, or late blocks ask for a mode (`on_miss`) that does not exist, or that some mode may not go to.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    modes: {
        "loud": Mode(
            actors: { "gain": Gain(2.0) },
            channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
        ),
        "same": Mode(channels: [(from: "in", to: ["out"])]),
    },
    changes: [("loud", "quiet")],
    sinks: { "out": Stream() },
)
"#,
        "name modes that are there: `changes: [(\"loud\", \"same\")]`."
    ),
    Page {
        code: Code::E0220,
        text: "Several models cannot be one program: two have the same name, a name has `/`, `.` or `=`, one of them has \
               modes, an iteration in which all keep to their sample rates is too long, or a rate is given for a model that does \
               not exist.",
        example: Example::Command {
            files: &[("left.ron", NAMED_MODEL), ("right.ron", NAMED_MODEL)],
            command: "compile left.ron right.ron",
        },
        fix: "give each a name of its own: `name: \"right\"`.",
    },
    entry!(
        W0201,
        "An output is read by nobody: its tokens are made and dropped. That may be meant, but often a channel was \
         forgotten.",
        r#"Model(
    sources: { "in": Stream(dtype: f32), "spare": Stream(dtype: f32) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["out"])],
)
"#,
        "add the channel, or state that nobody reads: `(from: \"spare\", to: [])`."
    ),
    entry!(
        W0202,
        "A sub-model is defined and never instantiated. Its body was not checked.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    models: { "unused": Model() },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["out"])],
)
"#,
        "remove it, or use it: `Sub(\"unused\")`."
    ),
];
