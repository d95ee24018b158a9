// CUDA has these in another package of headers.
#pragma once
#include <cuda_runtime_api.h>
extern "C" {
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);
}
