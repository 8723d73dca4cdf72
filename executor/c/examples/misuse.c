// What happens to mistakes: every one is told by a status and a text, and none of them harms. Prints what was told.
//
//     misuse BUNDLE
//
// The bundle has a source "x" and a sink "y", both of f32.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zbmd.h"

// The call must answer so; its text is printed.
static void expect(int line, zbmd_status wanted, zbmd_status found) {
    if (found != wanted) {
        fprintf(stderr, "misuse.c:%d: %d instead of %d: %s\n", line, (int)found, (int)wanted,
                zbmd_last_error());
        exit(1);
    }
    if (found != ZBMD_OK && found != ZBMD_TIMEOUT && found != ZBMD_ENDED) {
        printf("%d %s\n", (int)found, zbmd_last_error());
    }
}
#define EXPECT(status, call) expect(__LINE__, ZBMD_##status, call)

int main(int argc, char **argv) {
    if (argc != 2) {
        return ZBMD_USAGE;
    }
    zbmd_bundle *bundle = NULL, *other = NULL;
    zbmd_session *session = NULL;
    zbmd_source *source = NULL;
    zbmd_sink *sink = NULL;
    zbmd_stream stream;
    float tokens[64] = {0};
    size_t moved = 7;

    // Nothing has gone wrong yet.
    if (strlen(zbmd_last_error()) != 0 || strlen(zbmd_version()) == 0) {
        return 1;
    }

    // Files and bundles.
    EXPECT(FILE, zbmd_bundle_open("no/such.zbmd", &bundle));
    EXPECT(USAGE, zbmd_bundle_open(NULL, &bundle));
    EXPECT(USAGE, zbmd_bundle_open(argv[1], NULL));
    EXPECT(REFUSED, zbmd_bundle_from_memory("ZBMX", 4, &bundle));
    EXPECT(USAGE, zbmd_bundle_from_memory(NULL, 4, &bundle));
    EXPECT(MODEL, zbmd_bundle_compile("bad.ron", "Model(name: 7)", NULL, &bundle));
    EXPECT(FILE, zbmd_bundle_compile("no/such.ron", NULL, NULL, &bundle));
    EXPECT(OK, zbmd_bundle_open(argv[1], &bundle));

    // Null and confused handles.
    EXPECT(USAGE, zbmd_session_start(NULL, NULL, &session));
    EXPECT(USAGE, zbmd_session_start((zbmd_bundle *)0x1234567, NULL, &session));
    EXPECT(USAGE, zbmd_session_join((zbmd_session *)bundle));
    EXPECT(USAGE, zbmd_bundle_stream(bundle, 0, NULL));
    EXPECT(ENDED, zbmd_bundle_stream(bundle, 2, &stream));

    // Options that were not initialised, or say nonsense.
    zbmd_run_options options;
    memset(&options, 0, sizeof options);
    EXPECT(USAGE, zbmd_session_start(bundle, &options, &session));
    zbmd_run_options_init(&options);
    options.isolation = "moon";
    EXPECT(USAGE, zbmd_session_start(bundle, &options, &session));
    options.isolation = "processes";
    EXPECT(USAGE, zbmd_session_start(bundle, &options, &session));
    options.isolation = NULL;
    options.supervision = "Supervision(intensity: \"many\")";
    EXPECT(FILE, zbmd_session_start(bundle, &options, &session));

    // Streams: unknown, taken twice, torn tokens, null buffers.
    EXPECT(OK, zbmd_session_start(bundle, NULL, &session));
    EXPECT(USAGE, zbmd_session_source(session, "nobody", &source));
    EXPECT(USAGE, zbmd_session_connect_source(session, "nobody", "udp://127.0.0.1:9"));
    EXPECT(USAGE, zbmd_session_connect_source(session, "y", "udp://127.0.0.1:9"));
    EXPECT(USAGE, zbmd_session_connect_sink(session, "x", "udp://127.0.0.1:9"));
    EXPECT(USAGE, zbmd_session_connect_source(session, "x", "upd://127.0.0.1:9"));
    EXPECT(USAGE, zbmd_session_connect_source(session, "x", NULL));
    EXPECT(USAGE, zbmd_session_connect_source(session, NULL, NULL));
    EXPECT(FILE, zbmd_session_connect_source(session, "x", "paced:no/such.f32?rate=1"));
    EXPECT(USAGE, zbmd_session_live_report(session, NULL, 0, &moved));
    if (moved != strlen("[]")) {
        return 1;
    }
    EXPECT(OK, zbmd_session_source(session, "x", &source));
    EXPECT(USAGE, zbmd_session_source(session, "x", &source));
    EXPECT(USAGE, zbmd_session_connect_source(session, "x", "udp://127.0.0.1:0"));
    EXPECT(OK, zbmd_session_sink(session, "y", &sink));
    EXPECT(USAGE, zbmd_source_push(source, tokens, 5, 0, &moved));
    EXPECT(USAGE, zbmd_source_push(source, NULL, 4, 0, &moved));
    EXPECT(USAGE, zbmd_source_push((zbmd_source *)sink, tokens, 4, 0, &moved));
    EXPECT(USAGE, zbmd_sink_pull(sink, tokens, 6, 0, &moved));
    EXPECT(TIMEOUT, zbmd_sink_pull(sink, tokens, sizeof tokens, 0, &moved));
    EXPECT(TIMEOUT, zbmd_sink_pull(sink, tokens, sizeof tokens, 2000, &moved));
    if (moved != 0) {
        return 1;
    }
    EXPECT(OK, zbmd_source_push(source, tokens, 0, -1, NULL));
    EXPECT(OK, zbmd_source_push(source, tokens, sizeof tokens, -1, NULL));

    // A report before the end, and too little room for it.
    EXPECT(USAGE, zbmd_session_report(session, NULL, 0, NULL));
    EXPECT(OK, zbmd_source_close(source));
    EXPECT(USAGE, zbmd_source_close(source));
    EXPECT(USAGE, zbmd_source_push(source, tokens, sizeof tokens, 0, &moved));
    EXPECT(OK, zbmd_sink_pull(sink, tokens, sizeof tokens, -1, &moved));
    EXPECT(ENDED, zbmd_sink_pull(sink, tokens, sizeof tokens, -1, &moved));
    EXPECT(OK, zbmd_session_join(session));
    EXPECT(OK, zbmd_session_join(session));
    char small[4];
    (void)zbmd_session_report(session, small, sizeof small, &moved);
    if (moved < sizeof small) {
        return 1;
    }
    EXPECT(USAGE, zbmd_session_sink(session, "y", &sink));
    EXPECT(USAGE, zbmd_session_connect_sink(session, "y", "udp://127.0.0.1:9"));
    EXPECT(OK, zbmd_session_close(session));
    EXPECT(USAGE, zbmd_session_close(session));

    // A session that is given up: its streams say so.
    EXPECT(OK, zbmd_session_start(bundle, NULL, &session));
    EXPECT(OK, zbmd_session_source(session, "x", &source));
    EXPECT(OK, zbmd_session_close(session));
    EXPECT(FAULT, zbmd_source_push(source, tokens, sizeof tokens, 0, NULL));
    EXPECT(OK, zbmd_source_close(source));

    // Connected twice, and closed while it is connected.
    EXPECT(OK, zbmd_session_start(bundle, NULL, &session));
    EXPECT(OK, zbmd_session_connect_sink(session, "y", "udp://127.0.0.1:9"));
    EXPECT(USAGE, zbmd_session_connect_sink(session, "y", "udp://127.0.0.1:9"));
    EXPECT(USAGE, zbmd_session_connect_sink((zbmd_session *)bundle, "y", "udp://127.0.0.1:9"));
    EXPECT(OK, zbmd_session_close(session));

    // A session that is stopped takes no more tokens. The sink that was ended long ago is still open.
    EXPECT(OK, zbmd_session_start(bundle, NULL, &session));
    EXPECT(OK, zbmd_session_source(session, "x", &source));
    EXPECT(OK, zbmd_session_stop(session));
    EXPECT(ENDED, zbmd_source_push(source, tokens, sizeof tokens, -1, &moved));
    EXPECT(OK, zbmd_session_join(session));
    EXPECT(OK, zbmd_source_close(source));
    EXPECT(OK, zbmd_sink_close(sink));
    EXPECT(OK, zbmd_session_close(session));
    EXPECT(OK, zbmd_bundle_close(bundle));

    // A place in the table that is used again gives another handle.
    EXPECT(OK, zbmd_bundle_open(argv[1], &other));
    EXPECT(USAGE, zbmd_bundle_close(bundle));
    EXPECT(OK, zbmd_bundle_close(other));
    return 0;
}
