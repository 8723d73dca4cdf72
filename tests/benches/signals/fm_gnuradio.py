"""The FM receiver of graphs/fm from GNU Radio's blocks: fm_gnuradio.py.

Says "ready" once GNU Radio is there; then each line of the standard input is a number of samples, and the answer the CPU
seconds, of all threads, that receiving them took. Samples are signed bytes here: GNU Radio has a block for these.
"""
import math
import random
import sys
import tempfile
import time

from gnuradio import analog, blocks, filter, gr


def lowpass(cutoff, rate, taps, beta):
    """A windowed sinc, as the model's `design`."""

    def i0(x):
        term = total = 1.0
        for k in range(1, 60):
            term *= (x / (2 * k)) ** 2
            total += term
        return total

    middle = (taps - 1) / 2
    values = []
    for i in range(taps):
        t = i - middle
        sinc = 2 * cutoff / rate if t == 0 else math.sin(2 * math.pi * cutoff / rate * t) / (math.pi * t)
        values.append(sinc * i0(beta * math.sqrt(max(0.0, 1 - (t / middle) ** 2))))
    total = sum(values)
    return [value / total for value in values]


# A file is read in large pieces; GNU Radio's source of a vector would copy byte by byte.
random.seed(1)
recording = tempfile.NamedTemporaryFile()
recording.write(random.randbytes(2 * 1048576))
recording.flush()


def receiver(samples):
    top = gr.top_block()
    source = blocks.file_source(2 * gr.sizeof_char, recording.name, True)
    head = blocks.head(2 * gr.sizeof_char, samples)
    complex_in = blocks.interleaved_char_to_complex(True, 127.5)
    channel = filter.fir_filter_ccf(10, lowpass(120e3, 2.4e6, 272, 7.9))
    discriminate = analog.quadrature_demod_cf(0.5092958178940651)
    flatten = filter.fir_filter_fff(1, [-0.041666667, 1.083333333, -0.041666667])
    low = filter.fir_filter_fff(5, lowpass(19.5e3, 240e3, 161, 8.9))
    alpha = 1 - math.exp(-1 / (50e-6 * 48e3))
    deemphasis = filter.single_pole_iir_filter_ff(alpha)
    sink = blocks.null_sink(gr.sizeof_float)
    top.connect(source, head, complex_in, channel, discriminate, flatten, low, deemphasis, sink)
    return top


print("ready", flush=True)
for line in sys.stdin:
    top = receiver(int(line))
    before = time.process_time()
    top.run()
    print(time.process_time() - before, flush=True)
