//! E01xx: syntax.

use super::{Page, entry, model};
use crate::codes::Code;

pub(super) const PAGES: &[Page] = &[
    entry!(
        E0101,
        "Models are written in RON: values, separated by commas, in ( ), [ ] and { }. Here the text goes on with \
         something that cannot follow: often a comma is missing, or a colon stands where a comma should.",
        r#"Model(
    actors: { "half": Gain(0.5) }
    channels: [],
)
"#,
        "put a comma between the two fields."
    ),
    entry!(
        E0102,
        "A bracket, string or comment is opened and the file ends before it is closed. The label shows the innermost \
         one; often it is the one before it that lost its end.",
        r#"Model(
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["out"])],
"#,
        "close the model with `)`."
    ),
    entry!(
        E0103,
        "Numbers are 64-bit integers (`42`, `-7`, `0xff`, `1_000_000`) or floating-point numbers (`0.5`, `2.4e6`, \
         `inf`). This one is malformed or does not fit.",
        r#"Model(
    sources: { "in": Stream(dtype: f32, rate: 99999999999999999999) },
)
"#,
        "write a number that fits into 64 bits."
    ),
    entry!(
        E0104,
        "Brackets may be nested 96 deep, so that a hostile file cannot exhaust the stack.",
        r#"Model(params: { "x":
    [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[
    ]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]
})
"#,
        "put large data into an .npy file, and structure into sub-models."
    ),
    entry!(
        E0105,
        "A bracket is closed by one of another kind, so one of the two is wrong or missing.",
        r#"Model(
    channels: [(from: "in", to: ["out")],
)
"#,
        "close the list of readers with `]` before the `)`."
    ),
    entry!(
        E0106,
        "A character has no meaning outside a string, or a backslash in a string is followed by something that is no \
         escape. Escapes are \\n \\t \\r \\0 \\\\ \\\" \\' \\x41 and \\u{e9}.",
        r#"Model(
    name: "C:\models",
)
"#,
        "double the backslash: \"C:\\\\models\"."
    ),
    entry!(
        E0107,
        "A key of a map, a field, a parameter or a link is given twice. Only one can count, and it is not said which.",
        r#"Model(
    sources: { "in": Stream(dtype: f32), "in": Stream(dtype: c32) },
    channels: [(from: "in", to: [])],
)
"#,
        "remove or rename one of them."
    ),
];
