//go:build onednn && cgo && linux && amd64

#include "isa_sse2.h"

#define TILE_VECTORS 2  // of a register tile: 6 rows by 2 vectors and what feeds them fit 16 registers
#define TABLE avg_kernels_sse2
#define TABLE_NAME "sse2"

#include "kernels_body.h"
