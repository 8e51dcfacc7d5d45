// SPDX-License-Identifier: Apache-2.0
// Launches: the limits of the device, the order of blocks, the OS threads that run them, and what was launched.
#include "run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "fault.h"
#include "stream_capture.h"
#include "worker.h"

namespace cuda_emu {
namespace {

constexpr int kDefaultShared = 48 * 1024;

std::mutex g_run;                                      // one launch at a time
std::vector<std::unique_ptr<Worker>> g_workers;        // of the OS threads that run a launch
std::map<const void*, int> g_max_shared;               // cudaFuncSetAttribute
std::set<const void*> g_large_clusters;                // the same

struct Counter {
  uint64_t launches = 0;
  dim3 grid, block;
  size_t shared_bytes = 0;
  unsigned cluster = 0;
  uint64_t blocks = 0;
  Events events{};
};
std::map<const void*, Counter> g_counters;

cudaError_t check_limits(const LaunchInfo& l) {
  const auto refuse = [&](cudaError_t error, const std::string& why) {
    add_report(kernel_name(l.kernel) + ": " + why);
    return error;
  };
  const auto shape = [](dim3 d) {
    return "(" + std::to_string(d.x) + "," + std::to_string(d.y) + "," + std::to_string(d.z) + ")";
  };
  const uint64_t threads = uint64_t{l.block.x} * l.block.y * l.block.z;
  if (!threads || l.block.x > kMaxThreads || l.block.y > kMaxThreads || l.block.z > 64 || threads > kMaxThreads)
    return refuse(cudaErrorInvalidConfiguration,
                  "block " + shape(l.block) + ": expected 1 to 1024 threads, at most 64 of them along z");
  if (!l.grid.x || !l.grid.y || !l.grid.z || l.grid.x > 0x7fffffffu || l.grid.y > 65535 || l.grid.z > 65535)
    return refuse(cudaErrorInvalidConfiguration,
                  "grid " + shape(l.grid) + ": expected 1 to 2147483647, 65535 and 65535 blocks along x, y and z");
  const auto it = g_max_shared.find(l.kernel);
  const size_t most = static_cast<size_t>(it == g_max_shared.end() ? kDefaultShared : it->second);
  if (l.shared_bytes > most)
    return refuse(cudaErrorInvalidValue, std::to_string(l.shared_bytes) +
                                             " bytes of dynamic shared memory: expected at most " +
                                             std::to_string(most) + " (cudaFuncSetAttribute raises it, to " +
                                             std::to_string(kMaxShared) + ")");
  if (l.cluster == 0) return cudaSuccess;
  const unsigned largest = g_large_clusters.count(l.kernel) ? static_cast<unsigned>(config.cluster) : 8;
  if (config.capability < 90) return refuse(cudaErrorNotSupported, "no clusters before compute capability 9.0");
  if (config.code < 90) return refuse(cudaErrorLaunchFailure, "the kernel traps: code from before sm_90 has no clusters");
  if (l.cluster > largest)
    return refuse(cudaErrorInvalidClusterSize, "clusters of " + std::to_string(l.cluster) + " blocks: expected 1 to " +
                                                   std::to_string(largest) + " (cudaFuncSetAttribute raises 8 to 16)");
  if (l.grid.x % l.cluster)
    return refuse(cudaErrorInvalidConfiguration,
                  "grid " + shape(l.grid) + ": expected whole clusters of " + std::to_string(l.cluster) + " along x");
  return cudaSuccess;
}

// Visits all blocks, or clusters, once: ascending, descending, or by a stride that shares no factor with their number.
struct BlockOrder {
  uint64_t count, step = 1, start = 0;
  explicit BlockOrder(uint64_t n) : count(n) {
    if (config.order == kFifo || n < 2) return;
    start = n - 1, step = n - 1;
    if (config.order == kLifo) return;
    std::mt19937_64 random(static_cast<uint64_t>(config.seed));
    start = random() % n;
    do step = random() % n;
    while (step == 0 || std::gcd(step, n) != 1);
  }
  uint64_t operator[](uint64_t i) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(i) * step + start) % count);
  }
};

unsigned blocks_of_turn(const LaunchInfo& launch) { return std::max(1u, launch.cluster); }

// `workers`: one, or one for each block of a cluster.
void run_blocks(const std::unique_ptr<Worker>* workers, const LaunchInfo& launch, uint32_t seed,
                const BlockOrder& order, std::atomic<uint64_t>& next) {
  Worker& worker = *workers[0];
  const SignalStack signal_stack(worker);
  Cluster cluster;
  for (unsigned i = 0; i < blocks_of_turn(launch); ++i) {
    workers[i]->begin(launch, seed);
    cluster.blocks.push_back(workers[i].get());
  }
  for (uint64_t i; !failed && (i = next.fetch_add(1, std::memory_order_relaxed)) < order.count;)
    if (launch.cluster == 0) worker.run_block(order[i]);
    else Worker::run_cluster(cluster, order[i] * launch.cluster);
  local.block = nullptr;
}

}  // namespace

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) local.last_error = error;
  return error;
}

cudaError_t set_max_dynamic_shared(const void* kernel, int bytes) {
  const std::lock_guard<std::mutex> lock(g_run);
  if (bytes < 0 || static_cast<size_t>(bytes) > kMaxShared) return remember(cudaErrorInvalidValue);
  g_max_shared[kernel] = bytes;
  return cudaSuccess;
}

cudaError_t allow_large_clusters(const void* kernel, bool allowed) {
  const std::lock_guard<std::mutex> lock(g_run);
  if (allowed) g_large_clusters.insert(kernel);
  else g_large_clusters.erase(kernel);
  return cudaSuccess;
}

cudaError_t submit(const LaunchInfo& launch) {
  if (const Recorded recorded = record(launch); recorded.done) return remember(recorded.error);
  return run(launch);
}

cudaError_t run(const LaunchInfo& launch) {
  const std::lock_guard<std::mutex> lock(g_run);
  begin_reports();
  if (!config_problem.empty()) {
    add_report(config_problem);
    return remember(cudaErrorInvalidValue);
  }
  if (const cudaError_t error = check_limits(launch); error != cudaSuccess) return remember(error);
  Counter& counter = g_counters[launch.kernel];
  ++counter.launches;
  counter.grid = launch.grid;
  counter.block = launch.block;
  counter.shared_bytes = launch.shared_bytes;
  counter.cluster = launch.cluster;
  counter.blocks += uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;

  const BlockOrder order(uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z / blocks_of_turn(launch));
  const uint64_t wanted = observer ? 1 : static_cast<uint64_t>(config.threads);  // observers see one block at a time
  const uint32_t threads = static_cast<uint32_t>(std::min(wanted, order.count));
  while (g_workers.size() < threads * blocks_of_turn(launch)) g_workers.push_back(std::make_unique<Worker>());
  failed = false;
  const FaultHandler faults;
  if (observer) observer->launch_begins(launch);
  std::atomic<uint64_t> next{0};
  const uint32_t seed = static_cast<uint32_t>(config.seed) * 64;
  std::vector<std::thread> helpers;
  for (uint32_t i = 1; i < threads; ++i)
    helpers.emplace_back([&, i] { run_blocks(&g_workers[i * blocks_of_turn(launch)], launch, seed + i, order, next); });
  run_blocks(&g_workers[0], launch, seed, order, next);
  for (std::thread& t : helpers) t.join();
  for (uint32_t i = 0; i < threads * blocks_of_turn(launch); ++i) {
    const Events& e = g_workers[i]->block.events;
    counter.events.collectives += e.collectives, counter.events.mma += e.mma, counter.events.ldmatrix += e.ldmatrix;
    counter.events.barriers += e.barriers, counter.events.cluster_barriers += e.cluster_barriers;
  }
  if (observer) observer->launch_ends();
  return failed ? remember(cudaErrorLaunchFailure) : cudaSuccess;
}

std::string counters() {
  const std::lock_guard<std::mutex> lock(g_run);
  const auto shape = [](dim3 d) {
    return "[" + std::to_string(d.x) + "," + std::to_string(d.y) + "," + std::to_string(d.z) + "]";
  };
  std::string json = "{";
  for (const auto& [kernel, c] : g_counters) {
    if (json.size() > 1) json += ",";
    json += "\"" + kernel_name(kernel) + "\":{\"launches\":" + std::to_string(c.launches) +
            ",\"grid\":" + shape(c.grid) + ",\"block\":" + shape(c.block) +
            ",\"smem\":" + std::to_string(c.shared_bytes);
    json += ",\"blocks\":" + std::to_string(c.blocks) + ",\"collectives\":" + std::to_string(c.events.collectives) +
            ",\"mma\":" + std::to_string(c.events.mma) + ",\"ldmatrix\":" + std::to_string(c.events.ldmatrix) +
            ",\"barriers\":" + std::to_string(c.events.barriers) +
            ",\"cluster_barriers\":" + std::to_string(c.events.cluster_barriers);
    if (c.cluster) json += ",\"cluster\":" + std::to_string(c.cluster);
    json += std::string(observer ? observer->counters(kernel) : "") + "}";
  }
  return json + "}";
}

void clear_counters() {
  const std::lock_guard<std::mutex> lock(g_run);
  g_counters.clear();
  if (observer) observer->clear_counters();
}

}  // namespace cuda_emu
