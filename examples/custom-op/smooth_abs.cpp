// smooth_abs(x, delta): |x| with a round bottom of width delta. What the op is called, and how a CPU computes it.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <cmath>

namespace {

void check(const at::Tensor& x, double delta) {
  TORCH_CHECK(x.is_contiguous(), "smooth_abs: x must be contiguous, call x.contiguous()");
  TORCH_CHECK(x.is_floating_point(), "smooth_abs: x must be floating point, got ", x.scalar_type());
  TORCH_CHECK(delta > 0, "smooth_abs: delta must be above 0, got ", delta);
}

at::Tensor forward_cpu(const at::Tensor& x, double delta) {
  check(x, delta);
  auto out = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "smooth_abs", [&] {
    const auto* in = x.const_data_ptr<scalar_t>();
    auto* to = out.mutable_data_ptr<scalar_t>();
    const auto d = static_cast<scalar_t>(delta);
    at::parallel_for(0, x.numel(), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = std::sqrt(in[i] * in[i] + d * d) - d;
    });
  });
  return out;
}

at::Tensor backward_cpu(const at::Tensor& grad, const at::Tensor& x, double delta) {
  check(x, delta);
  auto out = at::empty_like(x);
  const auto above = grad.contiguous();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "smooth_abs_backward", [&] {
    const auto* in = x.const_data_ptr<scalar_t>();
    const auto* g = above.const_data_ptr<scalar_t>();
    auto* to = out.mutable_data_ptr<scalar_t>();
    const auto d = static_cast<scalar_t>(delta);
    at::parallel_for(0, x.numel(), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = g[i] * in[i] / std::sqrt(in[i] * in[i] + d * d);
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY(footplate_example, m) {
  m.def("smooth_abs(Tensor x, float delta) -> Tensor");
  m.def("smooth_abs_backward(Tensor grad, Tensor x, float delta) -> Tensor");
}

TORCH_LIBRARY_IMPL(footplate_example, CPU, m) {
  m.impl("smooth_abs", forward_cpu);
  m.impl("smooth_abs_backward", backward_cpu);
}
