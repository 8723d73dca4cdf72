//! The page of `--http`, and what it asks for. Whoever has the address with its key may see the run and set its values; the
//! key keeps out other users of the machine, and pages of other origins in the browser.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zbmd_executor::live::Progress;
use zbmd_executor::{
    ModeChange, ModeHandle, ParameterHandle, ProbeError, ProbeHandle, ProbedBlock, When,
};

use zbmd_ir::{DType, TokenType};

use super::request::{Reply, Request};
use crate::block_figures::{BlockStats, elements, spectrum_of};

/// Bytes of a key.
const KEY_BYTES: usize = 16;
/// The page waits so long for a block, or a period.
const BLOCK_LIMIT: Duration = Duration::from_millis(300);
/// Numbers of a block that are drawn, of its samples and of its spectrum.
const MAX_POINTS: usize = 1024;
/// Bytes of tokens that figures are made of: a browser waits for them.
const MAX_BYTES: usize = 1 << 20;
/// Where a spectrum ends below: what is quieter is not seen.
const MIN_POWER: f64 = 1e-15;

/// The run that a page shows.
pub(crate) struct PageRun {
    pub(crate) look: Box<dyn Fn() -> Progress + Send + Sync>,
    pub(crate) parameters: ParameterHandle,
    pub(crate) modes: ModeHandle,
    pub(crate) probes: ProbeHandle,
    /// What is recorded already cannot be set again.
    pub(crate) is_settable: bool,
}

/// A run with the key that its page has.
pub(crate) struct RunPage {
    run: PageRun,
    key: String,
}

/// What can be set.
#[derive(Serialize)]
struct Values {
    parameters: Vec<Parameter>,
    modes: Vec<String>,
    mode: String,
}

#[derive(Serialize)]
struct Parameter {
    name: String,
    numbers: Vec<f64>,
    min: f64,
    max: f64,
}

#[derive(Serialize)]
struct Channel {
    name: String,
    token: String,
    device: String,
}

/// A block as it is drawn.
#[derive(Serialize)]
struct DrawnBlock {
    iteration: u64,
    iterations: u64,
    figures: Figures,
    /// Samples, thinned out; the second are of complex ones.
    re: Vec<f64>,
    im: Vec<f64>,
    /// Decibels by frequency, the strongest of neighbours; empty where there is no spectrum.
    spectrum: Vec<f64>,
}

#[derive(Serialize)]
struct Figures {
    min: f64,
    max: f64,
    rms: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WantedMode {
    mode: String,
}

impl RunPage {
    /// A page with a fresh key.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub(crate) fn new(run: PageRun) -> io::Result<Self> {
        let mut bytes = [0; KEY_BYTES];
        let mut done = 0;
        while done < bytes.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            done += rustix::rand::getrandom(&mut bytes[done..], flags)?;
        }
        let key = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { run, key })
    }

    /// What follows the address.
    pub(crate) fn path(&self) -> String {
        format!("/?key={}", self.key)
    }

    pub(super) fn reply_to(&self, request: &Request) -> Reply {
        if request.path == "/" {
            return match request.argument("key") {
                Some(key) if self.is_key(&key) => {
                    Reply::new("text/html; charset=utf-8", page_text())
                }
                _ => Reply::error(
                    "403 Forbidden",
                    "the key is missing or another run's: take the address that the run has printed",
                ),
            };
        }
        let bearer = request.bearer.as_deref();
        if !bearer.is_some_and(|key| self.is_key(key)) {
            return Reply::json_error("403 Forbidden", "the key is missing or another run's");
        }
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/live.json") => Reply::json(&(self.run.look)()),
            ("GET", "/values.json") => Reply::json(&self.values()),
            ("GET", "/channels.json") => Reply::json(&self.channels()),
            ("GET", "/plan.json") => Reply::json(&self.run.probes.lanes()),
            ("GET", "/lanes.json") => self.slot_times(request),
            ("GET", "/block.json") => self.block(request),
            ("POST", "/set" | "/mode") if !self.run.is_settable => {
                Reply::json_error("409 Conflict", "a replay takes no commands")
            }
            ("POST", "/set") => self.set(&request.body),
            ("POST", "/mode") => self.change_mode(&request.body),
            _ => Reply::json_error("404 Not Found", "there is nothing of this name"),
        }
    }

    /// Takes as long wherever they differ.
    fn is_key(&self, key: &str) -> bool {
        let pairs = key.bytes().zip(self.key.bytes());
        let unlike = pairs.fold(0, |unlike, (a, b)| unlike | (a ^ b));
        key.len() == self.key.len() && unlike == 0
    }

    fn values(&self) -> Values {
        let values = self.run.parameters.values().into_iter();
        let parameters = values.map(|value| Parameter {
            name: value.parameter.name,
            numbers: value.numbers,
            min: value.parameter.min,
            max: value.parameter.max,
        });
        Values {
            parameters: parameters.collect(),
            modes: self.run.modes.names().to_vec(),
            mode: self.run.modes.present().mode,
        }
    }

    fn channels(&self) -> Vec<Channel> {
        let channels = self.run.probes.channels().into_iter();
        let channels = channels.map(|channel| Channel {
            name: channel.name,
            token: channel.token.to_string(),
            device: channel.device,
        });
        channels.collect()
    }

    /// When the slots of a period ended, each with its number in the plan; empty where none began in time.
    fn slot_times(&self, request: &Request) -> Reply {
        let device = request.argument("device").unwrap_or_default();
        match self.run.probes.slot_times(&device, BLOCK_LIMIT) {
            Ok(times) => {
                let times = times.unwrap_or_default().into_iter();
                let pairs = times.map(|time| (time.slot, time.end_ns));
                Reply::json(&pairs.collect::<Vec<_>>())
            }
            Err(error) => probe_refusal(&error),
        }
    }

    fn block(&self, request: &Request) -> Reply {
        let name = request.argument("channel").unwrap_or_default();
        let attached = self.run.probes.attach(&name);
        let found = attached.and_then(|mut probe| {
            let block = probe.next(BLOCK_LIMIT)?;
            Ok((block, probe.token()))
        });
        match found {
            Ok((Some(block), token)) => Reply::json(&drawn(&token, &block)),
            Ok((None, _)) => Reply::json_error(
                "503 Service Unavailable",
                "no block has come: the run waits for tokens",
            ),
            Err(error) => probe_refusal(&error),
        }
    }

    fn set(&self, body: &[u8]) -> Reply {
        let values: BTreeMap<String, Vec<f64>> = match serde_json::from_slice(body) {
            Ok(values) => values,
            Err(error) => return Reply::json_error("400 Bad Request", &error.to_string()),
        };
        let named: Vec<(&str, &[f64])> = values
            .iter()
            .map(|(name, numbers)| (name.as_str(), numbers.as_slice()))
            .collect();
        match self.run.parameters.set(&named, When::NextBlock) {
            Ok(_) => Reply::json(&serde_json::json!({})),
            Err(error) => Reply::json_error("409 Conflict", &error.to_string()),
        }
    }

    fn change_mode(&self, body: &[u8]) -> Reply {
        let wanted: WantedMode = match serde_json::from_slice(body) {
            Ok(wanted) => wanted,
            Err(error) => return Reply::json_error("400 Bad Request", &error.to_string()),
        };
        let changed = self
            .run
            .modes
            .change(&wanted.mode)
            .and_then(ModeChange::wait);
        match changed {
            Ok(entry) => Reply::json(&serde_json::json!({ "since": entry.iteration })),
            Err(error) => Reply::json_error("409 Conflict", &error.to_string()),
        }
    }
}

fn probe_refusal(error: &ProbeError) -> Reply {
    let status = match error {
        ProbeError::Busy { .. } => "503 Service Unavailable",
        _ => "409 Conflict",
    };
    Reply::json_error(status, &error.to_string())
}

/// The page with its script: one text, which needs nothing else.
fn page_text() -> String {
    include_str!("page.html").replace("PAGE_SCRIPT", include_str!("page.js"))
}

fn drawn(token: &TokenType, block: &ProbedBlock) -> DrawnBlock {
    let token_bytes = token.bytes().max(1) as usize;
    let whole_bytes = MAX_BYTES / token_bytes * token_bytes;
    let bytes = &block.bytes[..block.bytes.len().min(whole_bytes.max(token_bytes))];
    let stats = BlockStats::of(token.dtype, bytes);
    let samples = elements(token.dtype, bytes);
    let step = samples.len().div_ceil(MAX_POINTS).max(1);
    let finite = |number: f64| if number.is_finite() { number } else { 0.0 };
    let shown = samples.iter().step_by(step);
    let (re, im): (Vec<f64>, Vec<f64>) = shown.map(|(re, im)| (finite(*re), finite(*im))).unzip();

    let powers = spectrum_of(token, bytes).map_or_else(|_| Vec::new(), |found| found.powers);
    let bin_step = powers.len().div_ceil(MAX_POINTS).max(1);
    let strongest = powers.chunks(bin_step).map(|bins| {
        let power = bins.iter().copied().fold(MIN_POWER, f64::max);
        10.0 * power.log10()
    });
    DrawnBlock {
        iteration: block.iteration,
        iterations: block.iterations,
        figures: Figures {
            min: stats.min,
            max: stats.max,
            rms: stats.rms,
        },
        re,
        im: match token.dtype {
            DType::C32 => im,
            _ => Vec::new(),
        },
        spectrum: strongest.collect(),
    }
}
