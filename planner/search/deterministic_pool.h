/* deterministic_pool.h - private to the planner: a search's tasks, several of them in flight at
 * the same time.
 *
 * Tasks are committed in an order that is known when they start: as if MF_TASKS_IN_FLIGHT workers
 * took what a task of its kind usually takes. What starts next knows what has committed by then. So
 * threads are busy while a long task runs, and what any task knows depends neither on how long it
 * took nor on how many threads there are.
 *
 * Any thread that ends a task commits what is due by then and starts others: no thread waits for a
 * particular one, or for the task that another works on.
 */
#ifndef MF_PLANNER_DETERMINISTIC_POOL_H
#define MF_PLANNER_DETERMINISTIC_POOL_H

#include "planner/tuning/limits.h"

#include <stdbool.h>
#include <stdint.h>

/* Tasks go by their slot, 0 to MF_TASKS_IN_FLIGHT - 1, from start to committing. */
typedef struct mf_task_pool_ops {
    /* Puts the next task into a slot; false when there is none for now. It is asked again when
     * another task has committed, and the flight is over when none flies either. *usual_us: what it
     * will take, in usual microseconds. */
    bool (*start)(void *self, int slot, int64_t *usual_us);
    /* Works on a task: on any thread, beside others, and beside start and commit. */
    void (*work)(void *self, int slot);
    /* Merges the result of a task. On any thread; never while another commit or a start runs. */
    void (*commit)(void *self, int slot);
    /* Is what a task in flight may find of no use any more? Asked whenever none is left to start,
     * as commit is. It is dropped then, never worked on or its work for nothing, whichever it is.
     * NULL: every task commits. */
    bool (*is_useless)(void *self, int slot);
    /* Takes a task back that was dropped and that nobody works on any more; as commit. */
    void (*drop)(void *self, int slot);
} mf_task_pool_ops;

/* Returns when the flight is over. The calling thread works too; fewer threads than wanted is no
 * failure. */
void mf_task_pool_run(const mf_task_pool_ops *ops, void *self, int threads);

#endif
