"""Flow graphs of GNU Radio: a file to a sink of the network, or a source of the network to a file; samples are c32."""

import os
import signal
import sys
import time

from gnuradio import blocks, gr, network, zeromq

SAMPLE = gr.sizeof_gr_complex
SEQUENCE_NUMBER = 1
PAYLOAD = 1472


def block_of(kind, place, key=""):
    """A source or sink; `place` is a port for UDP, and an endpoint for ZeroMQ."""
    if kind == "udp_sink":
        port = int(place)
        return network.udp_sink(SAMPLE, 1, "127.0.0.1", port, SEQUENCE_NUMBER, PAYLOAD, True)
    if kind == "udp_source":
        port = int(place)
        return network.udp_source(SAMPLE, 1, port, SEQUENCE_NUMBER, PAYLOAD, True, False, False)
    if kind in ("pub_sink", "sub_source"):
        return getattr(zeromq, kind)(SAMPLE, 1, place, key=key)
    return getattr(zeromq, kind)(SAMPLE, 1, place)


def run(kind, place, path, count, rate, key=""):
    """Sends a file at a rate and waits to be killed, or receives so many samples."""
    graph = gr.top_block()
    peer = block_of(kind, place, key)
    if kind.endswith("_sink"):
        paced = blocks.throttle(SAMPLE, float(rate))
        graph.connect(blocks.file_source(SAMPLE, path, False), paced, peer)
        graph.run()
        # ZeroMQ may not have sent all of it yet.
        signal.pause()

    samples = blocks.file_sink(SAMPLE, path, False)
    samples.set_unbuffered(True)
    graph.connect(peer, samples)
    graph.start()
    while os.path.getsize(path) < int(count) * SAMPLE:
        time.sleep(0.01)
    # A source that waits for its network would hold up the graph's end.
    os._exit(0)


run(*sys.argv[1:])
