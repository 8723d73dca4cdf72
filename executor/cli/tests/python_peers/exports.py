"""Opens a file that `zbmd-run replay --export` has written, by the Python package of its format, and compares it with what
the run has written.

    exports.py sigmf META TOKENS FLAGS
    exports.py mcap FILE TOKENS FLAGS

TOKENS are of c32, FLAGS of u8: 1 where a token was filled.
"""

import json
import struct
import sys


def runs_of(flags):
    """First and length of each run of ones."""
    runs = []
    for index, flag in enumerate(flags):
        if flag and runs and sum(runs[-1]) == index:
            runs[-1][1] += 1
        elif flag:
            runs.append([index, 1])
    return [tuple(run) for run in runs]


def check_sigmf(path, tokens, filled):
    import sigmf

    recording = sigmf.fromfile(path)
    recording.validate()
    assert recording.read_samples().astype("complex64").tobytes() == tokens, "other samples"
    gaps = recording.get_annotations()
    assert [(gap["core:sample_start"], gap["core:sample_count"]) for gap in gaps] == filled, gaps
    assert {gap["zbmd:gap"] for gap in gaps} == {"lost"}, gaps
    captures = recording.get_captures()
    assert captures[0]["core:global_index"] == 0, captures
    assert captures[0]["core:datetime"].startswith("20"), captures
    assert len(captures) == len(filled) + 1, captures
    assert recording.get_global_field("core:sample_rate") == 1e4


def check_mcap(path, tokens, filled):
    from mcap.reader import make_reader

    with open(path, "rb") as file:
        reader = make_reader(file)
        summary = reader.get_summary()
        channels = {channel.topic: channel for channel in summary.channels.values()}
        assert set(channels) == {"/sources/a", "/sources/flags", "/parameters", "/gaps"}, channels
        source = channels["/sources/a"]
        assert source.message_encoding == "x-zbmd-tokens"
        assert source.metadata["token"] == "c32" and source.metadata["token_bytes"] == "8", source.metadata
        assert source.metadata["rate"] == "10000" and source.metadata["byte_order"] == sys.byteorder, source.metadata

        found, gaps, times = b"", [], []
        for _, channel, message in reader.iter_messages():
            if channel.topic == "/sources/a":
                (first,) = struct.unpack("=Q", message.data[:8])
                assert first == len(found) // 8, first
                found += message.data[8:]
                times.append((first, message.log_time))
            elif channel.topic == "/gaps":
                gaps.append(json.loads(message.data))
        assert found == tokens, "other tokens"
        assert [(gap["first"], gap["length"]) for gap in gaps] == filled, gaps
        assert all(gap["source"] == "a" and gap["cause"] == "lost" for gap in gaps), gaps
        assert times == sorted(times) and times[0][1] > 1.7e18, times
    with open(path, "rb") as file:
        make_reader(file, validate_crcs=True).get_summary()


def main():
    form, path, tokens, flags = sys.argv[1:]
    with open(tokens, "rb") as file:
        tokens = file.read()
    with open(flags, "rb") as file:
        filled = runs_of(file.read())
    assert filled, "nothing was filled"
    {"sigmf": check_sigmf, "mcap": check_mcap}[form](path, tokens, filled)


main()
