# Exports the installed package; see palimpsestConfig.cmake.in.
