// The same on a GPU: one thread per number.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

namespace {

constexpr int kThreads = 256;

__device__ int64_t first() { return blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; }
__device__ int64_t stride() { return gridDim.x * static_cast<int64_t>(blockDim.x); }

template <typename scalar_t>
__global__ void forward_kernel(const scalar_t* x, scalar_t* out, int64_t n, scalar_t d) {
  for (int64_t i = first(); i < n; i += stride()) {
    out[i] = sqrt(x[i] * x[i] + d * d) - d;
  }
}

template <typename scalar_t>
__global__ void backward_kernel(const scalar_t* grad, const scalar_t* x, scalar_t* out, int64_t n, scalar_t d) {
  for (int64_t i = first(); i < n; i += stride()) {
    out[i] = grad[i] * x[i] / sqrt(x[i] * x[i] + d * d);
  }
}

int blocks(int64_t n) {
  return static_cast<int>(std::min<int64_t>((n + kThreads - 1) / kThreads, 65535));
}

at::Tensor forward_cuda(const at::Tensor& x, double delta) {
  TORCH_CHECK(x.is_contiguous(), "smooth_abs: x must be contiguous, call x.contiguous()");
  const c10::cuda::CUDAGuard guard(x.device());
  auto out = at::empty_like(x);
  if (x.numel() == 0) return out;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "smooth_abs", [&] {
    forward_kernel<scalar_t><<<blocks(x.numel()), kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(), x.numel(), static_cast<scalar_t>(delta));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor backward_cuda(const at::Tensor& grad, const at::Tensor& x, double delta) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto out = at::empty_like(x);
  if (x.numel() == 0) return out;
  const auto above = grad.contiguous();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "smooth_abs_backward", [&] {
    backward_kernel<scalar_t><<<blocks(x.numel()), kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
        above.const_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(), x.numel(),
        static_cast<scalar_t>(delta));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(footplate_example, CUDA, m) {
  m.impl("smooth_abs", forward_cuda);
  m.impl("smooth_abs_backward", backward_cuda);
}
