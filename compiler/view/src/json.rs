//! A view as JSON and as RON: field by field, for programs.

use zbmd_ir::text::{printable_json, printable_lines};

use super::View;

/// The view as JSON, without blanks and with a line end. See the documentation of [`super`] for what it means.
///
/// # Panics
/// Never: a view has no maps with other keys than strings, and no numbers that JSON lacks.
pub fn write(view: &View) -> String {
    let text = serde_json::to_string(view).expect("a view has only what JSON has");
    let mut text = printable_json(&text).into_owned();
    text.push('\n');
    text
}

/// Several views as a JSON array, as [`write()`] writes each.
pub(crate) fn write_all(views: &[View]) -> String {
    let texts: Vec<String> = views.iter().map(write).collect();
    let items: Vec<&str> = texts.iter().map(|text| text.trim_end()).collect();
    format!("[{}]", items.join(","))
}

/// The view as RON, indented: the same fields.
///
/// # Panics
/// Never, as [`write()`].
pub fn ron(view: &View) -> String {
    let config = ron::ser::PrettyConfig::new()
        .depth_limit(4)
        .compact_arrays(true);
    let text = ron::ser::to_string_pretty(view, config).expect("a view has only what RON has");
    // Within strings, where alone such characters are, RON has the same escapes.
    let mut text = printable_lines(&text).into_owned();
    text.push('\n');
    text
}
