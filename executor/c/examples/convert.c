// Runs a bundle with one source and one sink as a filter, in one thread:
//
//     convert BUNDLE < INPUT > OUTPUT
//
// Input and output are raw tokens. Neither a push nor the pull waits while there is something else to do: a run whose
// sink nobody pulls from takes no more tokens, so one thread that waits for room at the source would wait for ever.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zbmd.h"

static void check(zbmd_status status, const char *what) {
    if (status != ZBMD_OK) {
        fprintf(stderr, "convert: %s: %s\n", what, zbmd_last_error());
        exit(status);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: convert BUNDLE < INPUT > OUTPUT\n");
        return ZBMD_USAGE;
    }
    zbmd_bundle *bundle = NULL;
    check(zbmd_bundle_open(argv[1], &bundle), "open");

    zbmd_stream in = {0}, out = {0}, stream;
    for (size_t i = 0; zbmd_bundle_stream(bundle, i, &stream) == ZBMD_OK; i++) {
        fprintf(stderr, "%s %s: tokens of %s, %zu bytes, %llu an iteration, %g a second\n",
                stream.is_source ? "source" : "sink", stream.name, stream.dtype,
                stream.token_bytes, (unsigned long long)stream.tokens_per_iteration,
                stream.sample_rate);
        *(stream.is_source ? &in : &out) = stream;
    }
    if (in.name == NULL || out.name == NULL) {
        fprintf(stderr, "convert: the bundle needs a source and a sink\n");
        return ZBMD_USAGE;
    }

    zbmd_session *session = NULL;
    zbmd_source *source = NULL;
    zbmd_sink *sink = NULL;
    check(zbmd_session_start(bundle, NULL, &session), "start");
    check(zbmd_session_source(session, in.name, &source), "source");
    check(zbmd_session_sink(session, out.name, &sink), "sink");

    // Buffers of whole tokens.
    const size_t room_in = 4096 * in.token_bytes, room_out = 4096 * out.token_bytes;
    char *from = malloc(room_in), *to = malloc(room_out);
    size_t held = 0, moved = 0;
    zbmd_status status = ZBMD_OK;
    while (status != ZBMD_ENDED) {
        if (source != NULL) {
            held += fread(from + held, 1, room_in - held, stdin);
            const size_t whole = held - held % in.token_bytes;
            const int is_last = held < room_in && feof(stdin);
            status = zbmd_source_push(source, from, whole, 0, &moved);
            if (status != ZBMD_OK && status != ZBMD_TIMEOUT) {
                check(status, "push");
            }
            held -= moved;
            memmove(from, from + moved, held);
            if (is_last && held < in.token_bytes) {
                check(zbmd_source_close(source), "close the source");
                source = NULL;
            }
        }
        // A millisecond at most while there is input left, then as long as it takes.
        status = zbmd_sink_pull(sink, to, room_out, source != NULL ? 1000 : -1, &moved);
        if (status != ZBMD_OK && status != ZBMD_TIMEOUT && status != ZBMD_ENDED) {
            check(status, "pull");
        }
        if (fwrite(to, 1, moved, stdout) != moved) {
            perror("convert: write");
            return ZBMD_FILE;
        }
    }
    check(zbmd_session_join(session), "run");

    check(zbmd_sink_close(sink), "close the sink");
    check(zbmd_session_close(session), "close the session");
    check(zbmd_bundle_close(bundle), "close the bundle");
    free(from);
    free(to);
    return 0;
}
