# measure.mk - host code of the CUDA side (*_cuda.c), its libraries and moefold-measure; included by the Makefile after
# kernels/kernels.mk, whose variables it extends. Does nothing where that found no CUDA toolkit.
ifdef CUDA_LIB
MEASURE_SRC    := executor/measure/measure_main_cuda.c
MEASURE_BIN    := $(BUILD)/moefold-measure
CUDA_HOST_SRC  := $(filter-out $(MEASURE_SRC),$(wildcard kernels/*/*_cuda.c executor/*/*_cuda.c))
CUDA_HOST_OBJ  := $(CUDA_HOST_SRC:%.c=$(BUILD)/gpu/obj/%.pic.o)
CUDA_ROOM_SRC  := $(wildcard executor/*/*.cu)
CUDA_ROOM_OBJ  := $(CUDA_ROOM_SRC:%.cu=$(BUILD)/gpu/obj/%.o)
GPU_MAIN_SRC   := $(wildcard bench/gpu/*.c)
GPU_MAIN_BIN   := $(GPU_MAIN_SRC:bench/gpu/%.c=$(BUILD)/gpu/bench/%)
GPU_LIBS       += -L$(CUDA_HOME)/lib64 $(NCCL_LIB) -Xlinker -rpath -Xlinker $(CUDA_HOME)/lib64 -lcublasLt -lcudnn $(PKG_LIBS)
# Programs of several processes meet over MPI; the others need none.
GPU_LIBS       += $(if $(MPI_LIBS),-Xlinker --as-needed $(filter -L% -l%,$(MPI_LIBS)))

$(CUDA_HOST_OBJ) $(GPU_MAIN_BIN): CPPFLAGS += $(NCCL_INCLUDE:-I%=-isystem %) -isystem $(CUDA_HOME)/include
$(CUDA_LIB): $(CUDA_HOST_OBJ) $(CUDA_ROOM_OBJ)
$(CUDA_SO): $(filter $(BUILD)/gpu/obj/kernels/%,$(CUDA_HOST_OBJ)) $(filter $(BUILD)/gpu/obj/executor/cuda/%,$(CUDA_HOST_OBJ) $(CUDA_ROOM_OBJ))
gpu: $(GPU_MAIN_BIN) $(MEASURE_BIN)
build: $(MEASURE_BIN) $(CUDA_SO)

# What `moefold profile` starts to measure: the only program here that needs the CUDA libraries.
$(MEASURE_BIN): $(MEASURE_SRC) $(CUDA_LIB) $(LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d -MT $@ -c $< -o $(BUILD)/gpu/obj/measure_main.o
	$(Q)$(NVCC) $(CUDA_ARCH) $(BUILD)/gpu/obj/measure_main.o $(CUDA_LIB) $(LIB) $(GPU_LIBS) -o $@

$(GPU_MAIN_BIN): $(BUILD)/gpu/bench/%: bench/gpu/%.c $(CUDA_LIB) $(LIB)
	@mkdir -p $(@D)
	$(call say,GPUMAIN,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d -MT $@ -c $< -o $@.o
	$(Q)$(NVCC) $(CUDA_ARCH) $@.o $(CUDA_LIB) $(LIB) $(GPU_LIBS) -o $@

.PHONY: demo-gpu
demo-gpu: build ## train a MoE of 257 million parameters on text for five minutes on this GPU; the loss as it falls
	@sh scripts/demo_gpu.sh $(BUILD)/moefold

.PHONY: bench-gpu
bench-gpu: build $(BUILD)/gpu/bench/bench_train ## train four slices of models on this GPU: TFLOP/s, clocks, power, memory (8 minutes)
	@$(BUILD)/gpu/bench/bench_train

.PHONY: bench-runs
bench-runs: build $(BUILD)/gpu/bench/bench_runs ## 51 training runs on this GPU (12 minutes), predicted beside measured; 37 on two (RUNS=FILE CLUSTER=h200 GPUS=1)
	@$(BUILD)/gpu/bench/bench_runs $(or $(RUNS),$(BUILD)/runs.csv) --gpus $(or $(GPUS),1)
	@$(BUILD)/gpu/bench/bench_runs $(or $(RUNS),$(BUILD)/runs.csv) --gpus $(or $(GPUS),1) --table $(or $(CLUSTER),h200)

.PHONY: bench-picks
bench-picks: build $(BUILD)/gpu/bench/bench_picks ## every layout of three jobs on this GPU, and how far plan's pick is from the best (4 minutes; RUNS=FILE CLUSTER=h200)
	@$(BUILD)/gpu/bench/bench_picks $(or $(RUNS),$(BUILD)/picks.csv) --cluster $(or $(CLUSTER),h200)
	@$(BUILD)/gpu/bench/bench_picks $(or $(RUNS),$(BUILD)/picks.csv) --cluster $(or $(CLUSTER),h200) --table yes

MEASURE_DEPS   := $(CUDA_HOST_OBJ:.o=.d) $(CUDA_ROOM_OBJ:.o=.d) $(GPU_MAIN_BIN:=.d) $(MEASURE_BIN).d
DEPS           += $(MEASURE_DEPS)
-include $(MEASURE_DEPS)
endif
