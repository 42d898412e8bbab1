/* arrange_group.h - private to the arrangement (arrange.h): groups things into nodes, which are
 * then packed. */
#ifndef MF_CORE_ARRANGE_GROUP_H
#define MF_CORE_ARRANGE_GROUP_H

#include "core/memory/arrange.h"
#include "core/memory/arrange_fit.h"

/* Which things that are not transient have slots in common. */
typedef enum mf_arrange_how {
    MF_IN_ROWS,   /* things of a group, as many slots as are alive together, in one row */
    MF_SIZE_ROWS, /* the same for things of one size */
    MF_BY_GROUP,  /* things of a group, slots with separate places */
    MF_BY_SIZE,   /* things of one size, slots with separate places */
    MF_BY_TURN,   /* things of a group whose turns are equal modulo the number alive together */
    MF_BY_TURN2,  /* the same modulo twice that number */
    MF_ALONE      /* no other thing has its place */
} mf_arrange_how;

/* Things that may use the same slots, and these slots. */
typedef struct mf_arrange_family {
    int64_t name;
    const mf_lifetime *like; /* one of them; all have its size and parts */
    int next;                /* of the same hash; -1 */
    int things, slots;
    int at;    /* where its slots are listed: `of`, */
    int words; /* and which of them are free: `free` */
} mf_arrange_family;

typedef struct mf_arrange_slot {
    const mf_lifetime *like; /* one of its things */
    int family, nth;         /* which of its family's slots it is */
    int row;                 /* of MF_IN_ROWS, MF_SIZE_ROWS */
} mf_arrange_slot;

typedef struct mf_arrange_slots {
    int count, families;
    mf_arrange_slot *list; /* allocated as `family` and `of` are */
    mf_arrange_family *family;
    int *of;        /* slots, family after family */
    uint64_t *free; /* bits, likewise */
    int *head;      /* [heads] by hash of the family's name */
    int heads;
} mf_arrange_slots;

/* One grouping: the slots of things that are not transient, and the resulting nodes. */
typedef struct mf_grouping {
    const mf_lifetimes *x;
    mf_arrange_how how;
    int64_t turns; /* most slots of a group; set by MF_IN_ROWS */
    bool rows;
    mf_arrange_slots slots;
    int stays;         /* nodes of slots; nodes of transient things follow them */
    int *node;         /* [things] */
    int64_t *offset;   /* [things] bytes from the start of the node */
    int words;         /* of a set of slots' nodes */
    int transients;    /* transient things */
    uint64_t *beside;  /* [transients][words] slots alive together with a transient thing */
    int *transient_of; /* [things] index among transient things */
    int *by_death;     /* [things] */
    mf_arrange_graph graph;
} mf_grouping;

/* Sorts the things and allocates memory for all groupings. The caller clears *g even after an
 * error. Errors: MF_NOMEM. */
mf_status mf_grouping_init(mf_grouping *g, mf_lifetimes *x, mf_err *e);
void mf_grouping_clear(mf_grouping *g);

/* The most bytes alive together. */
int64_t mf_grouping_most_B(const mf_grouping *g);

/* Puts things that are not transient into slots, and slots into g->stays nodes. */
void mf_grouping_slots(mf_grouping *g, mf_arrange_how how);
/* Finds the nodes of transient things and which nodes are alive together: g->graph. Errors:
 * MF_NOMEM. */
mf_status mf_grouping_graph(mf_grouping *g, int64_t bound_B, mf_err *e);
/* arrange_transient.c: numbers the nodes of transient things by the slots alive together with them
 * (g->beside), and makes the graph of all nodes, still without conflicts. False: out of memory. */
bool mf_grouping_number(mf_grouping *g);
void mf_grouping_forget(mf_grouping *g);

/* arrange_sort.c: sorts things by the step of their birth (order [count] is scratch), and finds
 * their order of death, ties by index. False: out of memory. */
bool mf_grouping_by_birth(mf_lifetimes *x, int *order);
bool mf_grouping_by_death(const mf_lifetimes *x, int *order);

int mf_power_of_two(int n);

#endif
