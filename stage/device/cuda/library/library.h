// Shared libraries that are opened while the program runs.
#ifndef AVG_LIBRARY_H
#define AVG_LIBRARY_H

// avg_library_open opens a library: NULL, with the loader's message, or its handle, with the path of its file, or NULL.
void *avg_library_open(const char *name, const char **message, const char **path);

// avg_die_of_faults has the kernel end the process at the signals of faults, and write no core. It returns 0, or -1 where a core is written all the same.
int avg_die_of_faults(void);

#endif
