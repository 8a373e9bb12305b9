// SIGINT and SIGTERM as a flag that long loops poll between steps.
#pragma once

namespace oscar {

// Installs the handlers once. A second SIGINT ends the process at once with exit code 130.
void install_interrupt_handler();
bool interrupt_requested();

}  // namespace oscar
