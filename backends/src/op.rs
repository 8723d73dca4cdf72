//! The op catalogue: what ops exist, and what each is for given parameters and input types.
//!
//! A [`Registry`] finds ops by name, and [`Registry::resolving_once`] remembers what it resolved. An [`Op`] is resolved
//! once for the parameters of an actor; ports, cost and kernels are questions to the [`ResolvedOp`].

mod capabilities;
mod memo;
mod registry;

pub use self::capabilities::GpuCapabilities;
pub use self::registry::Registry;
pub use zbmd_op::{
    CLASSES, CustomActor, GpuRequest, Op, OpDoc, OpError, Packing, PortSchema, ResolveCx,
    ResolvedOp, Signature, StateSpec, TypeSchema, Work, default_work, dtype_param, example_inputs,
    source,
};
pub(crate) use zbmd_op::{check_ports, port_text};
