// Runs the threads of a grid as fibers.
#pragma once

#include <functional>
#include <string>

#include "shim.h"

// run_grid runs body once for each thread of each block, which has so many bytes of dynamic shared memory. It returns "", or why the threads of a block cannot go on.
std::string run_grid(Index grid, Index block, size_t shared_bytes, const std::function<void()> &body);

// together runs body once with what all lanes of a full warp hand over, when the last of them calls it. All must call it with the same body.
void together(void (*body)(void *const *lanes), void *mine);

// stop ends the launch: the kernel did what no device takes.
void stop(const char *why);

// is_shared reports whether bytes lie in shared memory.
bool is_shared(const void *at, size_t bytes);

// copies_are_early reports whether this launch copies to shared memory as early as it may, not as late: two launches do, then two do not.
bool copies_are_early();

// The number of the thread in its block, and of the block of all that ever ran.
unsigned thread_number();
uint64_t block_number();
