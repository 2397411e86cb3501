// The functions of the CUDA driver, found when the library is loaded.
#ifndef AVG_THUNKS_H
#define AVG_THUNKS_H

// avg_load finds the functions of the driver library that was opened. It returns the names of those that a driver must have and this one lacks, each
// after a space, until the next call.
const char *avg_load(void *library);

// avg_init initialises the driver that avg_load found: 0, or an error of the driver.
int avg_init(void);

#endif
