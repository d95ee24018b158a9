// Of what CUDA has here, cuda_on_cpu.h has what is needed.
