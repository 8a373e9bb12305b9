// quote_name() lives in base/foreign_text.h.
#pragma once
#include "base/foreign_text.h"
