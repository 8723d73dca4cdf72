//! Draws diagnostics: on the model's text for people, one JSON object a line for programs.

use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use serde::Serialize;
use zbmd_ir::text::{masked, printable, printable_json, printable_lines};

use crate::diag::{Diagnostic, Diagnostics, Label, Severity};
use crate::source::{FileId, SourceMap};

/// How text is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Whether to colour it.
    pub colour: bool,
    /// Columns of the terminal.
    pub width: usize,
}

impl Style {
    /// Without colours, 120 columns wide: for files and snapshots.
    pub const fn plain() -> Self {
        Self {
            colour: false,
            width: 120,
        }
    }
}

/// All diagnostics as people read them, each followed by an empty line, and the counts at the end.
pub fn text(diagnostics: &Diagnostics, style: &Style) -> String {
    let renderer = if style.colour {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let renderer = renderer
        .decor_style(DecorStyle::Ascii)
        .term_width(style.width);
    let mut out = String::new();
    for diagnostic in &diagnostics.list {
        out.push_str(&renderer.render(&[group(diagnostic, &diagnostics.sources)]));
        out.push_str("\n\n");
    }
    out
}

fn group<'a>(diagnostic: &'a Diagnostic, sources: &'a SourceMap) -> Group<'a> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level
        .primary_title(printable_lines(&diagnostic.message))
        .id(diagnostic.code.name());
    let mut group = Group::with_title(title);
    let mut files: Vec<FileId> = Vec::new();
    for file in diagnostic.labels.iter().filter_map(|l| l.span.file()) {
        if !files.contains(&file) {
            files.push(file);
        }
    }

    for file in files {
        let labels: Vec<&Label> = diagnostic
            .labels
            .iter()
            .filter(|l| l.span.file() == Some(file))
            .collect();
        if window(&labels, sources, file).len() <= MAX_DRAWN_BYTES {
            group = group.element(snippet(&labels, sources, file));
            continue;
        }

        for label in labels {
            let at = sources.position(file, label.span.start);
            let place = Origin::path(printable(&sources.get(file).name))
                .line(at.line)
                .char_column(at.column);
            group = group
                .element(place)
                .element(Level::NOTE.message(printable_lines(&label.text)));
        }
    }

    for label in diagnostic
        .labels
        .iter()
        .filter(|l| !l.span.is_some() && !l.text.is_empty())
    {
        group = group.element(Level::NOTE.message(printable_lines(&label.text)));
    }
    if let Some(help) = &diagnostic.help {
        group = group.element(Level::HELP.message(printable_lines(help)));
    }
    group
}

/// Most text drawn for one diagnostic; places further apart, or on longer lines, are named without their text.
const MAX_DRAWN_BYTES: usize = 1 << 16;

/// The bytes of the lines from the first label to the last; the renderer folds what lies between.
fn window(labels: &[&Label], sources: &SourceMap, file: FileId) -> Range<usize> {
    let text: &str = &sources.get(file).text;
    let first = labels
        .iter()
        .map(|l| l.span.start as usize)
        .min()
        .unwrap_or(0)
        .min(text.len());
    let last = labels
        .iter()
        .map(|l| l.span.end as usize)
        .max()
        .unwrap_or(0)
        .min(text.len());
    let start = text[..first].rfind('\n').map_or(0, |i| i + 1);
    start..text[last..].find('\n').map_or(text.len(), |i| last + i)
}

fn snippet<'a>(
    labels: &[&'a Label],
    sources: &'a SourceMap,
    file: FileId,
) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
    let source = sources.get(file);
    let text: &str = &source.text;
    let Range { start, end } = window(labels, sources, file);
    let shown = masked(&text[start..end]);
    let annotations = labels.iter().map(|label| {
        let kind = if label.primary {
            AnnotationKind::Primary
        } else {
            AnnotationKind::Context
        };
        let (from, to) = (
            label.span.start as usize,
            (label.span.end as usize).min(text.len()),
        );
        // A long value is marked by its first line: a frame around a whole model hides the model.
        let line_end = text[from.min(to)..to].find('\n').map_or(to, |i| from + i);
        kind.span(from - start..line_end.max(from) - start)
            .label(printable_lines(&label.text))
    });
    Snippet::source(shown)
        .line_start(sources.position(file, start as u32).line)
        .path(printable(&source.name))
        .annotations(annotations)
}

#[derive(Serialize)]
struct JsonLabel<'a> {
    file: &'a str,
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
    text: &'a str,
    primary: bool,
}

#[derive(Serialize)]
struct JsonDiagnostic<'a> {
    code: &'a str,
    severity: &'a str,
    message: &'a str,
    file: Option<&'a str>,
    line: Option<usize>,
    column: Option<usize>,
    labels: Vec<JsonLabel<'a>>,
    help: Option<&'a str>,
}

/// All diagnostics as JSON, one object a line: `code`, `severity`, `message`, `file`, `line`, `column` (of the primary
/// place, from 1, columns in characters; null without one), `labels` and `help`.
pub fn json(diagnostics: &Diagnostics) -> String {
    let sources = &diagnostics.sources;
    let mut out = String::new();
    for d in &diagnostics.list {
        let place = d
            .span()
            .file()
            .map(|f| (&*sources.get(f).name, sources.position(f, d.span().start)));
        let object = JsonDiagnostic {
            code: d.code.name(),
            severity: d.severity.name(),
            message: &d.message,
            file: place.map(|p| p.0),
            line: place.map(|p| p.1.line),
            column: place.map(|p| p.1.column),
            labels: d
                .labels
                .iter()
                .filter_map(|l| json_label(l, sources))
                .collect(),
            help: d.help.as_deref(),
        };
        // Strings and numbers always serialise.
        let json = serde_json::to_string(&object).unwrap_or_default();
        out.push_str(&printable_json(&json));
        out.push('\n');
    }
    out
}

fn json_label<'a>(label: &'a Label, sources: &'a SourceMap) -> Option<JsonLabel<'a>> {
    let file = label.span.file()?;
    let start = sources.position(file, label.span.start);
    let end = sources.position(file, label.span.end);
    Some(JsonLabel {
        file: &sources.get(file).name,
        line: start.line,
        column: start.column,
        end_line: end.line,
        end_column: end.column,
        text: &label.text,
        primary: label.primary,
    })
}
