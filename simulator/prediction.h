/* prediction.h - a simulated step as the prediction that a plan carries. */
#ifndef MF_SIMULATOR_PREDICTION_H
#define MF_SIMULATOR_PREDICTION_H

#include "core/plan/plan.h"
#include "simulator/sim.h"

/* out->stage is allocated (mf_plan_clear frees it). Errors: MF_NOMEM. */
mf_status mf_sim_prediction(const mf_sim *s, mf_plan_prediction *out, mf_err *e);

#endif
