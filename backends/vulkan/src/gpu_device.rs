//! The device as those see it who run calendars on GPUs of any backend.

use zbmd_ir::Program;

use super::device::VulkanDevice;
use super::instance::Listed;
use super::queue::Queue;
use zbmd_gpu_ir::emit::modules::Codes;
use zbmd_gpu_ir::{Caps, KernelPlan, library};
use zbmd_hal::{Fault, GpuDevice, QueueDevice};

impl QueueDevice for VulkanDevice {
    type Queue = Queue;
}

impl GpuDevice for VulkanDevice {
    fn backend_name(&self) -> &'static str {
        "vulkan"
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn describe(&self) -> String {
        let Listed { title, driver, .. } = self.listed();
        format!("vulkan: {} {title} {driver}", self.listed().uuid_text())
    }

    fn is_alive(&self) -> bool {
        self.is_alive()
    }

    fn unsupported_reason(&self, plan: &KernelPlan) -> Result<Option<String>, Fault> {
        let has_products = plan.products().next().is_some();
        Ok(has_products.then(library::needs_cuda))
    }

    fn warm_kernels(&self, plans: &[KernelPlan], program: &Program) -> Result<(), Fault> {
        let kernels = plans.iter().flat_map(KernelPlan::kernels);
        let codes = Codes::of_program(program);
        self.pipelines(kernels.map(|kernel| &**kernel), &codes)?;
        Ok(())
    }

    fn save_kernel_cache(&self) {
        self.save_cache();
    }

    fn validation_messages(&self) -> Vec<String> {
        self.instance().messages()
    }
}
