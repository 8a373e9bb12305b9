#include "pipeline/common/device_choice.h"

#include <ATen/ATen.h>
#include <ATen/cpu/Utils.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>

#include "base/errors.h"
#include "base/log.h"
#include "build_info.h"

namespace oscar {
namespace {

// The GPU, after its libraries are loaded. It becomes this thread's current device for the project's kernels.
at::Device gpu(int index) {
  load_gpu_library();
  const at::Device device{at::kCUDA, static_cast<at::DeviceIndex>(index)};
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  return device;
}

// Why the kernels of this build do not run on a GPU; empty if they do.
std::string unsupported_here(int index) { return gpu_unsupported(gpu_facts(index), kCudaArchitectures, kCudaVersion); }

// The GPU index in --device, which may not exist; own: the index if --device names none.
int asked_index(const CommonOptions& options, int own) {
  return options.device.starts_with("cuda:") ? std::stoi(options.device.substr(5)) : own;
}

}  // namespace

std::jthread start_device(const CommonOptions& options, const Ranks* ranks) {
  if (options.device == "cpu" || !kBuiltWithCuda) return {};
  return std::jthread([options, own = ranks == nullptr ? 0 : ranks->environment().local_rank] {
    try {
      const int index = asked_index(options, own);
      if (index < gpu_count() && unsupported_here(index).empty()) {
        at::empty({1}, at::TensorOptions(at::kByte).device(gpu(index)));
      }
    } catch (const std::exception&) {
    }
  });
}

at::Device choose_device(const CommonOptions& options, const Ranks* ranks) {
  const int own = ranks == nullptr ? 0 : ranks->environment().local_rank;
  if (options.device == "cpu") return at::kCPU;
  if (options.device == "auto") {
    const bool found = gpu_count() > own;
    const std::string unsupported = found ? unsupported_here(own) : "";
    const bool usable = found && unsupported.empty();
    log_info("device: " + (usable ? "cuda:" + std::to_string(own) : "cpu") + " (chosen by --device auto" +
             (unsupported.empty() ? "" : ": " + unsupported) + ")");
    return usable ? gpu(own) : at::Device(at::kCPU);
  }
  if (ranks != nullptr && options.device != "cuda") {
    throw UsageError("--device " + options.device + ": each of " + std::to_string(ranks->count()) +
                     " ranks takes the GPU of its number on the machine; pass --device cuda");
  }
  if (!kBuiltWithCuda) {
    throw EnvironmentError("--device " + options.device +
                           ": this build has no CUDA kernels (a package starts its CUDA build where it finds an NVIDIA "
                           "GPU; from source, configure with `cmake --preset cuda`); pass --device cpu");
  }
  const int count = gpu_count();
  if (count == 0) {
    throw EnvironmentError("--device " + options.device +
                           ": no usable GPU was found on this machine (nvidia-smi shows what the driver sees); pass "
                           "--device cpu");
  }
  const int index = asked_index(options, own);
  if (index >= count) {
    throw EnvironmentError("--device " + options.device + ": this machine has " + std::to_string(count) +
                           " GPU(s), numbered from 0" +
                           (ranks == nullptr ? "" : ": start no more ranks than GPUs (--nproc-per-node)"));
  }
  const std::string unsupported = unsupported_here(index);
  if (!unsupported.empty()) throw EnvironmentError("--device " + options.device + ": " + unsupported);
  return gpu(index);
}

at::ScalarType choose_dtype(const CommonOptions& options, const at::Device& device) {
  if (options.dtype == "bfloat16") return at::kBFloat16;
  if (options.dtype == "float32") return at::kFloat;
  const at::ScalarType dtype = device.is_cpu() ? at::kFloat : at::kBFloat16;
  log_info(std::string("dtype: ") + dtype_option_name(dtype) + " (chosen by --dtype auto)");
  return dtype;
}

std::optional<at::ScalarType> narrow_products(bool chosen, const at::Device& device) {
  if (!chosen || !device.is_cpu()) return std::nullopt;
  const auto known = at::cpu::get_cpu_capabilities();
  const auto has = [&](const char* name) {
    const auto found = known.find(name);
    return found != known.end() && found->second.isBool() && found->second.toBool();
  };
  if (!has("avx512_bf16") && !has("amx_bf16")) return std::nullopt;
  return at::kBFloat16;
}

const char* dtype_option_name(at::ScalarType dtype) { return dtype == at::kBFloat16 ? "bfloat16" : "float32"; }

}  // namespace oscar
