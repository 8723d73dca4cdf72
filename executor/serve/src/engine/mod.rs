//! What computes: a model's run, the queue before it, and how ready it is. Must not know HTTP or JSON.
//!
//! A request is one iteration of the model's graph, or one of those that an iteration computes together. What was admitted is a token: it is kept until it is answered, and
//! computed again after a loss, so that a client sees one slower answer and not an error.

pub(crate) mod admission;
mod announced;
pub(crate) mod batches;
mod epoch_spans;
mod load;
pub(crate) mod pace;
pub(crate) mod readiness;
mod run;
pub(crate) mod sequences;

pub(crate) use load::{LoadError, LoadedModel};
pub(crate) use run::{KeptPlace, RunChoices, RunningModel};
