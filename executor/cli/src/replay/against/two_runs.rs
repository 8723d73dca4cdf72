//! What the sinks of two models are given, compared. Each model runs twice: first only hashes of blocks of tokens are kept,
//! then the tokens of the first block that differs.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;
use zbmd_executor::{RunOptions, SinkHandle};
use zbmd_ir::TokenType;

use super::side::Side;
use crate::CliError;
use crate::flight::Recording;
use crate::io::pump;
use crate::replay::sources_from;

/// Bytes of tokens that one hash is of, or one token where that is more.
const BLOCK_BYTES: u64 = 64 << 10;

/// What a sink is given.
#[derive(Clone, Debug, PartialEq)]
struct SinkOutput {
    token: TokenType,
    tokens: u64,
    /// Of each block of tokens.
    hashes: Vec<u64>,
    /// The bytes of the block that was asked for.
    kept: Vec<u8>,
}

/// How a sink of one model differs from that of the other. Tokens are counted from where the runs began.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SinkDifference {
    /// This is the first token that differs.
    Token {
        index: u64,
        recorded: Vec<u8>,
        other: Vec<u8>,
    },
    /// One has all tokens of the other, and more.
    Length { recorded: u64, other: u64 },
    /// Its tokens have another type.
    Type {
        recorded: TokenType,
        other: TokenType,
    },
    /// The other model has no such sink.
    Missing,
    /// Only the other model has it.
    New,
}

/// What is found of a sink.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ComparedSink {
    pub(super) name: String,
    pub(super) token: TokenType,
    /// That both were given.
    pub(super) tokens: u64,
    pub(super) difference: Option<SinkDifference>,
}

/// The sinks of both models, by name: those of the recorded one, then those that only the other one has.
///
/// # Errors
/// What a run ends with.
pub(super) fn compare_sinks(
    recording: &Recording,
    recorded: &Side,
    other: &Side,
) -> Result<Vec<ComparedSink>, CliError> {
    let nothing = BTreeMap::new();
    let first = outputs(recording, recorded, recorded.iterations, &nothing)?;
    let second = outputs(recording, other, other.iterations, &nothing)?;
    let mut unlike_blocks = BTreeMap::new();
    for (name, output) in &first {
        if let Some(block) = second
            .get(name)
            .and_then(|other| unlike_block(output, other))
        {
            unlike_blocks.insert(name.clone(), block);
        }
    }
    let (mut kept_first, mut kept_second) = (BTreeMap::new(), BTreeMap::new());
    if !unlike_blocks.is_empty() {
        let iterations = recorded.iterations_to(&unlike_blocks);
        kept_first = outputs(recording, recorded, iterations, &unlike_blocks)?;
        let iterations = other.iterations_to(&unlike_blocks);
        kept_second = outputs(recording, other, iterations, &unlike_blocks)?;
    }

    let mut compared = Vec::new();
    for (name, output) in &first {
        let difference = match second.get(name) {
            None => Some(SinkDifference::Missing),
            Some(other) if other.token != output.token => Some(SinkDifference::Type {
                recorded: output.token.clone(),
                other: other.token.clone(),
            }),
            Some(other) => match unlike_blocks.get(name) {
                None => None,
                Some(block) => {
                    let begin = block * block_tokens(&output.token);
                    let kept = (kept_first.get(name), kept_second.get(name));
                    let token = match kept {
                        (Some(a), Some(b)) => unlike_token(&output.token, begin, &a.kept, &b.kept),
                        _ => None,
                    };
                    Some(token.unwrap_or(SinkDifference::Length {
                        recorded: output.tokens,
                        other: other.tokens,
                    }))
                }
            },
        };
        compared.push(ComparedSink {
            name: name.clone(),
            token: output.token.clone(),
            tokens: second
                .get(name)
                .map_or(0, |other| output.tokens.min(other.tokens)),
            difference,
        });
    }
    let new = second.iter().filter(|(name, _)| !first.contains_key(*name));
    compared.extend(new.map(|(name, output)| ComparedSink {
        name: name.clone(),
        token: output.token.clone(),
        tokens: 0,
        difference: Some(SinkDifference::New),
    }));
    Ok(compared)
}

fn block_tokens(token: &TokenType) -> u64 {
    (BLOCK_BYTES / token.bytes()).max(1)
}

/// The first block that is not the same.
fn unlike_block(recorded: &SinkOutput, other: &SinkOutput) -> Option<u64> {
    if recorded.token != other.token {
        return None;
    }
    let mut pairs = recorded.hashes.iter().zip(&other.hashes);
    let unlike = pairs.position(|(a, b)| a != b);
    let shorter = recorded.hashes.len().min(other.hashes.len());
    let is_longer = recorded.hashes.len() != other.hashes.len();
    unlike
        .or(is_longer.then_some(shorter))
        .map(|block| block as u64)
}

/// The first token that is not the same, of two blocks.
fn unlike_token(token: &TokenType, begin: u64, a: &[u8], b: &[u8]) -> Option<SinkDifference> {
    let token_bytes = token.bytes() as usize;
    let mut pairs = a.chunks_exact(token_bytes).zip(b.chunks_exact(token_bytes));
    let place = pairs.position(|(a, b)| a != b)?;
    let bytes = place * token_bytes..(place + 1) * token_bytes;
    Some(SinkDifference::Token {
        index: begin + place as u64,
        recorded: a[bytes.clone()].to_vec(),
        other: b[bytes].to_vec(),
    })
}

impl Side {
    /// As many iterations as give each of these sinks the whole of a block, if the run is as long.
    fn iterations_to(&self, blocks: &BTreeMap<String, u64>) -> u64 {
        let for_sinks = self.first_graph().sinks().filter_map(|(_, sink)| {
            let end = (blocks.get(&sink.name)? + 1) * block_tokens(&sink.inputs[0].token);
            Some(self.iteration_of(&sink.name, end - 1) + 1)
        });
        let enough = for_sinks.max().unwrap_or(0);
        // A bundle without a plan for single iterations runs whole blocks.
        let programs = self.engine.verified_modes().programs().iter();
        let plans = programs.flat_map(|program| &program.plans);
        let block = plans.map(|plan| plan.block).max();
        enough
            .saturating_add(block.unwrap_or(1))
            .min(self.iterations)
    }
}

/// What a run gives its sinks, and of some the bytes of a block.
fn outputs(
    recording: &Recording,
    side: &Side,
    iterations: u64,
    kept_blocks: &BTreeMap<String, u64>,
) -> Result<BTreeMap<String, SinkOutput>, CliError> {
    let graph = side.first_graph();
    let sources = sources_from(recording, &side.path, graph, &side.start.state)?;
    let mut session = side.engine.start(RunOptions {
        iterations: Some(iterations),
        state: Some(side.start.state.clone()),
        present_mode: side.start.present_mode.clone(),
        scheduled_modes: side.start.scheduled_modes.clone(),
        ..RunOptions::default()
    })?;

    let mut pumps = Vec::new();
    for (name, path, reader) in sources {
        let handle = session.source(&name).map_err(|error| CliError::Refused {
            path: path.clone(),
            text: error.to_string(),
        })?;
        pumps.push(std::thread::spawn(move || {
            pump::fill(&name, &path, reader, handle)
        }));
    }

    let mut pulls = Vec::new();
    for (_, sink) in graph.sinks() {
        let handle = session
            .sink(&sink.name)
            .map_err(|error| CliError::Refused {
                path: side.path.clone(),
                text: error.to_string(),
            })?;
        let kept_block = kept_blocks.get(&sink.name).copied();
        let pull = std::thread::spawn(move || take_all(handle, kept_block));
        pulls.push((sink.name.clone(), pull));
    }

    session.join()?;
    for pump in pumps {
        if let Ok(pump::PumpEnd::SourceFailed { error, .. }) = pump.join() {
            return Err(error.into());
        }
    }

    let joined = pulls.into_iter().map(|(name, pull)| match pull.join() {
        Ok(output) => (name, output),
        Err(panic) => std::panic::resume_unwind(panic),
    });
    Ok(joined.collect())
}

/// Takes all tokens of a sink. How a run ends early is said by the run.
fn take_all(mut sink: SinkHandle, kept_block: Option<u64>) -> SinkOutput {
    let token = sink.token().clone();
    let token_bytes = token.bytes();
    let mut output = SinkOutput {
        tokens: 0,
        hashes: Vec::new(),
        kept: Vec::new(),
        token,
    };
    let mut block = vec![0; (block_tokens(&output.token) * token_bytes) as usize];
    while let Ok(tokens @ 1..) = sink.pull_bytes(&mut block) {
        let bytes = &block[..(tokens * token_bytes) as usize];
        if kept_block == Some(output.hashes.len() as u64) {
            output.kept = bytes.to_vec();
        }
        output.tokens += tokens;
        output.hashes.push(xxh3_64(bytes));
        if bytes.len() < block.len() {
            break;
        }
    }
    output
}
