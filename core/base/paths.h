/* paths.h - where the data that ships with moefold lies. */
#ifndef MF_BASE_PATHS_H
#define MF_BASE_PATHS_H

#include <stdbool.h>

/* Folder that holds models/, clusters/, measured profiles: $MOEFOLD_DATA, else what mf_data_dir_set
 * said, else share/moefold of the prefix that program or library stand in (or `data` beside the
 * library), else the source tree it was built from. Never NULL. */
const char *mf_data_dir(void);
/* Before the first mf_data_dir, and not beside one: false when the folder holds no models. */
bool mf_data_dir_set(const char *folder);

#endif
