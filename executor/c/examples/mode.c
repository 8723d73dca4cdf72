// Changes the mode of a run, and prints what became of its tokens:
//
//     mode BUNDLE
//
// The bundle has a source "x" and a sink "y" of f32, and the modes "same" (the first), "loud" and "still"; from "loud" a run
// goes to no other.

#include <stdio.h>
#include <stdlib.h>

#include "zbmd.h"

#define TOKENS 300

static void expect(zbmd_status wanted, zbmd_status found, const char *what) {
    if (found != wanted) {
        fprintf(stderr, "mode: %s: %d instead of %d: %s\n", what, (int)found, (int)wanted,
                zbmd_last_error());
        exit(1);
    }
    if (found == ZBMD_USAGE || found == ZBMD_REFUSED) {
        printf("%s: %s\n", what, zbmd_last_error());
    }
}

static void pass(zbmd_source *source, zbmd_sink *sink) {
    float x[TOKENS], y[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        x[i] = (float)i;
    }
    size_t moved = 0;
    expect(ZBMD_OK, zbmd_source_push(source, x, sizeof x, -1, NULL), "push");
    expect(ZBMD_OK, zbmd_sink_pull(sink, y, sizeof y, -1, &moved), "pull");
    printf("y[0] = %g, y[%d] = %g\n", y[0], TOKENS - 1, y[TOKENS - 1]);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: mode BUNDLE\n");
        return ZBMD_USAGE;
    }
    zbmd_bundle *bundle = NULL;
    zbmd_session *session = NULL;
    zbmd_source *source = NULL;
    zbmd_sink *sink = NULL;
    expect(ZBMD_OK, zbmd_bundle_open(argv[1], &bundle), "open");
    expect(ZBMD_OK, zbmd_session_start(bundle, NULL, &session), "start");
    expect(ZBMD_OK, zbmd_session_source(session, "x", &source), "source");
    expect(ZBMD_OK, zbmd_session_sink(session, "y", &sink), "sink");

    pass(source, sink);
    expect(ZBMD_USAGE, zbmd_session_change_mode(session, "lout", -1, NULL), "unknown");
    uint64_t iteration = 0;
    expect(ZBMD_OK, zbmd_session_change_mode(session, "loud", -1, &iteration), "change");
    printf("loud from iteration %llu on\n", (unsigned long long)iteration);
    pass(source, sink);
    expect(ZBMD_REFUSED, zbmd_session_change_mode(session, "same", -1, NULL), "not allowed");

    char text[256];
    expect(ZBMD_OK, zbmd_session_mode(session, text, sizeof text, NULL), "mode");
    printf("%s\n", text);

    expect(ZBMD_OK, zbmd_source_close(source), "close the source");
    expect(ZBMD_OK, zbmd_session_join(session), "join");
    expect(ZBMD_ENDED, zbmd_session_change_mode(session, "still", 0, NULL), "after the end");
    expect(ZBMD_OK, zbmd_sink_close(sink), "close the sink");
    expect(ZBMD_OK, zbmd_session_close(session), "close the session");
    expect(ZBMD_OK, zbmd_bundle_close(bundle), "close the bundle");
    return 0;
}
