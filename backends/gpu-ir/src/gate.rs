//! What a gate adds to the kernels of an actor: closed firings give what was held, or zeros. Knows no op.
//!
//! The op's steps run for all firings of a call, or for none; then each output of the closed firings is written over. That
//! is exact for actors without states only: with those, a firing depends on which ones before it were open.
//!
//! Which firings are open is read from a table ([`Operand::Gate`]) that the host makes from the gate's tokens, a word for
//! each firing: the number of the last open firing of the call up to it, counted from 1, and 0 where none was open. So an
//! open firing has its own number, and a closed one says whose outputs it holds.

use super::lang::{Builder, Kernel, Mem, Val};
use super::plan::{Amount, Grid, KernelPlan, Operand};

/// Bytes of an element of the table.
pub const TABLE_WORD: u64 = 4;

/// An output behind a gate.
#[derive(Clone, Copy, Debug)]
pub struct GatedOutput {
    /// Bytes of a token.
    pub token_bytes: u64,
    /// Tokens of a firing.
    pub rate: u64,
    /// The state that holds what the last open firing wrote; without one, closed firings give zeros.
    pub holder: Option<u32>,
}

/// The kernels of an actor without states, behind a gate. `None` for outputs beyond what kernels count.
pub fn behind_gate(plan: KernelPlan, outputs: &[GatedOutput]) -> Option<KernelPlan> {
    let op_steps = plan.steps.len();
    let mut gated_plan = plan;
    for (index, output) in (0..).zip(outputs) {
        let words = output.words()?;
        let each_word = Grid::Threads(Amount::each(words.into()));
        let port = Operand::Output(index);
        gated_plan = match output.holder {
            Some(state) => {
                let operands = [Operand::Gate, Operand::State(state), port];
                gated_plan.then(held_kernel(output.mem(), words), &operands, each_word)
            }
            None => {
                let operands = [Operand::Gate, port];
                gated_plan.then(zeros_kernel(output.mem(), words), &operands, each_word)
            }
        };
    }

    // Where all firings are closed, what is held stays.
    gated_plan.closed_steps = Some(op_steps..gated_plan.steps.len());
    for (index, output) in (0..).zip(outputs) {
        if let Some(state) = output.holder {
            let words = output.words()?;
            let operands = [Operand::Output(index), Operand::State(state)];
            let each_word = Grid::Threads(Amount::fixed(words.into()));
            gated_plan = gated_plan.then(last_kernel(output.mem(), words), &operands, each_word);
        }
    }
    Some(gated_plan)
}

impl GatedOutput {
    /// Bytes of the largest word that tokens consist of: wherever a call begins, its words are aligned.
    fn word_bytes(self) -> u64 {
        let mut sizes = [4, 2].into_iter();
        let fitting = sizes.find(|bytes| self.token_bytes.is_multiple_of(*bytes));
        fitting.unwrap_or(1)
    }

    fn mem(self) -> Mem {
        Mem::word(self.word_bytes())
    }

    /// Words of a firing.
    fn words(self) -> Option<u32> {
        let words = (self.token_bytes / self.word_bytes()).checked_mul(self.rate)?;
        u32::try_from(words).ok()
    }
}

/// A word that a closed firing gives.
struct ClosedWord<'k> {
    /// Its place in the firing, and the words of one.
    place: Val<'k>,
    words: Val<'k>,
    /// Among the words of all firings.
    index: Val<'k>,
    /// The number of the last open firing of the call; 0 for none.
    last_open: Val<'k>,
}

/// Each word of the closed firings.
fn each_closed_word<'k>(
    k: &'k Builder,
    table: u32,
    words: u32,
    write: impl FnOnce(ClosedWord<'k>),
) {
    let words = k.spec(words);
    k.each(k.firings() * words, |index| {
        let firing = index / words;
        let last_open = k.load(table, firing);
        k.if_(last_open.ne(firing + 1), || {
            write(ClosedWord {
                place: index % words,
                words,
                index,
                last_open,
            });
        });
    });
}

/// Closed firings give what the last open one gave: of this call, or what is held. Open firings are only read, so that no
/// thread reads what another one writes.
fn held_kernel(mem: Mem, words: u32) -> Kernel {
    let k = Builder::new("held", 64);
    let table = k.reads(Mem::U32);
    let held = k.reads(mem);
    let output = k.writes(mem);
    each_closed_word(&k, table, words, |word| {
        let none_was_open = word.last_open.lt(k.u32(1));
        let copy_held = || k.store(output, word.index, k.load(held, word.place));
        k.if_else(none_was_open, copy_held, || {
            let open_firing = word.last_open - k.u32(1);
            let source = open_firing * word.words + word.place;
            k.store(output, word.index, k.load(output, source));
        });
    });
    k.finish()
}

/// Closed firings give zeros.
fn zeros_kernel(mem: Mem, words: u32) -> Kernel {
    let k = Builder::new("zeros while closed", 64);
    let table = k.reads(Mem::U32);
    let output = k.writes(mem);
    each_closed_word(&k, table, words, |word| {
        k.store(output, word.index, k.u32(0));
    });
    k.finish()
}

/// What the last firing of a call gave is held: its own if it was open, otherwise what it held itself.
fn last_kernel(mem: Mem, words: u32) -> Kernel {
    let k = Builder::new("hold", 64);
    let output = k.reads(mem);
    let held = k.writes(mem);
    let words = k.spec(words);
    let first = (k.firings() - k.u32(1)) * words;
    k.each(words, |word| {
        k.store(held, word, k.load(output, first + word));
    });
    k.finish()
}
