//! Refusals of the analysis and of the scheduler, drawn on the model's text; and of programs beyond the limits of bundles.

use zbmd_ir::verify::VerifyError;
use zbmd_ir::{ActorId, ChannelId, DeviceId, Graph, Machine};
use zbmd_scheduler::{AnalysisError, ScheduleError};

use crate::build::{BuiltGraph, Origins};
use crate::codes::Code;
use crate::cost_table::gate_openers;
use crate::diag::Diagnostic;
use crate::source::Span;

/// Channels of a memory conflict that are pointed at.
const MAX_CONFLICTS_SHOWN: usize = 6;

/// Where both ends of a channel were written.
#[derive(Clone, Copy)]
struct ChannelEnds {
    writer: Span,
    reader: Span,
}

/// The ends of a channel; with a reader named, of what that one reads, otherwise of what the first one does.
fn channel_ends(
    graph: &Graph,
    origins: &Origins,
    channel: ChannelId,
    reader: Option<ActorId>,
) -> ChannelEnds {
    let readers = &graph.channels[channel].readers;

    // The text shows where the missing tokens would be read.
    let reader_index = readers
        .iter()
        .position(|entry| Some(entry.to.actor) == reader)
        .unwrap_or(0);

    let written_ends = origins.channels[channel].get(reader_index).copied();
    let (writer, reader) = written_ends.unwrap_or((Span::NONE, Span::NONE));
    ChannelEnds { writer, reader }
}

/// A refusal of the analysis, drawn on the text.
pub(crate) fn draw_analysis(error: &AnalysisError, built: &BuiltGraph) -> Diagnostic {
    let BuiltGraph { graph, origins } = built;
    match error {
        AnalysisError::Inconsistent {
            channel,
            writer,
            reader,
            produced,
            consumed,
            writer_firings,
            reader_firings,
        } => {
            let ends = channel_ends(graph, origins, *channel, Some(*reader));
            let writer_name = &graph.actors[*writer].name;
            let reader_name = &graph.actors[*reader].name;
            let written_tokens = u128::from(*produced) * u128::from(*writer_firings);
            let read_tokens = u128::from(*consumed) * u128::from(*reader_firings);

            let message = format!(
                "rates are inconsistent: for {writer_firings} firings of `{writer_name}` the rest of the graph asks \
                 for {reader_firings} of `{reader_name}`, but this channel would gain {written_tokens} tokens and lose {read_tokens}"
            );
            let reader_label =
                format!("`{reader_name}` reads {consumed} a firing, {read_tokens} in all");
            let writer_label =
                format!("`{writer_name}` writes {produced} a firing, {written_tokens} in all");
            Diagnostic::new(Code::E0401, message)
                .primary(ends.reader, reader_label)
                .context(ends.writer, writer_label)
                .help("bring both paths between the two actors to one rate: up- or downsample on one of them")
        }
        AnalysisError::Deadlock {
            actors,
            channels,
            on,
            missing,
        } => {
            let position = channels.iter().position(|channel| channel == on);
            let wait_cycle = WaitCycle {
                actors,
                blocked_channel: *on,
                blocked_position: position.unwrap_or(0),
                missing_tokens: *missing,
            };

            wait_cycle.draw(graph, origins)
        }
        AnalysisError::Overflow { actor, limit } => {
            let name = &graph.actors[*actor].name;
            let message = format!("`{name}` would fire more than {limit} times in one iteration");
            Diagnostic::new(Code::E0403, message)
                .primary(origins.actors[*actor], "this actor")
                .help("rates with large common multiples make long iterations: round them")
        }
        other => Diagnostic::new(Code::E0403, other.to_string())
            .help("rates with large common multiples make long iterations: round them"),
    }
}

/// Actors that wait for each other, each for the tokens of the one before.
struct WaitCycle<'a> {
    actors: &'a [ActorId],
    /// The channel that lacks tokens, and its place in the cycle: channel i leads from actor i to the next one.
    blocked_channel: ChannelId,
    blocked_position: usize,
    missing_tokens: u64,
}

impl WaitCycle<'_> {
    fn draw(&self, graph: &Graph, origins: &Origins) -> Diagnostic {
        let actor_names: Vec<&str> = self
            .actors
            .iter()
            .map(|&actor| graph.actors[actor].name.as_str())
            .collect();
        let message = match actor_names.as_slice() {
            [only] => format!("deadlock: {only} waits for itself"),
            _ => format!(
                "deadlock: {} -> {} wait for each other",
                actor_names.join(" -> "),
                actor_names.first().copied().unwrap_or_default()
            ),
        };

        let reader_index = (self.blocked_position + 1) % self.actors.len().max(1);
        let reader = self.actors.get(reader_index).copied();
        let ends = channel_ends(graph, origins, self.blocked_channel, reader);
        let missing_tokens = self.missing_tokens;
        let noun = if missing_tokens == 1 {
            "token"
        } else {
            "tokens"
        };
        let remedy = format!("{missing_tokens} more initial {noun} here would do");

        let mut diagnostic = Diagnostic::new(Code::E0402, message)
            .primary(ends.reader, remedy)
            .context(ends.writer, "the channel from here");

        // All actors of the cycle are shown: the tokens may be better placed elsewhere on it.
        for &actor in self.actors {
            diagnostic = diagnostic.context(origins.actors[actor], "waits");
        }
        diagnostic.help(format!(
            "add `initial: Zeros({missing_tokens})` to this channel, or its start values as a list"
        ))
    }
}

/// Draws refusals of the scheduler on the text.
pub(crate) struct ScheduleRefusal<'a> {
    /// The graph of the model: errors are about its actors and channels.
    pub(crate) model: &'a BuiltGraph,
    pub(crate) machine: &'a Machine,
}

impl ScheduleRefusal<'_> {
    pub(crate) fn draw(&self, error: &ScheduleError) -> Diagnostic {
        match error {
            ScheduleError::Analysis(error) => draw_analysis(error, self.model),
            ScheduleError::NoDevices => Diagnostic::new(Code::E0503, error.to_string())
                .help("give a machine with devices, or allow more of them"),
            ScheduleError::NoDevice { actor } => self.draw_no_kernel(*actor),
            ScheduleError::PinImpossible { actor, device } => {
                self.draw_impossible_pin(*actor, *device)
            }
            ScheduleError::PinnedApart {
                first,
                first_device,
                second,
                second_device,
            } => self.draw_split_cycle([*first, *second], [*first_device, *second_device]),
            ScheduleError::NoLink { channel, from, to } => {
                self.draw_missing_link(*channel, *from, *to)
            }
            ScheduleError::TooBig { channel, .. } => {
                let ends = self.ends(*channel);
                Diagnostic::new(Code::E0504, error.to_string())
                    .primary(ends.reader, "this channel")
                    .context(ends.writer, "written here")
                    .help("lower the rates, or the block with `--block`")
            }
            ScheduleError::Memory {
                device,
                needed_bytes,
                limit_bytes,
                block,
                conflict,
            } => {
                let device = self.device(*device);
                let message = format!(
                    "`{device}` needs {needed_bytes} bytes in blocks of {block}, {limit_bytes} are allowed"
                );
                self.point_at_conflict(Diagnostic::new(Code::E0504, message), conflict).help(
                    "allow more with `--max-memory` or in the machine, or ask for a smaller `--block`",
                )
            }
            ScheduleError::Buffers { .. } => Diagnostic::new(Code::E0504, error.to_string())
                .help("allow more with `--buffers`, or leave it out"),
            ScheduleError::Latency { best_ns, limit_ns } => {
                let message = format!(
                    "the quickest plan has a latency of {best_ns} ns, {limit_ns} ns are allowed"
                );
                Diagnostic::new(Code::E0506, message)
                    .help("allow more with `--max-latency`, or make the iteration shorter")
            }
            ScheduleError::BlockRange { block, limit } => {
                let message = format!(
                    "a block of {block} iterations is asked for, 1 to {limit} are possible"
                );
                Diagnostic::new(Code::E0506, message)
                    .help("ask for another `--block`, or leave it out")
            }
            ScheduleError::NoHosts => Diagnostic::new(Code::E0506, error.to_string())
                .help("group the devices in the machine file, `hosts: { \"left\": [\"cpu:0\"] }`, or ask for `--contingencies single`"),
            ScheduleError::TooManyContingencies { .. } => {
                Diagnostic::new(Code::E0506, error.to_string())
                    .help("ask for `--contingencies single` or `none`")
            }
            ScheduleError::TooManySlots { .. } => Diagnostic::new(Code::E0403, error.to_string())
                .help("shorten the iteration, or ask for a smaller `--block`"),
        }
    }

    fn draw_no_kernel(&self, actor: ActorId) -> Diagnostic {
        let actor_name = self.actor(actor);
        let op_name = &self.model.graph.actors[actor].op;
        let message = format!("no device has a kernel for `{actor_name}` ({op_name})");
        Diagnostic::new(Code::E0503, message)
            .primary(self.model.origins.ops[actor], "this op")
            .help("add a CPU device to the machine")
    }

    fn draw_impossible_pin(&self, actor: ActorId, device: DeviceId) -> Diagnostic {
        let actor_name = self.actor(actor);
        let device = self.device(device);
        let message = format!("`{actor_name}` is pinned to `{device}`, which has no kernel for it");
        let opens_gate = gate_openers(&self.model.graph, |_| true).contains(&actor);
        let help = match opens_gate {
            true => "it opens a gate, which is read on a CPU: pin it to one, or remove the pin",
            false => "pin it to a CPU device, or remove the pin",
        };
        Diagnostic::new(Code::E0503, message)
            .primary(self.pin_span(actor), "pinned here")
            .context(self.model.origins.ops[actor], "this op")
            .help(help)
    }

    fn draw_split_cycle(&self, actors: [ActorId; 2], devices: [DeviceId; 2]) -> Diagnostic {
        let [first, second] = actors;
        let [first_device, second_device] = devices.map(|device| self.device(device));
        let message = format!(
            "`{}` is pinned to `{first_device}` and `{}` to `{second_device}`, but their firings interleave on one cycle",
            self.actor(first),
            self.actor(second)
        );
        Diagnostic::new(Code::E0502, message)
            .primary(self.pin_span(second), "pinned here")
            .context(self.pin_span(first), "pinned elsewhere")
            .help("pin the actors of a feedback loop to one device, or add initial tokens for a whole block")
    }

    fn draw_missing_link(&self, channel: ChannelId, from: DeviceId, to: DeviceId) -> Diagnostic {
        let ends = self.ends(channel);
        let sender = self.device(from);
        let receiver = self.device(to);
        let message = format!("this channel needs a link from `{sender}` to `{receiver}`");
        Diagnostic::new(Code::E0503, message)
            .primary(ends.reader, format!("read on `{receiver}`"))
            .context(ends.writer, format!("written on `{sender}`"))
            .help("add the link to the machine, or pin both actors to one device")
    }

    /// Points at the channels whose buffers do not fit together.
    fn point_at_conflict(&self, mut diagnostic: Diagnostic, conflict: &[ChannelId]) -> Diagnostic {
        let hidden_channels = conflict.len().saturating_sub(MAX_CONFLICTS_SHOWN);
        for (index, &channel) in conflict.iter().take(MAX_CONFLICTS_SHOWN).enumerate() {
            let writer = self.ends(channel).writer;
            let is_first = index == 0;
            let is_last_shown = index + 1 == MAX_CONFLICTS_SHOWN;

            diagnostic = if is_first && conflict.len() == 1 {
                diagnostic.primary(writer, "the tokens of this channel alone are too many")
            } else if is_first {
                diagnostic.primary(writer, "the tokens of this channel do not fit there")
            } else if is_last_shown && hidden_channels > 0 {
                diagnostic.context(
                    writer,
                    format!("together with these and {hidden_channels} more"),
                )
            } else {
                diagnostic.context(writer, "together with these")
            };
        }

        diagnostic
    }

    fn actor(&self, id: ActorId) -> &str {
        &self.model.graph.actors[id].name
    }

    fn device(&self, id: DeviceId) -> &str {
        &self.machine.devices[id].name
    }

    fn ends(&self, channel: ChannelId) -> ChannelEnds {
        channel_ends(&self.model.graph, &self.model.origins, channel, None)
    }

    /// Where an actor is pinned, or where it is written if it is not.
    fn pin_span(&self, actor: ActorId) -> Span {
        let origins = &self.model.origins;
        let pin = origins.pins.get(&actor).map(|device| device.span);
        pin.unwrap_or(origins.actors[actor])
    }
}

/// Whether the verifier refuses something only for its size.
pub(crate) fn is_limit(error: &VerifyError) -> bool {
    matches!(error.code(), "V0101" | "V1101")
}

/// What to say of a program that is correct but larger than a bundle may be; `None` if anything else is wrong with it.
pub(crate) fn draw_beyond_limits(errors: &[VerifyError]) -> Option<Diagnostic> {
    let first_error = errors.first()?;
    if !errors.iter().all(is_limit) {
        return None;
    }
    let message = format!("the plan is larger than a bundle may be: {first_error}");
    let help =
        "ask for a smaller `--block`, or for fewer `--contingencies`, or shorten the iteration";
    Some(Diagnostic::new(Code::E0506, message).help(help))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only limits are the model's concern; with anything else among them it is a bug of ours.
    #[test]
    fn plans_beyond_limits_are_diagnosed_and_bugs_are_not() {
        let limit = VerifyError::Limit {
            what: "slot executions on d0 of plan0".to_owned(),
            count: 17 << 20,
            limit: 16 << 20,
        };
        let work = VerifyError::TooMuchWork {
            what: "the slots of plan0".to_owned(),
            steps: 2,
            limit: 1,
        };
        let bug = VerifyError::NoPlan {};

        for errors in [vec![limit.clone()], vec![work.clone(), limit.clone()]] {
            let found = draw_beyond_limits(&errors).expect("a diagnostic");
            assert_eq!(found.code, Code::E0506);
            assert!(
                found.message.contains(&errors[0].to_string()),
                "{}",
                found.message
            );
        }
        for errors in [vec![bug.clone()], vec![limit, bug], vec![]] {
            assert!(draw_beyond_limits(&errors).is_none(), "{errors:?}");
        }
    }
}
