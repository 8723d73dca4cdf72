//! What a stream's `file` may be: the name of a file, which is looked at when the bundle is run, or the URL of a live
//! stream, which is checked here as far as its text goes. Must not open either.

use zbmd_ir::Role;
use zbmd_stream_url::{SinkUrl, SourceUrl, UrlError, is_url};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink};
use crate::source::Span;

/// Reports a URL that no source or no sink has.
pub(crate) fn check(file: &str, span: Span, role: Role, sink: &mut Sink) {
    if !is_url(file) {
        return;
    }
    let parsed: Result<(), UrlError> = match role {
        Role::Source => SourceUrl::parse(file).map(drop),
        _ => SinkUrl::parse(file).map(drop),
    };

    if let Err(error) = parsed {
        sink.push(
            Diagnostic::new(Code::E0311, format!("`{file}`: {error}"))
                .primary(span, "not the URL of such a stream"),
        );
    }
}
