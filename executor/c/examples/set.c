// Changes live parameters of a run, and prints what became of its tokens:
//
//     set BUNDLE
//
// The bundle has a source "x" and a sink "y" of f32, and the live parameters "gain" (0 to 10) and "taps" (two numbers).

#include <stdio.h>
#include <stdlib.h>

#include "zbmd.h"

#define TOKENS 300

static void expect(zbmd_status wanted, zbmd_status found, const char *what) {
    if (found != wanted) {
        fprintf(stderr, "set: %s: %d instead of %d: %s\n", what, (int)found, (int)wanted,
                zbmd_last_error());
        exit(1);
    }
    if (found == ZBMD_USAGE || found == ZBMD_REFUSED) {
        printf("%s: %s\n", what, zbmd_last_error());
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: set BUNDLE\n");
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

    // Both together, exactly at token 100 of x.
    double gain = 2, taps[] = {0.5, 0.25}, loud = 11, both[] = {1, 2};
    zbmd_parameter_value values[] = {{"gain", &gain, 1}, {"taps", taps, 2}};
    uint64_t position = 0;
    expect(ZBMD_OK, zbmd_session_set(session, values, 2, "x", 100, &position), "set");
    printf("from token %llu on\n", (unsigned long long)position);

    // Of these, none is set.
    zbmd_parameter_value wrong[] = {{"gain", &gain, 1}, {"gain", &loud, 1}};
    expect(ZBMD_REFUSED, zbmd_session_set(session, wrong + 1, 1, NULL, 0, NULL), "too loud");
    wrong[1] = (zbmd_parameter_value){"gain", both, 2};
    expect(ZBMD_REFUSED, zbmd_session_set(session, wrong + 1, 1, NULL, 0, NULL), "two numbers");
    wrong[1] = wrong[0];
    expect(ZBMD_USAGE, zbmd_session_set(session, wrong, 2, NULL, 0, NULL), "twice");
    wrong[1].name = "pain";
    expect(ZBMD_USAGE, zbmd_session_set(session, wrong + 1, 1, NULL, 0, NULL), "unknown");
    expect(ZBMD_USAGE, zbmd_session_set(session, values, 2, "z", 0, NULL), "no source");
    expect(ZBMD_USAGE, zbmd_session_set(session, NULL, 2, NULL, 0, NULL), "no values");

    char list[256];
    expect(ZBMD_OK, zbmd_session_parameters(session, list, sizeof list, NULL), "list");
    printf("%s\n", list);

    float x[TOKENS], y[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        x[i] = (float)i;
    }
    size_t moved = 0;
    expect(ZBMD_OK, zbmd_source_push(source, x, sizeof x, -1, NULL), "push");
    expect(ZBMD_OK, zbmd_source_close(source), "close the source");
    expect(ZBMD_OK, zbmd_sink_pull(sink, y, sizeof y, -1, &moved), "pull");
    for (int i = 98; i < 102; i++) {
        printf("y[%d] = %g\n", i, y[i]);
    }

    expect(ZBMD_OK, zbmd_session_join(session), "join");
    expect(ZBMD_ENDED, zbmd_session_set(session, values, 2, NULL, 0, NULL), "after the end");
    expect(ZBMD_OK, zbmd_sink_close(sink), "close the sink");
    expect(ZBMD_OK, zbmd_session_close(session), "close the session");
    expect(ZBMD_OK, zbmd_bundle_close(bundle), "close the bundle");
    return 0;
}
