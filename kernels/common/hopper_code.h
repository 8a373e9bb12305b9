// Code for compute capability 90a: what is compiled for no other GPU, and what is compiled for all but this one.
#pragma once

namespace oscar::kernels {

// The host's view. True if the build has code for 90a, which a Hopper GPU then runs.
#ifdef OSCAR_HOPPER_CODE
inline constexpr bool kHopperCode = OSCAR_HOPPER_CODE != 0;
#endif

// In device code: true in the code for 90a. The host's pass reads device code as this one.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kCodeIsHopper = true;
#else
inline constexpr bool kCodeIsHopper = false;
#endif

}  // namespace oscar::kernels
