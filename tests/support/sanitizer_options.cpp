// Tests request more memory than any machine has: a sanitizer's malloc must then return null, as the system's
// does, and not end the program.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}
