// Makes writers' schemas known to the registry, on a thread of its own: the registry may be slow or away, and
// only the rows of those schemas wait for it. Tries again for ever.
#pragma once
#include "base/str.h"
#include <stdatomic.h>

typedef struct registrar registrar;

// One schema under one subject; lives until the registrar is closed.
typedef struct registration {
    _Atomic int32_t id; // of the registry; 0 until it is known
} registration;

// wake_fd: an eventfd that becomes readable when a schema has got its id.
PO_MUST_CHECK bool registrar_open(const char *registry_url, const char *registry_ca_file,
                                  int wake_fd, registrar **ret_registrar, po_err *err);
// Blocks until a call under way has ended (≤ 5 s).
void registrar_close(registrar **registrar);
// subject and text are copied.
void registrar_ask(registrar *registrar, po_str subject, po_str text, registration *registration);
