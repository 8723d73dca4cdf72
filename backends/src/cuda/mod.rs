//! NVIDIA GPUs by way of CUDA.
mod ptx;
#[cfg(test)]
mod tests;
