//go:build onednn && cgo && linux && amd64

#include "isa_avx512.h"

#define VISION_TABLE avg_vision_avx512

#include "vision_body.h"
