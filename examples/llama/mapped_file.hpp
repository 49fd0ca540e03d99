// A file mapped read-only into memory. Pages come in when they are read and can be given back with drop(), so a reader that walks a
// large file once need never hold more than the piece it is working on.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace llama {

// A file that cannot be used: unreadable, damaged, or of a kind this program does not implement.
struct file_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class mapped_file {
 public:
  explicit mapped_file(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) fail(path, "cannot be opened");
    struct ::stat status {};
    if (::fstat(descriptor, &status) != 0) {
      ::close(descriptor);
      fail(path, "cannot be examined");
    }
    if (!S_ISREG(status.st_mode)) {
      ::close(descriptor);
      throw file_error(path + ": is not a regular file");
    }
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ != 0) {
      void* const address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (address != MAP_FAILED) data_ = static_cast<const std::byte*>(address);
    }
    ::close(descriptor);
    if (size_ != 0 && data_ == nullptr) fail(path, "cannot be mapped");
  }

  mapped_file(mapped_file&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  mapped_file& operator=(mapped_file&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~mapped_file() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  }

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Gives back the physical memory behind the pages that lie wholly inside `range`; reading them again reads the file again.
  void drop(std::span<const std::byte> range) const {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto first = reinterpret_cast<std::uintptr_t>(range.data());
    const auto begin = (first + page - 1) / page * page;
    const auto end = (first + range.size()) / page * page;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }

 private:
  [[noreturn]] static void fail(const std::string& path, const char* what) {
    throw file_error(path + ": " + what + ": " + std::strerror(errno));
  }

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace llama
