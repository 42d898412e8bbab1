/* moefold.h - libmoefold: what the program `moefold` plans and predicts, as JSON in, JSON out.
 *
 * One function does it all: moefold_call("plan", "{\"model\": \"mixtral-8x7b\", ...}", ...) answers
 * with the very bytes that `moefold plan --model mixtral-8x7b ... --json` prints, says the same
 * line when something is wrong, and returns the same exit code. The library plans, it does not
 * train: it needs neither MPI nor CUDA. It prints nothing, ends no process, catches no signal and
 * changes no setting of its caller. Link with `pkg-config --cflags --libs moefold`; docs/LIBRARY.md
 * has examples, and the Python package.
 *
 * All functions may be called from several threads at the same time, except moefold_set_data.
 */
#ifndef MOEFOLD_H
#define MOEFOLD_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MOEFOLD_API __attribute__((visibility("default")))
#else
#define MOEFOLD_API
#endif

/* Tables stand in comments: */
/* clang-format off */
/* What moefold_call returns: the exit codes of the program. */
enum {
    MOEFOLD_DONE = 0,
    MOEFOLD_FAILED = 1,     /* failed while running: a file cannot be written, memory ran out */
    MOEFOLD_USAGE = 2,      /* an unknown option, malformed input, degrees that do not divide */
    MOEFOLD_INFEASIBLE = 3, /* nothing fits; the JSON says what is missing */
    MOEFOLD_TOLERANCE = 4,  /* measured outside tolerance */
    MOEFOLD_INTERRUPTED = 130 /* *cancel was set; the JSON has what was best so far, if anything */
};

/* Runs a command: plan, fit, simulate, price, explain, capacity, export, import, tune, models,
 * clusters.
 *
 * request   a JSON object in UTF-8, or NULL for none. Its keys are the command's options without
 *           "--" (docs/CLI.md lists them), in any order; "json", "progress" and "help" are not
 *           taken. Values:
 *             flags                    true; false and null are as good as absent, null of any
 *                                      option is
 *             whole and real numbers   a number; where the command line takes "4k", "5%", "15T" or
 *                                      "30d", that text too. Times in numbers are in seconds
 *             names, words, paths      a string
 *             comma lists              a string "a,b", or an array ["a", "b"]
 *             set, price               an object {"num_hidden_layers": 8}, or an array of
 *                                      "KEY=VALUE"
 *             plan                     the path of a plan file, or what it holds: an object
 *           "words" is an array of what the command line takes without a name in front: the name of
 *           a model or cluster, files of `import`, the op of `price` with its KEY=VALUE.
 * cancel    NULL, or what another thread or a signal handler sets to non-zero to have the call end
 *           early.
 * json      *json becomes the answer, "" when there is none.
 * messages  *messages becomes notes and the error, one line each as the program writes them to
 *           standard error, "" when there are none.
 *           Both are to be released with moefold_free; either pointer may be NULL.
 *
 * Files are read and written relative to the current folder, as the options say.
 * Returns one of the codes above. When memory runs out both texts may be NULL. */
/* clang-format on */
MOEFOLD_API int moefold_call(const char *command, const char *request, const volatile int *cancel,
                             char **json, char **messages);

/* Releases a text that moefold_call made; NULL is fine. */
MOEFOLD_API void moefold_free(char *text);

/* "0.1 (commit 0123456789ab)"; not to be released. */
MOEFOLD_API const char *moefold_version(void);

/* Says where the data that ships lies (the folder that holds models/, clusters/, software/,
 * measured/). Without, it is the folder that the environment variable MOEFOLD_DATA names, else
 * `data` beside the library, else share/moefold of the prefix that the library is installed under.
 * To be called before any other function, and not beside one; the variable goes first. Returns 0,
 * or MOEFOLD_USAGE when there is no models/ in it. */
MOEFOLD_API int moefold_set_data(const char *folder);

#ifdef __cplusplus
}
#endif

#endif
