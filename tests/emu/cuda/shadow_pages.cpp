// SPDX-License-Identifier: Apache-2.0
// Global memory of a launch, by pages. Everything is global that is neither shared memory nor a stack nor the
// module's.
#include <link.h>
#include <pthread.h>

#include <cstring>

#include "shadow.h"
#include "worker.h"

namespace cuda_emu::shadow {

Pages pages;

namespace {
constexpr size_t kKept = 1024;  // pages, from one launch to the next
}

void Pages::launch_begins(const LaunchInfo&) {
  for (Page* page : used_) {
    if (free_.size() < kKept) {
      free_.push_back(page);
      continue;
    }
    for (size_t i = 0; page->cells && i < 1024; ++i) delete[] page->cells[i].bytes;
    delete[] page->cells;
    delete page;
  }
  used_.clear();
  std::memset(recent_, 0, sizeof recent_);
  table_.assign(table_.empty() || table_.size() > 65536 ? 1024 : table_.size(), nullptr);
  if (host_thread_ != __builtin_thread_pointer()) {
    host_thread_ = __builtin_thread_pointer();
    pthread_attr_t attributes;
    void* low = nullptr;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstack(&attributes, &low, &bytes);
      pthread_attr_destroy(&attributes);
    }
    host_stack_ = reinterpret_cast<uintptr_t>(low);
    host_stack_end_ = host_stack_ + bytes;
  }
  if (!module_.empty()) return;
  dl_iterate_phdr([](dl_phdr_info* info, size_t, void* self) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
      if (info->dlpi_addr == state.module && info->dlpi_phdr[i].p_type == PT_LOAD)
        static_cast<Pages*>(self)->module_.emplace_back(begin, begin + info->dlpi_phdr[i].p_memsz);
    }
    return 0;
  }, this);
}

bool Pages::belongs_to_host(uintptr_t address) const {
  if (address >= host_stack_ && address < host_stack_end_) return true;
  if (local.worker->stacks.contains(reinterpret_cast<const void*>(address))) return true;
  for (const auto& [begin, end] : module_)
    if (address + kPage > begin && address < end) return true;
  return false;
}

void Pages::grow() {
  std::vector<Page*> bigger(table_.size() * 4, nullptr);
  for (Page* page : used_) {
    size_t at = page->number * 0x9e3779b97f4a7c15ull >> 20;
    while (bigger[at % bigger.size()]) ++at;
    bigger[at % bigger.size()] = page;
  }
  table_.swap(bigger);
}

Page& Pages::at(uintptr_t number) {
  Page*& recent = recent_[number % 64];
  if (recent && recent->number == number) return *recent;
  size_t at = number * 0x9e3779b97f4a7c15ull >> 20;
  for (Page* page; (page = table_[at % table_.size()]); ++at)
    if (page->number == number) return *(recent = page);
  if (used_.size() * 2 > table_.size()) {
    grow();
    return this->at(number);
  }
  Page* page = free_.empty() ? new Page : free_.back();
  if (!free_.empty()) free_.pop_back();
  page->number = number;
  page->ignored = belongs_to_host(number * kPage);
  std::memset(page->read, 0, sizeof page->read);
  std::memset(page->written, 0, sizeof page->written);
  page->block_base = 0;
  if (state.races && !page->ignored && !page->cells) page->cells = new Cell[1024];
  used_.push_back(page);
  table_[at % table_.size()] = page;
  return *(recent = page);
}

}  // namespace cuda_emu::shadow
