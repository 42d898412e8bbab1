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
$(BUILD)/obj/tests/unit/test_library.o: private CPPFLAGS += -Iinclude
$(BUILD)/tests/unit/test_library: $(BUILD)/obj/tests/unit/test_library.o $(SHARED) $(BUILD)/moefold
	@mkdir -p $(@D)
	$(call say,TEST,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $< -L$(BUILD) -lmoefold \
	  -Wl,-rpath,'$$ORIGIN/../..' $(TEST_LIBS) -lpthread -o $@

# --- packages --------------------------------------------------------------------------------------
# Built a second time, without MPI and CUDA and without a trace of where it was built. What is linked for the wheel finds
# its libraries beside itself, and theirs do so by the same rpath.
PACKAGED := $(BUILD)/package
PORTABLE := $(BUILD)/portable/$(SHARED_FILE)
package = $(build) BUILD=$(PACKAGED) CUDA=0 DATADIR=/usr/share/moefold

$(PORTABLE): $(SHARED_OBJ) $(LIB) library/libmoefold.map
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -s -Wl,-soname,$(SHARED_FILE) \
	  -Wl,--version-script,library/libmoefold.map -Wl,-z,defs -Wl,--as-needed \
	  -Wl,--disable-new-dtags,-rpath,'$$ORIGIN' $(SHARED_OBJ) $(LIB) $(PLAN_LIBS) -o $@

.PHONY: portable wheel test-wheel deb test-deb
portable: $(PORTABLE) $(BUILD)/moefold

wheel: setup ## build/wheel/moefold-*.whl: the Python package with library and data, without MPI
	$(package) NO_MPI=1 portable
	@rm -rf $(BUILD)/wheel
	@python3 scripts/wheel.py $(PACKAGED)/portable/$(SHARED_FILE) $(VERSION) $(BUILD)/wheel

test-wheel: wheel ## install the wheel in a fresh virtual environment and test it there; PANDAS=1 fetches pandas
	@sh scripts/test-wheel.sh $(BUILD)/wheel/moefold-*.whl $(PACKAGED)/moefold

# Both build in one folder: beside each other one took what the other was still linking.
DEB_ROOT := $(BUILD)/deb/root
deb: | $(filter wheel test-wheel,$(MAKECMDGOALS))
deb: setup ## build/deb/moefold_*.deb: program, library, header, man page, completions, data; MPI is not needed
	@rm -rf $(BUILD)/deb
	$(package) NO_MPI=1 install DESTDIR=$(abspath $(DEB_ROOT)) PREFIX=/usr ZSHDIR=/usr/share/zsh/vendor-completions \
	  LIBDIR=/usr/lib/$(shell dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || $(CC) -print-multiarch) >/dev/null
	$(if $(MPI_PKG),$(package) BUILD=$(PACKAGED)-mpi $(PACKAGED)-mpi/moefold,@echo "deb: no MPI here: without moefold-mpi")
	@sh scripts/deb.sh $(PACKAGED) $(VERSION) $(DEB_ROOT) $(BUILD)/deb $(if $(MPI_PKG),$(PACKAGED)-mpi/moefold)

test-deb: deb ## unpack the package into a scratch root and plan there
	@sh scripts/test-deb.sh $(BUILD)/deb/moefold_*.deb
