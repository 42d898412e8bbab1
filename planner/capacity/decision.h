/* decision.h - which of several offers to take: the cheapest that ends in time, the fastest within
 * the budget, the smallest that keeps both, the cheapest that does so a node less, and the front of
 * those that no other beats in time and money alike.
 *
 * An offer is a model on so many GPUs of a cluster. How exact a figure is decides which offers it
 * can rank. A search stops when its proof is tight enough, so that the best time of an offer lies
 * between time / (1 + gap) and time. Prices of ops carry a band; offers of one cluster and program
 * rest on the same prices, which err together: there the gap alone blurs an order. Between clusters
 * the bands do as well. An offer that cannot be ranked below the best one is a tie.
 */
#ifndef MF_PLANNER_DECISION_H
#define MF_PLANNER_DECISION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mf_offer {
    int model;   /* offers of one model compete */
    int cluster; /* offers of one cluster rest on the same prices */
    int64_t gpus;
    bool ends;                    /* it fits and makes progress; else nothing below counts */
    bool priced;                  /* money is known */
    double time_s, low_s, high_s; /* of the run, or of any other work that is the same for all */
    double cost_usd;              /* of the same; in proportion to time */
    bool survives;                /* a node less it goes on, and keeps all limits */
    double gap;                   /* proven: no plan takes less than time_s / (1 + gap) */
    /* set by mf_decide */
    bool in_time, in_budget;               /* without a limit: true */
    bool surely_in_time, surely_in_budget; /* at the upper end of the band, too */
    bool on_front; /* no offer of the model is as fast and as cheap, and better in one of them */
} mf_offer;

typedef struct mf_decision_limits {
    double deadline_s; /* INFINITY = none */
    double budget_usd; /* INFINITY = none */
} mf_decision_limits;

typedef enum mf_verdict {
    MF_VERDICT_CHEAPEST, /* of those in time */
    MF_VERDICT_FASTEST,  /* of those within the budget */
    MF_VERDICT_SMALLEST, /* fewest GPUs of those in time and within the budget */
    MF_VERDICT_SURVIVOR, /* cheapest of those that survive the loss of a node */
    MF_VERDICT_COUNT
} mf_verdict;

/* Fills in what an offer is within the limits and on the front. offer[count]. */
void mf_decide(mf_offer *offer, int count, const mf_decision_limits *l);

/* The best offer of a model after mf_decide; -1 = none keeps what the verdict asks for. Equal
 * offers: the one that stands first. */
int mf_verdict_best(const mf_offer *offer, int count, int model, mf_verdict v);

/* Why an offer cannot be ranked below the best one. */
typedef struct mf_tie {
    bool ties;
    double difference; /* by so much the best is better, as a share of its figure: money or time of
                        * the run; of the smallest, of as many GPUs, its time */
    double open;       /* what gap (and band) leave open, the same; of the smallest 0 */
    bool band;         /* between clusters: gap and band; else the gap alone */
} mf_tie;

/* Whether `other`, of the same model, may be as good as `best` for all that is known. Of the
 * smallest: as many GPUs. Of those the best has the better prediction. */
mf_tie mf_verdict_tie(const mf_offer *best, const mf_offer *other, mf_verdict v);
static inline bool mf_verdict_ties(const mf_offer *best, const mf_offer *other, mf_verdict v) {
    return mf_verdict_tie(best, other, v).ties;
}

#endif
