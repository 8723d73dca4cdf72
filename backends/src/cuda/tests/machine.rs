//! A machine for the PTX that the printer makes: reads the text by the PTX manual and runs groups of threads, one after
//! the other. Every access is checked against the memory that was lent, and all threads must meet at the same barriers.

use std::collections::BTreeMap;

/// Bytes between the addresses of two buffers.
const APART: u64 = 1 << 40;

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
    Branch,
    Barrier,
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
    local: u32,
    parameters: usize,
}

struct Thread {
    at: usize,
    registers: Vec<u64>,
    tid: u32,
    done: bool,
}

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn fb(value: f32) -> u64 {
    value.to_bits().into()
}

fn i(bits: u64) -> i32 {
    bits as u32 as i32
}

fn ib(value: i32) -> u64 {
    (value as u32).into()
}

fn u(bits: u64) -> u32 {
    bits as u32
}

fn t(value: bool) -> u64 {
    value.into()
}

fn divided(a: i64, b: i64) -> i64 {
    if b == 0 { -1 } else { a.wrapping_div(b) }
}

/// The PTX manual, as far as it is needed.
fn one(name: &str) -> Option<fn(u64) -> u64> {
    Some(match name {
        "mov.b32" | "mov.u32" | "mov.f32" => |a| u(a).into(),
        "mov.b64" | "mov.f64" | "mov.pred" | "cvta.to.global.u64" => |a| a,
        "not.pred" => |a| a ^ 1,
        "not.b32" => |a| (!u(a)).into(),
        "not.b64" => |a| !a,
        "neg.s32" => |a| ib(i(a).wrapping_neg()),
        "neg.s64" => |a| a.wrapping_neg(),
        "neg.f32" => |a| fb(-f(a)),
        "neg.f64" => |a| (-d(a)).to_bits(),
        "abs.f32" => |a| fb(f(a).abs()),
        "abs.f64" => |a| d(a).abs().to_bits(),
        "sqrt.rn.f32" => |a| fb(f(a).sqrt()),
        "sqrt.rn.f64" => |a| d(a).sqrt().to_bits(),
        "cvt.rmi.f32.f32" => |a| fb(f(a).floor()),
        "cvt.rmi.f64.f64" => |a| d(a).floor().to_bits(),
        "cvt.rni.f32.f32" => |a| fb(f(a).round_ties_even()),
        "cvt.rni.f64.f64" => |a| d(a).round_ties_even().to_bits(),
        "cvt.f64.f32" => |a| f64::from(f(a)).to_bits(),
        "cvt.rn.f32.f64" => |a| fb(d(a) as f32),
        "cvt.rzi.s32.f32" => |a| ib(f(a) as i32),
        "cvt.rzi.u32.f32" => |a| (f(a) as u32).into(),
        "cvt.rzi.s64.f32" => |a| f(a) as i64 as u64,
        "cvt.rzi.u64.f32" => |a| f(a) as u64,
        "cvt.rzi.s32.f64" => |a| ib(d(a) as i32),
        "cvt.rzi.u32.f64" => |a| (d(a) as u32).into(),
        "cvt.rzi.s64.f64" => |a| d(a) as i64 as u64,
        "cvt.rzi.u64.f64" => |a| d(a) as u64,
        "cvt.rn.f32.s32" => |a| fb(i(a) as f32),
        "cvt.rn.f32.u32" => |a| fb(u(a) as f32),
        "cvt.rn.f32.s64" => |a| fb(a as i64 as f32),
        "cvt.rn.f32.u64" => |a| fb(a as f32),
        "cvt.rn.f64.s32" => |a| f64::from(i(a)).to_bits(),
        "cvt.rn.f64.u32" => |a| f64::from(u(a)).to_bits(),
        "cvt.rn.f64.s64" => |a| (a as i64 as f64).to_bits(),
        "cvt.rn.f64.u64" => |a| (a as f64).to_bits(),
        "cvt.s64.s32" => |a| i64::from(i(a)) as u64,
        "cvt.u64.u32" | "cvt.u32.u64" => |a| u(a).into(),
        _ => return None,
    })
}

fn two(name: &str) -> Option<fn(u64, u64) -> u64> {
    Some(match name {
        "add.rn.f32" => |a, b| fb(f(a) + f(b)),
        "sub.rn.f32" => |a, b| fb(f(a) - f(b)),
        "mul.rn.f32" => |a, b| fb(f(a) * f(b)),
        "div.rn.f32" => |a, b| fb(f(a) / f(b)),
        "add.rn.f64" => |a, b| (d(a) + d(b)).to_bits(),
        "sub.rn.f64" => |a, b| (d(a) - d(b)).to_bits(),
        "mul.rn.f64" => |a, b| (d(a) * d(b)).to_bits(),
        "div.rn.f64" => |a, b| (d(a) / d(b)).to_bits(),
        "add.s32" | "add.u32" => |a, b| u(a).wrapping_add(u(b)).into(),
        "sub.s32" | "sub.u32" => |a, b| u(a).wrapping_sub(u(b)).into(),
        "mul.lo.s32" | "mul.lo.u32" => |a, b| u(a).wrapping_mul(u(b)).into(),
        "add.s64" | "add.u64" => u64::wrapping_add,
        "sub.s64" | "sub.u64" => u64::wrapping_sub,
        "mul.lo.s64" | "mul.lo.u64" => u64::wrapping_mul,
        "mul.hi.u32" => |a, b| (u64::from(u(a)) * u64::from(u(b))) >> 32,
        "mul.wide.u32" => |a, b| u64::from(u(a)) * u64::from(u(b)),
        "div.s32" => |a, b| ib(divided(i(a).into(), i(b).into()) as i32),
        "div.u32" => |a, b| u(a).checked_div(u(b)).unwrap_or(u32::MAX).into(),
        "div.s64" => |a, b| divided(a as i64, b as i64) as u64,
        "div.u64" => |a, b| a.checked_div(b).unwrap_or(u64::MAX),
        "rem.s32" => |a, b| if i(b) == 0 { a } else { ib(i(a).wrapping_rem(i(b))) },
        "rem.u32" => |a, b| u(a).checked_rem(u(b)).unwrap_or(u(a)).into(),
        "rem.s64" => {
            |a, b| if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 }
        }
        "rem.u64" => |a, b| a.checked_rem(b).unwrap_or(a),
        "and.pred" | "and.b64" => |a, b| a & b,
        "or.pred" | "or.b64" => |a, b| a | b,
        "xor.pred" | "xor.b64" => |a, b| a ^ b,
        "and.b32" => |a, b| (u(a) & u(b)).into(),
        "or.b32" => |a, b| (u(a) | u(b)).into(),
        "xor.b32" => |a, b| (u(a) ^ u(b)).into(),
        // Distances beyond the width count as the width.
        "shl.b32" => |a, b| u(a).checked_shl(u(b)).unwrap_or(0).into(),
        "shr.u32" => |a, b| u(a).checked_shr(u(b)).unwrap_or(0).into(),
        "shr.s32" => |a, b| ib(i(a) >> u(b).min(31)),
        "shl.b64" => |a, b| a.checked_shl(u(b)).unwrap_or(0),
        "shr.u64" => |a, b| a.checked_shr(u(b)).unwrap_or(0),
        "shr.s64" => |a, b| ((a as i64) >> u(b).min(63)) as u64,
        "setp.lt.s32" => |a, b| t(i(a) < i(b)),
        "setp.le.s32" => |a, b| t(i(a) <= i(b)),
        "setp.lt.u32" => |a, b| t(u(a) < u(b)),
        "setp.le.u32" => |a, b| t(u(a) <= u(b)),
        "setp.ge.u32" => |a, b| t(u(a) >= u(b)),
        "setp.eq.s32" | "setp.eq.u32" => |a, b| t(u(a) == u(b)),
        "setp.ne.s32" | "setp.ne.u32" => |a, b| t(u(a) != u(b)),
        "setp.lt.s64" => |a, b| t((a as i64) < b as i64),
        "setp.le.s64" => |a, b| t(a as i64 <= b as i64),
        "setp.lt.u64" => |a, b| t(a < b),
        "setp.le.u64" => |a, b| t(a <= b),
        "setp.eq.s64" | "setp.eq.u64" => |a, b| t(a == b),
        "setp.ne.s64" | "setp.ne.u64" => |a, b| t(a != b),
        "setp.lt.f32" => |a, b| t(f(a) < f(b)),
        "setp.le.f32" => |a, b| t(f(a) <= f(b)),
        "setp.eq.f32" => |a, b| t(f(a) == f(b)),
        "setp.neu.f32" => |a, b| t(f(a) != f(b)),
        "setp.lt.f64" => |a, b| t(d(a) < d(b)),
        "setp.le.f64" => |a, b| t(d(a) <= d(b)),
        "setp.eq.f64" => |a, b| t(d(a) == d(b)),
        "setp.neu.f64" => |a, b| t(d(a) != d(b)),
        _ => return None,
    })
}

fn three(name: &str) -> Option<fn(u64, u64, u64) -> u64> {
    Some(match name {
        "fma.rn.f32" => |a, b, c| fb(f(a).mul_add(f(b), f(c))),
        "fma.rn.f64" => |a, b, c| d(a).mul_add(d(b), d(c)).to_bits(),
        "mad.lo.u32" => |a, b, c| u(a).wrapping_mul(u(b)).wrapping_add(u(c)).into(),
        "selp.b32" | "selp.b64" | "selp.f32" | "selp.f64" => |a, b, c| if c == 1 { a } else { b },
        _ => return None,
    })
}

fn op(name: &str) -> Op {
    let size = |ty: &str| match ty {
        "u8" | "s8" => 1,
        "u16" | "s16" => 2,
        "b32" | "f32" => 4,
        "b64" | "f64" => 8,
        _ => panic!("memory of {ty}"),
    };
    if let Some(ty) = name.strip_prefix("ld.global.") {
        let (count, ty) = ty.strip_prefix("v2.").map_or((1, ty), |ty| (2, ty));
        return Op::Load(size(ty), ty.starts_with('s'), count);
    }
    if let Some(ty) = name.strip_prefix("st.global.") {
        let (count, ty) = ty.strip_prefix("v2.").map_or((1, ty), |ty| (2, ty));
        return Op::Store(size(ty), count);
    }
    if let Some(ty) = name.strip_prefix("ld.shared.") {
        return Op::LoadShared(size(ty));
    }
    if let Some(ty) = name.strip_prefix("st.shared.") {
        return Op::StoreShared(size(ty));
    }
    match name {
        "ld.param.u64" | "ld.param.u32" => Op::Parameter,
        "bra" => Op::Branch,
        "bar.sync" => Op::Barrier,
        "ret" => Op::Return,
        name => one(name)
            .map(Op::One)
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
        let value = ["0x", "0f", "0d"].iter().find_map(|p| text.strip_prefix(p).and_then(hex));
        let value = value.or_else(|| text.parse().ok());
        Operand::Value(value.unwrap_or_else(|| panic!("what is {text}?")))
    }
}

impl Module {
    /// Reads a module.
    pub(super) fn read(text: &str) -> Module {
        let mut names = Names::default();
        let (mut lines, mut shared_bytes, mut local) = (Vec::new(), 0_usize, 0);
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let words: Vec<&str> = line.split([' ', ',', ';']).filter(|w| !w.is_empty()).collect();
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
                        assert!(names.registers.insert(full, number).is_none(), "{name} twice");
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
                    assert!(names.labels.insert(label, lines.len()).is_none(), "{line} twice");
                }
                _ => lines.push((number, line.trim_end_matches(';'))),
            }
        }
        let code = lines.iter().map(|(number, line)| instruction(&names, *number, line)).collect();
        let (registers, parameters) = (names.registers.len(), names.parameters.len());
        Module { code, registers, shared_bytes, local, parameters }
    }

    /// Runs `groups` groups; operands are numbers of buffers, with the offset of their first byte.
    pub(super) fn run(
        &self,
        groups: u32,
        buffers: &mut [Vec<u8>],
        operands: &[(usize, u64)],
        words: &[u32],
    ) {
        let pointers = operands.iter().map(|(b, offset)| (*b as u64 + 1) * APART + offset);
        let parameters: Vec<u64> = pointers.chain(words.iter().map(|w| u64::from(*w))).collect();
        assert_eq!(parameters.len(), self.parameters);
        for group in 0..groups {
            let thread = |tid| Thread { at: 0, registers: vec![0; self.registers], tid, done: false };
            let mut threads: Vec<Thread> = (0..self.local).map(thread).collect();
            let mut shared = vec![0xa5; self.shared_bytes];
            let launch = [group, groups];
            while threads.iter().any(|t| !t.done) {
                for thread in &mut threads {
                    self.until_barrier(thread, launch, &parameters, buffers, &mut shared);
                }
                let first = (threads[0].at, threads[0].done);
                assert!(threads.iter().all(|t| (t.at, t.done) == first), "barriers are not met");
            }
        }
    }

    fn until_barrier(
        &self,
        thread: &mut Thread,
        launch: [u32; 2],
        parameters: &[u64],
        buffers: &mut [Vec<u8>],
        shared: &mut [u8],
    ) {
        loop {
            let step = &self.code[thread.at];
            thread.at += 1;
            if step.guard.is_some_and(|(r, wanted)| (thread.registers[r] == 1) != wanted) {
                continue;
            }
            let value = |n: usize| match step.operands[n] {
                Operand::Reg(r) => thread.registers[r],
                Operand::Value(v) => v,
                Operand::Special(Special::Tid) => thread.tid.into(),
                Operand::Special(Special::Ctaid) => launch[0].into(),
                Operand::Special(Special::Nctaid) => launch[1].into(),
                Operand::Target(to) => panic!("line {}: {to} as a value", step.line),
            };
            let result = match step.op {
                Op::One(of) => of(value(1)),
                Op::Two(of) => of(value(1), value(2)),
                Op::Three(of) => of(value(1), value(2), value(3)),
                Op::Parameter => parameters[value(1) as usize],
                Op::Load(size, signed, count) => {
                    let from = place(buffers, value(count), size * count, step.line);
                    let parts: Vec<u64> = from.chunks(size).map(|c| extend(c, signed)).collect();
                    for (n, part) in parts.iter().enumerate() {
                        set(thread, step, n, *part);
                    }
                    continue;
                }
                Op::Store(size, count) => {
                    let values: Vec<u64> = (0..count).map(|n| value(1 + n)).collect();
                    let to = place(buffers, value(0), size * count, step.line);
                    for (to, v) in to.chunks_mut(size).zip(values) {
                        to.copy_from_slice(&v.to_le_bytes()[..size]);
                    }
                    continue;
                }
                Op::LoadShared(size) => extend(&shared[value(1) as usize..][..size], false),
                Op::StoreShared(size) => {
                    let (at, bytes) = (value(0) as usize, value(1).to_le_bytes());
                    shared[at..at + size].copy_from_slice(&bytes[..size]);
                    continue;
                }
                Op::Branch => {
                    let Operand::Target(to) = step.operands[0] else { panic!("line {}", step.line) };
                    thread.at = to;
                    continue;
                }
                Op::Barrier => return,
                Op::Return => {
                    thread.done = true;
                    thread.at -= 1;
                    return;
                }
            };
            set(thread, step, 0, result);
        }
    }
}

fn set(thread: &mut Thread, step: &Instruction, operand: usize, value: u64) {
    let Operand::Reg(to) = step.operands[operand] else { panic!("line {}", step.line) };
    thread.registers[to] = value;
}

fn extend(bytes: &[u8], signed: bool) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    let value = u64::from_le_bytes(all);
    match bytes.len() {
        1 if signed => ib((value as u8 as i8).into()),
        2 if signed => ib((value as u16 as i16).into()),
        _ => value,
    }
}

/// The bytes at an address, which must be aligned to all of them.
fn place(buffers: &mut [Vec<u8>], address: u64, bytes: usize, line: usize) -> &mut [u8] {
    let at = (address % APART) as usize;
    let buffer = (address / APART).checked_sub(1).and_then(|b| buffers.get_mut(b as usize));
    let buffer = buffer.unwrap_or_else(|| panic!("line {line}: no buffer at {address:#x}"));
    assert_eq!(at % bytes, 0, "line {line}: {bytes} bytes at {address:#x}");
    let len = buffer.len();
    buffer.get_mut(at..at + bytes).unwrap_or_else(|| panic!("line {line}: {at} of {len} bytes"))
}

fn instruction(names: &Names, line: usize, text: &str) -> Instruction {
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
    Instruction { guard, op: op(name), operands, line: line + 1 }
}
