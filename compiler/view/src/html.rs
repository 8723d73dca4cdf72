//! Everything in one page that needs no network: graph, calendars, memory, blocks in the pipeline, losses of devices,
//! modes.
//!
//! The page is plain JavaScript and CSS beside this file, and the view as JSON. Canvases are drawn for what is seen,
//! slots within a pixel as one line, so that a hundred thousand slots stay quick.

use super::svg::escaped;
use super::{View, json};

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
/// In the order in which they use one another.
const SCRIPTS: [&str; 7] = [
    include_str!("page/data.js"),
    include_str!("page/plot.js"),
    include_str!("page/gantt.js"),
    include_str!("page/graph.js"),
    include_str!("page/memory.js"),
    include_str!("page/modes.js"),
    include_str!("page/main.js"),
];

/// The page of a bundle without modes, or of one of its modes. The same view gives the same bytes.
pub fn page(view: &View) -> String {
    page_of_modes(std::slice::from_ref(view), 0)
}

/// The page of all modes of a bundle, in their order, which begins with one of them.
pub fn page_of_modes(views: &[View], shown: usize) -> String {
    let model = views.first().map_or("", |view| view.model.as_str());
    let script = format!("\"use strict\";\n(() => {{\n{}}})();\n", SCRIPTS.concat());
    fill(
        PAGE,
        &[
            ("title", &escaped(model)),
            ("style", STYLE),
            ("view", &embedded(&json::write_all(views))),
            ("shown", &shown.to_string()),
            ("script", &script),
        ],
    )
}

/// JSON that cannot end the element it stands in: names of models are not ours.
fn embedded(json: &str) -> String {
    json.trim_end().replace('<', "\\u003c")
}

/// Replaces `{{name}}` in one pass, so that nothing that is put in is read again.
pub(crate) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out += before;
        let Some((name, tail)) = after.split_once("}}") else {
            out += "{{";
            rest = after;
            continue;
        };

        let value = values
            .iter()
            .find(|(n, _)| *n == name)
            .map_or("", |(_, v)| v);
        out += value;
        rest = tail;
    }

    out + rest
}
