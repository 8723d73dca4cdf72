//! GPUs, whatever drives them: opened by name, their calendars behind one interface.
//!
//! What differs between drivers stays in [`crate::vulkan`] and [`crate::cuda`]. Whoever runs calendars sees a
//! [`Device`], a [`Replay`], and [`Fault`]s sorted by what is to be done about them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbmd_ir::{Actor, BufferId, Calendar, Plan, Program, State};

#[cfg(feature = "cuda")]
use crate::cuda;
use crate::kernels::{Caps, KernelPlan};
use crate::op::Registry;
use crate::replay::{self, Exchange, Peers, Queue, ReplayError, Summary};
#[cfg(feature = "vulkan")]
use crate::vulkan;

/// The backends that drive GPUs here, as machines call them.
pub const BACKENDS: &[&str] = &[
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "vulkan")]
    "vulkan",
];

/// Whether a machine's backend is one of a GPU that is driven here.
pub fn is_gpu(backend: &str) -> bool {
    BACKENDS.contains(&backend)
}

/// What is to be done about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// The device is not there, or cannot do what is asked of it: trying again would end in the same way.
    Unfit,
    /// Its memory is used up.
    Memory,
    /// The driver must not be asked for anything any more: the process is to end. A fresh one can use the device.
    Lost,
    /// As [`Self::Lost`], and the device is not to be used until a person has seen to it: its memory is damaged, or it
    /// has left the bus.
    Broken,
    /// Anything else; the device may well do better next time.
    Failed,
}

impl FaultKind {
    /// Whether the process must end before the driver is asked for anything again.
    pub fn is_fatal(self) -> bool {
        matches!(self, Self::Lost | Self::Broken)
    }
}

/// What a GPU or its driver said: what one process can tell another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// What is to be done about it.
    pub kind: FaultKind,
    /// The sentence for people.
    pub text: String,
}

impl Fault {
    fn new(kind: FaultKind, error: &dyn fmt::Display) -> Self {
        Self {
            kind,
            text: error.to_string(),
        }
    }

    fn unfit(error: &dyn fmt::Display, mend: &str) -> Self {
        Self {
            kind: FaultKind::Unfit,
            text: format!("{error}; {mend}"),
        }
    }
}

/// Why a period was not completed.
pub type Halt = replay::Halt<Fault>;

/// The calendar of one device, ready to run: see [`crate::replay`].
pub trait Replay: Send {
    /// What it consists of.
    fn summary(&self) -> Summary;

    /// See [`replay::Replay::notes`].
    fn notes(&self) -> &[String];

    /// See [`replay::Replay::step`].
    ///
    /// # Errors
    /// A driver's fault, or a stop while waiting.
    fn step(&mut self, period: u64, blocks: Option<u64>, peers: &mut dyn Peers)
    -> Result<(), Halt>;

    /// See [`replay::Replay::drain`].
    ///
    /// # Errors
    /// As [`Self::step`].
    fn drain(&mut self, peers: &mut dyn Peers) -> Result<(), Halt>;

    /// See [`replay::Replay::settle`].
    ///
    /// # Errors
    /// As [`Self::step`].
    fn settle(&mut self, peers: &mut dyn Peers) -> Result<bool, Halt>;

    /// See [`replay::Replay::let_go`].
    ///
    /// # Errors
    /// A driver's fault.
    fn let_go(&mut self) -> Result<(), Fault>;

    /// See [`replay::Replay::load_state`].
    ///
    /// # Errors
    /// A driver's fault.
    fn load_state(&mut self, state: &State) -> Result<(), Fault>;

    /// See [`replay::Replay::save_state`].
    ///
    /// # Errors
    /// A driver's fault.
    fn save_state(&mut self, blocks: u64, state: &mut State) -> Result<(), Fault>;

    /// See [`replay::Replay::save_borders`].
    ///
    /// # Errors
    /// A driver's fault.
    fn save_borders(&mut self, every: u64, keepers: &[BufferId]) -> Result<(), Fault>;
}

impl<Q> Replay for replay::Replay<Q>
where
    Q: Queue + Send,
    Fault: From<Q::Fault>,
{
    fn summary(&self) -> Summary {
        self.summary()
    }

    fn notes(&self) -> &[String] {
        self.notes()
    }

    fn step(
        &mut self,
        period: u64,
        blocks: Option<u64>,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt> {
        self.step(period, blocks, peers).map_err(halt)
    }

    fn drain(&mut self, peers: &mut dyn Peers) -> Result<(), Halt> {
        self.drain(peers).map_err(halt)
    }

    fn settle(&mut self, peers: &mut dyn Peers) -> Result<bool, Halt> {
        self.settle(peers).map_err(halt)
    }

    fn let_go(&mut self) -> Result<(), Fault> {
        Ok(self.let_go()?)
    }

    fn load_state(&mut self, state: &State) -> Result<(), Fault> {
        Ok(self.load_state(state)?)
    }

    fn save_state(&mut self, blocks: u64, state: &mut State) -> Result<(), Fault> {
        Ok(self.save_state(blocks, state)?)
    }

    fn save_borders(&mut self, every: u64, keepers: &[BufferId]) -> Result<(), Fault> {
        Ok(self.save_borders(every, keepers)?)
    }
}

fn halt<F: Into<Fault>>(halt: replay::Halt<F>) -> Halt {
    match halt {
        replay::Halt::Stopped => Halt::Stopped,
        replay::Halt::Fault(fault) => Halt::Fault(fault.into()),
    }
}

impl<F> From<ReplayError<F>> for Fault
where
    F: Into<Fault> + fmt::Display,
{
    fn from(error: ReplayError<F>) -> Self {
        match error {
            ReplayError::Fault(fault) => fault.into(),
            error => Fault::new(FaultKind::Unfit, &error),
        }
    }
}

#[cfg(feature = "vulkan")]
impl From<vulkan::Fault> for Fault {
    fn from(fault: vulkan::Fault) -> Self {
        let kind = match &fault {
            fault if fault.is_fatal() => FaultKind::Lost,
            vulkan::Fault::OutOfMemory { .. } => FaultKind::Memory,
            _ => FaultKind::Failed,
        };
        Self::new(kind, &fault)
    }
}

#[cfg(feature = "cuda")]
impl From<cuda::Fault> for Fault {
    fn from(fault: cuda::Fault) -> Self {
        let kind = match (fault.is_fatal(), fault.verdict()) {
            (true, cuda::Verdict::DropDevice) => FaultKind::Broken,
            (true, _) => FaultKind::Lost,
            (false, _) if matches!(fault, cuda::Fault::OutOfMemory { .. }) => FaultKind::Memory,
            (false, cuda::Verdict::Refuse) => FaultKind::Unfit,
            (false, _) => FaultKind::Failed,
        };
        Self::new(kind, &fault)
    }
}

/// What to do where a device cannot be opened.
const SEE_DEVICES: &str = "`zbmdc devices` lists what is here; compile for that";

#[cfg(feature = "vulkan")]
impl From<vulkan::OpenError> for Fault {
    fn from(error: vulkan::OpenError) -> Self {
        match error {
            vulkan::OpenError::Fault(fault) => fault.into(),
            vulkan::OpenError::Unavailable(_) => Self::unfit(
                &error,
                "install the Vulkan loader and a driver (Debian: libvulkan1 and mesa-vulkan-drivers), or compile for a machine without it",
            ),
            _ => Self::unfit(&error, SEE_DEVICES),
        }
    }
}

#[cfg(feature = "cuda")]
impl From<cuda::OpenError> for Fault {
    fn from(error: cuda::OpenError) -> Self {
        match error {
            cuda::OpenError::Fault(fault) => fault.into(),
            cuda::OpenError::Unavailable(_) => Self::unfit(
                &error,
                "install NVIDIA's driver (`nvidia-smi` says whether it works), or compile for a machine without it",
            ),
            _ => Self::unfit(&error, SEE_DEVICES),
        }
    }
}

/// How drivers are loaded and devices opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Vulkan: the validation layers look on, where they are installed.
    pub validate: bool,
    /// Vulkan: where compiled kernels are kept from run to run.
    pub cache: Option<PathBuf>,
    /// CUDA: see [`cuda::Options::programmatic`](crate::cuda::Options).
    pub programmatic: bool,
}

/// The drivers of this process, each loaded when the first device of its is opened.
#[derive(Debug, Default)]
pub struct Drivers {
    #[cfg(feature = "vulkan")]
    vulkan: Option<Arc<vulkan::Instance>>,
    #[cfg(feature = "cuda")]
    cuda: Option<Arc<cuda::Instance>>,
}

impl Drivers {
    /// Opens the device of that name or UUID.
    ///
    /// # Errors
    /// In words, with a mend.
    pub fn open(&mut self, backend: &str, name: &str, options: &Options) -> Result<Device, Fault> {
        #[cfg(not(feature = "vulkan"))]
        let _ = options;
        match backend {
            #[cfg(feature = "vulkan")]
            "vulkan" => {
                let load = || vulkan::Instance::load(options.validate);
                let instance = loaded(&mut self.vulkan, load).map_err(vulkan::OpenError::from)?;
                let listed = instance.find(name)?;
                let options = vulkan::Options {
                    cache: options.cache.clone(),
                    ..Default::default()
                };
                Ok(Device::Vulkan(vulkan::Device::open(
                    &instance, &listed, &options,
                )?))
            }
            #[cfg(feature = "cuda")]
            "cuda" => {
                let instance = loaded(&mut self.cuda, cuda::Instance::load);
                let instance = instance.map_err(cuda::OpenError::from)?;
                let listed = instance.find(name)?;
                let options = cuda::Options {
                    programmatic: options.programmatic,
                    ..Default::default()
                };
                Ok(Device::Cuda(cuda::Device::open(
                    &instance, &listed, &options,
                )?))
            }
            _ => Err(Fault::unfit(
                &format!("this program drives no devices of the backend `{backend}`"),
                SEE_DEVICES,
            )),
        }
    }

    /// Leaves the driver of a device that is not alive any more to itself: the next device has it loaded anew.
    pub fn abandon(&mut self, device: &Device) {
        match device {
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => {
                std::mem::forget(Arc::clone(device));
                self.vulkan = None;
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                std::mem::forget(Arc::clone(device));
                self.cuda = None;
            }
        }
    }
}

fn loaded<I, E>(
    kept: &mut Option<Arc<I>>,
    load: impl FnOnce() -> Result<Arc<I>, E>,
) -> Result<Arc<I>, E> {
    match kept {
        Some(instance) => Ok(Arc::clone(instance)),
        None => Ok(Arc::clone(kept.insert(load()?))),
    }
}

/// Calls of an actor's kernels: see [`Device::calls`].
pub trait Calls {
    /// Puts them into the device's queue.
    ///
    /// # Errors
    /// A driver's fault.
    fn submit(&mut self) -> Result<(), Fault>;

    /// Waits for the end of all that was submitted.
    ///
    /// # Errors
    /// A driver's fault.
    fn wait(&mut self) -> Result<(), Fault>;
}

impl<Q> Calls for replay::Call<Q>
where
    Q: Queue,
    Fault: From<Q::Fault>,
{
    fn submit(&mut self) -> Result<(), Fault> {
        Ok(self.submit()?)
    }

    fn wait(&mut self) -> Result<(), Fault> {
        Ok(self.wait()?)
    }
}

/// Constants that an open GPU keeps from one calendar to the next: of one device only, and dropped before it.
#[derive(Debug, Default)]
pub struct Kept {
    #[cfg(feature = "vulkan")]
    vulkan: vulkan::Kept,
    #[cfg(feature = "cuda")]
    cuda: cuda::Kept,
}

/// An open GPU. One thread drives it at a time.
#[derive(Clone, Debug)]
pub enum Device {
    /// By way of Vulkan.
    #[cfg(feature = "vulkan")]
    Vulkan(Arc<vulkan::Device>),
    /// By way of CUDA.
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::Device>),
}

/// Does the same with either.
macro_rules! either {
    ($device:expr, $inner:ident => $do:expr) => {
        match $device {
            #[cfg(feature = "vulkan")]
            Device::Vulkan($inner) => $do,
            #[cfg(feature = "cuda")]
            Device::Cuda($inner) => $do,
        }
    };
}

impl Device {
    /// Whether no fault was seen after which the driver must be left alone.
    pub fn is_alive(&self) -> bool {
        either!(self, device => device.is_alive())
    }

    /// The backend, as machines call it.
    pub fn backend(&self) -> &'static str {
        match self {
            #[cfg(feature = "vulkan")]
            Device::Vulkan(_) => "vulkan",
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => "cuda",
        }
    }

    /// What kernels can do there.
    pub fn caps(&self) -> &Caps {
        either!(self, device => device.caps())
    }

    /// What it is, with its driver and the vendor's library: results of measurements are good for just this.
    pub fn kind(&self) -> String {
        let library = match self {
            #[cfg(feature = "vulkan")]
            Device::Vulkan(_) => String::new(),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => device
                .library()
                .map(|l| format!(" {l}"))
                .unwrap_or_default(),
        };
        either!(self, device => {
            let listed = device.listed();
            let (uuid, title, driver) = (listed.uuid_text(), &listed.title, &listed.driver);
            format!("{}: {uuid} {title} {driver}{library}", self.backend())
        })
    }

    /// Makes the kernels ready that the plans of a program have on devices like this one: what calendars need of them
    /// later is there then.
    ///
    /// # Errors
    /// A driver's fault.
    pub fn warm<'p>(&self, registry: &Registry, program: &'p Program) -> Result<(), Fault> {
        let there = |plan: &'p Plan| {
            let placed = plan.placement.iter_enumerated();
            let devices = &program.machine.devices;
            let here = placed.filter(|(_, device)| devices[**device].backend == self.backend());
            here.map(|(actor, _)| (actor, plan.variant(actor)))
                .collect::<Vec<_>>()
        };
        let actors: BTreeSet<_> = program.plans.iter().flat_map(there).collect();
        let lower = |(id, variant)| {
            let actor: &Actor = &program.graph.actors[id];
            registry
                .lower_in(actor, &program.blobs, self.caps(), variant)
                .ok()
        };
        let plans: Vec<KernelPlan> = actors.into_iter().filter_map(lower).collect();
        for plan in &plans {
            self.refuses(plan)?;
        }
        let kernels = plans.iter().flat_map(KernelPlan::kernels).map(|k| &**k);
        match self {
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => device.warm(kernels, program)?,
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => device.warm(kernels, program)?,
        }
        Ok(())
    }

    /// Whether kernels wait for others themselves: [`Options::programmatic`], and the device and its driver can.
    pub fn is_programmatic(&self) -> bool {
        match self {
            #[cfg(feature = "vulkan")]
            Device::Vulkan(_) => false,
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => device.is_programmatic(),
        }
    }

    /// Why the vendor's library cannot be had here for kernels that need it, or not for these, as a clause; `None`
    /// where it can, or is not needed.
    ///
    /// # Errors
    /// A driver's fault.
    pub fn refuses(&self, plan: &KernelPlan) -> Result<Option<String>, Fault> {
        let mut products = plan.products();
        match self {
            #[cfg(feature = "vulkan")]
            Device::Vulkan(_) => Ok(products
                .next()
                .map(|_| crate::kernels::library::elsewhere())),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => Ok(products
                .find_map(|p| device.refuses(p).transpose())
                .transpose()?),
        }
    }

    /// Keeps what the driver compiled for later runs, where that is the program's business.
    pub fn keep_kernels(&self) {
        match self {
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => device.save_cache(),
            // The driver of CUDA keeps a cache of its own.
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => {}
        }
    }

    /// What the validation layers have found, if they look on.
    pub fn complaints(&self) -> Vec<String> {
        match self {
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => device.instance().messages(),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => Vec::new(),
        }
    }

    /// `calls` calls of `firings` firings of an actor's kernels in a row, as one submission, on memory of their own:
    /// for calibration and benchmarks.
    ///
    /// # Errors
    /// A driver's fault; a call that is too long for the device.
    pub fn calls(
        &self,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
        calls: usize,
    ) -> Result<Box<dyn Calls>, Fault> {
        Ok(match self {
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => {
                Box::new(vulkan::GpuCall::new(device, actor, plan, firings, calls)?)
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                Box::new(cuda::GpuCall::new(device, actor, plan, firings, calls)?)
            }
        })
    }

    /// Makes the device ready for its calendar in a plan of a verified program: takes memory, compiles, records.
    ///
    /// `kept` has the constants that the device has, and then those that it has now.
    ///
    /// # Errors
    /// See [`ReplayError`].
    ///
    /// # Panics
    /// If the program was not verified, or the calendar is not one of the plan's.
    pub fn replay(
        &self,
        registry: &Registry,
        program: &Program,
        plan: &Plan,
        calendar: &Calendar,
        exchange: &Exchange,
        kept: &mut Kept,
    ) -> Result<Box<dyn Replay>, Fault> {
        Ok(match self {
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => {
                let kept = &mut kept.vulkan;
                Box::new(vulkan::Replay::keeping(
                    device, registry, program, plan, calendar, exchange, kept,
                )?)
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                let kept = &mut kept.cuda;
                Box::new(cuda::Replay::keeping(
                    device, registry, program, plan, calendar, exchange, kept,
                )?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "cuda")]
    fn faults_are_sorted_by_what_is_to_be_done() {
        use cuda::{Code, Site};
        for (fault, kind) in [
            (
                cuda::Fault::Lost {
                    site: Site::Query,
                    code: Code(700),
                },
                FaultKind::Lost,
            ),
            (
                cuda::Fault::Lost {
                    site: Site::Query,
                    code: Code(214),
                },
                FaultKind::Broken,
            ),
            (
                cuda::Fault::Hung {
                    value: 1,
                    waited_ms: 2,
                },
                FaultKind::Lost,
            ),
            (
                cuda::Fault::OutOfMemory {
                    site: Site::Alloc,
                    wanted: String::new(),
                },
                FaultKind::Memory,
            ),
            (
                cuda::Fault::Other {
                    site: Site::Load,
                    code: Code(222),
                },
                FaultKind::Unfit,
            ),
            (
                cuda::Fault::Other {
                    site: Site::Copy,
                    code: Code(1),
                },
                FaultKind::Failed,
            ),
        ] {
            let text = fault.to_string();
            assert_eq!(Fault::from(fault), Fault { kind, text });
        }
        assert!(FaultKind::Broken.is_fatal() && !FaultKind::Memory.is_fatal());
    }

    #[test]
    fn unknown_backends_are_refused_with_a_sentence() {
        assert!(!is_gpu("cpu"));
        let fault = Drivers::default().open("tpu", "tpu:0", &Options::default());
        let fault = fault.expect_err("nobody drives it");
        assert_eq!(fault.kind, FaultKind::Unfit);
        assert!(
            fault.text.contains("`tpu`") && fault.text.contains("zbmdc devices"),
            "{fault}"
        );
    }
}
