// The log line of an event's outcome, after COMMIT: what it was, what was decided, what was answered.
#pragma once
#include "store.h"

// `result`: "recorded", "duplicate", "conflict" as answered, or "decided" when it had to wait.
// Events that went to review are always told; others up to PAYONCE_LOG_RATE. Settle's arena still
// lives.
void tell_event(const event *e, const char *result);
