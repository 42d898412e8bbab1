/* A library to load in front of libc (LD_PRELOAD): of the I/O calls MF_FAULT_NAME (not set: any) on
 * files whose path holds MF_FAULT_UNDER and ends with MF_FAULT_PATH (not set: any; "NAME.": holds
 * it) the MF_FAULT_CALLth (from 1; 0: none) fails once, as MF_FAULT_KIND says: ENOSPC, EIO, EINTR,
 * or SHORT, which moves half of the bytes; SLOW takes two seconds first, and does not fail. Calls
 * that cannot fail so do as always. Threads call in an order of their own: a number is the same in
 * each run for one name and path. Counted are those of the process whose rank is MF_FAULT_RANK
 * ("-": of one that no launcher gave a rank). Each is written to the file MF_FAULT_LOG: its number,
 * name and path, and "FAILS" where it did.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 1024, NAME_B = 256 };

typedef enum kind { NONE, NO_SPACE, BROKEN, INTERRUPTED, SHORT, SLOW } kind;

static char name_of[FILES][NAME_B]; /* of open files that count; "": others */
static atomic_int calls, matching;

/* The next definition of NAME, which is libc's. */
#define REAL(type, name, ...)                                                                      \
    static type (*real_##name)(__VA_ARGS__);                                                       \
    if (real_##name == NULL) {                                                                     \
        *(void **)(void *)&real_##name = dlsym(RTLD_NEXT, #name);                                  \
    }

static bool is_mine(void) {
    static int mine = -1;
    if (mine < 0) {
        static const char *const names[] = {"MOEFOLD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"};
        const char *wanted = getenv("MF_FAULT_RANK"), *own = "-";
        for (int i = 0; i < 3 && own[0] == '-'; i++) {
            own = getenv(names[i]) != NULL ? getenv(names[i]) : own;
        }
        mine = wanted != NULL && strcmp(wanted, own) == 0;
    }
    return mine != 0;
}

static bool counts(const char *path) {
    const char *under = getenv("MF_FAULT_UNDER");
    return path != NULL && under != NULL && is_mine() && strstr(path, under) != NULL;
}

static void keep(int file, const char *path) {
    if (file >= 0 && file < FILES && counts(path)) {
        snprintf(name_of[file], NAME_B, "%s", path);
    }
}

static const char *path_of(int file) {
    return file >= 0 && file < FILES && name_of[file][0] != '\0' ? name_of[file] : NULL;
}

static kind wanted_kind(void) {
    static const struct {
        const char *name;
        kind kind;
    } kinds[] = {{"ENOSPC", NO_SPACE},
                 {"EIO", BROKEN},
                 {"EINTR", INTERRUPTED},
                 {"SHORT", SHORT},
                 {"SLOW", SLOW}};
    const char *text = getenv("MF_FAULT_KIND");
    for (int i = 0; text != NULL && i < 5; i++) {
        if (strcmp(text, kinds[i].name) == 0) {
            return kinds[i].kind;
        }
    }
    return NONE;
}

/* Is it one of those among which MF_FAULT_CALL counts? */
static bool matches(const char *call, const char *path) {
    const char *name = getenv("MF_FAULT_NAME"), *end = getenv("MF_FAULT_PATH");
    const size_t n = end != NULL ? strlen(end) : 0, length = strlen(path);
    return (name == NULL || strcmp(name, call) == 0) &&
           (n == 0 || (n <= length && strcmp(path + length - n, end) == 0) ||
            (end[n - 1] == '.' && strstr(path, end) != NULL));
}

/* Counts a call on `path`. can: the kinds that it can fail by, as bits. Sets errno when it is to
 * fail. */
static kind fails(const char *call, const char *path, int can) {
    if (path == NULL || !counts(path)) {
        return NONE;
    }
    const char *at = getenv("MF_FAULT_CALL"), *log = getenv("MF_FAULT_LOG");
    int n = atomic_fetch_add(&calls, 1) + 1;
    const int before = errno;
    const int turn = matches(call, path) ? atomic_fetch_add(&matching, 1) + 1 : -1;
    kind k = at != NULL && atoi(at) == turn ? wanted_kind() : NONE;
    if (k == SLOW) {
        nanosleep(&(const struct timespec){.tv_sec = 2}, NULL);
    }
    k = (can >> k & 1) != 0 ? k : NONE;
    if (log != NULL) {
        char line[NAME_B + 64];
        int length =
            snprintf(line, sizeof line, "%d %s %s%s\n", n, call, path, k != NONE ? " FAILS" : "");
        int file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0666);
        (void)!syscall(SYS_write, file, line, (size_t)length);
        syscall(SYS_close, file);
    }
    errno = before;
    if (k != NONE) {
        errno = k == NO_SPACE ? ENOSPC : k == INTERRUPTED ? EINTR : EIO;
    }
    return k;
}

#define CAN(k) (1 << (k))
#define ERRORS (CAN(NO_SPACE) | CAN(BROKEN))
#define ANY (ERRORS | CAN(INTERRUPTED) | CAN(SHORT))

/* --- descriptors --------------------------------------------------------------------------------
 */

int open(const char *path, int flags, ...) {
    REAL(int, open, const char *, int, ...)
    va_list list;
    va_start(list, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (fails("open", path, ERRORS) != NONE) {
        return -1;
    }
    int file = real_open(path, flags, mode);
    keep(file, path);
    return file;
}

int close(int file) {
    REAL(int, close, int)
    kind k = fails("close", path_of(file), ERRORS);
    if (file >= 0 && file < FILES) {
        name_of[file][0] = '\0';
    }
    int why = errno, result = real_close(file);
    errno = k != NONE ? why : errno;
    return k != NONE ? -1 : result;
}

ssize_t read(int file, void *bytes, size_t size) {
    REAL(ssize_t, read, int, void *, size_t)
    kind k = fails("read", path_of(file), ANY);
    return k == NONE || (k == SHORT && size > 1)
               ? real_read(file, bytes, k == SHORT ? size / 2 : size)
               : -1;
}

ssize_t write(int file, const void *bytes, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t)
    kind k = fails("write", path_of(file), ANY);
    return k == NONE || (k == SHORT && size > 1)
               ? real_write(file, bytes, k == SHORT ? size / 2 : size)
               : -1;
}

ssize_t pwrite(int file, const void *bytes, size_t size, off_t at) {
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t)
    return fails("pwrite", path_of(file), ERRORS) != NONE ? -1 : real_pwrite(file, bytes, size, at);
}

ssize_t pread(int file, void *bytes, size_t size, off_t at) {
    REAL(ssize_t, pread, int, void *, size_t, off_t)
    return fails("pread", path_of(file), ERRORS) != NONE ? -1 : real_pread(file, bytes, size, at);
}

/* Locks alone. */
int fcntl(int file, int command, ...) {
    REAL(int, fcntl, int, int, ...)
    va_list list;
    va_start(list, command);
    void *more = va_arg(list, void *); /* a number or an address, as large */
    va_end(list);
    return command == F_SETLK && fails("fcntl", path_of(file), CAN(BROKEN)) != NONE
               ? -1
               : real_fcntl(file, command, more);
}

int fsync(int file) {
    REAL(int, fsync, int)
    return fails("fsync", path_of(file), ERRORS) != NONE ? -1 : real_fsync(file);
}

int ftruncate(int file, off_t size) {
    REAL(int, ftruncate, int, off_t)
    return fails("ftruncate", path_of(file), ERRORS) != NONE ? -1 : real_ftruncate(file, size);
}

int fstat(int file, struct stat *info) {
    REAL(int, fstat, int, struct stat *)
    return fails("fstat", path_of(file), CAN(BROKEN)) != NONE ? -1 : real_fstat(file, info);
}

void *mmap(void *at, size_t size, int access, int flags, int file, off_t offset) {
    REAL(void *, mmap, void *, size_t, int, int, int, off_t)
    return file >= 0 && fails("mmap", path_of(file), CAN(BROKEN)) != NONE
               ? MAP_FAILED
               : real_mmap(at, size, access, flags, file, offset);
}

/* --- names --------------------------------------------------------------------------------------
 */

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *)
    return fails("rename", to, ERRORS) != NONE ? -1 : real_rename(from, to);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t)
    return fails("mkdir", path, ERRORS) != NONE ? -1 : real_mkdir(path, mode);
}

int unlink(const char *path) {
    REAL(int, unlink, const char *)
    return fails("unlink", path, CAN(BROKEN)) != NONE ? -1 : real_unlink(path);
}

int rmdir(const char *path) {
    REAL(int, rmdir, const char *)
    return fails("rmdir", path, CAN(BROKEN)) != NONE ? -1 : real_rmdir(path);
}

int stat(const char *path, struct stat *info) {
    REAL(int, stat, const char *, struct stat *)
    return fails("stat", path, CAN(BROKEN)) != NONE ? -1 : real_stat(path, info);
}

int lstat(const char *path, struct stat *info) {
    REAL(int, lstat, const char *, struct stat *)
    return fails("lstat", path, CAN(BROKEN)) != NONE ? -1 : real_lstat(path, info);
}

int access(const char *path, int how) {
    REAL(int, access, const char *, int)
    return fails("access", path, CAN(BROKEN)) != NONE ? -1 : real_access(path, how);
}

DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *)
    if (fails("opendir", path, CAN(BROKEN)) != NONE) {
        return NULL;
    }
    DIR *d = real_opendir(path);
    keep(d != NULL ? dirfd(d) : -1, path);
    return d;
}

struct dirent *readdir(DIR *d) {
    REAL(struct dirent *, readdir, DIR *)
    return fails("readdir", path_of(dirfd(d)), CAN(BROKEN)) != NONE ? NULL : real_readdir(d);
}

int closedir(DIR *d) {
    REAL(int, closedir, DIR *)
    if (path_of(dirfd(d)) != NULL) {
        name_of[dirfd(d)][0] = '\0';
    }
    return real_closedir(d);
}

/* --- streams ------------------------------------------------------------------------------------
 */

FILE *fopen(const char *path, const char *mode) {
    REAL(FILE *, fopen, const char *, const char *)
    if (fails("fopen", path, ERRORS) != NONE) {
        return NULL;
    }
    FILE *f = real_fopen(path, mode);
    keep(f != NULL ? fileno(f) : -1, path);
    return f;
}

/* What ferror() asks of a stream: glibc's _IO_ERR_SEEN. */
static void mark_as_failed(FILE *f) {
    f->_flags |= 0x20;
}

size_t fread(void *bytes, size_t size, size_t count, FILE *f) {
    REAL(size_t, fread, void *, size_t, size_t, FILE *)
    if (f == stdin || fails("fread", path_of(fileno(f)), CAN(BROKEN)) == NONE) {
        return real_fread(bytes, size, count, f);
    }
    mark_as_failed(f);
    return 0;
}

ssize_t getline(char **line, size_t *allocated, FILE *f) {
    REAL(ssize_t, getline, char **, size_t *, FILE *)
    if (f == stdin || fails("getline", path_of(fileno(f)), CAN(BROKEN)) == NONE) {
        return real_getline(line, allocated, f);
    }
    mark_as_failed(f);
    return -1;
}

size_t fwrite(const void *bytes, size_t size, size_t count, FILE *f) {
    REAL(size_t, fwrite, const void *, size_t, size_t, FILE *)
    kind k = f != stdout && f != stderr ? fails("fwrite", path_of(fileno(f)), ERRORS) : NONE;
    int why = errno;
    size_t done = real_fwrite(bytes, size, k != NONE ? count / 2 : count, f);
    errno = k != NONE ? why : errno;
    return done;
}

int fflush(FILE *f) {
    REAL(int, fflush, FILE *)
    bool own = f != NULL && f != stdout && f != stderr;
    return own && fails("fflush", path_of(fileno(f)), ERRORS) != NONE ? EOF : real_fflush(f);
}

int fclose(FILE *f) {
    REAL(int, fclose, FILE *)
    int file = fileno(f);
    kind k = fails("fclose", path_of(file), ERRORS);
    if (file >= 0 && file < FILES) {
        name_of[file][0] = '\0';
    }
    int why = errno, result = real_fclose(f);
    errno = k != NONE ? why : errno;
    return k != NONE ? EOF : result;
}
