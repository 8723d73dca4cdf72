//! Makes kernels: values with operators, closures for loops and branches. A type that does not fit is a mistake in a
//! kernel of ours, and panics while the kernel is made.

use std::cell::RefCell;
use std::ops;

use super::{Bin, Binding, Cmp, Code, Kernel, Math, Mem, Place, Reg, Stmt, Ty, Un};

/// A kernel that is being built.
pub struct Builder {
    kernel: RefCell<Kernel>,
    /// Statements of the enclosing bodies, innermost last.
    open: RefCell<Vec<Vec<Stmt>>>,
}

/// A value: a register of a kernel that is being built.
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Val<'k> {
    k: &'k Builder,
    pub reg: Reg,
    /// The type of its values.
    pub ty: Ty,
}

/// A variable.
#[derive(Clone, Copy)]
pub struct Var<'k> {
    k: &'k Builder,
    index: u32,
    ty: Ty,
}

/// An array shared by a group.
#[derive(Clone, Copy)]
pub struct Shared<'k> {
    k: &'k Builder,
    index: u32,
    ty: Ty,
}

#[expect(missing_docs, reason = "each is what its name says")]
impl Builder {
    /// A kernel whose groups have `local` threads.
    pub fn new(name: &'static str, local: u32) -> Self {
        let kernel = Kernel {
            name,
            local,
            bindings: Vec::new(),
            specs: Vec::new(),
            regs: Vec::new(),
            vars: Vec::new(),
            shared: Vec::new(),
            multiplies: false,
            guards_loads: false,
            body: Vec::new(),
        };
        Self {
            kernel: RefCell::new(kernel),
            open: RefCell::new(vec![Vec::new()]),
        }
    }

    /// Asks for loads that do not wait for each other: those of short branches are guarded one by one. Many loads at once
    /// need many registers, so this is for kernels that have a few.
    pub fn guard_loads(&self) {
        self.kernel.borrow_mut().guards_loads = true;
    }

    /// The finished kernel.
    pub fn finish(self) -> Kernel {
        let mut kernel = self.kernel.into_inner();
        let mut open_bodies = self.open.into_inner();
        assert_eq!(open_bodies.len(), 1, "a body is open in {}", kernel.name);
        kernel.body = open_bodies.pop().unwrap_or_default();
        kernel
    }

    fn push(&self, stmt: Stmt) {
        self.open
            .borrow_mut()
            .last_mut()
            .expect("never empty")
            .push(stmt);
    }

    fn reg(&self, ty: Ty) -> Reg {
        let regs = &mut self.kernel.borrow_mut().regs;
        regs.push(ty);
        Reg(regs.len() as u32 - 1)
    }

    fn emit(&self, ty: Ty, code: Code) -> Val<'_> {
        let new_register = self.reg(ty);
        self.push(Stmt::Let(new_register, code));
        Val {
            k: self,
            reg: new_register,
            ty,
        }
    }

    fn body(&self, fill: impl FnOnce()) -> Vec<Stmt> {
        self.open.borrow_mut().push(Vec::new());
        fill();
        self.open.borrow_mut().pop().expect("pushed above")
    }

    fn binding(&self, mem: Mem, writes: bool) -> u32 {
        let bindings = &mut self.kernel.borrow_mut().bindings;
        bindings.push(Binding { mem, writes });
        bindings.len() as u32 - 1
    }

    /// The next binding, only read.
    pub fn reads(&self, mem: Mem) -> u32 {
        self.binding(mem, false)
    }

    /// The next binding, written and perhaps read.
    pub fn writes(&self, mem: Mem) -> u32 {
        self.binding(mem, true)
    }

    pub fn u32(&self, value: u32) -> Val<'_> {
        self.emit(Ty::U32, Code::Const(value.into()))
    }

    pub fn i32(&self, value: i32) -> Val<'_> {
        self.emit(Ty::I32, Code::Const((value as u32).into()))
    }

    pub fn f32(&self, value: f32) -> Val<'_> {
        self.emit(Ty::F32, Code::Const(value.to_bits().into()))
    }

    /// The number as a constant of type `ty`.
    pub fn number(&self, ty: Ty, value: f64) -> Val<'_> {
        let value_bits = match ty {
            Ty::Bool => u64::from(value != 0.0),
            Ty::I32 => (value as i32 as u32).into(),
            Ty::U32 => (value as u32).into(),
            Ty::I64 => value as i64 as u64,
            Ty::U64 => value as u64,
            Ty::F32 => (value as f32).to_bits().into(),
            Ty::F64 => value.to_bits(),
        };
        self.emit(ty, Code::Const(value_bits))
    }

    /// A constant by its bits.
    pub fn bits(&self, ty: Ty, bits: u64) -> Val<'_> {
        self.emit(ty, Code::Const(bits))
    }

    /// A constant that does not change the kernel's code: shapes, sizes.
    pub fn spec(&self, value: u32) -> Val<'_> {
        let index = {
            let specs = &mut self.kernel.borrow_mut().specs;
            specs.push(value);
            specs.len() as u32 - 1
        };
        self.emit(Ty::U32, Code::Spec(index))
    }

    /// Firings of this call.
    pub fn firings(&self) -> Val<'_> {
        self.emit(Ty::U32, Code::Arg(0))
    }

    pub fn place(&self, place: Place) -> Val<'_> {
        self.emit(Ty::U32, Code::Place(place))
    }

    /// The index of element `index` of a binding in the memory that is bound.
    fn element(&self, binding: u32, index: Val<'_>) -> Reg {
        let binding_offset = self.emit(Ty::U32, Code::Arg(1 + binding));
        (binding_offset + index).reg
    }

    fn mem(&self, binding: u32) -> Mem {
        self.kernel.borrow().bindings[binding as usize].mem
    }

    pub fn load<'k>(&'k self, binding: u32, index: Val<'k>) -> Val<'k> {
        let memory_type = self.mem(binding);
        assert_ne!(memory_type, Mem::Pair, "pairs are loaded by `load_pair`");
        let element_register = self.element(binding, index);
        self.emit(memory_type.ty(), Code::Load(binding, element_register))
    }

    pub fn load_pair<'k>(&'k self, binding: u32, index: Val<'k>) -> [Val<'k>; 2] {
        assert_eq!(self.mem(binding), Mem::Pair);
        let element_register = self.element(binding, index);
        let pair_registers = [self.reg(Ty::F32), self.reg(Ty::F32)];
        self.push(Stmt::LoadPair(pair_registers, binding, element_register));
        pair_registers.map(|reg| Val {
            k: self,
            reg,
            ty: Ty::F32,
        })
    }

    pub fn store<'k>(&'k self, binding: u32, index: Val<'k>, value: Val<'k>) {
        let memory_type = self.mem(binding);
        assert_eq!(
            (memory_type.ty(), memory_type == Mem::Pair),
            (value.ty, false),
            "store of another type"
        );
        let element_register = self.element(binding, index);
        self.push(Stmt::Store(binding, element_register, value.reg));
    }

    pub fn store_pair<'k>(&'k self, binding: u32, index: Val<'k>, value: [Val<'k>; 2]) {
        assert_eq!(self.mem(binding), Mem::Pair);
        assert!(
            value.iter().all(|v| v.ty == Ty::F32),
            "halves of a pair are f32"
        );
        let element_register = self.element(binding, index);
        self.push(Stmt::StorePair(
            binding,
            element_register,
            value.map(|v| v.reg),
        ));
    }

    pub fn select<'k>(&'k self, c: Val<'k>, a: Val<'k>, b: Val<'k>) -> Val<'k> {
        assert_eq!((c.ty, a.ty), (Ty::Bool, b.ty), "operands of a selection");
        self.emit(a.ty, Code::Select(c.reg, a.reg, b.reg))
    }

    pub fn fma<'k>(&'k self, a: Val<'k>, b: Val<'k>, c: Val<'k>) -> Val<'k> {
        assert!(
            a.ty.is_float() && a.ty == b.ty && b.ty == c.ty,
            "operands of a product and sum"
        );
        self.emit(a.ty, Code::Fma(a.reg, b.reg, c.reg))
    }

    /// Upper half of the 64-bit product.
    pub fn mul_high<'k>(&'k self, a: Val<'k>, b: Val<'k>) -> Val<'k> {
        self.binary(Bin::MulHigh, a, b)
    }

    /// A word of factors: one, or two where they have 16 bits.
    pub fn factors<'k>(&'k self, math: Math, values: &[Val<'k>]) -> Val<'k> {
        assert!(
            values.iter().all(|v| v.ty == Ty::F32),
            "factors are made of f32"
        );
        let factor_code = match *values {
            [a] if math == Math::Tf32 => Code::Factor(math, a.reg),
            [a, b] if math.is_half() => Code::Pack(math, a.reg, b.reg),
            _ => panic!("{} factors of {math} in a word", values.len()),
        };
        self.emit(Ty::U32, factor_code)
    }

    /// Adds a product of matrices to sums: see [`Stmt::Multiply`].
    pub fn multiply<'k>(
        &'k self,
        math: Math,
        sums: [Var<'k>; 4],
        left: [Val<'k>; 4],
        right: [Val<'k>; 2],
    ) {
        let are_words = left.iter().chain(&right).all(|v| v.ty == Ty::U32);
        assert!(
            are_words && sums.iter().all(|v| v.ty == Ty::F32),
            "operands of a product"
        );
        let sums = sums.map(|v| v.index);
        let left = left.map(|v| v.reg);
        let right = right.map(|v| v.reg);
        self.kernel.borrow_mut().multiplies = true;
        self.push(Stmt::Multiply(math, sums, left, right));
    }

    pub fn var<'k>(&'k self, initial: Val<'k>) -> Var<'k> {
        let index = {
            let vars = &mut self.kernel.borrow_mut().vars;
            vars.push(initial.ty);
            vars.len() as u32 - 1
        };
        self.push(Stmt::SetVar(index, initial.reg));
        Var {
            k: self,
            index,
            ty: initial.ty,
        }
    }

    pub fn shared(&self, ty: Ty, len: u32) -> Shared<'_> {
        let arrays = &mut self.kernel.borrow_mut().shared;
        arrays.push((ty, len));
        Shared {
            k: self,
            index: arrays.len() as u32 - 1,
            ty,
        }
    }

    pub fn barrier(&self) {
        self.push(Stmt::Barrier);
    }

    pub fn if_(&self, c: Val<'_>, then: impl FnOnce()) {
        self.if_else(c, then, || {});
    }

    pub fn if_else(&self, c: Val<'_>, then: impl FnOnce(), other: impl FnOnce()) {
        assert_eq!(c.ty, Ty::Bool, "condition");
        let then = self.body(then);
        let other = self.body(other);
        self.push(Stmt::If(c.reg, then, other));
    }

    /// `for i in (from..until).step_by(step)`, all `u32`.
    pub fn range<'k>(
        &'k self,
        from: Val<'k>,
        until: Val<'k>,
        step: Val<'k>,
        body: impl FnOnce(Val<'k>),
    ) {
        assert!(
            [from, until, step].iter().all(|v| v.ty == Ty::U32),
            "bounds of a loop"
        );
        let i = self.var(from);
        let body = self.body(|| body(i.get()));
        self.push(Stmt::Loop(i.index, until.reg, step.reg, body));
    }

    /// `for i in 0..until`.
    pub fn times<'k>(&'k self, until: Val<'k>, body: impl FnOnce(Val<'k>)) {
        self.range(self.u32(0), until, self.u32(1), body);
    }

    /// Every i below `total`, shared out among all threads.
    pub fn each<'k>(&'k self, total: Val<'k>, body: impl FnOnce(Val<'k>)) {
        let group_threads = self.kernel.borrow().local;
        let all_threads = self.place(Place::Groups) * group_threads;
        self.range(self.place(Place::Thread), total, all_threads, body);
    }

    /// Every row below `rows`, one group at a time: all threads of a group have the same row.
    pub fn each_group<'k>(&'k self, rows: Val<'k>, body: impl FnOnce(Val<'k>)) {
        self.range(
            self.place(Place::Group),
            rows,
            self.place(Place::Groups),
            body,
        );
    }

    /// Every i below `total`, shared out among the threads of a group.
    pub fn each_local<'k>(&'k self, total: Val<'k>, body: impl FnOnce(Val<'k>)) {
        let group_threads = self.kernel.borrow().local;
        self.range(
            self.place(Place::Local),
            total,
            self.u32(group_threads),
            body,
        );
    }

    fn binary<'k>(&'k self, bin: Bin, a: Val<'k>, b: Val<'k>) -> Val<'k> {
        // Each operator has the types that every printer has an instruction for.
        let is_logic = matches!(bin, Bin::And | Bin::Or | Bin::Xor);
        let is_bitwise = is_logic || matches!(bin, Bin::Shl | Bin::Shr | Bin::MulHigh | Bin::Rem);
        let is_shift = matches!(bin, Bin::Shl | Bin::Shr) && b.ty == Ty::U32;

        assert!(
            a.ty == b.ty || is_shift,
            "{bin:?} of {:?} and {:?}",
            a.ty,
            b.ty
        );

        assert!(a.ty != Ty::Bool || is_logic, "{bin:?} of truth values");
        assert!(!(is_bitwise && a.ty.is_float()), "{bin:?} of floats");
        self.emit(a.ty, Code::Bin(bin, a.reg, b.reg))
    }
}

#[expect(missing_docs, reason = "each is what its name says")]
impl<'k> Val<'k> {
    /// The builder of its kernel.
    pub fn builder(self) -> &'k Builder {
        self.k
    }

    /// A constant of this value's type.
    pub fn like(self, value: f64) -> Val<'k> {
        self.k.number(self.ty, value)
    }

    fn unary(self, un: Un) -> Val<'k> {
        self.k.emit(self.ty, Code::Un(un, self.reg))
    }

    pub fn abs(self) -> Val<'k> {
        assert!(self.ty.is_float() || self.ty.is_signed());
        self.unary(Un::Abs)
    }

    pub fn sqrt(self) -> Val<'k> {
        assert!(self.ty.is_float());
        self.unary(Un::Sqrt)
    }

    pub fn floor(self) -> Val<'k> {
        assert!(self.ty.is_float());
        self.unary(Un::Floor)
    }

    pub fn round(self) -> Val<'k> {
        assert!(self.ty.is_float());
        self.unary(Un::Round)
    }

    fn compare(self, cmp: Cmp, other: Val<'k>) -> Val<'k> {
        assert_eq!(self.ty, other.ty, "operands of {cmp:?}");
        self.k.emit(Ty::Bool, Code::Cmp(cmp, self.reg, other.reg))
    }

    pub fn lt(self, other: Val<'k>) -> Val<'k> {
        self.compare(Cmp::Less, other)
    }

    pub fn le(self, other: Val<'k>) -> Val<'k> {
        self.compare(Cmp::LessEqual, other)
    }

    pub fn gt(self, other: Val<'k>) -> Val<'k> {
        other.lt(self)
    }

    pub fn eq(self, other: Val<'k>) -> Val<'k> {
        self.compare(Cmp::Equal, other)
    }

    pub fn ne(self, other: Val<'k>) -> Val<'k> {
        self.compare(Cmp::NotEqual, other)
    }

    /// The smaller; `other` where one of them is not a number.
    pub fn min(self, other: Val<'k>) -> Val<'k> {
        self.k.select(self.lt(other), self, other)
    }

    /// The larger; `other` where one of them is not a number.
    pub fn max(self, other: Val<'k>) -> Val<'k> {
        self.k.select(self.gt(other), self, other)
    }

    /// What the thread of the warp has whose number differs in these bits: see [`Code::Swapped`].
    pub fn swapped(self, bits: u32) -> Val<'k> {
        assert!(
            !self.ty.is_wide() && self.ty != Ty::Bool && bits < 32,
            "warps swap words"
        );
        self.k.kernel.borrow_mut().multiplies = true;
        self.k.emit(self.ty, Code::Swapped(self.reg, bits))
    }

    /// To another type; see [`Code::Cast`].
    pub fn cast(self, ty: Ty) -> Val<'k> {
        if ty == self.ty {
            return self;
        }
        self.k.emit(ty, Code::Cast(self.reg))
    }

    /// The same bits as another type.
    pub fn as_bits(self, ty: Ty) -> Val<'k> {
        assert!(self.ty.is_wide() == ty.is_wide() && self.ty != Ty::Bool && ty != Ty::Bool);
        if ty == self.ty {
            return self;
        }
        self.k.emit(ty, Code::Bits(self.reg))
    }
}

#[expect(missing_docs, reason = "each is what its name says")]
impl<'k> Var<'k> {
    pub fn get(self) -> Val<'k> {
        self.k.emit(self.ty, Code::Var(self.index))
    }

    pub fn set(self, value: Val<'k>) {
        assert_eq!(self.ty, value.ty, "variable of another type");
        self.k.push(Stmt::SetVar(self.index, value.reg));
    }
}

#[expect(missing_docs, reason = "each is what its name says")]
impl<'k> Shared<'k> {
    pub fn ty(self) -> Ty {
        self.ty
    }

    pub fn get(self, index: Val<'k>) -> Val<'k> {
        self.k.emit(self.ty, Code::Shared(self.index, index.reg))
    }

    pub fn set(self, index: Val<'k>, value: Val<'k>) {
        assert_eq!(self.ty, value.ty, "shared array of another type");
        self.k
            .push(Stmt::SetShared(self.index, index.reg, value.reg));
    }

    /// What the values of a group's threads make together, the same for all of them. The array has one place for each
    /// thread, and their number is a power of two.
    pub fn join(self, value: Val<'k>, f: impl Fn(Val<'k>, Val<'k>) -> Val<'k>) -> Val<'k> {
        let k = self.k;
        let (group_threads, place_count) = {
            let kernel = k.kernel.borrow();
            (kernel.local, kernel.shared[self.index as usize].1)
        };
        assert!(
            place_count == group_threads && group_threads.is_power_of_two(),
            "{place_count} for {group_threads} threads"
        );
        let local_index = k.place(Place::Local);
        self.set(local_index, value);
        k.barrier();
        // Pairs are joined in a tree: log2 of the threads steps, in a fixed order.
        let mut half_size = group_threads / 2;

        while half_size > 0 {
            k.if_(local_index.lt(k.u32(half_size)), || {
                self.set(
                    local_index,
                    f(self.get(local_index), self.get(local_index + half_size)),
                );
            });
            k.barrier();
            half_size /= 2;
        }

        let joined_value = self.get(k.u32(0));
        k.barrier();
        joined_value
    }
}

macro_rules! operators {
    ($($op:ident $method:ident $bin:ident),*) => { $(
        impl<'k> ops::$op for Val<'k> {
            type Output = Val<'k>;
            fn $method(self, other: Val<'k>) -> Val<'k> {
                self.k.binary(Bin::$bin, self, other)
            }
        }

        /// With an integer constant.
        impl<'k> ops::$op<u32> for Val<'k> {
            type Output = Val<'k>;
            fn $method(self, other: u32) -> Val<'k> {
                let ty = if matches!(Bin::$bin, Bin::Shl | Bin::Shr) { Ty::U32 } else { self.ty };
                assert!(!self.ty.is_float(), "an integer constant beside a float");
                self.k.binary(Bin::$bin, self, self.k.bits(ty, other.into()))
            }
        }
    )* };
}
operators!(
    Add add Add, Sub sub Sub, Mul mul Mul, Div div Div, Rem rem Rem, BitAnd bitand And, BitOr bitor Or,
    BitXor bitxor Xor, Shl shl Shl, Shr shr Shr
);

impl<'k> ops::Neg for Val<'k> {
    type Output = Val<'k>;
    fn neg(self) -> Val<'k> {
        self.unary(Un::Neg)
    }
}

impl<'k> ops::Not for Val<'k> {
    type Output = Val<'k>;
    fn not(self) -> Val<'k> {
        assert!(!self.ty.is_float());
        self.unary(Un::Not)
    }
}
