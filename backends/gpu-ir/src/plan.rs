//! What an actor's slots run on a GPU: a few steps over the ports' memory, for any number of firings.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{Actor, BlobId, TiSlice};

use super::factors::Math;
use super::lang::{Kernel, Needs};
use super::library::{self, Product};

/// A number that grows with the firings of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Amount {
    pub per_firing: u64,
    pub fixed: u64,
}

impl Amount {
    /// So much for each firing.
    pub fn each(per_firing: u64) -> Self {
        Self {
            per_firing,
            fixed: 0,
        }
    }

    /// So much whatever the firings.
    pub fn fixed(fixed: u64) -> Self {
        Self {
            per_firing: 0,
            fixed,
        }
    }

    /// For a call of `firings`.
    pub fn of(self, firings: u64) -> u64 {
        self.per_firing
            .saturating_mul(firings)
            .saturating_add(self.fixed)
    }
}

/// Memory that a step works on. Ports are numbered as kernels see them: without those of state pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Operand {
    Input(u32),
    Output(u32),
    State(u32),
    Const(u32),
    Scratch,
    /// Of a gated actor, the table that says which firings are open: see [`behind_gate`](super::behind_gate).
    Gate,
}

/// How many threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// At least one for each of so many elements, if the device can have as many; kernels share the rest out.
    Threads(Amount),
    /// A group for each of so many rows, likewise.
    Groups(Amount),
}

/// One run of a kernel; operands are its bindings in order.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct KernelRun {
    pub kernel: Arc<Kernel>,
    pub operands: Vec<Operand>,
    pub grid: Grid,
}

/// One step. What a step writes, the next one sees.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Step {
    /// Copies the first bytes of one operand to those of another.
    Copy {
        from: Operand,
        to: Operand,
        bytes: Amount,
    },
    /// Runs a kernel.
    Run(KernelRun),
    /// Has the vendor's library multiply matrices.
    Product(Product<Operand>),
}

/// What a device has, as far as kernels depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Types it computes with and keeps in memory.
    pub has: Needs,
    /// Memory ranges that one kernel can be given.
    pub bindings: u32,
    /// Memory that a group of threads shares.
    pub shared_bytes: u64,
    /// Threads of a group.
    pub group: u32,
    /// CUDA's compute capability, major and minor; other devices have none, and compute products in [`Math::F32`],
    /// whatever actors ask for.
    pub capability: Option<(u32, u32)>,
}

impl Caps {
    /// A device with every type, and otherwise what every driver of a desktop GPU grants.
    pub const COMMON: Caps = Caps {
        has: Needs {
            f64: true,
            i64: true,
            bytes: true,
            halves: true,
        },
        bindings: 16,
        shared_bytes: 16 << 10,
        group: 256,
        capability: None,
    };

    /// What every CUDA device since Ampere has: a bundle for one that is not at hand is made for that.
    pub const CUDA: Caps = Caps {
        bindings: 256,
        shared_bytes: 48 << 10,
        group: 1024,
        capability: Some(Math::CAPABILITY),
        ..Caps::COMMON
    };
}

/// The kernels of one actor on a GPU.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct KernelPlan {
    /// The steps, one after the other.
    pub steps: Vec<Step>,
    /// Constant tables.
    pub consts: Vec<Bytes>,
    pub scratch_bytes: u64,
    /// What factors of products are rounded to.
    pub math: Math,
    /// Names of the ways in which the actor can be run, the default one first; none where there is but one.
    pub variants: Vec<&'static str>,
    /// Of a gated actor, the steps that run where all firings of a call are closed; everything else is left out then.
    pub closed_steps: Option<Range<usize>>,
}

impl KernelPlan {
    /// A product by the vendor's library.
    pub fn by_library(product: Product<Operand>) -> Self {
        Self {
            math: product.shape.math,
            scratch_bytes: library::SCRATCH_BYTES,
            steps: vec![Step::Product(product)],
            ..Self::default()
        }
    }

    /// One run of one kernel with an operand for each of its bindings.
    pub fn one(kernel: Kernel, operands: &[Operand], grid: Grid) -> Self {
        Self::default().then(kernel, operands, grid)
    }

    /// And a further run.
    pub fn then(mut self, kernel: Kernel, operands: &[Operand], grid: Grid) -> Self {
        assert_eq!(
            kernel.bindings.len(),
            operands.len(),
            "operands of {}",
            kernel.name
        );

        let operands = operands.to_vec();
        self.steps.push(Step::Run(KernelRun {
            kernel: Arc::new(kernel),
            operands,
            grid,
        }));
        self
    }

    /// And a copy.
    pub fn copy(mut self, from: Operand, to: Operand, bytes: Amount) -> Self {
        self.steps.push(Step::Copy { from, to, bytes });
        self
    }

    /// With constant tables, numbered in order.
    pub fn constants(mut self, consts: Vec<Vec<u8>>) -> Self {
        self.consts = consts.into_iter().map(Bytes::from).collect();
        self
    }

    /// The number of the constant table with these bytes, if its kernels read them as they are.
    pub fn constant_like(&self, bytes: &Bytes) -> Option<usize> {
        let is_like = |table: &Bytes| {
            let is_same_memory = table.as_ptr() == bytes.as_ptr() && table.len() == bytes.len();
            is_same_memory || table == bytes
        };
        self.consts.iter().position(is_like)
    }

    /// With scratch memory.
    pub fn scratch(mut self, bytes: u64) -> Self {
        self.scratch_bytes = bytes;
        self
    }

    /// With factors that are rounded.
    pub fn in_math(mut self, math: Math) -> Self {
        self.math = math;
        self
    }

    /// The kernels of its runs, in order.
    pub fn kernels(&self) -> impl Iterator<Item = &Arc<Kernel>> {
        self.steps.iter().filter_map(|s| match s {
            Step::Run(run) => Some(&run.kernel),
            Step::Copy { .. } | Step::Product(_) => None,
        })
    }

    /// What is asked of the vendor's library.
    pub fn products(&self) -> impl Iterator<Item = &library::Shape> {
        self.steps.iter().filter_map(|s| match s {
            Step::Product(product) => Some(&product.shape),
            Step::Run(_) | Step::Copy { .. } => None,
        })
    }

    /// Names of the variants of the actor's kernels, the default one first; none where there is but one way to do it.
    /// Whatever is asked for by name, all are listed.
    ///
    /// Variants of a GPU's kernel may add sums in another order, so that bits depend on the name. That is why plans
    /// have names, and why all plans of a program name the same one for all devices of a backend.
    pub fn variants(&self) -> &[&'static str] {
        &self.variants
    }

    /// Types that a device must have.
    pub fn needs(&self) -> Needs {
        self.kernels()
            .map(|k| k.needs())
            .fold(Needs::default(), Needs::and)
    }

    /// Why a device cannot run it, as a clause; `None` where it can.
    pub fn lacks(&self, caps: &Caps) -> Option<String> {
        let missing_needs = self.needs().beyond(caps.has);
        if !missing_needs.is_empty() {
            return Some(format!("the device lacks {}", missing_needs.join(" and ")));
        }
        if self.products().next().is_some() && caps.capability.is_none() {
            return Some(library::needs_cuda());
        }
        // Tensor cores exist from a certain capability on.
        let rounds_factors = self.kernels().any(|k| k.multiplies)
            || self.products().any(|shape| shape.math != Math::F32);

        if rounds_factors && caps.capability < Some(Math::CAPABILITY) {
            let needed_text = format!(
                "products in {} need compute capability {}",
                self.math,
                dotted(Math::CAPABILITY)
            );
            let found_text = caps.capability.map_or("none".to_owned(), dotted);
            return Some(format!("{needed_text}, the device has {found_text}"));
        }

        let exceeds = |what: &str, largest: u64, found_text: u64| {
            (largest > found_text)
                .then(|| format!("a kernel needs {largest} {what}, the device has {found_text}"))
        };
        let largest = |of: fn(&Kernel) -> u64| self.kernels().map(|k| of(k)).max().unwrap_or(0);
        exceeds(
            "operands",
            largest(|k| k.bindings.len() as u64),
            caps.bindings.into(),
        )
        .or_else(|| {
            exceeds(
                "bytes of shared memory",
                largest(Kernel::shared_bytes),
                caps.shared_bytes,
            )
        })
        .or_else(|| {
            exceeds(
                "threads in a group",
                largest(|k| k.local.into()),
                caps.group.into(),
            )
        })
    }

    /// Arena bytes that it needs while it runs.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// What factors of products are rounded to, on the way to them or in the constants.
    pub fn math(&self) -> Math {
        self.math
    }

    /// Runs and copies of one call.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }
}

/// A compute capability, as NVIDIA writes it.
pub(crate) fn dotted((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

/// A table of floats as bytes.
pub(crate) fn table(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// The kernels of actors, from the op catalogue: given to those who prepare calendars and know no op.
pub trait LowerKernels {
    /// The kernels of an actor for a device, in the variant of that name or the default one.
    ///
    /// # Errors
    /// Why there are none, as a clause.
    fn lower_kernels(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        caps: &Caps,
        variant: Option<&str>,
    ) -> Result<KernelPlan, String>;
}
