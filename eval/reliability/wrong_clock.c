/* Another wall clock for one process and its children, by LD_PRELOAD: true time + the seconds in a file.
 *
 *     gcc -shared -fPIC -O2 -o wrong_clock.so wrong_clock.c -ldl
 *     LD_PRELOAD=./wrong_clock.so WRONG_CLOCK=shift python ...      # shift: one double, which may change
 *
 * All other clocks are left alone. Waits until a time of the wall clock are set right, as the kernel does not
 * know the shift. (libfaketime does more, and libzmq does not end under it where it leaves CLOCK_MONOTONIC.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile double *shift;

__attribute__((constructor)) static void open_shift(void) {
    const char *path = getenv("WRONG_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) shift = page;
    if (fd >= 0) close(fd);
}

static struct timespec moved(struct timespec t, double seconds) {
    double whole = floor(seconds);
    t.tv_sec += (time_t)whole;
    t.tv_nsec += (long)((seconds - whole) * 1e9);
    if (t.tv_nsec >= 1000000000L) t.tv_sec++, t.tv_nsec -= 1000000000L;
    return t;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, t);
    if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *t = moved(*t, *shift);
    return failed;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    t->tv_sec = now.tv_sec, t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}

/* The end of a wait as the kernel counts it; one by CLOCK_MONOTONIC, far from 1970, stays as it is. */
static struct timespec end_of(const struct timespec *t) {
    struct timespec up;
    clock_gettime(CLOCK_MONOTONIC, &up);
    int by_uptime = labs(t->tv_sec - up.tv_sec) < 10 * 365 * 86400L;
    return shift && !by_uptime ? moved(*t, -*shift) : *t;
}

int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec end = end_of(t);
    return real(c, m, &end);
}

int sem_timedwait(sem_t *s, const struct timespec *t) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec end = end_of(t);
    return real(s, &end);
}
