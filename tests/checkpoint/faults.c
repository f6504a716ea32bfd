/* LD_PRELOAD shim: at the N-th call that changes the file system (or opens something to write), die or fail.
 *
 * fault_arm(n, mode, error) counts from now on; mode 0 kills before the call, 1 kills in the middle of a write,
 * 2 makes the call fail with `error`, 3 lets a write report success without writing; n = 0 disarms.
 * fault_no_exchange(1) makes renameat2 say EINVAL, as NFS and Lustre do. fault_count() tells the calls since arming.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int armed, at, mode, error_code, count, no_exchange;

void fault_arm(int n, int how, int error) { armed = n > 0; at = n; mode = how; error_code = error; count = 0; }
void fault_no_exchange(int yes) { no_exchange = yes; }
int fault_count(void) { return count; }

/* 0: go on; 1: fail with error_code; 2: the middle of a write; 3: lie */
static int fault(int is_write) {
    if (!armed || ++count != at) return 0;
    if (mode == 0 || (mode == 1 && !is_write)) kill(getpid(), SIGKILL);
    if (mode == 1) return 2;
    if (mode == 2) return 1;
    return mode == 3 && is_write ? 3 : 0;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define PLAIN(call) switch (fault(0)) { case 1: errno = error_code; return -1; default: return call; }

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t offset) {
    REAL(pwrite64);
    switch (fault(1)) {
    case 1: errno = error_code; return -1;
    case 2: real(fd, data, n / 2, offset); kill(getpid(), SIGKILL); return -1;
    case 3: return n;
    default: return real(fd, data, n, offset);
    }
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset) { return pwrite64(fd, data, n, offset); }

ssize_t write(int fd, const void *data, size_t n) {
    REAL(write);
    switch (fault(1)) {
    case 1: errno = error_code; return -1;
    case 2: real(fd, data, n / 2); kill(getpid(), SIGKILL); return -1;
    case 3: return n;
    default: return real(fd, data, n);
    }
}

int fsync(int fd) { REAL(fsync); PLAIN(real(fd)) }
int rename(const char *a, const char *b) { REAL(rename); PLAIN(real(a, b)) }
int mkdir(const char *path, mode_t m) { REAL(mkdir); PLAIN(real(path, m)) }
int unlink(const char *path) { REAL(unlink); PLAIN(real(path)) }
int rmdir(const char *path) { REAL(rmdir); PLAIN(real(path)) }
int unlinkat(int fd, const char *path, int flags) { REAL(unlinkat); PLAIN(real(fd, path, flags)) }

int renameat2(int a_fd, const char *a, int b_fd, const char *b, unsigned flags) {
    REAL(renameat2);
    if (no_exchange) { errno = EINVAL; return -1; }
    PLAIN(real(a_fd, a, b_fd, b, flags))
}

int open64(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    int m = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(args, int) : 0;
    va_end(args);
    REAL(open64);
    if (!(flags & (O_WRONLY | O_RDWR | O_CREAT))) return real(path, flags, m);
    PLAIN(real(path, flags, m))
}
