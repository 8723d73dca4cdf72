//! Products with rounded factors: which actors are asked for them, and which have them in the plans that were made.

use std::fmt;

use bytes::Bytes;
use zbmd_backends::kernels::Math;
use zbmd_backends::op::Registry;
use zbmd_ir::{Actor, ActorId, BlobId, Graph, Plan, Role, TiSlice, Value};

use crate::codes::Code;
use crate::diag::Diagnostic;
use crate::target::Target;

/// Actors named at most in a report.
const MAX_NAMED: usize = 12;

/// What became of the products that were asked to round their factors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    /// Actors that round, on the devices of their plans that can, and to what. Only these have the parameter in the
    /// program's graph.
    pub rounded: Vec<(String, Math)>,
    /// Actors that compute in f32 nevertheless, and why.
    pub exact: Vec<(String, String)>,
}

impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked_count = self.rounded.len() + self.exact.len();
        for math in Math::ALL {
            let rounded_count = self.rounded.iter().filter(|(_, to)| *to == math).count();
            if rounded_count > 0 {
                write!(
                    f,
                    "{rounded_count} of {asked_count} products with factors in {math}; "
                )?;
            }
        }

        write!(f, "{} of {asked_count} in f32", self.exact.len())?;
        for (index, (name, reason)) in self.exact.iter().take(MAX_NAMED).enumerate() {
            let separator = if index == 0 { ":" } else { "," };
            write!(f, "{separator} {name} ({reason})")?;
        }

        match self.exact.len().saturating_sub(MAX_NAMED) {
            0 => Ok(()),
            unnamed => write!(f, " and {unnamed} more"),
        }
    }
}

/// What an actor's factors are to be rounded to, where it is asked for.
fn requested_math(actor: &Actor) -> Option<Math> {
    let stated_math = actor.params.get(Math::PARAM)?.as_str()?;
    let math: Math = stated_math.parse().ok()?;
    (math != Math::F32).then_some(math)
}

/// Whether an actor's op has products, and takes the parameter.
fn has_products(registry: &Registry, actor: &Actor) -> bool {
    let Some(op) = registry.op(&actor.op) else {
        return false;
    };
    let mut params = op.doc().params.iter();
    actor.role == Role::Compute && params.any(|(name, _)| *name == Math::PARAM)
}

/// Checks that the machine can round factors, if that is asked for.
///
/// # Errors
/// A machine without a CUDA device, or with one that is too old.
pub(crate) fn check_devices(target: &Target, math: Math) -> Result<(), Diagnostic> {
    if math == Math::F32 {
        return Ok(());
    }

    let mut has_cuda = false;
    for device in &target.machine.devices {
        if !device.backend.may_round_factors() {
            continue;
        }

        // One device that is too old refuses all: plans for losses may have to use it.
        has_cuda = true;
        let needed_capability = Math::CAPABILITY;
        let found_capability = target
            .capabilities
            .of(device)
            .capability
            .unwrap_or_default();
        if found_capability < needed_capability {
            let message = format!(
                "products in {math} need compute capability {}.{}, `{}` has {}.{}",
                needed_capability.0,
                needed_capability.1,
                device.name,
                found_capability.0,
                found_capability.1
            );

            return Err(Diagnostic::new(Code::E0507, message).help("leave `--math` away"));
        }
    }

    if has_cuda {
        return Ok(());
    }

    let message = format!("products in {math} are asked for, and the machine has no CUDA device");
    Err(Diagnostic::new(Code::E0507, message).help(
        "leave `--math` away, or name a CUDA device: `compile --gpus`, or a machine file that has one",
    ))
}

/// Asks all products of a graph that the model leaves free to round their factors.
pub(crate) fn request_rounding(graph: &mut Graph, registry: &Registry, math: Math) {
    if math == Math::F32 {
        return;
    }
    for actor in &mut graph.actors {
        if has_products(registry, actor) {
            let rounding = Value::Str(math.name().to_owned());
            let params = &mut actor.params;
            params.entry(Math::PARAM.to_owned()).or_insert(rounding);
        }
    }
}

/// Where actors that were asked to round run.
pub(crate) struct RoundingPlans<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) target: &'a Target,
    pub(crate) plans: &'a [Plan],
    pub(crate) blobs: &'a TiSlice<BlobId, Bytes>,
}

impl RoundingPlans<'_> {
    /// Removes the parameter from the actors that round nothing in any plan; what became of all that were asked, if any
    /// were.
    pub(crate) fn settle_rounding(&self, graph: &mut Graph) -> Option<Rounding> {
        let mut settled_rounding = Rounding::default();
        for (id, actor) in graph.actors.iter_mut_enumerated() {
            // Other ops may have a parameter of the same name.
            if !has_products(self.registry, actor) {
                continue;
            }
            let Some(math) = requested_math(actor) else {
                continue;
            };

            match self.exactness_reason(id, actor) {
                None => settled_rounding.rounded.push((actor.name.clone(), math)),
                Some(reason) => {
                    actor.params.remove(Math::PARAM);
                    settled_rounding.exact.push((actor.name.clone(), reason));
                }
            }
        }

        (settled_rounding != Rounding::default()).then_some(settled_rounding)
    }

    /// Why an actor computes in f32, if it does so in every plan.
    fn exactness_reason(&self, id: ActorId, actor: &Actor) -> Option<String> {
        let mut first_device = None;
        for plan in self.plans {
            let device = &self.target.machine.devices[plan.placement[id]];
            first_device.get_or_insert(device);
            if device.backend.may_round_factors() {
                let capabilities = self.target.capabilities.of(device);

                // CUDA devices of a machine round alike: the first one decides.
                let kernel_plan = self.registry.lower(actor, self.blobs, capabilities);
                let is_rounded = kernel_plan.is_some_and(|kernels| kernels.math() != Math::F32);
                return (!is_rounded).then(|| "no kernel on tensor cores for its shape".to_owned());
            }
        }

        first_device.map(|device| format!("it runs on {}", device.name))
    }
}
