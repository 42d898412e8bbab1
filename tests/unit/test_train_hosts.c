/* Training over two hosts: namespaces of this machine for network, name, mounts and processes, with
 * a cable between them; Open MPI starts the ranks of the other host by an agent that enters it,
 * instead of ssh. They train as one host does, bit by bit; a cable that is broken and a host that
 * is dead are named. Where namespaces are not allowed (they take root), nothing of it is tested,
 * which is said.
 *
 * MF_HOSTS_STEPS: steps of the demo (6; 2 under sanitizers); MF_HOSTS_PATIENCE: seconds of
 * --hang-after (5; 20 under sanitizers). MF_TEST: the one test to run (a pattern).
 */
#include "core/base/clock.h"
#include "tests/support/train_run.h"

#include <math.h>

enum { RANKS = 4 };
/* The demo's (scripts/demo_train.sh). */
static const char job[] = "--model scripts/demo --data /usr/share/common-licenses/GPL-3 "
                          "--global-batch 8 --seq 128 --gpus 4 "
                          "--tp 2 --ep 4 --dtype fp32 --lr 3e-3 --warmup 20 --save-every 100";
static char first[16], second[16]; /* processes that hold the hosts */
static char fault_mpi[512];
static const char *missing; /* what is not there; NULL: nothing */

static void read_word(const char *name, char *out, size_t size) {
    char path[128], text[64] = "";
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    FILE *f = fopen(path, "r");
    if (f != NULL && fgets(text, sizeof text, f) != NULL) {
        text[strcspn(text, "\n")] = '\0';
    }
    if (f != NULL) {
        fclose(f);
    }
    snprintf(out, size, "%.15s", text);
}

/* --- hosts --------------------------------------------------------------------------------------
 */

/* The second one ends whole with the process that holds it. Both stand before the cable is laid: a
 * cable to a process that has not left its namespace yet would end in that of this program. */
static const char make_hosts[] =
    "cd %s && hold='mount -t tmpfs none /dev/shm; echo up >$up; exec sleep 600' && "
    "{ up=a unshare -n -u -m sh -c \"hostname mf-a; $hold\" >/dev/null 2>&1 </dev/null & "
    "  echo $! >10.77.0.1; "
    "  up=b unshare -n -u -m -p -f --mount-proc --kill-child sh -c \"hostname mf-b; $hold\" "
    ">/dev/null 2>&1 </dev/null & echo $! >holder; } && "
    "for i in $(seq 300); do [ -s a ] && [ -s b ] && break; sleep 0.1; done && "
    "ps -o pid= --ppid $(cat holder) | tr -d ' ' >10.77.0.2 && rm a b && "
    "a=$(cat 10.77.0.1) b=$(cat 10.77.0.2) && "
    "ip link add mfva$$ netns $a type veth peer name mfvb netns $b && "
    "for n in \"$a mfva$$ 10.77.0.1\" \"$b mfvb 10.77.0.2\"; do set -- $n; "
    "  nsenter -t $1 -n sh -c \"ip addr add $3/24 dev $2 && ip link set $2 up && ip link set lo "
    "up\" "
    "  || exit 1; done && "
    "printf '#!/bin/sh\\nhost=$1\\nshift\\nexec nsenter -t $(cat %s/$host) -n -u -m -p sh -c "
    "\"$*\"\\n' "
    ">agent && chmod +x agent";

/* Ends all that is in the first host's network, and nothing where that is this program's own. */
static void end_hosts(void) {
    (void)shell("cd %s && [ -s 10.77.0.1 ] && n=$(readlink /proc/$(cat 10.77.0.1)/ns/net) && "
                "[ \"$n\" != \"$(readlink /proc/$$/ns/net)\" ] && "
                "for p in /proc/[0-9]*; do [ \"$(readlink $p/ns/net 2>/dev/null)\" != \"$n\" ] || "
                "kill -9 ${p#/proc/}; done 2>/dev/null; "
                "[ ! -s holder ] || kill -9 $(cat holder) $(cat 10.77.0.2) 2>/dev/null; "
                "rm -f 10.77.0.* holder",
                scratch);
}

static bool open_hosts(void) {
    end_hosts();
    bool made = shell(make_hosts, scratch, scratch) == 0;
    read_word("10.77.0.1", first, sizeof first);
    read_word("10.77.0.2", second, sizeof second);
    return made && first[0] != '\0' && second[0] != '\0';
}

static bool has_hosts(void) {
    if (missing != NULL) {
        printf("MF_SKIPPED 1 %s: nothing was trained over two hosts\n", missing);
        return false;
    }
    if (!open_hosts()) {
        fail_msg("namespaces are allowed, but two hosts of them cannot be made");
    }
    return true;
}

static const char *find_missing(void) {
    return !several_ranks                            ? "no mpirun"
           : shell("ompi_info >/dev/null 2>&1") != 0 ? "no Open MPI"
           : shell("command -v ip >/dev/null && command -v nsenter >/dev/null && "
                   "command -v unshare >/dev/null") != 0
               ? "no ip, nsenter or unshare"
           : shell("unshare -n -u -m -p -f true 2>/dev/null && "
                   "unshare -n ip link add mfv0 type veth peer name mfv1 2>/dev/null") != 0
               ? "namespaces are not allowed here"
               : NULL;
}

/* --- runs ---------------------------------------------------------------------------------------
 */

/* mpirun on the first host, two ranks on each. */
static pid_t begin_on_hosts(const char *out, int steps, const char *mpi, const char *more) {
    char command[4096], here[1024];
    if (getcwd(here, sizeof here) == NULL) {
        return -1;
    }
    snprintf(command, sizeof command,
             "exec nsenter -t %s -n -u -m sh -c 'cd %s && exec mpirun --allow-run-as-root "
             "--oversubscribe --bind-to none --host 10.77.0.1:2,10.77.0.2:2 -n %d "
             "--mca plm_rsh_agent %s/agent --mca btl tcp,vader,self "
             "--mca btl_vader_single_copy_mechanism none --mca mpi_yield_when_idle 1 "
             "--mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 "
             "--mca odls_base_sigkill_timeout 3 "
             "-x ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 %s "
             "%s train %s --steps %d --out %s/%s %s' >%s/%s.log 2>&1",
             first, here, RANKS, scratch, mpi, binary, job, steps, scratch, out, more, scratch,
             out);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return child;
}

static const char *patience(void) {
    const char *text = getenv("MF_HOSTS_PATIENCE");
    /* On cores that others use, too, ranks under sanitizers have had 5 s without time on one. */
    return text != NULL ? text : getenv("MF_SANITIZED") != NULL ? "20" : "5";
}

static pid_t begin_to_lose(const char *out, const char *mpi, const char *patience) {
    char more[64];
    snprintf(more, sizeof more, "--hang-after %s", patience);
    pid_t child = begin_on_hosts(out, MAX_STEPS, mpi, more);
    if (!await_steps(child, out, 3)) {
        (void)shell("grep '^moefold' %s/%s.log", scratch, out);
        show_log(out);
        fail_msg("%s: the run has ended before anything was done to it", out);
    }
    return child;
}

/* A line of ours that names the other host; mpirun, which waits for it, is not waited for. */
static void is_named(pid_t child, const char *out, double since_s, double most_s) {
    bool named = false;
    while (!named && mf_clock_s() - since_s < most_s) {
        named = log_has(out, "moefold train: host mf-b (2 ranks from 2 on) has not been heard of");
        nap(0.05);
    }
    const double took_s = mf_clock_s() - since_s;
    (void)shell("sleep 1");
    end_hosts();
    (void)end(child);
    if (!named) {
        show_log(out);
        fail_msg("%s: the other host is not named within %.0f s", out, most_s);
    }
    printf("%s: named after %.1f s\n", out, took_s);
}

static void two_hosts_train_as_one_does(void **state) {
    (void)state;
    const char *text = getenv("MF_HOSTS_STEPS");
    const int steps = text != NULL ? atoi(text) : getenv("MF_SANITIZED") != NULL ? 2 : 6;
    if (has_hosts()) {
        int code = end(begin_on_hosts("hosts", steps, "", ""));
        end_hosts();
        if (code != 0) {
            show_log("hosts");
            fail_msg("exit code %d", code);
        }
        code = shell("ASAN_OPTIONS=detect_leaks=0 %s train %s --steps %d --out %s/host "
                     ">%s/host.log 2>&1",
                     binary, job, steps, scratch, scratch);
        if (code != 0) {
            show_log("host");
            fail_msg("exit code %d", code);
        }
        same_steps("hosts", "host", steps);
        assert_int_equal(shell("cmp %s/hosts/hf/model.safetensors %s/host/hf/model.safetensors",
                               scratch, scratch),
                         0);
    }
}

static void a_cut_cable_is_reported(void **state) {
    (void)state;
    if (has_hosts()) {
        pid_t child = begin_to_lose("cut", "", patience());
        double since_s = mf_clock_s();
        assert_int_equal(shell("nsenter -t %s -n ip link set mfvb down", second), 0);
        is_named(child, "cut", since_s, atof(patience()) + 5.0);
    }
}

/* MPI then fails in one way or another: here calls return errors at once, long before the watch
 * would say anything of its own accord. */
static void a_host_that_is_dead_is_named_behind_a_call_that_failed(void **state) {
    (void)state;
    if (has_hosts()) {
        char mpi[700], broken[96];
        snprintf(broken, sizeof broken, "%s/broken", scratch);
        snprintf(mpi, sizeof mpi, "-x LD_PRELOAD=%s -x MF_MPI_BROKEN=%s", fault_mpi, broken);
        pid_t child = begin_to_lose("dead", mpi, "60");
        double since_s = mf_clock_s();
        assert_int_equal(shell("touch %s", broken), 0);
        assert_int_equal(kill((pid_t)atoi(second), SIGKILL), 0);
        is_named(child, "dead", since_s, atof(patience()) + 5.0);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_hosts_train_as_one_does),
        cmocka_unit_test(a_cut_cable_is_reported),
        cmocka_unit_test(a_host_that_is_dead_is_named_behind_a_call_that_failed),
    };
    if (!train_run_open(argv[0])) {
        return 1;
    }
    snprintf(fault_mpi, sizeof fault_mpi, "%s", binary);
    char *slash = strrchr(fault_mpi, '/');
    snprintf(slash, sizeof fault_mpi - (size_t)(slash - fault_mpi), "/fault_mpi.so");
    missing = find_missing();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    end_hosts();
    return train_run_close(failed);
}
