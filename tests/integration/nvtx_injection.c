/* A consumer of the NVTX ABI, as small as one can be: notes every range of every domain in a file.
 *
 * Loaded through NVTX_INJECTION64_PATH by whatever library speaks NVTX.  Like Nsight Systems 2022 it has no extension
 * interface, so a client that asks through that whether a domain is enabled gets no answer.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MODULE_CORE2 = 5, CALLBACKS = 1 };
enum { RANGE_START = 2, RANGE_END = 3, RANGE_PUSH = 4, RANGE_POP = 5, REGISTER_STRING = 10, DOMAIN_CREATE = 12 };

struct attributes { /* nvtxEventAttributes_t */
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    union {
        uint64_t u64;
        int64_t i64;
    } payload;
    int32_t message_type;
    const char *message;
};

struct callbacks { /* NvtxExportTableCallbacks */
    size_t size;
    int (*get_module_function_table)(uint32_t module, void ***table, unsigned *size);
};

static FILE *out;
static pid_t owner;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t ranges;

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* A file a process, since one that was forked has threads of the same name as its parent. */
static void open_log(void)
{
    char path[4096];
    owner = getpid();
    snprintf(path, sizeof path, "%s.%d", getenv("NVTX_TEST_LOG"), (int)owner);
    out = fopen(path, "w");
}

static void note(const char *what, const char *domain, const char *name, long long payload, uint64_t id)
{
    pthread_mutex_lock(&lock);
    if (owner != getpid())
        open_log();
    fprintf(out, "%s\t%s\t%s\t%lld\t%llu\t%lx\t%lld\n", what, domain, name, payload, (unsigned long long)id,
            (unsigned long)pthread_self(), now());
    fflush(out);
    pthread_mutex_unlock(&lock);
}

/* -1 for none */
static long long payload_of(const struct attributes *a) { return a->payload_type ? a->payload.i64 : -1; }

static int range_push(const char *domain, const struct attributes *a)
{
    note("push", domain, a->message, payload_of(a), 0);
    return 0;
}

static int range_pop(const char *domain)
{
    note("pop", domain, "", 0, 0);
    return 0;
}

static uint64_t range_start(const char *domain, const struct attributes *a)
{
    uint64_t id = __sync_add_and_fetch(&ranges, 1);
    note("start", domain, a->message, payload_of(a), id);
    return id;
}

static void range_end(const char *domain, uint64_t id)
{
    note("end", domain, "", 0, id);
}

/* Handles of domains and strings are the texts themselves. */
static const char *domain_create(const char *name)
{
    note("domain", name, "", -1, 0);
    return strdup(name);
}
static const char *register_string(const char *domain, const char *text) { (void)domain; return strdup(text); }

int InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t))
{
    const struct callbacks *callbacks = get_export_table(CALLBACKS);
    void **table;
    unsigned size;
    open_log();
    if (!out || !callbacks || !callbacks->get_module_function_table(MODULE_CORE2, &table, &size))
        return 0;
    *(void **)table[RANGE_START] = (void *)range_start;
    *(void **)table[RANGE_END] = (void *)range_end;
    *(void **)table[RANGE_PUSH] = (void *)range_push;
    *(void **)table[RANGE_POP] = (void *)range_pop;
    *(void **)table[REGISTER_STRING] = (void *)register_string;
    *(void **)table[DOMAIN_CREATE] = (void *)domain_create;
    return 1;
}
