/* rank_watch_hosts.c - messages between the first ranks of hosts: UDP to every address of the
 * other. */
#define _DEFAULT_SOURCE
#include "executor/comm/rank_watch_hosts.h"
#include "core/base/clock.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVERY_S 0.25
enum { ADDRESSES = 8 };

/* How to reach a host's first rank; port is 0 for other ranks. Sent without conversion: the hosts
 * of a run have processors of one kind. */
typedef struct card {
    char name[64];
    uint32_t address[ADDRESSES]; /* in the network's order */
    int32_t addresses, port, rank, ranks, token;
    int32_t unused;
} card;

typedef struct beat_message {
    int32_t token, host; /* of the run; who sends, by its place among the hosts */
    int32_t waits, deadlock;
} beat_message;

typedef struct host_view {
    card card;
    double heard_s; /* by this process's clock */
    bool heard, waits, deadlock;
} host_view;

struct rank_watch_hosts {
    int socket, me, count; /* hosts; of these this one's number */
    int32_t token;
    double sent_s;
    host_view *host; /* [count] */
};

/* --- how hosts are reached ----------------------------------------------------------------------
 */

static void find_addresses(card *own) {
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) {
        return;
    }
    for (const struct ifaddrs *i = all; i != NULL && own->addresses < ADDRESSES; i = i->ifa_next) {
        struct sockaddr_in at;
        const bool usable = i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET &&
                            (i->ifa_flags & IFF_UP) != 0 && (i->ifa_flags & IFF_LOOPBACK) == 0;
        if (usable) {
            memcpy(&at, i->ifa_addr, sizeof at);
            own->address[own->addresses++] = at.sin_addr.s_addr;
        }
    }
    freeifaddrs(all);
}

/* -1: there is none. */
static int open_socket(card *own) {
    const int s = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    struct sockaddr *any = (void *)&at;
    socklen_t size = sizeof at;
    if (s >= 0 && (bind(s, any, sizeof at) != 0 || getsockname(s, any, &size) != 0 ||
                   fcntl(s, F_SETFL, O_NONBLOCK) != 0 || fcntl(s, F_SETFD, FD_CLOEXEC) != 0)) {
        close(s);
        return -1;
    }
    own->port = s >= 0 ? ntohs(at.sin_port) : 0;
    return s;
}

static void fill_card(mf_comm *c, int me, int ranks, int *s, card *own) {
    *own = (card){.rank = (int32_t)mf_comm_rank(c), .ranks = ranks};
    *s = -1;
    if (me != 0) {
        return;
    }
    if (gethostname(own->name, sizeof own->name - 1) != 0) {
        snprintf(own->name, sizeof own->name, "of rank %d", (int)own->rank);
    }
    own->token = (int32_t)((uint32_t)getpid() * 69069U + (uint32_t)(1e6 * fmod(mf_clock_s(), 1e3)));
    find_addresses(own);
    *s = open_socket(own);
}

/* The hosts in order of their first ranks. */
static mf_status take_hosts(rank_watch_hosts *h, const card *all, int64_t ranks, int64_t rank,
                            mf_err *e) {
    int hosts = 0;
    for (int64_t i = 0; i < ranks; i++) {
        hosts += all[i].port != 0;
    }
    h->host = calloc((size_t)hosts + 1, sizeof *h->host);
    if (h->host == NULL) {
        return mf_err_set(e, MF_NOMEM, "ranks: out of memory");
    }
    for (int64_t i = 0; i < ranks; i++) {
        if (all[i].port != 0) {
            h->me = i == rank ? h->count : h->me;
            h->host[h->count++].card = all[i];
        }
    }
    h->token = h->host[0].card.token;
    return MF_OK;
}

mf_status rank_watch_hosts_open(mf_comm *c, int me, int ranks, rank_watch_hosts **out, mf_err *e) {
    const int64_t world = mf_comm_group_size(c, MF_GROUP_WORLD);
    card own;
    int s = -1;
    *out = NULL;
    fill_card(c, me, ranks, &s, &own);
    rank_watch_hosts *h = calloc(1, sizeof *h);
    card *all = calloc((size_t)world, sizeof *all);
    mf_status status = MF_NOMEM;
    if (h == NULL || all == NULL) {
        mf_err_set(e, status, "ranks: out of memory");
    } else {
        status = mf_comm_all_gather(c, MF_GROUP_WORLD, MF_COMM_I32, &own, all,
                                    (int64_t)(sizeof own / sizeof(int32_t)), e);
    }
    if (status == MF_OK && s >= 0 && h != NULL) {
        h->socket = s;
        h->sent_s = -INFINITY;
        status = take_hosts(h, all, world, mf_comm_rank(c), e);
    }
    free(all);
    if (status != MF_OK || s < 0 || h == NULL || h->count < 2) {
        if (s >= 0) {
            close(s);
        }
        if (h != NULL) {
            free(h->host);
        }
        free(h);
        return status;
    }
    *out = h;
    return MF_OK;
}

void rank_watch_hosts_close(rank_watch_hosts *h) {
    if (h != NULL) {
        close(h->socket);
        free(h->host);
    }
    free(h);
}

/* --- messages -----------------------------------------------------------------------------------
 */

static void send_to(const rank_watch_hosts *h, const card *to, const beat_message *m) {
    for (int i = 0; i < to->addresses; i++) {
        const struct sockaddr_in at = {.sin_family = AF_INET,
                                       .sin_port = htons((uint16_t)to->port),
                                       .sin_addr.s_addr = to->address[i]};
        (void)sendto(h->socket, m, sizeof *m, MSG_DONTWAIT, (const void *)&at, sizeof at);
    }
}

static void hear(rank_watch_hosts *h, double now_s) {
    beat_message m;
    ssize_t size;
    while ((size = recv(h->socket, &m, sizeof m, MSG_DONTWAIT)) >= 0) {
        if (size == (ssize_t)sizeof m && m.token == h->token && m.host >= 0 && m.host < h->count) {
            host_view *v = &h->host[m.host];
            v->heard = true;
            v->heard_s = now_s;
            v->waits = m.waits != 0;
            v->deadlock = m.deadlock != 0;
        }
    }
}

void rank_watch_hosts_beat(rank_watch_hosts *h, double now_s, bool anew, bool waits,
                           bool deadlock) {
    hear(h, now_s);
    for (int i = 0; i < h->count && anew; i++) {
        h->host[i].heard_s = now_s;
    }
    if (now_s - h->sent_s < EVERY_S) {
        return;
    }
    h->sent_s = now_s;
    /* The first host speaks for all others, too. */
    const bool all = h->me == 0;
    const beat_message m = {.token = h->token,
                            .host = h->me,
                            .waits = waits || (all && rank_watch_hosts_wait(h)),
                            .deadlock = deadlock && (!all || rank_watch_hosts_deadlock(h))};
    for (int i = 0; i < h->count; i++) {
        if (i != h->me && (i == 0 || all)) {
            send_to(h, &h->host[i].card, &m);
        }
    }
}

bool rank_watch_hosts_wait(const rank_watch_hosts *h) {
    bool waits = false;
    for (int i = 0; i < h->count && !waits; i++) {
        waits = i != h->me && h->host[i].waits;
    }
    return waits;
}

bool rank_watch_hosts_deadlock(const rank_watch_hosts *h) {
    bool deadlock = true;
    for (int i = 0; i < h->count && deadlock; i++) {
        const bool speaks = i != h->me && (i == 0 || h->me == 0);
        deadlock = !speaks || h->host[i].deadlock;
    }
    return deadlock;
}

bool rank_watch_hosts_lost(const rank_watch_hosts *h, double now_s, double hang_s, char *line,
                           size_t size) {
    for (int i = 0; i < h->count; i++) {
        const host_view *v = &h->host[i];
        const double silent_s = now_s - v->heard_s;
        if (i == h->me || !v->heard || silent_s <= hang_s) {
            continue;
        }
        char ranks[48];
        snprintf(ranks, sizeof ranks, v->card.ranks > 1 ? "%d ranks from %d on" : "%d rank, %d",
                 (int)v->card.ranks, (int)v->card.rank);
        snprintf(line, size,
                 "host %s (%s) has not been heard of for %.3g s: it is dead, stopped or "
                 "disconnected from "
                 "%s, which waits for it",
                 v->card.name, ranks, silent_s, h->host[h->me].card.name);
        return true;
    }
    return false;
}
