/* status.h - how functions report failure, and how a failure gathers its story on the way up.
 *
 * Every function that can fail returns an mf_status and takes an optional mf_err. The place that
 * finds the fault fills it in (mf_err_set); each caller on the way up may say what it was doing
 * (mf_err_prefix), so that the user reads one line such as
 *     plan: model.json:12:18: "num_experts": expected an integer > 0, got "eight"
 * Only main() turns a status into a process exit code (mf_status_exit_code).
 * All functions accept e == NULL. An mf_err is plain data: no ownership, safe to copy.
 */
#ifndef MF_CORE_STATUS_H
#define MF_CORE_STATUS_H

#include <stdarg.h>

/* X(name, process exit code, what it means) */
#define MF_STATUS_MAP(X)                                                                           \
    X(OK, 0, "done")                                                                               \
    X(USAGE, 2, "bad usage")                                                                       \
    X(INPUT, 2, "malformed input")                                                                 \
    X(LAYOUT, 2, "degrees that do not divide")                                                     \
    X(INFEASIBLE, 3, "nothing feasible")                                                           \
    X(TOLERANCE, 4, "measured outside tolerance")                                                  \
    X(TRANSIENT, 5, "a fault that passes")                                                         \
    X(LASTING, 6, "a fault that lasts")                                                            \
    X(IO, 1, "input/output failed")                                                                \
    X(NOMEM, 1, "out of memory")                                                                   \
    X(DAMAGED, 1, "stored data is damaged")                                                        \
    X(DIVERGED, 1, "training diverged")                                                            \
    X(LIBRARY, 1, "a library call failed")                                                         \
    X(INTERNAL, 1, "internal error")                                                               \
    X(INTERRUPTED, 130, "interrupted")

typedef enum mf_status {
#define X(name, code, text) MF_##name,
    MF_STATUS_MAP(X)
#undef X
} mf_status;

#define MF_ERR_TEXT_MAX 2048

typedef struct mf_err {
    mf_status status;
    char text[MF_ERR_TEXT_MAX]; /* one line, no trailing newline; "" when status is MF_OK */
} mf_err;

#if defined(__GNUC__)
#define MF_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
#else
#define MF_PRINTF(fmt_index, first_arg)
#endif

/* Resets to MF_OK and empty text. */
void mf_err_clear(mf_err *e);

/* Records a failure and returns `status`, so that `return mf_err_set(e, MF_INPUT, ...)` works. */
mf_status mf_err_set(mf_err *e, mf_status status, const char *fmt, ...) MF_PRINTF(3, 4);
mf_status mf_err_vset(mf_err *e, mf_status status, const char *fmt, va_list args) MF_PRINTF(3, 0);

/* Puts "<text>: " in front of what is recorded; returns the recorded status. */
mf_status mf_err_prefix(mf_err *e, const char *fmt, ...) MF_PRINTF(2, 3);

/* Short English text of a status; never NULL. */
const char *mf_status_text(mf_status s);

/* Exit code of the process for a status, as the command line documents it. */
int mf_status_exit_code(mf_status s);

#endif
