//! Messages that are not what they should be, from whoever knows the token: nothing makes a voter fall over.

use zbmd_council::decision::{Decision, RunBorder};
use zbmd_council::message::{MAX_MESSAGE_BYTES, Message, MessageKind};
use zbmd_council::node::{Node, Recovered, Settings};
use zbmd_council::{Snapshot, VoterId};

const TICK_NS: u64 = 1_000_000;

fn settings(own: u64) -> Settings {
    Settings {
        own: VoterId(own),
        voters: (1..=3).map(VoterId).collect(),
        tick_ns: TICK_NS,
        compact_after: 4,
        witnesses: Vec::new(),
    }
}

/// Three voters whose writes are done at once.
struct Council {
    nodes: Vec<Node>,
    now_ns: u64,
    /// All messages that were sent.
    sent: Vec<Message>,
}

impl Council {
    fn new() -> Self {
        let node = |own| Node::new(settings(own), Recovered::default(), 0).expect("a council");
        Self {
            nodes: (1..=3).map(node).collect(),
            now_ns: 0,
            sent: Vec::new(),
        }
    }

    /// Lets so many ticks pass, and proposes something in each of them.
    fn run(&mut self, ticks: u64) {
        for tick in 0..ticks {
            self.now_ns += TICK_NS;
            for node in &mut self.nodes {
                node.advance(self.now_ns);
                let border = RunBorder {
                    iterations: tick,
                    ..RunBorder::default()
                };
                // Only the leader can.
                let _ = node.propose(
                    self.now_ns,
                    &Decision::Border {
                        epoch: 1,
                        border,
                        held_by: [].into(),
                    },
                );
            }
            self.settle();
        }
    }

    fn settle(&mut self) {
        loop {
            let mut messages = Vec::new();
            for node in &mut self.nodes {
                messages.extend(settle(node));
            }
            if messages.is_empty() {
                return;
            }
            for message in messages {
                self.sent.push(message.clone());
                let node = &mut self.nodes[message.to.0 as usize - 1];
                node.receive(self.now_ns, message).expect("of a voter");
            }
        }
    }
}

/// What a voter sends, once its writes are done.
fn settle(node: &mut Node) -> Vec<Message> {
    let output = node.poll();
    let mut messages = output.messages;
    if let Some(write) = output.write {
        messages.extend(write.messages);
        node.written(write.number);
    }
    messages
}

/// Numbers that are all different, and always the same.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % below
    }

    fn number(&mut self, near: u64) -> u64 {
        match self.next(6) {
            0 => 0,
            1 => u64::MAX,
            2 => near.wrapping_add(1),
            3 => near.wrapping_sub(1),
            4 => self.next(40),
            _ => near,
        }
    }
}

const KINDS: [MessageKind; 9] = [
    MessageKind::PreVoteRequest,
    MessageKind::PreVoteAnswer,
    MessageKind::VoteRequest,
    MessageKind::VoteAnswer,
    MessageKind::Append,
    MessageKind::AppendAnswer,
    MessageKind::Heartbeat,
    MessageKind::HeartbeatAnswer,
    MessageKind::Snapshot,
];

fn change(message: &mut Message, numbers: &mut Numbers) {
    match numbers.next(11) {
        0 => message.kind = KINDS[numbers.next(9) as usize],
        1 => message.term = numbers.number(message.term),
        2 => message.index = numbers.number(message.index),
        3 => message.log_term = numbers.number(message.log_term),
        4 => message.commit = numbers.number(message.commit),
        5 => message.commit_term = numbers.number(message.commit_term),
        6 => message.reject_hint = numbers.number(message.reject_hint),
        7 => message.is_rejected = !message.is_rejected,
        8 => message.from = VoterId(numbers.next(5)),
        9 => {
            if let Some(entry) = message.entries.first_mut() {
                entry.index = numbers.number(entry.index);
                entry.term = numbers.number(entry.term);
            }
        }
        _ => {
            message.snapshot = Some(Snapshot {
                index: numbers.next(20),
                term: numbers.next(3),
                state: vec![numbers.next(256) as u8; numbers.next(40) as usize],
            });
        }
    }
}

#[test]
fn changed_messages_make_no_voter_fall_over() {
    let mut numbers = Numbers(7);
    let (mut taken, mut refused) = (0, 0);
    for trial in 0..3000 {
        let mut council = Council::new();
        council.run(14 + trial % 20);
        let choice = numbers.next(council.sent.len() as u64) as usize;
        let mut message = council.sent[choice].clone();
        for _ in 0..=numbers.next(3) {
            change(&mut message, &mut numbers);
        }
        // To any of them, whoever it was for.
        message.to = VoterId(1 + numbers.next(3));
        let node = &mut council.nodes[message.to.0 as usize - 1];
        match node.receive(council.now_ns, message) {
            Ok(()) => taken += 1,
            Err(_) => refused += 1,
        }
        for tick in 1..=12 {
            settle(node);
            node.advance(council.now_ns + tick * TICK_NS);
        }
    }
    assert!(
        taken > 300 && refused > 300,
        "{taken} taken, {refused} refused"
    );
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let mut council = Council::new();
    council.run(16);
    for message in &council.sent {
        let bytes = message.encode().expect("encoded");
        assert_eq!(Message::decode(&bytes).as_ref(), Ok(message));
        Message::decode(&bytes[..bytes.len() - 1]).expect_err("cut");
        Message::decode(&[&bytes[..], &[0]].concat()).expect_err("too long");
    }
    let error = Message::decode(&vec![0; MAX_MESSAGE_BYTES + 1]).expect_err("too long");
    assert!(error.to_string().contains("none has more than"), "{error}");
}

/// A voter whose folder was lost says so, rather than falling over as raft-rs does.
#[test]
fn a_voter_that_has_forgotten_what_it_promised_says_so() {
    let mut council = Council::new();
    council.run(30);
    let last_heartbeat = council
        .sent
        .iter()
        .rfind(|message| message.kind == MessageKind::Heartbeat && message.commit > 0);
    let heartbeat = last_heartbeat.expect("there are some").clone();
    let own = heartbeat.to.0;
    let mut node = Node::new(settings(own), Recovered::default(), 0).expect("a council");
    let error = node.receive(TICK_NS, heartbeat).expect_err("forgotten");
    assert!(error.to_string().contains("its folder was lost"), "{error}");
}
