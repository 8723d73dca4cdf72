//! Calls: a program on one CPU device whose calendar the calling thread runs itself, a block at a time. What comes in and
//! goes out is copied once, between the caller's memory and the program's: queues are lent the caller's.
#![expect(
    unsafe_code,
    reason = "lends the caller's memory to queues for the time of a call"
)]

use std::sync::Arc;

use zbmd_ir::{ActorId, DeviceId, Plan, State, has_live};
use zbmd_op::team::Helpers;

use crate::error::{CallError, EngineError, SetError};
use crate::live_program::NumbersByParameter;
use crate::program::{Engine, LoadedProgram};
use crate::run::parameters::{numbered_values, prepare_kernels};
use crate::transport::conduit::{Consumer, Producer};
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_spec::{EpochSpec, LiveStart, SinkSpec};
use crate::transport::session_memory::SessionMemory;
use crate::worker::border;
use crate::worker::host;
use crate::worker::job::{HostOptions, WorkerJob};
use crate::worker::prepared::PreparedWorker;

impl Engine {
    /// A program to call: see [`Caller`]. Its states begin as declared, and its live parameters with their first values.
    ///
    /// # Errors
    /// [`EngineError::Call`] unless the program has one mode and its main plan is for one CPU device; too little memory.
    pub fn caller(&self) -> Result<Caller, EngineError> {
        Caller::new(self)
    }
}

/// A program that runs on the thread that calls it: `call` takes the tokens of one block of all sources and gives those of
/// all sinks. One call goes on from the states that the one before it left.
///
/// For short programs, such as small networks, whose blocks take less time than waking another thread. Compiled with
/// `--devices 1 --block 1` a call is one iteration. Nothing is supervised or recorded.
///
/// On a device with one core no thread is started, woken or waited for. On one with several, a thread for each further core
/// lives as long as the caller and shares the work of long kernels; it spins for some tens of microseconds behind each and
/// then sleeps. It is waited for only where it has begun a part, so a call never takes longer for a helper that sleeps.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine: zbmd_executor::Engine = unimplemented!();
/// let mut network = engine.caller()?;
/// let image = [0u8; 4 * 28 * 28];
/// let mut scores = [0u8; 4 * 10];
/// network.call(&[&image], &mut [&mut scores])?;
/// # Ok(())
/// # }
/// ```
pub struct Caller {
    loaded: Arc<LoadedProgram>,
    worker: PreparedWorker,
    /// Threads for the device's cores but the first.
    helpers: Helpers,
    sources: Vec<CallPort<Producer>>,
    sinks: Vec<CallPort<Consumer>>,
    /// Live parameters that were set.
    numbers: NumbersByParameter,
    /// Whether a call has failed: what it left behind is no state of the program.
    has_failed: bool,
}

/// A source or a sink of a program that is called.
struct CallPort<Queue> {
    name: String,
    /// Bytes of a call.
    bytes: usize,
    /// Holds the tokens of a call.
    queue: Queue,
}

impl Caller {
    fn new(engine: &Engine) -> Result<Self, EngineError> {
        let loaded = Arc::clone(&engine.loaded);
        let graph = &loaded.program.graph;
        let plan = &loaded.program.plans[loaded.main];
        let device = call_device(engine, plan)?;

        let block_tokens = |id: ActorId| plan.block * loaded.tokens_per_iteration(id);
        let queue_sizes = graph.sources();
        let queue_sizes = queue_sizes
            .map(|(id, actor)| (block_tokens(id), actor.outputs[0].token.bytes()))
            .collect();
        let session_memory = Arc::new(SessionMemory::create(&queue_sizes)?);
        session_memory.arrivals.open(0);

        let initial = State::initial(graph);
        let spec = call_spec(&loaded, device, &initial);
        let memory = Arc::new(EpochMemory::create(graph, plan, &spec, None)?);
        memory.make_present(false);
        border::write_start(&memory, &initial.channels);

        let port_bytes = |id, token_bytes| (block_tokens(id) * token_bytes) as usize;
        let sources = graph.sources().zip(&session_memory.sources);
        let sources = sources.map(|((id, actor), queue)| CallPort {
            name: actor.name.clone(),
            bytes: port_bytes(id, actor.outputs[0].token.bytes()),
            queue: Producer::new(queue),
        });
        let sources = sources.collect();
        let sinks = graph.sinks().zip(&memory.sinks);
        let sinks = sinks.map(|((id, actor), queue)| CallPort {
            name: actor.name.clone(),
            bytes: port_bytes(id, actor.inputs[0].token.bytes()),
            queue: Consumer::new(queue, 0, false),
        });
        let sinks = sinks.collect();

        let job = WorkerJob {
            spec: Arc::new(spec),
            calendar: 0,
            session_memory,
            epoch: memory,
            options: HostOptions {
                sample_every: 0,
                pin: false,
                lock_memory: false,
                realtime: false,
                hold_share: false,
            },
            gpus: Arc::default(),
            #[cfg(hosts)]
            wiring: None,
        };
        let worker = host::prepare(&loaded, job)?;
        let core_count = loaded.program.machine.devices[device].cores.len();
        let helpers = Helpers::start(core_count, |_| ()).map_err(|error| EngineError::Call {
            why: format!("no thread can be started for its device's other cores: {error}"),
        })?;
        Ok(Self {
            loaded,
            worker,
            helpers,
            sources,
            sinks,
            numbers: NumbersByParameter::new(),
            has_failed: false,
        })
    }

    /// Sets live parameters by name, all of them or none: from the next call on.
    ///
    /// # Errors
    /// See [`SetError`]; [`SetError::Ended`] after a call that failed.
    pub fn set(&mut self, values: &[(&str, &[f64])]) -> Result<(), SetError> {
        if self.has_failed {
            return Err(SetError::Ended);
        }
        let values = numbered_values(&self.loaded.live.parameters, values)?;
        prepare_kernels(&self.loaded, self.numbers.clone(), &values)?;

        self.numbers.extend(values.iter().cloned());
        // The kernels were made above, so that the worker finds them.
        let changed = self.worker.change(values);
        changed.map_err(|_| {
            self.has_failed = true;
            SetError::Ended
        })
    }

    /// Names of the sources, in the order of a call's inputs, and how many bytes each takes.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, usize)> {
        let ports = self.sources.iter();
        ports.map(|port| (port.name.as_str(), port.bytes))
    }

    /// Names of the sinks, in the order of a call's outputs, and how many bytes each gives.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, usize)> {
        let ports = self.sinks.iter();
        ports.map(|port| (port.name.as_str(), port.bytes))
    }

    /// Runs one block on this thread: takes the tokens of each source, and gives those of each sink, as bytes.
    ///
    /// # Errors
    /// Other numbers of inputs, outputs or bytes than [`Self::inputs`] and [`Self::outputs`] say: then nothing has run. A
    /// kernel's fault or panic: no later call runs either.
    pub fn call(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), CallError> {
        if self.has_failed {
            return Err(CallError::Ended);
        }
        let given_inputs = inputs.iter().map(|bytes| bytes.len());
        check_ports("inputs", &self.sources, given_inputs)?;
        let given_outputs = outputs.iter().map(|bytes| bytes.len());
        check_ports("outputs", &self.sinks, given_outputs)?;

        // Until the block is done and read, whatever ends this call ends it in the middle.
        self.has_failed = true;
        for port in &mut self.sources {
            // Never closed, and empty after every call: it takes all.
            let _ = port.queue.publish(port.queue.shared().capacity());
        }
        let lent = LentPorts::lend(&self.sources, inputs, &self.sinks, outputs);
        let run_result = self.helpers.lead(|| self.worker.run_block(&self.loaded));
        drop(lent);
        run_result.map_err(|report| CallError::Failed(report.run_error()))?;
        for port in &mut self.sinks {
            port.queue.pass(port.queue.shared().capacity());
        }
        self.has_failed = false;
        Ok(())
    }
}

/// The queues of a call, which are lent the caller's memory while this lives.
struct LentPorts<'a> {
    sources: &'a [CallPort<Producer>],
    sinks: &'a [CallPort<Consumer>],
}

impl<'a> LentPorts<'a> {
    /// Each queue is given the tokens of one call, of which [`check_ports`] has seen that they have its size.
    fn lend(
        sources: &'a [CallPort<Producer>],
        inputs: &'a [&[u8]],
        sinks: &'a [CallPort<Consumer>],
        outputs: &'a mut [&mut [u8]],
    ) -> Self {
        for (port, tokens) in sources.iter().zip(inputs) {
            let memory = tokens.as_ptr().cast_mut();
            // SAFETY: the tokens of a call, which is as many as the queue holds; borrowed for as long as they are lent. The
            // worker runs on this thread, and at a source it only reads.
            unsafe { port.queue.shared().lend(memory) };
        }
        for (port, tokens) in sinks.iter().zip(outputs) {
            // SAFETY: as above, with memory that nobody else may touch meanwhile.
            unsafe { port.queue.shared().lend(tokens.as_mut_ptr()) };
        }
        Self { sources, sinks }
    }
}

impl Drop for LentPorts<'_> {
    fn drop(&mut self) {
        let sources = self.sources.iter().map(|port| port.queue.shared());
        let sinks = self.sinks.iter().map(|port| port.queue.shared());
        sources.chain(sinks).for_each(|queue| queue.take_back());
    }
}

/// The one epoch of a program that is called, whose queues hold a block.
fn call_spec(loaded: &LoadedProgram, device: DeviceId, initial: &State) -> EpochSpec {
    let graph = &loaded.program.graph;
    let block = loaded.program.plans[loaded.main].block;
    let sink_specs = graph.sinks().map(|(id, actor)| SinkSpec {
        capacity: block * loaded.tokens_per_iteration(id),
        token_bytes: actor.inputs[0].token.bytes(),
        given_out: 0,
    });
    EpochSpec {
        epoch: 0,
        mode: 0,
        plan: loaded.main,
        devices: vec![device],
        limit: u64::MAX,
        pad: false,
        pads_models: false,
        saves: None,
        bases: graph.sources().map(|_| 0).collect(),
        sinks: sink_specs.collect(),
        spin_long: false,
        checksums: false,
        deny_memory: false,
        live: graph.actors.iter().any(has_live).then(|| LiveStart {
            iterations: 0,
            consumed: initial.consumed.clone(),
            changes: Vec::new(),
        }),
        trace: None,
    }
}

/// The device of a plan that can be called.
fn call_device(engine: &Engine, plan: &Plan) -> Result<DeviceId, EngineError> {
    let modes = engine.mode_names();
    if modes.len() > 1 {
        let why = format!(
            "it has the modes {}: compile one with `--mode`",
            modes.join(", ")
        );
        return Err(EngineError::Call { why });
    }
    let loaded = &engine.loaded;
    let devices: Vec<DeviceId> = plan.calendars.iter().map(|c| c.device).collect();
    match devices[..] {
        [device] if !loaded.is_gpu(device) && plan.stages == 1 => Ok(device),
        _ => Err(EngineError::Call {
            why: format!(
                "its plan runs on {} in {} stages, and must be for one CPU device: compile with `--devices 1`",
                loaded.device_names(&devices),
                plan.stages
            ),
        }),
    }
}

/// Refuses other numbers of streams or of bytes than the program has.
fn check_ports<Queue>(
    side: &'static str,
    ports: &[CallPort<Queue>],
    given: impl ExactSizeIterator<Item = usize>,
) -> Result<(), CallError> {
    if given.len() != ports.len() {
        return Err(CallError::Streams {
            side,
            given: given.len(),
            names: ports.iter().map(|port| port.name.clone()).collect(),
        });
    }
    for (port, given) in ports.iter().zip(given) {
        if given != port.bytes {
            return Err(CallError::Bytes {
                stream: port.name.clone(),
                given,
                needed: port.bytes,
            });
        }
    }
    Ok(())
}
