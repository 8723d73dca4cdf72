//! What is wrong with a model, in data: a code, a sentence, places in the text and the fix. Drawing is elsewhere.

use std::collections::BTreeSet;

use crate::codes::Code;
use crate::source::{SourceMap, Span};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is compiled.
    Error,
    /// Compiled, but probably not what was meant.
    Warning,
}

impl Severity {
    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// A place in the text and what stands there.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// The place; [`Span::NONE`] for what was built in Rust.
    pub span: Span,
    /// What stands there.
    pub text: String,
    /// Whether this is where the fix belongs, rather than the fact it disagrees with.
    pub primary: bool,
}

/// One error or warning.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// Its code; `zbmdc explain CODE` has a page on it.
    pub code: Code,
    /// How bad it is; follows from the code.
    pub severity: Severity,
    /// One sentence with the facts that disagree.
    pub message: String,
    /// Places, primary ones first.
    pub labels: Vec<Label>,
    /// How to fix it.
    pub help: Option<String>,
}

impl Diagnostic {
    /// A diagnostic without places.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            severity: code.severity(),
            message: message.into(),
            labels: Vec::new(),
            help: None,
        }
    }

    /// Adds the place where the fix belongs.
    #[must_use]
    pub fn primary(self, span: Span, text: impl Into<String>) -> Self {
        self.label(span, text, true)
    }

    /// Adds a place with the other fact.
    #[must_use]
    pub fn context(self, span: Span, text: impl Into<String>) -> Self {
        self.label(span, text, false)
    }

    fn label(mut self, span: Span, text: impl Into<String>, primary: bool) -> Self {
        self.labels.push(Label {
            span,
            text: text.into(),
            primary,
        });
        self
    }

    /// Says how to fix it.
    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }

    /// Where the fix belongs.
    pub fn span(&self) -> Span {
        self.labels
            .iter()
            .find(|l| l.primary)
            .or(self.labels.first())
            .map_or(Span::NONE, |l| l.span)
    }
}

/// Collects diagnostics while a stage goes on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sink {
    list: Vec<Diagnostic>,
    /// Code and place of each, or its message where it has no place.
    seen: BTreeSet<(Code, Span, String)>,
    errors: usize,
    full: bool,
}

impl Sink {
    /// Reports kept; where a model has more mistakes, a last one says so.
    pub(crate) const MAX: usize = 500;

    /// Adds a diagnostic, unless the same was said of the same place (a sub-model's body is read once per instance).
    pub(crate) fn push(&mut self, diagnostic: Diagnostic) {
        let span = diagnostic.span();
        let message = if span.is_some() {
            String::new()
        } else {
            diagnostic.message.clone()
        };
        let key = (diagnostic.code, span, message);
        if self.seen.contains(&key) {
            return;
        }
        if self.list.len() >= Self::MAX {
            self.full = true;
            return;
        }

        self.seen.insert(key);
        if diagnostic.severity == Severity::Error {
            self.errors += 1;
        }
        self.list.push(diagnostic);
    }

    /// [`suggest`], as long as somebody will read it: to compare a name with all others takes time, and a file may
    /// have as many mistakes as it has names.
    pub(crate) fn suggest<'a, I>(&self, written: &str, known: I) -> String
    where
        I: IntoIterator<Item = &'a str>,
        I::IntoIter: Clone,
    {
        if self.list.len() >= Self::MAX {
            return String::new();
        }
        suggest(written, known)
    }

    /// Errors so far.
    pub(crate) fn errors(&self) -> usize {
        self.errors
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.list.iter()
    }

    /// Everything said, with the texts it is said of.
    pub(crate) fn finish(self, sources: SourceMap) -> Diagnostics {
        let mut list = self.list;
        // Text order is what a reader follows; stages find things in another.
        list.sort_by_key(|d| (d.severity, d.span()));
        Diagnostics {
            sources,
            list,
            more: self.full,
        }
    }
}

/// All errors and warnings of a model, with its texts.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    /// The texts.
    pub sources: SourceMap,
    /// Errors first, each kind in the order of the text.
    pub list: Vec<Diagnostic>,
    /// Whether there was more to say than is kept.
    pub more: bool,
}

impl Diagnostics {
    /// Number of errors.
    pub fn errors(&self) -> usize {
        self.list
            .iter()
            .filter(|d| d.severity == Severity::Error)
            .count()
    }

    /// Number of warnings.
    pub fn warnings(&self) -> usize {
        self.list.len() - self.errors()
    }

    /// Whether every error is about files that cannot be read or written.
    pub fn only_files(&self) -> bool {
        self.errors() > 0
            && self
                .list
                .iter()
                .filter(|d| d.severity == Severity::Error)
                .all(|d| d.code.is_file())
    }
}

impl std::fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::render::text(self, &crate::render::Style::plain()))
    }
}

impl std::error::Error for Diagnostics {}

/// `did you mean …`, if one of the known names is close to the one written.
pub(crate) fn did_you_mean<'a>(
    written: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    // Names longer than this are not typed by hand, and a comparison takes the product of both lengths.
    const MAX_COMPARED_BYTES: usize = 100;
    const MAX_COMPARED_NAMES: usize = 1000;
    if written.len() > MAX_COMPARED_BYTES {
        return None;
    }

    let lower = written.to_lowercase();
    let length = written.chars().count();
    let mut best: Option<(usize, &str)> = None;
    for name in known.into_iter().take(MAX_COMPARED_NAMES) {
        if name.len() > MAX_COMPARED_BYTES {
            continue;
        }
        let name_length = name.chars().count();
        let allowed = length.max(name_length).div_ceil(3);
        let is_same_word = lower == name.to_lowercase();
        if length.abs_diff(name_length) > allowed && !is_same_word {
            continue;
        }
        let distance = strsim::osa_distance(written, name);
        let is_close = is_same_word || distance <= allowed;
        if is_close && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, name));
        }
    }

    best.map(|(_, name)| format!("did you mean `{name}`?"))
}

/// The known names as a list for a help line, shortened.
pub(crate) fn one_of<'a>(known: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = known.into_iter().collect();
    let shown: Vec<String> = names.iter().take(12).map(|n| format!("`{n}`")).collect();
    let more = names.len().saturating_sub(shown.len());
    match (shown.is_empty(), more) {
        (true, _) => "there are none".to_owned(),
        (_, 0) => format!("known: {}", shown.join(", ")),
        _ => format!("known: {}, and {more} more", shown.join(", ")),
    }
}

/// [`did_you_mean`], or else the list of what is known.
pub(crate) fn suggest<'a, I>(written: &str, known: I) -> String
where
    I: IntoIterator<Item = &'a str>,
    I::IntoIter: Clone,
{
    let known = known.into_iter();
    did_you_mean(written, known.clone()).unwrap_or_else(|| one_of(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions() {
        let known = ["from", "initial", "history"];
        let cases = [
            ("form", "did you mean `from`?"),
            ("inital", "did you mean `initial`?"),
            ("HISTORY", "did you mean `history`?"),
            ("zzzzzz", "known: `from`, `initial`, `history`"),
        ];
        for (written, expect) in cases {
            assert_eq!(suggest(written, known), expect, "{written}");
        }
    }
}
