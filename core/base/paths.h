/* paths.h - where the data that ships with moefold lies. */
#ifndef MF_BASE_PATHS_H
#define MF_BASE_PATHS_H

/* Folder that holds models/, clusters/, measured profiles: $MOEFOLD_DATA, else the source tree it
 * was built from, else PREFIX/share/moefold next to the executable. Never NULL. */
const char *mf_data_dir(void);

#endif
