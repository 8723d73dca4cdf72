//! What wires carry, how they wait, and what they refuse.

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use common::{
    EPOCH, Places, end, ring, socket_pair, stop_event, tls_pair, tokens_header, ucx_pair,
};
use zbmd_wire::connection::Connection;
use zbmd_wire::error::{FrameError, UcxError, WireError};
use zbmd_wire::frame::{FrameHeader, FrameKind, MAX_PAYLOAD_BYTES, sum_of};
use zbmd_wire::wires::{RingSpec, Side, WireStop, Wires};
use zbmd_wire::{Deadline, carry_over_ucx, find_ucx};

const LONG: Duration = Duration::from_secs(20);

fn byte_of(ring: usize, block: u64, index: usize) -> u8 {
    (ring as u64 * 31 + block * 7 + index as u64) as u8
}

/// Sends `blocks` blocks over all rings in the order of the sender, reads them in the order of the receiver, and compares: between
/// workers that share a core with others, and with cores of their own.
fn carry(rings: Vec<RingSpec>, blocks: u64, receive_order: &[usize], checks_payloads: bool) {
    for have_own_cores in [false, true] {
        for (sender_end, receiver_end) in connection_pairs() {
            let mut sender = end(sender_end, Side::Sends, &rings, checks_payloads);
            let mut receiver = end(receiver_end, Side::Receives, &rings, checks_payloads);
            if have_own_cores {
                (sender, receiver) = (sender.with_own_core(), receiver.with_own_core());
            }
            carry_over(sender, receiver, &rings, blocks, receive_order);
        }
    }
}

/// Both ends of a connection, plain, in TLS, and over UCX where that is installed.
fn connection_pairs() -> Vec<(Connection, Connection)> {
    let (dialed, accepted) = socket_pair();
    let mut pairs = vec![(dialed.into(), accepted.into()), tls_pair()];
    pairs.extend(ucx_pair());
    pairs
}

fn carry_over(
    mut sender: Wires,
    mut receiver: Wires,
    rings: &[RingSpec],
    blocks: u64,
    receive_order: &[usize],
) {
    let block_bytes = (rings[0].block_tokens * rings[0].token_bytes) as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut places = Places::of(rings);
            for block in 0..blocks {
                for (index, ring) in rings.iter().enumerate() {
                    send_block(&mut sender, index, ring, block, &mut places);
                }
            }
            sender
                .finish(&mut places)
                .expect("the receiver reads it all");
        });

        let mut places = Places::of(rings);
        for block in 0..blocks {
            for &index in receive_order {
                let tokens = (block + 1) * rings[index].block_tokens;
                let waited =
                    receiver.wait_published(index, tokens, Deadline::after(LONG), &mut places);
                waited.expect("they come");
                let found = places.block(index, block);
                let expected: Vec<u8> =
                    (0..block_bytes).map(|i| byte_of(index, block, i)).collect();
                assert_eq!(found, expected, "ring {index}, block {block}");
                receiver.release(index, block + 1).expect("released");
            }
        }
        receiver.finish(&mut places).expect("the sender closes");
        assert_eq!(receiver.foreign_frames(), 0);
    });
}

fn send_block(wires: &mut Wires, index: usize, ring: &RingSpec, block: u64, places: &mut Places) {
    let needed = (block + 1).saturating_sub(ring.blocks);
    let waited = wires.wait_released(index, needed, Deadline::after(LONG), places);
    waited.expect("released");
    let whole = [ring.block_tokens];
    let sends: &[u64] = if ring.sends.is_empty() {
        &whole
    } else {
        &ring.sends
    };
    let mut first = 0;
    for tokens in sends {
        let from = (first * ring.token_bytes) as usize;
        let until = ((first + tokens) * ring.token_bytes) as usize;
        let payload: Vec<u8> = (from..until).map(|i| byte_of(index, block, i)).collect();
        first += tokens;
        let count = block * ring.block_tokens + first;
        wires.send(index, count, &payload, places).expect("sent");
    }
}

#[test]
fn tokens_arrive_in_their_places() {
    for checks_payloads in [false, true] {
        // One ring whose frames are known, which are read with their headers; and one whose frames are not.
        carry(vec![ring(3, 4, 16, &[16])], 500, &[0], checks_payloads);
        carry(
            vec![ring(3, 4, 16, &[3, 12, 1])],
            300,
            &[0],
            checks_payloads,
        );
        carry(vec![ring(3, 4, 16, &[])], 300, &[0], checks_payloads);
        // Several rings, read in another order than they are sent in.
        let rings = vec![
            ring(0, 8, 4, &[4]),
            ring(7, 8, 4, &[2, 2]),
            ring(2, 8, 4, &[]),
        ];
        carry(rings, 300, &[2, 0, 1], checks_payloads);
    }
}

#[test]
fn blocks_that_are_longer_than_a_sockets_buffer_arrive() {
    carry(vec![ring(0, 1, 9 << 20, &[9 << 20])], 4, &[0], true);
}

/// Both send more than the sockets hold before either reads: each takes in what comes while it waits for room.
#[test]
fn two_workers_that_both_send_first_do_not_block_each_other() {
    const BLOCK: u64 = 24 << 20;
    let worker = |outgoing: Connection, incoming: Connection| {
        let rings = [ring(0, 1, BLOCK, &[BLOCK]), ring(1, 1, BLOCK, &[BLOCK])];
        let mut wires = Wires::new(EPOCH, stop_event(), false);
        let peer = || "the other side".to_owned();
        wires
            .add(outgoing, peer(), Side::Sends, rings[..1].to_vec())
            .expect("added");
        wires
            .add(incoming, peer(), Side::Receives, rings[..1].to_vec())
            .expect("added");
        let mut places = Places::of(&rings);
        let payload = vec![9; BLOCK as usize];
        wires.send(0, BLOCK, &payload, &mut places).expect("sent");
        let waited = wires.wait_published(1, BLOCK, Deadline::after(LONG), &mut places);
        waited.expect("it comes");
        assert!(places.block(1, 0).iter().all(|byte| *byte == 9));
        wires.release(1, 1).expect("released");
        wires.finish(&mut places).expect("finished");
    };
    for ((there, there_end), (back_end, back)) in
        connection_pairs().into_iter().zip(connection_pairs())
    {
        std::thread::scope(|scope| {
            scope.spawn(|| worker(there, back));
            worker(back_end, there_end);
        });
    }
}

/// The other side goes on over TCP, says something absurd, or goes away: no connection is made over UCX, and each says why.
#[test]
fn a_side_without_ucx_is_an_error() {
    if let Err(why) = find_ucx() {
        println!("skipped: {why}");
        return;
    }
    let try_to_carry = |socket: TcpStream| {
        let carried = carry_over_ucx(&mut [socket.into()], Deadline::after(LONG), || false);
        carried.expect_err("nobody is there").1
    };

    let frame = tokens_header(3, 16, 64).encode(0);
    let absurd = [b"ZBMDU\0\0\x01".as_slice(), &u32::MAX.to_le_bytes()].concat();
    for bytes in [&frame[..], &absurd] {
        let (mut peer, socket) = socket_pair();
        peer.write_all(bytes).expect("sent");
        let error = try_to_carry(socket);
        assert!(matches!(error, UcxError::NotUcx), "{error}");
    }

    let (peer, socket) = socket_pair();
    drop(peer);
    let error = try_to_carry(socket);
    assert!(matches!(error, UcxError::System(_)), "{error}");
}

#[test]
fn a_stop_and_a_deadline_end_every_wait() {
    for has_own_core in [false, true] {
        end_waits(has_own_core);
    }
}

fn end_waits(has_own_core: bool) {
    let rings = [ring(0, 1, 1, &[1])];
    let (_kept, socket) = socket_pair();
    let stop = stop_event();
    let mut wires = Wires::new(EPOCH, stop.try_clone().expect("a copy"), false);
    if has_own_core {
        wires = wires.with_own_core();
    }
    let peer = "the other side".to_owned();
    wires
        .add(socket, peer, Side::Receives, rings.to_vec())
        .expect("added");
    let mut places = Places::of(&rings);
    let late = wires.wait_published(0, 1, Deadline::after(Duration::from_millis(5)), &mut places);
    assert!(matches!(late, Err(WireStop::TimedOut)), "{late:?}");

    std::thread::scope(|scope| {
        scope.spawn(|| rustix::io::write(&stop, &1u64.to_ne_bytes()).expect("written"));
        let stopped = wires.wait_published(0, 1, Deadline::NEVER, &mut places);
        assert!(matches!(stopped, Err(WireStop::Stopped)), "{stopped:?}");
    });
}

#[test]
fn a_peer_that_is_gone_is_an_error_for_who_waits_for_it() {
    let rings = [ring(0, 1, 1, &[1])];
    for (side, (peer, connection)) in [Side::Receives, Side::Sends]
        .into_iter()
        .flat_map(|side| connection_pairs().into_iter().map(move |pair| (side, pair)))
    {
        let mut wires = end(connection, side, &rings, false);
        let mut places = Places::of(&rings);
        drop(peer);
        wires.pump(&mut places).expect("nobody waits for it");
        let deadline = Deadline::after(LONG);
        let waited = match side {
            Side::Receives => wires.wait_published(0, 1, deadline, &mut places),
            Side::Sends => wires.wait_released(0, 1, deadline, &mut places),
        };
        let is_gone = matches!(waited, Err(WireStop::Failed(WireError::Gone { .. })));
        assert!(is_gone, "{side:?}: {waited:?}");
    }
}

/// What a worker at `side` makes of these bytes on its connection.
fn refusal(side: Side, rings: &[RingSpec], checks_payloads: bool, bytes: &[u8]) -> FrameError {
    let (mut peer, socket) = socket_pair();
    let mut wires = end(socket, side, rings, checks_payloads);
    let mut places = Places::of(rings);
    peer.write_all(bytes).expect("sent");
    drop(peer);
    let deadline = Deadline::after(LONG);
    let waited = match side {
        Side::Receives => wires.wait_published(0, u64::MAX, deadline, &mut places),
        Side::Sends => wires.wait_released(0, u64::MAX, deadline, &mut places),
    };
    match waited {
        Err(WireStop::Failed(WireError::Frame { source, .. })) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn frames_that_do_not_fit_are_refused() {
    let known = [ring(3, 4, 16, &[16])];
    let unknown = [ring(3, 4, 16, &[])];
    let frame = |header: FrameHeader, payload: &[u8]| [&header.encode(0), payload].concat();
    let whole = tokens_header(3, 16, 64);

    let ring_9 = frame(tokens_header(9, 16, 64), &[0; 64]);
    let found = refusal(Side::Receives, &known, false, &ring_9);
    assert_eq!(found, FrameError::Ring { ring: 9, rings: 1 });

    // More tokens than the block has, none at all, and another number than the calendar sends.
    for (rings, count) in [(&unknown, 17), (&unknown, 0), (&known, 8)] {
        let bytes = frame(tokens_header(3, count, 4 * count as u32), &[]);
        let found = refusal(Side::Receives, rings, false, &bytes);
        assert!(matches!(found, FrameError::Count { .. }), "{found}");
    }

    let short = frame(tokens_header(3, 16, 60), &[0; 60]);
    let found = refusal(Side::Receives, &known, false, &short);
    let expected = FrameError::Bytes {
        ring: 3,
        tokens: 16,
        found: 60,
        expected: 64,
    };
    assert_eq!(found, expected);

    let absurd = frame(tokens_header(3, 16, MAX_PAYLOAD_BYTES + 1), &[]);
    let found = refusal(Side::Receives, &known, false, &absurd);
    assert!(matches!(found, FrameError::Length { .. }), "{found}");

    // The third block has no place before the first is released.
    let mut ahead = Vec::new();
    for block in 1..=3 {
        ahead.extend(frame(tokens_header(3, 16 * block, 64), &[0; 64]));
    }
    let found = refusal(Side::Receives, &known, false, &ahead);
    let expected = FrameError::Count {
        ring: 3,
        before: 32,
        count: 48,
        most: 32,
    };
    assert_eq!(found, expected);

    let cut = frame(whole, &[0; 10]);
    let found = refusal(Side::Receives, &known, false, &cut);
    assert_eq!(
        found,
        FrameError::Cut {
            found: 42,
            expected: 96
        }
    );
    let found = refusal(Side::Receives, &known, false, &cut[..31]);
    assert_eq!(
        found,
        FrameError::Cut {
            found: 31,
            expected: 32
        }
    );

    let wrong_side = FrameHeader {
        kind: FrameKind::Credit,
        bytes: 0,
        ..whole
    };
    let found = refusal(Side::Receives, &known, false, &frame(wrong_side, &[]));
    assert!(matches!(found, FrameError::Direction { .. }), "{found}");
    let found = refusal(Side::Sends, &known, false, &frame(whole, &[0; 64]));
    assert!(matches!(found, FrameError::Direction { .. }), "{found}");
    // A credit for a block that was never sent.
    let found = refusal(Side::Sends, &known, false, &frame(wrong_side, &[]));
    assert!(
        matches!(found, FrameError::Count { most: 0, .. }),
        "{found}"
    );
}

#[test]
fn a_payload_that_was_changed_on_the_way_is_found() {
    let rings = [ring(3, 4, 16, &[16])];
    let mut payload = [7; 64];
    let header = tokens_header(3, 16, 64).encode(sum_of(&payload));
    payload[20] ^= 1;
    let bytes = [&header[..], &payload].concat();
    let found = refusal(Side::Receives, &rings, true, &bytes);
    assert!(
        matches!(found, FrameError::Check { ring: 3, .. }),
        "{found}"
    );
}

#[test]
fn frames_of_another_epoch_are_counted_and_dropped() {
    for sends in [&[16][..], &[]] {
        let rings = [ring(3, 4, 16, sends)];
        let (mut peer, socket) = socket_pair();
        let mut wires = end(socket, Side::Receives, &rings, false);
        let mut places = Places::of(&rings);
        let mut bytes = Vec::new();
        for epoch in [EPOCH - 1, EPOCH + 1, EPOCH] {
            let header = FrameHeader {
                epoch,
                ..tokens_header(3, 16, 64)
            };
            bytes.extend(header.encode(0));
            bytes.extend([epoch as u8; 64]);
        }
        peer.write_all(&bytes).expect("sent");
        let waited = wires.wait_published(0, 16, Deadline::after(LONG), &mut places);
        waited.expect("the last is ours");
        assert_eq!(wires.foreign_frames(), 2);
        assert_eq!(places.block(0, 0), [EPOCH as u8; 64]);
    }
}
