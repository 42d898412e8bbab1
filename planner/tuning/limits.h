/* limits.h - how far each step of the search goes, and why so far.
 *
 * Limits trade time against the width of the gap: no bound is wrong because of them. The one
 * exception is the first section, what bounds give away so that they hold. Work is counted in
 * microseconds of one core, never timed, so that results depend on no machine. Elsewhere
 * stand sizes of tables, beside the tables, and tolerances of linear algebra, in lp/. What `job`
 * and `launch` spend on searches of theirs, and what is doubted, stand here, too.
 */
#ifndef MF_PLANNER_LIMITS_H
#define MF_PLANNER_LIMITS_H

/* --- what bounds give away ---------------------------------------------------------------------
 *
 * test_planner_bound plays random plans against every bound; smaller values would break some. */

/* Proven bounds are multiplied by this: GLPK's tolerances are 1e-7 of values near 100. */
#define MF_BOUND_SAFETY (1.0 - 1e-6)
/* Bounds from blocks without ZeRO are multiplied by this: with the ops that ZeRO levels add to
 * their blocks, a few merged pairs play quicker, by 1.6e-4 at most on three jobs, 2.6e-4 in 800
 * drawn problems. */
#define MF_LEVELS_SAFETY (1.0 - 1e-3)
/* The least rate of norm and update is multiplied by this: they are priced for all parameters, a
 * half, a quarter and so on, and a part in between may be a little quicker. */
#define MF_STEP_END_SAFETY 0.995
/* By this share a merged pair that was not priced may be quicker than the one that stands for it:
 * if both passes copy to or from the host, one more copy may delay ops that would have been in the
 * way of others. The most that was seen is 7.3e-4 if both copy, 9e-5 if one does. */
#define MF_BOTH_COPY_SAFETY 1e-3
#define MF_ONE_COPIES_SAFETY 2e-4
/* A block beside another pass takes at least this part of its time alone. */
#define MF_PAIRED_LEAST 0.95
/* No loss is counted if passes lose a larger share than this to collectives: formulas divide by the
 * rest. */
#define MF_LOST_MOST 0.95

/* --- the search ------------------------------------------------------------------------------- */

/* Defaults. `bench_plan` lists which of its fourteen jobs prove 3 % and which end wider
 * (docs/planner.md). */
#define MF_DEFAULT_GAP 0.03
#define MF_DEFAULT_TOP 4
#define MF_DEFAULT_BUDGET_US 20000000
/* Runners-up get the budget of the search over this. */
#define MF_RANK_PART 2
/* After the gap is met, cheap tasks continue for this long: Llama-3 8B on 16 H100 ends 1.2 %
 * faster, Qwen3-30B on 64 in `capacity` 0.7 %. A search that has the patience goes on with them
 * until it has taken so much: Llama-3 70B on 64 ends 1.5 % faster. */
#define MF_SECOND_LOOK_US 115000
#define MF_SECOND_LOOK_UNTIL_US 1750000
/* A search without a plan by then simulates layouts that `fit` finds (DeepSeek-V3 with 131,072
 * tokens: 11.4 % slower without, with three seconds). */
#define MF_FIT_FIRST_US 1750000
/* The least effort of a search that ends without a plan: it tries what `fit` finds by then. */
#define MF_FIRST_PLAN_US 3000000
/* Effort after which open layouts are tried if the gap is still too wide (Llama-3 405B on 512: a
 * plan 2.2 % faster). It does not depend on the budget, so that a search with more budget finds all
 * that one with less finds. */
#define MF_TRY_OPEN_US 10500000
/* From this effort on, simulated steps move positions of the best plan. They take at most this
 * share of all effort so far; a better plan is tried when so much more has been used (DeepSeek-V3
 * on 5,120 B200 in `capacity`: 0.9 % faster). Begun after six seconds, DeepSeek-V3 on 1,024 h100
 * takes a tenth more and ends 0.5 % slower, and six cells of docs/PLANNER_MEASURED.md end 0.9
 * to 1.6 % slower. */
#define MF_STEP_SEARCH_US 1450000
#define MF_STEP_SEARCH_SHARE 0.02
#define MF_STEP_SEARCH_AGAIN 0.5
/* If that used all of its effort and nothing else is left to do, the plan is improved again with
 * twice the effort, at most this part of all effort so far (DeepSeek-V3 on 192 H100 that copies to
 * the host, pinned to PP 6 and VPP 1: 248 instead of 292 s). */
#define MF_IMPROVE_PART 16
/* Moves that make the plan faster by this share allow as much again, so many times in all
 * (DeepSeek-V3 on 5,120 B200 in `capacity`: 0.4 % faster, measured before promising moves came
 * first). */
#define MF_STEP_SEARCH_GAIN 1e-4
#define MF_STEP_SEARCH_MORE 10
/* A move after which the plan plays longer by this factor is not simulated: on DeepSeek-V3 on 5,120
 * B200 no move gained anything that played longer. */
#define MF_STEP_SEARCH_WORSE 1.001
/* Exchanges of memory choices that are simulated before the longest path is looked at again. */
#define MF_EXCHANGES 64
/* If a layout that cannot be worked on has the least bound, only better plans narrow the gap. The
 * search looks for them as long as it found one within this effort (OLMoE on 12 ends with a fifth
 * of the effort, Moonlight on 8 finds one 0.3 % faster). */
#define MF_HELD_US 580000
/* A search can count as slow after so many times its patience: in `capacity`, with a patience
 * of 1.4 s, after 7 s (after three times, DeepSeek-V3 on 5,120 B200 ends at 14.1 instead of 7.2 %).
 */
#define MF_SLOW_PATIENCE 5
/* A search is slow if the rest would take more than so many times the effort so far. Of the 60
 * cells of docs/PLANNER_MEASURED.md, one looked like 1.4 times at some mark and is proven; the five
 * that end as slow looked like 1.8 to 4.7 times. */
#define MF_SLOW_SHARE 1.5
/* A key is raised by a bound that is higher by more than this share; else both count as equal. */
#define MF_RAISED 1e-4
/* Moving positions away from stages that are too full may take so long for one split (DeepSeek-V3
 * on 192 H100 needs it). */
#define MF_TIGHT_SPLIT_US 11500
/* A search of limited patience counts its gap as narrowed from this much on. */
#define MF_NARROWER 0.001
/* A tree whose bound is more than 8 % below the target waits, since it cannot reach the target
 * within the budget; one that was worked on before waits at 4 %. Mixtral-8x22B on 40 needs it
 * (plan 1.9 % slower and 2.1 times the effort without). */
#define MF_FAR_OFF 1.08
#define MF_FAR_OFF_AGAIN 1.04

/* A task has at most so many nodes, of so many usual microseconds in all. With fewer nodes, threads
 * would mostly wait for each other (GPT-OSS-20B on 8: 1.25 times the effort with one node a task).
 */
#define MF_TASK_NODES 16
#define MF_TASK_US 580
/* For so many children of a node, memory stays allocated. */
#define MF_KEPT_CHILDREN 128
/* The most that one tree, program or local search of a task may take: this, or the search's effort
 * so far over MF_TASK_PART if that is more. */
#define MF_TASK_MOST_US 870000
#define MF_TASK_PART 8
/* Tasks in flight. They keep as many threads busy if every task takes its usual time, and fewer if
 * some take longer, since the others wait for their commits: with 8 tasks two threads wait for 0.3
 * of 4.5 s on DeepSeek-V3 on 1,024, with 12 tasks for 0.08 s. Of relaxations, trees, programs and
 * tries there are at most 8, and of all tasks until a search has counted so many microseconds: with
 * 12 from the start, a search of one second that eight memory choices share (DeepSeek-V3 on 1,024
 * for Megatron) ends at a gap of 134 instead of 90 %. */
#define MF_TASKS_IN_FLIGHT 12
#define MF_MANY_TASKS_US 290000
#define MF_LONG_TASKS_IN_FLIGHT 8
/* The same in `capacity`, where several searches run at the same time. */
#define MF_CAPACITY_TASKS 8
/* So many sets of paths are kept for an order, since different things hold its layouts back
 * (GPT-OSS-120B on 256, six seconds: gap 18 points wider with one set). */
#define MF_PATH_SETS 4
/* Usual microseconds of a node by level, the first time and again: they decide in which order tasks
 * in flight commit. Where nodes differ much the figure is on the high side: tasks that run beside a
 * late one must wait for it, while a late result is rarely needed. */
#define MF_USUAL_MAP(X)                                                                            \
    X(ATTENTION, 580, 580)                                                                         \
    X(EXPERT, 15, 15)                                                                              \
    X(PIPELINE, 29, 29)                                                                            \
    X(PASS_MODE, 58, 58)                                                                           \
    X(ORDER, 52, 52)                                                                               \
    X(LAYOUT, 46, 870)                                                                             \
    X(MEAN, 1450, 1450)                                                                            \
    X(RELAXATION, 1450, 1450)                                                                      \
    X(SPLITS, 17500, 290000)                                                                       \
    X(EXACT, 58000, 58000)                                                                         \
    X(TRY, 5800, 5800)
/* A relaxation of so many virtual stages takes its usual time, and one of more stages takes longer
 * in proportion. A layout of which a plan is wanted takes the second figure. */
#define MF_USUAL_VSTAGES 8
#define MF_FIRST_TRY_US 8700
/* `capacity`: a search begins with so many plans of other cells, and a plan is simulated under so
 * many draws of hot experts (of 20 the second worst counts: the 95th percentile). */
#define MF_CARRY_MOST 4
#define MF_SKEW_DRAWS 20
/* Of another cluster's plans: one counts as this many doublings of size away, so that it is begun
 * with before that of the next size. */
#define MF_OTHER_CLUSTER 0.5
/* Threads that work on cells beside the caller's, a row of the table each: few tables have more
 * rows, and each cell's search has threads of its own. */
#define MF_CELLS_AT_ONCE 8
/* Steps, plans and remedies that gain less than this share of the present step time are not named:
 * predictions are not that exact. */
#define MF_LEAST_GAIN 5e-4

/* --- tables of sizes (job/capacity/) ------------------------------------------------------------
 *
 * Without --effort. A cell of a large table has less than a plan of its own: of the 59 cells of
 * docs/PLANNER_MEASURED.md that fit, 56 are proven. */

/* Effort of all cells together, of which each search has its part, but so much at least, and no
 * more than a plan of its own: Qwen3-235B on 2,048 H200, one of four, has a plan 1.1 % faster, on
 * 1,024 3.1 %. */
#define MF_TABLE_US 140000000
#define MF_CELL_US 10000000
#define MF_CELL_MOST_US MF_DEFAULT_BUDGET_US
/* A cell ends after this part of its effort without a narrower gap. */
#define MF_CELL_PATIENCE_PART 7
/* Effort of a target's cell, which is one for each of its memory choices: Qwen3-235B on 256 H100
 * ends at 58 % with the least. */
#define MF_CELL_LIMITED_US 18000000
/* What gets a plan over uneven routing: searches with more and more memory, the effort of each
 * (enough for a plan of a smaller space), and steps that are simulated with the draws, the fastest
 * under even routing. */
#define MF_OVERFULL_SEARCHES 3
#define MF_OVERFULL_US 1200000
#define MF_OVERFULL_STEPS 4

/* --- layouts that fit ------------------------------------------------------------------------- */

/* At most so many layouts that `fit` finds are simulated with their choices of least memory. */
#define MF_FIT_LAYOUTS 64
/* Of these, degrees within MF_FIT_NEAR of the fastest are tried: at most so many degrees, and so
 * many layouts of them in all. */
#define MF_FIT_DEGREES 12
#define MF_FIT_NEAR 1.25
#define MF_FIT_TRIES 768
/* So many layouts are tried even if the budget is spent, as long as none is faster: else
 * DeepSeek-V3 with 131,072 tokens and three seconds would end with its plan of least memory, 40 %
 * slower. */
#define MF_FIT_LEAST_TRIES 64
/* After so many tries in a row without a better plan the rest of their batch is left out. */
#define MF_VAIN_TRIES 96
/* If `fit` shows more entries than this, all are made exact as they are judged, while their blocks
 * are cached; else only those that are shown, afterwards. */
#define MF_FIT_ALL 1000
/* What fits is timed without chunks, and with the most chunks that suit up to this number: more
 * chunks seldom gain, and a search finds them. */
#define MF_FIT_TIMED_CHUNKS 6
/* Counted for each combination that is timed: 5 to 9 ms on the jobs of test_cli_fit, and this much
 * for each pass that a simulation may have to play. */
#define MF_FIT_TIMED_US 4600
#define MF_FIT_TIMED_PASS_NS 290
/* Larger clusters that `fit` looks at for the smallest one that fits: sizes are tried in steps that
 * leave about so many. */
#define MF_FIT_SIZES 32
/* So many open layouts are tried, so many of them with a bound within the gap that was asked for;
 * they are looked for in so many families. */
#define MF_OPEN_TRIES 512
#define MF_OPEN_BEHIND 64
#define MF_OPEN_FAMILIES 512
/* Behind these so many layouts of the best plan's degrees are tried, and again when there is a plan
 * that is faster by this share (Llama-4 Maverick on 1,024 H200: 3.4 % faster for 0.3 counted
 * seconds, Llama-3 405B on 2,048 H100 1.3 %). */
#define MF_NEAR_TRIES 512
#define MF_NEAR_GAIN 1e-3

/* --- what fits, ranked by time (job/search/fit_fastest.c) ------------------------------------- */

/* A search that is short ends within this share of the fastest plan, or after so many counted
 * seconds where nobody says otherwise; one that has no plan by then goes on until it has. */
#define MF_FIT_FASTEST_GAP 0.03
#define MF_FIT_EFFORT 2
/* Plans of one combination of degrees that are met for each that is shown: they differ in VPP,
 * micro-batch and schedule. */
#define MF_FIT_ALIKE 2
/* Timed layouts that a search begins with. */
#define MF_FIT_STARTS 8
/* Remedies: combinations that miss least, some of which are timed; remedies that are timed, each
 * with this part of the effort; those that are searched with. */
#define MF_FIT_MISSES 256
#define MF_FIT_TIMED_REMEDIES 8
#define MF_FIT_REMEDY_PART 32
#define MF_FIT_SEARCHED_REMEDIES 3
/* Such a search has so much of the effort: for a single plan, for the list of the first remedy's
 * plans, and where a target limits the choices, each of which is then a search of its own. */
#define MF_FIT_ONE_PERCENT 60
#define MF_FIT_LIST_PERCENT 45
#define MF_FIT_LIMITED_PERCENT 167
/* Where memory is tight, bounds tell little: a search that has no plan after this part tries the
 * layouts of least memory (DeepSeek-V3 on 128 H100: 10 instead of 20 s of a core, the same times).
 */
#define MF_FIT_LEANEST_PERCENT 10

/* --- searches under a target's limits (launch/search/) ---------------------------------------- */

/* With less effort a search ends before it has bounded anything or tried any plan. */
#define MF_LEAST_BUDGET 150000
/* Of the gap that is asked for: a family that may hold a plan as much faster is worked on. */
#define MF_FAMILY_GAP 0.5
/* Searches of free choices go on from one effort to the next, as long as the next takes no more
 * than this share of all; what is tried of its plans may take as much again. */
#define MF_FREE_FIRST_US 600000
#define MF_FREE_LAST_US 2400000
#define MF_FREE_SHARE 0.4
/* A search of all plain schedules may use so much; with less than the second it closes nothing.
 * (DeepSeek-V3 on 1,024 H100 with the effort of 2026-11, 30 s: proven to 3.9 %, 7.8 without.) */
#define MF_PLAIN_US 2400000
#define MF_PLAIN_LEAST_US 1200000
/* Larger micro-batches are tried with no less effort than that in all. */
#define MF_LARGER_LEAST_US 1500000
/* A plan that takes at most so many times what the best one of free choices takes is near it. A
 * family's plan that takes more than the second is not kept: other degrees have better ones. */
#define MF_FREE_NEAR 1.1
#define MF_FREE_SLOWER 1.5
/* The best plan's layout is tried with other choices as long as no more than all effort and this
 * part of it are used: a search that has met its gap may have left that step undone (Qwen3-30B on
 * 32 H100: 1.3 %). */
#define MF_ALIKE_PART 6
/* Pairs of single steps that are weighed, and those of them that are simulated: a second of one
 * core at most. Two steps together may take less than their times and peaks let expect: so many
 * times as much is looked at. */
#define MF_PAIRS_WEIGHED 600
#define MF_PAIRS_PLAYED 60
#define MF_PAIRS_TIME_SLACK 1.15
#define MF_PAIRS_PEAK_SLACK 1.25

/* --- doubts (explain/plausible.c) ------------------------------------------------------------- */

/* Tokens of a step beyond which a batch is doubted, four times the most that was published (some 63
 * M, DeepSeek-V3). */
#define MF_DOUBTED_TOKENS 256e6
/* Of a step and GPU: eight times the most (1 M: GPT-OSS-120B on 4, Mixtral at 128k), a sixteenth of
 * the least (1,024). */
#define MF_DOUBTED_GPU_TOKENS 8e6
#define MF_DOUBTED_FEW_GPU_TOKENS 64
/* A batch that so many times as many data-parallel ranks could share if it were a little larger or
 * smaller; an odd one sooner (of even ones 126 on 32 GPUs was published). */
#define MF_DOUBTED_SHARING 32
#define MF_DOUBTED_ODD_SHARING 8

/* --- what is counted ---------------------------------------------------------------------------
 *
 * Nanoseconds of one core: 1.25 times what they took on 2026-12-01 on an idle core of 2.6 GHz
 * (fourteen jobs of `bench_plan`), so that slower cores are met, too. */

#define MF_LP_ENTRY_NS 0.235 /* entry of a tableau that a pivot visits */
#define MF_PLAY_NS 8000      /* play of an order and its path as a row, */
#define MF_GRAPH_NODE_NS 55  /* and by event of a schedule that is sorted for it, */
#define MF_PLAY_NODE_NS 15   /* event that it visits, */
#define MF_PLAY_CELL_NS 1    /* cell that is summed for it */
#define MF_LOSS_CELL_NS 17   /* virtual stage of a path's row whose losses are replaced */
#define MF_FILL_SLOT_NS 20   /* slot of a chunk whose bytes are added up, */
#define MF_FILL_CHOICE_NS 50 /* and choice in it */
#define MF_FILL_LOOK_NS 3    /* slot of a chunk that is considered for a change of choices, */
#define MF_FILL_CHANGE_NS 13 /* and choice in it */
#define MF_MOST_POSITIONS_NS                                                                       \
    50                           /* choice whose bytes on a stage are compared (most_positions.c)  \
                                  */
#define MF_PRICE_NS 7            /* price of a byte that a mean of paths tries, */
#define MF_MEAN_LAYERS_NS 3500   /* the layers of such a mean, */
#define MF_MEAN_NS 15000         /* and the mean itself where a layout is known */
#define MF_PAIR_NS 330           /* merged pair that is looked up */
#define MF_CREATE_NS 12000       /* partition, */
#define MF_PROOF_LEAF_NS 100     /* virtual stage of a leaf of a tree's proof */
#define MF_CREATE_CLASS_NS 15000 /* and class of its blocks */
#define MF_ROWS_ENTRY_NS 75      /* entry of a program's rows when they are made */
/* Entries that one of a tableau's column counts as: each is in a line of its own. */
#define MF_LP_COLUMN_ENTRIES 4
/* By iteration of GLPK's and row or column of its program, and entry; a relaxation takes so many
 * iterations more, and so long. */
#define MF_GLPK_NS 54
#define MF_GLPK_ENTRY_NS 4
#define MF_GLPK_BASIS 4
#define MF_GLPK_RELAXATION_NS 38000
/* A played step and by event of a stage of it, one combination of degrees that is judged, a memory
 * plan by position and by look at two tensors of it that may overlap. */
#define MF_STEP_NS 100000
#define MF_STEP_EVENT_NS 1100
#define MF_JUDGE_NS 300000
#define MF_MEMORY_POSITION_NS 4100
#define MF_MEMORY_LOOK_NS 0.3
/* Bounds and the figures that they need; stage bounds by stage. */
#define MF_ATTENTION_BOUND_NS 18000
#define MF_EXPERT_BOUND_NS 2000
#define MF_BOUND_NS 500
#define MF_PIPELINE_FIGURES_NS 11000
#define MF_WHOLE_FIGURES_NS 12500
#define MF_ORDER_FIGURES_NS 11000
#define MF_STAGE_BOUND_NS 50
#define MF_LAYOUT_FIGURES_NS 6500
/* A block that is lowered, priced and played, and a merged pair of them. */
#define MF_BLOCK_NS 10500
#define MF_BLOCK_PAIR_NS 2600
#define MF_LATENT_BLOCK_NS 16500 /* with latent attention, which has more ops */
#define MF_LATENT_BLOCK_PAIR_NS 3500
/* Microseconds in which a search makes itself ready and writes down what it found. */
#define MF_READY_US 60000

/* --- one layout ------------------------------------------------------------------------------- */

/* A split that plays more than 8 % longer than the best plan is not improved, and one that still
 * plays more than 2 % longer after that is not simulated. */
#define MF_HOPELESS 1.08
#define MF_WORSE 1.02
/* Layouts that are tried evenly split when they are first worked on, so that a fair plan is known
 * before trees begin, as long as they take no larger share of the effort without what blocks take
 * (which would depend on what others asked for); later ones only while no plan is. (With none of
 * them Kimi-K2 on 2,048 takes 1.75 times the effort, Llama-3 405B on 2,048 ends at 7.4
 * instead of 6.5 %.) */
#define MF_FIRST_TRIES 20
#define MF_FIRST_TRIES_SHARE 0.1
/* Microseconds of linear programs: of a relaxation (large for hybrid models with many kinds of
 * layers); of a tree the first time, which suffices for nearly all; MF_TREE_MORE times more each
 * time after, MF_TREE_TRIES times in all. While no plan is known, or after the gap is proven, the
 * first is over MF_LOOK_PART (Mixtral-8x22B on 40 takes 1.6 times as long without). */
#define MF_ROOT_US 245000
#define MF_TREE_US 815000
#define MF_TREE_MORE 4
#define MF_TREE_TRIES 3
#define MF_LOOK_PART 10
/* Forward passes of a class are rounded down to steps of this share of the fastest: they differ a
 * little between choices (copies to the host use the memory, too), and equal ones can be dropped.
 */
#define MF_FORWARD_STEP 0.003
/* Last blocks of virtual stages: what their copies add counts from this share of their passes on,
 * and choices are dear from this part of the dearest on (Qwen3-235B on 64 needs them). */
#define MF_END_COPY_LEAST 0.003
#define MF_END_COPY_DEAR 0.33
/* A layout of at most so many plans that the exact program does not settle is simulated whole. */
#define MF_FEW_PLANS 5000
/* At most so many answers of a layout's program are excluded by cuts: each makes the program
 * harder. */
#define MF_CUTS 24
/* A stage that its arrangement's gaps make too large is filled again with less memory. Less memory
 * may change gaps more than sums: after so many misses it gives up twice as much each time, so many
 * times in all. */
#define MF_FILL_FEW_MISSES 3
#define MF_FILL_TRIES(stages) (3 * (stages) + 12)
/* Means of paths try so many prices of a byte for main layers. */
#define MF_MEAN_PRICES 12
/* Where kinds of layers are told apart, the dearest price that is tried is so many times the
 * dearest at which any layer changes its choice: it shows that memory is short whatever layers
 * keep. */
#define MF_MEAN_DEAR 1e4
/* Kinds are told apart if this share of the layers is of other kinds than the most common one. */
#define MF_KINDS_SHARE 0.1
/* Where main layers are of several kinds a search that meets its gap goes on towards so much of it,
 * for this share of what it took: bounds of unlike plans lie close together there. Llama-4 Maverick
 * on 1,024 H200 ends 1.3 % faster. Bounds are raised that far right away within this factor of the
 * target. */
#define MF_CLOSER_GAP 0.4
#define MF_CLOSER_NEAR 1.1
#define MF_CLOSER_SHARE 0.15
/* Backward passes within this factor of the fastest count as usual. Others recompute much, are
 * rarely chosen and get the smaller portion of a merged pair. */
#define MF_USUAL_BACKWARD 1.08
/* Of a simulated step: what is shorter by less is as long, but for rounding. */
#define MF_STEP_SHORTER 1e-6
/* Memory limits how many positions a stage may hold, which says more of what is sure to stand
 * there, which limits memory again: for so many rounds, since later ones change nothing. */
#define MF_NARROW_ROUNDS 3
/* The path rows of a program for shadow prices have at most so many entries: with more, GLPK takes
 * seconds. */
#define MF_SHADOW_ENTRIES 200000
/* The exact program is tried with at most so many virtual stages: with more it takes seconds and
 * leaves the bound where the tree over splits had it. */
#define MF_EXACT_VSTAGES 12
/* Effort and nodes of the exact program, the first time and later. */
#define MF_EXACT_US 580000
#define MF_EXACT_AGAIN_US 2300000
#define MF_EXACT_NODES 60
#define MF_EXACT_NODES_AGAIN 200

/* --- linear programs -------------------------------------------------------------------------- */

/* After so many pivots the tableau is computed anew; so many violated rows enter at a time; a solve
 * has at most so many pivots (a hundred times what any needs). */
#define MF_LP_RENEW_PIVOTS 1500
#define MF_LP_ROWS_TOGETHER 8
#define MF_LP_MOST_PIVOTS 20000
/* GLPK's memory: it ends the process where it gets none, so a program that needs more is given up.
 */
#define MF_GLPK_MEMORY_MB 512
/* No stage takes so many units of time more (a unit is about a step). With a finite end any
 * multipliers prove a bound; the ends of the curves would be tighter but take more pivots. */
#define MF_ROWS_MOST_EXTRA 1e9
/* A row that no tableau held for so many solves is checked only if no other row is violated. */
#define MF_LP_IDLE_SOLVES 40

/* --- paths as rows ---------------------------------------------------------------------------- */

/* A path that is longer than a point's step by this share becomes a row. */
#define MF_PATH_TOLERANCE 1e-4
/* The exact program has at most so many rows of paths. */
#define MF_EXACT_PATHS 200
/* Paths are looked for between the best point and the program's point: at this share of the
 * distance at first, then at this share of the last distance, until a better point is found or for
 * so many points (GPT-OSS-120B on 256: gap 27 points wider without, with six seconds). */
#define MF_BETWEEN_SHARE 0.4
#define MF_BETWEEN_STEPS 4
/* Rounds of rows of the relaxation without choices; it ends when so many rounds close no more than
 * this share of what is left to the cutoff. */
#define MF_RELAX_ROUNDS 60
#define MF_RELAX_STALL_ROUNDS 6
#define MF_RELAX_STALL_SHARE 0.1
/* The same of a tree: rounds at its root and where a split is whole, and at other nodes, where
 * those of the nodes below count too. */
#define MF_ROOT_ROUNDS 40
#define MF_NODE_ROUNDS 3
#define MF_AGAIN_ROUNDS 1 /* and where it goes on at a node that was solved before */
#define MF_ROOT_STALL_ROUNDS 4
#define MF_ROOT_STALL_SHARE 0.01
/* Before a tree branches it looks at so many numbers and tries both sides of each for so many
 * pivots. A number whose sides were solved so often is not tried any more (DeepSeek-V3 on 16,384
 * h100 takes 0.6 times the effort, on 5,120 b200 it ends at 9 instead of 14 %:
 * docs/PLANNER_MEASURED.md). */
#define MF_TRIALS 8
#define MF_TRIAL_PIVOTS 40
#define MF_TRIAL_ENOUGH 4
/* One that was raised by this is worth another try. */
#define MF_CLIMB_GAIN 1.001
/* What is as good as no gain, of the bound. */
#define MF_TRIAL_LITTLE 1e-5

/* --- proofs of trees ----------------------------------------------------------------------------
 *
 * Leaves with which a tree's proof is of use to other layouts, and the most; paths of less weight
 * are left out. Kept for an order. */
#define MF_PROOF_LEAST 8
#define MF_PROOF_LEAVES 2000
#define MF_PROOF_WEIGHT 1e-6
#define MF_PROOFS 3
/* Means of so many leaves on either side are tried for one. */
#define MF_PROOF_BESIDE 2

/* --- local search ----------------------------------------------------------------------------- */

/* Moves that are played in a round, rounds, and rounds without a shorter step. */
#define MF_MOVES 6
#define MF_MOVE_ROUNDS 40
#define MF_MOVE_PATIENCE 6
/* All of it takes no more than so many counted microseconds. */
#define MF_IMPROVE_US 580000

#endif
