//! What voters give to each other, so that one can take over from another: a length of 4 bytes and postcard. For the state of a border
//! 8 bytes of its iterations come back when it is held, for a program a [`ProgramAnswer`].

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;
use zbmd_ir::State;

use super::bundle_parts::BundleParts;
use super::input_log::MirroredTokens;

/// To a voter that could take over; `B` is the border, or a reference to it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum HolderMessage<B> {
    /// To be loaded, and answered: the program at work, before anything of it, or one that the run is to go over to.
    Program {
        bundle: BundleParts,
        /// Where its parts are.
        from: SocketAddr,
    },
    /// To be held, and answered.
    Border(B),
    /// Of sources that are mirrored.
    Tokens(Vec<MirroredTokens>),
}

/// Whether a voter could go on with a program.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ProgramAnswer {
    /// It is to be asked again.
    Loading,
    Loaded,
    /// It cannot, and why.
    Failed(String),
}

/// A border that a run can be gone on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BorderCopy {
    /// The number of the program's bundle.
    pub bundle: u64,
    /// Iterations from the beginning of the run.
    pub iterations: u64,
    /// Tokens that each sink has been given from the beginning of the run up to there, in actor order.
    pub outputs: Vec<u64>,
    /// Tokens that each source has been asked for up to there, likewise.
    pub consumed: Vec<u64>,
    /// As a state is saved, with a checksum.
    pub state: Vec<u8>,
}

/// Of a state at a border: alike wherever the run is computed.
pub(super) fn checksum(state: &State) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(&state.iterations.to_le_bytes());
    for (_, tokens) in &state.consumed {
        sum.update(&tokens.to_le_bytes());
    }
    for tokens in &state.channels {
        sum.update(tokens);
    }
    sum.digest()
}
