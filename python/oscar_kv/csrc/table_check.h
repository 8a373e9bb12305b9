// Checks the page tables of a call before its kernels use them (kernels/check/table_rules.h). Only if the environment
// variable OSCAR_KV_CHECK_TABLES is set to something other than 0, because each check waits for the device. Calls that
// are captured into a CUDA graph are not checked, because a capture cannot read results back.
#pragma once

#include "kernels/check/check_tables.h"
#include "oscar_kv/csrc/arguments.h"

namespace oscar_kv {

bool checks_tables();

// These throw one sentence that names the fault.
void check_tables(const Arguments& arguments, const oscar::kernels::StepTables& tables);
void check_tables(const Arguments& arguments, const oscar::kernels::RunTables& tables, std::int64_t count);
void check_tables(const Arguments& arguments, const oscar::kernels::NewRunTables& tables, std::int64_t count);
void check_tables(const Arguments& arguments, const oscar::kernels::TileTables& tables, std::int64_t count);

}  // namespace oscar_kv
