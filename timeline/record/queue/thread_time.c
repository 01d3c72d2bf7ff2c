/* What a thread got of the processor (see timeline/record/thread_time.py), and what time it is.
 *
 * A reading in the middle of a training finds nothing of the kernel's code in the caches.  Then opening, formatting and parsing
 * a line of /proc costs 12 us, and a plain system call 3.  So the file is read only if the thread has been off the processor since:
 * who never left it never waited for it.
 */
#include "recording.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define PATH "/proc/thread-self/schedstat"
#define UNKNOWN (-1)

typedef struct {
    int descriptor; /* of PATH; negative if it cannot be read */
    long switches;  /* how often the thread had left the processor at the last look */
    int64_t waited_ns;
} Waiting;

static pthread_key_t waitings; /* a Waiting of each thread; NULL before the first look */

static int64_t read_clock(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int64_t now_ns(void) { return read_clock(CLOCK_MONOTONIC); }

static void close_at_end(void *kept) {
    Waiting *waiting = kept;
    if (waiting && waiting->descriptor >= 0) close(waiting->descriptor);
    free(waiting);
}

int thread_time_open(void) {
    if (pthread_key_create(&waitings, close_at_end) == 0) return 0;
    PyErr_SetString(PyExc_ImportError, "no thread-local storage is left");
    return -1;
}

/* A forked child's only thread is another than the one that its file speaks of. */
void thread_time_forget(void) {
    close_at_end(pthread_getspecific(waitings));
    pthread_setspecific(waitings, NULL);
}

static Waiting *waiting_of_thread(void) {
    Waiting *waiting = pthread_getspecific(waitings);
    if (waiting) return waiting;
    waiting = malloc(sizeof(Waiting));
    if (!waiting) return NULL;
    *waiting = (Waiting){open(PATH, O_RDONLY | O_CLOEXEC), UNKNOWN, UNKNOWN};
    if (pthread_setspecific(waitings, waiting) == 0) return waiting;
    close_at_end(waiting);
    return NULL;
}

static int64_t read_waited(int descriptor) {
    char text[80], *p = text;
    ssize_t count = pread(descriptor, text, sizeof text - 1, 0);
    if (count <= 0) return UNKNOWN;
    text[count] = 0;
    while (*p && *p != ' ') p++;
    if (p[0] != ' ' || p[1] < '0' || p[1] > '9') return UNKNOWN;
    return strtoll(p, NULL, 10);
}

static int64_t thread_waited(void) {
    Waiting *waiting = waiting_of_thread();
    struct rusage usage;
    if (!waiting || waiting->descriptor < 0) return UNKNOWN;
    if (getrusage(RUSAGE_THREAD, &usage) < 0) return read_waited(waiting->descriptor);
    long switches = usage.ru_nvcsw + usage.ru_nivcsw;
    if (switches != waiting->switches) {
        /* Counted before the file is read: whoever is interrupted in between looks once more. */
        waiting->switches = switches;
        waiting->waited_ns = read_waited(waiting->descriptor);
    }
    return waiting->waited_ns;
}

void part_begin(PartTime *part) {
    part->ran_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
    part->waited_ns = thread_waited();
}

PartTime part_end(const PartTime *begun) {
    PartTime now;
    part_begin(&now);
    int is_known = now.waited_ns >= 0 && begun->waited_ns >= 0;
    return (PartTime){now.ran_ns - begun->ran_ns, is_known ? now.waited_ns - begun->waited_ns : UNKNOWN};
}

void step_time_begin(StepTime *step) {
    part_begin(&step->begun);
    step->process_ns = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    step->in_parts = (PartTime){0, 0};
    step->is_begun = 1;
}

void step_time_add(StepTime *step, PartTime part) {
    step->in_parts.ran_ns += part.ran_ns;
    if (part.waited_ns > 0) step->in_parts.waited_ns += part.waited_ns;
}

static int64_t outside(int64_t whole_ns, int64_t in_parts_ns) {
    /* A part that reaches over the end of a step is counted whole where it ends. */
    return whole_ns > in_parts_ns ? whole_ns - in_parts_ns : 0;
}

int step_time_end(StepTime *step, PartTime *other, int64_t *process_ns) {
    if (!step->is_begun) return 0;
    step->is_begun = 0;
    *other = part_end(&step->begun);
    *process_ns = read_clock(CLOCK_PROCESS_CPUTIME_ID) - step->process_ns;
    other->ran_ns = outside(other->ran_ns, step->in_parts.ran_ns);
    if (other->waited_ns >= 0) other->waited_ns = outside(other->waited_ns, step->in_parts.waited_ns);
    return 1;
}
