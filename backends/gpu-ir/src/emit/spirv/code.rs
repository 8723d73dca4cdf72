//! Statements and instructions.

use rspirv::dr::{InsertPoint, Instruction, Operand};
use rspirv::spirv::{
    Decoration, GlslStd450Op as GlOp, MemorySemantics, Op, Scope, StorageClass, Word,
};

use super::Printer;
use crate::lang::{Bin, Cmp, Code, Mem, Place, Reg, Stmt, Ty, Un};

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
                let register_type = self.type_of(*reg);
                self.regs[reg.0 as usize] = self.code(register_type, *code);
            }
            Stmt::LoadPair(regs, binding, at) => {
                let element_pointer = self.place_of(*binding, *at);
                let pair_type = self.element_type(Mem::Pair);
                let float_type = self.ty(Ty::F32);
                let stored_value = self.op(Op::Load, pair_type, ids(&[element_pointer]));

                for (part, reg) in regs.iter().enumerate() {
                    let part = Operand::LiteralBit32(part as u32);
                    let store_operands = vec![Operand::IdRef(stored_value), part];
                    self.regs[reg.0 as usize] =
                        self.op(Op::CompositeExtract, float_type, store_operands);
                }
            }
            Stmt::Store(binding, at, stored_value) => {
                self.store_element(*binding, *at, *stored_value)
            }
            Stmt::StorePair(binding, at, [a, b]) => {
                let pair_type = self.element_type(Mem::Pair);
                let part_ids = ids(&[self.reg(*a), self.reg(*b)]);
                let stored_value = self.op(Op::CompositeConstruct, pair_type, part_ids);
                let element_pointer = self.place_of(*binding, *at);
                self.plain(Op::Store, ids(&[element_pointer, stored_value]));
            }
            Stmt::SetShared(array, at, stored_value) => {
                let element_pointer = self.shared_place(*array, *at);
                let stored_value = self.reg(*stored_value);
                self.plain(Op::Store, ids(&[element_pointer, stored_value]));
            }
            Stmt::SetVar(var, stored_value) => {
                let store_operands = ids(&[self.vars[*var as usize], self.reg(*stored_value)]);
                self.plain(Op::Store, store_operands);
            }
            Stmt::Barrier => {
                // Shared memory written before the barrier is visible behind it.
                let barrier_semantics =
                    MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::WORKGROUP_MEMORY;
                let group_scope = self.u32(Scope::Workgroup as u32);
                let barrier_semantics = self.u32(barrier_semantics.bits());
                let store_operands = vec![
                    Operand::IdScope(group_scope),
                    Operand::IdScope(group_scope),
                    Operand::IdMemorySemantics(barrier_semantics),
                ];
                self.plain(Op::ControlBarrier, store_operands);
            }
            // `KernelPlan::lacks` keeps such kernels away.
            Stmt::Multiply(..) => unreachable!("products on tensor cores are CUDA's"),
            Stmt::If(c, then, other) => self.write_branches(*c, then, other),
            Stmt::Loop(var, until, step, body) => self.write_loop(*var, *until, *step, body),
        }
    }

    fn write_branches(&mut self, c: Reg, then: &'a [Stmt], other: &'a [Stmt]) {
        use rspirv::spirv::SelectionControl;
        let then_label = self.b.id();
        let else_label = self.b.id();
        let end_label = self.b.id();
        let else_label = if other.is_empty() {
            end_label
        } else {
            else_label
        };
        let merge_control = Operand::SelectionControl(SelectionControl::NONE);
        self.plain(
            Op::SelectionMerge,
            vec![Operand::IdRef(end_label), merge_control],
        );
        let c = self.reg(c);
        self.plain(Op::BranchConditional, ids(&[c, then_label, else_label]));
        self.label(then_label);
        self.body(then);
        self.branch(end_label);

        if !other.is_empty() {
            self.label(else_label);
            self.body(other);
            self.branch(end_label);
        }
        self.label(end_label);
    }

    fn write_loop(&mut self, var: u32, until: Reg, step: Reg, body: &'a [Stmt]) {
        use rspirv::spirv::LoopControl;
        let [head, check, inside, next, end] = std::array::from_fn(|_| self.b.id());
        let word_type = self.ty(Ty::U32);
        let bool_type = self.ty(Ty::Bool);
        let until = self.reg(until);
        let step = self.reg(step);
        let var = self.vars[var as usize];
        self.branch(head);
        self.label(head);
        let merge_control = Operand::LoopControl(LoopControl::NONE);
        self.plain(
            Op::LoopMerge,
            vec![Operand::IdRef(end), Operand::IdRef(next), merge_control],
        );
        self.branch(check);
        self.label(check);
        let loop_value = self.op(Op::Load, word_type, ids(&[var]));
        let has_more = self.op(Op::ULessThan, bool_type, ids(&[loop_value, until]));
        self.plain(Op::BranchConditional, ids(&[has_more, inside, end]));
        self.label(inside);
        self.body(body);
        self.branch(next);
        self.label(next);
        let loop_value = self.op(Op::Load, word_type, ids(&[var]));
        let next_value = self.op(Op::IAdd, word_type, ids(&[loop_value, step]));
        self.plain(Op::Store, ids(&[var, next_value]));
        self.branch(head);
        self.label(end);
    }

    fn place_of(&mut self, binding: u32, at: Reg) -> Word {
        let element_type = self.element_type(self.kernel.bindings[binding as usize].mem);
        let pointer_type = self.pointer_type(StorageClass::StorageBuffer, element_type);
        let zero_id = self.u32(0);
        let at = self.reg(at);
        let base_id = self.bindings[binding as usize];
        self.op(Op::AccessChain, pointer_type, ids(&[base_id, zero_id, at]))
    }

    fn shared_place(&mut self, array: u32, at: Reg) -> Word {
        let element_type = self.ty(self.kernel.shared[array as usize].0);
        let pointer_type = self.pointer_type(StorageClass::Workgroup, element_type);
        let chain_operands = ids(&[self.shared[array as usize], self.reg(at)]);
        self.op(Op::AccessChain, pointer_type, chain_operands)
    }

    fn store_element(&mut self, binding: u32, at: Reg, value_id: Reg) {
        let mem = self.kernel.bindings[binding as usize].mem;
        let element_type = self.element_type(mem);
        let value_id = self.reg(value_id);
        let value_id = match mem {
            Mem::U8 | Mem::U16 => self.op(Op::UConvert, element_type, ids(&[value_id])),
            Mem::I8 | Mem::I16 => self.op(Op::SConvert, element_type, ids(&[value_id])),
            _ => value_id,
        };
        let element_pointer = self.place_of(binding, at);
        self.plain(Op::Store, ids(&[element_pointer, value_id]));
    }

    fn load_element(&mut self, binding: u32, at: Reg) -> Word {
        let mem = self.kernel.bindings[binding as usize].mem;
        let element_type = self.element_type(mem);
        let ty = self.ty(mem.ty());
        let element_pointer = self.place_of(binding, at);
        let loaded_id = self.op(Op::Load, element_type, ids(&[element_pointer]));

        match mem {
            Mem::U8 | Mem::U16 => self.op(Op::UConvert, ty, ids(&[loaded_id])),
            Mem::I8 | Mem::I16 => self.op(Op::SConvert, ty, ids(&[loaded_id])),
            _ => loaded_id,
        }
    }

    fn code(&mut self, ty: Ty, code: Code) -> Word {
        let result_type = self.ty(ty);
        match code {
            Code::Const(bits) => self.constant_id(ty, bits),
            Code::Spec(i) => self.specs[i as usize],
            Code::Arg(i) => {
                let pointer_type = self.pointer_type(StorageClass::PushConstant, result_type);
                let zero_id = self.u32(0);
                let operand_ids = ids(&[self.arguments, zero_id, self.u32(i)]);
                let place_pointer = self.op(Op::AccessChain, pointer_type, operand_ids);
                self.op(Op::Load, result_type, ids(&[place_pointer]))
            }
            Code::Place(place_pointer) => self.thread_place(place_pointer),
            Code::Un(un, a) => self.unary(un, ty, a),
            Code::Bin(bin, a, b) => self.binary(bin, ty, a, b),
            Code::Cmp(cmp, a, b) => self.compare(cmp, a, b),
            Code::Select(c, a, b) => {
                let operand_ids = ids(&[self.reg(c), self.reg(a), self.reg(b)]);
                self.op(Op::Select, result_type, operand_ids)
            }
            Code::Fma(a, b, c) => {
                let operand_ids = [self.reg(a), self.reg(b), self.reg(c)];
                self.fma(result_type, operand_ids)
            }
            Code::Cast(a) => self.cast(ty, a),
            Code::Bits(a) => {
                let a = self.reg(a);
                self.op(Op::Bitcast, result_type, ids(&[a]))
            }
            Code::Factor(..) | Code::Pack(..) | Code::Swapped(..) => {
                unreachable!("warps and their factors are CUDA's")
            }
            Code::Load(binding, at) => self.load_element(binding, at),
            Code::Shared(array, at) => {
                let place_pointer = self.shared_place(array, at);
                self.op(Op::Load, result_type, ids(&[place_pointer]))
            }
            Code::Var(var) => {
                let operand_ids = ids(&[self.vars[var as usize]]);
                self.op(Op::Load, result_type, operand_ids)
            }
        }
    }

    fn thread_place(&mut self, place_pointer: Place) -> Word {
        let word_type = self.ty(Ty::U32);
        let pointer_type = self.pointer_type(StorageClass::Input, word_type);
        let zero_id = self.u32(0);
        let chain_operands = ids(&[self.places[&place_pointer], zero_id]);
        let place_pointer = self.op(Op::AccessChain, pointer_type, chain_operands);
        self.op(Op::Load, word_type, ids(&[place_pointer]))
    }

    fn unary(&mut self, un: Un, ty: Ty, a: Reg) -> Word {
        let result_type = self.ty(ty);
        let a = self.reg(a);
        match (un, ty) {
            (Un::Neg, ty) if ty.is_float() => self.op(Op::FNegate, result_type, ids(&[a])),
            (Un::Neg, _) => self.op(Op::SNegate, result_type, ids(&[a])),
            (Un::Not, Ty::Bool) => self.op(Op::LogicalNot, result_type, ids(&[a])),
            (Un::Not, _) => self.op(Op::Not, result_type, ids(&[a])),
            (Un::Abs, ty) if ty.is_float() => self.glsl(GlOp::FAbs, result_type, a),
            // Not SAbs, which leaves the smallest number open.
            (Un::Abs, ty) => {
                let bool_type = self.ty(Ty::Bool);
                let zero_id = self.constant_id(ty, 0);
                let is_negative = self.op(Op::SLessThan, bool_type, ids(&[a, zero_id]));
                let negated_id = self.op(Op::SNegate, result_type, ids(&[a]));
                self.op(Op::Select, result_type, ids(&[is_negative, negated_id, a]))
            }
            (Un::Sqrt, _) => self.glsl(GlOp::Sqrt, result_type, a),
            (Un::Floor, _) => self.glsl(GlOp::Floor, result_type, a),
            (Un::Round, _) => self.glsl(GlOp::RoundEven, result_type, a),
        }
    }

    fn fma(&mut self, result_type: Word, operand_ids: [Word; 3]) -> Word {
        let mut all_operands = vec![
            Operand::IdRef(self.glsl),
            Operand::LiteralExtInstInteger(GlOp::Fma as u32),
        ];
        all_operands.extend(ids(&operand_ids));
        self.op(Op::ExtInst, result_type, all_operands)
    }

    /// The nearest quotient of two `f32`: `OpFDiv` may be off by 2.5 units in the last place, and is on NVIDIA's driver.
    ///
    /// Newton's step for the reciprocal and two for the quotient, with fused products (Markstein 1990), where nothing can
    /// overflow or become subnormal on the way; elsewhere what the instruction gives.
    fn divide(&mut self, a: Word, b: Word) -> Word {
        let float = self.ty(Ty::F32);
        let one = self.constant_id(Ty::F32, 1.0f32.to_bits().into());
        let negated_b = self.op(Op::FNegate, float, ids(&[b]));
        let plain = self.op(Op::FDiv, float, ids(&[a, b]));

        let rough = self.op(Op::FDiv, float, ids(&[one, b]));
        let error = self.fma(float, [negated_b, rough, one]);
        let reciprocal = self.fma(float, [error, rough, rough]);
        let mut quotient = plain;
        for _ in 0..2 {
            let rest = self.fma(float, [negated_b, quotient, a]);
            quotient = self.fma(float, [rest, reciprocal, quotient]);
        }

        // Within these bounds all of the above are normal numbers, or 0 where a division has no rest.
        let bounds = [-60, 60].map(|exponent| f32::exp2(exponent as f32).to_bits());
        let [least, most] = bounds.map(|bits| self.constant_id(Ty::F32, bits.into()));
        let bool_type = self.ty(Ty::Bool);
        let mut is_tame = None;
        for value in [a, b] {
            let size = self.glsl(GlOp::FAbs, float, value);
            for pair in [[least, size], [size, most]] {
                let holds = self.op(Op::FOrdLessThan, bool_type, ids(&pair));
                is_tame = Some(match is_tame {
                    None => holds,
                    Some(others) => self.op(Op::LogicalAnd, bool_type, ids(&[others, holds])),
                });
            }
        }
        let is_tame = is_tame.expect("four comparisons");
        self.op(Op::Select, float, ids(&[is_tame, quotient, plain]))
    }

    fn binary(&mut self, bin: Bin, ty: Ty, a: Reg, b: Reg) -> Word {
        let result_type = self.ty(ty);
        let a = self.reg(a);
        let b = self.reg(b);
        if matches!((bin, ty), (Bin::Div, Ty::F32)) {
            return self.divide(a, b);
        }
        let is_float = ty.is_float();
        let is_signed = ty.is_signed();

        let op = match (bin, ty) {
            (Bin::And, Ty::Bool) => Op::LogicalAnd,
            (Bin::Or, Ty::Bool) => Op::LogicalOr,
            (Bin::Xor, Ty::Bool) => Op::LogicalNotEqual,
            (Bin::And, _) => Op::BitwiseAnd,
            (Bin::Or, _) => Op::BitwiseOr,
            (Bin::Xor, _) => Op::BitwiseXor,
            (Bin::Shl, _) => Op::ShiftLeftLogical,
            (Bin::Shr, _) if is_signed => Op::ShiftRightArithmetic,
            (Bin::Shr, _) => Op::ShiftRightLogical,
            (Bin::Add, _) if is_float => Op::FAdd,
            (Bin::Sub, _) if is_float => Op::FSub,
            (Bin::Mul, _) if is_float => Op::FMul,
            (Bin::Div, _) if is_float => Op::FDiv,
            (Bin::Add, _) => Op::IAdd,
            (Bin::Sub, _) => Op::ISub,
            (Bin::Mul, _) => Op::IMul,
            (Bin::Div, _) if is_signed => Op::SDiv,
            (Bin::Div, _) => Op::UDiv,
            (Bin::Rem, _) if is_signed => Op::SRem,
            (Bin::Rem, _) => Op::UMod,
            (Bin::MulHigh, _) => {
                // The instruction returns both halves of the product.
                let pair_type = self.b.type_struct([result_type, result_type]);
                let product_id = self.op(Op::UMulExtended, pair_type, ids(&[a, b]));
                let high_operands = vec![Operand::IdRef(product_id), Operand::LiteralBit32(1)];
                return self.op(Op::CompositeExtract, result_type, high_operands);
            }
        };

        let result_id = self.op(op, result_type, ids(&[a, b]));
        if matches!(op, Op::FAdd | Op::FSub | Op::FMul) {
            self.b.decorate(result_id, Decoration::NoContraction, []);
        }
        result_id
    }

    fn compare(&mut self, cmp: Cmp, a: Reg, b: Reg) -> Word {
        let ty = self.type_of(a);
        let bool_type = self.ty(Ty::Bool);
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

        let operand_ids = ids(&[self.reg(a), self.reg(b)]);
        self.op(op, bool_type, operand_ids)
    }

    fn cast(&mut self, to: Ty, a: Reg) -> Word {
        let from = self.type_of(a);
        let result_type = self.ty(to);
        let a = self.reg(a);

        if from == Ty::Bool {
            let one_id = match to {
                Ty::F32 => u64::from(1f32.to_bits()),
                Ty::F64 => 1f64.to_bits(),
                _ => 1,
            };
            let one_id = self.constant_id(to, one_id);
            let zero_id = self.constant_id(to, 0);
            return self.op(Op::Select, result_type, ids(&[a, one_id, zero_id]));
        }

        if to == Ty::Bool {
            let zero_id = self.constant_id(from, 0);
            let op = if from.is_float() {
                Op::FUnordNotEqual
            } else {
                Op::INotEqual
            };
            return self.op(op, result_type, ids(&[a, zero_id]));
        }

        let op = match (from.is_float(), to.is_float()) {
            (true, true) => Op::FConvert,
            (true, false) if to.is_signed() => Op::ConvertFToS,
            (true, false) => Op::ConvertFToU,
            (false, true) if from.is_signed() => Op::ConvertSToF,
            (false, true) => Op::ConvertUToF,
            (false, false) => return self.cast_integer(from, to, a),
        };
        self.op(op, result_type, ids(&[a]))
    }

    /// Widens by the sign of what is widened; the result's sign is a matter of names.
    fn cast_integer(&mut self, from: Ty, to: Ty, a: Word) -> Word {
        let result_type = self.ty(to);
        if from.is_wide() == to.is_wide() {
            return self.op(Op::Bitcast, result_type, ids(&[a]));
        }
        if from.is_signed() {
            return self.op(Op::SConvert, result_type, ids(&[a]));
        }
        // Extended by zeros as an unsigned number first.
        let unsigned_type = if to.is_wide() { Ty::U64 } else { Ty::U32 };
        let middle_type = self.ty(unsigned_type);
        let converted_id = self.op(Op::UConvert, middle_type, ids(&[a]));

        if unsigned_type == to {
            converted_id
        } else {
            self.op(Op::Bitcast, result_type, ids(&[converted_id]))
        }
    }
}
