//! Runs the PTX that the printer makes: reads the text by the PTX manual and runs groups of threads, one after the
//! other. Every access is checked against the memory that there is, all threads must meet at the same barriers, and
//! those of a warp at the same products of matrices and swaps.

use std::collections::BTreeMap;

use super::super::error::Code;
use super::matrix::{self, Factor, WARP};
use super::memory::SoftMemory;
use super::table::{one, three, two};

/// `CUDA_ERROR_LAUNCH_FAILED`: what a kernel did wrong that did not wait. Hardware notices nothing.
const EARLY: Code = Code(719);

/// What an instruction does with the bits of its operands.
#[derive(Clone, Copy)]
enum Op {
    One(fn(u64) -> u64),
    Two(fn(u64, u64) -> u64),
    Three(fn(u64, u64, u64) -> u64),
    /// Bytes of an element, whether its sign is extended to 32 bits, elements.
    Load(usize, bool, usize),
    Store(usize, usize),
    LoadShared(usize),
    StoreShared(usize),
    Parameter,
    /// Sums, left matrix, right matrix, sums.
    Multiply(Factor),
    /// What another thread of the warp has.
    Swap,
    /// For the end of the kernels behind which this one runs.
    Wait,
    /// Kernels behind this one may start, which here they do not.
    Tell,
    Branch,
    Barrier,
    Trap,
    Return,
}

#[derive(Clone, Copy, Debug)]
enum Operand {
    Reg(usize),
    Value(u64),
    /// A word of the launch: see `Special`.
    Special(Special),
    Target(usize),
}

#[derive(Clone, Copy, Debug)]
enum Special {
    Tid,
    Ctaid,
    Nctaid,
}

struct Instruction {
    /// Runs where the register is this.
    guard: Option<(usize, bool)>,
    op: Op,
    operands: Vec<Operand>,
    line: usize,
}

/// A module, read.
pub(super) struct Module {
    code: Vec<Instruction>,
    registers: usize,
    shared_bytes: usize,
    pub(super) local: u32,
    parameters: usize,
}

struct Thread {
    at: usize,
    registers: Vec<u64>,
    tid: u32,
    /// Whether nothing is to be waited for any more.
    waited: bool,
    done: bool,
}

fn parse_op(name: &str) -> Op {
    let type_bytes = |ty: &str| match ty {
        "u8" | "s8" => 1,
        "u16" | "s16" => 2,
        "b32" | "f32" => 4,
        "b64" | "f64" => 8,
        _ => panic!("memory of {ty}"),
    };

    if let Some(ty) = name.strip_prefix("ld.global.") {
        let (count, ty) = ty.strip_prefix("v2.").map_or((1, ty), |ty| (2, ty));
        return Op::Load(type_bytes(ty), ty.starts_with('s'), count);
    }

    if let Some(ty) = name.strip_prefix("st.global.") {
        let (count, ty) = ty.strip_prefix("v2.").map_or((1, ty), |ty| (2, ty));
        return Op::Store(type_bytes(ty), count);
    }

    if let Some(ty) = name.strip_prefix("ld.shared.") {
        return Op::LoadShared(type_bytes(ty));
    }
    if let Some(ty) = name.strip_prefix("st.shared.") {
        return Op::StoreShared(type_bytes(ty));
    }
    match name {
        "ld.param.u64" | "ld.param.u32" => Op::Parameter,
        "griddepcontrol.wait" => Op::Wait,
        "griddepcontrol.launch_dependents" => Op::Tell,
        "bra" => Op::Branch,
        "bar.sync" => Op::Barrier,
        "trap" => Op::Trap,
        "shfl.sync.bfly.b32" => Op::Swap,
        "ret" => Op::Return,
        name => matrix::product(name)
            .map(Op::Multiply)
            .or_else(|| one(name).map(Op::One))
            .or_else(|| two(name).map(Op::Two))
            .or_else(|| three(name).map(Op::Three))
            .unwrap_or_else(|| panic!("no instruction {name}")),
    }
}

/// Names met while reading.
#[derive(Default)]
struct Names {
    registers: BTreeMap<String, usize>,
    parameters: BTreeMap<String, usize>,
    shared: BTreeMap<String, usize>,
    labels: BTreeMap<String, usize>,
}

impl Names {
    fn operand(&self, text: &str) -> Operand {
        let text = text.trim_matches(['[', ']', '{', '}', ' ']);
        match text {
            "%tid.x" => return Operand::Special(Special::Tid),
            "%ctaid.x" => return Operand::Special(Special::Ctaid),
            "%nctaid.x" => return Operand::Special(Special::Nctaid),
            _ => {}
        }

        let known = |names: &BTreeMap<String, usize>| names.get(text).copied();
        if let Some(register) = known(&self.registers) {
            return Operand::Reg(register);
        }
        let number = known(&self.parameters).or_else(|| known(&self.shared));
        if let Some(number) = number {
            return Operand::Value(number as u64);
        }
        if let Some(label) = known(&self.labels) {
            return Operand::Target(label);
        }
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        let value = ["0x", "0f", "0d"]
            .iter()
            .find_map(|p| text.strip_prefix(p).and_then(hex));
        let value = value.or_else(|| text.parse().ok());
        Operand::Value(value.unwrap_or_else(|| panic!("what is {text}?")))
    }
}

impl Module {
    /// Reads a module.
    pub(super) fn read(text: &str) -> Module {
        let mut names = Names::default();
        let mut lines = Vec::new();
        let mut shared_bytes = 0_usize;
        let mut local = 0;

        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let words: Vec<&str> = line
                .split([' ', ',', ';'])
                .filter(|w| !w.is_empty())
                .collect();
            match words.as_slice() {
                [".version" | ".target" | ".address_size" | ".visible", ..]
                | ["{" | "}" | "(" | ")"]
                | [] => {}
                [".param", _, name] => {
                    let number = names.parameters.len();
                    names.parameters.insert((*name).to_owned(), number);
                }
                [".reqntid", x, ..] => local = x.parse().expect("threads"),
                [".reg", _, name] => {
                    let (stem, count) = match name.split_once('<') {
                        None => (*name, None),
                        Some((stem, count)) => (stem, count.trim_end_matches('>').parse().ok()),
                    };
                    for n in 0..count.unwrap_or(1) {
                        let full = count.map_or(stem.to_owned(), |_| format!("{stem}{n}"));
                        let number = names.registers.len();
                        assert!(
                            names.registers.insert(full, number).is_none(),
                            "{name} twice"
                        );
                    }
                }
                [".shared", _, _, _, array] => {
                    let (name, bytes) = array.trim_end_matches(']').split_once('[').expect("array");
                    shared_bytes = shared_bytes.next_multiple_of(8);
                    names.shared.insert(name.to_owned(), shared_bytes);
                    shared_bytes += bytes.parse::<usize>().expect("bytes");
                }
                [label] if label.ends_with(':') => {
                    let label = label.trim_end_matches(':').to_owned();
                    assert!(
                        names.labels.insert(label, lines.len()).is_none(),
                        "{line} twice"
                    );
                }
                _ => lines.push((number, line.trim_end_matches(';'))),
            }
        }

        let code: Vec<Instruction> = lines
            .iter()
            .map(|(number, line)| parse_instruction(&names, *number, line))
            .collect();
        let registers = names.registers.len();
        let parameters = names.parameters.len();
        let waits = code.iter().any(|i| matches!(i.op, Op::Wait | Op::Tell));
        let known = text.contains(".version 7.8\n.target sm_90\n");
        assert!(known || !waits, "not for sm_90");

        Module {
            code,
            registers,
            shared_bytes,
            local,
            parameters,
        }
    }

    /// Runs `groups` groups with the given parameters; `waits` says that there is something to wait for.
    ///
    /// # Errors
    /// The number of what a kernel did wrong.
    ///
    /// # Panics
    /// If not all threads of a group come to the same barriers.
    pub(super) fn run(
        &self,
        groups: u32,
        parameters: &[u64],
        waits: bool,
        memory: &mut SoftMemory,
    ) -> Result<(), Code> {
        assert_eq!(parameters.len(), self.parameters, "parameters");
        for group in 0..groups {
            let registers = vec![0; self.registers];
            let new_thread = |tid| Thread {
                at: 0,
                registers: registers.clone(),
                tid,
                waited: !waits,
                done: false,
            };

            let mut threads: Vec<Thread> = (0..self.local).map(new_thread).collect();
            // Arbitrary at first, as on a real device.
            let mut shared_memory = vec![0xa5; self.shared_bytes];
            let launch_ids = [group, groups];

            while threads.iter().any(|t| !t.done) {
                for warp in threads.chunks_mut(WARP) {
                    let mut has_met = true;
                    while has_met {
                        for new_thread in &mut *warp {
                            self.run_until_met(
                                new_thread,
                                launch_ids,
                                parameters,
                                memory,
                                &mut shared_memory,
                            )?;
                        }
                        has_met = self.run_warp_step(warp);
                    }
                }

                // All threads have stopped: at the same barrier, or at the end.
                let first_state = (threads[0].at, threads[0].done);
                assert!(
                    threads.iter().all(|t| (t.at, t.done) == first_state),
                    "barriers are not met"
                );
            }
        }

        Ok(())
    }

    /// Whether the threads of a warp have met at what they do together, which then is done.
    ///
    /// # Panics
    /// If only some have come there.
    fn run_warp_step(&self, warp: &mut [Thread]) -> bool {
        // A thread stops behind what it waits for.
        let last_instruction = |thread: &Thread| thread.at.checked_sub(1).map(|at| &self.code[at]);
        let meeting_point = |thread: &Thread| {
            last_instruction(thread)
                .filter(|i| matches!(i.op, Op::Multiply(_) | Op::Swap) && !thread.done)
        };
        let Some(met_instruction) = warp.iter().find_map(meeting_point) else {
            return false;
        };
        assert!(
            warp.iter().all(|t| t.at == warp[0].at && !t.done),
            "a warp is not together"
        );
        let register_word = |thread: &Thread, n: usize| match met_instruction.operands[n] {
            Operand::Reg(r) => thread.registers[r] as u32,
            _ => panic!("line {}: a word lies in a register", met_instruction.line),
        };

        let factor_kind = match met_instruction.op {
            Op::Multiply(factor_kind) => factor_kind,
            _ => {
                let Operand::Value(bits) = met_instruction.operands[2] else {
                    panic!("line {}", met_instruction.line)
                };
                let all_words: Vec<u32> = warp.iter().map(|t| register_word(t, 1)).collect();
                for (number, thread) in warp.iter_mut().enumerate() {
                    set_register(
                        thread,
                        met_instruction,
                        0,
                        all_words[number ^ bits as usize].into(),
                    );
                }
                return true;
            }
        };

        let thread_fragments = warp.iter().map(|t| {
            let words_from = |first: usize| move |i: usize| register_word(t, first + i);
            let left = std::array::from_fn(words_from(4));
            let right = std::array::from_fn(words_from(8));
            (left, right, std::array::from_fn(words_from(10)))
        });

        let sums = matrix::multiply(factor_kind, &thread_fragments.collect::<Vec<_>>());
        for (thread, sums) in warp.iter_mut().zip(sums) {
            for (n, sum) in sums.into_iter().enumerate() {
                set_register(thread, met_instruction, n, sum.into());
            }
        }

        true
    }

    /// Runs a thread to the next barrier, to what its warp does together, or to its end.
    // One function, because it is one match over the opcodes, each with a few lines.
    fn run_until_met(
        &self,
        thread: &mut Thread,
        launch: [u32; 2],
        parameters: &[u64],
        memory: &mut SoftMemory,
        shared: &mut [u8],
    ) -> Result<(), Code> {
        loop {
            let step = &self.code[thread.at];
            thread.at += 1;
            if step
                .guard
                .is_some_and(|(r, wanted)| (thread.registers[r] == 1) != wanted)
            {
                continue;
            }

            let operand_value = |n: usize| match step.operands[n] {
                Operand::Reg(r) => thread.registers[r],
                Operand::Value(v) => v,
                Operand::Special(Special::Tid) => thread.tid.into(),
                Operand::Special(Special::Ctaid) => launch[0].into(),
                Operand::Special(Special::Nctaid) => launch[1].into(),
                Operand::Target(to) => panic!("line {}: {to} as a value", step.line),
            };

            let result_bits = match step.op {
                Op::One(of) => of(operand_value(1)),
                Op::Two(of) => of(operand_value(1), operand_value(2)),
                Op::Three(of) => of(operand_value(1), operand_value(2), operand_value(3)),
                Op::Parameter => parameters[operand_value(1) as usize],
                Op::Load(..) | Op::Store(..) if !thread.waited => return Err(EARLY),
                Op::Load(size, signed, count) => {
                    let mut bytes = [0; 16];
                    let bytes = &mut bytes[..size * count];
                    memory.load(operand_value(count), bytes)?;
                    for (n, part) in bytes.chunks(size).enumerate() {
                        set_register(thread, step, n, extend_bits(part, signed));
                    }
                    continue;
                }
                Op::Store(size, count) => {
                    let mut bytes = [0; 16];
                    let bytes = &mut bytes[..size * count];
                    for (n, part) in bytes.chunks_mut(size).enumerate() {
                        part.copy_from_slice(&operand_value(1 + n).to_le_bytes()[..size]);
                    }
                    memory.store(operand_value(0), bytes)?;
                    continue;
                }
                Op::LoadShared(size) => {
                    extend_bits(&shared[operand_value(1) as usize..][..size], false)
                }
                Op::StoreShared(size) => {
                    let at = operand_value(0) as usize;
                    let bytes = operand_value(1).to_le_bytes();
                    shared[at..at + size].copy_from_slice(&bytes[..size]);
                    continue;
                }
                Op::Branch => {
                    let Operand::Target(to) = step.operands[0] else {
                        panic!("line {}", step.line)
                    };
                    thread.at = to;
                    continue;
                }
                Op::Barrier | Op::Multiply(_) | Op::Swap => return Ok(()),
                Op::Trap => return Err(Code(719)),
                Op::Wait => {
                    thread.waited = true;
                    continue;
                }
                Op::Tell => continue,
                Op::Return if !thread.waited => return Err(EARLY),
                Op::Return => {
                    thread.done = true;
                    thread.at -= 1;
                    return Ok(());
                }
            };
            set_register(thread, step, 0, result_bits);
        }
    }
}

fn set_register(thread: &mut Thread, step: &Instruction, operand: usize, value: u64) {
    let Operand::Reg(to) = step.operands[operand] else {
        panic!("line {}", step.line)
    };
    thread.registers[to] = value;
}

fn extend_bits(bytes: &[u8], signed: bool) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    let value = u64::from_le_bytes(all);
    match bytes.len() {
        1 if signed => u64::from(i32::from(value as u8 as i8) as u32),
        2 if signed => u64::from(i32::from(value as u16 as i16) as u32),
        _ => value,
    }
}

fn parse_instruction(names: &Names, line: usize, text: &str) -> Instruction {
    let (guard, text) = match text.strip_prefix('@') {
        None => (None, text),
        Some(rest) => {
            let (register, text) = rest.split_once(' ').expect("an instruction");
            let wanted = !register.starts_with('!');
            let Operand::Reg(register) = names.operand(register.trim_start_matches('!')) else {
                panic!("line {line}: {register} guards")
            };
            (Some((register, wanted)), text)
        }
    };

    let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
    let operands = rest.split(',').map(str::trim).filter(|o| !o.is_empty());
    let operands = operands.map(|o| names.operand(o)).collect();

    Instruction {
        guard,
        op: parse_op(name),
        operands,
        line: line + 1,
    }
}
