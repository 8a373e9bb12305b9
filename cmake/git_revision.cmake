# Writes OUTPUT with the revision of SOURCE_DIR; leaves the file alone when nothing changed, so nothing is rebuilt.
execute_process(COMMAND git describe --always --dirty --abbrev=12 WORKING_DIRECTORY ${SOURCE_DIR}
  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  set(revision "no git revision")
endif()
set(text "#pragma once\nnamespace oscar {\ninline constexpr const char* kGitRevision = \"${revision}\";\n}\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
