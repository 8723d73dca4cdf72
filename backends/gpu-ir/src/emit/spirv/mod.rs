//! Prints kernels as SPIR-V 1.3, by rspirv. Knows no device but what [`Floats`] says of it.
//!
//! Sums, differences and products of floats are marked `NoContraction`, so that what is written as a product and a sum
//! is rounded twice on every device. Wide and narrow types bring their capabilities with them.

mod code;

use std::collections::BTreeMap;

use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel,
    FunctionControl, MemoryModel, Op, StorageClass, Word,
};

use crate::lang::{Kernel, Mem, Place, Ty};

/// The float modes that a device supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Floats {
    /// Zeros keep their signs, infinities and NaNs are values: of `f32`.
    pub keep32: bool,
    /// The same of `f64`.
    pub keep64: bool,
}

impl Floats {
    /// As much of it as makes a difference to a kernel.
    pub fn of_kernel(self, kernel: &Kernel) -> Self {
        Self {
            keep64: self.keep64 && kernel.needs().f64,
            ..self
        }
    }
}

/// The module of a kernel; specialisation constants have 1 as their default, so that kernels that differ in shapes only
/// have the same words.
pub fn print(kernel: &Kernel, floats: Floats) -> Vec<u32> {
    let mut printer = Printer {
        kernel,
        b: Builder::new(),
        glsl: 0,
        types: BTreeMap::new(),
        memory: BTreeMap::new(),
        consts: BTreeMap::new(),
        bindings: Vec::new(),
        specs: Vec::new(),
        arguments: 0,
        places: BTreeMap::new(),
        shared: Vec::new(),
        vars: Vec::new(),
        regs: vec![0; kernel.regs.len()],
        entry: 0,
    };

    printer.write_header(floats);
    printer.declare_storage();
    printer.declare_arguments();
    printer.declare_places();
    printer.write_function();
    let interface: Vec<Word> = printer.places.values().copied().collect();
    printer
        .b
        .entry_point(ExecutionModel::GLCompute, printer.entry, "main", interface);
    printer.b.module().assemble()
}

struct Printer<'a> {
    kernel: &'a Kernel,
    b: Builder,
    glsl: Word,
    types: BTreeMap<Ty, Word>,
    memory: BTreeMap<Mem, Word>,
    consts: BTreeMap<(Ty, u64), Word>,
    bindings: Vec<Word>,
    specs: Vec<Word>,
    arguments: Word,
    places: BTreeMap<Place, Word>,
    shared: Vec<Word>,
    vars: Vec<Word>,
    regs: Vec<Word>,
    entry: Word,
}

impl Printer<'_> {
    fn write_header(&mut self, floats: Floats) {
        let kernel_needs = self.kernel.needs();
        let keep32 = floats.keep32;
        let keep64 = floats.keep64 && kernel_needs.f64;
        let b = &mut self.b;
        b.set_version(1, 3);

        // A module declares what it uses, and nothing that a device might lack needlessly.
        let wanted_capabilities = [
            (true, Capability::Shader),
            (kernel_needs.f64, Capability::Float64),
            (kernel_needs.i64, Capability::Int64),
            (kernel_needs.bytes, Capability::StorageBuffer8BitAccess),
            (kernel_needs.halves, Capability::StorageBuffer16BitAccess),
            (keep32 || keep64, Capability::SignedZeroInfNanPreserve),
        ];

        wanted_capabilities
            .into_iter()
            .filter(|(on, _)| *on)
            .for_each(|(_, c)| b.capability(c));
        if kernel_needs.bytes {
            b.extension("SPV_KHR_8bit_storage");
        }
        if keep32 || keep64 {
            b.extension("SPV_KHR_float_controls");
        }
        self.glsl = b.ext_inst_import("GLSL.std.450");
        b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
        self.entry = b.id();

        for (on, width) in [(keep32, 32), (keep64, 64)] {
            if on {
                let mode = ExecutionMode::SignedZeroInfNanPreserve;
                b.execution_mode(self.entry, mode, [width]);
            }
        }

        b.execution_mode(
            self.entry,
            ExecutionMode::LocalSize,
            [self.kernel.local, 1, 1],
        );
    }

    fn ty(&mut self, ty: Ty) -> Word {
        if let Some(&type_id) = self.types.get(&ty) {
            return type_id;
        }
        let type_id = match ty {
            Ty::Bool => self.b.type_bool(),
            Ty::I32 => self.b.type_int(32, 1),
            Ty::U32 => self.b.type_int(32, 0),
            Ty::I64 => self.b.type_int(64, 1),
            Ty::U64 => self.b.type_int(64, 0),
            Ty::F32 => self.b.type_float(32, None),
            Ty::F64 => self.b.type_float(64, None),
        };

        self.types.insert(ty, type_id);
        type_id
    }

    /// The type of an element in memory.
    fn element_type(&mut self, mem: Mem) -> Word {
        if let Some(&type_id) = self.memory.get(&mem) {
            return type_id;
        }
        let type_id = match mem {
            Mem::U8 => self.b.type_int(8, 0),
            Mem::I8 => self.b.type_int(8, 1),
            Mem::U16 => self.b.type_int(16, 0),
            Mem::I16 => self.b.type_int(16, 1),
            Mem::Pair => {
                let float_type = self.ty(Ty::F32);
                self.b.type_vector(float_type, 2)
            }
            other => self.ty(other.ty()),
        };

        self.memory.insert(mem, type_id);
        type_id
    }

    fn constant_id(&mut self, ty: Ty, bits: u64) -> Word {
        if let Some(&constant_id) = self.consts.get(&(ty, bits)) {
            return constant_id;
        }
        let type_id = self.ty(ty);
        let constant_id = match ty {
            Ty::Bool if bits != 0 => self.b.constant_true(type_id),
            Ty::Bool => self.b.constant_false(type_id),
            wide if wide.is_wide() => self.b.constant_bit64(type_id, bits),
            _ => self.b.constant_bit32(type_id, bits as u32),
        };

        self.consts.insert((ty, bits), constant_id);
        constant_id
    }

    fn u32(&mut self, value: u32) -> Word {
        self.constant_id(Ty::U32, value.into())
    }

    fn pointer_type(&mut self, class: StorageClass, to: Word) -> Word {
        self.b.type_pointer(None, class, to)
    }

    /// A struct of one member, as memory outside of kernels must be.
    fn block_struct(&mut self, member: Word) -> Word {
        let struct_id = self.b.id();
        self.b.type_struct_id(Some(struct_id), [member]);
        self.b.decorate(struct_id, Decoration::Block, []);
        self.b
            .member_decorate(struct_id, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
        struct_id
    }

    fn declare_storage(&mut self) {
        let mut blocks: BTreeMap<Mem, Word> = BTreeMap::new();
        for (i, binding) in self.kernel.bindings.iter().enumerate() {
            // Bindings of one element type share their block type.
            let known_block = blocks.get(&binding.mem).copied();
            let block = known_block.unwrap_or_else(|| {
                let element_type = self.element_type(binding.mem);
                let array_id = self.b.id();
                self.b.type_runtime_array_id(Some(array_id), element_type);
                let stride_operand = Operand::LiteralBit32(binding.mem.bytes() as u32);
                self.b
                    .decorate(array_id, Decoration::ArrayStride, [stride_operand]);
                self.block_struct(array_id)
            });

            blocks.insert(binding.mem, block);
            let pointer_type = self.pointer_type(StorageClass::StorageBuffer, block);
            let variable_id =
                self.b
                    .variable(pointer_type, None, StorageClass::StorageBuffer, None);
            self.b.decorate(
                variable_id,
                Decoration::DescriptorSet,
                [Operand::LiteralBit32(0)],
            );
            self.b.decorate(
                variable_id,
                Decoration::Binding,
                [Operand::LiteralBit32(i as u32)],
            );
            if !binding.writes {
                self.b.decorate(variable_id, Decoration::NonWritable, []);
            }
            self.bindings.push(variable_id);
        }

        for (i, _) in self.kernel.specs.iter().enumerate() {
            let ty = self.ty(Ty::U32);
            let spec_id = self.b.spec_constant_bit32(ty, 1);
            self.b.decorate(
                spec_id,
                Decoration::SpecId,
                [Operand::LiteralBit32(i as u32)],
            );
            self.specs.push(spec_id);
        }

        for &(ty, len) in &self.kernel.shared {
            let element_type = self.ty(ty);
            let len = self.u32(len);
            let array_id = self.b.type_array(element_type, len);
            let pointer_type = self.pointer_type(StorageClass::Workgroup, array_id);
            self.shared.push(
                self.b
                    .variable(pointer_type, None, StorageClass::Workgroup, None),
            );
        }
    }

    /// Push constants: the number of firings, then an offset for each binding.
    fn declare_arguments(&mut self) {
        let word_type = self.ty(Ty::U32);
        let len = self.u32(1 + self.kernel.bindings.len() as u32);
        let array_id = self.b.id();
        self.b.type_array_id(Some(array_id), word_type, len);
        self.b.decorate(
            array_id,
            Decoration::ArrayStride,
            [Operand::LiteralBit32(4)],
        );
        let block = self.block_struct(array_id);
        let pointer_type = self.pointer_type(StorageClass::PushConstant, block);
        self.arguments = self
            .b
            .variable(pointer_type, None, StorageClass::PushConstant, None);
    }

    fn declare_places(&mut self) {
        let word_type = self.ty(Ty::U32);
        // Built-in inputs have three dimensions; kernels use the first.
        let vector_type = self.b.type_vector(word_type, 3);
        let pointer_type = self.pointer_type(StorageClass::Input, vector_type);

        for (place, built_in) in [
            (Place::Thread, BuiltIn::GlobalInvocationId),
            (Place::Local, BuiltIn::LocalInvocationId),
            (Place::Group, BuiltIn::WorkgroupId),
            (Place::Groups, BuiltIn::NumWorkgroups),
        ] {
            let variable_id = self
                .b
                .variable(pointer_type, None, StorageClass::Input, None);
            self.b.decorate(
                variable_id,
                Decoration::BuiltIn,
                [Operand::BuiltIn(built_in)],
            );
            self.places.insert(place, variable_id);
        }
    }

    fn write_function(&mut self) {
        const MADE: &str = "blocks are opened and closed in turn";
        let void_type = self.b.type_void();
        let signature_type = self.b.type_function(void_type, []);
        let no_control = FunctionControl::NONE;
        self.b
            .begin_function(void_type, Some(self.entry), no_control, signature_type)
            .expect(MADE);
        self.b.begin_block(None).expect(MADE);

        for &ty in &self.kernel.vars {
            let ty = self.ty(ty);
            let pointer_type = self.pointer_type(StorageClass::Function, ty);
            self.vars.push(
                self.b
                    .variable(pointer_type, None, StorageClass::Function, None),
            );
        }

        self.body(&self.kernel.body);
        self.plain(Op::Return, vec![]);
        self.b.end_function().expect(MADE);
    }
}
