//! In the place of [`ucx`](crate::carry_over_ucx), where the program was built without that feature.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use crate::connection::Connection;
use crate::error::UcxError;
use crate::socket::Deadline;

/// There is none.
#[derive(Debug)]
pub(crate) enum UcxStream {}

impl UcxStream {
    pub(crate) fn read_now(
        &mut self,
        _: &TcpStream,
        _: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        match *self {}
    }

    pub(crate) fn write_now(&mut self, _: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match *self {}
    }

    pub(crate) fn has_unsent(&self) -> bool {
        match *self {}
    }

    pub(crate) fn is_ready(&mut self) -> bool {
        match *self {}
    }
}

impl AsFd for UcxStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}

/// Whether tokens can go over UCX here.
///
/// # Errors
/// The program was built without it.
pub fn find_ucx() -> Result<(), UcxError> {
    Err(UcxError::Missing {
        why: "this program was built without UCX: build it with the feature `ucx`".to_owned(),
    })
}

/// Carries nothing.
///
/// # Errors
/// The program was built without UCX.
pub fn carry_over_ucx(
    _: &mut [Connection],
    _: Deadline,
    _: impl Fn() -> bool,
) -> Result<(), (usize, UcxError)> {
    find_ucx().map_err(|error| (0, error))
}
