# executor.mk - MPI for ranks: found by pkg-config; without it everything builds and one rank runs.
#   NO_MPI=1   build without it
ifndef NO_MPI
MPI_PKG := $(shell for p in ompi-c mpich; do pkg-config --exists $$p 2>/dev/null && echo $$p && break; done)
ifneq ($(MPI_PKG),)
# System headers: not ours to warn about.
MPI_CPPFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(MPI_PKG)))
CPPFLAGS += -DMF_HAVE_MPI $(MPI_CPPFLAGS)
MPI_LIBS := $(shell pkg-config --libs $(MPI_PKG))
LIBS     += $(MPI_LIBS)
# MPI's libraries are to find our sched_yield (executor/comm/comm_wait.c).
LIBS     += -Wl,--export-dynamic-symbol=sched_yield
# Loaded in front of MPI's libraries by the test of two hosts.
$(BUILD)/tests/unit/test_train_hosts: $(BUILD)/fault_mpi.so
endif
endif
