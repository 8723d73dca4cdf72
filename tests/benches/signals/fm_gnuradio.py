"""The FM receiver of graphs/fm from GNU Radio's blocks: fm_gnuradio.py.

Says "ready" once GNU Radio is there; then each line of the standard input is a number of samples, and the answer the CPU
seconds, of all threads, that receiving them took. Samples are signed bytes here: GNU Radio has a block for these.
"""
import random
import sys
import time

from gnuradio import analog, blocks, filter, gr



def lowpass(cutoff, rate, taps, beta):
    """A windowed sinc, as the model's `design`."""
    import math

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


random.seed(1)
bytes_in = [random.randrange(-128, 128) for _ in range(2 * 65536)]


def receiver(samples):
    import math

    top = gr.top_block()
    source = blocks.vector_source_b([b & 0xFF for b in bytes_in], True)
    head = blocks.head(gr.sizeof_char, 2 * samples)
    complex_in = blocks.interleaved_char_to_complex(False, 127.5)
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
