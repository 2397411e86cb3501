//go:build onednn && cgo && linux && amd64

#include "isa_avx512.h"

#define TILE_VECTORS 4  // of a register tile: 6 rows by 4 vectors and what feeds them fit 32 registers
#define TABLE avg_kernels_avx512
#define TABLE_NAME "avx512"

#include "kernels_body.h"
