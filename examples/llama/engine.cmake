# Target llama_engine: the headers of the example engine with what they need. Not defined where that is missing.
if(TARGET llama_engine)
  return()
endif()
find_path(HEDDLE_PCRE2_INCLUDE_DIR pcre2.h)
find_library(HEDDLE_PCRE2 pcre2-8)
find_path(HEDDLE_CLI11_INCLUDE_DIR CLI/CLI.hpp)
find_path(HEDDLE_JSON_INCLUDE_DIR nlohmann/json.hpp)
if(NOT HEDDLE_PCRE2_INCLUDE_DIR OR NOT HEDDLE_PCRE2 OR NOT HEDDLE_CLI11_INCLUDE_DIR OR NOT HEDDLE_JSON_INCLUDE_DIR)
  message(STATUS "heddle: the example engine needs libpcre2-dev, libcli11-dev and nlohmann-json3-dev; it is not built")
  return()
endif()

add_library(llama_engine INTERFACE)
target_include_directories(llama_engine INTERFACE ${PROJECT_SOURCE_DIR}/examples)
target_include_directories(llama_engine SYSTEM INTERFACE
                           ${HEDDLE_PCRE2_INCLUDE_DIR} ${HEDDLE_CLI11_INCLUDE_DIR} ${HEDDLE_JSON_INCLUDE_DIR})
target_link_libraries(llama_engine INTERFACE heddle_development ${HEDDLE_PCRE2})
