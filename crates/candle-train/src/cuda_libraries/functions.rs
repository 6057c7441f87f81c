//! The functions that cudarc's wrappers call, and we beside them, by library. A linker that misses
//! one names it: then it belongs here.

use std::arch::naked_asm;
use std::ffi::CStr;
use std::sync::atomic::AtomicUsize;

use super::jump::{find, functions};
use super::{CUBLAS, CUBLAS_LT, CUDA, CUDNN, CURAND, Function, NCCL, NVRTC};

functions! { CUDA:
    cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy_v2 cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetLimit
    cuCtxGetStreamPriorityRange cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetFlags cuCtxSetLimit
    cuCtxSynchronize cuDestroyExternalMemory cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount
    cuDeviceGetDefaultMemPool cuDeviceGetGraphMemAttribute cuDeviceGetMemPool cuDeviceGetName cuDeviceGetUuid
    cuDeviceGetUuid_v2 cuDeviceGraphMemTrim cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRetain
    cuDeviceSetGraphMemAttribute cuDeviceSetMemPool cuDeviceTotalMem_v2 cuEventCreate
    cuEventDestroy_v2 cuEventElapsedTime cuEventElapsedTime_v2 cuEventQuery cuEventRecord cuEventSynchronize
    cuExternalMemoryGetMappedBuffer cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig cuGetErrorName
    cuGetErrorString cuGraphDestroy cuGraphExecDestroy cuGraphGetNodes cuGraphInstantiateWithFlags cuGraphLaunch
    cuGraphMemcpyNodeGetParams cuGraphNodeGetType cuGraphUpload
    cuImportExternalMemory cuInit cuLaunchCooperativeKernel cuLaunchHostFunc cuLaunchKernel cuMemAdvise_v2
    cuMemAllocAsync cuMemAllocFromPoolAsync cuMemAllocManaged cuMemAlloc_v2 cuMemFreeAsync cuMemFreeHost
    cuMemFree_v2 cuMemGetInfo_v2 cuMemHostAlloc cuMemHostRegister_v2 cuMemHostUnregister cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAttribute
    cuMemPoolSetAttribute cuMemPoolTrimTo cuMemPrefetchAsync_v2 cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2
    cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2 cuMemcpyPeerAsync
    cuMemsetD8Async cuMemsetD8_v2 cuModuleGetFunction cuModuleGetGlobal_v2 cuModuleLoad cuModuleLoadData
    cuModuleUnload cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
    cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
    cuOccupancyMaxPotentialClusterSize cuPointerGetAttribute cuProfilerStart cuProfilerStop cuStreamAttachMemAsync
    cuStreamBeginCapture_v2 cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamEndCapture
    cuStreamIsCapturing cuStreamSynchronize cuStreamWaitEvent
}

functions! { CUBLAS:
    cublasCreate_v2 cublasDasum_v2 cublasDestroy_v2 cublasDgemmStridedBatched cublasDgemm_v2 cublasDgemv_v2
    cublasGemmEx cublasGemmGroupedBatchedEx cublasGemmStridedBatchedEx cublasGetPointerMode_v2 cublasSasum_v2
    cublasSetPointerMode_v2 cublasSetStream_v2 cublasSetWorkspace_v2 cublasSgemmStridedBatched cublasSgemm_v2 cublasSgemv_v2
}

functions! { CUBLAS_LT:
    cublasLtCreate cublasLtDestroy cublasLtLoggerOpenFile cublasLtLoggerSetLevel cublasLtMatmul
    cublasLtMatmulAlgoGetHeuristic cublasLtMatmulDescCreate cublasLtMatmulDescDestroy
    cublasLtMatmulDescSetAttribute cublasLtMatmulPreferenceCreate cublasLtMatmulPreferenceDestroy
    cublasLtMatmulPreferenceSetAttribute cublasLtMatrixLayoutCreate cublasLtMatrixLayoutDestroy
    cublasLtMatrixLayoutSetAttribute
}

functions! { CURAND:
    curandCreateGenerator curandDestroyGenerator curandGenerate curandGenerateLogNormal
    curandGenerateLogNormalDouble curandGenerateLongLong curandGenerateNormal curandGenerateNormalDouble
    curandGeneratePoisson curandGenerateUniform curandGenerateUniformDouble curandSetGeneratorOffset
    curandSetPseudoRandomGeneratorSeed curandSetStream
}

functions! { NVRTC:
    nvrtcCompileProgram nvrtcCreateProgram nvrtcDestroyProgram nvrtcGetCUBIN nvrtcGetCUBINSize nvrtcGetPTX
    nvrtcGetPTXSize nvrtcGetProgramLog nvrtcGetProgramLogSize nvrtcVersion
}

functions! { CUDNN:
    cudnnActivationForward cudnnAdvInferVersionCheck cudnnAdvTrainVersionCheck cudnnAdvVersionCheck
    cudnnCnnInferVersionCheck cudnnCnnTrainVersionCheck cudnnCnnVersionCheck cudnnConvolutionBackwardData
    cudnnConvolutionBackwardFilter cudnnConvolutionBiasActivationForward cudnnConvolutionForward cudnnCreate
    cudnnCreateActivationDescriptor cudnnCreateConvolutionDescriptor cudnnCreateFilterDescriptor
    cudnnCreatePoolingDescriptor cudnnCreateReduceTensorDescriptor cudnnCreateTensorDescriptor cudnnDestroy
    cudnnDestroyConvolutionDescriptor cudnnDestroyFilterDescriptor cudnnDestroyReduceTensorDescriptor
    cudnnDestroyTensorDescriptor cudnnGetConvolutionBackwardDataAlgorithm_v7
    cudnnGetConvolutionBackwardDataWorkspaceSize cudnnGetConvolutionBackwardFilterAlgorithm_v7
    cudnnGetConvolutionBackwardFilterWorkspaceSize cudnnGetConvolutionForwardAlgorithm_v7
    cudnnGetConvolutionForwardWorkspaceSize cudnnGetCudartVersion cudnnGetReductionIndicesSize
    cudnnGetReductionWorkspaceSize cudnnGetVersion cudnnOpsInferVersionCheck cudnnOpsTrainVersionCheck
    cudnnOpsVersionCheck cudnnPoolingForward cudnnReduceTensor cudnnSetActivationDescriptor
    cudnnSetConvolution2dDescriptor cudnnSetConvolutionGroupCount cudnnSetConvolutionMathType
    cudnnSetConvolutionNdDescriptor cudnnSetFilter4dDescriptor cudnnSetFilterNdDescriptor
    cudnnSetPoolingNdDescriptor cudnnSetReduceTensorDescriptor cudnnSetStream cudnnSetTensor4dDescriptor
    cudnnSetTensor4dDescriptorEx cudnnSetTensorNdDescriptor cudnnSoftmaxForward
}

functions! { NCCL:
    ncclAllGather ncclAllReduce ncclBroadcast ncclCommAbort ncclCommCount ncclCommCuDevice ncclCommDestroy
    ncclCommFinalize ncclCommGetAsyncError ncclCommInitAll ncclCommInitRank ncclCommInitRankConfig
    ncclCommSplit ncclCommUserRank ncclGetErrorString ncclGetUniqueId ncclGetVersion ncclGroupEnd
    ncclGroupStart ncclRecv ncclRedOpCreatePreMulSum ncclRedOpDestroy ncclReduce ncclReduceScatter ncclSend
}
