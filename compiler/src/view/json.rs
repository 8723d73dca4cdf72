//! A view as JSON and as RON: field by field, for programs.

use super::View;

/// The view as JSON, without blanks and with a line end. See the documentation of [`super`] for what it means.
///
/// # Panics
/// Never: a view has no maps with other keys than strings, and no numbers that JSON lacks.
pub fn write(view: &View) -> String {
    let mut text = serde_json::to_string(view).expect("a view has only what JSON has");
    text.push('\n');
    text
}

/// The view as RON, indented: the same fields.
///
/// # Panics
/// Never, as [`write()`].
pub fn ron(view: &View) -> String {
    let config = ron::ser::PrettyConfig::new()
        .depth_limit(4)
        .compact_arrays(true);
    let mut text = ron::ser::to_string_pretty(view, config).expect("a view has only what RON has");
    text.push('\n');
    text
}
