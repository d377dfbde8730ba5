/* A pretended libnvidia-ml.so.1: it answers from the file that NVML_ANSWERS names, read again at each call.

   The first line has the result of nvmlInit, 0 for success. Each other line is a device, with tabs between its fields:
   result of every call (0), name, UUID, bytes in all, bytes in use, percent, degrees, milliwatts, process ids ("1,2" or
   "-"). A number below 0 is not supported by the device. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, UNKNOWN = 999 };

typedef struct {
    int result;
    char name[96], uuid[96], pids[4096];
    long long total, used;
    int percent, celsius, milliwatts;
} Device;

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { unsigned int pid; unsigned long long used; unsigned int instance, compute; } Process;

/* Reads the device with this index, or counts the devices for index -1; *init is the result of nvmlInit. */
static int read_answers(int index, Device *device, int *init) {
    const char *path = getenv("NVML_ANSWERS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[8192];
    int count = 0;
    *init = UNKNOWN;
    if (!file) return -1;
    if (fgets(line, sizeof line, file)) *init = atoi(line);
    while (fgets(line, sizeof line, file)) {
        if (count++ != index) continue;
        int fields = sscanf(line, "%d\t%95[^\t]\t%95[^\t]\t%lld\t%lld\t%d\t%d\t%d\t%4095s", &device->result, device->name,
                            device->uuid, &device->total, &device->used, &device->percent, &device->celsius,
                            &device->milliwatts, device->pids);
        fclose(file);
        return fields == 9 ? index : -1;
    }
    fclose(file);
    return index < 0 ? count : -1;
}

static int asked(void *handle, Device *device) {
    int init, index = (int)(long)handle - 1;
    if (read_answers(index, device, &init) != index || index < 0) return INVALID_ARGUMENT;
    return device->result;
}

int nvmlInitWithFlags(unsigned int flags) {
    Device none;
    int init;
    (void)flags;
    read_answers(-1, &none, &init);
    return init;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int result) {
    switch (result) {
        case 4: return "Insufficient Permissions";
        case 15: return "GPU is lost";
        case 18: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    Device none;
    int init, found = read_answers(-1, &none, &init);
    if (found < 0) return UNKNOWN;
    *count = (unsigned int)found;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    Device device;
    *handle = (void *)(long)(index + 1);
    return asked(*handle, &device);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    Device device;
    unsigned int count, index;
    if (nvmlDeviceGetCount_v2(&count)) return UNKNOWN;
    for (index = 0; index < count; index++) {
        int result = nvmlDeviceGetHandleByIndex_v2(index, handle);
        asked(*handle, &device);
        if (!strcmp(device.uuid, uuid)) return result;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned int length) {
    Device device;
    int result = asked(handle, &device);
    if (!result) snprintf(name, length, "%s", device.name);
    return result;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length) {
    Device device;
    int result = asked(handle, &device);
    if (!result) snprintf(uuid, length, "%s", device.uuid);
    return result;
}

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    Device device;
    int result = asked(handle, &device);
    if (result) return result;
    if (device.total < 0) return NOT_SUPPORTED;
    *memory = (Memory){device.total, device.total - device.used, device.used};
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, Utilization *utilization) {
    Device device;
    int result = asked(handle, &device);
    if (result) return result;
    if (device.percent < 0) return NOT_SUPPORTED;
    *utilization = (Utilization){device.percent, 0};
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned int *celsius) {
    Device device;
    int result = asked(handle, &device);
    (void)sensor;
    if (result) return result;
    if (device.celsius < 0) return NOT_SUPPORTED;
    *celsius = device.celsius;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts) {
    Device device;
    int result = asked(handle, &device);
    if (result) return result;
    if (device.milliwatts < 0) return NOT_SUPPORTED;
    *milliwatts = device.milliwatts;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *room, Process *processes) {
    Device device;
    unsigned int count = 0;
    int result = asked(handle, &device);
    if (result) return result;
    if (device.pids[0] == '-') {
        *room = 0;
        return SUCCESS;
    }
    for (char *at = device.pids; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (processes && count < *room) processes[count] = (Process){(unsigned int)atoi(at), 0, 0, 0};
        count++;
    }
    result = processes && count <= *room ? SUCCESS : INSUFFICIENT_SIZE;
    *room = count;
    return result;
}
