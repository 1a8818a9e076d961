// Owns a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace tfdist {

class FileDescriptor {
 public:
  explicit FileDescriptor(int number = -1) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      Close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~FileDescriptor() { Close(); }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  void Close() {
    if (number_ >= 0) close(number_);
    number_ = -1;
  }

  int number_;
};

}  // namespace tfdist
