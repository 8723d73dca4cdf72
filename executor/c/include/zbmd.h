// The C interface of zbmd: see executor/c/src/lib.rs for how it is built, executor/c/examples for how it is used.
//
// Made by cbindgen from the library's source: do not edit.
//
// Handles (zbmd_bundle, zbmd_caller, zbmd_session, zbmd_source, zbmd_sink, zbmd_probe) are looked up, never followed: a
// handle that is NULL, closed or of another kind is an error, ZBMD_USAGE. What you open you close; every handle on its
// own, in any order.
//
// Threads: any handle may go from one thread to another. Bundles and sessions may be used by several threads at once.
// A caller, a source, a sink or a probe serves one thread at a time: another one that comes meanwhile is told
// ZBMD_USAGE. Texts of errors belong to the thread that the error happened on.
//
// Memory: buffers and texts that you pass are yours, and need only last for the call. Nothing that you are given has
// to be freed; each function says how long it lasts.
//
// Processes: after fork(), only the parent may go on with its handles. A child that runs another program at once is
// fine.

#ifndef ZBMD_H
#define ZBMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What a function returns. The classes of errors are the exit codes of `zbmd-run` and `zbmdc`.
typedef enum zbmd_status {
    // All went well, and wholly: every byte that was asked for was moved.
    ZBMD_OK = 0,
    // The call is wrong: a handle that is null, closed, of another kind or in use by another thread, a null buffer, an
    // unknown name, bytes that are no whole tokens.
    ZBMD_USAGE = 2,
    // The model or the machine is wrong; the text says where.
    ZBMD_MODEL = 3,
    // A file cannot be read or written, or a declaration is wrong.
    ZBMD_FILE = 4,
    // The bundle is refused, or a device that it was made for is not here.
    ZBMD_REFUSED = 5,
    // A kernel or a device failed during the run, or there is too little memory.
    ZBMD_FAULT = 6,
    // The supervisor gave up in good order.
    ZBMD_GAVE_UP = 7,
    // No error: the time is over. Fewer bytes were moved than asked for; how many is told.
    ZBMD_TIMEOUT = 8,
    // No error: there is no more. The stream has ended, or the list.
    ZBMD_ENDED = 9,
    // A bug of zbmd: please report it.
    ZBMD_BUG = 70,
} zbmd_status;

// A program that is ready to run, any number of times.
typedef struct zbmd_bundle zbmd_bundle;

// A bundle that is called.
typedef struct zbmd_caller zbmd_caller;

// Looks at a channel of a session.
typedef struct zbmd_probe zbmd_probe;

// One run of a bundle.
typedef struct zbmd_session zbmd_session;

// Where the tokens of a sink come out. One thread at a time may use it.
typedef struct zbmd_sink zbmd_sink;

// Where the tokens of a source go in. One thread at a time may use it.
typedef struct zbmd_source zbmd_source;

// How to compile. Initialise it with `zbmd_compile_options_init`, then change what you want.
typedef struct zbmd_compile_options {
    // Set by `zbmd_compile_options_init`.
    size_t struct_size;
    // A machine file; or NULL for this computer.
    const char *machine;
    // Without a machine file: so many like CPU devices; or 0 for those of this computer.
    uint32_t devices;
    // Without a machine file: also for the GPUs of this computer.
    bool gpus;
    // Losses of devices to make plans for: `none`, `single`, `hosts` or `pairs`; NULL is `none`.
    const char *contingencies;
    // What the model keeps between iterations comes from sources and goes to sinks, for whoever carries the states of
    // many sequences.
    bool sequences;
} zbmd_compile_options;

// How to run. Initialise it with `zbmd_run_options_init`, then change what you want.
typedef struct zbmd_run_options {
    // Set by `zbmd_run_options_init`.
    size_t struct_size;
    // Iterations of the model at most; 0 for as many as the sources have tokens for.
    uint64_t iterations;
    // Bytes that each stream's queue holds at least.
    uint64_t queue_bytes;
    // Where workers run: `threads` of this process, `processes`, or `gpus`: GPUs in processes and CPU devices in
    // threads. NULL is `threads`.
    const char *isolation;
    // What a worker's process is: `zbmd-run`, or another program that calls `zbmd_serve_if_worker`, of the very build
    // that this library is of. NULL is this very program, which then must have called `zbmd_serve_if_worker` itself.
    const char *worker;
    // Go on when workers are lost, as this text in RON declares; an empty text declares nothing, and all is by
    // default. NULL: any loss ends the run.
    const char *supervision;
    // At the end, fill up what is less than an iteration with zeros and run it too.
    bool pad;
    // Tie each worker to its device's cores. Set by `zbmd_run_options_init`.
    bool pin;
    // Ask the system to keep the run's memory from being paged out. Set by `zbmd_run_options_init`.
    bool lock_memory;
    // Check that what arrives over rings is what was sent.
    bool checksums;
    // Of each worker that is a process, keep a second one ready to take its place.
    bool standby;
} zbmd_run_options;

// A source or a sink of a bundle. Its texts and its shape are valid until the bundle is closed.
typedef struct zbmd_stream {
    // Its name.
    const char *name;
    // Whether tokens go in; they come out otherwise.
    bool is_source;
    // Type of a token's elements: `f32`, `f64`, `f16`, `bf16`, `i8`, `u8`, `i16`, `i32`, `i64`, `bool` (a byte, 0 or
    // 1), or `c32` (two `f32`, real part first); in the machine's byte order.
    const char *dtype;
    // Dimensions of a token, slowest first, so many as `rank`.
    const uint32_t *shape;
    // 0 for a scalar.
    size_t rank;
    // Bytes of a token.
    size_t token_bytes;
    // Whether a token is a burst: of `shape[0]` items of the shape `shape[1..]` only some are there. It begins with the
    // index of the first item's sample (`int64_t`), the number of items (`uint32_t`) and four bytes of zero; the items
    // follow, then zeros.
    bool is_burst;
    // Tokens of one iteration of the model, of its first mode if it has several: less than that is not processed.
    uint64_t tokens_per_iteration;
    // Tokens of one second, or 0 if the model does not say.
    double sample_rate;
} zbmd_stream;

// The tokens of a source in a call.
typedef struct zbmd_input {
    // Where they are.
    const void *tokens;
    // As many as `zbmd_caller_bytes` says.
    size_t bytes;
} zbmd_input;

// Where a call puts the tokens of a sink.
typedef struct zbmd_output {
    // The place.
    void *tokens;
    // As many as `zbmd_caller_bytes` says.
    size_t bytes;
} zbmd_output;

// A live parameter and a value for it.
typedef struct zbmd_parameter_value {
    // Its name.
    const char *name;
    // Its value: one number, or those of a list, whose length is the model's.
    const double *numbers;
    // How many there are.
    size_t count;
} zbmd_parameter_value;

// A block of a channel.
typedef struct zbmd_probed_block {
    // The run's first iteration of the block.
    uint64_t iteration;
    // Iterations of the block.
    uint64_t iterations;
    // Bytes of its tokens.
    size_t bytes;
} zbmd_probed_block;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The text of the last error of this thread, for people; empty if there was none. It is UTF-8, and valid until the
// next function of zbmd fails on this thread.
const char *zbmd_last_error(void);

// The version of this library, such as `0.1.0`. Valid for ever.
const char *zbmd_version(void);

// Sets options to what is right for most. Null is allowed, and does nothing.
//
// # Safety
// `options` is null, or a `zbmd_compile_options` can be written there.
void zbmd_compile_options_init(struct zbmd_compile_options *options);

// Sets options to what is right for most. Null is allowed, and does nothing.
//
// # Safety
// `options` is null, or a `zbmd_run_options` can be written there.
void zbmd_run_options_init(struct zbmd_run_options *options);

// Does a worker's work, and then ends the process, if the process was started as a worker; returns at once if not.
// A program that runs workers in processes calls it first of all in `main`: its workers are itself, started anew.
void zbmd_serve_if_worker(void);

// Opens a bundle that `zbmdc` or `zbmd_bundle_save` wrote, and checks it. The file is mapped: it may be replaced, but
// not changed in place, while the bundle is open or a session of it runs.
//
// # Safety
// `file` ends with a NUL; a `zbmd_bundle *` can be written to `bundle`.
enum zbmd_status zbmd_bundle_open(const char *file,
                                  struct zbmd_bundle **bundle);

// Opens a bundle that lies in memory, which may be given back afterwards: it is copied.
//
// # Safety
// `bytes` bytes can be read at `data`; a `zbmd_bundle *` can be written to `bundle`.
enum zbmd_status zbmd_bundle_from_memory(const void *data,
                                         size_t bytes,
                                         struct zbmd_bundle **bundle);

// Compiles a model. `model` is a file, `.ron` or `.onnx`; with a `text` that is not NULL, a model in RON, `model` only
// stands for it in messages, and files that the text names are looked for beside it. `options` may be NULL.
//
// A library that was built without the feature `compile` answers `ZBMD_USAGE`.
//
// # Safety
// `model` and `text` end with a NUL; `options` was initialised by `zbmd_compile_options_init`; a `zbmd_bundle *` can
// be written to `bundle`.
enum zbmd_status zbmd_bundle_compile(const char *model,
                                     const char *text,
                                     const struct zbmd_compile_options *options,
                                     struct zbmd_bundle **bundle);

// Writes a bundle; the file appears whole or not at all.
//
// # Safety
// `file` ends with a NUL.
enum zbmd_status zbmd_bundle_save(const struct zbmd_bundle *bundle, const char *file);

// Tells of a source or a sink: first all sources and then all sinks, from 0 on; `ZBMD_ENDED` after the last.
//
// # Safety
// A `zbmd_stream` can be written to `stream`.
enum zbmd_status zbmd_bundle_stream(const struct zbmd_bundle *bundle,
                                    size_t index,
                                    struct zbmd_stream *stream);

// Closes a bundle. Its sessions go on.
enum zbmd_status zbmd_bundle_close(struct zbmd_bundle *bundle);

// Makes a caller of a bundle, which runs on the thread that calls it: for short programs, such as small networks, that take less time
// than waking another thread. The bundle must have one mode and be for one CPU device (`devices` of 1 in `zbmd_compile_options`,
// `zbmdc compile --devices 1`), else the answer is `ZBMD_REFUSED`. A call is one block, which is one iteration of the model if it was
// compiled with a `block` of 1. A caller serves one thread at a time, and
// outlives its bundle.
//
// # Safety
// A `zbmd_caller *` can be written to `caller`.
enum zbmd_status zbmd_bundle_caller(const struct zbmd_bundle *bundle,
                                    struct zbmd_caller **caller);

// The bytes of one source's or sink's tokens in a call: streams are counted as `zbmd_bundle_stream` does, first all sources and then all
// sinks, from 0 on; `ZBMD_ENDED` after the last.
//
// # Safety
// A `size_t` can be written to `bytes`.
enum zbmd_status zbmd_caller_bytes(struct zbmd_caller *caller,
                                   size_t index,
                                   size_t *bytes);

// Runs one block on the calling thread: takes the tokens of all sources and gives those of all sinks, each in the order of
// `zbmd_bundle_stream`. It goes on from the states that the call before it left.
//
// - `ZBMD_OK`: the outputs are there;
// - `ZBMD_USAGE`: another number of inputs, outputs or bytes than the bundle has: nothing has run;
// - `ZBMD_FAULT`: a kernel failed, now or in an earlier call: make another caller.
//
// # Safety
// `input_count` inputs can be read at `inputs` and `output_count` outputs at `outputs`; the bytes of each input can be read and those of
// each output written, and nobody else writes or uses them meanwhile.
enum zbmd_status zbmd_caller_call(struct zbmd_caller *caller,
                                  const struct zbmd_input *inputs,
                                  size_t input_count,
                                  const struct zbmd_output *outputs,
                                  size_t output_count);

// Closes a caller.
enum zbmd_status zbmd_caller_close(struct zbmd_caller *caller);

// Starts a run of a bundle: memory is taken, workers wait for tokens. `options` may be NULL.
//
// # Safety
// `options` is null or was initialised by `zbmd_run_options_init`, and its texts end with NULs; a `zbmd_session *` can
// be written to `session`.
enum zbmd_status zbmd_session_start(const struct zbmd_bundle *bundle,
                                    const struct zbmd_run_options *options,
                                    struct zbmd_session **session);

// Takes the handle of a source: there is one of each. A source whose handle is not taken is empty.
//
// # Safety
// `name` ends with a NUL; a `zbmd_source *` can be written to `source`.
enum zbmd_status zbmd_session_source(const struct zbmd_session *session,
                                     const char *name,
                                     struct zbmd_source **source);

// Takes the handle of a sink: there is one of each. The tokens of a sink whose handle is not taken are dropped.
//
// # Safety
// `name` ends with a NUL; a `zbmd_sink *` can be written to `sink`.
enum zbmd_status zbmd_session_sink(const struct zbmd_session *session,
                                   const char *name,
                                   struct zbmd_sink **sink);

// Ends a run in good order, from any thread: it takes no more tokens, and finishes the blocks at work.
enum zbmd_status zbmd_session_stop(const struct zbmd_session *session);

// How many iterations of the model are done, for a display of progress: it may lag a little.
//
// # Safety
// A `uint64_t` can be written to `iterations`.
enum zbmd_status zbmd_session_iterations(const struct zbmd_session *session, uint64_t *iterations);

// Waits for the end of a run, and says how it ended: why it was given up, if it was. Sources must be closed for that,
// or the run stopped, or its number of iterations reached; sinks that were taken must be pulled from meanwhile by
// another thread, or be closed. A session that was joined answers the same again.
enum zbmd_status zbmd_session_join(const struct zbmd_session *session);

// What a run that was joined did and measured, as JSON in UTF-8 with a NUL at its end. Its length without the NUL is
// written to `length`, if that is not NULL; the text to `text`, if `room` is more than that length. Else the answer
// is `ZBMD_USAGE`, so that a call with no `text` and no `room` asks for the length.
//
// # Safety
// `text` is null, or `room` bytes can be written there; `length` is null, or a `size_t` can be written there.
enum zbmd_status zbmd_session_report(const struct zbmd_session *session,
                                     char *text,
                                     size_t room,
                                     size_t *length);

// Closes a session. A run that was not joined is given up, which takes as long as a kernel at work does; its connected
// streams end, and nothing of it is left running once no other thread is in a call with it. Handles of
// its streams stay valid, and answer `ZBMD_FAULT` from then on.
enum zbmd_status zbmd_session_close(struct zbmd_session *session);

// Sets so many live parameters of a run together, or none of them. With a `source` of NULL they take effect with the
// next block that no worker can have begun, and `token` is not looked at; else exactly at that token of the source,
// counted from the start of the run. The iteration of the run, or the token, is written to `position`, unless that is
// NULL. Any thread may call it; while a loss is being handled it waits for the end of that.
//
// - `ZBMD_OK`: they are set, whatever is lost from now on;
// - `ZBMD_USAGE`: no such parameter or source, or a parameter twice;
// - `ZBMD_REFUSED`: a value out of its range, of another length or that an op refuses, or a token that is at work already;
// - `ZBMD_TIMEOUT`: too many changes wait for the workers, or have not taken effect yet: try again later;
// - `ZBMD_ENDED`: the run has ended.
//
// # Safety
// `count` values can be read at `values`, whose names end with NULs and whose numbers can be read; `source` is null or
// ends with a NUL; `position` is null, or a `uint64_t` can be written there.
enum zbmd_status zbmd_session_set(const struct zbmd_session *session,
                                  const struct zbmd_parameter_value *values,
                                  size_t count,
                                  const char *source,
                                  uint64_t token,
                                  uint64_t *position);

// Sets so many live parameters of a caller together, or none of them, from the next call on.
//
// - `ZBMD_OK`: they are set;
// - `ZBMD_USAGE`: no such parameter, or a parameter twice;
// - `ZBMD_REFUSED`: a value out of its range, of another length or that an op refuses;
// - `ZBMD_ENDED`: an earlier call failed.
//
// # Safety
// `count` values can be read at `values`, whose names end with NULs and whose numbers can be read.
enum zbmd_status zbmd_caller_set(struct zbmd_caller *caller,
                                 const struct zbmd_parameter_value *values,
                                 size_t count);

// The live parameters of a run: a list in JSON with an object for each, by name: `name`, `numbers` (the value that was
// set last), `is_list`, `min` and `max`. `text`, `room` and `length` are those of `zbmd_session_report`.
//
// # Safety
// `text` is null, or `room` bytes can be written there; `length` is null, or a `size_t` can be written there.
enum zbmd_status zbmd_session_parameters(const struct zbmd_session *session,
                                         char *text,
                                         size_t room,
                                         size_t *length);

// Lets a run go over to another of its model's modes at the next border, and waits for that, `timeout_us` microseconds
// at most, or without a limit if that is negative; another thread must serve the run's streams if it waits. The first
// iteration of the run in the mode is written to `iteration`, unless that is NULL. To the present mode it need not go.
//
// - `ZBMD_OK`: the run is in the mode;
// - `ZBMD_TIMEOUT`: it is not yet, but will be; or, with nothing changed, another change is not done yet: try again
//   later. `zbmd_session_mode` tells the two apart;
// - `ZBMD_USAGE`: no such mode;
// - `ZBMD_REFUSED`: a change that the model does not allow, or no plan of the mode without the devices that are lost;
// - `ZBMD_ENDED`: the run has ended.
//
// # Safety
// `mode` ends with a NUL; `iteration` is null, or a `uint64_t` can be written there.
enum zbmd_status zbmd_session_change_mode(const struct zbmd_session *session,
                                          const char *mode,
                                          int64_t timeout_us,
                                          uint64_t *iteration);

// The modes of a run, in JSON: `modes` (their names, of which the first is the one that it began in; one empty name if
// the model has none), `mode` (the present one) and `since` (the first iteration in it). `text`, `room` and `length` are
// those of `zbmd_session_report`.
//
// # Safety
// `text` is null, or `room` bytes can be written there; `length` is null, or a `size_t` can be written there.
enum zbmd_status zbmd_session_mode(const struct zbmd_session *session,
                                   char *text,
                                   size_t room,
                                   size_t *length);

// The channels of a run that can be looked at now: a list in JSON with an object for each, `name` (the actor that writes
// it, or `actor.port`), `token`, `token_bytes`, `block_tokens` and `block_iterations` of the present plan, `device` and
// `sample_rate` (or null). `text`, `room` and `length` are those of `zbmd_session_report`.
//
// # Safety
// `text` is null, or `room` bytes can be written there; `length` is null, or a `size_t` can be written there.
enum zbmd_status zbmd_session_channels(const struct zbmd_session *session,
                                       char *text,
                                       size_t room,
                                       size_t *length);

// Begins to look at a channel of a run, by its name in `zbmd_session_channels`; the handle is written to `probe`. The run
// is not stopped or waited for. One channel of a run can be looked at at a time, and a probe serves one thread at a time.
//
// - `ZBMD_OK`: the next block of it that begins is the first that `zbmd_probe_next` gives;
// - `ZBMD_USAGE`: no such channel, or one that only a GPU has;
// - `ZBMD_TIMEOUT`: somebody looks at a channel of this run: try again when that is over;
// - `ZBMD_REFUSED`: its blocks are longer than what is copied, or the run is over several hosts;
// - `ZBMD_ENDED`: the run has ended.
//
// # Safety
// `channel` ends with a NUL; a `zbmd_probe *` can be written at `probe`.
enum zbmd_status zbmd_session_probe(const struct zbmd_session *session,
                                    const char *channel,
                                    struct zbmd_probe **probe);

// Copies the tokens of the next block of a channel to `tokens`, which has `room` bytes, and waits for it at most so many
// microseconds: 0 not at all, less than 0 as long as it takes. What block it is, and its bytes, is written to `block`, if that
// is not NULL. Blocks come in order; one that was copied while two others had not been taken is left out.
//
// - `ZBMD_OK`: the block is there;
// - `ZBMD_TIMEOUT`: the time is over;
// - `ZBMD_USAGE`: it has more bytes than `room`, as many as `block` says: it is given again;
// - `ZBMD_ENDED`: the run has ended: no more will come.
//
// # Safety
// `room` bytes can be written at `tokens`, and nobody else uses them meanwhile; `block` is null, or a
// `zbmd_probed_block` can be written there.
enum zbmd_status zbmd_probe_next(struct zbmd_probe *probe,
                                 void *tokens,
                                 size_t room,
                                 int64_t timeout_us,
                                 struct zbmd_probed_block *block);

// Ends looking at a channel, and closes the handle.
enum zbmd_status zbmd_probe_close(struct zbmd_probe *probe);

// Feeds a source from a URL, such as `udp://0.0.0.0:5000?header=seq&rate=48000`; `zbmd-run --help` lists the schemes
// and keys. With a `url` of NULL it is the one that the model names. The source's handle counts as taken from then on.
// The run goes on until it is stopped, its number of iterations is reached, or a file that is played has ended.
//
// What is lost on the way is filled and counted: see `zbmd_session_live_report`. An unknown name, a sink's name, a
// second URL and a wrong URL are `ZBMD_USAGE`; a socket or device that cannot be opened is `ZBMD_FILE`. Then the
// session is as it was before.
//
// # Safety
// `name` ends with a NUL; `url` is null, or ends with a NUL.
enum zbmd_status zbmd_session_connect_source(const struct zbmd_session *session,
                                             const char *name,
                                             const char *url);

// Sends the tokens of a sink to a URL, such as `tcp://127.0.0.1:6000`. With a `url` of NULL it is the one that the
// model names. The sink's handle counts as taken from then on. A peer that is absent or slow costs tokens, which are
// counted, and never stops the run. The clock bridge of a sound card follows live sources that were connected before.
// The answers are those of `zbmd_session_connect_source`.
//
// # Safety
// `name` ends with a NUL; `url` is null, or ends with a NUL.
enum zbmd_status zbmd_session_connect_sink(const struct zbmd_session *session,
                                           const char *name,
                                           const char *url);

// What the connected streams have done so far: a list in JSON with an object for each, in the order in which they were
// connected, as `zbmd-run --report json` has it under `live`: tokens received, filled by cause, sent and dropped, and
// the gaps. May be asked for at any time; after `zbmd_session_join` it is final. `text`, `room` and `length` are those
// of `zbmd_session_report`; while the run goes on, the next answer may be longer.
//
// # Safety
// `text` is null, or `room` bytes can be written there; `length` is null, or a `size_t` can be written there.
enum zbmd_status zbmd_session_live_report(const struct zbmd_session *session,
                                          char *text,
                                          size_t room,
                                          size_t *length);

// Gives tokens to a run: `bytes` bytes, which must be whole tokens. Waits for room at most so many microseconds: 0 not
// at all, less than 0 as long as it takes. How many bytes were taken is written to `pushed`, if that is not NULL,
// whatever the answer:
//
// - `ZBMD_OK`: all of them;
// - `ZBMD_TIMEOUT`: the time is over; push the rest again;
// - `ZBMD_ENDED`: the run takes no more: it has reached its number of iterations, or was stopped;
// - `ZBMD_FAULT`: the run was given up; `zbmd_session_join` says why.
//
// # Safety
// `bytes` bytes can be read at `tokens`, and nobody writes them meanwhile; `pushed` is null, or a `size_t` can be
// written there.
enum zbmd_status zbmd_source_push(struct zbmd_source *source,
                                  const void *tokens,
                                  size_t bytes,
                                  int64_t timeout_us,
                                  size_t *pushed);

// Ends a source, and closes its handle: the run finishes with the tokens that were pushed.
enum zbmd_status zbmd_source_close(struct zbmd_source *source);

// Takes tokens from a run: fills `bytes` bytes, which must be whole tokens. Waits for them at most so many
// microseconds: 0 not at all, less than 0 as long as it takes. How many bytes were filled is written to `pulled`, if
// that is not NULL, whatever the answer:
//
// - `ZBMD_OK`: all of them;
// - `ZBMD_TIMEOUT`: the time is over;
// - `ZBMD_ENDED`: the run has ended: no more will come;
// - `ZBMD_FAULT`: the run was given up; `zbmd_session_join` says why.
//
// What lies in the buffer beyond the bytes that were filled is not defined.
//
// # Safety
// `bytes` bytes can be written at `tokens`, and nobody else uses them meanwhile; `pulled` is null, or a `size_t` can
// be written there.
enum zbmd_status zbmd_sink_pull(struct zbmd_sink *sink,
                                void *tokens,
                                size_t bytes,
                                int64_t timeout_us,
                                size_t *pulled);

// Closes the handle of a sink: tokens that still come are dropped.
enum zbmd_status zbmd_sink_close(struct zbmd_sink *sink);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ZBMD_H */
