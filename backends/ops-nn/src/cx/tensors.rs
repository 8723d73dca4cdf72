//! What a body sees in one run: operands, outputs and scratch memory, wherever they are.

use super::super::index::COPY_COST;
use super::fire::Place;
use zbmd_op::kernel::Io;
use zbmd_op::team;

/// Where a body's operands come from.
pub(super) enum Inputs<'a> {
    Io {
        io: &'a Io<'a>,
        places: &'a [Place],
        /// Number of this run in the call, and firings that each run has.
        call: usize,
        call_firings: usize,
    },
    Slices(&'a [Option<&'a [u8]>]),
}

/// The operands, outputs and scratch memory of one run of a body.
pub(crate) struct Tensors<'a> {
    pub(super) ins: Inputs<'a>,
    pub(super) outs: [&'a mut [u8]; Io::MAX_MUT_PORTS],
    /// The operand that output 0 is written over in this run.
    pub(super) over: Option<usize>,
    pub(super) scratch: &'a mut [u8],
}

/// Elements that are copied out of an output's way at a time: few enough to stay in the first-level cache.
pub(crate) const STRETCH: usize = 256;

impl<'a> Tensors<'a> {
    /// The operand that is in output 0 in this run, and cannot be had otherwise. Only where [`super::Plan::over`]
    /// names it.
    pub(crate) fn over(&self) -> Option<usize> {
        self.over
    }

    /// Whether operand `i` and wanted output `o` are one memory in this run, as [`super::Plan::part`] says. Such an
    /// operand cannot be had otherwise, but for [`Self::part`].
    pub(crate) fn shares(&self, i: usize, o: usize) -> bool {
        match self.ins {
            Inputs::Io { io, places, .. } => match places.get(i) {
                Some(Place::Port { port, .. }) => io.shares(*port, o),
                _ => false,
            },
            Inputs::Slices(_) => false,
        }
    }

    /// Bytes of operand `i` over which no output is written, though outputs may be over others.
    pub(crate) fn part(&self, i: usize, range: std::ops::Range<usize>) -> &'a [u8] {
        if let Inputs::Io {
            io,
            places,
            call,
            call_firings,
        } = self.ins
            && let Some(Place::Port { port, token_bytes }) = places.get(i)
        {
            let start = call * call_firings * token_bytes;
            return io.part_bytes(*port, start + range.start..start + range.end);
        }
        &self.bytes(i)[range]
    }

    /// `f(x, y)` for all of operand `i` and output 0, by stretches of both on all cores of this thread's team where that is
    /// worth it. Where they are one memory, `x` is a copy.
    pub(crate) fn map<A: bytemuck::Pod + Sync, B: bytemuck::Pod + Send>(
        &mut self,
        i: usize,
        f: impl Fn(&[A], &mut [B]) + Sync,
    ) {
        let output = self.out::<B>(0);
        let work = COPY_COST * output.len();
        if self.over != Some(i) {
            let input = self.get::<A>(i);
            team::share_slice(work, output, STRETCH, &|first, stretch| {
                f(&input[first * STRETCH..][..stretch.len()], stretch);
            });
            return;
        }
        team::share_slice(work, output, STRETCH, &|_, part| {
            let mut copy = [A::zeroed(); STRETCH];
            for stretch in part.chunks_mut(STRETCH) {
                let own_copy = &mut copy[..stretch.len()];
                copy_bytes(stretch, own_copy);
                f(own_copy, stretch);
            }
        });
    }

    /// The bytes of operand `i`; empty where it is missing.
    pub(crate) fn bytes(&self, i: usize) -> &'a [u8] {
        self.try_bytes(i).unwrap_or_default()
    }

    fn try_bytes(&self, i: usize) -> Option<&'a [u8]> {
        match self.ins {
            Inputs::Slices(slices) => slices.get(i).copied().flatten(),
            Inputs::Io {
                io,
                places,
                call,
                call_firings,
            } => match places.get(i)? {
                Place::Missing => None,
                Place::Port { port, token_bytes } => {
                    let run_bytes = call_firings * token_bytes;
                    Some(&io.input_bytes(*port)[call * run_bytes..][..run_bytes])
                }
                Place::Const(data) => Some(data.bytes()),
            },
        }
    }

    /// The elements of operand `i`; empty where it is missing.
    pub(crate) fn get<T: bytemuck::Pod>(&self, i: usize) -> &'a [T] {
        // An empty slice may be anywhere, also where no element could.
        self.opt(i).unwrap_or_default()
    }

    /// The elements of operand `i`, if it is there.
    pub(crate) fn opt<T: bytemuck::Pod>(&self, i: usize) -> Option<&'a [T]> {
        self.try_bytes(i).map(|b| {
            if b.is_empty() {
                Default::default()
            } else {
                bytemuck::cast_slice(b)
            }
        })
    }

    /// The elements of wanted output `o`. Once a run.
    pub(crate) fn out<T: bytemuck::Pod>(&mut self, o: usize) -> &'a mut [T] {
        match std::mem::take(&mut self.outs[o]) {
            [] => &mut [],
            bytes => bytemuck::cast_slice_mut(bytes),
        }
    }

    /// The elements of wanted output `o` where it is wanted at all; empty otherwise.
    pub(crate) fn out_if<T: bytemuck::Pod>(&mut self, is_wanted: bool, o: usize) -> &'a mut [T] {
        match is_wanted {
            true => self.out(o),
            false => &mut [],
        }
    }

    /// The elements of all outputs of one type, those that are not wanted empty.
    pub(crate) fn outs_if<T: bytemuck::Pod, const N: usize>(
        &mut self,
        wants: [bool; N],
    ) -> [&'a mut [T]; N] {
        let mut next_output = 0;
        wants.map(|is_wanted| {
            let output = self.out_if(is_wanted, next_output);
            next_output += usize::from(is_wanted);
            output
        })
    }

    /// Output `o`, where an op may lack it.
    pub(crate) fn out_bytes(&mut self, o: usize) -> &'a mut [u8] {
        std::mem::take(&mut self.outs[o])
    }

    /// The scratch memory. Once a run.
    pub(crate) fn scratch<T: bytemuck::Pod>(&mut self) -> &'a mut [T] {
        let bytes = std::mem::take(&mut self.scratch);
        if bytes.is_empty() {
            return &mut [];
        }
        let whole_bytes = bytes.len() / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice_mut(&mut bytes[..whole_bytes])
    }
}

/// Copies elements of one type to as many of another of the same size.
pub(crate) fn copy_bytes<A: bytemuck::Pod, B: bytemuck::Pod>(from: &[A], to: &mut [B]) {
    bytemuck::cast_slice_mut::<B, u8>(to).copy_from_slice(bytemuck::cast_slice(from));
}
