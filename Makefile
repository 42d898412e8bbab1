# moefold: everything is built out of tree in build/.  `make help` lists the targets.
#   V=1         show every command         BUILD=dir   another build folder
#   CC=clang    another compiler           WERROR=1    warnings are errors (CI)
#   JOBS=n      compilers at a time (default: one a core; -j of your own wins)
#   LTO=        link build/moefold without link-time optimisation: sooner built, slower by a tenth
#   CUDA=0      leave the GPU side out (build/libmoefold_cuda.so, build/moefold-measure), which is built
#               where nvcc, cuDNN and NCCL are found (kernels/kernels.mk)
.DEFAULT_GOAL := all
CC      ?= cc
BUILD   ?= build
ROOMS   := core profiles costmodel simulator planner launch kernels executor job report compare cli
JOBS    ?= $(shell nproc 2>/dev/null || echo 1)
PREFIX  ?= /usr/local
DATADIR ?= $(CURDIR)/profiles

Q := $(if $(V),,@)
say = $(if $(V),,@printf '%-7s %s\n' '$(1)' '$(2)')
# Goals that set up first build in a make of their own, with a compiler on every core (+: it is a make,
# which a variable hides, and may have a share of -j).
build = +@$(MAKE) $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS)) --no-print-directory
quote = '$(subst ','\'',$(1))'

# --- libraries -----------------------------------------------------------------------------------
PKGS      := libcjson sqlite3
HAVE_PKGS := $(shell pkg-config --exists $(PKGS) 2>/dev/null && echo yes)
PKG_CFLAGS := $(if $(HAVE_PKGS),$(shell pkg-config --cflags $(PKGS)))
PKG_LIBS   := $(if $(HAVE_PKGS),$(shell pkg-config --libs $(PKGS)),-lcjson -lsqlite3)
PLAN_LIBS := $(PKG_LIBS) -lglpk -lpthread -ldl -lm
LIBS      := $(PLAN_LIBS)
TEST_LIBS := -lcmocka
# Test programs are many: gold links one in two thirds of the time, where it is.
TEST_LINK := $(if $(filter clang%,$(notdir $(CC))),,$(if $(shell command -v ld.gold 2>/dev/null),-fuse-ld=gold))

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes \
        -Wvla -Wformat=2 -Wundef -Wcast-qual -Wwrite-strings -Wdouble-promotion -Wswitch-enum
OPT     ?= -O2 -g
CFLAGS  += -std=c11 $(OPT) -ffp-contract=off $(WARN) $(if $(WERROR),-Werror)
CPPFLAGS += -I. -D_POSIX_C_SOURCE=200809L -DMF_DATA_DIR='"$(DATADIR)"' $(PKG_CFLAGS)

# --- sources -------------------------------------------------------------------------------------
SRC       := $(foreach r,$(ROOMS),$(wildcard $(r)/*.c $(r)/*/*.c))
LIB_SRC   := $(filter-out cli/main.c %_cuda.c,$(SRC))
LIB_OBJ   := $(LIB_SRC:%.c=$(BUILD)/obj/%.o)
MAIN_OBJ  := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard cli/main.c))
LIB       := $(BUILD)/libmoefold.a
BIN       := $(if $(MAIN_OBJ),$(BUILD)/moefold)
UNIT_SRC  := $(wildcard tests/unit/*.c tests/property/*.c)
# NOT_BUILT: names of tests, such as tests/unit/test_published, that are left out.
UNIT_BIN  := $(filter-out $(NOT_BUILT:%=$(BUILD)/%),$(UNIT_SRC:tests/%.c=$(BUILD)/tests/%))
# What tests share beside headers.
TEST_OBJ  := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tests/support/*.c))
TEST_LIB  := $(BUILD)/libtests.a
FUZZ_SRC  := $(wildcard tests/fuzz/*.c)
FUZZ_BIN  := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/fuzz/%)
BENCH_SRC := $(wildcard bench/*.c)
BENCH_BIN := $(BENCH_SRC:bench/%.c=$(BUILD)/bench/%)
VALIDATE_SRC := $(wildcard bench/published/*.c)
VALIDATE_OBJ := $(VALIDATE_SRC:%.c=$(BUILD)/obj/%.o)

# What ships. Rooms that a search spends its time in are compiled once more, for the product and the
# benchmarks that stand for it, which are optimised as a whole when they are linked (gcc alone, and
# only with our own options); tests are linked with the library, which takes no time.
FAST_ROOMS := core costmodel simulator planner
ifeq ($(origin LTO)$(origin OPT),undefinedfile)
LTO := $(if $(findstring -fsanitize,$(CFLAGS))$(findstring --coverage,$(CFLAGS)),,$(shell \
         $(CC) -v 2>&1 | grep -c '^Supported LTO'))
endif
ifneq ($(filter-out 0,$(LTO)),)
# No code here reads errno or the FPU's flags after arithmetic, and results are the same to the bit. Without
# traps gcc turns `a ? 2 : 1` into a sum and warns of its type; the library's objects, built from the same files
# without this, keep that warning.
FAST      := -O3 -flto=auto -fno-math-errno -fno-trapping-math -Wno-conversion
# Compilers warn file by file: not of what several files are together.
FAST_LINK := $(FAST) -w
FAST_SRC  := $(foreach r,$(FAST_ROOMS),$(filter $(r)/%,$(LIB_SRC)))
FAST_OBJ  := $(FAST_SRC:%.c=$(BUILD)/fast/%.o)
SHIPS     := $(FAST_OBJ) $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out $(FAST_SRC),$(LIB_SRC)))
else
FAST      :=
FAST_LINK :=
FAST_OBJ  :=
SHIPS     := $(LIB)
endif
FAST_BENCH := $(BUILD)/bench/bench_plan $(BUILD)/bench/bench_sim
DEPS      := $(LIB_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(FAST_OBJ:.o=.d) $(VALIDATE_OBJ:.o=.d) $(MAIN_OBJ:.o=.d) $(UNIT_SRC:%.c=$(BUILD)/obj/%.d) $(FUZZ_SRC:%.c=$(BUILD)/obj/%.d) $(BENCH_BIN:=.d)

.PHONY: all setup test check lint format bench validate validate-fit san fuzz demo install uninstall clean help
.SECONDARY:

# `all` builds in a make of its own, once packages are there: beside other goals it goes first.
ifneq ($(filter all,$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif

all: setup ## build build/moefold, and build/libmoefold_cuda.so where the CUDA toolkit is
	$(build) build

.PHONY: build build-tests
build: $(BIN)
build-tests: build $(LIB) $(UNIT_BIN) $(FUZZ_BIN)

setup: ## install the Debian packages that are missing (or print the one command)
	@CUDA_LACKS='$(CUDA_LACKS)' sh scripts/setup.sh

# Rebuild when flags, libraries or the object list change: these stamp files hold them. So objects with and without
# MPI never mix, and no object of a deleted source stays in the library.
.PHONY: FORCE
$(BUILD)/.flags: STAMP = $(filter-out -W%,$(CC) $(CFLAGS) $(CPPFLAGS) $(LDFLAGS) $(LIBS))
$(BUILD)/.objects: STAMP = $(LIB_OBJ)
$(BUILD)/.ships: STAMP = $(FAST) $(SHIPS)
$(BUILD)/.flags $(BUILD)/.objects $(BUILD)/.ships $(BUILD)/.commit: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(call quote,$(STAMP)) | cmp -s - $@ || printf '%s\n' $(call quote,$(STAMP)) >$@

# What --version says. Of this repository only: sources that stand inside another one have no commit.
COMMIT := $(or $(if $(wildcard .git),$(shell git rev-parse --short=12 HEAD 2>/dev/null)),unknown)
$(BUILD)/.commit: STAMP = $(COMMIT)
$(BUILD)/obj/cli/version.o: CPPFLAGS += -DMF_COMMIT='"$(COMMIT)"'
$(BUILD)/obj/cli/version.o: $(BUILD)/.commit

# The inner loop of the reference product counts, also where the rest is built to be looked into.
$(BUILD)/obj/kernels/gemm/gemm.o: CFLAGS += -O3

# Tests themselves compute little: optimised as a whole they take three times as long to compile.
$(UNIT_SRC:%.c=$(BUILD)/obj/%.o): CFLAGS += -Og

$(BUILD)/obj/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -fPIC -MMD -MP -c $< -o $@

$(BUILD)/fast/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(FAST) -MMD -MP -c $< -o $@

$(LIB): $(LIB_OBJ) $(BUILD)/.objects
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $(filter %.o,$^)

$(BUILD)/moefold: $(MAIN_OBJ) $(SHIPS) $(BUILD)/.ships
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(FAST_LINK) $(LDFLAGS) $(filter-out %/.ships,$^) $(LIBS) -o $@

$(TEST_LIB): $(TEST_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# Compiled by the rule of all objects, which a compiler cache knows.
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(TEST_LIB) $(LIB)
	@mkdir -p $(@D)
	$(call say,TEST,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(TEST_LINK) $< $(TEST_LIB) $(LIB) $(TEST_LIBS) $(LIBS) -o $@

# Published rows are read by the objects of validate.
$(BUILD)/tests/unit/test_published: $(BUILD)/obj/tests/unit/test_published.o $(VALIDATE_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(call say,TEST,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $< $(filter-out %/main.o,$(VALIDATE_OBJ)) $(LIB) $(TEST_LIBS) $(LIBS) -o $@

# Loaded in front of libc by the test that has I/O calls fail; never with sanitizers of its own.
$(BUILD)/fault_io.so: tests/preload/fault_io.c
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -std=c11 -O1 -fPIC -shared $(WARN) $(if $(WERROR),-Werror) $< -ldl -o $@

$(BUILD)/tests/unit/test_train_faults $(BUILD)/tests/unit/test_train_saves: $(BUILD)/fault_io.so

# Likewise for allocations, and for a number that goes wrong once.
$(BUILD)/fault_%.so: tests/preload/fault_%.c
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -std=c11 -O1 -fPIC -shared $(WARN) $(if $(WERROR),-Werror) $(if $(filter %_mpi.so,$@),$(MPI_CPPFLAGS)) $< -ldl -lpthread -o $@

$(BUILD)/tests/unit/test_allocations: $(BUILD)/fault_malloc.so
$(BUILD)/tests/unit/test_train_transient: $(BUILD)/fault_expf.so

# A fuzz target holds LLVMFuzzerTestOneInput; without clang's driver it replays and mutates its
# seed corpus (tests/fuzz/NAME.seeds/) through tests/fuzz/driver.h.
$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(LIB)
	@mkdir -p $(@D)
	$(call say,FUZZ,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $< $(LIB) $(LIBS) -o $@

$(FAST_BENCH): $(BUILD)/bench/%: bench/%.c $(SHIPS) $(BUILD)/.ships
	@mkdir -p $(@D)
	$(call say,BENCH,$<)
	$(Q)$(CC) $(CPPFLAGS) $(filter-out -Werror,$(CFLAGS)) $(FAST) -MMD -MP -MF $@.d $(LDFLAGS) $< $(SHIPS) $(LIBS) -o $@

$(BUILD)/bench/%: bench/%.c $(LIB)
	@mkdir -p $(@D)
	$(call say,BENCH,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d $(LDFLAGS) $< $(LIB) $(LIBS) -o $@

$(BUILD)/validate: $(VALIDATE_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $^ $(LIBS) -o $@

test: setup ## build and run all tests that need no GPU
	$(build) build-tests
	@sh scripts/run-tests.sh $(BUILD)

check: test

.PHONY: san-all
SANITIZED = 1
san-all: SANITIZED = all
san-all: san ## the same with every program, and every case of those that san runs a sample of (an hour)
san: ## tests under AddressSanitizer and UBSan: a sample of what repeats, one program of those that reach the same
	$(build) BUILD=$(BUILD)/san CUDA=0 \
	  OPT="-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" \
	  NOT_BUILT="$(if $(filter all,$(SANITIZED)),,$$(sh scripts/run-tests.sh --plain))" build-tests
	@MF_SANITIZED=$(SANITIZED) ASAN_OPTIONS=$(or $(ASAN_OPTIONS),quarantine_size_mb=64) sh scripts/run-tests.sh $(BUILD)/san

# Linked by clang with libFuzzer, whose main() stands in for that of tests/fuzz/driver.h, and with a library of what
# parsers reach: the linker says of the ordinary one which objects it takes (their names; a namesake comes along).
.PHONY: fuzz fuzzers
fuzzers: $(FUZZ_BIN)
FUZZ_OBJ  := $(FUZZ_SRC:%.c=$(BUILD)/obj/%.o)
$(BUILD)/parsed: $(FUZZ_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) -r -nostdlib -Wl,-z,muldefs,-t,-t $^ -o $@.o >$@.trace
	$(Q)sed -n 's/^(.*)\(.*\)\.o$$/\1.c/p' $@.trace | sort -u >$@
	$(Q)rm -f $@.o $@.trace
fuzz: ## libFuzzer (clang) over every parser, 10^7 executions each (hours; FUZZ_SECONDS=60: a minute of a core each; NAMES=fuzz_plan ..)
	$(build) $(BUILD)/parsed
	$(build) BUILD=$(BUILD)/fuzzing CC="$(if $(findstring ccache,$(CC)),ccache )clang" CUDA=0 NO_MPI=1 LTO= LDFLAGS=-fsanitize=fuzzer \
	  LIB_SRC="$$(printf '%s\n' $(LIB_SRC) | awk -F/ 'NR == FNR { is[$$0] = 1; next } $$NF in is' $(BUILD)/parsed -)" \
	  OPT="-O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" \
	  fuzzers
	@sh scripts/fuzz.sh $(BUILD)/fuzzing $(NAMES)

.PHONY: tsan
TSAN_TESTS = tests/unit/test_capacity_carry tests/unit/test_library $(filter tests/unit/test_planner_% tests/unit/test_sim_% tests/property/test_planner_% \
               tests/property/test_sim_%,$(patsubst %.c,%,$(UNIT_SRC)))
tsan: ## ThreadSanitizer over the tests of planner and simulator (an hour; NAMES=tests/unit/test_planner_effort ..)
	$(build) BUILD=$(BUILD)/tsan CUDA=0 NO_MPI=1 LTO= OPT="-O1 -g -fsanitize=thread" \
	  $(addprefix $(BUILD)/tsan/,$(or $(NAMES),$(TSAN_TESTS)))
	@for t in $(or $(NAMES),$(TSAN_TESTS)); do echo "$$t"; MF_SANITIZED=1 \
	  TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" $(BUILD)/tsan/$$t >$(BUILD)/tsan/log 2>&1 || \
	  { cat $(BUILD)/tsan/log; exit 1; }; done

.PHONY: memcheck
MEMCHECK_TESTS = $(addprefix tests/unit/test_,json json_cases model model_config model_text cluster safetensors data \
                   store_csv store_csv_reader cli_options launch_import)
memcheck: ## valgrind over every parser: its seeds, a second of mutations of each, its tests (minutes)
	$(build) $(FUZZ_BIN) $(addprefix $(BUILD)/,$(MEMCHECK_TESTS))
	@for t in $(FUZZ_BIN); do echo "$$t"; MF_FUZZ_SECONDS=$(or $(FUZZ_SECONDS),1) valgrind -q --leak-check=full \
	  --error-exitcode=9 $$t tests/fuzz/$$(basename $$t).seeds || exit 1; done
	@for t in $(addprefix $(BUILD)/,$(MEMCHECK_TESTS)); do echo "$$t"; valgrind -q --leak-check=full --error-exitcode=9 \
	  $$t >$(BUILD)/memcheck.log 2>&1 || { cat $(BUILD)/memcheck.log; exit 1; }; done

.PHONY: test-kills
test-kills: ## kill training runs in the middle of 1,000 saves, of one rank and of two (twenty minutes)
	$(build) build $(BUILD)/tests/unit/test_train_kills
	@MF_KILLS=1000 $(BUILD)/tests/unit/test_train_kills

.PHONY: test-faults
test-faults: ## every I/O call of saving and reading fails once in turn (half an hour)
	$(build) build $(BUILD)/tests/unit/test_train_faults
	@MF_FAULTS=all $(BUILD)/tests/unit/test_train_faults

.PHONY: test-allocations
test-allocations: ## every allocation of a plan, a simulation and a training start fails once in turn (minutes)
	$(build) build $(BUILD)/tests/unit/test_allocations
	@MF_ALLOCATIONS=1000000 $(BUILD)/tests/unit/test_allocations

.PHONY: test-launch
test-launch: ## plan, export, import every model and drawn jobs (half an hour); MODELS=.. some, MEGATRON_LM=DIR, BRIDGE=DIR (BRIDGE_MEGATRON=DIR), PYTHON=..
	$(build) build $(BUILD)/tests/property/test_launch_shipped
	@MF_LAUNCH_DRAWS=20 $(BUILD)/tests/property/test_launch_shipped
	@sh scripts/test-launch.sh $(BUILD) $(MODELS)

lint: ## clang-format (check), clang-tidy, cppcheck, names in docs and comments
	@sh scripts/lint.sh $(BUILD)

format: ## apply clang-format
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs -r clang-format -i

bench: setup ## plan and simulation times, memory, events and layouts per second (minutes)
	$(build) build $(BENCH_BIN)
	@sh scripts/bench.sh $(BUILD)

validate: setup ## predict the published runs, write docs/ACCURACY.md
	$(build) $(BUILD)/validate
	@$(BUILD)/validate
	@$(MAKE) --no-print-directory runs-accuracy price-accuracy

.PHONY: validate-commands
validate-commands: setup ## ask the program for every published row, and compare with what validate says
	$(build) build $(BUILD)/validate
	@sh scripts/validate-commands.sh $(BUILD)

price-accuracy: setup ## price the shapes held out of every fit, write their part of docs/ACCURACY.md
	$(build) $(BUILD)/bench/price_accuracy
	@$(BUILD)/bench/price_accuracy -write docs/ACCURACY.md

.PHONY: runs-accuracy
runs-accuracy: setup ## predict our own training runs (bench/gpu/runs-*.csv), write their part of docs/ACCURACY.md and docs/RUNS*.md
	$(build) build $(BUILD)/bench/runs_accuracy
	@$(BUILD)/bench/runs_accuracy $(BUILD)/moefold -write docs
	@sh scripts/accuracy_rows.sh >$(BUILD)/accuracy_rows.c && cp $(BUILD)/accuracy_rows.c report/basis/accuracy_rows.c

validate-fit: setup ## refit the software profiles to the published runs first (about a minute on 2 free cores)
	$(build) $(BUILD)/validate
	@$(BUILD)/validate --fit
	@$(MAKE) --no-print-directory runs-accuracy price-accuracy

demo: setup ## plan DeepSeek-V3 on 1,024 H100 and simulate the step; train a small MoE for a minute
	$(build) build
	@sh scripts/demo.sh $(BUILD)

# Beside the program: its library, header and pkg-config file, man page, completions and data.
LIBDIR ?= $(PREFIX)/lib
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
install: build ## install to PREFIX (default /usr/local)
	install -D $(BUILD)/moefold $(DESTDIR)$(PREFIX)/bin/moefold
	if [ -x $(BUILD)/moefold-measure ]; then \
	  install $(BUILD)/moefold-measure $(DESTDIR)$(PREFIX)/bin/moefold-measure; fi
	$(if $(CUDA_SO),install -D $(CUDA_SO) $(DESTDIR)$(PREFIX)/lib/moefold/libmoefold_cuda.so)
	install -D -m 644 $(SHARED) $(DESTDIR)$(LIBDIR)/$(SHARED_FILE)
	ln -sf $(SHARED_FILE) $(DESTDIR)$(LIBDIR)/$(SHARED_NAME)
	install -D -m 644 include/moefold.h $(DESTDIR)$(PREFIX)/include/moefold.h
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' library/moefold.pc.in >$(BUILD)/moefold.pc
	install -D -m 644 $(BUILD)/moefold.pc $(DESTDIR)$(LIBDIR)/pkgconfig/moefold.pc
	$(BUILD)/moefold help --man >$(BUILD)/moefold.1
	install -D -m 644 $(BUILD)/moefold.1 $(DESTDIR)$(PREFIX)/share/man/man1/moefold.1
	$(BUILD)/moefold help --completion bash >$(BUILD)/moefold.bash
	install -D -m 644 $(BUILD)/moefold.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/moefold
	$(BUILD)/moefold help --completion zsh >$(BUILD)/moefold.zsh
	install -D -m 644 $(BUILD)/moefold.zsh $(DESTDIR)$(ZSHDIR)/_moefold
	for file in LICENSE NOTICE; do install -D -m 644 $$file $(DESTDIR)$(PREFIX)/share/doc/moefold/$$file; done
	cd profiles && find . -type f \( -name '*.json' -o -name '*.csv' \) \
	  -exec install -D -m 644 {} $(DESTDIR)$(PREFIX)/share/moefold/{} \;

# What `install` puts there, and no more: folders that other packages share stay.
uninstall: ## remove what `make install` put under PREFIX
	rm -f $(DESTDIR)$(PREFIX)/bin/moefold $(DESTDIR)$(PREFIX)/bin/moefold-measure \
	  $(DESTDIR)$(LIBDIR)/$(SHARED_FILE) $(DESTDIR)$(LIBDIR)/$(SHARED_NAME) \
	  $(DESTDIR)$(LIBDIR)/pkgconfig/moefold.pc $(DESTDIR)$(PREFIX)/include/moefold.h \
	  $(DESTDIR)$(PREFIX)/share/man/man1/moefold.1 \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions/moefold $(DESTDIR)$(ZSHDIR)/_moefold
	rm -rf $(DESTDIR)$(PREFIX)/lib/moefold $(DESTDIR)$(PREFIX)/share/moefold $(DESTDIR)$(PREFIX)/share/doc/moefold

clean: ## remove build/
	rm -rf $(BUILD)

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' Makefile kernels/kernels.mk library/library.mk

include library/library.mk
-include $(DEPS)
-include kernels/kernels.mk
-include executor/executor.mk
-include executor/measure/measure.mk

# A source that a .d of an older build names and that is gone since, because it moved, is no error: what was
# made of it is made again.
NAMED := $(sort $(shell cat $(wildcard $(DEPS)) /dev/null | tr -s ' \\' '\n' | grep '\.cu*$$'))
GONE  := $(filter-out $(wildcard $(NAMED)),$(NAMED))
ifneq ($(GONE),)
$(GONE): ;
endif
