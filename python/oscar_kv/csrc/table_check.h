// Tables of a call before kernels follow them (kernels/check/table_rules.h), where OSCAR_KV_CHECK_TABLES is set to
// anything but 0. Each check waits for the device; while a CUDA graph is captured nothing can be read, and none is
// made.
#pragma once

#include "kernels/check/check_tables.h"
#include "oscar_kv/csrc/arguments.h"

namespace oscar_kv {

bool checks_tables();

// A sentence that names what is wrong.
void check_tables(const Arguments& arguments, const oscar::kernels::StepTables& tables);
void check_tables(const Arguments& arguments, const oscar::kernels::RunTables& tables, std::int64_t count);
void check_tables(const Arguments& arguments, const oscar::kernels::NewRunTables& tables, std::int64_t count);
void check_tables(const Arguments& arguments, const oscar::kernels::TileTables& tables, std::int64_t count);

}  // namespace oscar_kv
