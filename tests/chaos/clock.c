/* A wall clock that is wrong by what a file says, in whole seconds: preloaded into a server whose clock has to step.

   Owns nothing but the one number, which it reads where the file is mapped: a step is seen by all threads at once and
   costs nothing. Clocks that measure durations stay what they are. A wait until a point of the wall clock is moved to
   the true one; a deadline that is not of this century is one of a monotonic clock, and is left alone. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define THIS_CENTURY 946684800

static const int64_t right = 0;
static const volatile int64_t *ahead = &right;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        ahead = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        next = dlsym(RTLD_NEXT, "clock_gettime");
    int status = next(clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead;
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept)
        *kept = now.tv_sec;
    return now.tv_sec;
}

static struct timespec truly(const struct timespec *until) {
    struct timespec moved = *until;
    if (moved.tv_sec > THIS_CENTURY)
        moved.tv_sec -= *ahead;
    return moved;
}

#define WAITS(name, what)                                                                                              \
    int name(what *waited, const struct timespec *until) {                                                             \
        static int (*next)(what *, const struct timespec *);                                                           \
        if (!next)                                                                                                     \
            next = dlsym(RTLD_NEXT, #name);                                                                            \
        struct timespec moved = truly(until);                                                                          \
        return next(waited, &moved);                                                                                   \
    }

WAITS(sem_timedwait, sem_t)
WAITS(pthread_mutex_timedlock, pthread_mutex_t)
WAITS(pthread_rwlock_timedrdlock, pthread_rwlock_t)
WAITS(pthread_rwlock_timedwrlock, pthread_rwlock_t)

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!next)
        next = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec moved = truly(until);
    return next(cond, mutex, &moved);
}

int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    if (!next)
        next = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    struct timespec moved = truly(until);
    return next(cond, mutex, clock, &moved);
}
