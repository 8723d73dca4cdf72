// Calls a bundle for each block of what it reads, on this thread:
//
//     call BUNDLE [PARAMETER VALUE] < INPUT > OUTPUT
//
// The bundle has one source and one sink, and is for one CPU device. The live parameter has the value from the second call on.

#include <stdio.h>
#include <stdlib.h>

#include "zbmd.h"

static void check(zbmd_status status, const char *what) {
    if (status != ZBMD_OK) {
        fprintf(stderr, "call: %s: %s\n", what, zbmd_last_error());
        exit(status);
    }
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: call BUNDLE [PARAMETER VALUE]\n");
        return ZBMD_USAGE;
    }
    zbmd_bundle *bundle = NULL;
    zbmd_caller *caller = NULL;
    check(zbmd_bundle_open(argv[1], &bundle), argv[1]);
    check(zbmd_bundle_caller(bundle, &caller), "caller");
    check(zbmd_bundle_close(bundle), "close the bundle");

    size_t in_bytes = 0, out_bytes = 0;
    check(zbmd_caller_bytes(caller, 0, &in_bytes), "bytes of the source");
    check(zbmd_caller_bytes(caller, 1, &out_bytes), "bytes of the sink");
    void *in = malloc(in_bytes), *out = malloc(out_bytes);
    if (in == NULL || out == NULL) {
        fprintf(stderr, "call: no memory\n");
        return ZBMD_FILE;
    }

    zbmd_input input = {in, in_bytes};
    zbmd_output output = {out, out_bytes};
    while (fread(in, 1, in_bytes, stdin) == in_bytes) {
        check(zbmd_caller_call(caller, &input, 1, &output, 1), "call");
        fwrite(out, 1, out_bytes, stdout);
        if (argc == 4) {
            double number = strtod(argv[3], NULL);
            zbmd_parameter_value value = {argv[2], &number, 1};
            check(zbmd_caller_set(caller, &value, 1), "set");
        }
    }

    // A mistake does no harm.
    input.bytes -= 1;
    zbmd_status status = zbmd_caller_call(caller, &input, 1, &output, 1);
    fprintf(stderr, "too short: %d: %s\n", (int)status, zbmd_last_error());
    status = zbmd_caller_call(caller, &input, 0, &output, 1);
    fprintf(stderr, "no input: %d: %s\n", (int)status, zbmd_last_error());
    check(zbmd_caller_close(caller), "close");
    status = zbmd_caller_call(caller, &input, 1, &output, 1);
    fprintf(stderr, "closed: %d: %s\n", (int)status, zbmd_last_error());
    free(in);
    free(out);
    return 0;
}
