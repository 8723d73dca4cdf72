//! A recording as an MCAP file: `/sources/NAME` has the tokens of a source, `/parameters` the changes of live parameters,
//! `/modes` those of the mode, and `/gaps` what was filled. These are JSON. A message of tokens is the index of the first one, as eight bytes, and
//! the tokens; the channel's metadata has their type and the order of bytes. The time of a message is that of its first token.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use mcap::records::MessageHeader;
use mcap::{McapError, WriteOptions, Writer};
use serde_json::{Value, json};
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{ChangePosition, Graph, ParameterChange, live_parameters};
use zbmd_live::Gap;

use super::{ExportedSource, file_error};
use crate::CliError;
use crate::flight::record::NumberedMode;
use crate::flight::{ModeHistory, RecordedTokens, Recording, TokenRange};

/// Bytes of tokens in a message, or one token where that is more.
const MESSAGE_BYTES: u64 = 64 << 10;
const BYTE_ORDER: &str = match cfg!(target_endian = "big") {
    true => "big",
    false => "little",
};

/// What a message has, which is read when it is written.
enum Payload<'a> {
    /// Tokens of a source, by its place among the sources.
    Tokens { source: usize, range: TokenRange },
    /// A change and its number.
    Change(u64, &'a ParameterChange),
    /// A change of mode.
    Mode(&'a NumberedMode),
    /// A gap of a source.
    Gap { source: usize, gap: &'a Gap },
}

/// A message that waits until those with earlier times are written.
struct Message<'a> {
    unix_ns: u64,
    channel: u16,
    payload: Payload<'a>,
}

/// A recording that is exported.
struct Exported<'a> {
    recording: &'a Recording,
    modes: &'a VerifiedModes,
    history: ModeHistory,
    sources: &'a [ExportedSource<'a>],
}

struct McapFile<'a> {
    path: &'a Path,
    writer: Writer<BufWriter<File>>,
    /// Of each channel, the next message's number.
    sequences: BTreeMap<u16, u32>,
}

/// Where a source is read: the next token, and what gives it.
struct SourceReader {
    next: u64,
    tokens: RecordedTokens,
}

/// Writes the file.
pub(super) fn write(
    path: &Path,
    recording: &Recording,
    modes: &VerifiedModes,
    sources: &[ExportedSource<'_>],
) -> Result<Vec<String>, CliError> {
    if let Some(source) = sources.first() {
        source.check_outside(path)?;
    }
    let exported = Exported {
        recording,
        modes,
        history: recording.mode_history(),
        sources,
    };
    let mut file = McapFile::create(path)?;
    let mut messages = exported.messages(&mut file)?;
    messages.sort_by_key(|message| message.unix_ns);

    let mut readers: Vec<Option<SourceReader>> = sources.iter().map(|_| None).collect();
    for message in &messages {
        let bytes = exported.payload(&message.payload, &mut readers)?;
        file.add(message.channel, message.unix_ns, &bytes)?;
    }
    file.finish()?;
    Ok(vec![format!(
        "{}: {} messages of {} sources, {} changes",
        path.display(),
        messages.len(),
        sources.len(),
        recording.changes().count() + recording.mode_changes().count()
    )])
}

impl<'a> Exported<'a> {
    /// All messages, source by source, and the channels that they are on.
    fn messages(&self, file: &mut McapFile<'_>) -> Result<Vec<Message<'a>>, CliError> {
        let mut messages = Vec::new();
        for source in self.sources {
            let channel = file.token_channel(source, self.rate_text(source.index))?;
            for range in self.recording.token_ranges(source.index) {
                messages.extend(token_messages(source, channel, *range));
            }
        }

        let channel = file.json_channel("/parameters")?;
        let changes = self.recording.changes().map(|(number, change)| Message {
            unix_ns: self.time_of_change(number, change),
            channel,
            payload: Payload::Change(number, change),
        });
        messages.extend(changes);

        if self.has_modes() {
            let channel = file.json_channel("/modes")?;
            let changes = self.recording.mode_changes().map(|change| Message {
                unix_ns: self.time_of_iteration(change.iteration),
                channel,
                payload: Payload::Mode(change),
            });
            messages.extend(changes);
        }

        let channel = file.json_channel("/gaps")?;
        for source in self.sources {
            let gaps = self.recording.gaps[source.index].iter();
            messages.extend(gaps.map(|gap| Message {
                unix_ns: source.time_of(gap.first).unwrap_or(0),
                channel,
                payload: Payload::Gap {
                    source: source.index,
                    gap,
                },
            }));
        }
        Ok(messages)
    }

    fn has_modes(&self) -> bool {
        self.modes.names().len() > 1
    }

    /// The graph that a change of live parameters was made in.
    fn graph_of_change(&self, number: u64) -> &'a Graph {
        let mode = self.history.mode_of_change(number);
        &self.modes.programs()[mode].graph
    }

    /// Tokens that an iteration takes of a source: in all modes as many, or in each another number.
    fn rate_text(&self, source: usize) -> String {
        let modes = &self.recording.head.modes;
        let mut rates = modes.iter().map(|mode| mode.tokens_per_iteration[source]);
        let first = rates.next().unwrap_or(0);
        if rates.all(|rate| rate == first) {
            return first.to_string();
        }
        let named = modes
            .iter()
            .map(|mode| format!("{}={}", mode.name, mode.tokens_per_iteration[source]));
        named.collect::<Vec<_>>().join(",")
    }

    /// When the token came with which a change takes effect.
    fn time_of_change(&self, number: u64, change: &ParameterChange) -> u64 {
        match change.position {
            ChangePosition::Iteration(iteration) => self.time_of_iteration(iteration),
            ChangePosition::Token { source, index } => {
                let mut known = self.graph_of_change(number).sources();
                let place = known.position(|(id, _)| id == source);
                let source = place.and_then(|place| self.sources.get(place));
                source.and_then(|source| source.time_of(index)).unwrap_or(0)
            }
        }
    }

    /// When the first source's token came with which an iteration begins.
    fn time_of_iteration(&self, iteration: u64) -> u64 {
        let source = self.sources.first();
        let time = source.and_then(|source| {
            let tokens = self.history.tokens_before(iteration, source.index);
            source.time_of(tokens)
        });
        time.unwrap_or(0)
    }

    /// The bytes of a message.
    fn payload(
        &self,
        payload: &Payload<'_>,
        readers: &mut [Option<SourceReader>],
    ) -> Result<Vec<u8>, CliError> {
        let json = match payload {
            Payload::Tokens { source, range } => {
                return self.tokens(*source, *range, &mut readers[*source]);
            }
            Payload::Change(number, change) => self.change_json(*number, change),
            Payload::Mode(change) => json!({
                "number": change.number,
                "iteration": change.iteration,
                "mode": self.modes.names()[change.mode as usize],
            }),
            Payload::Gap { source, gap } => json!({
                "source": self.sources[*source].name,
                "first": gap.first,
                "length": gap.length,
                "cause": gap.cause,
            }),
        };
        Ok(json.to_string().into_bytes())
    }

    fn tokens(
        &self,
        source: usize,
        range: TokenRange,
        reader: &mut Option<SourceReader>,
    ) -> Result<Vec<u8>, CliError> {
        let exported = &self.sources[source];
        let head = range.first.to_ne_bytes();
        let token_bytes = (range.end - range.first) * exported.token.bytes();
        let mut bytes = vec![0; head.len() + token_bytes as usize];
        bytes[..head.len()].copy_from_slice(&head);

        // Messages of a source are in order, unless the clock was set back.
        let going_on = reader.take().filter(|reader| reader.next == range.first);
        let mut tokens = match going_on {
            Some(reader) => reader.tokens,
            None => self.recording.tokens(source, range.first),
        };
        exported.read(&mut tokens, &mut bytes[head.len()..])?;
        *reader = Some(SourceReader {
            next: range.end,
            tokens,
        });
        Ok(bytes)
    }

    fn change_json(&self, number: u64, change: &ParameterChange) -> Value {
        let graph = self.graph_of_change(number);
        let parameters = live_parameters(graph);
        let named = change.values.iter().filter_map(|(index, numbers)| {
            let parameter = parameters.get(*index as usize)?;
            Some((parameter.name.clone(), json!(numbers)))
        });
        let values: serde_json::Map<String, Value> = named.collect();
        let position = match change.position {
            ChangePosition::Iteration(iteration) => json!({"iteration": iteration}),
            ChangePosition::Token { source, index } => {
                let actor = graph.actors.get(source);
                json!({"source": actor.map(|actor| &actor.name), "token": index})
            }
        };
        json!({"number": number, "position": position, "values": values})
    }
}

/// The messages of a range of tokens.
fn token_messages<'a>(
    source: &ExportedSource<'_>,
    channel: u16,
    range: TokenRange,
) -> impl Iterator<Item = Message<'a>> {
    let step = (MESSAGE_BYTES / source.token.bytes()).max(1);
    let firsts = (range.first..range.end).step_by(step as usize);
    firsts.map(move |first| Message {
        unix_ns: source.time_of(first).unwrap_or(0),
        channel,
        payload: Payload::Tokens {
            source: source.index,
            range: TokenRange {
                first,
                end: range.end.min(first + step),
            },
        },
    })
}

impl<'a> McapFile<'a> {
    fn create(path: &'a Path) -> Result<Self, CliError> {
        let file = File::create(path).map_err(file_error(path))?;
        let options = WriteOptions::new()
            .compression(None)
            .library(concat!("zbmd ", env!("CARGO_PKG_VERSION")));
        let writer = options.create(BufWriter::new(file));
        Ok(Self {
            path,
            writer: writer.map_err(|error| mcap_error(path, error))?,
            sequences: BTreeMap::new(),
        })
    }

    fn token_channel(
        &mut self,
        source: &ExportedSource<'_>,
        tokens_per_iteration: String,
    ) -> Result<u16, CliError> {
        let mut metadata = BTreeMap::new();
        let mut note = |key: &str, text: String| metadata.insert(key.to_owned(), text);
        note("token", source.token.to_string());
        note("token_bytes", source.token.bytes().to_string());
        note("tokens_per_iteration", tokens_per_iteration);
        note("byte_order", BYTE_ORDER.to_owned());
        if let Some(rate) = source.rate {
            note("rate", rate.to_string());
        }
        let topic = format!("/sources/{}", source.name);
        self.channel(&topic, "x-zbmd-tokens", &metadata)
    }

    fn json_channel(&mut self, topic: &str) -> Result<u16, CliError> {
        self.channel(topic, "json", &BTreeMap::new())
    }

    fn channel(
        &mut self,
        topic: &str,
        encoding: &str,
        metadata: &BTreeMap<String, String>,
    ) -> Result<u16, CliError> {
        /// Neither encoding needs a schema.
        const NO_SCHEMA: u16 = 0;
        let added = self
            .writer
            .add_channel(NO_SCHEMA, topic, encoding, metadata);
        added.map_err(|error| mcap_error(self.path, error))
    }

    fn add(&mut self, channel: u16, unix_ns: u64, bytes: &[u8]) -> Result<(), CliError> {
        let sequence = self.sequences.entry(channel).or_insert(0);
        let header = MessageHeader {
            channel_id: channel,
            sequence: *sequence,
            log_time: unix_ns,
            publish_time: unix_ns,
        };
        *sequence = sequence.wrapping_add(1);
        let written = self.writer.write_to_known_channel(&header, bytes);
        written.map_err(|error| mcap_error(self.path, error))
    }

    fn finish(mut self) -> Result<(), CliError> {
        let finished = self.writer.finish();
        finished.map_err(|error| mcap_error(self.path, error))?;
        let flushed = self.writer.into_inner().into_inner();
        flushed.map_err(|error| file_error(self.path)(error.into_error()))?;
        Ok(())
    }
}

fn mcap_error(path: &Path, error: McapError) -> CliError {
    let source = match error {
        McapError::Io(error) => error,
        other => std::io::Error::other(other.to_string()),
    };
    file_error(path)(source)
}
