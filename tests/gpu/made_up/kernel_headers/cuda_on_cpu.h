// CUDA C++ as far as elementwise kernels need it, on one thread of this processor.
#pragma once
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;

template <class To, class From> inline To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// float16: CuPy takes it from <cuda_fp16.h>, which beside this file is empty.
#define __CUDACC_VER_MAJOR__ 12
inline unsigned short __float2half_rn(float v) { return bits_as<unsigned short>((_Float16)v); }
inline float __half2float(unsigned short bits) { return (float)bits_as<_Float16>(bits); }
struct __half_raw { unsigned short x; };
struct half {
    unsigned short x;
    half() = default;
    half(const __half_raw &raw) : x(raw.x) {}
    half(float v) : x(__float2half_rn(v)) {}
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T> && !std::is_same_v<T, float>>>
    half(T v) : x(__float2half_rn((float)v)) {}
    operator float() const { return __half2float(x); }
    operator __half_raw() const { return {x}; }
};
typedef half __half;
inline unsigned short __half_as_ushort(half h) { return h.x; }
inline half __ushort_as_half(unsigned short x) { return __half_raw{x}; }

// bfloat16 rounds to nearest even, as the device does; from <cuda_bf16.h>, which is empty too.
struct __nv_bfloat16_raw { unsigned short x; };
struct __nv_bfloat16 {
    unsigned short x;
    __nv_bfloat16() = default;
    __nv_bfloat16(const __nv_bfloat16_raw &raw) : x(raw.x) {}
    __nv_bfloat16(float v) {
        unsigned bits = bits_as<unsigned>(v);
        x = v != v ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    operator float() const { return bits_as<float>((unsigned)x << 16); }
    operator __nv_bfloat16_raw() const { return {x}; }
};
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.x; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16_raw{x}; }
inline float __bfloat162float(__nv_bfloat16 b) { return b; }
inline __nv_bfloat16 __float2bfloat16(float v) { return v; }
inline int __hisnan(__nv_bfloat16 b) { return (b.x & 0x7fff) > 0x7f80; }
inline int __hisinf(__nv_bfloat16 b) { return (b.x & 0x7fff) == 0x7f80 ? (b.x >> 15 ? -1 : 1) : 0; }

inline float __uint_as_float(unsigned v) { return bits_as<float>(v); }
inline unsigned __float_as_uint(float v) { return bits_as<unsigned>(v); }
inline int __float_as_int(float v) { return bits_as<int>(v); }
inline float __int_as_float(int v) { return bits_as<float>(v); }
inline long long __double_as_longlong(double v) { return bits_as<long long>(v); }
inline double __longlong_as_double(long long v) { return bits_as<double>(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
using std::copysign, std::isfinite, std::isinf, std::isnan, std::signbit;
template <class T> T atomicAdd(T *at, T v) { T old = *at; *at += v; return old; }
template <class T> T atomicCAS(T *at, T expected, T v) { T old = *at; if (old == expected) *at = v; return old; }

namespace made_up {
typedef void *(*reacher)(uintptr_t, int gpu, int writes);
template <class T> using bare = std::remove_const_t<T>;

// A kernel gets device addresses as pointers, or as the first member of CuPy's CArray; each becomes the address of the
// bytes behind it. (CIndexer begins with a size, which is smaller than any address.) False: the device may not touch it.
template <class Declared, class T> bool resolve(T &value, int gpu, reacher reach) {
    if constexpr (std::is_pointer_v<T>) {
        if (value) value = (T)reach((uintptr_t)value, gpu, !std::is_const_v<std::remove_pointer_t<T>>);
        return value;
    } else if constexpr (std::is_class_v<T> && sizeof(T) >= 2 * sizeof(void *)) {
        uintptr_t first;
        memcpy(&first, &value, sizeof first);
        if (first > 1ul << 40) {
            first = (uintptr_t)reach(first, gpu, !std::is_const_v<Declared>);
            memcpy((void *)&value, &first, sizeof first);
            return first;
        }
    }
    return true;
}
template <class F> int everywhere(const unsigned *s, F run) {
    gridDim = {s[0], s[1], s[2]};
    blockDim = {s[3], s[4], s[5]};
    for (blockIdx.z = 0; blockIdx.z < s[2]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < s[1]; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < s[0]; blockIdx.x++)
                for (threadIdx.z = 0; threadIdx.z < s[5]; threadIdx.z++)
                    for (threadIdx.y = 0; threadIdx.y < s[4]; threadIdx.y++)
                        for (threadIdx.x = 0; threadIdx.x < s[3]; threadIdx.x++) run();
    return 0;
}
} // namespace made_up
