//! Models to bundles: parse -> load -> expand -> infer -> build -> analyse -> schedule -> verify.
//!
//! [`compile_file`] and [`compile_str`] take the model format, [`compile_graph`] a graph made in Rust with a
//! [`GraphBuilder`] or by hand. All say everything that is wrong at once, in [`Diagnostics`].

mod analysis;
mod assemble;
pub mod book;
mod build;
mod builder;
pub mod calibrate;
mod codes;
mod contingency;
pub mod costs;
mod diag;
pub mod diff;
mod expand;
mod explain;
pub mod files;
mod format;
mod in_place;
mod infer;
mod kernels;
pub mod machine;
mod model;
mod net;
mod npy;
pub mod onnx;
mod pack;
mod parse;
mod pipeline;
mod read;
pub mod reference;
pub mod render;
mod replicate;
mod rounding;
mod safetensor;
mod source;
mod target;
pub mod units;
mod values;
mod variants;
pub mod view;
pub mod why;

#[cfg(test)]
mod tests;

mod compile;

pub use analysis::{Analysis, AnalysisRefused, Order};
pub use assemble::Cubins;
pub use builder::{ActorRef, GraphBuilder, PortRef};
pub use codes::Code;
pub use compile::{
    CompileOptions, Compiled, MachineChoice, SearchOptions, WriteError, analyse_file, analyse_str,
    calibrate_file, calibrate_graph, calibrate_str, check_file, check_str, compile_file,
    compile_graph, compile_str, graph_of_file, graph_of_onnx, read_machine,
};
pub use contingency::ImpossibleLoss;
pub use diag::{Diagnostic, Diagnostics, Label, Severity};
pub use explain::{Example, Page, page};
pub use npy::{Npy, NpyError, read as read_npy};
pub use replicate::{Replicate, ReplicateError, Replicated, Replication, replicate};
pub use rounding::Rounding;
pub use source::{FileId, Position, Source, SourceMap, Span, Spanned};
pub use zbmd_backends::kernels::Math;
pub use zbmd_scheduler::Losses;
pub use zbmd_scheduler::replicate::{Factors, Obstacle, obstacles};
