//go:build onednn && cgo && linux && amd64

#include "isa_avx2.h"

#define VISION_TABLE avg_vision_avx2

#include "vision_body.h"
