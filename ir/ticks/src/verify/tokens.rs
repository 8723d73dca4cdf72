//! Tokens are there before they are read.

use super::messages::{Arrivals, Delivery};
use super::{Errors, Facts, TickError};
use zbmd_ir::{ChannelId, Reader};

pub(super) fn check(facts: &Facts<'_>, arrivals: &Arrivals) -> Result<(), Vec<TickError>> {
    let mut errors = Errors::default();
    for (channel, ch) in facts.graph.channels.iter_enumerated() {
        for reader in &ch.readers {
            check_reader(facts, arrivals, channel, reader, &mut errors);
        }
    }
    errors.result()
}

fn check_reader(
    facts: &Facts<'_>,
    arrivals: &Arrivals,
    channel: ChannelId,
    reader: &Reader,
    errors: &mut Errors,
) {
    let writer = facts.graph.channels[channel].from.actor;
    let actor = reader.to.actor;
    let port = &facts.graph.actors[actor].inputs[reader.to.port as usize];
    let (rate, writer_rate) = (i128::from(port.rate), i128::from(facts.rate(channel)));
    let writer_firings = i128::from(facts.firings[writer]);
    let period = i128::from(facts.plan.period);
    let is_local = facts.node_of(writer) == facts.node_of(actor);

    // When the tokens of each firing of the writer are there; firings in order need not arrive in order.
    let ready_of = |firing: i128| {
        if is_local {
            return Some(facts.end(writer, firing));
        }
        let delivery = Delivery {
            channel,
            to: facts.node_of(actor),
            firing: firing.rem_euclid(writer_firings) as u64,
        };
        let complete = i128::from(arrivals.get(&delivery)?.complete);
        Some(complete + firing.div_euclid(writer_firings) * period)
    };
    for firing in 0..facts.firings[actor] {
        let start = facts.start(actor, firing.into());
        let first = i128::from(firing) * rate - i128::from(reader.delay);
        let last = first + i128::from(port.window) - 1;
        let first_writing = first.div_euclid(writer_rate);
        let last_writing = last.div_euclid(writer_rate);
        // More than an iteration of the writer need not be looked at: what is older was there an iteration earlier.
        let oldest = first_writing.max(last_writing - writer_firings);
        let ready = (oldest..=last_writing).filter_map(ready_of).max();
        if let Some(ready) = ready.filter(|&ready| start < ready) {
            errors.add(TickError::TokensLate {
                actor,
                firing,
                start,
                channel,
                ready,
            });
        }
    }
}
