/* table.h - large tables that are read here and there, on large pages where the system has them. */
#ifndef MF_CORE_TABLE_H
#define MF_CORE_TABLE_H

#include <stddef.h>

/* So many bytes, all 0; NULL when there is no more memory. With pages of 4 KiB nearly each look at
 * a table of some MB first waits for the processor to find out where its page is. */
void *mf_table_create(size_t size_B);
/* NULL is none. */
void mf_table_destroy(void *table);

#endif
