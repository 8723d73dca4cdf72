// Looks at a channel of a run while tokens pass, and prints what it carries:
//
//     probe BUNDLE
//
// The bundle has a source "x" and a sink "y" of f32, and an actor "twice" between them that doubles tokens.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zbmd.h"

#define TOKENS 4096
#define ROUNDS 1000

static void expect(zbmd_status wanted, zbmd_status found, const char *what) {
    if (found != wanted) {
        fprintf(stderr, "probe: %s: %d instead of %d: %s\n", what, (int)found, (int)wanted,
                zbmd_last_error());
        exit(1);
    }
}

static void pass(zbmd_source *source, zbmd_sink *sink, int round) {
    static float x[TOKENS], y[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        x[i] = (float)(round * TOKENS + i);
    }
    expect(ZBMD_OK, zbmd_source_push(source, x, sizeof x, -1, NULL), "push");
    // What is less than a block comes with the next round.
    zbmd_status pulled = zbmd_sink_pull(sink, y, sizeof y, 1000, NULL);
    expect(pulled == ZBMD_TIMEOUT ? ZBMD_TIMEOUT : ZBMD_OK, pulled, "pull");
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: probe BUNDLE\n");
        return ZBMD_USAGE;
    }
    zbmd_bundle *bundle = NULL;
    zbmd_session *session = NULL;
    zbmd_source *source = NULL;
    zbmd_sink *sink = NULL;
    zbmd_probe *probe = NULL;
    zbmd_probe *second = NULL;
    expect(ZBMD_OK, zbmd_bundle_open(argv[1], &bundle), "open");
    expect(ZBMD_OK, zbmd_session_start(bundle, NULL, &session), "start");
    expect(ZBMD_OK, zbmd_session_source(session, "x", &source), "source");
    expect(ZBMD_OK, zbmd_session_sink(session, "y", &sink), "sink");

    static char channels[4096];
    expect(ZBMD_OK, zbmd_session_channels(session, channels, sizeof channels, NULL), "channels");
    printf("channels: x %s, twice %s\n", strstr(channels, "\"name\":\"x\"") ? "yes" : "no",
           strstr(channels, "\"name\":\"twice\"") ? "yes" : "no");
    expect(ZBMD_USAGE, zbmd_session_probe(session, "thrice", &probe), "unknown");
    printf("unknown: %s\n", zbmd_last_error());
    expect(ZBMD_OK, zbmd_session_probe(session, "twice", &probe), "probe");
    expect(ZBMD_TIMEOUT, zbmd_session_probe(session, "x", &second), "a second one");

    // The block that has begun when the probe comes is not copied: tokens pass until one is there.
    static float tokens[1 << 20];
    zbmd_probed_block block;
    zbmd_status found = ZBMD_TIMEOUT;
    for (int round = 0; found == ZBMD_TIMEOUT && round < ROUNDS; round++) {
        pass(source, sink, round);
        found = zbmd_probe_next(probe, tokens, 1, 0, &block);
    }
    expect(ZBMD_USAGE, found, "no room");
    zbmd_probed_block again;
    expect(ZBMD_OK, zbmd_probe_next(probe, tokens, sizeof tokens, 0, &again), "the block again");
    if (again.iteration != block.iteration || again.bytes != block.bytes) {
        fprintf(stderr, "probe: another block\n");
        return 1;
    }
    size_t count = block.bytes / sizeof tokens[0];
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] != 2 * (float)(block.iteration + i)) {
            fprintf(stderr, "probe: token %zu of iteration %llu is %g\n", i,
                    (unsigned long long)block.iteration, tokens[i]);
            return 1;
        }
    }
    printf("a block of %s: as expected\n", count == block.iterations ? "as many tokens as iterations" : "others");

    expect(ZBMD_OK, zbmd_probe_close(probe), "close the probe");
    expect(ZBMD_USAGE, zbmd_probe_close(probe), "close it again");
    expect(ZBMD_OK, zbmd_session_probe(session, "x", &second), "another one then");
    expect(ZBMD_OK, zbmd_source_close(source), "close the source");
    // Nobody pulls what is left, and the run is not to wait for that.
    expect(ZBMD_OK, zbmd_sink_close(sink), "close the sink");
    expect(ZBMD_OK, zbmd_session_join(session), "join");
    while ((found = zbmd_probe_next(second, tokens, sizeof tokens, -1, NULL)) == ZBMD_OK) {
    }
    expect(ZBMD_ENDED, found, "the end");
    expect(ZBMD_OK, zbmd_probe_close(second), "close the second probe");
    expect(ZBMD_OK, zbmd_session_close(session), "close the session");
    expect(ZBMD_OK, zbmd_bundle_close(bundle), "close the bundle");
    return 0;
}
