# library.mk - libmoefold.so: planning and prediction behind include/moefold.h, without MPI and CUDA.
# It is linked with those objects of the library of tests that its commands need, and no others.
SHARED_NAME := libmoefold.so
SHARED_ABI  := 0
SHARED_FILE := $(SHARED_NAME).$(SHARED_ABI)
VERSION     := $(shell sed -n 's/.*MF_VERSION "\(.*\)"/\1/p' core/base/version.h)
SHARED_SRC  := $(wildcard library/*.c)
SHARED_OBJ  := $(SHARED_SRC:%.c=$(BUILD)/obj/%.o)
SHARED      := $(BUILD)/$(SHARED_NAME)
build: $(SHARED)
DEPS        += $(SHARED_OBJ:.o=.d)

$(BUILD)/$(SHARED_FILE): $(SHARED_OBJ) $(LIB) library/libmoefold.map
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(SHARED_FILE) \
	  -Wl,--version-script,library/libmoefold.map -Wl,-z,defs -Wl,--as-needed $(SHARED_LDFLAGS) \
	  $(SHARED_OBJ) $(LIB) $(PLAN_LIBS) -o $@

$(SHARED): $(BUILD)/$(SHARED_FILE)
	$(Q)ln -sf $(<F) $@

# As a user's program: the public header, the shared library and nothing else of ours.
$(BUILD)/tests/unit/test_library: tests/unit/test_library.c $(SHARED) $(BUILD)/moefold
	@mkdir -p $(@D)
	$(call say,TEST,$<)
	$(Q)$(CC) -Iinclude $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d $(LDFLAGS) $< -L$(BUILD) -lmoefold \
	  -Wl,-rpath,'$$ORIGIN/../..' $(TEST_LIBS) -lpthread -o $@
