/* LD_PRELOAD shim: a file system without locks, and one whose reads fail.
 *
 * no_locks(1) makes flock say ENOLCK, as mounts of Lustre and NFS without locks do; num_locks() tells how often it was
 * asked. fail_reads(n, error) makes the next n positioned reads fail with `error`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/file.h>
#include <sys/types.h>
#include <sys/uio.h>

static int without_locks, locks, failing, error_code;

void no_locks(int yes) { without_locks = yes; }
int num_locks(void) { return locks; }
void fail_reads(int n, int error) { failing = n; error_code = error; }

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

int flock(int fd, int operation) {
    REAL(flock);
    locks++;
    if (without_locks) { errno = ENOLCK; return -1; }
    return real(fd, operation);
}

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    REAL(preadv64v2);
    if (failing > 0) { failing--; errno = error_code; return -1; }
    return real(fd, parts, count, offset, flags);
}
