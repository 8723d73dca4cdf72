//! What packets look like. Pure functions of bytes that strangers sent: every length is checked before it is used.

pub mod rtl_tcp;
pub mod seq;
pub mod vita49;
