// CuPy's module calls functions of C only; the C++ part of CUDA's header needs its compiler's headers, which are large.
#pragma once
#include <cuda_runtime_api.h>
#include <driver_functions.h>
