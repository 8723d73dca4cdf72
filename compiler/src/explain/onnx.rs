//! E08xx: ONNX models.

use super::{Example, Page};
use crate::codes::Code;

macro_rules! onnx {
    ($code:ident, $text:literal, $file:literal, $fix:literal) => {
        Page {
            code: Code::$code,
            text: $text,
            example: Example::Command {
                files: &[("model.onnx", include_bytes!(concat!("onnx/", $file)))],
                command: "check model.onnx",
            },
            fix: $fix,
        }
    };
}

pub(super) const PAGES: &[Page] = &[
    Page {
        code: Code::E0801,
        text: "The file is no ONNX model, or a damaged one: a length in it reaches beyond the file, messages are nested \
               absurdly deep, or it does not say which opset it uses.",
        example: Example::Command {
            files: &[("model.onnx", b"this is no ONNX model\n")],
            command: "check model.onnx",
        },
        fix: "export the model again; `onnx.checker.check_model` of the Python package says more.",
    },
    onnx!(
        E0802,
        "There is no op for an operator of the model, because its result depends on data in a way that no fixed \
         calendar can follow (`NonZero`, `Loop`), because it works on strings or sequences, because it draws random \
         numbers, or because it is of another domain. The example finds the elements that are not 0: how many, \
         nobody knows beforehand.",
        "nonzero.onnx",
        "cut the model before this node, and do the rest in an actor of your own."
    ),
    onnx!(
        E0803,
        "Tokens have a fixed shape, so every shape in the model must follow from the file: an input has an open \
         dimension, a value that decides a shape is not constant, or a type is none that a token can have. In the \
         example the first dimension of the input is called `batch` and not bound.",
        "batch.onnx",
        "bind it on the command line with `--dim batch=1`; an input that decides shapes is made a constant with `--set`."
    ),
    onnx!(
        E0804,
        "The data of a tensor is missing or has another size than its type. Data in other files is read only from the \
         folder of the model and below: the example names a file outside of it.",
        "outside.onnx",
        "put the data beside the model, and save the model again with `onnx.save(..., save_as_external_data=True)`."
    ),
    onnx!(
        E0805,
        "A node reads a value that nothing makes, values are made twice, or nodes wait for each other in a circle. \
         Feedback in a model for streams is not in the file: it is closed from outside with `state`.",
        "missing.onnx",
        "give the value `w`: as an input, a constant, or the output of a node."
    ),
    onnx!(
        E0806,
        "An op refuses its operands or attributes, for the reason that it names. The example multiplies matrices whose \
         sizes do not meet.",
        "sizes.onnx",
        "export the model with shapes that fit."
    ),
    Page {
        code: Code::E0807,
        text: "The options of an import name an input, output or dimension that the model does not have, or give a \
               value that does not fit. The names are those of the file, as Netron shows them. The same code stands for \
               `--without` with a pass that does not exist: the message lists the passes that can be left out.",
        example: Example::Command {
            files: &[
                ("relu.onnx", include_bytes!("onnx/relu.onnx")),
                (
                    "model.ron",
                    br#"Model(
    sources: { "in": Stream(dtype: f32, shape: [3]) },
    actors: { "net": Onnx("relu.onnx", set: { "z": 1 }) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["net.x"]), (from: "net.y", to: ["out"])],
)
"#,
                ),
            ],
            command: "check model.ron",
        },
        fix: "the input is called `x`; a pass is named as `zbmdc compile --emit passes` prints it.",
    },
];
