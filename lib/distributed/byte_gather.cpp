#include "distributed/byte_gather.h"

namespace oscar {
namespace {

thread_local ByteGather* t_gather = nullptr;

}  // namespace

GatherScope::GatherScope(ByteGather* gather) : before_(t_gather) { t_gather = gather; }
GatherScope::~GatherScope() { t_gather = before_; }

ByteGather* current_gather() { return t_gather; }

}  // namespace oscar
