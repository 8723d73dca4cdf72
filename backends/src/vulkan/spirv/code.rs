//! Statements and instructions.

use rspirv::dr::{InsertPoint, Instruction, Operand};
use rspirv::spirv::{
    Decoration, GlslStd450Op as GlOp, MemorySemantics, Op, Scope, StorageClass, Word,
};

use super::Printer;
use crate::kernels::lang::{Bin, Cmp, Code, Mem, Place, Reg, Stmt, Ty, Un};

fn ids(words: &[Word]) -> Vec<Operand> {
    words.iter().map(|&w| Operand::IdRef(w)).collect()
}

impl<'a> Printer<'a> {
    fn push(&mut self, instruction: Instruction) {
        let pushed = self.b.insert_into_block(InsertPoint::End, instruction);
        pushed.expect("statements lie in blocks");
    }

    /// An instruction with a result.
    fn op(&mut self, op: Op, ty: Word, operands: Vec<Operand>) -> Word {
        let id = self.b.id();
        self.push(Instruction::new(op, Some(ty), Some(id), operands));
        id
    }

    /// An instruction without one.
    pub(super) fn plain(&mut self, op: Op, operands: Vec<Operand>) {
        self.push(Instruction::new(op, None, None, operands));
    }

    fn glsl(&mut self, function: GlOp, ty: Word, of: Word) -> Word {
        let number = Operand::LiteralExtInstInteger(function as u32);
        self.op(
            Op::ExtInst,
            ty,
            vec![Operand::IdRef(self.glsl), number, Operand::IdRef(of)],
        )
    }

    fn reg(&self, reg: Reg) -> Word {
        let word = self.regs[reg.0 as usize];
        assert_ne!(
            word, 0,
            "r{} of {} is read before it is set",
            reg.0, self.kernel.name
        );
        word
    }

    fn type_of(&self, reg: Reg) -> Ty {
        self.kernel.regs[reg.0 as usize]
    }

    fn label(&mut self, id: Word) {
        // The builder lets blocks begin only when none is open; a branch, made by hand, has closed the last one.
        self.b.select_block(None).expect("none is always there");
        self.b
            .begin_block(Some(id))
            .expect("the last block was left");
    }

    fn branch(&mut self, to: Word) {
        self.plain(Op::Branch, ids(&[to]));
    }

    pub(super) fn body(&mut self, body: &'a [Stmt]) {
        for stmt in body {
            self.stmt(stmt);
        }
    }

    fn stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::Let(reg, code) => {
                let ty = self.type_of(*reg);
                self.regs[reg.0 as usize] = self.code(ty, *code);
            }
            Stmt::LoadPair(regs, binding, at) => {
                let pointer = self.place_of(*binding, *at);
                let (pair, float) = (self.element(Mem::Pair), self.ty(Ty::F32));
                let value = self.op(Op::Load, pair, ids(&[pointer]));
                for (part, reg) in regs.iter().enumerate() {
                    let part = Operand::LiteralBit32(part as u32);
                    let operands = vec![Operand::IdRef(value), part];
                    self.regs[reg.0 as usize] = self.op(Op::CompositeExtract, float, operands);
                }
            }
            Stmt::Store(binding, at, value) => self.store(*binding, *at, *value),
            Stmt::StorePair(binding, at, [a, b]) => {
                let pair = self.element(Mem::Pair);
                let parts = ids(&[self.reg(*a), self.reg(*b)]);
                let value = self.op(Op::CompositeConstruct, pair, parts);
                let pointer = self.place_of(*binding, *at);
                self.plain(Op::Store, ids(&[pointer, value]));
            }
            Stmt::SetShared(array, at, value) => {
                let pointer = self.shared_place(*array, *at);
                let value = self.reg(*value);
                self.plain(Op::Store, ids(&[pointer, value]));
            }
            Stmt::SetVar(var, value) => {
                let operands = ids(&[self.vars[*var as usize], self.reg(*value)]);
                self.plain(Op::Store, operands);
            }
            Stmt::Barrier => {
                let semantics =
                    MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::WORKGROUP_MEMORY;
                let group = self.u32(Scope::Workgroup as u32);
                let semantics = self.u32(semantics.bits());
                let operands = vec![
                    Operand::IdScope(group),
                    Operand::IdScope(group),
                    Operand::IdMemorySemantics(semantics),
                ];
                self.plain(Op::ControlBarrier, operands);
            }
            // `KernelPlan::lacks` keeps such kernels away.
            Stmt::Multiply(..) => unreachable!("products on tensor cores are CUDA's"),
            Stmt::If(c, then, other) => self.branches(*c, then, other),
            Stmt::Loop(var, until, step, body) => self.repeat(*var, *until, *step, body),
        }
    }

    fn branches(&mut self, c: Reg, then: &'a [Stmt], other: &'a [Stmt]) {
        use rspirv::spirv::SelectionControl;
        let (yes, no, end) = (self.b.id(), self.b.id(), self.b.id());
        let no = if other.is_empty() { end } else { no };
        let control = Operand::SelectionControl(SelectionControl::NONE);
        self.plain(Op::SelectionMerge, vec![Operand::IdRef(end), control]);
        let c = self.reg(c);
        self.plain(Op::BranchConditional, ids(&[c, yes, no]));
        self.label(yes);
        self.body(then);
        self.branch(end);
        if !other.is_empty() {
            self.label(no);
            self.body(other);
            self.branch(end);
        }
        self.label(end);
    }

    fn repeat(&mut self, var: u32, until: Reg, step: Reg, body: &'a [Stmt]) {
        use rspirv::spirv::LoopControl;
        let [head, check, inside, next, end] = std::array::from_fn(|_| self.b.id());
        let (word, truth) = (self.ty(Ty::U32), self.ty(Ty::Bool));
        let (until, step) = (self.reg(until), self.reg(step));
        let var = self.vars[var as usize];
        self.branch(head);
        self.label(head);
        let control = Operand::LoopControl(LoopControl::NONE);
        self.plain(
            Op::LoopMerge,
            vec![Operand::IdRef(end), Operand::IdRef(next), control],
        );
        self.branch(check);
        self.label(check);
        let now = self.op(Op::Load, word, ids(&[var]));
        let more = self.op(Op::ULessThan, truth, ids(&[now, until]));
        self.plain(Op::BranchConditional, ids(&[more, inside, end]));
        self.label(inside);
        self.body(body);
        self.branch(next);
        self.label(next);
        let now = self.op(Op::Load, word, ids(&[var]));
        let then = self.op(Op::IAdd, word, ids(&[now, step]));
        self.plain(Op::Store, ids(&[var, then]));
        self.branch(head);
        self.label(end);
    }

    fn place_of(&mut self, binding: u32, at: Reg) -> Word {
        let element = self.element(self.kernel.bindings[binding as usize].mem);
        let pointer = self.pointer(StorageClass::StorageBuffer, element);
        let (zero, at) = (self.u32(0), self.reg(at));
        let base = self.bindings[binding as usize];
        self.op(Op::AccessChain, pointer, ids(&[base, zero, at]))
    }

    fn shared_place(&mut self, array: u32, at: Reg) -> Word {
        let element = self.ty(self.kernel.shared[array as usize].0);
        let pointer = self.pointer(StorageClass::Workgroup, element);
        let operands = ids(&[self.shared[array as usize], self.reg(at)]);
        self.op(Op::AccessChain, pointer, operands)
    }

    fn store(&mut self, binding: u32, at: Reg, value: Reg) {
        let mem = self.kernel.bindings[binding as usize].mem;
        let (element, value) = (self.element(mem), self.reg(value));
        let value = match mem {
            Mem::U8 | Mem::U16 => self.op(Op::UConvert, element, ids(&[value])),
            Mem::I8 | Mem::I16 => self.op(Op::SConvert, element, ids(&[value])),
            _ => value,
        };
        let pointer = self.place_of(binding, at);
        self.plain(Op::Store, ids(&[pointer, value]));
    }

    fn load(&mut self, binding: u32, at: Reg) -> Word {
        let mem = self.kernel.bindings[binding as usize].mem;
        let (element, ty) = (self.element(mem), self.ty(mem.ty()));
        let pointer = self.place_of(binding, at);
        let value = self.op(Op::Load, element, ids(&[pointer]));
        match mem {
            Mem::U8 | Mem::U16 => self.op(Op::UConvert, ty, ids(&[value])),
            Mem::I8 | Mem::I16 => self.op(Op::SConvert, ty, ids(&[value])),
            _ => value,
        }
    }

    fn code(&mut self, ty: Ty, code: Code) -> Word {
        let out = self.ty(ty);
        match code {
            Code::Const(bits) => self.constant(ty, bits),
            Code::Spec(i) => self.specs[i as usize],
            Code::Arg(i) => {
                let (pointer, zero) = (self.pointer(StorageClass::PushConstant, out), self.u32(0));
                let operands = ids(&[self.arguments, zero, self.u32(i)]);
                let place = self.op(Op::AccessChain, pointer, operands);
                self.op(Op::Load, out, ids(&[place]))
            }
            Code::Place(place) => self.thread_place(place),
            Code::Un(un, a) => self.unary(un, ty, a),
            Code::Bin(bin, a, b) => self.binary(bin, ty, a, b),
            Code::Cmp(cmp, a, b) => self.compare(cmp, a, b),
            Code::Select(c, a, b) => {
                let operands = ids(&[self.reg(c), self.reg(a), self.reg(b)]);
                self.op(Op::Select, out, operands)
            }
            Code::Fma(a, b, c) => {
                let operands = [self.reg(a), self.reg(b), self.reg(c)];
                let mut all = vec![
                    Operand::IdRef(self.glsl),
                    Operand::LiteralExtInstInteger(GlOp::Fma as u32),
                ];
                all.extend(ids(&operands));
                self.op(Op::ExtInst, out, all)
            }
            Code::Cast(a) => self.cast(ty, a),
            Code::Bits(a) => {
                let a = self.reg(a);
                self.op(Op::Bitcast, out, ids(&[a]))
            }
            Code::Factor(..) | Code::Pack(..) | Code::Swapped(..) => {
                unreachable!("warps and their factors are CUDA's")
            }
            Code::Load(binding, at) => self.load(binding, at),
            Code::Shared(array, at) => {
                let place = self.shared_place(array, at);
                self.op(Op::Load, out, ids(&[place]))
            }
            Code::Var(var) => {
                let operands = ids(&[self.vars[var as usize]]);
                self.op(Op::Load, out, operands)
            }
        }
    }

    fn thread_place(&mut self, place: Place) -> Word {
        let word = self.ty(Ty::U32);
        let (pointer, zero) = (self.pointer(StorageClass::Input, word), self.u32(0));
        let operands = ids(&[self.places[&place], zero]);
        let place = self.op(Op::AccessChain, pointer, operands);
        self.op(Op::Load, word, ids(&[place]))
    }

    fn unary(&mut self, un: Un, ty: Ty, a: Reg) -> Word {
        let (out, a) = (self.ty(ty), self.reg(a));
        match (un, ty) {
            (Un::Neg, ty) if ty.is_float() => self.op(Op::FNegate, out, ids(&[a])),
            (Un::Neg, _) => self.op(Op::SNegate, out, ids(&[a])),
            (Un::Not, Ty::Bool) => self.op(Op::LogicalNot, out, ids(&[a])),
            (Un::Not, _) => self.op(Op::Not, out, ids(&[a])),
            (Un::Abs, ty) if ty.is_float() => self.glsl(GlOp::FAbs, out, a),
            // Not SAbs, which leaves the smallest number open.
            (Un::Abs, ty) => {
                let (truth, zero) = (self.ty(Ty::Bool), self.constant(ty, 0));
                let below = self.op(Op::SLessThan, truth, ids(&[a, zero]));
                let negated = self.op(Op::SNegate, out, ids(&[a]));
                self.op(Op::Select, out, ids(&[below, negated, a]))
            }
            (Un::Sqrt, _) => self.glsl(GlOp::Sqrt, out, a),
            (Un::Floor, _) => self.glsl(GlOp::Floor, out, a),
            (Un::Round, _) => self.glsl(GlOp::RoundEven, out, a),
        }
    }

    fn binary(&mut self, bin: Bin, ty: Ty, a: Reg, b: Reg) -> Word {
        let (out, a, b) = (self.ty(ty), self.reg(a), self.reg(b));
        let (float, signed) = (ty.is_float(), ty.is_signed());
        let op = match (bin, ty) {
            (Bin::And, Ty::Bool) => Op::LogicalAnd,
            (Bin::Or, Ty::Bool) => Op::LogicalOr,
            (Bin::Xor, Ty::Bool) => Op::LogicalNotEqual,
            (Bin::And, _) => Op::BitwiseAnd,
            (Bin::Or, _) => Op::BitwiseOr,
            (Bin::Xor, _) => Op::BitwiseXor,
            (Bin::Shl, _) => Op::ShiftLeftLogical,
            (Bin::Shr, _) if signed => Op::ShiftRightArithmetic,
            (Bin::Shr, _) => Op::ShiftRightLogical,
            (Bin::Add, _) if float => Op::FAdd,
            (Bin::Sub, _) if float => Op::FSub,
            (Bin::Mul, _) if float => Op::FMul,
            (Bin::Div, _) if float => Op::FDiv,
            (Bin::Add, _) => Op::IAdd,
            (Bin::Sub, _) => Op::ISub,
            (Bin::Mul, _) => Op::IMul,
            (Bin::Div, _) if signed => Op::SDiv,
            (Bin::Div, _) => Op::UDiv,
            (Bin::Rem, _) if signed => Op::SRem,
            (Bin::Rem, _) => Op::UMod,
            (Bin::MulHigh, _) => {
                let both = self.b.type_struct([out, out]);
                let product = self.op(Op::UMulExtended, both, ids(&[a, b]));
                let high = vec![Operand::IdRef(product), Operand::LiteralBit32(1)];
                return self.op(Op::CompositeExtract, out, high);
            }
        };
        let result = self.op(op, out, ids(&[a, b]));
        if matches!(op, Op::FAdd | Op::FSub | Op::FMul) {
            self.b.decorate(result, Decoration::NoContraction, []);
        }
        result
    }

    fn compare(&mut self, cmp: Cmp, a: Reg, b: Reg) -> Word {
        let (ty, truth) = (self.type_of(a), self.ty(Ty::Bool));
        let op = match (cmp, ty) {
            (Cmp::Less, ty) if ty.is_float() => Op::FOrdLessThan,
            (Cmp::LessEqual, ty) if ty.is_float() => Op::FOrdLessThanEqual,
            (Cmp::Equal, ty) if ty.is_float() => Op::FOrdEqual,
            (Cmp::NotEqual, ty) if ty.is_float() => Op::FUnordNotEqual,
            (Cmp::Less, ty) if ty.is_signed() => Op::SLessThan,
            (Cmp::LessEqual, ty) if ty.is_signed() => Op::SLessThanEqual,
            (Cmp::Less, _) => Op::ULessThan,
            (Cmp::LessEqual, _) => Op::ULessThanEqual,
            (Cmp::Equal, Ty::Bool) => Op::LogicalEqual,
            (Cmp::NotEqual, Ty::Bool) => Op::LogicalNotEqual,
            (Cmp::Equal, _) => Op::IEqual,
            (Cmp::NotEqual, _) => Op::INotEqual,
        };
        let operands = ids(&[self.reg(a), self.reg(b)]);
        self.op(op, truth, operands)
    }

    fn cast(&mut self, to: Ty, a: Reg) -> Word {
        let (from, out) = (self.type_of(a), self.ty(to));
        let a = self.reg(a);
        if from == Ty::Bool {
            let one = match to {
                Ty::F32 => u64::from(1f32.to_bits()),
                Ty::F64 => 1f64.to_bits(),
                _ => 1,
            };
            let (one, zero) = (self.constant(to, one), self.constant(to, 0));
            return self.op(Op::Select, out, ids(&[a, one, zero]));
        }
        if to == Ty::Bool {
            let zero = self.constant(from, 0);
            let op = if from.is_float() {
                Op::FUnordNotEqual
            } else {
                Op::INotEqual
            };
            return self.op(op, out, ids(&[a, zero]));
        }
        let op = match (from.is_float(), to.is_float()) {
            (true, true) => Op::FConvert,
            (true, false) if to.is_signed() => Op::ConvertFToS,
            (true, false) => Op::ConvertFToU,
            (false, true) if from.is_signed() => Op::ConvertSToF,
            (false, true) => Op::ConvertUToF,
            (false, false) => return self.cast_integer(from, to, a),
        };
        self.op(op, out, ids(&[a]))
    }

    /// Widens by the sign of what is widened; the result's sign is a matter of names.
    fn cast_integer(&mut self, from: Ty, to: Ty, a: Word) -> Word {
        let out = self.ty(to);
        if from.is_wide() == to.is_wide() {
            return self.op(Op::Bitcast, out, ids(&[a]));
        }
        if from.is_signed() {
            return self.op(Op::SConvert, out, ids(&[a]));
        }
        let unsigned = if to.is_wide() { Ty::U64 } else { Ty::U32 };
        let middle = self.ty(unsigned);
        let value = self.op(Op::UConvert, middle, ids(&[a]));
        if unsigned == to {
            value
        } else {
            self.op(Op::Bitcast, out, ids(&[value]))
        }
    }
}
