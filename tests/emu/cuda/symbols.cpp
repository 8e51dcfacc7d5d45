// SPDX-License-Identifier: Apache-2.0
// Names for reports: kernels from the module's own symbol table, lines of their sources from addr2line.
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unwind.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "config.h"

namespace cuda_emu {
namespace {

// Function symbols of the file at `path`: address within the module -> mangled name.
std::map<uintptr_t, std::string> read_symbols(const char* path) {
  std::map<uintptr_t, std::string> symbols;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  struct stat info;
  if (fd < 0 || fstat(fd, &info)) return symbols;
  const size_t size = static_cast<size_t>(info.st_size);
  void* map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (map == MAP_FAILED) return symbols;
  const char* file = static_cast<const char*>(map);
  const auto* head = reinterpret_cast<const Elf64_Ehdr*>(file);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file + head->e_shoff);
  for (int i = 0; i < head->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* table = reinterpret_cast<const Elf64_Sym*>(file + sections[i].sh_offset);
    const char* names = file + sections[sections[i].sh_link].sh_offset;
    for (size_t k = 0; k < sections[i].sh_size / sizeof(Elf64_Sym); ++k)
      if (ELF64_ST_TYPE(table[k].st_info) == STT_FUNC) symbols[table[k].st_value] = names + table[k].st_name;
  }
  munmap(map, size);
  return symbols;
}

// "void a::(anonymous namespace)::kernel<int>(float*)" -> "kernel<int>"
std::string short_name(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 ? plain.get() : mangled;
  for (const std::string& noise : {std::string("(anonymous namespace)::"), std::string("dsv4::cuda::"),
                                   std::string("dsv4::")})
    for (size_t at; (at = name.find(noise)) != std::string::npos;) name.erase(at, noise.size());
  if (name.compare(0, 5, "void ") == 0) name.erase(0, 5);
  int depth = 0;  // of template brackets: the parameter list is the first parenthesis outside them
  for (size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<';
    depth -= name[i] == '>';
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

bool in_this_module(const void* pc, Dl_info* info) {
  Dl_info mine{};
  return dladdr(pc, info) && dladdr(reinterpret_cast<const void*>(&kernel_name), &mine) && info->dli_fname &&
         info->dli_fbase == mine.dli_fbase;
}

// "file.cu:12", less the emulator's own files and what addr2line adds in brackets.
bool is_kernel_source(char* line) {
  line[std::strcspn(line, " \n")] = 0;
  const char* dot = std::strrchr(line, '.');
  return dot && (std::strncmp(dot, ".cu:", 4) == 0 || std::strncmp(dot, ".cuh:", 5) == 0);
}

struct Trace {
  std::string source;
  int depth = 0;
};
_Unwind_Reason_Code visit_frame(_Unwind_Context* context, void* data) {
  Trace& trace = *static_cast<Trace*>(data);
  const uintptr_t pc = _Unwind_GetIP(context);
  if (!pc || ++trace.depth > 16) return _URC_END_OF_STACK;
  trace.source = source_of(reinterpret_cast<const void*>(pc - 1));  // the call, not what follows it
  return trace.source.empty() ? _URC_NO_REASON : _URC_END_OF_STACK;
}

}  // namespace

std::string kernel_name(const void* function) {
  static std::mutex mutex;
  static std::map<const void*, std::string> known;
  static std::map<uintptr_t, std::string> symbols;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto it = known.find(function);
  if (it != known.end()) return it->second;
  Dl_info info{};
  if (!dladdr(function, &info)) return known[function] = "unknown kernel";
  if (symbols.empty()) symbols = read_symbols(info.dli_fname);
  uintptr_t address = reinterpret_cast<uintptr_t>(function);
  auto found = symbols.find(address - reinterpret_cast<uintptr_t>(info.dli_fbase));
  if (found == symbols.end()) found = symbols.find(address);  // an executable that is not relocated
  char number[32];
  std::snprintf(number, sizeof number, "kernel at %p", function);
  return known[function] = found != symbols.end() ? short_name(found->second) : number;
}

std::string source_of(const void* pc) {
  static std::mutex mutex;
  static std::map<const void*, std::string> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto it = known.find(pc);
  if (it != known.end()) return it->second;
  std::string& text = known[pc];
  Dl_info info{};
  if (!in_this_module(pc, &info)) return text;
  char command[1024];
  std::snprintf(command, sizeof command, "exec addr2line -i -s -e '%s' %#tx 2>/dev/null", info.dli_fname,
                static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase));
  FILE* pipe = popen(command, "r");
  if (!pipe) return text;
  char line[512];
  std::string before;
  for (int frames = 0; std::fgets(line, sizeof line, pipe);) {
    if (!is_kernel_source(line) || line == before || frames == 4) continue;
    before = line;
    text += (frames++ ? ", from " : " (") + before;
  }
  pclose(pipe);
  if (!text.empty()) text += ")";
  return text;
}

std::string source_of_caller() {
  Trace trace;
  _Unwind_Backtrace(&visit_frame, &trace);
  return trace.source;
}

}  // namespace cuda_emu
