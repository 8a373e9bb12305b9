// All-gather with NCCL. libtorch_cuda.so brings libnccl.so, and the commands load it only when a GPU is used
// (lib/pipeline/common/cuda/gpu_facts.cpp). Functions are therefore looked up by name. Their types come from NCCL's
// header and are stable.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include <cstring>
#include <future>
#include <string>

#include "distributed/byte_gather.h"
#include "distributed/file_upload.h"

namespace oscar {
namespace {

struct UniqueId {
  char bytes[128];
};
using Comm = void*;
constexpr int kSuccess = 0, kUint8 = 1;
constexpr std::size_t kAlign = 512;  // alignment of parts

struct Nccl {
  int (*unique_id)(UniqueId*);
  int (*init)(Comm*, int, UniqueId, int);
  int (*all_gather)(const void*, void*, std::size_t, int, Comm, cudaStream_t);
  int (*abort)(Comm);
  const char* (*text)(int);

  Nccl() {
    library_ = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    find(unique_id, "ncclGetUniqueId");
    find(init, "ncclCommInitRank");
    find(all_gather, "ncclAllGather");
    find(abort, "ncclCommAbort");
    find(text, "ncclGetErrorString");
  }

  void check(int result, const char* what) const {
    if (result == kSuccess) return;
    throw EnvironmentError(std::string("NCCL failed in ") + what + " (" + text(result) +
                           "); NCCL_DEBUG=INFO tells more");
  }

 private:
  template <typename Function>
  void find(Function& function, const char* name) {
    function = library_ == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library_, name));
    if (function != nullptr) return;
    throw EnvironmentError(std::string("libnccl.so.2, which ranks on GPUs need, ") +
                           (library_ == nullptr ? "cannot be loaded" : std::string("lacks ") + name) +
                           "; install torch with its CUDA libraries, or start one process without torchrun");
  }

  void* library_;
};

class NcclGather : public ByteGather {
 public:
  NcclGather(Ranks& ranks, at::Device device) : rank_(ranks.rank()), count_(ranks.count()), device_(device) {
    UniqueId id{};
    if (ranks.is_first()) nccl_.check(nccl_.unique_id(&id), "ncclGetUniqueId");
    const std::string text = ranks.broadcast({id.bytes, sizeof id.bytes});
    if (text.size() != sizeof id.bytes) throw EnvironmentError("rank 0 sent no id of NCCL");
    std::memcpy(id.bytes, text.data(), sizeof id.bytes);
    meeting_ = std::async(std::launch::async, [this, id] {
      const c10::DeviceGuard guard(device_);
      Comm comm = nullptr;
      nccl_.check(nccl_.init(&comm, count_, id, rank_), "ncclCommInitRank");
      return comm;
    });
  }

  ~NcclGather() override {
    try {
      if (meeting_.valid()) comm_ = meeting_.get();
    } catch (const Error&) {  // nobody depended on it
    }
    if (comm_ != nullptr) nccl_.abort(comm_);
  }

  at::Tensor upload(std::span<const std::byte> bytes) override {
    if (meeting_.valid()) comm_ = meeting_.get();
    const c10::DeviceGuard guard(device_);
    const std::size_t whole = (bytes.size() + kAlign - 1) / kAlign;
    const std::size_t part = (whole + static_cast<std::size_t>(count_) - 1) / static_cast<std::size_t>(count_) * kAlign;
    const std::size_t first = std::min(part * static_cast<std::size_t>(rank_), bytes.size());
    const std::size_t own = std::min(part, bytes.size() - first);
    const auto options = at::TensorOptions(at::kByte);
    const at::Tensor all =
        at::empty({static_cast<std::int64_t>(part) * count_}, options.device(device_));  // slightly longer than `bytes`
    if (own > 0) {
      upload_file_bytes(bytes.subspan(first, own),
                        all.narrow(0, static_cast<std::int64_t>(part) * rank_, static_cast<std::int64_t>(own)));
    }
    auto* data = static_cast<std::byte*>(all.mutable_data_ptr());
    nccl_.check(nccl_.all_gather(data + part * static_cast<std::size_t>(rank_), data, part, kUint8, comm_,
                                 c10::cuda::getCurrentCUDAStream().stream()),
                "ncclAllGather");
    return all.narrow(0, 0, static_cast<std::int64_t>(bytes.size()));
  }

 private:
  Nccl nccl_;
  int rank_, count_;
  at::Device device_;
  Comm comm_ = nullptr;
  std::future<Comm> meeting_;
};

}  // namespace

std::unique_ptr<ByteGather> ByteGather::start(Ranks& ranks, at::Device device) {
  return std::make_unique<NcclGather>(ranks, device);
}

}  // namespace oscar
