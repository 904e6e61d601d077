#pragma once

// CUDA for the kernels, without CUDA's headers. The build's include path says which compiler provides it:
//   kernels/cuda/device/nvcc      nvcc
//   tests/support/cuda_emulator   a C++ compiler; the tests execute the same kernels on the CPU
//
// Kernels are plain CUDA C++ and use besides:
//   PALIMPSEST_UNROLL, PALIMPSEST_NO_UNROLL    before a loop
//   PALIMPSEST_ASSUME(condition)               the compiler may take it for true
//   PALIMPSEST_SHARED(name, type)              a shared variable: PALIMPSEST_SHARED(sums, float[32]);
//   PALIMPSEST_DYNAMIC_SHARED(name)            the dynamic shared memory: unsigned char*, a multiple of 16
//   load_vector(from),                         4, 8 or 16 bytes of global memory at once, at a multiple of
//   store_vector(to, value)                    as many
//   widened(v), narrowed<S>(v),                16-bit storage to f32 and back, rounded to nearest even
//   narrowed_pair<S>(low, high),               two values to the 32 bits that they take in memory, and back
//   widened_pair<S>(bits, low, high)
//   start_copy(to_shared, from),               copies 4, 8 or 16 bytes, as load_vector, from global to shared
//   wait_for_copies()                          memory without registers; the calling thread may read `to_shared`
//                                              after it has waited for all copies that it started
//   commit_copies(),                           the copies started since the last commit make a group; waits for
//   wait_for_copies_but<N>()                   all groups but the N newest
//   start_next_launch()                        a launch that `follows` this one may occupy what this one leaves free
//   wait_for_launch_before()                   in a launch that `follows`: what the launch before it wrote is there;
//                                              else nothing. All threads call it
//   forget_memory()                            memory is read again after the call; no barrier
//   cluster_rank(), cluster_size(),            clusters of blocks; without clusters: 0, 1,
//   cluster_sync(),                            __syncthreads(); nothing
//   cluster_arrive() ... cluster_wait(),       a barrier in two halves, which orders no memory;
//   in_cluster_block(shared, rank)             the address of block `rank`'s `shared`
//
// The host uses:
//   launch(name, shape, stream, kernel, arguments...)
//                                              queues kernel(arguments...) on `stream` of the current device
//                                              and returns; throws std::runtime_error that names `name`
//   current_device()                           Device; asks once per device and never waits for the device
//   active_clusters(shape, kernel)             returns how many clusters of such a launch the current device runs
//                                              at once (blocks, if a cluster is one block), asked once per
//                                              device; 0: it refuses the launch
//   capture_is_on(stream)                      returns whether `stream` records a CUDA graph
//   key_of(stream)                             StreamKey of the work that is queued on `stream` now
//   new_zeroed_device_memory(bytes)            memory of the current device, never freed; may wait for it; also
//                                              while any thread captures; throws std::runtime_error
//   clear_in_order(memory, bytes, stream)      queues zeroing; returns whether it could
//   call_with_graph_end(stream, function, argument)
//                                              function(argument), on any thread, when the graph that `stream`
//                                              records and all made from it are destroyed; returns whether it
//                                              will be called
//   new_mapped_memory(bytes)                   zeroed memory of the host, at the same address on the device
//
// Kernels use full warp masks and barriers that all threads of a block reach. They never spin, and they have
// no inline assembly: the emulator could not execute it.
#include "cuda_platform.cuh"
