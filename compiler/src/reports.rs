//! What a compilation has reported so far: errors and warnings, and the texts that they point into.

use crate::diag::{Diagnostic, Diagnostics, Sink};
use crate::source::SourceMap;

/// A step failed, and the errors that say why are in [`Reports`].
#[derive(Debug)]
pub(crate) struct Reported;

/// Errors and warnings with their texts.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(crate) sources: SourceMap,
    pub(crate) sink: Sink,
}

impl Reports {
    /// Adds an error that ends the step.
    pub(crate) fn refuse(&mut self, error: Diagnostic) -> Reported {
        self.sink.push(error);
        Reported
    }

    /// Ends a step that needs everything before it to be free of errors.
    ///
    /// # Errors
    /// Where any error was reported.
    pub(crate) fn stop_on_errors(&self) -> Result<(), Reported> {
        match self.sink.errors() {
            0 => Ok(()),
            _ => Err(Reported),
        }
    }

    /// The result of a compilation with its warnings, which hold no errors.
    ///
    /// # Errors
    /// Everything reported, where the compilation or one of its steps failed.
    pub(crate) fn finish<T>(
        self,
        outcome: Result<T, Reported>,
    ) -> Result<(T, Diagnostics), Diagnostics> {
        let no_errors = self.stop_on_errors();
        let diagnostics = self.sink.finish(self.sources);

        match (outcome, no_errors) {
            (Ok(result), Ok(())) => Ok((result, diagnostics)),
            _ => Err(diagnostics),
        }
    }
}
