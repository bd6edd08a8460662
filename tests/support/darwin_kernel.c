/*
 * The memory calls of Darwin under their own names, writing exactly the bytes that each release's
 * kernel writes. Tests compile this file, load it, and steer it with the stand_in_* functions.
 *
 * Layouts and behaviour: xnu-8796 (macOS 13), 10063 (14), 11215/11417 (15) and the host.c of
 * macOS 26; osfmk/mach/vm_statistics.h, osfmk/mach/task_info.h, bsd/sys/resource.h,
 * bsd/sys/sysctl.h. Structures are put together byte by byte, so that no packing rule of this
 * compiler and no declaration shared with the code under test can hide a wrong offset.
 */

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define KERN_SUCCESS 0
#define KERN_INVALID_ARGUMENT 4
#define KERN_FAILURE 5
#define KERN_INVALID_HOST 22
#define MACH_SEND_INVALID_DEST 0x10000003

#define HOST_PORT 0x1103
#define TASK_PORT 0x203

#define MAX_WORDS 1024

enum { TASK_BYTES = 512, RUSAGE_BYTES = 464, SYSCTLS = 16 };

typedef uint64_t vm_size_t;

uint32_t mach_task_self_ = TASK_PORT;
vm_size_t vm_kernel_page_size = 16384;

/* What the kernel of this release knows. */
static uint32_t vm_words, task_words;
static int rusage_flavors;

/* What it holds. */
static uint8_t vm_bytes[4 * MAX_WORDS];
static uint8_t task_bytes[TASK_BYTES];
static uint8_t rusage_bytes[RUSAGE_BYTES];
static uint64_t ticking_faults;
static size_t relief;

struct setting {
    char name[64];
    uint8_t value[64];
    size_t size;
    int error;
};
static struct setting settings[SYSCTLS];
static int setting_count;

/* How it misbehaves. */
static int host_result, task_result, rusage_error;
static uint32_t vm_words_returned, task_words_returned; /* 0: the true count */
static size_t scribble; /* bytes written past the structure, as by a kernel that ignores sizes */

/* The copy for third-party processes (host.c, rate_limit_host_statistics). */
static uint64_t clock_ns, window_start_ns;
static int window_open, window_calls, window_budget;
static uint8_t cached[4 * MAX_WORDS];

/* What was asked. */
static int host_self_calls, host_calls, fresh_calls, task_calls, rusage_calls, suspicious;
static int relief_calls, relief_zone_given;
static size_t relief_goal;
static uint32_t host_count_asked, task_count_asked;

static const uint32_t VM_REVISIONS[] = {62, 40, 38, 24};
static const uint32_t TASK_REVISIONS[] = {93, 89, 87, 86, 84, 42, 38, 36};
static const size_t RUSAGE_SIZES[] = {96, 144, 160, 232, 296, 304, 464};

static uint32_t largest(const uint32_t *revisions, size_t n, uint32_t asked, uint32_t known)
{
    for (size_t i = 0; i < n; i++)
        if (revisions[i] <= asked && revisions[i] <= known)
            return revisions[i];
    return 0;
}

static void overrun(uint8_t *end)
{
    memset(end, 0xEE, scribble);
}

uint32_t mach_host_self(void)
{
    host_self_calls++;
    return HOST_PORT;
}

int host_statistics64(uint32_t host, int flavor, int32_t *info, uint32_t *count)
{
    host_calls++;
    host_count_asked = *count;
    if (host != HOST_PORT)
        return KERN_INVALID_HOST;
    if (host_result != KERN_SUCCESS)
        return host_result;
    if (flavor != 4)
        return KERN_INVALID_ARGUMENT;
    if (*count > vm_words)
        suspicious++;
    uint32_t words = largest(VM_REVISIONS, 4, *count, vm_words);
    if (words == 0)
        return KERN_FAILURE;

    int inside = window_open && clock_ns - window_start_ns < 1000000000ull;
    if (!inside) {
        window_open = 1;
        window_start_ns = clock_ns;
        window_calls = 0;
    }
    if (window_calls++ < window_budget) {
        fresh_calls++;
        ticking_faults++;
        memcpy(vm_bytes + 48, &ticking_faults, 8);
        memcpy(cached, vm_bytes, sizeof cached);
    }
    memcpy(info, cached, 4 * (size_t)words);
    overrun((uint8_t *)info + 4 * (size_t)words);
    *count = vm_words_returned ? vm_words_returned : words;
    return KERN_SUCCESS;
}

int task_info(uint32_t task, int flavor, int32_t *info, uint32_t *count)
{
    task_calls++;
    task_count_asked = *count;
    if (task != TASK_PORT)
        return MACH_SEND_INVALID_DEST;
    if (task_result != KERN_SUCCESS)
        return task_result;
    if (flavor != 22)
        return KERN_INVALID_ARGUMENT;
    if (*count > task_words)
        suspicious++;
    uint32_t words = largest(TASK_REVISIONS, 8, *count, task_words);
    if (words == 0)
        return KERN_INVALID_ARGUMENT;
    memcpy(info, task_bytes, 4 * (size_t)words);
    overrun((uint8_t *)info + 4 * (size_t)words);
    *count = task_words_returned ? task_words_returned : words;
    return KERN_SUCCESS;
}

int proc_pid_rusage(int pid, int flavor, void *buffer)
{
    rusage_calls++;
    if (rusage_error) {
        errno = rusage_error;
        return -1;
    }
    if (pid != (int)getpid()) {
        errno = ESRCH;
        return -1;
    }
    if (flavor < 0 || flavor > rusage_flavors) {
        errno = EINVAL;
        return -1;
    }
    memcpy(buffer, rusage_bytes, RUSAGE_SIZES[flavor]);
    overrun((uint8_t *)buffer + RUSAGE_SIZES[flavor]);
    return 0;
}

int sysctlbyname(const char *name, void *old, size_t *old_size, void *new_value, size_t new_size)
{
    if (new_value != NULL || new_size != 0) {
        suspicious++;
        errno = EPERM;
        return -1;
    }
    for (int i = 0; i < setting_count; i++) {
        struct setting *found = &settings[i];
        if (strcmp(found->name, name) != 0)
            continue;
        if (found->error) {
            errno = found->error;
            return -1;
        }
        if (*old_size < found->size) {
            errno = ENOMEM;
            return -1;
        }
        memcpy(old, found->value, found->size);
        *old_size = found->size;
        return 0;
    }
    errno = ENOENT;
    return -1;
}

size_t malloc_zone_pressure_relief(void *zone, size_t goal)
{
    relief_calls++;
    relief_zone_given = zone != NULL;
    relief_goal = goal;
    return relief;
}

/* ---- steering ---------------------------------------------------------------------------- */

void stand_in_reset(uint32_t known_vm_words, uint32_t known_task_words, int known_rusage_flavors)
{
    vm_words = known_vm_words;
    task_words = known_task_words;
    rusage_flavors = known_rusage_flavors;
    memset(vm_bytes, 0, sizeof vm_bytes);
    memset(task_bytes, 0, sizeof task_bytes);
    memset(rusage_bytes, 0, sizeof rusage_bytes);
    memset(settings, 0, sizeof settings);
    memset(cached, 0, sizeof cached);
    setting_count = 0;
    vm_kernel_page_size = 16384;
    host_result = task_result = rusage_error = 0;
    vm_words_returned = task_words_returned = 0;
    scribble = 0;
    relief = 0;
    ticking_faults = 0;
    clock_ns = window_start_ns = 0;
    window_open = window_calls = 0;
    window_budget = 10;
    host_self_calls = host_calls = fresh_calls = task_calls = rusage_calls = suspicious = 0;
    relief_calls = relief_zone_given = 0;
    relief_goal = 1;
    host_count_asked = task_count_asked = 0;
}

void stand_in_vm(size_t offset, const uint8_t *bytes, size_t size)
{
    memcpy(vm_bytes + offset, bytes, size);
}

void stand_in_task(size_t offset, const uint8_t *bytes, size_t size)
{
    memcpy(task_bytes + offset, bytes, size);
}

void stand_in_rusage(size_t offset, const uint8_t *bytes, size_t size)
{
    memcpy(rusage_bytes + offset, bytes, size);
}

void stand_in_sysctl(const char *name, const uint8_t *bytes, size_t size, int error)
{
    int i = 0;
    while (i < setting_count && strcmp(settings[i].name, name) != 0)
        i++;
    if (i == setting_count)
        setting_count++;
    strncpy(settings[i].name, name, sizeof settings[i].name - 1);
    memcpy(settings[i].value, bytes, size);
    settings[i].size = size;
    settings[i].error = error;
}

void stand_in_page_size(uint64_t size) { vm_kernel_page_size = size; }
void stand_in_relief(size_t bytes) { relief = bytes; }
void stand_in_fail_host(int result) { host_result = result; }
void stand_in_fail_task(int result) { task_result = result; }
void stand_in_fail_rusage(int error) { rusage_error = error; }
void stand_in_return_vm_words(uint32_t words) { vm_words_returned = words; }
void stand_in_return_task_words(uint32_t words) { task_words_returned = words; }
void stand_in_scribble(size_t bytes) { scribble = bytes; }
void stand_in_clock(uint64_t ns) { clock_ns = ns; }
void stand_in_budget(int calls) { window_budget = calls; }

int stand_in_host_self_calls(void) { return host_self_calls; }
int stand_in_host_calls(void) { return host_calls; }
int stand_in_fresh_calls(void) { return fresh_calls; }
int stand_in_task_calls(void) { return task_calls; }
int stand_in_rusage_calls(void) { return rusage_calls; }
int stand_in_suspicious(void) { return suspicious; }
int stand_in_host_count_asked(void) { return (int)host_count_asked; }
int stand_in_task_count_asked(void) { return (int)task_count_asked; }
int stand_in_relief_calls(void) { return relief_calls; }
int stand_in_relief_zone_given(void) { return relief_zone_given; }
size_t stand_in_relief_goal(void) { return relief_goal; }
