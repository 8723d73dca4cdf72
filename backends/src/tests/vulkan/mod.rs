//! What needs a device: every op beside its CPU kernel, faults at every call. The validation layers look on where they
//! are installed, and must have nothing to say.

mod faults;
mod suite;
mod tensor;
