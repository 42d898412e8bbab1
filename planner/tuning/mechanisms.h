/* mechanisms.h - mechanisms that speed up the search or tighten its bounds, and can be switched
 * off.
 *
 * None of them affects correctness: without one, bounds still hold but may be lower, and plans
 * still fit but may be slower, or none may be found where memory is tight. `bench_plan --without
 * NAME` measures what a mechanism is worth (docs/planner.md); one that no job needs is to be
 * removed.
 */
#ifndef MF_PLANNER_MECHANISMS_H
#define MF_PLANNER_MECHANISMS_H

#include <stdbool.h>
#include <stdint.h>

#define MF_MECHANISM_MAP(X)                                                                        \
    X(BLOCK_CACHE, "block-cache", "lowered and priced blocks are kept")                            \
    X(COST_CACHE, "cost-cache", "costs of blocks and pairs are kept")                              \
    X(KEPT_FIGURES, "kept-figures", "what families add up from costs is kept")                     \
    X(HALVES, "halves", "families without a pipeline degree are bounded, by halves of layers")     \
    X(STAGE_BOUNDS, "stage-bounds", "orders and layouts are bounded by the work of every stage")   \
    X(FAMILY_MEAN, "family-mean",                                                                  \
      "means of paths bound orders and layouts before their partition")                            \
    X(OWN_CHOICES, "own-choices", "layouts are bounded by all memory choices as simulated")        \
    X(PLAIN_CHOICES, "plain-choices", "and before that by these without what ZeRO adds to blocks") \
    X(PATH_SETS, "path-sets", "four sets of paths are kept for an order, instead of one")          \
    X(OVERLAP_LOSS, "overlap-loss", "passes lose time to gathers and reductions beside them")      \
    X(FIXED_SPLIT, "fixed-split", "whole splits count what their own positions lose")              \
    X(PARTITION_MEAN, "partition-mean", "means of paths bound a layout with exact block costs")    \
    X(RELAXATION, "relaxation", "the first layout of an order is relaxed without memory choices")  \
    X(SPLITS, "splits", "a tree over numbers of layers, with linear programs, bounds a layout")    \
    X(PAIR_PORTIONS, "pair-portions", "trees ask for the merged pairs of all choices")             \
    X(END_COPIES, "end-copies", "last blocks of virtual stages take more for their copies")        \
    X(LEAST_FIRST, "least-first", "trees go on at the node of the least bound, not the latest")    \
    X(TREE_REST, "tree-rest", "trees that are taken up again go on with what they left open")      \
    X(TREE_PROOFS, "tree-proofs", "what a tree has proven bounds other layouts of its order")      \
    X(TREE_POINTS, "tree-points",                                                                  \
      "trees that do not end give splits to try, not only their roots")                            \
    X(TRIALS, "trials", "numbers are tried before a tree branches on one of them")                 \
    X(BRANCH_GAINS, "branch-gains", "numbers whose sides were solved often are not tried again")   \
    X(STAGE_SUMS, "stage-sums", "trees branch on sums of stages, too")                             \
    X(MOST_POSITIONS, "most-positions", "trees know how many positions a stage has memory for")    \
    X(BETWEEN, "between", "paths are looked for between a point and the best one so far")          \
    X(INTEGER_PROGRAM, "integer-program", "GLPK solves the exact program of a layout")             \
    X(EXHAUSTIVE, "exhaustive", "layouts of few plans are simulated whole")                        \
    X(LOCAL_SEARCH, "local-search", "positions are moved between stages")                          \
    X(STEP_SEARCH, "step-search", "and the best plan's once more, by simulated steps")             \
    X(CHOICE_SEARCH, "choice-search", "and layers of its stages exchange memory choices")          \
    X(REFILL, "refill", "what the gaps of its arrangement make too large is filled again")         \
    X(FIT_FIRST, "fit-first", "layouts that fit are tried where bounds find none")                 \
    X(TRY_OPEN, "try-open", "open layouts of all degrees are tried at the end of a wide search")   \
    X(GIVE_AWAY, "give-away", "tries take positions from stages that are too full")                \
    X(HELD, "held", "a search that one layout holds ends when no better plan comes")               \
    X(BATCHES, "batches", "one task takes up to 16 nodes that take little")                        \
    X(PARKING, "parking", "trees far below the target wait until nothing else is left")            \
    X(SECOND_LOOK, "second-look", "what takes little is looked into after the gap is met")

typedef enum mf_mechanism {
#define X(name, text, meaning) MF_MECHANISM_##name,
    MF_MECHANISM_MAP(X)
#undef X
        MF_MECHANISMS
} mf_mechanism;

/* Bits by mechanism: those that are switched off. 0: none. */
typedef uint64_t mf_mechanisms;

static inline bool mf_uses(mf_mechanisms without, mf_mechanism m) {
    return (without >> m & 1u) == 0;
}

const char *mf_mechanism_text(mf_mechanism m);
const char *mf_mechanism_meaning(mf_mechanism m);
/* False: no mechanism has this name. */
bool mf_mechanism_parse(const char *text, mf_mechanism *out);

#endif
