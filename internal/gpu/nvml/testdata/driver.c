// A library with the functions of NVML that are required, and one more, for two processors. It has no other function: a call of one ends the process.
#include <string.h>

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "lost" : "other"; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) { strncpy(uuid, device == (void *)1 ? "GPU-one" : "GPU-two", length); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { (void)device; strncpy(name, "Plain", length); return 0; }
int nvmlDeviceGetPciInfo_v3(void *device, void *pci) { (void)device; (void)pci; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) { (void)device; memory[0] = 8ull << 30; memory[1] = 7ull << 30; memory[2] = 1ull << 30; return 0; }

// The second processor has fallen off the bus (15).
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 99000; return device == (void *)1 ? 0 : 15; }
