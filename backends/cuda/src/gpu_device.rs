//! The device as those see it who run calendars on GPUs of any backend.

use zbmd_ir::Program;

use super::device::CudaDevice;
use super::listed::Listed;
use super::queue::Queue;
use zbmd_gpu_ir::emit::cubins::Cubins;
use zbmd_gpu_ir::{Caps, KernelPlan};
use zbmd_hal::{Fault, GpuDevice, QueueDevice};

impl QueueDevice for CudaDevice {
    type Queue = Queue;
}

impl GpuDevice for CudaDevice {
    fn backend_name(&self) -> &'static str {
        "cuda"
    }

    fn caps(&self) -> &Caps {
        self.caps()
    }

    fn describe(&self) -> String {
        let Listed { title, driver, .. } = self.listed();
        let uuid_text = self.listed().uuid_text();
        let library_text = self
            .library()
            .map(|name| format!(" {name}"))
            .unwrap_or_default();
        format!("cuda: {uuid_text} {title} {driver}{library_text}")
    }

    fn is_alive(&self) -> bool {
        self.is_alive()
    }

    fn has_dependent_launch(&self) -> bool {
        self.has_dependent_launch()
    }

    fn unsupported_reason(&self, plan: &KernelPlan) -> Result<Option<String>, Fault> {
        for shape in plan.products() {
            if let Some(reason) = self.unsupported_shape(shape)? {
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }

    fn warm_kernels(&self, plans: &[KernelPlan], program: &Program) -> Result<(), Fault> {
        let cubins = Cubins::of_program(program, self.listed().arch);
        for kernel in plans.iter().flat_map(KernelPlan::kernels) {
            self.load_kernel(kernel, &cubins)?;
        }
        Ok(())
    }
}
