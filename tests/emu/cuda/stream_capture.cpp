// SPDX-License-Identifier: Apache-2.0
#include "stream_capture.h"

#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "run.h"

using Node = std::function<cudaError_t()>;
struct CUstream_st {
  bool capturing = false, spoilt = false;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::vector<Node> nodes;
  unsigned flags = 0;
};
struct CUgraph_st {
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  std::vector<Node> nodes;
};
struct CUevent_st {
  bool recorded = false, captured = false;
};

namespace cuda_emu {
namespace {

std::mutex g_mutex;
std::set<cudaStream_t> g_streams;
std::set<cudaEvent_t> g_events;
int g_captures = 0;  // under way

bool is_default(cudaStream_t s) { return !s || s == cudaStreamLegacy || s == cudaStreamPerThread; }

cudaError_t spoil(CUstream_st* stream, cudaError_t error) {
  stream->spoilt = true;
  return error;
}

// With the mutex held: what stands against work on this stream now.
Recorded state_of(cudaStream_t stream) {
  if (is_default(stream)) {
    // The legacy stream waits for all others, so it would depend on what is being captured.
    if (stream == cudaStreamPerThread || !g_captures) return {false, cudaSuccess};
    bool refused = false;
    for (cudaStream_t s : g_streams)
      if (s->capturing && s->mode == cudaStreamCaptureModeGlobal && !(s->flags & cudaStreamNonBlocking))
        s->spoilt = refused = true;
    return {refused, refused ? cudaErrorStreamCaptureImplicit : cudaSuccess};
  }
  if (!g_streams.count(stream)) return {true, cudaErrorInvalidResourceHandle};
  if (!stream->capturing) return {false, cudaSuccess};
  return {true, stream->spoilt ? cudaErrorStreamCaptureInvalidated : cudaSuccess};
}

}  // namespace

Recorded record(cudaStream_t stream, Node node) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  const Recorded state = state_of(stream);
  if (state.done && state.error == cudaSuccess) stream->nodes.push_back(std::move(node));
  return state;
}

Recorded record(const LaunchInfo& launch) {
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    const Recorded state = state_of(launch.stream);
    if (!state.done || state.error != cudaSuccess) return state;
  }
  const std::shared_ptr<void> args(launch.clone(launch.args), launch.destroy);
  return record(launch.stream, [launch, args] {
    LaunchInfo again = launch;
    again.args = args.get();
    return run(again);
  });
}

cudaError_t refuse_in_captures() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  cudaError_t error = cudaSuccess;
  for (cudaStream_t s : g_streams)
    if (s->capturing && s->mode != cudaStreamCaptureModeRelaxed) error = spoil(s, cudaErrorStreamCaptureUnsupported);
  return error;
}

cudaError_t refuse_if_captured(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  const Recorded state = state_of(stream);
  if (!state.done || state.error != cudaSuccess) return state.error;
  return spoil(stream, cudaErrorStreamCaptureUnsupported);
}

}  // namespace cuda_emu

using cuda_emu::remember;
using Lock = std::lock_guard<std::mutex>;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (!stream || flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) return remember(cudaErrorInvalidValue);
  const Lock lock(cuda_emu::g_mutex);
  *stream = new CUstream_st;
  (*stream)->flags = flags;
  cuda_emu::g_streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(cuda_emu::g_mutex);
  if (!cuda_emu::g_streams.erase(stream)) return remember(cudaErrorInvalidResourceHandle);
  cuda_emu::g_captures -= stream->capturing;
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return remember(cuda_emu::refuse_if_captured(stream)); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return remember(cuda_emu::refuse_if_captured(stream)); }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Lock lock(cuda_emu::g_mutex);
  if (cuda_emu::is_default(stream)) return remember(cudaErrorStreamCaptureUnsupported);
  if (!cuda_emu::g_streams.count(stream)) return remember(cudaErrorInvalidResourceHandle);
  if (stream->capturing) return remember(cudaErrorIllegalState);
  stream->capturing = true;
  stream->spoilt = false;
  stream->mode = mode;
  stream->nodes.clear();
  ++cuda_emu::g_captures;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(cuda_emu::g_mutex);
  if (!graph) return remember(cudaErrorInvalidValue);
  *graph = nullptr;
  if (cuda_emu::is_default(stream) || !cuda_emu::g_streams.count(stream) || !stream->capturing)
    return remember(cudaErrorIllegalState);
  stream->capturing = false;
  --cuda_emu::g_captures;
  if (stream->spoilt) return remember(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(stream->nodes)};
  stream->nodes.clear();
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock(cuda_emu::g_mutex);
  if (!status) return remember(cudaErrorInvalidValue);
  *status = cudaStreamCaptureStatusNone;
  if (cuda_emu::is_default(stream)) return cudaSuccess;
  if (!cuda_emu::g_streams.count(stream)) return remember(cudaErrorInvalidResourceHandle);
  if (stream->capturing)
    *status = stream->spoilt ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (!graph || !count || nodes) return remember(cudaErrorInvalidValue);  // only the number is offered
  *count = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  if (!exec || !graph || flags) return remember(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!graph) return remember(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (!exec) return remember(cudaErrorInvalidValue);
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (!exec) return remember(cudaErrorInvalidValue);
  {
    const Lock lock(cuda_emu::g_mutex);
    const cuda_emu::Recorded state = cuda_emu::state_of(stream);
    if (state.done)  // a graph inside a graph is not offered
      return remember(state.error != cudaSuccess ? state.error : cuda_emu::spoil(stream, cudaErrorNotSupported));
  }
  for (const Node& node : exec->nodes)
    if (const cudaError_t error = node(); error != cudaSuccess) return remember(error);
  return cudaSuccess;
}

// ---- events ----
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (!event) return remember(cudaErrorInvalidValue);
  const Lock lock(cuda_emu::g_mutex);
  *event = new CUevent_st;
  cuda_emu::g_events.insert(*event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(cuda_emu::g_mutex);
  if (!cuda_emu::g_events.erase(event)) return remember(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(cuda_emu::g_mutex);
  if (!cuda_emu::g_events.count(event)) return remember(cudaErrorInvalidResourceHandle);
  const cuda_emu::Recorded state = cuda_emu::state_of(stream);
  if (state.error != cudaSuccess) return remember(state.error);
  event->recorded = true;
  event->captured = state.done;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(cuda_emu::g_mutex);
  if (!cuda_emu::g_events.count(event)) return remember(cudaErrorInvalidResourceHandle);
  return remember(event->captured ? cudaErrorCapturedEvent : cudaSuccess);
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(cuda_emu::g_mutex);
  if (!cuda_emu::g_events.count(event)) return remember(cudaErrorInvalidResourceHandle);
  const cuda_emu::Recorded state = cuda_emu::state_of(stream);
  if (state.error != cudaSuccess) return remember(state.error);
  if (event->captured && !state.done) return remember(cudaErrorNotSupported);  // a second stream in a capture
  return cudaSuccess;
}

}  // extern "C"
