//! Models to bundles: parse -> load -> expand -> infer -> build -> analyse -> plan -> print kernels -> verify.
//! `compilation.rs` holds the steps in their order.
//!
//! [`compile_file`] and [`compile_str`] take the model format, [`compile_graph`] a graph made in Rust with a
//! [`GraphBuilder`] or by hand. All report everything that is wrong at once, in [`Diagnostics`].

mod analysis;
mod assemble;
pub mod book;
mod build;
mod builder;
pub mod calibrate;
mod codes;
mod collectives;
mod compilation;
mod contingency;
mod cost_table;
pub mod costs;
mod cpu_only;
mod deadlines;
mod diag;
mod expand;
mod explain;
pub mod files;
mod format;
mod front;
mod gates;
mod graph_edit;
mod in_place;
mod infer;
mod kernels;
mod live;
pub mod machine;
mod merge;
mod model;
mod modes;
mod net;
mod npy;
pub mod onnx;
mod options;
mod pack;
mod parse;
mod pass_report;
mod pass_selection;
mod planning;
mod read;
pub mod reference;
mod refusals;
pub mod render;
mod replicate;
mod reports;
mod rounding;
mod safetensor;
mod sample_rates;
mod sequences;
mod source;
mod stream_file;
mod target;
mod tiers;
pub mod units;
mod values;
mod variants;
#[cfg(feature = "views")]
pub mod why;
mod write;

#[cfg(test)]
mod tests;

mod compile;

pub use analysis::{Analysis, AnalysisRefused, Order, PhasedBounds};
pub use assemble::Cubins;
pub use builder::{ActorRef, GraphBuilder, PortRef};
pub use codes::Code;
pub use collectives::divide;
pub use compile::{
    Compiled, CompiledModes, analyse_file, analyse_str, calibrate_file, calibrate_graph,
    calibrate_str, check_file, check_str, compile_file, compile_files, compile_graph, compile_onnx,
    compile_str, costs_of_machine, graph_of_file, graph_of_onnx, read_machine,
};
pub use contingency::ImpossibleLoss;
pub use cpu_only::{CpuOnlyActor, CpuOnlyActors};
pub use deadlines::{DeadlineCheck, check_deadlines};
pub use diag::{Diagnostic, Diagnostics, Label, Severity};
pub use explain::{Example, Page, page};
pub use npy::{Npy, NpyError, read as read_npy};
pub use options::{CompileOptions, MachineChoice, Replicate, SearchOptions};
pub use replicate::{ReplicateError, Replicated, Replication, replicate};
pub use rounding::Rounding;
pub use source::{FileId, Position, Source, SourceMap, Span, Spanned};
pub use tiers::FetchedWeights;
pub use write::WriteError;
pub use zbmd_backends::kernels::Math;
pub use zbmd_ir::{ChangeBound, LossBound, ModeBound, ModeBounds};
pub use zbmd_scheduler::Losses;
pub use zbmd_scheduler::replicate::{Factors, Obstacle, obstacles};
#[cfg(feature = "views")]
pub use zbmd_view as view;
#[cfg(feature = "views")]
pub use zbmd_view::{admit, diff};
