/* test_dispatch_one_gpu.cu - the tests of dispatch and combine with two, three and four ranks on
 * one GPU: the kernels as they are, over what tests/gpu/one_gpu puts in NCCL's place. */
#include "kernels/dispatch/dispatch.cu"

#include "tests/gpu/test_dispatch.cu"
