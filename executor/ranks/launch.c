/* launch.c - starts mpirun as a child, or the ranks themselves where there is none. Settings for
 * Open MPI go through its environment, which other MPIs ignore. */
#include "executor/ranks/launch.h"

#include "core/base/flag.h"
#include "executor/comm/comm.h"
#include "executor/comm/comm_launch.h"
#include "executor/comm/scratch.h"
#include "executor/ranks/launch_output.h"
#include "executor/ranks/rank_registry.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* Ranks may outnumber cores; root may start them (containers); a rank that waits gives its core
 * away; our own words are enough; what ranks know of each other is sent, not kept in shared memory,
 * where mpirun of Open MPI 4.1 waits for ever on the lock of a rank that was killed in MPI_Init.
 * Whatever the caller has set stays. */
static void set_environment(void) {
    static const char *const pairs[][2] = {
        {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
        {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"OMPI_MCA_mpi_yield_when_idle", "1"},
        {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"},
        {"OMPI_MCA_orte_execute_quiet", "1"},
        {"OMPI_MCA_odls_base_sigkill_timeout", "2"},
        {"PMIX_MCA_gds", "hash"},
        {"PRTE_ALLOW_RUN_AS_ROOT", "1"},
        {"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
        {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        setenv(pairs[i][0], pairs[i][1], 0);
    }
}

/* Where mpirun and its ranks keep what goes with them: files, and the memory that ranks share. */
typedef struct session_folders {
    char files[256], memory[256]; /* "": none of our own */
    int files_held, memory_held;
} session_folders;

static const char session_name[] = "moefold-mpi-";

/* Folders of this run's own: mpirun would share one with the user's other launchers, and one that
 * ends pulls that from under one that begins. What killed runs have left goes. */
static void open_session(session_folders *s) {
    const char *base = getenv("TMPDIR"), *memory = "/dev/shm";
    base = base != NULL && *base != '\0' ? base : "/tmp";
    mf_scratch_clean(base, session_name);
    mf_scratch_clean(memory, session_name);
    s->files_held = mf_scratch_folder(base, session_name, s->files, sizeof s->files);
    s->memory_held = mf_scratch_folder(memory, session_name, s->memory, sizeof s->memory);
}

static void close_session(const session_folders *s) {
    mf_scratch_remove(s->files, s->files_held);
    mf_scratch_remove(s->memory, s->memory_held);
}

static void use_session(const session_folders *s) {
    if (s->files[0] != '\0') {
        setenv("OMPI_MCA_orte_tmpdir_base", s->files, 0);
        setenv("PRTE_MCA_prte_tmpdir_base", s->files, 0);
    }
    if (s->memory[0] != '\0') {
        setenv("OMPI_MCA_btl_vader_backing_directory", s->memory, 0);
        setenv("OMPI_MCA_btl_sm_backing_directory", s->memory, 0);
    }
}

/* The child: never returns. A process group of its own keeps the terminal's Ctrl-C from mpirun,
 * which would kill the ranks where we let them save. */
static void become_mpirun(const mf_launch_call *call, int64_t ranks, const session_folders *session,
                          const mf_launch_output *output, char **argv, pid_t parent) {
    char count[24];
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* it ends the ranks, and so do they where it is killed */
    if (getppid() != parent) {
        _exit(126);
    }
#else
    (void)parent;
#endif
    snprintf(count, sizeof count, "%lld", (long long)ranks);
    argv[0] = (char[]){"mpirun"};
    argv[1] = (char[]){"-n"};
    argv[2] = count;
    argv[3] = (char[]){"/proc/self/exe"};
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length > 0) {
        self[length] = '\0';
        argv[3] = self;
    }
    for (int i = 1; i < call->argc; i++) {
        memcpy(&argv[3 + i], &call->argv[i], sizeof argv[0]);
    }
    argv[3 + call->argc] = NULL;
    setpgid(0, 0);
    signal(SIGINT, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    set_environment();
    use_session(session);
    mf_launch_output_child(output);
    execvp(argv[0], argv);
    _exit(errno == ENOENT ? 127 : 126);
}

/* Waits for mpirun; returns its exit code, 128 for a signal. When the run is to end, signals the
 * ranks again and again: a signal that comes before mpirun or a rank listens is lost. When a rank
 * is gone mpirun has to end the others; if it hangs, this ends it, and the ranks with it. A run
 * whose output goes nowhere ends as if the user had asked for it. */
static int wait_for(const mf_launch_call *call, pid_t child, mf_rank_registry *roll,
                    mf_launch_output *output, bool *asked) {
    enum { PERIOD_MS = 20, AGAIN_MS = 500, HANGS_MS = 8000 };
    int result = 0, gone_ms = 0;
    for (int said_ms = AGAIN_MS;;) {
        pid_t got = waitpid(child, &result, WNOHANG);
        if (got == child || (got < 0 && errno != EINTR)) {
            break;
        }
        bool ends = output->failed != 0 || mf_flag_is_set(call->cancel);
        if (ends && (said_ms += PERIOD_MS) > AGAIN_MS) {
            kill(child, SIGUSR1); /* mpirun passes this one on */
            *asked = true;
            said_ms = 0;
        }
        if (mf_rank_registry_look(roll) && (gone_ms += PERIOD_MS) == HANGS_MS) {
            kill(child, SIGKILL);
        }
        mf_launch_output_pass(output, PERIOD_MS);
    }
    mf_launch_output_close(output);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128;
}

/* In one of the folders that programs are looked for in. */
static bool is_installed(const char *program) {
    const char *folders = getenv("PATH");
    char path[4096];
    while (folders != NULL && *folders != '\0') {
        size_t length = strcspn(folders, ":");
        int n = snprintf(path, sizeof path, "%.*s/%s", (int)length, folders, program);
        if (n > 0 && (size_t)n < sizeof path && access(path, X_OK) == 0) {
            return true;
        }
        folders += length + (folders[length] == ':');
    }
    return false;
}

static int code_of(int exit_code) {
    return exit_code == 130 || exit_code <= 6 ? exit_code : 1;
}

/* Without mpirun: ranks that meet in a file of this host. */
static mf_status launch_here(const mf_launch_call *call, int64_t ranks, mf_rank_registry *roll,
                             int *code, mf_err *e) {
    char self[4096], line[160];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    char **argv = calloc((size_t)call->argc + 1, sizeof *argv);
    if (argv == NULL || length < 0) {
        free(argv);
        return mf_err_set(e, MF_LIBRARY, "ranks: this program is not found");
    }
    self[length] = '\0';
    argv[0] = self;
    for (int i = 1; i < call->argc; i++) {
        memcpy(&argv[i], &call->argv[i], sizeof argv[0]);
    }
    int ended = 0;
    mf_status status = mf_comm_launch(ranks, argv, call->cancel, &ended, e);
    free(argv);
    bool asked = mf_flag_is_set(call->cancel);
    if (status == MF_OK && !asked && ended >= 128 && ended != 130 &&
        mf_rank_registry_line(roll, line, sizeof line)) {
        fprintf(call->err, "moefold train: %s\n", line);
    }
    *code = ended;
    return status;
}

/* mpirun's exit code as our own outcome. */
static mf_status outcome(const mf_launch_output *output, bool asked, int exit_code, int *code,
                         mf_err *e) {
    if (exit_code == 127 || exit_code == 126) {
        return mf_err_set(e, MF_LIBRARY,
                          "mpirun: cannot be started; under a launcher of your own (mpirun, srun) "
                          "moefold takes its rank from it");
    }
    if (output->failed != 0) {
        return mf_err_set(e, MF_IO, "standard output: %s: the run has ended for that",
                          strerror(output->failed));
    }
    if (asked && exit_code >= 128 && exit_code != 130) {
        return mf_err_set(e, MF_INTERRUPTED, "ended while the ranks were starting");
    }
    *code = exit_code;
    return MF_OK;
}

static mf_status launch_mpirun(const mf_launch_call *call, int64_t ranks, mf_rank_registry *roll,
                               int *code, mf_err *e) {
    mf_launch_output output;
    session_folders session;
    char line[160];
    bool asked = false;
    char **argv = calloc((size_t)call->argc + 8, sizeof *argv);
    if (argv == NULL) {
        return mf_err_set(e, MF_NOMEM, "mpirun: out of memory");
    }
    mf_status status = mf_launch_output_open(call->out, &output, e);
    if (status != MF_OK) {
        free(argv);
        return status;
    }
    fflush(call->out);
    fflush(call->err);
    open_session(&session);
    const pid_t self = getpid();
    pid_t child = fork();
    if (child == 0) {
        become_mpirun(call, ranks, &session, &output, argv, self);
    }
    free(argv);
    if (child < 0) {
        status = mf_err_set(e, MF_LIBRARY, "mpirun: %s", strerror(errno));
        mf_launch_output_close(&output);
        close_session(&session);
        return status;
    }
    int exit_code = wait_for(call, child, roll, &output, &asked);
    close_session(&session);
    if (!asked && exit_code >= 128 && exit_code != 130 &&
        mf_rank_registry_line(roll, line, sizeof line)) {
        fprintf(call->err, "moefold train: %s\n", line);
    }
    return outcome(&output, asked, exit_code, code, e);
}

mf_status mf_launch_ranks(const mf_launch_call *call, int64_t ranks, int *code, bool *lost,
                          mf_err *e) {
    mf_rank_registry *roll = NULL;
    *lost = false;
    mf_status status = mf_rank_registry_create(ranks, &roll, e);
    if (status != MF_OK) {
        return status;
    }
    const bool mpi = mf_comm_has_mpi() && is_installed("mpirun");
    int ended = 0;
    status = mpi ? launch_mpirun(call, ranks, roll, &ended, e)
                 : launch_here(call, ranks, roll, &ended, e);
    *code = code_of(ended);
    *lost = mf_rank_registry_has_lost(roll) || (ended >= 128 && ended != 130);
    mf_rank_registry_destroy(roll);
    return status;
}
