//! Bursts as kernels see them: the items there are, and room for as many as there may be. The layout of their tokens is
//! that of [`zbmd_ir::burst`].

use zbmd_ir::burst::BurstLayout;

use crate::kernel::{Element, Io, KernelFault};

/// A burst that a kernel reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst<'a, T> {
    /// Index of the first item's sample.
    pub first: i64,
    /// The elements of the items there are, one item after the other.
    pub items: &'a [T],
}

impl<'a> Io<'a> {
    /// The bursts of input `index`, all firings' windows together. A burst that says that it is longer than its type
    /// allows, which none is that an actor wrote, is a fault.
    ///
    /// # Panics
    /// If there is no such input, its items are not elements of this type, or an output is written over it.
    pub fn bursts<T: Element>(
        &self,
        index: usize,
        layout: &BurstLayout,
    ) -> impl Iterator<Item = Result<Burst<'a, T>, KernelFault>> + use<'a, T> {
        check_element::<T>(layout);
        layout.read_all(self.input_bytes(index)).map(|burst| {
            let burst = burst
                .map_err(|_| KernelFault("a burst has more items than the maximum of its type"))?;
            Ok(Burst {
                first: burst.first,
                items: bytemuck::cast_slice(burst.items),
            })
        })
    }

    /// A writer of output `index`, all firings together. The same taking rule as [`Self::output`].
    ///
    /// # Panics
    /// If there is no such output, or it was taken before.
    pub fn burst_writer(&mut self, index: usize, layout: &BurstLayout) -> BurstWriter<'a> {
        BurstWriter {
            layout: *layout,
            rest: self.output_bytes(index),
        }
    }
}

/// Writes the bursts of an output one after the other. Those that are not written by the time it is dropped are empty.
#[derive(Debug)]
pub struct BurstWriter<'a> {
    layout: BurstLayout,
    /// Tokens that are still to be written.
    rest: &'a mut [u8],
}

impl<'a> BurstWriter<'a> {
    /// Bursts that can still be written.
    pub fn remaining(&self) -> usize {
        self.rest.len() / self.layout.token_bytes
    }

    /// Writes the next burst.
    ///
    /// # Panics
    /// If none remains, or these are elements of another type, parts of items or more items than the maximum.
    pub fn write<T: Element>(&mut self, first: i64, items: &[T]) {
        check_element::<T>(&self.layout);
        let token = self.take_tokens(1);
        self.layout.write(first, bytemuck::cast_slice(items), token);
    }

    /// Writes as many empty bursts: what a firing has not used of its share.
    ///
    /// # Panics
    /// If fewer remain.
    pub fn write_empty(&mut self, bursts: usize) {
        self.take_tokens(bursts).fill(0);
    }

    fn take_tokens(&mut self, tokens: usize) -> &'a mut [u8] {
        let remaining = self.remaining();
        assert!(
            tokens <= remaining,
            "{tokens} bursts written where {remaining} remain"
        );
        let rest = std::mem::take(&mut self.rest);
        let (taken, rest) = rest.split_at_mut(tokens * self.layout.token_bytes);
        self.rest = rest;
        taken
    }
}

impl Drop for BurstWriter<'_> {
    fn drop(&mut self) {
        self.rest.fill(0);
    }
}

fn check_element<T: Element>(layout: &BurstLayout) {
    assert!(
        T::DTYPE == layout.dtype,
        "the items are {}, kernel asked for {}",
        layout.dtype,
        T::DTYPE
    );
}
