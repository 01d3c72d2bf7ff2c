/* What a thread got of the processor (see timeline/record/thread_time.py), and what time it is. */
#include "recording.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#define PATH "/proc/thread-self/schedstat"
#define UNKNOWN (-1)

static pthread_key_t descriptors; /* of each thread: its open file + 1; UNKNOWN if it has none; 0 before the first look */

static int64_t read_clock(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int64_t now_ns(void) { return read_clock(CLOCK_MONOTONIC); }

static void close_at_end(void *kept) {
    intptr_t descriptor = (intptr_t)kept - 1;
    if (descriptor >= 0) close((int)descriptor);
}

int thread_time_open(void) {
    if (pthread_key_create(&descriptors, close_at_end) == 0) return 0;
    PyErr_SetString(PyExc_ImportError, "no thread-local storage is left");
    return -1;
}

/* A forked child's only thread is another than the one that its file speaks of. */
void thread_time_forget(void) {
    close_at_end(pthread_getspecific(descriptors));
    pthread_setspecific(descriptors, NULL);
}

static int64_t read_waited(intptr_t kept) {
    char text[80], *p = text;
    ssize_t count = pread((int)(kept - 1), text, sizeof text - 1, 0);
    if (count <= 0) return UNKNOWN;
    text[count] = 0;
    while (*p && *p != ' ') p++;
    if (p[0] != ' ' || p[1] < '0' || p[1] > '9') return UNKNOWN;
    return strtoll(p, NULL, 10);
}

void thread_time(int64_t *ran_ns, int64_t *waited_ns) {
    intptr_t kept = (intptr_t)pthread_getspecific(descriptors);
    if (kept == 0) {
        int descriptor = open(PATH, O_RDONLY | O_CLOEXEC);
        kept = descriptor < 0 ? UNKNOWN : (intptr_t)descriptor + 1;
        pthread_setspecific(descriptors, (void *)kept);
    }
    *ran_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
    *waited_ns = kept == UNKNOWN ? UNKNOWN : read_waited(kept);
}
