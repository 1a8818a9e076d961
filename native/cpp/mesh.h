// Connects a rank with all others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "file_descriptor.h"

namespace tfdist {

// Where a rank listens. All ranks know the addresses of all others before they connect.
struct Address {
  // Of the rank, for messages; without blanks.
  std::string name;
  // Numeric IPv4 or IPv6 address, and TCP port.
  std::string host;
  int port = 0;
  // Equal for ranks that can share memory; empty for a rank that does not.
  std::string machine;
  // Name of a Unix socket in the abstract namespace, on which ranks of the same machine exchange shared memory.
  std::string local;

  // As one line, with blanks between the parts.
  std::string ToString() const;
  static Address FromString(const std::string& text);
};

// Listens for the other ranks, and then connects with them.
class Listener {
 public:
  // Args:
  //   host: the numeric address to listen on; the others connect to it.
  //   shares_memory: whether ranks of the same machine use shared memory instead of TCP.
  //   id: of the run: the same on all ranks, and secret. A process that does not know it cannot join.
  Listener(const std::string& host, bool shares_memory, const std::string& id);

  Address address() const { return address_; }

  // Connects with all other ranks, and throws std::runtime_error that names the missing ones after the deadline.
  Mesh Connect(int rank, const std::vector<Address>& addresses, double timeout_seconds);

 private:
  FileDescriptor tcp_, local_;
  Address address_;
  std::string id_;
};

}  // namespace tfdist
