// Names of all forward kernels, as metrics show them: a closed set.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_KERNEL_NAMES_H_
#define ATTEND_KERNELS_CUDA_FORWARD_KERNEL_NAMES_H_

#include <string_view>

namespace attend::cuda {

inline constexpr std::string_view kForwardSm90Name = "forward_sm90";
inline constexpr std::string_view kDecodeSm90Name = "decode_sm90";
inline constexpr std::string_view kForwardSm80Name = "forward_sm80";
inline constexpr std::string_view kDecodeSm80Name = "decode_sm80";
inline constexpr std::string_view kForwardFp32Name = "forward_fp32";
inline constexpr std::string_view kMergeName = "merge";    // joins the key chunks of a row
inline constexpr std::string_view kPadName = "pad";        // writes padded rows
inline constexpr std::string_view kRepackName = "repack";  // odd head sizes and alignments

inline constexpr std::string_view kForwardKernelNames[] = {
    kForwardSm90Name, kDecodeSm90Name, kForwardSm80Name, kDecodeSm80Name,
    kForwardFp32Name, kMergeName,      kPadName,         kRepackName};

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_FORWARD_KERNEL_NAMES_H_
