//! Every op on a device in software beside its CPU kernel, the printed code in NVIDIA's assembler, faults at every call.
//! Where there is a GPU, the ops run on it too.

mod attention;
mod dependent_launch;
mod faults;
mod math;
mod products;
mod ptx;
mod suite;
