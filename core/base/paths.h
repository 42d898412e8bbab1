/* paths.h - finds the data that ships with moefold. */
#ifndef MF_BASE_PATHS_H
#define MF_BASE_PATHS_H

#include <stdbool.h>

/* The folder with models/, clusters/ and measured profiles: $MOEFOLD_DATA, else the folder of
 * mf_data_dir_set, else share/moefold under the prefix of the program or library (or `data` next to
 * the library), else the source tree of the build. Never NULL. */
const char *mf_data_dir(void);
/* Call it before the first mf_data_dir, and not concurrently with one. False when the folder has no
 * models. */
bool mf_data_dir_set(const char *folder);

#endif
