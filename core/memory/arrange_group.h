/* arrange_group.h - private to core/memory/arrange.h: things put into nodes that are packed. */
#ifndef MF_CORE_ARRANGE_GROUP_H
#define MF_CORE_ARRANGE_GROUP_H

#include "core/memory/arrange.h"
#include "core/memory/arrange_fit.h"

/* How things that stay take turns. */
typedef enum mf_arrange_how {
    MF_IN_ROWS,   /* things of a group: as many places as stand at once, side by side */
    MF_SIZE_ROWS, /* the same of things of a size */
    MF_BY_GROUP,  /* likewise, the places apart */
    MF_BY_SIZE,   /* places apart, of all things of a size */
    MF_BY_TURN,   /* things of a group whose turns are the same, modulo as many as stand at once */
    MF_BY_TURN2,  /* ... twice as many */
    MF_ALONE      /* none shares its place */
} mf_arrange_how;

/* Things that may take turns in a slot, and the slots that they do so in. */
typedef struct mf_arrange_family {
    int64_t name;
    const mf_lifetime *like; /* one of them: all are like it in size and parts */
    int next;                /* of the same hash; -1 */
    int things, slots;
    int at;    /* where its slots are listed: `of`, */
    int words; /* and which of them are free: `free` */
} mf_arrange_family;

typedef struct mf_arrange_slot {
    const mf_lifetime *like; /* one of those that take turns */
    int family, nth;         /* which of its family's slots it is */
    int row;                 /* of MF_IN_ROWS, MF_SIZE_ROWS */
} mf_arrange_slot;

typedef struct mf_arrange_slots {
    int count, families;
    mf_arrange_slot *list; /* room for one per thing that stays, as in `family` and `of` */
    mf_arrange_family *family;
    int *of;        /* slots, family after family */
    uint64_t *free; /* bits, likewise */
    int *head;      /* [heads] by hash of the family's name */
    int heads;
} mf_arrange_slots;

/* One try: how things that stay are put into slots, and the nodes that come of it. */
typedef struct mf_grouping {
    const mf_lifetimes *x;
    mf_arrange_how how;
    int64_t turns; /* most slots of a group: known when MF_IN_ROWS was tried */
    bool rows;
    mf_arrange_slots slots;
    int stays;         /* nodes of slots; those of transient things follow */
    int *node;         /* [things] */
    int64_t *offset;   /* [things] bytes from the start of the node */
    int words;         /* of a set of slots' nodes */
    int transients;    /* transient things */
    uint64_t *beside;  /* [transients][words] slots that a transient thing stands beside */
    int *transient_of; /* [things] index among transient things */
    int *by_death;     /* [things] */
    mf_arrange_graph graph;
} mf_grouping;

/* Sorts the things; room for all tries. To be cleared even then. Errors: MF_NOMEM. */
mf_status mf_grouping_init(mf_grouping *g, mf_lifetimes *x, mf_err *e);
void mf_grouping_clear(mf_grouping *g);

/* Most that stands at once. */
int64_t mf_grouping_most_B(const mf_grouping *g);

/* Puts things that stay into slots, slots into g->stays nodes. */
void mf_grouping_slots(mf_grouping *g, mf_arrange_how how);
/* Finds the nodes of transient things and what stands beside what: g->graph. Errors: MF_NOMEM. */
mf_status mf_grouping_graph(mf_grouping *g, int64_t bound_B, mf_err *e);
/* arrange_transient.c: numbers the nodes of transient things, by what they stand beside
 * (g->beside), and makes the graph of all, without conflicts. False: no memory. */
bool mf_grouping_number(mf_grouping *g);
void mf_grouping_forget(mf_grouping *g);

/* arrange_sort.c: sorts things by the step of their birth (order [count] is scratch), and finds
 * their order of death, by index where it is the same. False: no memory. */
bool mf_grouping_by_birth(mf_lifetimes *x, int *order);
bool mf_grouping_by_death(const mf_lifetimes *x, int *order);

int mf_power_of_two(int n);

#endif
