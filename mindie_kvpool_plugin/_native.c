/* The loops that Python is too slow for.  Twins: core/block_keys.py, pools/local_dram.py, host/scheduler_lookup.py.
 *
 * Limited API of CPython 3.10, so that one wheel serves every later version.  That API has no buffer
 * protocol: arrays come as the address of their first element, and the caller keeps them alive,
 * contiguous and large enough.  Long loops run without the GIL. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define GOLDEN_RATIO 0x9E3779B97F4A7C15ULL /* of the host: prefix_cache_plugin.py hash_combine */
#define LONG_LOOP_TOKENS 4096              /* about 5 us: below it, giving up the GIL costs more */

static uint64_t combine(uint64_t seed, uint64_t value)
{
    value += GOLDEN_RATIO;
#ifdef __GNUC__
    __asm__("" : "+r"(value)); /* or the sum is regrouped, and each token waits one addition longer for the last */
#endif
    seed ^= value + ((seed << 6) + (seed >> 2));
    if (__builtin_expect(seed == 0, 0)) /* 0 means "no hash"; a branch keeps this off the chain of dependencies */
        seed = 1;
    return seed;
}

static void hash_blocks(const int64_t *tokens, Py_ssize_t num_blocks, Py_ssize_t block_size, uint64_t previous,
                        uint64_t extra, uint64_t *hashes)
{
    for (Py_ssize_t block = 0; block < num_blocks; block++) {
        uint64_t seed = previous ? combine(0, previous) : 0;
        Py_ssize_t left = block_size;
        for (; left >= 4; left -= 4, tokens += 4) { /* four at a time: a fifth faster than the loop's own steps allow */
            seed = combine(seed, (uint64_t)tokens[0]);
            seed = combine(seed, (uint64_t)tokens[1]);
            seed = combine(seed, (uint64_t)tokens[2]);
            seed = combine(seed, (uint64_t)tokens[3]);
        }
        for (; left > 0; left--)
            seed = combine(seed, (uint64_t)*tokens++);
        hashes[block] = previous = combine(seed, extra);
    }
}

PyDoc_STRVAR(hash_chain_doc, "hash_chain(tokens, num_blocks, block_size, previous, extra, hashes)\n--\n\n"
                             "The host's hash of each block: int64 tokens in, uint64 hashes out, both addresses.");

static PyObject *hash_chain(PyObject *module, PyObject *args)
{
    unsigned long long tokens, previous, extra, hashes;
    Py_ssize_t num_blocks, block_size;
    (void)module;
    if (!PyArg_ParseTuple(args, "KnnKKK", &tokens, &num_blocks, &block_size, &previous, &extra, &hashes))
        return NULL;
    const int64_t *from = (const int64_t *)(uintptr_t)tokens;
    uint64_t *to = (uint64_t *)(uintptr_t)hashes;
    if (num_blocks * block_size < LONG_LOOP_TOKENS) {
        hash_blocks(from, num_blocks, block_size, previous, extra, to);
    } else {
        Py_BEGIN_ALLOW_THREADS
        hash_blocks(from, num_blocks, block_size, previous, extra, to);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

#ifdef __SSE2__
#include <emmintrin.h>
#define STREAMED_BYTES 2048
#define AHEAD_BYTES 2048 /* read ahead of the copy; half of it, or past L2 (NTA), takes up to twice as long */

static void stream16(char *to, const char *from)
{
    _mm_stream_si128((__m128i *)to, _mm_loadu_si128((const __m128i *)from));
}

static void stream64(char *to, const char *from, const char *ahead)
{
    __m128i a = _mm_loadu_si128((const __m128i *)from), b = _mm_loadu_si128((const __m128i *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(from + 32)), d = _mm_loadu_si128((const __m128i *)(from + 48));
    _mm_prefetch(ahead, _MM_HINT_T1);
    _mm_stream_si128((__m128i *)to, a), _mm_stream_si128((__m128i *)(to + 16), b);
    _mm_stream_si128((__m128i *)(to + 32), c), _mm_stream_si128((__m128i *)(to + 48), d);
}

/* Like memcpy, past the caches: the next reader is a transport or a device, and a store that does not
 * first read its line moves a third less.  glibc does so only for single copies of many megabytes.  `next`
 * is where the next copy will read.  The ends are streamed, too: an ordinary store into a line that is
 * shared with a neighbour takes as long as thousands of bytes. */
static void copy(char *to, const char *from, size_t size, const char *next)
{
    size_t head = (size_t)(-(uintptr_t)to & 15);
    if (size < STREAMED_BYTES) {
        memcpy(to, from, size);
        return;
    }
    memcpy(to, from, head);
    to += head, from += head, size -= head;
    for (; (uintptr_t)to & 63; size -= 16, to += 16, from += 16)
        stream16(to, from);
    for (; size >= AHEAD_BYTES + 64; size -= 64, to += 64, from += 64)
        stream64(to, from, from + AHEAD_BYTES);
    for (; size >= 64; size -= 64, to += 64, from += 64, next += 64)
        stream64(to, from, next);
    for (; size >= 16; size -= 16, to += 16, from += 16)
        stream16(to, from);
    memcpy(to, from, size);
}
#define copies_done() _mm_sfence()
#else
static void copy(char *to, const char *from, size_t size, const char *next)
{
    (void)next;
    memcpy(to, from, size);
}
#define copies_done() ((void)0)
#endif

PyDoc_STRVAR(copy_blocks_doc,
             "copy_blocks(values, addresses, sizes, num_blocks, num_segments, is_put)\n--\n\n"
             "Copy each block's segments into its value, one behind the other, or back out of it.\n\n"
             "All are addresses of int64 arrays: values [blocks], addresses [blocks][segments], sizes [segments].");

static PyObject *copy_blocks(PyObject *module, PyObject *args)
{
    unsigned long long values, addresses, sizes;
    Py_ssize_t num_blocks, num_segments;
    int is_put;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKKnnp", &values, &addresses, &sizes, &num_blocks, &num_segments, &is_put))
        return NULL;
    const int64_t *value = (const int64_t *)(uintptr_t)values;
    const int64_t *address = (const int64_t *)(uintptr_t)addresses;
    const int64_t *size = (const int64_t *)(uintptr_t)sizes;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t block = 0; block < num_blocks; block++) {
        char *at = (char *)(uintptr_t)value[block];
        for (Py_ssize_t segment = 0; segment < num_segments; segment++) {
            char *device = (char *)(uintptr_t)*address++, *behind = at + size[segment];
            int is_last = block + 1 == num_blocks && segment + 1 == num_segments;
            if (is_put)
                copy(at, device, (size_t)size[segment], is_last ? device : (char *)(uintptr_t)*address);
            else
                copy(device, at, (size_t)size[segment], behind);
            at = behind;
        }
    }
    copies_done();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyDoc_STRVAR(launch_copies_doc,
             "launch_copies(function, stream, kind, values, addresses, sizes, num_blocks, num_segments, is_put)\n--\n\n"
             "What copy_blocks copies, by a device runtime's asynchronous copy: its code for the first that it refused, or 0.\n\n"
             "function(to, room, from, size, kind, stream) and stream are addresses.");

typedef int (*launch_copy)(void *to, size_t room, const void *from, size_t size, int kind, void *stream);

static PyObject *launch_copies(PyObject *module, PyObject *args)
{
    unsigned long long function, stream, values, addresses, sizes;
    Py_ssize_t num_blocks, num_segments;
    int kind, is_put, code = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKiKKKnnp", &function, &stream, &kind, &values, &addresses, &sizes, &num_blocks,
                          &num_segments, &is_put))
        return NULL;
    launch_copy launch = (launch_copy)(uintptr_t)function;
    const int64_t *value = (const int64_t *)(uintptr_t)values;
    const int64_t *address = (const int64_t *)(uintptr_t)addresses;
    const int64_t *size = (const int64_t *)(uintptr_t)sizes;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t block = 0; block < num_blocks && code == 0; block++) {
        char *at = (char *)(uintptr_t)value[block];
        for (Py_ssize_t segment = 0; segment < num_segments && code == 0; segment++) {
            char *device = (char *)(uintptr_t)*address++;
            size_t bytes = (size_t)size[segment];
            code = launch(is_put ? at : device, bytes, is_put ? device : at, bytes, kind, (void *)(uintptr_t)stream);
            at += bytes;
        }
    }
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(code);
}

#define HASH_CAPACITY 32 /* 64 bits have 20 digits */

/* The digits before the first '_' of a host key that ends in `_<rank><suffix>`; 0 when it is no such key. */
static Py_ssize_t hash_length(const char *key, Py_ssize_t length, const char *suffix, Py_ssize_t suffix_length)
{
    Py_ssize_t hash = 0, at;
    while (hash < length && key[hash] != '_')
        hash++;
    at = hash + 1;
    while (at < length && key[at] != '_')
        at++;
    if (length - at != suffix_length || memcmp(key + at, suffix, (size_t)suffix_length) != 0)
        return 0;
    return hash > HASH_CAPACITY || (hash == 1 && key[0] == '0') ? 0 : hash;
}

/* Whether the key at an index is for the same hash as `key`; -1 on error. */
static int is_same_hash(PyObject *keys, Py_ssize_t index, const char *key, Py_ssize_t hash, const char *suffix,
                        Py_ssize_t suffix_length)
{
    Py_ssize_t length, at = hash + 1;
    const char *other = PyUnicode_AsUTF8AndSize(PyList_GetItem(keys, index), &length);
    if (!other)
        return -1;
    if (length <= hash || memcmp(other, key, (size_t)hash + 1) != 0)
        return 0;
    while (at < length && other[at] != '_')
        at++;
    return length - at == suffix_length && memcmp(other + at, suffix, (size_t)suffix_length) == 0;
}

PyDoc_STRVAR(block_names_doc,
             "block_names(keys, first, limit, width, prefix, suffix)\n--\n\n"
             "Runs of host keys `<hash>_<rank><suffix>` with the same hash, from index `first`, at most `limit`.\n\n"
             "A run has `width` keys if its last one is where it should be, else as many as follow each other.\n"
             "Returns (`prefix` + hash of each run, index behind each run); ends before a key of another form.");

static PyObject *block_names(PyObject *module, PyObject *args)
{
    PyObject *keys, *names = NULL, *ends = NULL, *item = NULL;
    Py_ssize_t first, limit, width, count, prefix_length, suffix_length;
    const char *prefix, *suffix;
    char *name = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "Onnns#s#", &keys, &first, &limit, &width, &prefix, &prefix_length, &suffix,
                          &suffix_length))
        return NULL;
    if (!PyList_Check(keys)) {
        PyErr_SetString(PyExc_TypeError, "keys must be a list");
        return NULL;
    }
    names = PyList_New(0);
    ends = PyList_New(0);
    name = PyMem_Malloc((size_t)prefix_length + HASH_CAPACITY);
    if (!names || !ends || !name)
        goto failed;
    memcpy(name, prefix, (size_t)prefix_length);
    count = PyList_Size(keys);
    while (first < count && PyList_Size(names) < limit) {
        Py_ssize_t length, hash;
        const char *key = PyUnicode_AsUTF8AndSize(PyList_GetItem(keys, first), &length);
        if (!key)
            goto failed;
        hash = hash_length(key, length, suffix, suffix_length);
        if (hash == 0)
            break;
        memcpy(name + prefix_length, key, (size_t)hash);
        int is_same = width > 1 && first + width <= count
                          ? is_same_hash(keys, first + width - 1, key, hash, suffix, suffix_length)
                          : 0;
        first += is_same > 0 ? width : 1;
        if (is_same == 0)
            while (first < count && (is_same = is_same_hash(keys, first, key, hash, suffix, suffix_length)) > 0)
                first++;
        if (is_same < 0)
            goto failed;
        item = PyUnicode_FromStringAndSize(name, prefix_length + hash);
        if (!item || PyList_Append(names, item) < 0)
            goto failed;
        Py_DECREF(item);
        item = PyLong_FromSsize_t(first);
        if (!item || PyList_Append(ends, item) < 0)
            goto failed;
        Py_DECREF(item);
        item = NULL;
    }
    PyMem_Free(name);
    item = PyTuple_Pack(2, names, ends);
    Py_DECREF(names);
    Py_DECREF(ends);
    return item;
failed:
    PyMem_Free(name);
    Py_XDECREF(item);
    Py_XDECREF(names);
    Py_XDECREF(ends);
    return NULL;
}

static PyMethodDef methods[] = {
    {"hash_chain", hash_chain, METH_VARARGS, hash_chain_doc},
    {"copy_blocks", copy_blocks, METH_VARARGS, copy_blocks_doc},
    {"launch_copies", launch_copies, METH_VARARGS, launch_copies_doc},
    {"block_names", block_names, METH_VARARGS, block_names_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "mindie_kvpool_plugin._native",
    .m_doc = "Hashing, copying and key parsing without Python's overhead.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
