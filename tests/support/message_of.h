// The message of the error an action must throw, so that a test can say what the sentence has to name.
#pragma once

#include <string>

#include "base/errors.h"

namespace oscar {

// "(no error)" when nothing is thrown; another class of error passes through and fails the test.
template <typename Thrown = InputError, typename Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Thrown& e) {
    return e.what();
  }
  return "(no error)";
}

}  // namespace oscar
