//! E03xx: types and parameters; E07xx: files.

use super::{Example, Page, entry, model};
use crate::codes::Code;

/// `numpy.save` of the f64 array [1.0, 2.0].
const F64_PAIR: &[u8] =
    b"\x93NUMPY\x01\x00\x3a\x00{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }\n\
\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\x00\x40";

pub(super) const PAGES: &[Page] = &[
    entry!(
        E0301,
        "The writer of a channel makes tokens of another type than its reader takes. Types are never converted \
         silently.",
        r#"Model(
    sources: { "iq": Stream(dtype: c32) },
    sinks: { "audio": Stream(dtype: f32) },
    channels: [(from: "iq", to: ["audio"])],
)
"#,
        "change one of the two, or put a conversion between them."
    ),
    entry!(
        E0302,
        "An op refuses one of its parameters: it is missing, unknown, of the wrong kind or out of range. \
         `zbmdc ops NAME` lists the parameters of an op.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "half": Gain(gian: 0.5) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
)
"#,
        "follow the help line."
    ),
    entry!(
        E0303,
        "An op cannot work on the tokens that a channel brings to this input.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "level": Magnitude() },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["level"]), (from: "level", to: ["out"])],
)
"#,
        "use another op (`Expr(\"abs(x)\")` for real numbers), or convert the tokens before."
    ),
    entry!(
        E0304,
        "Types flow from the sources through the ops. In a loop each type hangs on the next one, so one of them must \
         be stated; a source whose reader takes anything must state its own.",
        r#"Model(
    sources: { "in": Stream() },
    actors: { "half": Gain(0.5) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
)
"#,
        "state it: `Stream(dtype: f32)`, or `dtype: f32, shape: []` on a channel of the loop."
    ),
    entry!(
        E0305,
        "A parameter is NaN, or a sample rate is not a positive number.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "half": Gain(NaN) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
)
"#,
        "give a number."
    ),
    entry!(
        E0306,
        "A channel states a dtype, shape, rate or window, and the op at its end says otherwise. Statements check \
         what is inferred; they do not change what an op does.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "half": Gain(0.5) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: [("half", rate: 2)]), (from: "half", to: ["out"])],
)
"#,
        "remove the statement, or correct it."
    ),
    entry!(
        E0307,
        "The values of initial tokens do not fit the channel's type: out of range, of another kind, or too few or too \
         many elements for the shape.",
        r#"Model(
    sources: { "in": Stream(dtype: u8) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["out"], initial: [1, 300])],
)
"#,
        "u8 holds 0 to 255."
    ),
    entry!(
        E0308,
        "A reader whose window is larger than its rate sees window − rate tokens of history before the first one; \
         `history` gives their values, zeros by default. It must hold exactly that many. A delay on top is `initial`.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "smooth": Fir([0.25, 0.5, 0.25]) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["smooth"], history: [1.0]), (from: "smooth", to: ["out"])],
)
"#,
        "give two tokens: the window is 3, the rate 1."
    ),
    entry!(
        E0309,
        "The op exists, but cannot be used like this: a custom actor that the program has not registered, or whose \
         ports are others than the model declares.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "mine": Custom("mine") },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["mine"]), (from: "mine", to: ["out"])],
)
"#,
        "compile the model in the program that registers the actor, or declare its ports: \
         `Custom(\"mine\", inputs: {\"x\": f32}, outputs: {\"y\": f32})`."
    ),
    entry!(
        E0310,
        "A token has a dtype out of f32, f64, f16, bf16, i8, u8, i16, i32, i64, bool and c32, and a shape: a list of \
         dimensions, `[]` for a scalar.",
        r#"Model(
    sources: { "in": Stream(dtype: f64), "raw": Stream(dtype: float) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["out"]), (from: "raw", to: [])],
)
"#,
        "write one of the dtypes: `f32`."
    ),
    entry!(
        E0311,
        "The `file` of a source or sink is a URL, and no live stream has it: its scheme is unknown in this direction, \
         its address is not one, or a key is unknown or has a wrong value. The text names what is allowed. Whether \
         somebody answers at the address is seen when the bundle is run.",
        r#"Model(
    sources: { "in": Stream(dtype: f32, file: "upd://0.0.0.0:5000?rate=48000") },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["out"])],
)
"#,
        "write one of the schemes and keys that the text names: `udp://0.0.0.0:5000?rate=48000`. A file of such a \
         name is written as `./udp:…`."
    ),
    entry!(
        E0312,
        "`Live(…)` declares a parameter that may change while a run goes on. It has a name, so it stands in the `params` \
         of a model; its values are numbers in a range; and no value in the range changes a rate, a type, a state or \
         what the op keeps in memory, for the calendar is fixed before the run.",
        r#"Model(
    params: { "step": Live(2, min: 1, max: 4) },
    sources: { "in": Stream(dtype: f32) },
    actors: { "fewer": Decimate($step) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["fewer"]), (from: "fewer", to: ["out"])],
)
"#,
        "give the parameter a fixed value, or a narrower range."
    ),
    entry!(
        E0313,
        "A gate skips the work of an actor or a sub-model while its token is zero. It reads one real number or truth value \
         a token; it is no part of what it gates; an actor has one gate, and fires a multiple of the gate's tokens in an \
         iteration, or the other way round. Sources and sinks have none.",
        r#"Model(
    sources: { "in": Stream(dtype: f32, shape: [4]) },
    actors: { "half": Gain(0.5, gate: "in") },
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
    sinks: { "out": Stream() },
)
"#,
        "decide first, outside of what is gated: `Threshold(0.5)` of one number makes a truth value."
    ),
    entry!(
        E0701,
        "A file that is named on the command line or in a model cannot be read, or is none: directories, \
         devices, FIFOs and sockets are refused. Paths in a model are relative to it.",
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "smooth": Fir(Npy("no-such-file.npy")) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["smooth"]), (from: "smooth", to: ["out"])],
)
"#,
        "check the path and the permissions."
    ),
    Page {
        code: Code::E0702,
        text: "A file is no .npy file, is cut short, or holds elements in a form that zbmd does not read: other than \
               little-endian, or in Fortran order.",
        example: model(&[
            (
                "model.ron",
                br#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "smooth": Fir(Npy("taps.npy")) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["smooth"]), (from: "smooth", to: ["out"])],
)
"#,
            ),
            ("taps.npy", b"0.25 0.5 0.25\n"),
        ]),
        fix: "write it again with `numpy.save(\"taps.npy\", taps)`.",
    },
    Page {
        code: Code::E0703,
        text: "An .npy file holds another dtype or shape than is needed. For initial tokens the first dimension \
               counts tokens and the rest is the token's shape.",
        example: model(&[
            (
                "model.ron",
                br#"Model(
    sources: { "in": Stream(dtype: f32) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["out"], initial: Npy("start.npy"))],
)
"#,
            ),
            ("start.npy", F64_PAIR),
        ]),
        fix: "save it in the channel's dtype: `numpy.save(\"start.npy\", start.astype(\"float32\"))`.",
    },
    Page {
        code: Code::E0704,
        text: "The bundle cannot be written. The file appears whole or not at all, so an old one is still there.",
        example: Example::Command {
            files: &[(
                "model.ron",
                br#"Model(
    sources: { "in": Stream(dtype: f32) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["out"])],
)
"#,
            )],
            command: "compile model.ron -o no/such/folder/model.zbmd",
        },
        fix: "make the folder, or choose another.",
    },
];
