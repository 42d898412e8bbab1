/* shadow_kernels_moe.h - private to shadow_kernels.c: bytes of the kernels of experts and of the
 * optimizer. */
#ifndef MF_TESTS_SHADOW_KERNELS_MOE_H
#define MF_TESTS_SHADOW_KERNELS_MOE_H

/* --- experts ------------------------------------------------------------------------------------
 */

static void swiglu_shape(const mf_kernel_swiglu_shape *p, shadow_spans *s) {
    reads(s, p->rows_dev, 4);
    reads(s, p->prob, 4 * p->rows);
    reads(s, p->bias, of(p->dtype, p->groups * 2 * p->cols));
    reads(s, p->bias != NULL ? p->offsets : NULL, 4 * (p->groups + 1));
}

static void swiglu(const mf_kernel_swiglu *a, bool look, shadow_spans *s) {
    const mf_kernel_swiglu_shape *p = &a->shape;
    (void)look;
    swiglu_shape(p, s);
    reads(s, a->gate_up, of(p->dtype, 2 * p->rows * p->cols));
    writes(s, a->y, of(p->dtype, p->rows * p->cols));
}

static void swiglu_grad(const mf_kernel_swiglu_grad *a, bool look, shadow_spans *s) {
    const mf_kernel_swiglu_shape *p = &a->shape;
    (void)look;
    swiglu_shape(p, s);
    reads(s, a->gate_up, of(p->dtype, 2 * p->rows * p->cols));
    reads(s, a->dy, of(p->dtype, p->rows * p->cols));
    writes(s, a->dgate_up, of(p->dtype, 2 * p->rows * p->cols));
    writes(s, a->dprob, 4 * p->rows);
}

static void gate_logit(const mf_kernel_gate_logit *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->x, of(a->dtype, a->rows * a->cols));
    reads(s, a->weight, of(a->dtype, a->cols));
    writes(s, a->gate, 4 * a->rows);
}

static void gate(const mf_kernel_gate *a, bool look, shadow_spans *s) {
    const int64_t size_B = of(a->dtype, a->rows * a->cols);
    (void)look;
    reads(s, a->gate, 4 * a->rows);
    reads(s, a->x, size_B);
    reads(s, a->add, size_B);
    writes(s, a->y, size_B);
}

static void gate_grad(const mf_kernel_gate_grad *a, bool look, shadow_spans *s) {
    const int64_t size_B = of(a->dtype, a->rows * a->cols);
    (void)look;
    reads(s, a->gate, 4 * a->rows);
    reads(s, a->x, size_B);
    reads(s, a->dy, size_B);
    writes(s, a->dx, size_B);
    writes(s, a->dgate, 4 * a->rows);
}

static void gate_input_grad(const mf_kernel_gate_input_grad *a, bool look, shadow_spans *s) {
    const int64_t size_B = of(a->dtype, a->rows * a->cols);
    (void)look;
    reads(s, a->dgate, 4 * a->rows);
    reads(s, a->x, size_B);
    reads(s, a->weight, of(a->dtype, a->cols));
    reads(s, a->add, size_B);
    writes(s, a->dx, size_B);
    updates(s, a->dweight, 4 * a->cols);
    writes(s, a->workspace, (int64_t)mf_kernel_gate_workspace_B(a->cols));
}

static void output_gate(const mf_kernel_output_gate *a, bool look, shadow_spans *s) {
    const int64_t size_B = of(a->dtype, a->rows * a->cols);
    (void)look;
    reads(s, a->gate, size_B / a->width);
    reads(s, a->x, size_B);
    writes(s, a->y, size_B);
}

static void output_gate_grad(const mf_kernel_output_gate_grad *a, bool look, shadow_spans *s) {
    const int64_t size_B = of(a->dtype, a->rows * a->cols);
    (void)look;
    reads(s, a->gate, size_B / a->width);
    reads(s, a->x, size_B);
    reads(s, a->dy, size_B);
    writes(s, a->dx, size_B);
    writes(s, a->dgate, size_B / a->width);
}

/* --- the router ---------------------------------------------------------------------------------
 */

static void router(const mf_kernel_router *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->logits, 4 * a->rows * a->experts);
    reads(s, a->bias, 4 * a->experts);
    writes(s, a->scores, 4 * a->rows * a->experts);
    writes(s, a->prob, 4 * a->rows * a->top_k);
    writes(s, a->index, 4 * a->rows * a->top_k);
    writes(s, a->lse, 4 * a->rows);
}

static void router_probabilities(const mf_kernel_router *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->score == MF_ROUTE_SPARSEMIXER ? a->logits : a->scores, 4 * a->rows * a->experts);
    reads(s, a->index, 4 * a->rows * a->top_k);
    writes(s, a->prob, 4 * a->rows * a->top_k);
}

static void router_force(const mf_kernel_router_force *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->position + a->first_row, 4 * a->rows);
    reads(s, a->first, 4 * (a->experts + 1));
    writes(s, a->index, 4 * a->rows * a->top_k);
}

static void router_count(const mf_kernel_router_count *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->scope, 4 * a->rows);
    reads(s, a->index, 4 * a->rows * a->top_k);
    updates(s, a->load, 4 * a->experts);
    writes(s, a->count, 4 * a->scopes * a->experts);
}

static void router_stats(const mf_kernel_router_stats *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->scope, 4 * a->rows);
    reads(s, a->scores, 4 * a->rows * a->experts);
    reads(s, a->index, 4 * a->rows * a->top_k);
    updates(s, a->count, 4 * a->scopes * a->experts);
    updates(s, a->prob_sum, 4 * a->scopes * a->experts);
    writes(s, a->workspace, (int64_t)mf_kernel_router_workspace_B(a->scopes, a->experts));
}

static void router_aux(const mf_kernel_router_aux *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->count, 4 * a->scopes * a->experts);
    reads(s, a->prob_sum, 4 * a->scopes * a->experts);
    updates(s, a->aux, 8);
    writes(s, a->weight, 4 * a->scopes * a->experts);
}

static void router_grad(const mf_kernel_router_grad *a, bool look, shadow_spans *s) {
    const int64_t scopes = a->scope == NULL || !look ? 1 : reach(a->scope, a->rows);
    reads(s, a->scores, 4 * a->rows * a->experts);
    reads(s, a->index, 4 * a->rows * a->top_k);
    reads(s, a->dprob, 4 * a->rows * a->top_k);
    reads(s, a->aux_weight, 4 * scopes * a->experts);
    reads(s, a->scope, 4 * a->rows);
    const bool near = a->score == MF_ROUTE_SPARSEMIXER;
    reads(s, a->z_weight > 0 || near ? a->logits : NULL, 4 * a->rows * a->experts);
    reads(s, a->z_weight > 0 ? a->lse : NULL, 4 * a->rows);
    writes(s, a->dlogits, 4 * a->rows * a->experts);
}

static void router_drop(const mf_kernel_router_drop *a, bool look, shadow_spans *s) {
    const int64_t slots_B = 4 * a->rows * a->top_k;
    (void)look;
    reads(s, a->sample, 4 * a->rows);
    reads(s, a->prob, slots_B);
    reads(s, a->index, slots_B);
    writes(s, a->prob_kept, slots_B);
    writes(s, a->index_kept, slots_B);
    writes(s, a->workspace,
           (int64_t)mf_kernel_router_drop_workspace_B(a->rows * a->top_k, a->experts));
}

static void router_place(const mf_kernel_router_place *a, bool look, shadow_spans *s) {
    const int32_t *place = a->place + (a->back ? a->first : 0);
    const int64_t there_B = look ? 4 * a->top_k * reach(place, a->rows) : 4;
    const int64_t here_B = 4 * a->top_k * a->rows;
    reads(s, place, 4 * a->rows);
    reads(s, a->src, a->back ? there_B : here_B);
    writes(s, a->dst, a->back ? here_B : there_B);
}

static void router_keep(const mf_kernel_router_keep *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->kept, 4 * a->count);
    reads(s, a->prob, 4 * a->count);
    writes(s, a->out, 4 * a->count);
}

static void bias_update(const mf_kernel_router_bias *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->count, 4 * a->experts);
    reads(s, a->skip, 4);
    updates(s, a->bias, 4 * a->experts);
}

static void router_z(const mf_device_z *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->lse, 4 * a->rows);
    updates(s, a->sum, 8);
}

/* --- the order of routed rows -------------------------------------------------------------------
 */

static void permute_map(const mf_kernel_permute_map *a, bool look, shadow_spans *s) {
    const int64_t slots = a->tokens * a->top_k;
    (void)look;
    reads(s, a->index, 4 * slots);
    writes(s, a->counts, 4 * a->experts);
    writes(s, a->offsets, 4 * (a->experts + 1));
    writes(s, a->row_of_slot, 4 * slots);
    writes(s, a->slot_of_row, 4 * a->rows_max);
    writes(s, a->overflow, 4);
    raises(s, a->sticky, 4);
    writes(s, a->workspace, (int64_t)mf_kernel_permute_workspace_B(slots, a->experts));
}

static void permute(const mf_kernel_permute *a, bool look, shadow_spans *s) {
    const int64_t tokens = a->row_of_slot != NULL ? a->tokens
                           : look                 ? reach(a->slot_of_row, a->rows) / a->top_k
                                                  : 1;
    reads(s, a->rows_dev, 4);
    reads(s, a->slot_of_row, 4 * a->rows);
    reads(s, a->row_of_slot, 4 * tokens * a->top_k);
    reads(s, a->weight, 4 * tokens * a->top_k);
    reads(s, a->x, of(a->dtype, tokens * a->cols));
    writes(s, a->out, of(a->dtype, a->rows * a->cols));
}

static void unpermute(const mf_kernel_unpermute *a, bool look, shadow_spans *s) {
    const int64_t slots = a->tokens * a->top_k;
    reads(s, a->row_of_slot, 4 * slots);
    reads(s, a->weight, 4 * slots);
    reads(s, a->in, of(a->dtype, (look ? reach(a->row_of_slot, slots) : 1) * a->cols));
    reads(s, a->add, of(a->dtype, a->tokens * a->cols));
    writes(s, a->y, of(a->dtype, a->tokens * a->cols));
}

static void permute_scalars(const mf_kernel_permute_scalar *a, bool look, shadow_spans *s) {
    const int64_t rows = look ? mf_kernel_rows(a->rows, a->rows_dev) : a->rows;
    reads(s, a->rows_dev, 4);
    reads(s, a->map, 4 * a->rows);
    reads(s, a->src, 4 * (look ? reach(a->map, rows) : 1));
    writes(s, a->out, 4 * a->rows);
}

/* --- choices between ranks ----------------------------------------------------------------------
 */

static void choices_keep(const mf_kernel_choices_keep *a, bool look, shadow_spans *s) {
    (void)look;
    updates(s, a->index, 4 * a->count);
}

static void choices_of_rows(const mf_kernel_choices_of_rows *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->offsets, 4 * a->experts);
    reads(s, a->counts, 4 * a->experts);
    writes(s, a->index, 4 * a->ranks * a->rank_rows);
}

static void choices_ranks(const mf_kernel_choices_ranks *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->index, 4 * a->tokens * a->top_k);
    writes(s, a->rank, 4 * a->tokens * a->ranks);
}

static void choices_send(const mf_kernel_choices_send *a, bool look, shadow_spans *s) {
    const int64_t slots = look ? reach(a->slot_of_row, a->rows) : 1;
    const int64_t tokens = (slots + a->ranks - 1) / a->ranks;
    reads(s, a->slot_of_row, 4 * a->rows);
    reads(s, a->index, 4 * tokens * a->top_k);
    reads(s, a->prob, 4 * tokens * a->top_k);
    writes(s, a->row_index, 4 * a->rows * a->top_k);
    writes(s, a->row_prob, 4 * a->rows * a->top_k);
}

static void choices_return(const mf_kernel_choices_return *a, bool look, shadow_spans *s) {
    const int64_t rows = look ? reach(a->row_of_slot, a->tokens * a->ranks) : 1;
    reads(s, a->row_of_slot, 4 * a->tokens * a->ranks);
    reads(s, a->index, 4 * a->tokens * a->top_k);
    reads(s, a->row_value, 4 * rows * a->top_k);
    writes(s, a->out, 4 * a->tokens * a->top_k);
}

/* --- the optimizer ------------------------------------------------------------------------------
 */

static void grad_norm(const mf_kernel_grad_norm *a, bool look, shadow_spans *s) {
    reads(s, a->tensor, a->tensors * (int64_t)sizeof *a->tensor);
    reads(s, a->chunk, a->chunks * (int64_t)sizeof *a->chunk);
    for (int64_t i = 0; look && i < a->tensors; i++) {
        reads(s, a->tensor[i].grad, 4 * a->tensor[i].count);
    }
    updates(s, a->sum_sq, 8);
    writes(s, a->workspace, 8 * a->chunks);
}

static void update_begin(const mf_kernel_update_begin *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->sum_sq, 8);
    reads(s, a->also_finite, 8 * a->also_count);
    updates(s, a->state, (int64_t)sizeof *a->state);
}

/* Its word is the host's. */
static void progress(const mf_kernel_progress *a, bool look, shadow_spans *s) {
    (void)a;
    (void)look;
    (void)s;
}

static void work_clock(const mf_kernel_work_clock *a, bool look, shadow_spans *s) {
    (void)look;
    updates(s, &a->state->began_ns, 8);
    updates(s, &a->state->worked_ns, 8);
    updates(s, a->begins ? NULL : a->span_ns, a->begins ? 0 : 8);
}

static void adamw(const mf_kernel_adamw *a, bool look, shadow_spans *s) {
    reads(s, a->clip, 4);
    reads(s, a->state, (int64_t)sizeof *a->state);
    reads(s, a->tensor, a->tensors * (int64_t)sizeof *a->tensor);
    reads(s, a->chunk, a->chunks * (int64_t)sizeof *a->chunk);
    for (int64_t i = 0; look && i < a->tensors; i++) {
        const mf_kernel_adamw_tensor *t = &a->tensor[i];
        reads(s, t->grad, 4 * t->count);
        updates(s, t->master, 4 * t->count);
        updates(s, t->m, of(a->moments, t->count));
        updates(s, t->v, of(a->moments, t->count));
        writes(s, t->param, 2 * t->count);
    }
}

#endif
