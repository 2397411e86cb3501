// The functions of NVML, found when the library is loaded.
#ifndef AVG_NVML_THUNKS_H
#define AVG_NVML_THUNKS_H

// avg_nvml_load opens the library and finds its functions. It returns NULL, or the loader's message. Functions that it lacks fail when they are called.
const char *avg_nvml_load(const char *path);

#endif
