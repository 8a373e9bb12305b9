// SIGINT, SIGTERM and SIGHUP as a flag that long loops poll between steps.
#pragma once

namespace oscar {

// A second SIGINT or SIGTERM, half a second or more later, ends the process with 130. What was ignored stays ignored.
void install_interrupt_handler();
bool interrupt_requested();

}  // namespace oscar
