# kernels.mk - the CUDA side: kernels/*/*.cu, tests/gpu/, bench/gpu/. Included by the Makefile.
# Needs nvcc, cuDNN and NCCL, and no GPU. Without them, or with CUDA=0, nothing here is built. NVCC may
# have a compiler cache in front ("ccache nvcc"); CUDA_HOME is where the toolkit stands that it belongs to.
#   make            build/libmoefold_cuda.so and build/moefold-measure, beside everything else
#   make gpu        build/libmoefold_cuda.a and .so, build/gpu/tests/*, build/gpu/bench/*
#   make gpu-test   and run the GPU tests (each says what it skipped when there is no GPU)
ifeq ($(origin NVCC),undefined)
NVCC      := $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
endif
CUDA_ARCH ?= -gencode=arch=compute_90a,code=sm_90a
NVCCFLAGS += -std=c++17 -O3 -lineinfo $(CUDA_ARCH) -Xcompiler -fPIC,-Wall,-Wextra -diag-suppress 177

# Another NCCL than the toolkit's: a folder with include/ and lib/ (or libnccl.so.2 itself).
NCCL_HOME     ?=
NCCL_INCLUDE  := $(if $(NCCL_HOME),-I$(NCCL_HOME)/include)
NCCL_SO       := $(firstword $(wildcard $(NCCL_HOME)/lib/libnccl.so.2) $(wildcard $(NCCL_HOME)/libnccl.so.2))
NCCL_LIB      := $(if $(NCCL_SO),-Xlinker $(NCCL_SO) -Xlinker -rpath -Xlinker $(patsubst %/,%,$(dir $(NCCL_SO))),-lnccl)

# As nvcc says itself; past a compiler cache, links and wrappers its path alone would not tell.
CUDA_HOME     := $(if $(NVCC),$(realpath $(shell $(NVCC) -dryrun -x cu /dev/null 2>&1 | sed -n 's/^\#[$$] TOP=//p')))
# The whole toolkit or nothing: cuDNN and NCCL are part of it here, in its folder or where the compiler looks.
CUDA_FINDS     = $(shell printf '\043include <$(1)>\n' | $(CC) -I$(CUDA_HOME)/include -x c -E - >/dev/null 2>&1 && echo yes)
ifneq ($(CUDA),0)
CUDA_LACKS    := $(strip $(if $(NVCC),$(if $(CUDA_HOME),,an-nvcc-that-runs) \
                   $(foreach h,cublasLt.h cudnn.h nccl.h,$(if $(call CUDA_FINDS,$(h)),,$(h)))))
endif
CUDA          ?= $(if $(NVCC),$(if $(CUDA_LACKS),0,1),0)
ifneq ($(CUDA),0)
CUDA_LIB      := $(BUILD)/libmoefold_cuda.a
CUDA_SO       := $(BUILD)/libmoefold_cuda.so
CUDA_SRC      := $(wildcard kernels/*/*.cu)
CUDA_OBJ      := $(CUDA_SRC:%.cu=$(BUILD)/gpu/obj/%.o)
GPU_TEST_SRC  := $(wildcard tests/gpu/*.c tests/gpu/*.cu)
GPU_TEST_BIN  := $(patsubst tests/gpu/%,$(BUILD)/gpu/tests/%,$(basename $(GPU_TEST_SRC)))
GPU_BENCH_SRC := $(wildcard bench/gpu/*.cu)
GPU_BENCH_BIN := $(patsubst bench/gpu/%.cu,$(BUILD)/gpu/bench/%,$(GPU_BENCH_SRC))
GPU_LIBS      := -cudart static -lpthread -ldl -lm
DEPS          += $(CUDA_OBJ:.o=.d) $(GPU_TEST_BIN:=.d) $(GPU_BENCH_BIN:=.d)

.PHONY: gpu gpu-test
gpu: $(CUDA_LIB) $(CUDA_SO) $(GPU_TEST_BIN) $(GPU_BENCH_BIN) ## build the CUDA side, its tests and benchmarks (needs nvcc, cuDNN, NCCL; no GPU)
build-tests: gpu

gpu-test: gpu ## run the tests that need a GPU
	$(Q)status=0; for t in $(GPU_TEST_BIN); do $$t || status=1; done; \
	sh tests/gpu/faults.sh $(BUILD)/moefold || status=1; \
	sh tests/gpu/families.sh $(BUILD)/moefold || status=1; exit $$status

.PHONY: gpu-bundle
gpu-bundle: setup ## build/moefold-gpu.tar.xz: programs and libraries for a GPU machine without compilers
	$(build) NO_MPI=1 BUILD=$(BUILD)/bundle build gpu
	@NCCL_HOME=$(NCCL_HOME) sh scripts/gpu-bundle.sh $(BUILD)/bundle $(BUILD)/moefold-gpu.tar.xz

# Initial weights have the same bits on CPUs and GPUs.
$(BUILD)/gpu/obj/kernels/rows/normal.o: NVCCFLAGS += -fmad=false

$(BUILD)/gpu/obj/%.o: %.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) -I. $(NCCL_INCLUDE) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@

$(BUILD)/gpu/obj/%.pic.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -fPIC -MMD -MP -c $< -o $@

$(CUDA_LIB): $(CUDA_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# What `moefold train` loads on a machine with GPUs; of the C side it has copies of its own.
$(CUDA_SO): $(CUDA_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(NVCC) $(CUDA_ARCH) -shared -Xlinker -Bsymbolic $(filter-out $(LIB),$^) $(LIB) $(GPU_LIBS) -o $@

$(BUILD)/gpu/tests/test_grouped_oracle: ORACLE_LIBS := -lcublas
$(BUILD)/gpu/tests/test_dispatch_one_gpu: NCCL_INCLUDE := -Itests/gpu/one_gpu

$(patsubst tests/gpu/%.cu,$(BUILD)/gpu/tests/%,$(filter %.cu,$(GPU_TEST_SRC))): $(BUILD)/gpu/tests/%: tests/gpu/%.cu $(CUDA_LIB) $(LIB)
	@mkdir -p $(@D)
	$(call say,GPUTEST,$<)
	$(Q)$(NVCC) -I. $(NCCL_INCLUDE) $(NVCCFLAGS) -MMD -MP -MF $@.d -MT $@ $< $(CUDA_LIB) $(LIB) $(GPU_LIBS) $(ORACLE_LIBS) -o $@

$(patsubst tests/gpu/%.c,$(BUILD)/gpu/tests/%,$(filter %.c,$(GPU_TEST_SRC))): $(BUILD)/gpu/tests/%: tests/gpu/%.c $(CUDA_LIB) $(LIB)
	@mkdir -p $(@D)
	$(call say,GPUTEST,$<)
	$(Q)$(CC) $(CPPFLAGS) $(NCCL_INCLUDE:-I%=-isystem %) -isystem $(CUDA_HOME)/include $(CFLAGS) -MMD -MP -MF $@.d -MT $@ -c $< -o $@.o
	$(Q)$(NVCC) $(CUDA_ARCH) $@.o $(CUDA_LIB) $(LIB) $(GPU_LIBS) -o $@

$(GPU_BENCH_BIN): $(BUILD)/gpu/bench/%: bench/gpu/%.cu $(CUDA_LIB) $(LIB)
	@mkdir -p $(@D)
	$(call say,GPUBENCH,$<)
	$(Q)$(NVCC) -I. $(NCCL_INCLUDE) $(NVCCFLAGS) -MMD -MP -MF $@.d -MT $@ $< $(CUDA_LIB) $(LIB) $(GPU_LIBS) -o $@

-include $(CUDA_OBJ:.o=.d) $(GPU_TEST_BIN:=.d) $(GPU_BENCH_BIN:=.d)
else
.PHONY: gpu gpu-test
gpu gpu-test:
	@echo "make $@ needs the CUDA toolkit: nvcc, cuDNN and NCCL$(if $(CUDA_LACKS),; here are no $(CUDA_LACKS))"; exit 2
endif
