"""Streams that are URLs: a peer with real sockets, and gaps that are counted to the token."""

import pathlib
import re
import socket
import struct
import threading

import numpy as np
import pytest
import zbmd
from conftest import QUIET

PACKET_TOKENS = 8
PACKETS = 50
TOKENS = PACKETS * PACKET_TOKENS
LOST = 20
"""This datagram is not sent."""


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def source_url(port: int) -> str:
    return f"udp://127.0.0.1:{port}?header=seq&window=0"


def send_all_but_one(port: int) -> None:
    tokens = np.arange(TOKENS, dtype=np.float32).reshape(PACKETS, PACKET_TOKENS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        for number, payload in enumerate(tokens):
            if number != LOST:
                peer.sendto(struct.pack("<Q", number + 1) + payload.tobytes(), ("127.0.0.1", port))


def expected() -> np.ndarray:
    x = np.arange(TOKENS, dtype=np.float32)
    x[LOST * PACKET_TOKENS : (LOST + 1) * PACKET_TOKENS] = 0
    return 2 * x


def check_source_report(report: dict) -> None:
    assert report["stream"] == "x"
    assert report["received"] == TOKENS - PACKET_TOKENS
    assert report["filled"] == {"lost": PACKET_TOKENS}
    assert report["gap_count"] == 1
    assert report["gaps"] == [
        {"first": LOST * PACKET_TOKENS, "length": PACKET_TOKENS, "cause": "lost"}
    ]


def test_a_source_is_a_socket(twice: zbmd.Bundle) -> None:
    port = free_udp_port()
    with twice.start(iterations=TOKENS, **QUIET) as session:
        session.connect("x", source_url(port))
        send_all_but_one(port)
        y = session.pull("y", TOKENS)
        session.join()
        check_source_report(session.live_report()[0])
    assert np.array_equal(y, expected())


def test_a_sink_is_a_socket_too_and_the_model_may_name_both() -> None:
    port = free_udp_port()
    server = socket.create_server(("127.0.0.1", 0))
    model = f"""Model(
        sources: {{ "x": Stream(dtype: f32, file: "{source_url(port)}") }},
        actors: {{ "twice": Gain(2.0) }},
        channels: [(from: "x", to: ["twice"]), (from: "twice", to: ["y"])],
        sinks: {{ "y": Stream(file: "tcp://127.0.0.1:{server.getsockname()[1]}") }},
    )"""
    bundle = zbmd.compile(model, devices=1)
    received = []

    def read_client() -> None:
        client, _ = server.accept()
        with client, client.makefile("rb") as stream:
            received.append(stream.read())

    reading = threading.Thread(target=read_client)
    reading.start()
    with bundle.start(iterations=TOKENS, **QUIET) as session:
        session.connect("y")
        session.connect("x")
        send_all_but_one(port)
        session.join()
        sink, source = session.live_report()
    reading.join()
    server.close()
    check_source_report(source)
    assert (sink["sent"], sink["dropped"]) == (TOKENS, 0)
    assert np.array_equal(np.frombuffer(received[0], np.float32), expected())


def live_threads() -> int:
    tasks = pathlib.Path("/proc/self/task").iterdir()
    return sum(re.match("zbmd live", (task / "comm").read_text()) is not None for task in tasks)


def test_nothing_is_left_running_after_the_block(twice: zbmd.Bundle) -> None:
    port = free_udp_port()
    with twice.start(**QUIET) as session:
        session.connect("x", source_url(port))
        session.connect("y", "udp://127.0.0.1:9")
    assert live_threads() == 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", port))


def test_a_stopped_session_can_be_joined(twice: zbmd.Bundle) -> None:
    with twice.start(**QUIET) as session:
        session.connect("x", source_url(free_udp_port()))
        session.stop()
        assert session.join()["iterations"] == 0
        assert session.live_report()[0]["received"] == 0


def test_mistakes_are_told_and_change_nothing(twice: zbmd.Bundle) -> None:
    port = free_udp_port()
    with twice.start(**QUIET) as session:
        with pytest.raises(zbmd.UsageError, match="there is no stream `z`"):
            session.connect("z", source_url(port))
        with pytest.raises(zbmd.UsageError, match="source `x` has no URL"):
            session.connect("x")
        with pytest.raises(zbmd.UsageError, match="`y`: rtl_tcp://h:1: unknown scheme `rtl_tcp`"):
            session.connect("y", "rtl_tcp://h:1")
        with pytest.raises(zbmd.FileError, match="No such file"):
            session.connect("x", "paced:no/such.f32?rate=1")
        session.connect("x", source_url(port))
        with pytest.raises(zbmd.UsageError, match="source `x` is connected to udp:.* already"):
            session.connect("x", source_url(port))
        with pytest.raises(zbmd.UsageError, match="has been taken before"):
            session.push("x", np.zeros(1, np.float32))
        session.stop()
        session.join()
        with pytest.raises(zbmd.UsageError, match="joined or closed"):
            session.connect("y", "udp://127.0.0.1:9")
