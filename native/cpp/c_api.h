// The functions that Python calls with ctypes. Texts are UTF-8; a function that fails returns 0 or a null pointer, and
// writes the reason to `error`.
#pragma once

#include <cstdint>

#define TFDIST_EXPORT extern "C" __attribute__((visibility("default")))

TFDIST_EXPORT void* tfdist_listen(const char* host, int shares_memory, const char* id, char* error, int error_size);
// Writes the address of a listener, which the other ranks need: NAME HOST PORT MACHINE SOCKET. Its name is "-".
TFDIST_EXPORT void tfdist_address(void* listener, char* text, int text_size);
// Ends a listener that has not connected.
TFDIST_EXPORT void tfdist_stop_listening(void* listener);
// Connects with the other ranks. The addresses are in one text, one per line, in the order of the ranks; the first word
// of each line is the name of the rank for messages, with _ for blanks. Returns the number of the communicator, from 1.
// Ends the listener in any case.
TFDIST_EXPORT int64_t tfdist_connect(void* listener, int rank, const char* addresses, double timeout_seconds,
                                     char* error, int error_size);
TFDIST_EXPORT void tfdist_close(int64_t communicator);
// Lets the operations of a communicator go through the connections of another one, whose own number ends.
TFDIST_EXPORT void tfdist_replace(int64_t communicator, int64_t by);
TFDIST_EXPORT int tfdist_abort(int64_t communicator, int code, const char* message);
TFDIST_EXPORT uint64_t tfdist_bytes_sent(int64_t communicator);
// Those of them that a second thread has sent; see sender.h.
TFDIST_EXPORT uint64_t tfdist_bytes_handed_over(int64_t communicator);
// Starts an operation, and returns its number. See Request in operation.h.
TFDIST_EXPORT int64_t tfdist_start(int64_t communicator, int kind, int dtype, uint64_t elements, const void* in,
                                   void* out, int peer, uint64_t tag, double timeout_seconds);
// Waits for an operation. Returns its code, 0 for success.
TFDIST_EXPORT int tfdist_wait(int64_t operation, char* error, int error_size);
