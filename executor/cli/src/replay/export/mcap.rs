//! A recording as an MCAP file: `/sources/NAME` has the tokens of a source, `/parameters` the changes of live parameters and
//! `/gaps` what was filled. The latter two are JSON. A message of tokens is the index of the first one, as eight bytes, and
//! the tokens, all little-endian on the machines that record so; the channel's metadata says their type.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use mcap::records::MessageHeader;
use mcap::{McapError, Writer};
use serde_json::{Value, json};
use zbmd_ir::{ChangePosition, ParameterChange, Program, live_parameters};

use super::ExportedSource;
use crate::CliError;
use crate::flight::Recording;
use crate::io::FileError;
use crate::replay::carry::tokens_per_iteration;

/// Bytes of tokens in a message, or one token where that is more.
const MESSAGE_BYTES: u64 = 64 << 10;

struct McapFile<'a> {
    path: &'a Path,
    writer: Writer<BufWriter<File>>,
    /// Of each channel, the next message's number.
    sequences: BTreeMap<u16, u32>,
}

/// A message that waits until those with earlier times are written.
struct Message {
    unix_ns: u64,
    channel: u16,
    payload: Payload,
}

enum Payload {
    Json(Value),
    /// Tokens of a source: index of the first one, and the one after the last.
    Tokens {
        source: usize,
        first: u64,
        end: u64,
    },
}

/// Writes the file.
pub(super) fn write(
    path: &Path,
    recording: &Recording,
    program: &Program,
    sources: &[ExportedSource<'_>],
) -> Result<Vec<String>, CliError> {
    let mut file = McapFile::create(path)?;
    let mut messages = Vec::new();
    for (source, (id, _)) in sources.iter().zip(program.graph.sources()) {
        let per_iteration = tokens_per_iteration(&program.graph, id);
        let channel = file.token_channel(source, per_iteration)?;
        messages.extend(token_messages(recording, source, channel));
    }
    let channel = file.json_channel("/parameters")?;
    let changes = recording.changes().map(|(number, change)| Message {
        unix_ns: time_of_change(program, sources, change),
        channel,
        payload: Payload::Json(change_json(program, number, change)),
    });
    messages.extend(changes);
    let channel = file.json_channel("/gaps")?;
    for source in sources {
        let gaps = recording.gaps[source.index].iter().map(|gap| Message {
            unix_ns: source.time_of(gap.first).unwrap_or(0),
            channel,
            payload: Payload::Json(json!({
                "source": source.name, "first": gap.first, "length": gap.length, "cause": gap.cause,
            })),
        });
        messages.extend(gaps);
    }

    messages.sort_by_key(|message| message.unix_ns);
    let count = messages.len();
    for message in messages {
        file.add(recording, sources, &message)?;
    }
    file.finish()?;
    Ok(vec![format!(
        "{}: {count} messages of {} sources, {} changes",
        path.display(),
        sources.len(),
        recording.changes().count()
    )])
}

/// The messages of a source, without the tokens themselves.
fn token_messages(
    recording: &Recording,
    source: &ExportedSource<'_>,
    channel: u16,
) -> Vec<Message> {
    let step = (MESSAGE_BYTES / source.token.bytes()).max(1);
    let ranges = recording.token_ranges(source.index).into_iter();
    let messages = ranges.flat_map(|(begin, end)| {
        let firsts = (begin..end).step_by(step as usize);
        firsts.map(move |first| Message {
            unix_ns: source.time_of(first).unwrap_or(0),
            channel,
            payload: Payload::Tokens {
                source: source.index,
                first,
                end: end.min(first + step),
            },
        })
    });
    messages.collect()
}

fn change_json(program: &Program, number: u64, change: &ParameterChange) -> Value {
    let parameters = live_parameters(&program.graph);
    let named = change.values.iter().filter_map(|(index, numbers)| {
        let parameter = parameters.get(*index as usize)?;
        Some((parameter.name.clone(), json!(numbers)))
    });
    let values: serde_json::Map<String, Value> = named.collect();
    let position = match change.position {
        ChangePosition::Iteration(iteration) => json!({"iteration": iteration}),
        ChangePosition::Token { source, index } => {
            let actor = program.graph.actors.get(source);
            json!({"source": actor.map(|actor| &actor.name), "token": index})
        }
    };
    json!({"number": number, "position": position, "values": values})
}

/// When the token came with which a change takes effect.
fn time_of_change(
    program: &Program,
    sources: &[ExportedSource<'_>],
    change: &ParameterChange,
) -> u64 {
    let mut known = sources.iter().zip(program.graph.sources());
    let time = match change.position {
        ChangePosition::Iteration(iteration) => known.next().and_then(|(source, (id, _))| {
            let per_iteration = tokens_per_iteration(&program.graph, id);
            source.time_of(iteration.saturating_mul(per_iteration))
        }),
        ChangePosition::Token { source, index } => known
            .find(|(_, (id, _))| *id == source)
            .and_then(|(source, _)| source.time_of(index)),
    };
    time.unwrap_or(0)
}

impl<'a> McapFile<'a> {
    fn create(path: &'a Path) -> Result<Self, CliError> {
        let failed = |source| FileError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::create(path).map_err(failed)?;
        let options = mcap::WriteOptions::new()
            .compression(None)
            .library(concat!("zbmd ", env!("CARGO_PKG_VERSION")));
        let writer = options
            .create(BufWriter::new(file))
            .map_err(|error| mcap_error(path, error))?;
        Ok(Self {
            path,
            writer,
            sequences: BTreeMap::new(),
        })
    }

    fn token_channel(
        &mut self,
        source: &ExportedSource<'_>,
        tokens_per_iteration: u64,
    ) -> Result<u16, CliError> {
        let mut metadata = BTreeMap::from([
            ("token", source.token.to_string()),
            ("token_bytes", source.token.bytes().to_string()),
            ("tokens_per_iteration", tokens_per_iteration.to_string()),
            (
                "byte_order",
                match cfg!(target_endian = "big") {
                    true => "big".to_owned(),
                    false => "little".to_owned(),
                },
            ),
        ]);
        if let Some(rate) = source.rate {
            metadata.insert("rate", rate.to_string());
        }
        let metadata = metadata
            .into_iter()
            .map(|(key, text)| (key.to_owned(), text));
        let topic = format!("/sources/{}", source.name);
        let added = self
            .writer
            .add_channel(0, &topic, "x-zbmd-tokens", &metadata.collect());
        added.map_err(|error| mcap_error(self.path, error))
    }

    fn json_channel(&mut self, topic: &str) -> Result<u16, CliError> {
        let added = self.writer.add_channel(0, topic, "json", &BTreeMap::new());
        added.map_err(|error| mcap_error(self.path, error))
    }

    fn add(
        &mut self,
        recording: &Recording,
        sources: &[ExportedSource<'_>],
        message: &Message,
    ) -> Result<(), CliError> {
        let bytes = match &message.payload {
            Payload::Json(value) => value.to_string().into_bytes(),
            Payload::Tokens { source, first, end } => {
                let exported = &sources[*source];
                let mut bytes = first.to_ne_bytes().to_vec();
                let head_bytes = bytes.len();
                let token_bytes = (end - first) * exported.token.bytes();
                bytes.resize(head_bytes + token_bytes as usize, 0);
                let mut tokens = recording.tokens(*source, *first);
                exported.read(&mut tokens, &mut bytes[head_bytes..])?;
                bytes
            }
        };
        let sequence = self.sequences.entry(message.channel).or_insert(0);
        let header = MessageHeader {
            channel_id: message.channel,
            sequence: *sequence,
            log_time: message.unix_ns,
            publish_time: message.unix_ns,
        };
        *sequence = sequence.wrapping_add(1);
        let written = self.writer.write_to_known_channel(&header, &bytes);
        written.map_err(|error| mcap_error(self.path, error))
    }

    fn finish(mut self) -> Result<(), CliError> {
        let finished = self.writer.finish();
        finished.map_err(|error| mcap_error(self.path, error))?;
        let flushed = self.writer.into_inner().into_inner();
        flushed.map_err(|error| super::file_error(self.path)(error.into_error()))?;
        Ok(())
    }
}

fn mcap_error(path: &Path, error: McapError) -> CliError {
    let source = match error {
        McapError::Io(error) => error,
        other => std::io::Error::other(other.to_string()),
    };
    CliError::File(FileError::Io {
        path: path.to_owned(),
        source,
    })
}
