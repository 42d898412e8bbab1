# kernels.mk - the CUDA side: kernels/*.cu, tests/gpu/, bench/gpu/. Included by the Makefile.
# Needs nvcc and no GPU. Without nvcc, or with CUDA=0, nothing here is built.
#   make gpu        build/libmoefold_cuda.a and .so, build/gpu/tests/*, build/gpu/bench/*
#   make gpu-test   and run the GPU tests (each says what it skipped when there is no GPU)
NVCC      ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_ARCH ?= -gencode=arch=compute_90a,code=sm_90a
NVCCFLAGS += -std=c++17 -O3 -lineinfo $(CUDA_ARCH) -Xcompiler -fPIC,-Wall,-Wextra -diag-suppress 177

CUDA_HOME     := $(if $(NVCC),$(patsubst %/bin/nvcc,%,$(realpath $(NVCC))))
# The whole toolkit or nothing: cuDNN and NCCL are part of it here.
CUDA_WHOLE    := $(and $(NVCC),$(wildcard $(CUDA_HOME)/include/cudnn.h),$(wildcard $(CUDA_HOME)/include/nccl.h))
CUDA          ?= $(if $(CUDA_WHOLE),1,0)
ifneq ($(CUDA),0)
CUDA_LIB      := $(BUILD)/libmoefold_cuda.a
CUDA_SO       := $(BUILD)/libmoefold_cuda.so
CUDA_SRC      := $(wildcard kernels/*.cu)
CUDA_OBJ      := $(CUDA_SRC:%.cu=$(BUILD)/gpu/obj/%.o)
GPU_TEST_SRC  := $(wildcard tests/gpu/*.c tests/gpu/*.cu)
GPU_TEST_BIN  := $(patsubst tests/gpu/%,$(BUILD)/gpu/tests/%,$(basename $(GPU_TEST_SRC)))
GPU_BENCH_SRC := $(wildcard bench/gpu/*.cu)
GPU_BENCH_BIN := $(patsubst bench/gpu/%.cu,$(BUILD)/gpu/bench/%,$(GPU_BENCH_SRC))
GPU_LIBS      := -cudart static -lpthread -ldl -lm
DEPS          += $(CUDA_OBJ:.o=.d) $(GPU_TEST_BIN:=.d) $(GPU_BENCH_BIN:=.d)

# What the CUDA side uses of the C side, compiled to be relocatable for the shared library.
CUDA_C_SRC := core/status.c kernels/gemm_finals.c $(wildcard $(CUDA_SRC:.cu=.c))
CUDA_C_OBJ := $(CUDA_C_SRC:%.c=$(BUILD)/gpu/obj/%.pic.o)

.PHONY: gpu gpu-test
gpu: $(CUDA_LIB) $(CUDA_SO) $(GPU_TEST_BIN) $(GPU_BENCH_BIN) ## build the CUDA kernels, their tests and benchmarks
build-tests: gpu

gpu-test: gpu ## run the tests that need a GPU
	$(Q)status=0; for t in $(GPU_TEST_BIN); do $$t || status=1; done; exit $$status

$(BUILD)/gpu/obj/%.o: %.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) -I. $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@

$(BUILD)/gpu/obj/%.pic.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -fPIC -MMD -MP -c $< -o $@

$(CUDA_LIB): $(CUDA_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(CUDA_SO): $(CUDA_OBJ) $(CUDA_C_OBJ)
	$(call say,LD,$@)
	$(Q)$(NVCC) $(CUDA_ARCH) -shared $^ $(GPU_LIBS) -o $@

$(BUILD)/gpu/tests/test_grouped_oracle: ORACLE_LIBS := -lcublas
$(BUILD)/gpu/tests/test_dispatch_one_gpu: NVCCFLAGS += -Itests/gpu/one_gpu

$(BUILD)/gpu/tests/%: tests/gpu/%.cu $(CUDA_LIB) $(LIB)
	@mkdir -p $(@D)
	$(call say,GPUTEST,$<)
	$(Q)$(NVCC) -I. $(NVCCFLAGS) -MMD -MP -MF $@.d -MT $@ $< $(CUDA_LIB) $(LIB) $(GPU_LIBS) $(ORACLE_LIBS) -o $@

$(BUILD)/gpu/tests/%: tests/gpu/%.c $(CUDA_LIB) $(LIB)
	@mkdir -p $(@D)
	$(call say,GPUTEST,$<)
	$(Q)$(CC) $(CPPFLAGS) -I$(CUDA_HOME)/include $(CFLAGS) -MMD -MP -c $< -o $@.o
	$(Q)$(NVCC) $(CUDA_ARCH) $@.o $(CUDA_LIB) $(LIB) $(GPU_LIBS) -o $@

$(BUILD)/gpu/bench/%: bench/gpu/%.cu $(CUDA_LIB) $(LIB)
	@mkdir -p $(@D)
	$(call say,GPUBENCH,$<)
	$(Q)$(NVCC) -I. $(NVCCFLAGS) -MMD -MP -MF $@.d -MT $@ $< $(CUDA_LIB) $(LIB) $(GPU_LIBS) -o $@

-include $(CUDA_OBJ:.o=.d) $(CUDA_C_OBJ:.o=.d) $(GPU_TEST_BIN:=.d) $(GPU_BENCH_BIN:=.d)
else
.PHONY: gpu gpu-test
gpu gpu-test:
	@echo "make $@ needs the CUDA toolkit (nvcc, cuDNN, NCCL)"; exit 2
endif
