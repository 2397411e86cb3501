// The functions of the CUDA driver, found when the library is loaded.
#ifndef AVG_THUNKS_H
#define AVG_THUNKS_H

// avg_load opens the driver library and finds its functions. It returns NULL, or a message that lives until the next call: the loader's, or
// in *missing the names of functions that a driver must have.
const char *avg_load(const char *path, const char **missing);

// avg_init initialises the driver that avg_load found: 0, or an error of the driver.
int avg_init(void);

#endif
