/* A stand-in for the NVIDIA management library: one device whose readings come from a file of lines `key=value`.
 *
 * NVML_STUB names the file.  A key that is not there is a reading that the device does not support.
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
    while (file && fgets(line, sizeof line, file)) {
        size_t length = strlen(key);
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
    *device = (void *)1;
    return index == 0 ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetUtilizationRates(void *device, struct utilisation *rates)
{
    (void)device;
    rates->memory = 0;
    return small("utilisation", &rates->gpu);
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) { (void)device; return reading("memory", &memory->used); }
int nvmlDeviceGetPowerUsage(void *device, unsigned int *power) { (void)device; return small("power", power); }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned int *clock) { (void)device; (void)kind; return small("clock", clock); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *degrees) { (void)device; (void)sensor; return small("temperature", degrees); }
int nvmlDeviceGetTemperatureV(void *device, unsigned int *reading_of) { (void)device; return small("temperature", reading_of + 2); }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) { (void)device; return reading("reasons", reasons); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) { (void)device; return reading("reasons", reasons); }
