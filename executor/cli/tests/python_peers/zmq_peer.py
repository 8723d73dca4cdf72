"""Peers of ZeroMQ: `send`, `receive`, `idle`, `clock` (a sender whose tokens tell the time) and `hostile`."""

import array
import sys
import time

import zmq


def opened(kind, how, endpoint):
    """A socket without a limit to its queues that is bound, or connects."""
    socket = zmq.Context.instance().socket(getattr(zmq, kind))
    socket.setsockopt(zmq.LINGER, -1)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    if kind == "SUB":
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    getattr(socket, how)(endpoint)
    if kind == "XPUB":
        # A publisher that is told of its first subscriber.
        assert socket.recv()[:1] == b"\x01"
    return socket


def send(kind, how, endpoint, path, *topics):
    """Sends the tokens of a file: every third message has several frames, every topic has the same tokens."""
    with open(path, "rb") as file:
        data = file.read()
    socket = opened(kind, how, endpoint)
    for number, begin in enumerate(range(0, len(data), 4096)):
        piece = data[begin : begin + 4096]
        frames = [piece[:5], piece[5:6], piece[6:]] if number % 3 == 0 else [piece]
        for topic in topics or [None]:
            prefix = [] if topic is None else [topic.encode()]
            socket.send_multipart(prefix + frames)
    socket.close()
    zmq.Context.instance().term()


def receive(kind, how, endpoint, path, length, topic=None):
    """Writes so many bytes of messages to a file."""
    socket = opened(kind, how, endpoint)
    left = int(length)
    with open(path, "wb") as file:
        while left > 0:
            frames = socket.recv_multipart()
            if topic is not None:
                assert frames.pop(0) == topic.encode(), frames
            assert len(frames) == 1 and len(frames[0]) % 4 == 0, len(frames)
            file.write(frames[0])
            left -= len(frames[0])


def idle(kind, how, endpoint):
    """Takes one message, and reads no more."""
    socket = zmq.Context.instance().socket(getattr(zmq, kind))
    socket.setsockopt(zmq.RCVHWM, 1)
    if kind == "SUB":
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    getattr(socket, how)(endpoint)
    socket.recv()
    with open("is_idle", "w"):
        pass
    time.sleep(600)


def clock(kind, how, endpoint, rate, epoch):
    """Sends f32 tokens that are due, each the number of its sample since the epoch."""
    socket = zmq.Context.instance().socket(getattr(zmq, kind))
    getattr(socket, how)(endpoint)
    rate = float(rate)
    epoch = float(epoch)
    index = int((time.monotonic() - epoch) * rate)
    while True:
        until = int((time.monotonic() - epoch) * rate)
        if until > index:
            socket.send(array.array("f", range(index, until)).tobytes())
        index = until
        time.sleep(0.002)


def hostile(kind, how, endpoint):
    """Messages that are too large, or of lengths that no whole tokens have: 50 of these, and 10 empty ones."""
    for size in [100_000_000, 5_000_000]:
        context = zmq.Context()
        socket = context.socket(getattr(zmq, kind))
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        getattr(socket, how)(endpoint)
        socket.send(bytes(size))
        # It is disconnected for it.
        assert monitor.poll(30_000)
        socket.disable_monitor()
        context.destroy(linger=0)
    socket = opened(kind, how, endpoint)
    for number in range(50):
        socket.send(bytes(4 * number + 1 + number % 3))
    # Longer than what is accepted, in frames that are not.
    socket.send_multipart([bytes(1_000_000)] * 8)
    for _ in range(10):
        socket.send(b"")
    socket.close()
    zmq.Context.instance().term()


if __name__ == "__main__":
    commands = [send, receive, idle, clock, hostile]
    {command.__name__: command for command in commands}[sys.argv[1]](*sys.argv[2:])
