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
    AllowDependents,
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
        "griddepcontrol.launch_dependents" => Op::AllowDependents,
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
        // An integer in hexadecimal, or the bits of a float of 32 or of 64 bits.
        let hex_digits = ["0x", "0f", "0d"]
            .iter()
            .find_map(|prefix| text.strip_prefix(prefix));
        let value = hex_digits
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .or_else(|| text.parse().ok());
        Operand::Value(value.unwrap_or_else(|| panic!("unknown operand {text}")))
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
        let has_dependents = code
            .iter()
            .any(|step| matches!(step.op, Op::Wait | Op::AllowDependents));
        let is_for_sm_90 = text.contains(".version 7.8\n.target sm_90\n");
        assert!(is_for_sm_90 || !has_dependents, "not for sm_90");

        Module {
            code,
            registers: names.registers.len(),
            shared_bytes,
            local,
            parameters: names.parameters.len(),
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
            let mut group_run = GroupRun {
                launch_ids: [group, groups],
                parameters,
                memory: &mut *memory,
                // Arbitrary at first, as on a real device.
                shared_memory: vec![0xa5; self.shared_bytes],
            };

            while threads.iter().any(|t| !t.done) {
                for warp in threads.chunks_mut(WARP) {
                    let mut has_met = true;
                    while has_met {
                        for thread in &mut *warp {
                            self.run_until_met(thread, &mut group_run)?;
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
    fn run_until_met(&self, thread: &mut Thread, group: &mut GroupRun<'_>) -> Result<(), Code> {
        loop {
            let step = &self.code[thread.at];
            thread.at += 1;
            let is_skipped = step
                .guard
                .is_some_and(|(register, wanted)| (thread.registers[register] == 1) != wanted);
            if !is_skipped && group.run_step(thread, step)? == AfterStep::Stop {
                return Ok(());
            }
        }
    }
}

/// Whether a thread goes on after an instruction.
#[derive(PartialEq, Eq)]
enum AfterStep {
    Continue,
    Stop,
}

/// A group of threads of a launch, with what its threads access.
struct GroupRun<'r> {
    /// The number of the group, and of all groups.
    launch_ids: [u32; 2],
    parameters: &'r [u64],
    memory: &'r mut SoftMemory,
    shared_memory: Vec<u8>,
}

impl GroupRun<'_> {
    /// The value of an instruction's operand for a thread.
    fn operand_value(&self, thread: &Thread, step: &Instruction, operand: usize) -> u64 {
        match step.operands[operand] {
            Operand::Reg(register) => thread.registers[register],
            Operand::Value(value) => value,
            Operand::Special(Special::Tid) => thread.tid.into(),
            Operand::Special(Special::Ctaid) => self.launch_ids[0].into(),
            Operand::Special(Special::Nctaid) => self.launch_ids[1].into(),
            Operand::Target(target) => panic!("line {}: {target} as a value", step.line),
        }
    }

    /// Runs one instruction, whose guard holds.
    fn run_step(&mut self, thread: &mut Thread, step: &Instruction) -> Result<AfterStep, Code> {
        let value_of = |operand| self.operand_value(thread, step, operand);
        let result_bits = match step.op {
            Op::One(compute) => compute(value_of(1)),
            Op::Two(compute) => compute(value_of(1), value_of(2)),
            Op::Three(compute) => compute(value_of(1), value_of(2), value_of(3)),
            Op::Parameter => self.parameters[value_of(1) as usize],
            Op::LoadShared(size) => {
                extend_bits(&self.shared_memory[value_of(1) as usize..][..size], false)
            }
            Op::StoreShared(size) => {
                let start = value_of(0) as usize;
                let stored_bytes = value_of(1).to_le_bytes();
                self.shared_memory[start..start + size].copy_from_slice(&stored_bytes[..size]);
                return Ok(AfterStep::Continue);
            }
            Op::Load(..) | Op::Store(..) => {
                self.access_memory(thread, step)?;
                return Ok(AfterStep::Continue);
            }
            _ => return change_flow(thread, step),
        };
        set_register(thread, step, 0, result_bits);
        Ok(AfterStep::Continue)
    }

    /// A load or a store of the device's memory, of one element or of several in a row.
    fn access_memory(&mut self, thread: &mut Thread, step: &Instruction) -> Result<(), Code> {
        if !thread.waited {
            return Err(EARLY);
        }

        let mut element_bytes = [0; 16];
        match step.op {
            Op::Load(size, signed, count) => {
                // The elements' registers come first, the address behind them.
                let address = self.operand_value(thread, step, count);
                let loaded_bytes = &mut element_bytes[..size * count];
                self.memory.load(address, loaded_bytes)?;
                for (index, element) in loaded_bytes.chunks(size).enumerate() {
                    set_register(thread, step, index, extend_bits(element, signed));
                }
            }
            Op::Store(size, count) => {
                let stored_bytes = &mut element_bytes[..size * count];
                for (index, element) in stored_bytes.chunks_mut(size).enumerate() {
                    let value_bytes = self.operand_value(thread, step, 1 + index).to_le_bytes();
                    element.copy_from_slice(&value_bytes[..size]);
                }
                let address = self.operand_value(thread, step, 0);
                self.memory.store(address, stored_bytes)?;
            }
            _ => unreachable!("line {}: not an access to memory", step.line),
        }
        Ok(())
    }
}

/// Runs an instruction that says where, or whether, a thread goes on.
fn change_flow(thread: &mut Thread, step: &Instruction) -> Result<AfterStep, Code> {
    match step.op {
        Op::Branch => {
            let Operand::Target(target) = step.operands[0] else {
                panic!("line {}", step.line)
            };
            thread.at = target;
        }
        Op::Barrier | Op::Multiply(_) | Op::Swap => return Ok(AfterStep::Stop),
        Op::Trap => return Err(Code(719)),
        Op::Wait => thread.waited = true,
        Op::AllowDependents => {}
        Op::Return if !thread.waited => return Err(EARLY),
        Op::Return => {
            thread.done = true;
            thread.at -= 1;
            return Ok(AfterStep::Stop);
        }
        _ => unreachable!("line {}: not a change of flow", step.line),
    }
    Ok(AfterStep::Continue)
}

fn set_register(thread: &mut Thread, step: &Instruction, operand: usize, value: u64) {
    let Operand::Reg(to) = step.operands[operand] else {
        panic!("line {}", step.line)
    };
    thread.registers[to] = value;
}

fn extend_bits(bytes: &[u8], signed: bool) -> u64 {
    let mut value_bytes = [0; 8];
    value_bytes[..bytes.len()].copy_from_slice(bytes);
    let value = u64::from_le_bytes(value_bytes);
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
    let operand_texts = rest.split(',').map(str::trim);
    let operands = operand_texts
        .filter(|text| !text.is_empty())
        .map(|text| names.operand(text))
        .collect();

    Instruction {
        guard,
        op: parse_op(name),
        operands,
        line: line + 1,
    }
}
