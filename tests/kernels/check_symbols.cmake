# Fails when an object that was compiled for one instruction set offers a symbol that the linker may merge with those of
# other objects (weak or unique): an older machine could then be given that copy, and die of an illegal instruction.
# Also within the set's own namespace: several units of one set share it, and of two inline functions that happen to
# have one name the linker takes either, without a word.
#   cmake -DNM=nm -DOBJECTS=a.o;b.o -P check_symbols.cmake
set(_bad "")
foreach(_object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} -C ${_object} OUTPUT_VARIABLE _symbols RESULT_VARIABLE _status)
  if(NOT _status EQUAL 0)
    message(FATAL_ERROR "${NM} failed on ${_object}")
  endif()
  string(REPLACE ";" "," _symbols "${_symbols}")
  string(REGEX MATCHALL "[0-9a-f]+ [WVuvw] [^\n]*" _weak "${_symbols}")
  foreach(_symbol IN LISTS _weak)
    # DW.ref.* and .asan/.ubsan tables are data of the compiler's own runtime, not code.
    if(NOT _symbol MATCHES "DW\\.ref\\.|__asan|__ubsan|__odr_asan")
      string(APPEND _bad "\n  ${_object}: ${_symbol}")
    endif()
  endforeach()
  if(NOT _symbols MATCHES "[0-9a-f]+ [DdRrBb] palimpsest::kernels::cpu::[a-z0-9_]+::[a-z0-9_]+::k[A-Z]")
    string(APPEND _bad "\n  ${_object}: no kernel table in it: is this the right file?")
  endif()
endforeach()
if(NOT OBJECTS)
  message(FATAL_ERROR "no objects given")
endif()
if(_bad)
  message(FATAL_ERROR "weak symbols in objects of one instruction set:${_bad}")
endif()
