// Runs a bundle with one source and one sink between two URLs:
//
//     live BUNDLE SOURCE-URL SINK-URL ITERATIONS
//
// Prints "connected" when the source listens, and at the end what the two streams did, as JSON.

#include <stdio.h>
#include <stdlib.h>

#include "zbmd.h"

static void check(zbmd_status status, const char *what) {
    if (status != ZBMD_OK) {
        fprintf(stderr, "live: %s: %s\n", what, zbmd_last_error());
        exit(status);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: live BUNDLE SOURCE-URL SINK-URL ITERATIONS\n");
        return ZBMD_USAGE;
    }
    zbmd_bundle *bundle = NULL;
    check(zbmd_bundle_open(argv[1], &bundle), "open");
    const char *source_name = NULL, *sink_name = NULL;
    zbmd_stream stream;
    for (size_t i = 0; zbmd_bundle_stream(bundle, i, &stream) == ZBMD_OK; i++) {
        *(stream.is_source ? &source_name : &sink_name) = stream.name;
    }

    // Without a number of iterations it goes on until zbmd_session_stop.
    zbmd_run_options options;
    zbmd_run_options_init(&options);
    options.iterations = strtoull(argv[4], NULL, 10);
    zbmd_session *session = NULL;
    check(zbmd_session_start(bundle, &options, &session), "start");
    check(zbmd_session_connect_sink(session, sink_name, argv[3]), "connect the sink");
    check(zbmd_session_connect_source(session, source_name, argv[2]), "connect the source");
    printf("connected\n");
    fflush(stdout);
    check(zbmd_session_join(session), "run");

    // Asked for twice: how long it is, and then the text.
    size_t length = 0;
    (void)zbmd_session_live_report(session, NULL, 0, &length);
    char *report = malloc(length + 1);
    check(zbmd_session_live_report(session, report, length + 1, NULL), "report");
    printf("%s\n", report);
    free(report);

    check(zbmd_session_close(session), "close the session");
    check(zbmd_bundle_close(bundle), "close the bundle");
    return 0;
}
