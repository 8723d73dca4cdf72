//! Looking into a session: copies of what channels carry, block by block.
#![expect(
    unsafe_code,
    reason = "exports functions under their C names, which are given pointers"
)]
#![expect(non_camel_case_types, reason = "names as C programs write them")]

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use zbmd_executor::{Probe, ProbeError, ProbedBlock};

use crate::border::{needed, output, put, text};
use crate::handles;
use crate::session::{Run, put_report, zbmd_session};
use crate::status::{Failure, guard, zbmd_status};
use crate::streams::limit;
use zbmd_status::*;

/// Longer than any run.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// Looks at a channel of a session.
pub struct zbmd_probe {
    _opaque: [u8; 0],
}

/// A block of a channel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct zbmd_probed_block {
    /// The run's first iteration of the block.
    pub iteration: u64,
    /// Iterations of the block.
    pub iterations: u64,
    /// Bytes of its tokens.
    pub bytes: usize,
}

/// What a probe's handle stands for.
pub(crate) struct ProbeReader {
    probe: Probe,
    /// A block that its caller had no room for.
    waiting: Option<ProbedBlock>,
}

/// A channel as the report has it.
#[derive(Serialize)]
struct ChannelReport {
    name: String,
    token: String,
    token_bytes: u64,
    block_tokens: u64,
    block_iterations: u64,
    device: String,
    sample_rate: Option<f64>,
}

/// The channels of a run that can be looked at now: a list in JSON with an object for each, `name` (the actor that writes
/// it, or `actor.port`), `token`, `token_bytes`, `block_tokens` and `block_iterations` of the present plan, `device` and
/// `sample_rate` (or null). `text`, `room` and `length` are those of `zbmd_session_report`.
///
/// # Safety
/// `text` is null, or `room` bytes can be written there; `length` is null, or a `size_t` can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_channels(
    session: *const zbmd_session,
    text: *mut c_char,
    room: usize,
    length: *mut usize,
) -> zbmd_status {
    guard(|| {
        let run: Arc<Run> = handles::get(session.addr())?;
        let channels = run.probes.channels().into_iter();
        let reports = channels.map(|channel| ChannelReport {
            name: channel.name,
            token: channel.token.to_string(),
            token_bytes: channel.token.bytes(),
            block_tokens: channel.block_tokens,
            block_iterations: channel.block_iterations,
            device: channel.device,
            sample_rate: channel.sample_rate,
        });
        let report = serde_json::to_string(&reports.collect::<Vec<_>>())
            .map_err(|error| Failure::new(ZBMD_BUG, error.to_string()))?;
        // SAFETY: the caller's promise.
        unsafe { put_report(&report, text, room, length) }
    })
}

/// Begins to look at a channel of a run, by its name in `zbmd_session_channels`; the handle is written to `probe`. The run
/// is not stopped or waited for. One channel of a run can be looked at at a time, and a probe serves one thread at a time.
///
/// - `ZBMD_OK`: the next block of it that begins is the first that `zbmd_probe_next` gives;
/// - `ZBMD_USAGE`: no such channel, or one that only a GPU has;
/// - `ZBMD_TIMEOUT`: somebody looks at a channel of this run: try again when that is over;
/// - `ZBMD_REFUSED`: its blocks are longer than what is copied, or the run is over several hosts;
/// - `ZBMD_ENDED`: the run has ended.
///
/// # Safety
/// `channel` ends with a NUL; a `zbmd_probe *` can be written at `probe`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_probe(
    session: *const zbmd_session,
    channel: *const c_char,
    probe: *mut *mut zbmd_probe,
) -> zbmd_status {
    guard(|| {
        let place = needed(probe, "probe")?;
        let run: Arc<Run> = handles::get(session.addr())?;
        // SAFETY: the caller's promise.
        let channel = unsafe { text(channel, "channel") }?;
        let attached = match run.probes.attach(channel) {
            Ok(attached) => attached,
            Err(error) => return refusal(&error),
        };
        let handle = handles::open(ProbeReader {
            probe: attached,
            waiting: None,
        })?;
        // SAFETY: the caller's promise.
        unsafe { put(place, std::ptr::without_provenance_mut(handle)) };
        Ok(ZBMD_OK)
    })
}

/// Copies the tokens of the next block of a channel to `tokens`, which has `room` bytes, and waits for it at most so many
/// microseconds: 0 not at all, less than 0 as long as it takes. What block it is, and its bytes, is written to `block`, if that
/// is not NULL. Blocks come in order; one that was copied while two others had not been taken is left out.
///
/// - `ZBMD_OK`: the block is there;
/// - `ZBMD_TIMEOUT`: the time is over;
/// - `ZBMD_USAGE`: it has more bytes than `room`, as many as `block` says: it is given again;
/// - `ZBMD_ENDED`: the run has ended: no more will come.
///
/// # Safety
/// `room` bytes can be written at `tokens`, and nobody else uses them meanwhile; `block` is null, or a
/// `zbmd_probed_block` can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_probe_next(
    probe: *mut zbmd_probe,
    tokens: *mut c_void,
    room: usize,
    timeout_us: i64,
    block: *mut zbmd_probed_block,
) -> zbmd_status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { put(block, zbmd_probed_block::default()) };
        // SAFETY: the caller's promise.
        let room = unsafe { output(tokens, room) }?;
        handles::with(probe.addr(), |reader: &mut ProbeReader| {
            let found = match reader.next(limit(timeout_us)) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(ZBMD_TIMEOUT),
                Err(error) => return refusal(&error),
            };
            let info = zbmd_probed_block {
                iteration: found.iteration,
                iterations: found.iterations,
                bytes: found.bytes.len(),
            };
            // SAFETY: the caller's promise.
            unsafe { put(block, info) };

            let Some(target) = room.get_mut(..info.bytes) else {
                let text = format!("the block needs {} bytes, not {}", info.bytes, room.len());
                reader.waiting = Some(found);
                return Err(Failure::usage(text));
            };
            target.copy_from_slice(&found.bytes);
            Ok(ZBMD_OK)
        })
    })
}

impl ProbeReader {
    fn next(&mut self, limit: Option<Duration>) -> Result<Option<ProbedBlock>, ProbeError> {
        if let Some(waiting) = self.waiting.take() {
            return Ok(Some(waiting));
        }
        self.probe.next(limit.unwrap_or(FOR_EVER))
    }
}

fn refusal(error: &ProbeError) -> Result<zbmd_status, Failure> {
    match error {
        ProbeError::Busy { .. } => Ok(ZBMD_TIMEOUT),
        ProbeError::Ended => Ok(ZBMD_ENDED),
        ProbeError::TooLong { .. } | ProbeError::Hosts => {
            Err(Failure::new(ZBMD_REFUSED, error.to_string()))
        }
        _ => Err(Failure::usage(error.to_string())),
    }
}

/// Ends looking at a channel, and closes the handle.
#[unsafe(no_mangle)]
pub extern "C" fn zbmd_probe_close(probe: *mut zbmd_probe) -> zbmd_status {
    guard(|| handles::close::<ProbeReader>(probe.addr()).map(|_| ZBMD_OK))
}
