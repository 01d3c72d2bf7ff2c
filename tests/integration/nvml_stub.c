/* A stand-in for the NVIDIA management library: one device whose readings come from a file of lines `key=value`.
 *
 * NVML_STUB names the file.  A key that is not there is a reading that the device does not support; `all=15` answers every
 * question with error 15, and `KEY.error=4` one of them.  Handle 1 is the device, handle 2 a slice of it, which `mig=1` gives out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
struct utilisation { unsigned int gpu, memory; };
struct memory { unsigned long long total, free, used; };

static int reading(const char *key, unsigned long long *value)
{
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[128];
    int found = NOT_SUPPORTED;
    char failing[64];
    snprintf(failing, sizeof failing, "%s.error=", key);
    while (file && fgets(line, sizeof line, file)) {
        size_t length = strlen(key);
        const char *all = !strncmp(line, "all=", 4) ? line + 4 : !strncmp(line, failing, strlen(failing)) ? line + strlen(failing) : NULL;
        if (all) {
            found = atoi(all);
            break;
        }
        if (!strncmp(line, key, length) && line[length] == '=') {
            *value = strtoull(line + length + 1, NULL, 10);
            found = SUCCESS;
        }
    }
    if (file) fclose(file);
    return found;
}

static int small(const char *key, unsigned int *value)
{
    unsigned long long wide = 0;
    int status = reading(key, &wide);
    *value = (unsigned int)wide;
    return status;
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned int flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int status) { (void)status; return "stub"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
    unsigned long long mig = 0;
    *device = reading("mig", &mig) == SUCCESS && mig ? (void *)2 : (void *)1;
    return index == 0 ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetUtilizationRates(void *device, struct utilisation *rates)
{
    rates->memory = 0;
    small("memory_utilisation", &rates->memory);
    return device == (void *)2 ? NOT_SUPPORTED : small("utilisation", &rates->gpu);
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) { (void)device; return reading("memory", &memory->used); }
int nvmlDeviceGetPowerUsage(void *device, unsigned int *power) { (void)device; return small("power", power); }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned int *clock) { (void)device; return small(kind == 2 ? "memory_clock" : "clock", clock); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *degrees) { (void)device; (void)sensor; return small("temperature", degrees); }
int nvmlDeviceGetTemperatureV(void *device, unsigned int *reading_of) { (void)device; return small("temperature", reading_of + 2); }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) { (void)device; return reading("reasons", reasons); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) { (void)device; return reading("reasons", reasons); }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *limit) { (void)device; return small("power_limit", limit); }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy) { (void)device; return reading("energy", energy); }
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count)
{
    (void)device; (void)counter;
    return reading(type ? "uncorrected" : "corrected", count);
}
int nvmlDeviceGetPcieReplayCounter(void *device, unsigned int *count) { (void)device; return small("replays", count); }
int nvmlDeviceGetPcieThroughput(void *device, int counter, unsigned int *value)
{
    (void)device;
    return small(counter ? "pcie_received_now" : "pcie_sent_now", value);
}

/* Values by number. */
struct field { unsigned int id, scope; long long timestamp, latency; int type, status; union { double d; unsigned long long ull; } value; };
int nvmlDeviceGetFieldValues(void *device, int count, struct field *values)
{
    (void)device;
    for (int i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof key, "field%u", values[i].id);
        values[i].type = 3;
        values[i].status = reading(key, &values[i].value.ull);
    }
    return SUCCESS;
}

/* What the multiprocessors do: the difference between two samples, which hold the time since `gpm_time` began. */
struct sample { unsigned long long time; };
struct metric { unsigned int id; int status; double value; char *names[3]; };
struct metrics { unsigned int version, count; struct sample *first, *second; struct metric metrics[1]; };
struct support { unsigned int version, supported; };
int nvmlGpmQueryDeviceSupport(void *device, struct support *support) { (void)device; return small("gpm", &support->supported); }
int nvmlGpmSampleAlloc(struct sample **sample) { *sample = calloc(1, sizeof **sample); return SUCCESS; }
int nvmlGpmSampleFree(struct sample *sample) { free(sample); return SUCCESS; }
int nvmlGpmSampleGet(void *device, struct sample *sample)
{
    return device == (void *)1 ? reading("gpm_time", &sample->time) : NOT_SUPPORTED;
}
int nvmlGpmMigSampleGet(void *device, unsigned int instance, struct sample *sample)
{
    return device == (void *)1 && instance == 7 ? reading("gpm_time", &sample->time) : NOT_SUPPORTED;
}
int nvmlGpmMetricsGet(struct metrics *asked)
{
    if (asked->version != 1 || asked->first->time >= asked->second->time) return 2;
    for (unsigned int i = 0; i < asked->count; i++) {
        char key[32];
        unsigned long long value = 0;
        snprintf(key, sizeof key, "gpm%u", asked->metrics[i].id);
        asked->metrics[i].status = reading(key, &value);
        asked->metrics[i].value = (double)value;
    }
    return SUCCESS;
}

/* Slices. */
int nvmlDeviceIsMigDeviceHandle(void *device, unsigned int *is_slice) { *is_slice = device == (void *)2; return SUCCESS; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **device) { (void)slice; *device = (void *)1; return SUCCESS; }
int nvmlDeviceGetGpuInstanceId(void *slice, unsigned int *instance) { (void)slice; *instance = 7; return SUCCESS; }

/* Errors that the driver reports: `xid` once. */
struct event { void *device; unsigned long long type, data; unsigned int instance, compute; };
static int told;
int nvmlEventSetCreate(void **set) { *set = (void *)3; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) { (void)set; return device == (void *)1 && types == 8 ? SUCCESS : 2; }
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned int timeout)
{
    (void)set; (void)timeout;
    if (told || reading("xid", &event->data) != SUCCESS) return 10;
    told = 1;
    return SUCCESS;
}
