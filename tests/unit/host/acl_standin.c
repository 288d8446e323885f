/* A CANN runtime for the tests of copies by address: "device" memory is ordinary memory, and what an asynchronous copy
 * was told to do it does when its stream is waited for, so that a missing wait shows. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_SUPPORTED = 207000, NO_MEMORY = 207001, NO_CONTEXT = 107002, OTHER_DEVICE = 107003, MAX_PENDING = 1 << 16 };

typedef struct { uint32_t id, type; } location;
typedef struct { location to, from; uint8_t reserved[16]; } attribute;
static struct { void *to; const void *from; size_t size; } pending[MAX_PENDING];

int batch_supported = 1, batch_calls, async_calls, refuse_at = -1, waits, num_pending, wrong_attributes;
size_t host_bytes, host_limit = (size_t)1 << 40;
static _Thread_local int device = -1;
static int stream_of_device = -1;

int aclrtGetDevice(int *out) { *out = device; return device < 0 ? NO_CONTEXT : 0; }
int aclrtSetDevice(int id) { device = id; return 0; }
int aclrtCreateStream(void **out) { *out = &stream_of_device; stream_of_device = device; return device < 0 ? NO_CONTEXT : 0; }

int aclrtMallocHost(void **out, size_t size)
{
    if (host_bytes + size > host_limit)
        return NO_MEMORY;
    host_bytes += size;
    return posix_memalign(out, 4096, size);
}

int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, void *stream)
{
    (void)kind, (void)stream;
    if (device != stream_of_device)
        return OTHER_DEVICE;
    if (async_calls++ == refuse_at || room < size)
        return NO_MEMORY;
    pending[num_pending].to = to, pending[num_pending].from = from, pending[num_pending++].size = size;
    return 0;
}

int aclrtSynchronizeStream(void *stream)
{
    (void)stream;
    waits++;
    for (int i = 0; i < num_pending; i++)
        memcpy(pending[i].to, pending[i].from, pending[i].size);
    num_pending = 0;
    return 0;
}

int aclrtMemcpyBatch(void **to, size_t *rooms, void **from, size_t *sizes, size_t count, attribute *attributes,
                     size_t *indexes, size_t num_attributes, size_t *failed)
{
    *failed = (size_t)-1;
    batch_calls++;
    if (!batch_supported)
        return NOT_SUPPORTED;
    for (size_t i = 0; i < count; i++) {
        location *to_at = &attributes[i].to, *from_at = &attributes[i].from;
        wrong_attributes += indexes[i] != i || num_attributes != count || to_at->type == from_at->type;
        wrong_attributes += (to_at->type ? to_at : from_at)->id != (uint32_t)device || rooms[i] < sizes[i];
        memcpy(to[i], from[i], sizes[i]);
    }
    return 0;
}
