// What a process that was forked from this one keeps of it.
#pragma once

#include "file_descriptor.h"

namespace tfdist {

// How often this process and those before it were forked. Differs from an earlier number only in a process that was
// forked since then: it has none of the threads that ran at that time, and may have to leave what they used alone.
int Forks();

// A socket that each process forked from this one closes at once: a connection lives as long as any process has it, so
// that the other end would not learn that this process has ended. (A program that is executed never gets it.)
class SocketOfProcess {
 public:
  explicit SocketOfProcess(FileDescriptor socket);
  ~SocketOfProcess();
  SocketOfProcess(const SocketOfProcess&) = delete;
  SocketOfProcess& operator=(const SocketOfProcess&) = delete;

  // -1 in a forked process.
  int get() const { return socket_.get(); }

 private:
  friend void CloseSocketsAfterFork();

  FileDescriptor socket_;
  // The sockets are in a list, through which a forked process goes without any memory of its own.
  SocketOfProcess *next_ = nullptr, *previous_ = nullptr;
};

}  // namespace tfdist
