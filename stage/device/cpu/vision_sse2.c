//go:build onednn && cgo && linux && amd64

#include "isa_sse2.h"

#define VISION_TABLE avg_vision_sse2

#include "vision_body.h"
