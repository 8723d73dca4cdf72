//! What is believed of a message: raft-rs panics at some that no voter sends.

use crate::Snapshot;
use crate::decision::Decided;
use crate::error::MessageError;
use crate::message::{Message, MessageKind};
use crate::settings::Settings;

/// Where the voter is that gets a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogPosition {
    pub term: u64,
    /// Its last entry.
    pub last: u64,
    pub is_leader: bool,
}

/// Whether a voter of this council can have sent a message.
pub(crate) fn check_message(
    message: &Message,
    settings: &Settings,
    position: LogPosition,
) -> Result<(), MessageError> {
    let (from, to) = (message.from, message.to);
    let (voters, own) = (&settings.voters, settings.own);
    if to != own || from == own || !voters.contains(&from) {
        let voters = voters.len();
        return Err(MessageError::Address {
            from,
            to,
            own,
            voters,
        });
    }
    let nonsense = |what: String| Err(MessageError::Nonsense { from, what });
    if message.term == 0 || message.term == u64::MAX {
        return nonsense(format!("term {}", message.term));
    }

    let last = position.last;
    let is_current = message.term >= position.term;
    match message.kind {
        MessageKind::Heartbeat if is_current && message.commit > last => {
            Err(MessageError::Forgotten {
                from,
                promised: message.commit,
                found: last,
            })
        }
        MessageKind::Append => match entries_fault(message) {
            Some(what) => nonsense(what),
            None => Ok(()),
        },
        // Others raft-rs does not look into.
        MessageKind::AppendAnswer if message.term == position.term && position.is_leader => {
            let is_beyond = !message.is_rejected && message.index > last;
            match is_beyond || message.reject_hint == u64::MAX {
                true => nonsense(format!(
                    "that it has entry {}, the last one is {last}",
                    message.index.max(message.reject_hint)
                )),
                false => Ok(()),
            }
        }
        MessageKind::Snapshot => match snapshot_fault(message) {
            Some(what) => nonsense(what),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The state in a snapshot.
pub(crate) fn decided_of(snapshot: &Snapshot) -> Result<Decided, String> {
    let decided = Decided::decode(&snapshot.state).map_err(|error| error.to_string())?;
    match decided.index == snapshot.index {
        true => Ok(decided),
        false => Err(format!(
            "a snapshot of entry {} with the state of entry {}",
            snapshot.index, decided.index
        )),
    }
}

/// What is wrong with the entries of a message, if anything is.
fn entries_fault(message: &Message) -> Option<String> {
    let mut previous = (message.index, message.log_term);
    for entry in &message.entries {
        let follows = Some(entry.index) == previous.0.checked_add(1);
        if !follows || entry.term < previous.1 || entry.term > message.term {
            return Some(format!(
                "entry {} of term {} after entry {} of term {}, in term {}",
                entry.index, entry.term, previous.0, previous.1, message.term
            ));
        }
        previous = (entry.index, entry.term);
    }
    None
}

fn snapshot_fault(message: &Message) -> Option<String> {
    let Some(snapshot) = &message.snapshot else {
        return Some("a snapshot without a state".to_owned());
    };
    if snapshot.index == 0 || snapshot.term == 0 || snapshot.term > message.term {
        return Some(format!(
            "a snapshot of entry {} of term {}, in term {}",
            snapshot.index, snapshot.term, message.term
        ));
    }
    decided_of(snapshot).err()
}
