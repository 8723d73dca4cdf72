//! Statements and instructions.

use super::{Printer, plain_type, register_class, shared_size, signed_type};
use crate::Math;
use crate::lang::{Bin, Cmp, Code, Mem, Place, Reg, Stmt, Ty, Un};

/// Type of a load or store, and bytes of an element.
fn element(mem: Mem) -> &'static str {
    match mem {
        Mem::U8 => "u8",
        Mem::I8 => "s8",
        Mem::U16 => "u16",
        Mem::I16 => "s16",
        Mem::I32 | Mem::U32 => "b32",
        Mem::I64 => "b64",
        Mem::F32 | Mem::Pair => "f32",
        Mem::F64 => "f64",
    }
}

/// A literal with the given bits.
fn literal(ty: Ty, bits: u64) -> String {
    match ty {
        Ty::Bool => u32::from(bits != 0).to_string(),
        Ty::F32 => format!("0f{:08X}", bits as u32),
        Ty::F64 => format!("0d{bits:016X}"),
        Ty::I32 | Ty::U32 => format!("0x{:x}", bits as u32),
        Ty::I64 | Ty::U64 => format!("0x{bits:x}"),
    }
}

/// Statements of branches that are guarded and not jumped over, at most.
const MAX_GUARDED: usize = 64;

/// How many statements a body has, if all of them can be guarded one by one: those that threads do by themselves, and
/// once.
fn guardable_statements(body: &[Stmt]) -> Option<usize> {
    body.iter().try_fold(0, |count, stmt| {
        let more = match stmt {
            Stmt::Let(_, Code::Swapped(..)) => None,
            Stmt::Let(..)
            | Stmt::LoadPair(..)
            | Stmt::Store(..)
            | Stmt::StorePair(..)
            | Stmt::SetShared(..)
            | Stmt::SetVar(..) => Some(1),
            Stmt::If(_, then, other) => {
                Some(1 + guardable_statements(then)? + guardable_statements(other)?)
            }
            Stmt::Barrier | Stmt::Multiply(..) | Stmt::Loop(..) => None,
        };
        Some(count + more?)
    })
}

/// Whether a body asks global memory for something.
fn loads(body: &[Stmt]) -> bool {
    body.iter().any(|stmt| match stmt {
        Stmt::Let(_, Code::Load(..)) | Stmt::LoadPair(..) => true,
        Stmt::If(_, then, other) => loads(then) || loads(other),
        _ => false,
    })
}

impl<'k> Printer<'k> {
    fn type_of(&self, reg: Reg) -> Ty {
        self.kernel.regs[reg.0 as usize]
    }

    fn reg(&self, reg: Reg) -> String {
        format!("%{}{}", register_class(self.type_of(reg)), reg.0)
    }

    fn var(&self, var: u32) -> String {
        format!("%v{}{var}", register_class(self.kernel.vars[var as usize]))
    }

    pub(super) fn body(&mut self, body: &'k [Stmt]) {
        for stmt in body {
            self.stmt(stmt);
        }
    }

    fn stmt(&mut self, stmt: &'k Stmt) {
        match stmt {
            Stmt::Let(reg, code) => self.code(*reg, *code),
            Stmt::LoadPair([a, b], binding, at) => {
                self.element_address(*binding, *at);
                let a = self.reg(*a);
                let b = self.reg(*b);
                self.guarded_line(&format!("ld.global.v2.f32 {{{a}, {b}}}, [%tl0]"));
            }
            Stmt::Store(binding, at, value_register) => {
                self.element_address(*binding, *at);
                let element_type = element(self.mem(*binding));
                let value_register = self.reg(*value_register);
                self.guarded_line(&format!(
                    "st.global.{element_type} [%tl0], {value_register}"
                ));
            }
            Stmt::StorePair(binding, at, [a, b]) => {
                self.element_address(*binding, *at);
                let a = self.reg(*a);
                let b = self.reg(*b);
                self.guarded_line(&format!("st.global.v2.f32 [%tl0], {{{a}, {b}}}"));
            }
            Stmt::SetShared(array, at, value_register) => {
                let element_type = self.shared_address(*array, *at);
                let value_register = match element_type {
                    Ty::Bool => {
                        let value_register = self.reg(*value_register);
                        self.line(&format!("selp.b32 %tr1, 1, 0, {value_register}"));
                        "%tr1".to_owned()
                    }
                    _ => self.reg(*value_register),
                };

                let element_type = if element_type == Ty::Bool {
                    Ty::U32
                } else {
                    element_type
                };
                self.guarded_line(&format!(
                    "st.shared.{} [%tr0], {value_register}",
                    plain_type(element_type)
                ));
            }
            Stmt::SetVar(var, value_register) => {
                let element_type = plain_type(self.kernel.vars[*var as usize]);
                let var = self.var(*var);
                let value_register = self.reg(*value_register);
                self.guarded_line(&format!("mov.{element_type} {var}, {value_register}"));
            }
            Stmt::Barrier => self.line("bar.sync 0"),
            Stmt::Multiply(math, sums, left, right) => {
                self.write_multiply(*math, sums, left, right);
            }
            Stmt::If(c, then, other) => self.write_branches(*c, then, other),
            Stmt::Loop(var, until, step, body) => self.write_loop(*var, *until, *step, body),
        }
    }

    fn write_multiply(&mut self, math: Math, sums: &[u32], left: &[Reg], right: &[Reg]) {
        let braced_list = |names: Vec<String>| format!("{{{}}}", names.join(", "));
        let register_list =
            |registers: &[Reg]| braced_list(registers.iter().map(|r| self.reg(*r)).collect());
        let sum_list = braced_list(sums.iter().map(|v| self.var(*v)).collect());
        let left_list = register_list(left);
        let right_list = register_list(right);

        // Eight words along the inner dimension: one factor each, or two.
        let shape_name = match math.is_half() {
            true => "m16n8k16",
            false => "m16n8k8",
        };
        let op_name = format!("mma.sync.aligned.{shape_name}.row.col.f32.{math}.{math}.f32");
        self.line(&format!(
            "{op_name} {sum_list}, {left_list}, {right_list}, {sum_list}"
        ));
    }

    fn write_branches(&mut self, c: Reg, then: &'k [Stmt], other: &'k [Stmt]) {
        let statements = guardable_statements(then).zip(guardable_statements(other));
        let is_short = statements.is_some_and(|(a, b)| a + b <= MAX_GUARDED);
        if self.guard.is_some()
            || (self.kernel.guards_loads && is_short && (loads(then) || loads(other)))
        {
            return self.write_guarded(c, then, other);
        }

        let label_number = self.new_label();
        let c = self.reg(c);
        let else_label = if other.is_empty() {
            format!("$end{label_number}")
        } else {
            format!("$else{label_number}")
        };
        self.line(&format!("@!{c} bra {else_label}"));
        self.body(then);

        if !other.is_empty() {
            self.line(&format!("bra $end{label_number}"));
            self.label(&else_label);
            self.body(other);
        }
        self.label(&format!("$end{label_number}"));
    }

    /// Both branches, one behind the other, each with a guard.
    fn write_guarded(&mut self, c: Reg, then: &'k [Stmt], other: &'k [Stmt]) {
        let outer_guard = self.guard.take();
        let condition = self.reg(c);
        let opposite = (!other.is_empty()).then(|| {
            let opposite = self.new_guard();
            self.line(&format!("not.pred {opposite}, {condition}"));
            opposite
        });

        let branches = [(Some(condition), then), (opposite, other)];
        for (condition, body) in branches {
            let Some(condition) = condition else { continue };
            let guard = match &outer_guard {
                None => condition,
                Some(outer) => {
                    let guard = self.new_guard();
                    self.line(&format!("and.pred {guard}, {outer}, {condition}"));
                    guard
                }
            };
            self.guard = Some(guard);
            self.body(body);
        }
        self.guard = outer_guard;
    }

    fn write_loop(&mut self, var: u32, until: Reg, step: Reg, body: &'k [Stmt]) {
        let label_number = self.new_label();
        let var = self.var(var);
        let until = self.reg(until);
        let step = self.reg(step);
        self.label(&format!("$head{label_number}"));
        self.line(&format!("setp.ge.u32 %tp, {var}, {until}"));
        self.line(&format!("@%tp bra $end{label_number}"));
        self.body(body);
        self.line(&format!("add.u32 {var}, {var}, {step}"));
        self.line(&format!("bra $head{label_number}"));
        self.label(&format!("$end{label_number}"));
    }

    fn mem(&self, binding: u32) -> Mem {
        self.kernel.bindings[binding as usize].mem
    }

    /// Leaves the address of an element in `%tl0`.
    fn element_address(&mut self, binding: u32, at: Reg) {
        let element_bytes = self.mem(binding).bytes();
        let at = self.reg(at);
        self.line(&format!("mul.wide.u32 %tl0, {at}, {element_bytes}"));
        self.line(&format!("add.s64 %tl0, %b{binding}, %tl0"));
    }

    /// Leaves the address of an element in `%tr0`.
    fn shared_address(&mut self, array: u32, at: Reg) -> Ty {
        let ty = self.kernel.shared[array as usize].0;
        let at = self.reg(at);
        self.line(&format!("mov.u32 %tr0, s{array}"));
        self.line(&format!("mad.lo.u32 %tr0, {at}, {}, %tr0", shared_size(ty)));
        ty
    }

    fn code(&mut self, to: Reg, code: Code) {
        let ty = self.type_of(to);
        let out = self.reg(to);
        match code {
            Code::Const(bits) => {
                self.line(&format!(
                    "mov.{} {out}, {}",
                    plain_type(ty),
                    literal(ty, bits)
                ));
            }
            Code::Spec(i) => {
                let spec_value = self.kernel.specs[i as usize];
                self.line(&format!("mov.b32 {out}, {spec_value}"));
            }
            Code::Arg(i) => self.line(&format!("ld.param.u32 {out}, [a{i}]")),
            Code::Place(place) => self.place(&out, place),
            Code::Un(un, a) => self.unary(un, ty, &out, a),
            Code::Bin(bin, a, b) => self.binary(bin, ty, &out, a, b),
            Code::Cmp(cmp, a, b) => self.compare(cmp, &out, a, b),
            Code::Select(c, a, b) => self.select(ty, &out, [c, a, b]),
            Code::Fma(a, b, c) => {
                let [a, b, c] = [a, b, c].map(|r| self.reg(r));
                self.line(&format!("fma.rn.{} {out}, {a}, {b}, {c}", plain_type(ty)));
            }
            Code::Cast(a) => self.cast(ty, &out, a),
            Code::Bits(a) => {
                let move_type = if ty.is_wide() { "b64" } else { "b32" };
                self.line(&format!("mov.{move_type} {out}, {}", self.reg(a)));
            }
            Code::Factor(math, a) => {
                assert_eq!(math, Math::Tf32, "a factor of 32 bits");
                let a = self.reg(a);
                self.line(&format!("cvt.rna.tf32.f32 {out}, {a}"));
            }
            Code::Pack(math, low, high) => {
                let low = self.reg(low);
                let high = self.reg(high);
                self.line(&format!("cvt.rn.{math}x2.f32 {out}, {high}, {low}"));
            }
            Code::Swapped(a, bits) => {
                let a = self.reg(a);
                self.line(&format!(
                    "shfl.sync.bfly.b32 {out}, {a}, {bits}, 31, 0xffffffff"
                ));
            }
            Code::Load(binding, at) => {
                self.element_address(binding, at);
                let ty = element(self.mem(binding));
                self.guarded_line(&format!("ld.global.{ty} {out}, [%tl0]"));
            }
            Code::Shared(array, at) => match self.shared_address(array, at) {
                Ty::Bool => {
                    self.guarded_line("ld.shared.b32 %tr1, [%tr0]");
                    self.line(&format!("setp.ne.u32 {out}, %tr1, 0"));
                }
                ty => {
                    self.guarded_line(&format!("ld.shared.{} {out}, [%tr0]", plain_type(ty)));
                }
            },
            Code::Var(var) => {
                self.line(&format!("mov.{} {out}, {}", plain_type(ty), self.var(var)));
            }
        }
    }

    fn select(&mut self, ty: Ty, out: &str, operands: [Reg; 3]) {
        let [c, a, b] = operands.map(|r| self.reg(r));
        // There is no `selp` of predicates: c & a | !c & b.
        if ty == Ty::Bool {
            self.line(&format!("not.pred %tp, {c}"));
            self.line(&format!("and.pred %tp, %tp, {b}"));
            self.line(&format!("and.pred {out}, {c}, {a}"));
            return self.line(&format!("or.pred {out}, {out}, %tp"));
        }
        self.line(&format!("selp.{} {out}, {a}, {b}, {c}", plain_type(ty)));
    }

    fn place(&mut self, out: &str, place: Place) {
        match place {
            Place::Thread => {
                self.line("mov.u32 %tr0, %ctaid.x");
                self.line("mov.u32 %tr1, %tid.x");
                let local = self.kernel.local;
                self.line(&format!("mad.lo.u32 {out}, %tr0, {local}, %tr1"));
            }
            Place::Local => self.line(&format!("mov.u32 {out}, %tid.x")),
            Place::Group => self.line(&format!("mov.u32 {out}, %ctaid.x")),
            Place::Groups => self.line(&format!("mov.u32 {out}, %nctaid.x")),
        }
    }

    fn unary(&mut self, un: Un, ty: Ty, out: &str, a: Reg) {
        let a = self.reg(a);
        let plain_type = plain_type(ty);
        let signed_type = signed_type(ty);
        let bit_count = if ty.is_wide() { 64 } else { 32 };

        let instruction = match (un, ty) {
            (Un::Not, Ty::Bool) => format!("not.pred {out}, {a}"),
            (Un::Not, _) => format!("not.{plain_type} {out}, {a}"),
            (Un::Neg, ty) if ty.is_float() => format!("neg.{plain_type} {out}, {a}"),
            // Wraps, whatever the sign of the type.
            (Un::Neg, _) => format!("neg.s{bit_count} {out}, {a}"),
            (Un::Abs, ty) if ty.is_float() => format!("abs.{plain_type} {out}, {a}"),
            // By hand: of the smallest number, `abs` leaves open what it is.
            (Un::Abs, _) => {
                self.line(&format!("setp.lt.{signed_type} %tp, {a}, 0"));
                let temporary_register = if ty.is_wide() { "%tl1" } else { "%tr1" };
                self.line(&format!("neg.{signed_type} {temporary_register}, {a}"));
                format!("selp.{plain_type} {out}, {temporary_register}, {a}, %tp")
            }
            (Un::Sqrt, _) => format!("sqrt.rn.{plain_type} {out}, {a}"),
            (Un::Floor, _) => format!("cvt.rmi.{plain_type}.{plain_type} {out}, {a}"),
            (Un::Round, _) => format!("cvt.rni.{plain_type}.{plain_type} {out}, {a}"),
        };
        self.line(&instruction);
    }

    fn binary(&mut self, bin: Bin, ty: Ty, out: &str, a: Reg, b: Reg) {
        let wide_shift = matches!(bin, Bin::Shl | Bin::Shr) && self.type_of(b).is_wide();
        let a = self.reg(a);
        let mut b = self.reg(b);

        if wide_shift {
            // Distances are words there.
            self.line(&format!("cvt.u32.u64 %tr0, {b}"));
            b = "%tr0".to_owned();
        }

        let plain_type = plain_type(ty);
        let signed_type = signed_type(ty);
        let bit_type = match ty {
            Ty::Bool => "pred",
            ty if ty.is_wide() => "b64",
            _ => "b32",
        };

        let op_name = match bin {
            Bin::And => format!("and.{bit_type}"),
            Bin::Or => format!("or.{bit_type}"),
            Bin::Xor => format!("xor.{bit_type}"),
            Bin::Shl => format!("shl.{bit_type}"),
            Bin::Shr => format!("shr.{signed_type}"),
            Bin::Add if ty.is_float() => format!("add.rn.{plain_type}"),
            Bin::Sub if ty.is_float() => format!("sub.rn.{plain_type}"),
            Bin::Mul if ty.is_float() => format!("mul.rn.{plain_type}"),
            Bin::Div if ty.is_float() => format!("div.rn.{plain_type}"),
            Bin::Add => format!("add.{signed_type}"),
            Bin::Sub => format!("sub.{signed_type}"),
            Bin::Mul => format!("mul.lo.{signed_type}"),
            Bin::Div => format!("div.{signed_type}"),
            Bin::Rem => format!("rem.{signed_type}"),
            Bin::MulHigh => format!("mul.hi.{signed_type}"),
        };
        self.line(&format!("{op_name} {out}, {a}, {b}"));
    }

    fn compare(&mut self, cmp: Cmp, out: &str, a: Reg, b: Reg) {
        let ty = self.type_of(a);
        let a = self.reg(a);
        let b = self.reg(b);

        if ty == Ty::Bool {
            self.line(&format!("xor.pred {out}, {a}, {b}"));
            if cmp == Cmp::Equal {
                self.line(&format!("not.pred {out}, {out}"));
            }
            return;
        }

        let cmp = match cmp {
            Cmp::Less => "lt",
            Cmp::LessEqual => "le",
            Cmp::Equal => "eq",
            Cmp::NotEqual if ty.is_float() => "neu",
            Cmp::NotEqual => "ne",
        };
        self.line(&format!("setp.{cmp}.{} {out}, {a}, {b}", signed_type(ty)));
    }

    fn cast(&mut self, to: Ty, out: &str, a: Reg) {
        let from = self.type_of(a);
        let a = self.reg(a);
        let instruction = if from == Ty::Bool {
            let one_literal = match to {
                Ty::F32 => u64::from(1_f32.to_bits()),
                Ty::F64 => 1_f64.to_bits(),
                _ => 1,
            };
            let [one_literal, zero] = [one_literal, 0].map(|bits| literal(to, bits));
            format!("selp.{} {out}, {one_literal}, {zero}, {a}", plain_type(to))
        } else if to == Ty::Bool {
            let compare_op = if from.is_float() { "neu" } else { "ne" };
            format!(
                "setp.{compare_op}.{} {out}, {a}, {}",
                signed_type(from),
                literal(from, 0)
            )
        } else {
            match (from.is_float(), to.is_float()) {
                (true, true) if to == Ty::F64 => format!("cvt.f64.f32 {out}, {a}"),
                (true, true) => format!("cvt.rn.f32.f64 {out}, {a}"),
                (true, false) => format!(
                    "cvt.rzi.{}.{} {out}, {a}",
                    signed_type(to),
                    signed_type(from)
                ),
                (false, true) => format!(
                    "cvt.rn.{}.{} {out}, {a}",
                    signed_type(to),
                    signed_type(from)
                ),
                // Widens by the sign of what is widened; otherwise signs are names.
                (false, false) if from.is_wide() == to.is_wide() => {
                    format!("mov.{} {out}, {a}", plain_type(to))
                }
                (false, false) if from.is_signed() && to.is_wide() => {
                    format!("cvt.s64.s32 {out}, {a}")
                }
                (false, false) if to.is_wide() => format!("cvt.u64.u32 {out}, {a}"),
                (false, false) => format!("cvt.u32.u64 {out}, {a}"),
            }
        };

        self.line(&instruction);
    }
}
