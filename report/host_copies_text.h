/* host_copies_text.h - what rests on copies to host memory, for people and as JSON. */
#ifndef MF_REPORT_HOST_COPIES_TEXT_H
#define MF_REPORT_HOST_COPIES_TEXT_H

#include "core/base/json_write.h"
#include "job/host_copies.h"

#include <stdio.h>

/* A line where the best plan, which takes step_s, copies; else nothing. */
void mf_host_copies_print(FILE *out, const mf_host_copies *h, double step_s);
/* Member "host_copies" of the object that is open. */
void mf_host_copies_json(mf_json_writer *w, const mf_host_copies *h);

#endif
