// Runs the threads of a grid as fibers.
#pragma once

#include <functional>
#include <string>

#include "shim.h"

// run_grid runs body once for each thread of each block. It returns "", or why the threads of a block cannot go on.
std::string run_grid(Index grid, Index block, const std::function<void()> &body);
