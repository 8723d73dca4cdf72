// Compiles a model from its text, and runs it with each device's worker in a process of its own, supervised: the death
// of a worker would cost nothing. Prints the output, one token a line, and then the run's report.
//
//     workers MODEL DEVICES ITERATIONS

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "zbmd.h"

static void check(zbmd_status status, const char *what) {
    if (status != ZBMD_OK) {
        fprintf(stderr, "workers: %s: %s\n", what, zbmd_last_error());
        exit(status);
    }
}

int main(int argc, char **argv) {
    // First of all: a worker is this very program, started anew, and never comes back from here.
    zbmd_serve_if_worker();

    if (argc != 4) {
        fprintf(stderr, "usage: workers MODEL DEVICES ITERATIONS\n");
        return ZBMD_USAGE;
    }
    zbmd_compile_options how;
    zbmd_compile_options_init(&how);
    how.devices = (uint32_t)strtoul(argv[2], NULL, 10);
    zbmd_bundle *bundle = NULL;
    check(zbmd_bundle_compile("model.ron", argv[1], &how, &bundle), "compile");

    zbmd_run_options options;
    zbmd_run_options_init(&options);
    options.isolation = "processes";
    options.supervision = "";
    options.standby = true;
    options.iterations = strtoull(argv[3], NULL, 10);
    options.pin = false;
    options.lock_memory = false;
    zbmd_session *session = NULL;
    check(zbmd_session_start(bundle, &options, &session), "start");

    zbmd_sink *sink = NULL;
    check(zbmd_session_sink(session, "out", &sink), "sink");
    float tokens[256];
    size_t bytes = 0;
    zbmd_status status;
    do {
        status = zbmd_sink_pull(sink, tokens, sizeof tokens, -1, &bytes);
        for (size_t i = 0; i < bytes / sizeof tokens[0]; i++) {
            printf("%.9g\n", (double)tokens[i]);
        }
    } while (status == ZBMD_OK);
    if (status != ZBMD_ENDED) {
        check(status, "pull");
    }
    check(zbmd_session_join(session), "run");

    size_t length = 0;
    (void)zbmd_session_report(session, NULL, 0, &length);
    char *report = malloc(length + 1);
    if (report == NULL) {
        return ZBMD_FAULT;
    }
    check(zbmd_session_report(session, report, length + 1, NULL), "report");
    puts(report);
    free(report);

    check(zbmd_sink_close(sink), "close the sink");
    check(zbmd_session_close(session), "close the session");
    check(zbmd_bundle_close(bundle), "close the bundle");
    return 0;
}
